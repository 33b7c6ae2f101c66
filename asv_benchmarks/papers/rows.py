"""Training and test rows in the splits of the papers, standardised by the training rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SMALL = 80
"""Number of training and of test rows in a rehearsal."""


class InputError(Exception):
    """Wrong arguments of a command, or data that it cannot read. The message is one sentence."""


@dataclass(frozen=True)
class Rows:
    """Inputs [N, D] and targets [N, 1] for training and test."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any

    def head(self, rows: int) -> "Rows":
        """Only the first training and test rows."""
        return Rows(self.X[:rows], self.y[:rows], self.X_test[:rows], self.y_test[:rows])


def check_file(folder: Path, name: str) -> Path:
    """The file of a data set; raise InputError if there is none."""
    path = folder / f"{name}.npz"
    if not folder.is_dir():
        raise InputError(f"--data is {folder}, but there is no folder with this name; name the folder of {path.name}.")
    if not path.is_file():
        raise InputError(
            f"{path} does not exist; store inputs X [N, D] and targets y [N] of {name} in a file with this name."
        )
    return path


def read(folder: Path, name: str, *others: str) -> tuple[Any, ...]:
    """Read X [N, D] and y [N, 1] of a data set as float64, and other arrays as they are."""
    path = check_file(folder, name)
    with np.load(path) as file:
        if missing := [part for part in ("X", "y", *others) if part not in file.files]:
            raise InputError(
                f"{path} has no array {missing[0]}; store X, y{''.join(f', {part}' for part in others)} in this file."
            )
        return file["X"].astype(np.float64), file["y"].astype(np.float64)[:, None], *(file[part] for part in others)


def regression(
    folder: Path,
    name: str,
    seed: int,
    *,
    test: float,
    train: float,
    hidden: float = 0.0,
    small: bool = False,
) -> Rows:
    """Split the rows at random into `hidden`, test and training rows, given as shares of all rows.

    Hidden rows are left out, as are the rest. With the same seed and the same sum of hidden and test rows, the other
    rows are the same. Inputs and targets are standardised by the means and standard deviations of the training rows.
    Constant columns become zero.
    """
    X, y = read(folder, name)
    ends = [round(len(y) * share) for share in (hidden, hidden + test, hidden + test + train)]
    _, test_rows, train_rows, _ = np.split(np.random.default_rng(seed).permutation(len(y)), ends)
    if small:
        test_rows, train_rows = test_rows[:SMALL], train_rows[:SMALL]
    return select(standardise(X, X[train_rows]), standardise(y, y[train_rows]), train_rows, test_rows)


def fold(folder: Path, name: str, which: int, *, folds: int = 5, classes: bool = False) -> Rows:
    """Hold out one of several folds of shuffled rows.

    Inputs, and targets that are not classes, are standardised as in `regression`.
    """
    X, y = read(folder, name)
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), folds)
    train_rows = np.concatenate([part for i, part in enumerate(parts) if i != which])
    y = y if classes else standardise(y, y[train_rows])
    return select(standardise(X, X[train_rows]), y, train_rows, parts[which])


def images(folder: Path, name: str, seed: int) -> Rows:
    """Shuffled training images and all test images of a data set with a `train_mask`; pixels are from 0 to 1."""
    X, y, mask = read(folder, name, "train_mask")
    order = np.random.default_rng(seed).permutation(np.flatnonzero(mask))
    return select(X / 255.0, y, order, np.flatnonzero(~mask))


def select(X: Any, y: Any, train_rows: Any, test_rows: Any) -> Rows:
    """The training and test rows of inputs and targets."""
    return Rows(X[train_rows], y[train_rows], X[test_rows], y[test_rows])


def standardise(x: Any, by: Any) -> Any:
    """Standardise the columns of x by the means and standard deviations of other rows."""
    mean, spread = by.mean(axis=0), by.std(axis=0)
    constant = spread <= 1e-10 * np.abs(by).max(axis=0)
    return np.where(constant, 0.0, (x - mean) / np.where(constant, 1.0, spread))
