"""Training and test rows of a table, and what a side is told about them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from board_parts.tables import Table

SPLITS, MANY_SPLITS, FEW_ROWS = 3, 9, 100
"""Number of splits of a table, and of a table with few rows, whose scores vary more."""
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
    """Test targets; classes that no training row has are -1."""
    kind: str
    """What the table is about, one of `tables.KINDS`."""
    classes: int
    """Number of classes; 0 if targets are numbers."""

    @property
    def spread(self) -> float:
        """Standard deviation of the training targets, or 1 if it is 0."""
        return float(np.std(self.y)) or 1.0


def splits_of(rows: int, *, small: bool) -> int:
    """Number of splits of a table with this number of rows."""
    return 1 if small else MANY_SPLITS if rows < FEW_ROWS else SPLITS


def job_of(table: Table, split: int, *, small: bool) -> Job:
    """Read a table and return one of its splits, with at most `REHEARSAL_ROWS` training rows in a rehearsal."""
    frame = table.frame()
    train, test = (series_rows if table.order else random_rows)(len(frame), split)
    if small:
        train, test = train[-REHEARSAL_ROWS:], test[:REHEARSAL_ROWS]
    X, y = frame.drop(columns=table.target), frame[table.target]
    y_train, y_test, classes = y.iloc[train].to_numpy(), y.iloc[test].to_numpy(), 0
    if table.is_classes:
        labels = sorted(set(y_train), key=str)
        number = {label: i for i, label in enumerate(labels)}
        y_train, y_test = (np.asarray([number.get(label, -1) for label in part]) for part in (y_train, y_test))
        classes = len(labels)
    else:
        y_train, y_test = y_train.astype(float), y_test.astype(float)
    frames = (X.iloc[rows].reset_index(drop=True) for rows in (train, test))
    return Job(next(frames), y_train, next(frames), y_test, table.kind, classes)


def random_rows(rows: int, split: int) -> tuple[Any, Any]:
    """Numbers of training and test rows; the test rows come first in a random order whose seed is the split."""
    order = np.random.default_rng(split).permutation(rows)
    count = min(MAX_TEST_ROWS, round(rows * (SMALL_SHARE if rows < SMALL_TABLE else TEST_SHARE)))
    return np.sort(order[count:]), order[:count]


def series_rows(rows: int, split: int) -> tuple[Any, Any]:
    """Numbers of training and test rows of a series: split 0 ends with the last row, and others end earlier."""
    count = min(MAX_TEST_ROWS, round(rows * SERIES_SHARE))
    last = rows - (split % SPLITS) * count
    return np.arange(last - count), np.arange(last - count, last)
