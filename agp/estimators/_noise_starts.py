"""Starting values of the kernels of noise that is a latent function with a kernel of its own."""

from typing import Any

import numpy as np

from agp import tree
from agp.backend import backend_of
from agp.bounds import Batch
from agp.errors import NotPositiveDefiniteError
from agp.estimators._observations import Observations
from agp.likelihoods import LatentNoiseGaussian
from agp.models import SVGP
from agp.processes import Stack
from agp.repairs import collect_reports
from agp.updates import OptimalPosterior

LENGTHSCALE_ROWS = 1000
"""The number of rows from which the lengthscales of the noise are computed."""
MAX_ROWS = 2048
"""Up to this many rows, the starts are compared by their bounds."""
TOLERANCE = 0.1
"""The gain of the bound, in nats, below which q(u) is near enough to its optimum for the comparison."""


def start_noise(model: Any, data: Observations, *, selected: bool) -> Any:
    """Return the model with the better of two starts for the lengthscales of the noise.

    The built model gives the noise the lengthscales of the mean. If the mean does not depend on a column, its
    lengthscale is so large that the noise would never use the column. The other start is that of
    `Kernel.from_data`, which uses all columns. The start with the larger bound at the optimal q(u) is chosen; if q(u)
    cannot be solved for, or there are many rows, the second one.

    Parameters
    ----------
    model
        An untrained model. It is returned unchanged unless its noise is a latent function with its own kernel.
    data
        The rows.
    selected
        Whether the kernel was selected. The starts of given kernels are not changed.
    """
    is_latent = isinstance(model, SVGP) and isinstance(model.likelihood, LatentNoiseGaussian)
    if not (selected and is_latent and isinstance(model.process, Stack)):
        return model
    wide = _with_usual_lengthscales(model, data)
    if data.X.shape[0] > MAX_ROWS or backend_of(data.X).is_lazy or not OptimalPosterior.applies(model):
        return wide
    return max((wide, model), key=lambda one: _bound_at_optimum(one, data))


def _with_usual_lengthscales(model: Any, data: Observations) -> Any:
    """Return the model with the lengthscales of `Kernel.from_data` for the noise."""
    parts = model.process.parts
    rows, new = backend_of(data.X).gather(data.X[: min(LENGTHSCALE_ROWS, data.X.shape[0]), :]), {}
    for place in range(len(parts) // 2, len(parts)):
        kernel = parts[place].kernel
        names = [name for name in tree.leaves(kernel) if name.endswith("lengthscale")]
        usual = tree.leaves(tree.with_leaves(kernel, dict.fromkeys(names)).from_data(rows, 1.0))
        new |= {f"process.parts.{place}.kernel.{name}": usual[name] for name in names}
    return tree.with_leaves(model, new)


def _bound_at_optimum(model: Any, data: Observations) -> float:
    """Return the bound at the optimal q(u), or minus infinity if a covariance matrix cannot be factorised."""
    with collect_reports(), np.errstate(all="ignore"):  # training reports the same repairs
        try:
            settle = OptimalPosterior(TOLERANCE)
            settled = settle(model, Batch(data.X, data.y, **data.known), settle.init(model))[0]
            bound = float(settled.bound(data.X, data.y, **data.known)[0])
        except NotPositiveDefiniteError:
            return -np.inf
    return bound if np.isfinite(bound) else -np.inf
