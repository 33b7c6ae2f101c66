"""Stopping rules of L-BFGS, and the gain that its approximation of the curvature predicts."""

from collections import deque

import numpy as np
import numpy.typing as npt

from agp.training._result import Progress

LAST_ITERATIONS = 20
"""`Gain` compares the gain of this many iterations with its limit."""
PAIRS = 30
"""The number of last iterations from which the curvature is estimated."""
IN_A_ROW = 2
"""`PredictedGain` ends L-BFGS after this many successive predictions below its limit."""

SHARE = 1e-4
"""The limit of `PredictedGain`, as a fraction of the tolerance."""

Vector = npt.NDArray[np.float64]


class Curvature:
    """The BFGS approximation H of the inverse Hessian of a loss, from the last steps of an optimiser."""

    def __init__(self) -> None:
        self.last: tuple[Vector, Vector] | None = None
        self.pairs: deque[tuple[Vector, Vector]] = deque(maxlen=PAIRS)

    def add(self, vector: Vector, slope: Vector) -> None:
        """Take the next iterate [n] and the gradient [n] there; skip steps along which the slope does not increase."""
        if self.last is not None:
            step, change = vector - self.last[0], slope - self.last[1]
            if step @ change > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change) > 0.0:
                self.pairs.append((step, change))
        self.last = vector, slope

    def decrement(self, slope: Vector) -> float:
        """Return g^T H g / 2, the predicted decrease of the loss by a Newton step; infinite before the second iterate.

        Source: the two-loop recursion of Nocedal, "Updating quasi-Newton matrices with limited storage", 1980.
        """
        if not self.pairs:
            return float("inf") if slope.any() else 0.0
        q, factors = slope.copy(), []
        for step, change in reversed(self.pairs):
            factors.append(float(step @ q) / float(step @ change))
            q -= factors[-1] * change
        step, change = self.pairs[-1]
        q *= float(step @ change) / float(change @ change)
        for (step, change), factor in zip(self.pairs, reversed(factors), strict=True):
            q += (factor - float(change @ q) / float(step @ change)) * step
        return 0.5 * float(slope @ q)


class Gain:
    """A callback that ends L-BFGS when the last 20 iterations have gained less than `least`, in nats."""

    def __init__(self, least: float) -> None:
        self.least, self.converged, self.message = least, False, ""
        self.rounding = least
        self.bounds: list[float] = []

    def __call__(self, seen: Progress) -> bool:
        self.bounds.append(float(seen.info["bound"]))
        if len(self.bounds) > LAST_ITERATIONS and self.since(self.bounds[-1 - LAST_ITERATIONS :]) < self.least:
            self.converged = True
            self.message = f"the last {LAST_ITERATIONS} iterations gained less than {self.least:.2g} nats"
        return self.converged

    def since(self, bounds: list[float]) -> float:
        """Return the gain since the first of these bounds, or 0 if the list is empty."""
        return self.bounds[-1] - bounds[0] if bounds else 0.0


class PredictedGain(Gain):
    """A callback that ends L-BFGS when a Newton step promises less than 1e-4 tolerances, twice in a row.

    The tolerance is in nats. Rounding errors may hide gains below the tolerance itself.
    """

    def __init__(self, tolerance: float) -> None:
        super().__init__(SHARE * tolerance)
        self.rounding, self.count = tolerance, 0

    def __call__(self, seen: Progress) -> bool:
        self.bounds.append(float(seen.info["bound"]))
        predicted = float(seen.info["gain"])
        self.count = self.count + 1 if predicted < self.least else 0
        if self.count >= IN_A_ROW:
            self.converged = True
            self.message = f"the predicted gain is {predicted:.1e} nats, less than {self.least:.2g}"
        return self.converged
