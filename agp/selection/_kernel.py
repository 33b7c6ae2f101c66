"""Choice of a kernel for any model, by training exact GPs on a small sample."""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from agp.backend import Array, asarray_like, backend_of
from agp.checks import as_columns
from agp.errors import explain_call
from agp.kernels import RBF, Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.random import generator
from agp.selection._climb import Climber, StageOver
from agp.selection._given import KERNELS, Columns, Data, Plan, check_categories
from agp.selection._race import SAMPLE, Race
from agp.selection._stages import COMPARED_ROWS
from agp.selection._watch import Pieces, Watch
from agp.starts import perturb_constants, proxies_of_rows

TOLERANCE = 1e-3
"""The tolerance of the search, as in `fit_regression`."""
MIN_ROWS = 8
"""With fewer rows than this, kernels are not compared."""
LEAST_GAP_FRACTION = 0.25
"""The smallest lengthscale as a fraction of the smallest gap between the values of a column.

Shorter lengthscales are equivalent for the rows, whose covariances are then zero, but not for inducing inputs: they get
no gradient unless they coincide with a row.
"""


@explain_call
def select_kernel(
    X: Array,
    y: Array,
    likelihood: Likelihood,
    /,
    *,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
    categories: Iterable[int] = (),
    max_seconds: float | None = None,
) -> Kernel:
    """Return the kernel that gives the best leave-one-out predictions for 500 rows.

    The kernels are compared in exact GPs with Gaussian noise, as in the search of `fit_regression`, with
    `Likelihood.proxies` as targets. The returned kernel keeps its trained lengthscales if the proxies are observations
    of the latent functions or logarithms of counts, but at least `LEAST_GAP_FRACTION` of the smallest gap between two
    values of a column. For class labels, its lengthscales are None, so that `from_data` sets them. Weights [N], an
    offset and known noise variances of the rows are as in `agp.fit`; noise that differs between outputs is not used.
    `categories` are the columns of X with codes of levels, as in `fit_regression`.
    """
    observed = likelihood.log_link or likelihood.observations(y) is not None
    offset = None if offset is None else as_columns(offset)
    noise = None if noise is None or as_columns(noise).shape[1] > 1 else as_columns(noise)[:, 0]
    data = _sample(Data(X, proxies_of_rows(likelihood, y, offset), weights, noise))
    columns = Columns(X.shape[1], check_categories(categories, X))
    if data.X.shape[0] < MIN_ROWS or not data.y.shape[1]:
        return columns.mix(RBF())
    data = data.on_host()
    some = partial(backend_of(X).gather, X[: min(COMPARED_ROWS, X.shape[0]), :])
    wide = data._replace(X=perturb_constants(data.X, some, columns.categories))
    plan = Plan("auto", Gaussian(), None, "auto", None, TOLERANCE, columns)
    with Watch(max_seconds, (), progress=False) as watch:
        climb = Climber(plan, Pieces(None, {}, watch), watch)
        with suppress(StageOver):
            for _ in Race(plan, wide, data, climb, linear=False).run():
                pass
    if not climb.done:
        return columns.mix(RBF())
    best = max(climb.done, key=lambda one: (one.model.X.shape[0], one.score))
    lengthscale = 1.0 / best.model.kernel.inverse_scales(X.shape[1])
    kind = KERNELS[best.kernel]
    return columns.mix(kind(lengthscale=_resolve_gaps(lengthscale, X, data.X, columns) if observed else None))


def _resolve_gaps(lengthscale: Any, X: Array, sample: Any, columns: Columns) -> Array:
    """Return the lengthscales like rows of X in memory.

    They are at least `LEAST_GAP_FRACTION` of the smallest gap between values of a column of numbers.
    """
    gaps = np.asarray([np.diff(np.unique(column)).min(initial=np.inf) for column in sample.T])
    gaps[[*columns.categories]] = np.inf
    least = np.where(np.isfinite(gaps), LEAST_GAP_FRACTION * gaps, 0.0)
    return asarray_like(np.maximum(lengthscale, least), backend_of(X).gather(X[:1, :]))


def _sample(data: Data) -> Data:
    """Draw rows and standardise their targets. Omit rows with missing targets or weight 0, and constant targets."""
    rows = np.arange(data.X.shape[0])
    if data.X.shape[0] > SAMPLE:
        rows = generator(0, 18).choice(data.X.shape[0], SAMPLE, replace=False)
    data = data.at(rows)
    values, weights = data.targets_on_host()
    known = np.flatnonzero(np.isfinite(values).all(axis=1) & (True if weights is None else weights > 0.0))
    values = values[known]
    spread = values.std(axis=0) if len(values) else np.zeros(values.shape[1])
    some = spread > 1e-12 * np.abs(values).max(axis=0, initial=0.0)
    values = (values[:, some] - values[:, some].mean(axis=0)) / spread[some] if some.any() else values[:, :0]
    found = data.at(known)._replace(y=asarray_like(values, data.X))
    if found.noise is None or values.shape[1] != 1:
        return found._replace(noise=None)
    return found._replace(noise=found.noise / asarray_like(np.asarray(spread[some][0] ** 2), found.noise))
