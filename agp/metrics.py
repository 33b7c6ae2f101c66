"""Scores of predictions, computed with NumPy. Lower is better, except for coverage, which should equal its level.

Arguments are arrays of any library and device, or lists of numbers.
"""

import numbers
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp.backend import Array, to_numpy
from agp.errors import count_of, explain_call

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
    # shapes [N] and [N, 1] would silently broadcast to [N, N]
    *predictions, y = found = _on_host(*arrays)
    for x in predictions:
        if x.shape != y.shape:
            raise ValueError(
                f"predictions have shape {x.shape}, but targets have shape {y.shape}; give both as [N, P]."
            )
    return found


@explain_call
def nlpd(log_density: Array) -> float:
    """Return the mean negative log predictive density, in nats per datum, from log densities [N]."""
    return float(-np.mean(_on_host(log_density)[0]))


@explain_call
def rmse(mean: Array, y: Array) -> float:
    """Return the root mean squared error of means [N, P] for targets [N, P], in the units of the targets."""
    mean, y = _alike(mean, y)
    return float(np.sqrt(np.mean((mean - y) ** 2)))


@explain_call
def coverage(mean: Array, variance: Array, y: Array, level: float = 0.95) -> float:
    """Return the share of targets inside the central interval of N(mean, variance) at this level.

    All arrays are [N, P].
    """
    mean, variance, y = _alike(mean, variance, y)
    _check_level(level)
    return float(np.mean(np.abs(y - mean) <= NormalDist().inv_cdf(0.5 + 0.5 * level) * np.sqrt(variance)))


@explain_call
def interval_coverage(lower: Array, upper: Array, y: Array) -> float:
    """Return the share of targets inside closed intervals, ignoring NaN targets; all arrays are [N] or [N, P]."""
    lower, upper, y = _alike(lower, upper, y)
    known = ~np.isnan(y)
    return float(np.mean(((lower <= y) & (y <= upper))[known]))


@explain_call
def interval_score(lower: Array, upper: Array, y: Array, level: float = 0.9) -> float:
    """Return the mean score of central intervals with this level, in the units of the targets.

    The score of an interval is its width, plus 2 / (1 - level) times the distance to a target outside it. The true
    quantiles minimise the expected score. All arrays are [N] or [N, P]; targets that are NaN are ignored.

    Source: Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007, Eq. 43.
    """
    lower, upper, y = _alike(lower, upper, y)
    _check_level(level)
    outside = np.maximum(np.maximum(lower - y, y - upper), 0.0)
    return float(np.nanmean(upper - lower + 2.0 / (1.0 - level) * outside))


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level!r}, but must lie between 0 and 1.")


class Reliability(NamedTuple):
    """Observed frequencies [B] and predicted probabilities [B] in the B bins that are not empty."""

    predicted: npt.NDArray[np.float64]
    """The average predicted probability in each bin."""
    observed: npt.NDArray[np.float64]
    """The share of predicted events that happened in each bin."""
    counts: npt.NDArray[np.int64]
    """The number of predictions in each bin."""

    @property
    def error(self) -> float:
        """The expected calibration error: the average of |predicted - observed| over the predictions."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.counts))


@explain_call
def reliability(probability: Array, y: Array, bins: int = 10) -> Reliability:
    """Compute the reliability of predicted probabilities, in bins of equal width.

    For two classes, the event is y = 1. For C classes, the event is that the label is the most probable class.
    Arguments and errors are as in `error_rate`; fewer than one bin also raises ValueError.
    """
    if not isinstance(bins, numbers.Integral) or bins < 1:
        raise ValueError(f"bins is {bins!r}, but must be a whole number of at least 1.")
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


@explain_call
def error_rate(probability: Array, y: Array) -> float:
    """Return the share of labels that differ from the most probable class.

    Parameters
    ----------
    probability
        For two classes, p(y = 1) [N, P]; for C classes, their probabilities [N, C].
    y
        For two classes, labels in {0, 1} [N, P]; for C classes, labels from 0 to C - 1 [N, 1].

    Raises
    ------
    ValueError
        If the shapes differ from these, or if a label is not one of the C classes.
    """
    probability, y = _on_host(probability, y)
    if _several_classes(probability, y):
        return float(np.mean(np.argmax(probability, axis=1) != y[:, 0]))
    probability, y = _alike(probability, y)
    return float(np.mean((probability > 0.5) != (y > 0.5)))


def _several_classes(probability: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
    """Return True for probabilities [N, C] of C classes with labels [N, 1]."""
    if probability.ndim != 2 or probability.shape[1] == 1 or y.shape != (len(probability), 1):
        return False
    classes = probability.shape[1]
    if (wrong := ~np.isin(y, np.arange(classes))[:, 0]).any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"the label in row {row} is {y[row, 0]!s}, but must be a whole number from 0 to {classes - 1}, because "
            f"probability has {count_of(classes, 'column')}; number the classes from 0."
        )
    return True
