"""Targets that are all the same, from which nothing can be learned but their value."""

import math
from typing import Any

import numpy as np

from agp import tree
from agp.backend import asarray_like, backend_of
from agp.kernels import Constant, Kernel
from agp.models import GPR
from agp.selection._climb import exact_gp
from agp.selection._given import Data, Plan
from agp.selection._signal import NO_SIGNAL_VARIANCE
from agp.selection._trial import RegressionResult

NOISE_FRACTION = 0.1
"""The standard deviation of equal targets, as a fraction of the targets: nothing is known about it."""
MOST_ROWS = 1000
"""The largest number of rows that the model holds. For more rows, functions do not vary even if the noise is known."""
NOTHING_TO_LEARN = (
    "all targets are the same, so there is nothing to learn, and the model predicts this number for all rows; check "
    "that y is the right column, and do not rely on the error bars."
)
"""The warning about targets that are all the same."""


def spread_of_equal(data: Data) -> float | None:
    """Return a standard deviation for targets that are all the same: a tenth of the targets, or of 1 if they are zero.

    The result is None if the targets differ, or if they are not in memory.
    """
    if backend_of(data.X).is_lazy:
        return None
    y = data.targets_on_host()[0]
    return NOISE_FRACTION * (float(np.max(np.abs(y))) or 1.0) if np.all(y == y[:1, :]) else None


def result_of_equal(plan: Plan, data: Data, spread: float, watch: Any) -> RegressionResult:
    """Return a model that predicts the targets, which are all the same, with the standard deviation `spread`.

    If the noise is to be learned, it has this standard deviation. If it is known or zero, the functions have it, and
    are known at the rows.
    """
    name, kernel = next(iter(plan.kernels().items()))
    rows = data if data.X.shape[0] <= MOST_ROWS else Data(*(None if x is None else x[:1, ...] for x in data))
    known = data.noise is not None or plan.likelihood.noise_variance is not None
    variance = spread**2 if known and rows is data else NO_SIGNAL_VARIANCE * (spread / NOISE_FRACTION) ** 2
    model = _with_variance(plan, kernel, rows, variance)
    if model is None:  # slopes that overflow
        name, constant = "constant", Constant()
        model = _with_variance(plan, constant, rows, variance)
        model = model or exact_gp(rows, kernel=constant, **plan.parts(constant, rows))
    leaves = {} if known else {"likelihood.noise_variance": asarray_like(np.asarray(spread**2), data.X)}
    if "mean_function.value" in tree.leaves(model):
        leaves["mean_function.value"] = data.y[0, :]
    model = tree.with_leaves(model, leaves)
    density = float(model.bound(rows.X, rows.y)[0]) / rows.observations
    return RegressionResult(
        model,
        **watch.record(),
        converged=True,
        message=NOTHING_TO_LEARN,
        kernel=name,
        bound=density * data.observations,
        baseline=density,
        log_density=density,
        learned=False,
    )


def _with_variance(plan: Plan, kernel: Kernel, rows: Data, variance: float) -> GPR | None:
    """Return an exact GP whose functions have this average variance at the rows; None if it overflows."""
    model, xp = exact_gp(rows, kernel=kernel, **plan.parts(kernel, rows)), backend_of(rows.X).xp
    average = float(xp.mean(model.kernel.diag(rows.X)[0]))
    if average == 0.0:  # the functions are zero at the rows
        return model
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = model.kernel.scale_by(asarray_like(np.asarray(variance / average), rows.X))
        largest = float(xp.max(xp.abs(scaled(rows.X)[0])))
    return tree.replace(model, {"kernel": scaled}) if math.isfinite(largest) else None
