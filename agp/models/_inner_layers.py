"""What inner layers of deep models start with: what they pass on, and little noise."""

import dataclasses
from typing import Any

from agp import tree
from agp.backend import Array, backend_of, like, placed, to_numpy
from agp.posteriors import start_of
from agp.processes import Sparse
from agp.starts import principal_directions

__all__ = ["calm", "directions"]

INNER_VARIANCE = 1e-4
"""Where the prior variances of inner layers start; what they pass on has variance 1."""
INNER_DEVIATION = 1e-2
"""Where the standard deviations of q(u) in inner layers start, in those of the prior."""


def calm(layer: Sparse, settings: dict[str, Any]) -> Sparse:
    """The layer with little noise: q(u) near certain, and small variances where they were not given.

    A q(u) in whitened coordinates grows with the variance. Means in units of f do not, and a small variance would hold
    them at zero: there it starts at that of what is passed on. Units stay those of what the layer may grow into.
    """
    q, held = layer.posterior, tree.leaves(layer.posterior)
    if not any(name.endswith("mean_unit") for name in held):
        given = {} if settings["kernel"] is None else tree.leaves(settings["kernel"])
        free = {name: x for name, x in tree.leaves(layer.kernel, "parameter").items() if given.get(name) is None}
        smaller = {name: INNER_VARIANCE * x for name, x in free.items() if name.endswith("variance")}
        layer = dataclasses.replace(layer, kernel=tree.with_leaves(layer.kernel, smaller))
        q = start_of(settings["posterior"])(layer.inducing_covariance()[0], layer.outputs)
    roots = {name: x for name, x in tree.leaves(q).items() if name.rpartition(".")[2] in ("scale", "deviation")}
    q = tree.with_leaves(q, {name: INNER_DEVIATION * x for name, x in roots.items()})
    return dataclasses.replace(layer, posterior=q)


def directions(X: Array, width: int) -> Array:
    """The first columns of the identity [D, width], or the leading principal directions of X [N, D] if D is larger."""
    D = X.shape[1]
    if width >= D:
        return backend_of(X).xp.eye(D, width, **like(X))
    return placed(principal_directions(to_numpy(X), width), X)
