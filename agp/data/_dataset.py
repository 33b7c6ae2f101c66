"""Data ready for a model: split, and standardised with the training rows."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agp.data._sources import Table, bundled, from_csv, from_npz

__all__ = ["Dataset", "load"]

TEST_SHARE = 0.1
"""The share of the rows that is held out where the source names no test rows."""


@dataclass(frozen=True)
class Dataset:
    """Training and test rows in standard units: zero mean and unit spread of the training rows in every column.

    Targets of two classes stay 0 and 1.
    """

    name: str
    X: npt.NDArray
    """[N, D]"""
    y: npt.NDArray
    """[N, 1]"""
    X_test: npt.NDArray
    y_test: npt.NDArray
    binary: bool
    """Whether the targets are two classes."""
    columns: list[str] = field(default_factory=list)
    grid: tuple[int, int] | None = None
    """The rows and columns of an image whose cells, in order, are `X_all`."""
    X_all: npt.NDArray | None = None
    y_all: npt.NDArray | None = None
    """All rows in the order of the source, where there are two inputs."""

    def describe(self) -> dict[str, object]:
        """Facts for a report."""
        return {
            "name": self.name,
            "rows": len(self.X),
            "test_rows": len(self.X_test),
            "inputs": self.X.shape[1],
            "task": "two classes" if self.binary else "regression",
        }


def load(data: str, *, target: str | None = None, split: int = 0, seed: int = 0) -> Dataset:
    """A data set by name, or a .csv or .npz file, split and standardised.

    Parameters
    ----------
    data
        The name of a bundled data set, or the path of a file.
    target
        The target column of a .csv file.
    split
        The column of test_masks in an .npz file.
    seed
        Of the random split where the source has none: the last tenth of a permutation is held out.

    Raises
    ------
    ValueError
        For an unknown name (the known ones are listed) and for files that do not fit.
    """
    path = Path(data)
    if path.suffix in (".csv", ".npz"):
        if not path.exists():
            msg = f"there is no file {data}."
            raise ValueError(msg)
        table = from_csv(path, target) if path.suffix == ".csv" else from_npz(path, split)
    else:
        table = bundled(data)
    return _prepared(table, seed)


def _prepared(table: Table, seed: int) -> Dataset:
    for name, values in (("X", table.X), ("y", table.y)):
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            msg = f"{table.name}: {name} has NaN or infinite entries, the first in row {row}; remove such rows."
            raise ValueError(msg)
    binary = _is_binary(table)
    test = _held_out(table, seed)
    X = _standardised(table.X, table.X[~test])
    y = (table.y if binary else _standardised(table.y, table.y[~test]))[:, None]
    two = X.shape[1] == 2
    return Dataset(
        table.name, X[~test], y[~test], X[test], y[test], binary, table.columns, table.grid,
        X_all=X if two else None, y_all=y if two else None,
    )  # fmt: skip


def _is_binary(table: Table) -> bool:
    return bool(np.isin(table.y, (0.0, 1.0)).all()) and len(np.unique(table.y)) == 2


def _held_out(table: Table, seed: int) -> npt.NDArray:
    N = len(table.X)
    if table.test_mask is not None:
        test = table.test_mask
    else:
        test = np.zeros(N, dtype=bool)
        test[np.random.default_rng(seed).permutation(N)[N - max(1, round(TEST_SHARE * N)) :]] = True
    if not 0 < test.sum() < N:
        msg = f"{table.name}: {test.sum()} of {N} rows are test rows; both training and test rows are needed."
        raise ValueError(msg)
    return test


def _standardised(values: npt.NDArray, training: npt.NDArray) -> npt.NDArray:
    spread = training.std(axis=0)
    return (values - training.mean(axis=0)) / np.where(spread > 1e-10, spread, 1.0)
