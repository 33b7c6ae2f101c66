"""Tables with training and test rows: files in a folder, generated tables, and scikit-learn's toy data sets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

from defaults_parts.job import Job

LEFT_OUT = {"bike": (15, 16)}
"""Columns that are left out: two counts whose sum is the target."""
SKIPPED = ("mnist",)
"""Files that are not tables."""
FRIEDMAN = ((1000, 10), (1000, 50), (1000, 100), (200, 200))
CLASSES = ((1000, 20), (1000, 100))
TOYS = {"iris": 3, "wine": 3, "breast_cancer": 2, "digits": 10}
"""Number of classes of each toy data set."""
MILLION = 10**6
SMALL_ROWS, SMALL_COLUMNS = 60, 5
"""Numbers of rows in a rehearsal."""


@dataclass(frozen=True)
class Table:
    """A table; `read` returns X [N, D], y [N] and a mask [N] of the test rows of a split."""

    name: str
    classes: int
    read: Callable[[int], tuple[Any, Any, Any]]

    def job(self, split: int, *, small: bool) -> Job:
        """Return the rows of a split, or only some of them in a rehearsal."""
        X, y, test = self.read(split)
        X = np.asarray(X[:, :SMALL_COLUMNS] if small else X, dtype=np.float64)
        y = np.unique(y, return_inverse=True)[1] if self.classes else np.asarray(y, dtype=np.float64)
        rows, test_rows = np.flatnonzero(~test), np.flatnonzero(test)
        if small:
            rng = np.random.default_rng(0)
            rows, test_rows = (rng.permutation(chosen)[:SMALL_ROWS] for chosen in (rows, test_rows))
        return Job(X[rows], y[rows], X[test_rows], y[test_rows], self.classes, small)


def tables(folder: Path | None, *, large: bool) -> dict[str, Table]:
    """All tables by name: files in the folder, if given, then toy and generated tables."""
    found = [_stored(path) for path in sorted(folder.glob("*.npz")) if path.stem not in SKIPPED] if folder else []
    found += [_friedman(rows, columns) for rows, columns in FRIEDMAN]
    found += [_generated("noise-1000x8", 0, _noise), _generated("diabetes", 0, datasets.load_diabetes)]
    found += [_generated(name, count, getattr(datasets, f"load_{name}")) for name, count in TOYS.items()]
    found += [_classes(rows, columns) for rows, columns in CLASSES]
    if large:
        found.append(_friedman(MILLION + MILLION // 100, 8, name="friedman-1000000x8", test_rows=MILLION // 100))
    return {table.name: table for table in found}


def held_out(rows: int, count: int, split: int) -> Any:
    """Mask [N] of the test rows: the last `count` of a random permutation whose seed is the split."""
    test = np.zeros(rows, dtype=bool)
    test[np.random.default_rng(split).permutation(rows)[rows - count :]] = True
    return test


def _stored(path: Path) -> Table:
    """The table of a file; targets with an integer dtype are classes."""

    def read(split: int) -> tuple[Any, Any, Any]:
        with np.load(path) as file:
            X = np.delete(file["X"].astype(float), LEFT_OUT.get(path.stem, ()), axis=1)
            if "test_masks" in file:
                return X, file["y"].astype(float), file["test_masks"][:, split].astype(bool)
            return X, file["y"].astype(float), held_out(len(X), max(1, round(len(X) / 10)), split)

    with np.load(path) as file:
        y = file["y"]
    return Table(path.stem, len(np.unique(y)) if y.dtype.kind in "iub" else 0, read)


def _generated(name: str, classes: int, make: Callable[..., Any], test_rows: int | None = None) -> Table:
    """A table without a predefined split; a third of the rows, or `test_rows` rows, are test rows."""

    def read(split: int) -> tuple[Any, Any, Any]:
        made = make()
        X, y = made if isinstance(made, tuple) else (made.data, made.target)
        return X, y, held_out(len(y), test_rows or round(len(y) / 3), split)

    return Table(name, classes, read)


def _friedman(rows: int, columns: int, *, name: str | None = None, test_rows: int | None = None) -> Table:
    def make() -> Any:
        return datasets.make_friedman1(rows, columns, noise=1.0, random_state=0)

    return _generated(name or f"friedman-{rows}x{columns}", 0, make, test_rows)


def _classes(rows: int, columns: int) -> Table:
    return _generated(
        f"classes-{rows}x{columns}", 2, lambda: datasets.make_classification(rows, columns, random_state=0)
    )


def _noise() -> Any:
    rng = np.random.default_rng(0)
    return rng.standard_normal((1000, 8)), rng.standard_normal(1000)
