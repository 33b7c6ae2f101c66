"""Warps of skewed columns: the same kernel of warped inputs, compared with that of the inputs as they are."""

import math
from typing import Any

import numpy as np

from agp import tree
from agp.backend import asarray_like, backend_of, to_numpy
from agp.chunking import column_spreads
from agp.kernels import Kernel, Linear, Warp, Warped
from agp.selection._climb import Climber, columns_of, on_rows
from agp.selection._given import Data, Plan, average
from agp.selection._signal import CHANCE, CLEAR
from agp.selection._trial import Trial

SKEWED, LEAST_VALUES = 1.5, 10
"""The least skewness of a column, of either sign, and the least number of its different values."""
ERRORS = 2.0
"""The least gain in the log density of left-out rows, in standard errors."""
STEPS = 12
"""The maximum number of evaluations of the evidence."""
SUFFIX = " of warped inputs"


def warp_of(plan: Plan, X: Any) -> Warp | None:
    """Return the warp of the skewed columns of inputs X [N, D]; None if there are none, or if they are not compared.

    Columns of codes and of times are used as they are.
    """
    if not (isinstance(plan.kernel, str) and isinstance(plan.priors, str)) or plan.foreign or plan.limits_lengthscales:
        return None
    rows = to_numpy(X).astype(np.float64)
    skewed = [d for d in plan.columns.numbers if d not in plan.times and _is_skewed(rows[:, d])]
    if not skewed:
        return None
    usual = Warp.of(X)
    is_skewed = asarray_like(np.isin(np.arange(rows.shape[1]), skewed).astype(np.float64), X)
    return Warp(usual.centre, usual.scale * is_skewed)


def _is_skewed(x: Any) -> bool:
    values, spread = np.unique(x), float(np.std(x))
    if len(values) < LEAST_VALUES or not spread > 0.0:
        return False
    return abs(float(np.mean(((x - np.mean(x)) / spread) ** 3))) >= SKEWED


def warp_kernel(kernel: Kernel, warp: Warp, X: Any) -> Warped:
    """Return a kernel of inputs X [N, D] as one of warped inputs, with the same parameters in units of the columns."""
    warped = warp(X)
    ratio, centre = column_spreads(warped) / column_spreads(X), backend_of(X).xp.mean(warped, axis=0)
    linear, new = tree.nodes(kernel, Linear), {}
    for leaf in tree.describe(kernel):
        path, _, name = leaf.name.rpartition(".")
        if name in ("lengthscale", "lengthscale_unit"):
            new[leaf.name] = leaf.value * _factor(kernel, path, ratio, leaf.value)
        elif path in linear and name in ("variance", "variance_unit"):
            new[leaf.name] = leaf.value / _factor(kernel, path, ratio, leaf.value) ** 2
        elif path in linear and name == "centre":
            new[leaf.name] = columns_of(kernel, path, centre)
    return Warped(tree.with_leaves(kernel, new), warp.centre, warp.scale)


def _factor(kernel: Kernel, path: str, ratio: Any, value: Any) -> Any:
    """Return the ratios of the columns of the part at a path, or their geometric mean for a single value."""
    ratio, xp = columns_of(kernel, path, ratio), backend_of(ratio).xp
    return ratio if np.ndim(value) else xp.exp(xp.mean(xp.log(ratio)))


def try_warp(plan: Plan, sample: Data, climb: Climber, best: Trial, warp: Warp | None) -> list[Trial]:
    """Train the best candidate with warped inputs; return the result if it is better by more than chance.

    With few rows, its evidence is larger. Otherwise, it predicts rows from the other rows better: by more than two
    standard errors, or with clearly more evidence.
    """
    if warp is None:
        return []
    kernel = warp_kernel(best.model.kernel, warp, best.model.X)
    model = on_rows(best.model, sample, plan.parts(kernel, sample)["priors"], kernel)
    trial = climb("warp", best.kernel + SUFFIX, model, STEPS)
    nats = sample.observations * (trial.scores.evidence - best.scores.evidence)
    if sample.has_few_rows:
        return [trial] if nats > CHANCE else []
    gains = trial.model.leave_one_out() - best.model.leave_one_out()
    mean = float(average(gains, sample.weights))
    error = math.sqrt(float(average((gains - mean) ** 2, sample.weights)) / sample.observations)
    return [trial] if mean > (0.0 if nats > CLEAR else ERRORS * error) else []
