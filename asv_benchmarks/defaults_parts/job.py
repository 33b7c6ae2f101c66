"""The data of a split for any side and interpreter, and the scores of its predictions; requires only NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from contract import Stored  # in compare/peers

LEAST_PROBABILITY = 1e-15
"""Minimum probability of a class in the log loss."""


@dataclass(frozen=True)
class Job(Stored):
    """Training and test rows in the units of the table."""

    X: Any
    """Training inputs [N, D]."""
    y: Any
    """Training targets [N]: numbers, or classes counted from 0."""
    X_test: Any
    y_test: Any
    classes: int
    """Number of classes; 0 for regression."""
    small: bool
    """Whether this is a rehearsal, in which sides use cheap settings."""

    def inputs(self, X: Any) -> Any:
        """Standardise inputs by the means and standard deviations of the training rows."""
        return (X - self.X.mean(axis=0)) / _spread(self.X)

    def targets(self) -> Any:
        """Standardised training targets, or the classes."""
        return self.y if self.classes else (self.y - self.y.mean()) / _spread(self.y)

    def scores(self, found: Any) -> dict[str, float]:
        """Scores on the test rows, from means and variances [N_test] or from probabilities [N_test, classes].

        Regression scores are in units of the standard deviation of y.
        """
        if not self.classes:
            (mean, variance), spread = found, _spread(self.y)
            residual, variance = (self.y_test - mean) / spread, variance / spread**2
            nlpd = np.mean(0.5 * (np.log(2.0 * np.pi * variance) + residual**2 / variance))
            return {"nlpd": float(nlpd), "rmse": float(np.sqrt(np.mean(residual**2)))}
        known = found[np.arange(len(self.y_test)), self.y_test]
        loss = -np.mean(np.log(np.maximum(known, LEAST_PROBABILITY)))
        return {"log_loss": float(loss), "error_rate": float(np.mean(np.argmax(found, axis=1) != self.y_test))}


def _spread(x: Any) -> Any:
    """Standard deviations of the columns; 1 for constant columns."""
    spread = x.std(axis=0)
    return np.where(spread > 1e-10 * np.abs(x).max(axis=0), spread, 1.0)
