"""Training and test rows of a table, and what a side is told about them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from board_parts.tables import Table

SPLITS = 3
TEST_SHARE, SMALL_TABLE, SMALL_SHARE = 0.2, 500, 1 / 3
"""Share of test rows, also of small tables."""
MAX_TEST_ROWS = 2000
SERIES_SHARE = 0.15
"""Share of the rows of a series in each test part; the parts are the last ones, and training rows precede them."""
REHEARSAL_ROWS = 80


@dataclass(frozen=True)
class Job:
    """A split of a table: frames of inputs, and targets."""

    X: pd.DataFrame
    y: Any
    """Training targets [N]: numbers, or classes counted from 0."""
    X_test: pd.DataFrame
    y_test: Any
    kind: str
    """What the table is about, one of `tables.KINDS`."""
    classes: int
    """Number of classes; 0 if targets are numbers."""
    missing: bool
    """Whether the table has missing cells."""
    ordered: bool
    """Whether the rows are a series."""

    @property
    def whole(self) -> bool:
        """Whether all targets are whole numbers."""
        return bool(np.all(np.concatenate([self.y, self.y_test]) % 1 == 0))

    @property
    def spread(self) -> float:
        """Standard deviation of the training targets, or 1 if it is 0."""
        return float(np.std(self.y)) or 1.0


def splits_of(*, small: bool) -> int:
    """Number of splits of a table."""
    return 1 if small else SPLITS


def job_of(table: Table, split: int, *, small: bool) -> Job:
    """Read a table and return one of its splits, with at most `REHEARSAL_ROWS` training rows in a rehearsal."""
    frame = table.frame()
    train, test = (series_rows if table.order else random_rows)(len(frame), split)
    if small:
        step = 1 if table.order else -(-len(train) // REHEARSAL_ROWS)  # rows from all parts of the table
        train, test = train[::step][-REHEARSAL_ROWS:], test[:REHEARSAL_ROWS]
    y = frame[table.target].to_numpy()
    if table.is_classes:
        test = test[np.isin(y[test], y[train])]  # nothing can be said about a class without training rows
        labels = sorted(set(y[train]), key=str)
        numbers = {label: i for i, label in enumerate(labels)}
        targets = [np.asarray([numbers[label] for label in y[rows]]) for rows in (train, test)]
    else:
        labels, targets = [], [y[rows].astype(float) for rows in (train, test)]
    X = frame.drop(columns=table.target)
    frames = [X.iloc[rows].reset_index(drop=True) for rows in (train, test)]
    return Job(
        X=frames[0], y=targets[0], X_test=frames[1], y_test=targets[1], kind=table.kind, classes=len(labels),
        missing=bool(X.isna().any(axis=None)), ordered=table.order is not None,
    )  # fmt: skip


def random_rows(rows: int, split: int) -> tuple[Any, Any]:
    """Numbers of training and test rows; the test rows come first in a random order whose seed is the split."""
    order = np.random.default_rng(split).permutation(rows)
    count = min(MAX_TEST_ROWS, round(rows * (SMALL_SHARE if rows < SMALL_TABLE else TEST_SHARE)))
    return np.sort(order[count:]), order[:count]


def series_rows(rows: int, split: int) -> tuple[Any, Any]:
    """Numbers of training and test rows of a series: split 0 ends with the last row, and others end earlier."""
    count = min(MAX_TEST_ROWS, round(rows * SERIES_SHARE))
    last = rows - split * count
    return np.arange(last - count), np.arange(last - count, last)
