"""What a side is given, whatever interpreter it runs in: the rows of a split, by NumPy alone; and its scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import training  # of the peers
from exchange import Stored

LEAST_PROBABILITY = 1e-15
"""Of a class, in log losses."""


@dataclass(frozen=True)
class Job(Stored):
    """Training and test rows, in the units of the table."""

    X: Any
    """[N, D]"""
    y: Any
    """[N]: numbers, or classes from 0 on."""
    X_test: Any
    y_test: Any
    classes: int
    """How many; 0 for regression."""
    small: bool
    """Whether this is a rehearsal, where sides that choose their own effort take little."""

    def inputs(self, X: Any) -> Any:
        """Inputs in deviations of the training rows."""
        return (X - self.X.mean(axis=0)) / _spread(self.X)

    def targets(self) -> Any:
        """Training targets in deviations of them; classes as they are."""
        return self.y if self.classes else (self.y - self.y.mean()) / _spread(self.y)

    def scores(self, found: Any) -> dict[str, float]:
        """Of the test rows: of means and variances [N_test], in deviations of y; of probabilities [N_test, classes]."""
        if not self.classes:
            (mean, variance), spread = found, _spread(self.y)
            return training.scores(mean / spread, variance / spread**2, self.y_test / spread, binary=False)
        known = found[np.arange(len(self.y_test)), self.y_test]
        loss = -np.mean(np.log(np.maximum(known, LEAST_PROBABILITY)))
        return {"log_loss": float(loss), "error_rate": float(np.mean(np.argmax(found, axis=1) != self.y_test))}


def _spread(x: Any) -> Any:
    """Deviations of columns; 1 where nothing varies."""
    spread = x.std(axis=0)
    return np.where(spread > 1e-10 * np.abs(x).max(axis=0), spread, 1.0)
