"""Predictive distributions of the sides, and their scores.

All continuous ranked probability scores are computed in the same way, from quantiles at the levels `LEVELS`. If all
targets of a table are whole numbers, the density of a target is the probability of the interval of length 1 around it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

COUNT = 200
LEVELS = (np.arange(COUNT) + 0.5) / COUNT
"""The midpoints of equal parts of the unit interval, at which quantiles are compared with the target."""
INTERVAL = (0.05, 0.95)
"""The levels that bound the interval whose coverage and width are reported."""
LEAST_PROBABILITY = 1e-15
"""Minimum probability of a class in log losses, and minimum density of a target in units of the training targets'
standard deviation in log scores, so that no single row decides a score."""
LEAST_SPACING = 1e-2
"""Minimum distance between quantiles per unit of probability, relative to the standard deviation of the targets."""


class Prediction(ABC):
    """Predictive distributions of N numbers."""

    mean: Any
    """Means [N]."""

    @abstractmethod
    def quantiles(self, levels: Sequence[float]) -> Any:
        """Quantiles [N, Q]."""

    @abstractmethod
    def log_density(self, y: Any) -> Any:
        """Log densities [N] of the targets y [N]."""

    @abstractmethod
    def cdf(self, y: Any) -> Any:
        """Probabilities [N] of numbers up to y [N]."""

    def log_probability(self, y: Any) -> Any:
        """Log probabilities [N] of the intervals of length 1 around the whole numbers y [N]."""
        with np.errstate(divide="ignore"):
            return np.log(self.cdf(y + 0.5) - self.cdf(y - 0.5))


@dataclass(frozen=True)
class Normal(Prediction):
    """Normal distributions with means [N] and standard deviations [N]."""

    mean: Any
    deviation: Any

    def quantiles(self, levels: Sequence[float]) -> Any:
        return self.mean[:, None] + self.deviation[:, None] * special.ndtri(levels)

    def log_density(self, y: Any) -> Any:
        return stats.norm.logpdf(y, self.mean, self.deviation)

    def cdf(self, y: Any) -> Any:
        return special.ndtr((y - self.mean) / self.deviation)


@dataclass(frozen=True)
class LogNormal(Prediction):
    """Distributions of exp(Z), where Z is normal."""

    logs: Normal

    @property
    def mean(self) -> Any:  # type: ignore[override]
        return np.exp(self.logs.mean + 0.5 * self.logs.deviation**2)

    def quantiles(self, levels: Sequence[float]) -> Any:
        return np.exp(self.logs.quantiles(levels))

    def log_density(self, y: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(y > 0.0, self.logs.log_density(np.log(y)) - np.log(y), -np.inf)

    def cdf(self, y: Any) -> Any:
        with np.errstate(divide="ignore"):
            return self.logs.cdf(np.log(np.maximum(y, 0.0)))


class Counts(Prediction):
    """Negative binomial distributions with means m [N] and variances m + dispersion m^2; Poisson without dispersion."""

    def __init__(self, mean: Any, dispersion: float) -> None:
        self.mean = mean
        self.found = (
            stats.nbinom(1.0 / dispersion, 1.0 / (1.0 + dispersion * mean)) if dispersion > 0.0 else stats.poisson(mean)
        )

    def quantiles(self, levels: Sequence[float]) -> Any:
        return np.stack([self.found.ppf(level) for level in levels], axis=1)

    def log_density(self, y: Any) -> Any:
        return self.found.logpmf(y)

    def cdf(self, y: Any) -> Any:
        return self.found.cdf(y)


class Quantiles(Prediction):
    """Distributions with given quantiles, uniform between neighbouring ones and with exponential tails outside.

    For an exponential distribution, the quantiles at which probabilities a and b remain have the distance
    scale * log(a / b). The scale of a tail is the larger one of those that follow from the outermost quantile and its
    neighbour, and from the outermost quantile and the one in the middle.

    Parameters
    ----------
    levels
        Ascending levels [Q] of the quantiles.
    values
        Quantiles [N, Q], which are sorted.
    scale
        The standard deviation of the training targets.
    """

    def __init__(self, levels: Any, values: Any, scale: float) -> None:
        self.levels = np.asarray(levels)
        least = np.concatenate([[0.0], np.cumsum(np.diff(self.levels))]) * LEAST_SPACING * scale
        # ties get the minimum distance: x_i = max over j <= i of (v_j - least_j) + least_i
        self.values = np.maximum.accumulate(np.sort(values, axis=1) - least, axis=1) + least
        self.low = self._tail_scale(self.levels, self.values)
        self.high = self._tail_scale(1.0 - self.levels[::-1], -self.values[:, ::-1])
        middle = 0.5 * (self.values[:, 1:] + self.values[:, :-1]) @ np.diff(self.levels)
        self.mean = middle + self.levels[0] * (self.values[:, 0] - self.low)
        self.mean += (1.0 - self.levels[-1]) * (self.values[:, -1] + self.high)

    @staticmethod
    def _tail_scale(levels: Any, values: Any) -> Any:
        """Scales [N] of the lower tails."""
        others = [1, len(levels) // 2]
        return np.max((values[:, others] - values[:, :1]) / np.log(levels[others] / levels[0]), axis=1)

    def quantiles(self, levels: Sequence[float]) -> Any:
        wanted = np.asarray(levels)
        inside = np.stack([np.interp(wanted, self.levels, row) for row in self.values])
        low = self.values[:, :1] + self.low[:, None] * np.log(np.minimum(wanted / self.levels[0], 1.0))
        high = self.values[:, -1:] - self.high[:, None] * np.log(
            np.minimum((1.0 - wanted) / (1.0 - self.levels[-1]), 1.0)
        )
        return np.where(wanted < self.levels[0], low, np.where(wanted > self.levels[-1], high, inside))

    def log_density(self, y: Any) -> Any:
        slope = np.diff(self.levels) / np.diff(self.values, axis=1)
        part = np.sum(y[:, None] > self.values, axis=1)
        inside = np.log(np.take_along_axis(slope, np.clip(part - 1, 0, slope.shape[1] - 1)[:, None], axis=1)[:, 0])
        low = np.log(self.levels[0] / self.low) + (y - self.values[:, 0]) / self.low
        high = np.log((1.0 - self.levels[-1]) / self.high) - (y - self.values[:, -1]) / self.high
        return np.where(part == 0, low, np.where(part == len(self.levels), high, inside))

    def cdf(self, y: Any) -> Any:
        inside = np.asarray([np.interp(at, row, self.levels) for at, row in zip(y, self.values, strict=True)])
        with np.errstate(over="ignore"):
            low = self.levels[0] * np.exp((y - self.values[:, 0]) / self.low)
            high = 1.0 - (1.0 - self.levels[-1]) * np.exp(-(y - self.values[:, -1]) / self.high)
        return np.where(y < self.values[:, 0], low, np.where(y > self.values[:, -1], high, inside))


def crps(prediction: Prediction, y: Any) -> Any:
    """Continuous ranked probability scores [N]: twice the pinball loss, averaged over the levels.

    Source: Gneiting & Ranjan, "Comparing density forecasts using threshold- and quantile-weighted scoring rules",
    Journal of Business & Economic Statistics 2011.
    """
    distance = y[:, None] - prediction.quantiles(LEVELS)
    return 2.0 * np.mean(np.maximum(LEVELS * distance, (LEVELS - 1.0) * distance), axis=1)


def scores(prediction: Prediction, y: Any, spread: float, *, whole: bool) -> dict[str, float]:
    """Mean scores for targets y [N], in units of the standard deviation of the training targets.

    `whole` states that all targets of the table are whole numbers.
    """
    lower, upper = prediction.quantiles(INTERVAL).T
    logs = (prediction.log_probability(y) if whole else prediction.log_density(y)) + np.log(spread)
    return {
        "crps": float(np.mean(crps(prediction, y)) / spread),
        "log_score": float(-np.mean(np.maximum(logs, np.log(LEAST_PROBABILITY)))),
        "rmse": float(np.sqrt(np.mean((prediction.mean - y) ** 2)) / spread),
        "coverage": float(np.mean((lower <= y) & (y <= upper))),
        "width": float(np.mean(upper - lower) / spread),
    }


def class_scores(probabilities: Any, y: Any) -> dict[str, float]:
    """Log loss in nats and error rate of probabilities [N, C] for classes y [N]."""
    known = probabilities[np.arange(len(y)), y]
    return {
        "log_loss": float(-np.mean(np.log(np.maximum(known, LEAST_PROBABILITY)))),
        "error_rate": float(np.mean(np.argmax(probabilities, axis=1) != y)),
    }
