"""Learned metrics: the same kernel on other axes, those along which the predictive mean varies most and least."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.chunking import column_spreads
from agp.kernels import ActiveDims, Kernel, Product, Projected, Sum, Warped
from agp.priors import has_densities
from agp.selection._climb import Climber, StageOver, beside
from agp.selection._given import KERNELS, Plan
from agp.selection._trial import Trial

LEAST_COLUMNS, LEAST_ROWS = 3, 1000
"""The least number of columns that are combined, and that of rows from which the axes are learned."""
TURNS, STEPS, TOLERANCE = 3, 4, 4.0
"""The maximum number of times that the axes are turned, that of evaluations of the evidence each time, and the
predicted gain in nats at which training ends."""
GAIN = 0.02
"""The least gain in nats per row, in evidence and in the log density of left-out rows, for a comparison on held-out
rows. The axes are turned again if the evidence rises by more than this."""
LEAST_NOISE = 1e-8
"""The smallest noise variance for computing the predictive mean, as a fraction of the variance of the function."""
SUFFIX = " of a learned metric"


def learn_metric(plan: Plan, climb: Climber, best: Trial) -> Trial | None:
    """Train a candidate on its rows with turned axes; return the result if it is clearly better on these rows."""
    if not (isinstance(plan.kernel, str) and isinstance(plan.priors, str)) or plan.foreign:
        return None
    if plan.limits_lengthscales or has_densities(best.model):
        return None
    model = beside(best.model, np.zeros(0))
    if model.X.shape[0] < LEAST_ROWS:
        return None
    one = best._replace(model=model)
    for turn in range(TURNS):
        kernel = turn_axes(one.model, plan.times)
        if kernel is None:
            return None
        start = tree.replace(one.model, {"kernel": kernel})
        settings: Any = {"narrowly": True, "tolerance": TOLERANCE}
        if not turn:
            settings |= {"rival": best, "margin": -GAIN}
        try:
            new = climb("metric", best.kernel + SUFFIX, start, STEPS, **settings)
        except StageOver:
            break
        gains = new.scores.evidence - one.scores.evidence, new.scores.log_density - one.scores.log_density
        if not turn and not min(gains) > GAIN:
            return None
        if not min(gains) > 0.0:
            break
        one = new
        if gains[0] <= GAIN:
            break
    return None if one.kernel == best.kernel else one


def turn_axes(model: Any, fixed: tuple[int, ...] = ()) -> Kernel | None:
    """Return the kernel of an exact GP with other axes, such that the kernel is the same function at first.

    Let u_n be the inputs of the first stationary kernel, in units of its lengthscales, and g_n the gradients of its
    part of the predictive mean with respect to u_n. The new axes are the eigenvectors of sum_n g_n g_n^T, and their
    lengthscales are 1. Columns in `fixed`, and columns of codes, remain axes. The result is None if there is no such
    kernel, or if fewer than `LEAST_COLUMNS` columns would be combined. All arrays are NumPy's.
    """
    K = model.kernel(model.X)[0]
    v = model.likelihood.noise_variance + (0.0 if model.noise is None else model.noise[:, 0])
    v = np.maximum(v if model.weights is None else v / model.weights, LEAST_NOISE * np.mean(np.diag(K)))
    alpha = np.linalg.solve(K + np.diag(np.broadcast_to(v, (len(K),))), model.y - model.mean_function(model.X)[0])
    return _turn(model.kernel, _Place(model.X, [*range(model.X.shape[1])], alpha), fixed)


class _Place(NamedTuple):
    """What a part of a kernel is applied to."""

    X: Any
    """Its inputs [N, D]."""
    columns: list[int]
    """The columns of the model's inputs that they come from."""
    alpha: Any
    """[N, P]: its part of the predictive mean is the sum of k(x, x_n) alpha_n over the rows."""
    factor: Any = 1.0
    """Factors of its covariances, 0-d or [N, N]."""


def _turn(kernel: Kernel, at: _Place, fixed: tuple[int, ...]) -> Kernel | None:
    """Turn the axes of the first stationary kernel, which is the first part of sums and products."""
    found: Any
    if isinstance(kernel, Sum | Product):
        first, *rest = kernel.parts
        if isinstance(kernel, Product):
            for part in rest:
                at = at._replace(factor=at.factor * part(at.X, at.X)[0])
        found = _turn(first, at, fixed)
        return None if found is None else type(kernel)((found, *rest))
    if isinstance(kernel, ActiveDims):
        of: Any = list(kernel.columns)
        found = _turn(kernel.kernel, at._replace(X=at.X[:, of], columns=[at.columns[d] for d in of]), fixed)
        return None if found is None else replace(kernel, kernel=found)
    if isinstance(kernel, Warped):
        found = _turn(kernel.kernel, at._replace(X=kernel.warp(at.X)), fixed)
        return None if found is None else Warped(found, kernel.centre, kernel.scale)
    if isinstance(kernel, Projected):
        found = _turn(kernel.kernel, at._replace(X=at.X @ kernel.weights), fixed)
        return None if found is None else Projected(found.kernel, kernel.weights @ found.weights)
    return _turn_stationary(kernel, at, fixed) if type(kernel) in KERNELS.values() else None


def _turn_stationary(kernel: Any, at: _Place, fixed: tuple[int, ...]) -> Projected | None:
    free = [i for i, d in enumerate(at.columns) if d not in fixed]
    if len(free) < LEAST_COLUMNS:
        return None
    N, D = at.X.shape
    scales = np.broadcast_to(kernel.lengthscale, (D,))
    pull = kernel(at.X, at.X)[1]
    slopes = [pull(np.broadcast_to(at.factor * alpha, (N, N)))[1] * scales for alpha in at.alpha.T]
    G = np.concatenate(slopes)[:, free]
    weights = np.diag(1.0 / scales)
    weights[:, free] = weights[:, free] @ np.linalg.eigh(G.T @ G)[1][:, ::-1]
    unit = column_spreads(at.X @ weights) * D**0.5
    units = {"variance_unit": kernel.variance_unit, "lengthscale_unit": unit}
    return Projected(type(kernel)(kernel.variance, np.ones(D), **units), weights)
