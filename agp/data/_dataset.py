"""Preparation of data sets: the choice of the task, the split into training and test rows, and standardisation."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agp.data._sources import Table, from_npz, from_table, load_bundled
from agp.data._tables import TABLES, check_file

TEST_SHARE = 0.1
"""The fraction of test rows if the source has no split."""
MAX_CLASSES = 20
"""The maximum number of classes that the task "auto" recognises."""

TaskName = Literal["auto", "regression", "classification"]


@dataclass(frozen=True)
class Dataset:
    """Training and test rows in standard units: every column of the training rows has mean 0 and standard deviation 1.

    Class labels and counts are not standardised.
    """

    name: str
    X: npt.NDArray[Any]
    """The inputs of the training rows [N, D]."""
    y: npt.NDArray[Any]
    """The targets of the training rows [N, 1]."""
    X_test: npt.NDArray[Any]
    y_test: npt.NDArray[Any]
    classes: int = 0
    """The number of classes, whose labels are 0 to classes - 1; 0 for regression."""
    columns: list[str] = field(default_factory=list)
    grid: tuple[int, int] | None = None
    """The shape of the image if the rows of `X_all` are its pixels, in row-major order."""
    X_all: npt.NDArray[Any] | None = None
    y_all: npt.NDArray[Any] | None = None
    """All rows in the order of the source, if there are two inputs."""
    counts: bool = False
    """Whether the targets are counts. Counts are not standardised."""
    notes: tuple[str, ...] = ()
    """Remarks on how the source was read."""

    @property
    def binary(self) -> bool:
        """Whether there are two classes."""
        return self.classes == 2

    @property
    def task(self) -> str:
        """A description of the task."""
        if self.classes:
            return f"classification, {self.classes} classes"
        return "regression of counts" if self.counts else "regression"

    def describe(self) -> dict[str, object]:
        """Return facts about the data set for reports."""
        return {
            "name": self.name,
            "rows": len(self.X),
            "test_rows": len(self.X_test),
            "inputs": self.X.shape[1],
            "task": self.task,
            "classes": self.classes,
        }


def load(
    data: str,
    *,
    target: str | None = None,
    split: int = 0,
    seed: int = 0,
    task: TaskName = "auto",
    counts: bool = False,
) -> Dataset:
    """Load, split and standardise a bundled data set, or a table from a .csv, .parquet or .npz file.

    Parameters
    ----------
    data
        The name of a bundled data set, or the path of a file.
    target
        The target column of a file other than .npz.
    split
        The column of the array `test_masks` in an .npz file, counted from 0.
    seed
        The seed for the random split of sources without a split of their own. A tenth of the rows become test rows.
    task
        "regression", "classification" or "auto". "auto" selects classification if there are 2 to 20 classes
        with the labels 0, 1, 2 and so on, and each label occurs at least twice. Otherwise "auto" selects regression.
    counts
        Whether the task is regression and the targets are counts. Counts are not standardised.

    Raises
    ------
    ValueError
        If the name is unknown, a file has the wrong contents, or the targets do not fit the task.
    """
    if task not in ("auto", "regression", "classification"):
        msg = f"unknown task {task!r}; choose from auto, regression, classification."
        raise ValueError(msg)
    path = Path(data)
    if path.suffix.lower() in TABLES:
        check_file(path)
        table = from_npz(path, split) if path.suffix.lower() == ".npz" else from_table(path, target)
    else:
        table = load_bundled(data)
    return _prepare(table, seed, task, counts)


def _prepare(table: Table, seed: int, task: TaskName, counts: bool) -> Dataset:
    for name, values in (("X", table.X), ("y", table.y)):
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            msg = f"{table.name}: {name} has NaN or infinite entries, the first in row {row}; remove these rows."
            raise ValueError(msg)
    classes = 0 if counts else _classes(table, task)
    test = _split_rows(table, seed)
    if len(missing := np.setdiff1d(np.arange(classes), table.y[~test])):
        msg = (
            f"{table.name}: class {missing[0]} has test rows but no training rows; choose another split or seed, "
            "or leave this class out."
        )
        raise ValueError(msg)
    X = _standardise(table.X, table.X[~test])
    y = (table.y if classes or counts else _standardise(table.y, table.y[~test]))[:, None]
    two = X.shape[1] == 2
    return Dataset(
        table.name, X[~test], y[~test], X[test], y[test], classes, table.columns, table.grid,
        X_all=X if two else None, y_all=y if two else None, counts=counts, notes=table.notes,
    )  # fmt: skip


# -- the task ---------------------------------------------------------------------------------------------------------


def _classes(table: Table, task: TaskName) -> int:
    """Return the number of classes of the targets, or 0 for regression."""
    if task == "regression":
        return 0
    found, rows = np.unique(table.y, return_counts=True)
    fit = bool((found == np.arange(len(found))).all()) and len(found) >= 2
    if task == "classification":
        if not fit:
            raise ValueError(_not_classes(table.name, found))
        return len(found)
    if fit and len(found) <= MAX_CLASSES and rows.min() >= 2:
        return len(found)
    if table.whole:
        msg = (
            f"{table.name}: y is stored as whole numbers ({_span(found)}), so the task is unclear; set --task "
            "regression, store y as floats, or number classes from 0 without gaps."
        )
        raise ValueError(msg)
    return 0


def _span(found: npt.NDArray[Any]) -> str:
    return f"{len(found)} different values from {found[0]:g} to {found[-1]:g}"


def _not_classes(name: str, found: npt.NDArray[Any]) -> str:
    whole = found == np.floor(found)
    if not whole.all():
        return f"{name}: labels must be whole numbers, but y has {found[~whole][0]:g}; use --task regression."
    if len(found) == 1:
        return f"{name}: all labels are {found[0]:g}; classification needs at least two classes."
    return f"{name}: labels must be 0 to C - 1 without gaps, but y has {_span(found)}; renumber them."


# -- rows and units ---------------------------------------------------------------------------------------------------


def _split_rows(table: Table, seed: int) -> npt.NDArray[Any]:
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


def _standardise(values: npt.NDArray[Any], training: npt.NDArray[Any]) -> npt.NDArray[Any]:
    spread = training.std(axis=0)
    return (values - training.mean(axis=0)) / np.where(spread > 1e-10, spread, 1.0)
