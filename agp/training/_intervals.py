"""Smooth maps from all real numbers to intervals, for integrals over parameters with limits."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agp.priors import into_interval, out_of_interval

Numbers = npt.NDArray[np.float64]


class Intervals(NamedTuple):
    """Coordinates z [m] of points x [m] in intervals, x = `agp.priors.into_interval(z, low, high)`."""

    low: Numbers
    """The lower limits [m], or minus infinity."""
    high: Numbers
    """The upper limits [m], or infinity."""

    @property
    def is_limited(self) -> npt.NDArray[np.bool_]:
        """True [m] where there is a limit."""
        return np.isfinite(self.low) | np.isfinite(self.high)

    def points(self, z: Numbers) -> Numbers:
        """Return x [..., m] at z [..., m]."""
        return into_interval(z, self.low, self.high)

    def coordinates(self, x: Numbers) -> Numbers:
        """Return z [..., m] at x [..., m], which is infinite at limits."""
        with np.errstate(divide="ignore"):
            return out_of_interval(x, self.low, self.high)

    def slopes(self, z: Numbers) -> Numbers:
        """Return dx / dz [..., m]."""
        return np.exp(self.log_slopes(z))

    def log_slopes(self, z: Numbers) -> Numbers:
        """Return log(dx / dz) [..., m]."""
        width = np.log(-np.expm1(self.low - self.high))
        return width - np.logaddexp(0.0, self.low - z) - np.logaddexp(0.0, z - self.high)

    def log_slope_terms(self, z: Numbers) -> tuple[Numbers, Numbers]:
        """Return the first derivatives [m] of log(dx / dz), and the curvature [m] that limits add at a mode.

        At a mode of f(x(z)) + log x'(z), f' x' = -(log x')', so minus the second derivative is
        -f'' x'^2 + ((log x')')^2 - (log x')''.
        """
        below, above = _logistic(self.low - z), _logistic(z - self.high)
        first = below - above
        return first, first * first + below * (1.0 - below) + above * (1.0 - above)

    def box(self, margin: float) -> tuple[Numbers, Numbers]:
        """Return the smallest and largest z [m] within a margin of 0 and of the limits."""
        ends = np.stack([np.zeros_like(self.low), *(np.where(np.isfinite(end), end, 0.0) for end in self)])
        return ends.min(axis=0) - margin, ends.max(axis=0) + margin


def _logistic(z: Numbers) -> Numbers:
    return np.exp(-np.logaddexp(0.0, -z))
