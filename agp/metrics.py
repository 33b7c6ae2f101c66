"""Scores of predictions, computed with NumPy: lower is better, except coverage, which should equal its level.

Arguments are arrays of any library and device, or lists of numbers.
"""

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp.backend import Array, to_numpy

__all__ = [
    "Reliability",
    "coverage",
    "error_rate",
    "interval_coverage",
    "interval_score",
    "nlpd",
    "reliability",
    "rmse",
]


def _on_host(*arrays: Array) -> list[np.ndarray]:
    return [np.asarray(x) if isinstance(x, (int, float, list, tuple)) else to_numpy(x) for x in arrays]


def _alike(*arrays: Array) -> list[np.ndarray]:
    # [N] against [N, 1] would silently broadcast to [N, N]
    *predictions, y = found = _on_host(*arrays)
    for x in predictions:
        if x.shape != y.shape:
            msg = f"predictions have shape {x.shape}, targets {y.shape}; give both as [N, P]."
            raise ValueError(msg)
    return found


def nlpd(log_density: Array) -> float:
    """Mean negative log predictive density, in nats for each datum, from log densities [N]."""
    return float(-np.mean(_on_host(log_density)[0]))


def rmse(mean: Array, y: Array) -> float:
    """Root mean squared error of means [N, P] for targets [N, P], in units of the targets."""
    mean, y = _alike(mean, y)
    return float(np.sqrt(np.mean((mean - y) ** 2)))


def coverage(mean: Array, variance: Array, y: Array, level: float = 0.95) -> float:
    """The share of targets [N, P] inside the central interval of N(mean, variance), both [N, P], of that level."""
    mean, variance, y = _alike(mean, variance, y)
    _check_level(level)
    return float(np.mean(np.abs(y - mean) <= NormalDist().inv_cdf(0.5 + 0.5 * level) * np.sqrt(variance)))


def interval_coverage(lower: Array, upper: Array, y: Array) -> float:
    """The share of targets inside intervals, ends included; all [N] or [N, P], targets that are NaN left out."""
    lower, upper, y = _alike(lower, upper, y)
    known = ~np.isnan(y)
    return float(np.mean(((lower <= y) & (y <= upper))[known]))


def interval_score(lower: Array, upper: Array, y: Array, level: float = 0.9) -> float:
    """The mean score of central intervals of a level, in the unit of the targets, all [N] or [N, P]; NaN left out.

    The width, and 2 / (1 - level) times the distance of a target that lies outside: smallest for the true quantiles.

    Source: Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007, Eq. 43.
    """
    lower, upper, y = _alike(lower, upper, y)
    _check_level(level)
    outside = np.maximum(np.maximum(lower - y, y - upper), 0.0)
    return float(np.nanmean(upper - lower + 2.0 / (1.0 - level) * outside))


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        msg = f"level is {level!r}, but must lie between 0 and 1."
        raise ValueError(msg)


class Reliability(NamedTuple):
    """Observed frequencies for predicted probabilities; each [B], for the bins that are not empty."""

    predicted: npt.NDArray[np.float64]
    """The average probability of the predictions in a bin."""
    observed: npt.NDArray[np.float64]
    """The share of them that happened."""
    counts: npt.NDArray[np.int64]
    """The number of predictions in a bin."""

    @property
    def error(self) -> float:
        """The expected calibration error: the average of |predicted - observed| over the predictions."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.counts))


def reliability(probability: Array, y: Array, bins: int = 10) -> Reliability:
    """The reliability of probabilities, in bins of equal width.

    Of two classes the probability is that of 1; of C classes it is that of the most probable one, and what is observed
    is whether this is the label. Arguments and errors as `error_rate`, and ValueError for fewer than one bin.
    """
    if bins < 1:
        msg = f"bins is {bins!r}, but must be at least 1."
        raise ValueError(msg)
    probability, y = _on_host(probability, y)
    if _several_classes(probability, y):
        happened = np.argmax(probability, axis=1) == y[:, 0]
        probability = np.max(probability, axis=1)
    else:
        probability, y = (x.ravel() for x in _alike(probability, y))
        happened = y > 0.5
    which = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(which, minlength=bins)
    filled = count > 0
    sums = (np.bincount(which, weights=w, minlength=bins)[filled] for w in (probability, happened.astype(float)))
    predicted, observed = (total / count[filled] for total in sums)
    return Reliability(predicted, observed, count[filled])


def error_rate(probability: Array, y: Array) -> float:
    """The share of labels that the most probable class misses.

    Parameters
    ----------
    probability
        For two classes p(y = 1) [N, P]; for C classes their probabilities [N, C].
    y
        Labels in {0, 1} [N, P]; for C classes labels 0 to C - 1 [N, 1].

    Raises
    ------
    ValueError
        For other shapes, and labels of C classes that are none of them.
    """
    probability, y = _on_host(probability, y)
    if _several_classes(probability, y):
        return float(np.mean(np.argmax(probability, axis=1) != y[:, 0]))
    probability, y = _alike(probability, y)
    return float(np.mean((probability > 0.5) != (y > 0.5)))


def _several_classes(probability: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
    """Whether these are probabilities [N, C] of classes, and labels [N, 1] of one of them each."""
    if probability.ndim != 2 or probability.shape[1] == 1 or y.shape != (len(probability), 1):
        return False
    classes = probability.shape[1]
    if not np.isin(y, np.arange(classes)).all():
        msg = f"labels must be whole numbers from 0 to {classes - 1}, as many as probability has columns."
        raise ValueError(msg)
    return True
