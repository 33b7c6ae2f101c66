"""Training and test rows in the splits of the papers, standardised by the training rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LEAKS = {"bike": (15, 16)}
"""Columns of counts whose sum is the target; they are left out."""
SMALL = 80
"""Number of training and of test rows in a rehearsal."""


@dataclass(frozen=True)
class Rows:
    """Inputs [N, D] and targets [N, 1] for training and test."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any


def regression(
    folder: Path,
    name: str,
    seed: int,
    *,
    test: float,
    train: float,
    hidden: float = 0.0,
    leaks: bool = False,
    small: bool = False,
) -> Rows:
    """Split the rows at random into `hidden`, test and training rows, given as shares of all rows.

    Hidden rows are left out, as are the rest. With the same seed and the same sum of hidden and test rows, the other
    rows are the same. Inputs and targets are standardised by the means and standard deviations of the training rows.
    Constant columns become zero. With `leaks`, the columns in `LEAKS` are kept.
    """
    with np.load(folder / f"{name}.npz") as file:
        X, y = file["X"].astype(np.float64), file["y"].astype(np.float64)[:, None]
    if not leaks:
        X = np.delete(X, LEAKS.get(name, ()), axis=1)
    ends = [round(len(y) * share) for share in (hidden, hidden + test, hidden + test + train)]
    _, test_rows, train_rows, _ = np.split(np.random.default_rng(seed).permutation(len(y)), ends)
    if small:
        test_rows, train_rows = test_rows[:SMALL], train_rows[:SMALL]
    parts = [standardised(part, part[train_rows]) for part in (X, y)]
    return Rows(*(part[rows] for rows in (train_rows, test_rows) for part in parts))


def standardised(x: Any, by: Any) -> Any:
    """Standardise the columns of x by the means and standard deviations of other rows."""
    mean, spread = by.mean(axis=0), by.std(axis=0)
    constant = spread <= 1e-10 * np.abs(by).max(axis=0)
    return np.where(constant, 0.0, (x - mean) / np.where(constant, 1.0, spread))
