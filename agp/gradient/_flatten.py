"""Models as vectors of raw leaves, for optimisers and samplers."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_like
from agp.repairs import public
from agp.tree import LOWER

T = TypeVar("T")


class Unflatten(Generic[T]):
    """A function that converts a vector [n] of raw leaves to a model: ``unflatten(vector)``. `flatten` creates it.

    torch and JAX can differentiate this function. You can use it inside ``jax.jit``, ``jax.grad`` and ``jax.vmap``.

    Parameters
    ----------
    model
        The model that provides the settings, and the leaves that are not in the vector.
    names
        The parameters in the vector, in this order.

    Raises
    ------
    TypeError, ValueError
        If the parameters differ in library, dtype or device. Calls raise these errors if the vector does not have the
        size, library, dtype and device of the parameters.
    """

    def __init__(self, model: T, names: Iterable[str]) -> None:
        by_name = {leaf.name: leaf for leaf in tree.describe(model)}
        self.model = model
        self.leaves: tuple[tree.Leaf, ...] = tuple(by_name[name] for name in names)
        """The parameters in the vector."""
        for leaf in self.leaves:
            check_like(leaf.name, leaf.value, self.leaves[0].name, self.leaves[0].value)
        ends = list(itertools.accumulate(math.prod(leaf.value.shape) for leaf in self.leaves))
        self.size: int = ends[-1]
        """The length n of the vector."""
        self._ranges = list(zip([0, *ends], ends, strict=False))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each entry [n] of the vector, such as "kernel.variance" or "kernel.lengthscale[1]"."""
        places = ((leaf.name, itertools.product(*map(range, leaf.value.shape))) for leaf in self.leaves)
        return tuple(f"{name}{list(place) or ''}" for name, inside in places for place in inside)

    @public(repairs=False, context=False, ignore="underflow")
    def __call__(self, vector: Array, /) -> T:
        return tree.constrain(self.model, self.raw(vector))

    def raw(self, vector: Array, /) -> dict[str, Array]:
        """Split the vector into raw leaves by name, for `agp.tree.constrain`. Raises the errors of `__call__`."""
        check_like("vector", vector, self.leaves[0].name, self.leaves[0].value)
        if tuple(vector.shape) != (self.size,):
            raise ValueError(f"vector has shape {tuple(vector.shape)}, but must have shape ({self.size},).")
        xp = backend_of(vector).xp
        return {
            leaf.name: xp.reshape(vector[start:end], tuple(leaf.value.shape))
            for leaf, (start, end) in zip(self.leaves, self._ranges, strict=True)
        }

    def vector(self, raw: Mapping[str, Array], /) -> Array:
        """Concatenate raw leaves, or their gradient from `agp.value_and_gradient`, to a vector [n].

        `raw` is a dictionary of arrays by leaf name. Names of other leaves are ignored.

        Raises
        ------
        KeyError
            If a leaf is missing.
        """
        parts = [raw[leaf.name] for leaf in self.leaves]
        xp = backend_of(parts[0]).xp
        return xp.concat([xp.reshape(x, (-1,)) for x in parts])

    @public(repairs=False, context=False, ignore="underflow")
    def log_jacobian(self, vector: Array, /) -> tuple[Array, Pullback]:
        """Return log |d values / d vector|, 0-d, for the parameters in the vector, and the pullback ``bar=1.0 -> [n]``.

        Samplers use the log density of the vector, which is the log density of the values plus this log Jacobian.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in the class, or if part of the vector is a triangular matrix. Entries above the
            diagonal of such a matrix do not change the model, so the density of the vector cannot be normalised.
        """
        if triangular := [leaf.name for leaf in self.leaves if leaf.constraint == LOWER]:
            names = ", ".join(triangular)
            raise ValueError(
                f"the entries of {names} above the diagonal have no effect; freeze {names} in agp.flatten."
            )
        raw = self.raw(vector)
        terms = {leaf.name: leaf.log_jacobian(raw[leaf.name]) for leaf in self.leaves}
        slopes = self.vector({name: slope for name, (_, slope) in terms.items()})
        return sum(value for value, _ in terms.values()), lambda bar=1.0: bar * slopes


@public(repairs=False, context=False, ignore="underflow")
def flatten(model: T, *, frozen: str | Iterable[str] = ()) -> tuple[Array, Unflatten[T]]:
    """Return the raw leaves of a model's parameters as one vector [n], and the function from vectors to models.

    Raw leaves are unconstrained and dimensionless, so every finite vector corresponds to a model. Auxiliary arrays,
    such as inverse factors, are not in the vector and do not change.

    Parameters
    ----------
    model
        A model, or a part of one.
    frozen
        One or several patterns of leaf names, such as ``"Z"`` or ``("Z", "likelihood.*")``. Matching leaves do not
        change and are not in the vector.

    Returns
    -------
    vector
        [n], with library, dtype and device of the leaves, in the order of `agp.tree.leaves`.
    unflatten
        ``unflatten(vector)`` is the model; see `Unflatten` for names, gradients and densities.

    Raises
    ------
    TypeError, ValueError
        If a pattern matches nothing, no parameter is left, a parameter has no value, or parameters differ in library,
        dtype or device.

    Examples
    --------
    A small step along the gradient increases the bound. Optimisers for vectors take such steps.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> model = agp.GPR.from_data(X, y)
    >>> vector, unflatten = agp.flatten(model, frozen="mean_function.*")
    >>> unflatten.names
    ('kernel.variance', 'kernel.lengthscale[0]', 'likelihood.noise_variance')
    >>> value, gradient = agp.value_and_gradient(model, X, y)
    >>> better = unflatten(vector + 1e-3 * unflatten.vector(gradient))
    >>> bool(better.bound(X, y)[0] > value)
    True
    """
    if missing := tree.missing(model):
        raise ValueError(
            f"{', '.join(missing)} has no value; build the model with from_data, which sets initial values."
        )
    unflatten = Unflatten(model, unfrozen(model, tree.patterns(frozen)))
    raw = tree.unconstrain(model)
    return unflatten.vector({leaf.name: raw[leaf.name] for leaf in unflatten.leaves}), unflatten


def unfrozen(model: Any, frozen: tuple[str, ...], /) -> list[str]:
    """Return the names of the parameters that no pattern matches.

    Raise ValueError if a pattern matches nothing, or if no parameter is left.
    """
    parameters = tree.leaves(model, "parameter")
    for pattern in frozen:
        if not any(tree.matches(name, pattern) for name in [*parameters, *tree.leaves(model, "auxiliary")]):
            raise ValueError(tree.no_match_message(pattern, parameters))
    moving = [name for name in parameters if not any(tree.matches(name, pattern) for pattern in frozen)]
    if not moving:
        why = f"every parameter is frozen by {', '.join(frozen)}" if frozen else "the model has no parameters"
        raise ValueError(f"{why}, so the vector would be empty.")
    return moving
