"""Tables of inputs and targets, from installed packages and from files."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.data._tables import TableFile, bad_number, npz_arrays, read_table, unknown_column_message
from agp.errors import missing_package_message


@dataclass(frozen=True)
class Table:
    """Inputs and targets of a source, in their original units."""

    name: str
    X: npt.NDArray[Any]
    """Inputs [N, D], float64."""
    y: npt.NDArray[Any]
    """Targets [N], float64."""
    test_mask: npt.NDArray[Any] | None = None
    """A Boolean array [N] that is true for test rows; None if the source has no split."""
    columns: list[str] = field(default_factory=list)
    """The names of the columns of X."""
    grid: tuple[int, int] | None = None
    """The shape of the image if the rows of X are its pixels, in row-major order."""
    whole: bool = False
    """Whether the source stores the targets as whole numbers, not as floats."""
    notes: tuple[str, ...] = ()
    """Remarks on how the source was read."""


def _elevation() -> Table:
    from matplotlib.cbook import get_sample_data

    file: Any = get_sample_data("jacksboro_fault_dem.npz")
    with file:
        heights = np.asarray(file["elevation"], dtype=np.float64)
    rows, columns = np.indices(heights.shape)
    X = np.stack([columns.ravel(), rows.ravel()], axis=1).astype(np.float64)
    return Table("elevation", X, heights.ravel(), columns=["east", "south"], grid=heights.shape)


def _sklearn(name: str) -> Table:
    from sklearn import datasets

    bunch: Any = getattr(datasets, f"load_{name}")()
    columns = [str(column) for column in bunch.feature_names]
    return Table(name, np.asarray(bunch.data, float), np.asarray(bunch.target, float), columns=columns)


BUNDLED: dict[str, tuple[str, str, Callable[[], Table]]] = {
    "elevation": ("matplotlib", "heights of a valley, 138,632 rows, 2 inputs", _elevation),
    "diabetes": ("scikit-learn", "disease progression, 442 rows, 10 inputs", partial(_sklearn, "diabetes")),
    "breast_cancer": ("scikit-learn", "two classes, 569 rows, 30 inputs", partial(_sklearn, "breast_cancer")),
    "digits": ("scikit-learn", "ten classes, 1,797 rows, 64 inputs", partial(_sklearn, "digits")),
}
"""The package, description and reader of each bundled data set."""


def load_bundled(name: str) -> Table:
    """Load a data set by name from the package that contains it.

    Raises
    ------
    ValueError
        If the name is unknown; the message lists the known names.
    ImportError
        If the package is not installed; the message names the extra that installs it.
    """
    if name not in BUNDLED:
        known = ", ".join(f"{key} ({package}: {text})" for key, (package, text, _) in BUNDLED.items())
        msg = f"unknown data set {name!r}; choose from {known}, or name an existing .csv, .parquet or .npz file."
        raise ValueError(msg)
    package, _, read = BUNDLED[name]
    try:
        return read()
    except ImportError as error:
        msg = f"the data set {name!r} comes with {missing_package_message(package, 'data')}."
        raise ImportError(msg) from error


def from_table(path: str | Path, target: str | None) -> Table:
    """Read a table of numbers from a text or Parquet file. The column `target` is y; all other columns are X.

    Raises
    ------
    ValueError
        If the target column does not exist, or a cell is empty or not a number.
    ImportError
        If the package that reads the table is not installed; the message names the extra that installs it.
    """
    table = read_table(path)
    header = list(table.frame.columns)
    if target is None:
        msg = f"{path}: no target column was chosen; set --target to one of {', '.join(header)}."
        raise ValueError(msg)
    if target not in header:
        raise ValueError(unknown_column_message(str(path), target, header))
    if len(header) < 2:
        msg = f"{path} has only the target column; add at least one input column."
        raise ValueError(msg)
    for name in header:
        _check_numbers(table, name)
    columns = [name for name in header if name != target]
    X, y = table.frame[columns].to_numpy(dtype=float), table.frame[target].to_numpy(dtype=float)
    return Table(Path(path).stem, X, y, columns=columns, notes=table.notes)


def _check_numbers(table: TableFile, name: str) -> None:
    column = table.frame[name]
    if (empty := column.isna().to_numpy()).any():
        msg = f"{table.path}: {table.place(int(np.argmax(empty)), name)} is empty; fill in the cell, or remove the row."
        raise ValueError(msg)
    if column.dtype.kind not in "fiub":
        row = bad_number(column) or 0
        cell = f"{table.place(row, name)}: {column[row]!r} is not a number"
        msg = f"{table.path}: {cell}; convert the column to numbers, such as 0, 1, ... for classes, or leave it out."
        raise ValueError(msg)


def from_npz(path: str | Path, split: int = 0) -> Table:
    """Read an npz file with the arrays X [N, D], y [N] and, optionally, a split into training and test rows.

    The split is one of the Boolean arrays test_mask [N], train_mask [N], or test_masks [N, S] for S splits.

    Parameters
    ----------
    path
        The file.
    split
        The column of the array `test_masks`, counted from 0.

    Raises
    ------
    ValueError
        If an array is missing or has the wrong shape or dtype, or the split does not exist.
    """
    arrays = npz_arrays(path)
    if missing := {"X", "y"} - arrays.keys():
        msg = f"{path} has no array {' or '.join(sorted(missing))}; it contains {', '.join(arrays) or 'no arrays'}."
        raise ValueError(msg)
    X, y = arrays["X"], arrays["y"]
    if X.ndim != 2 or y.shape != (X.shape[0],):
        msg = f"{path}: X has shape {X.shape} and y has shape {y.shape}; give X the shape [N, D] and y the shape [N]."
        raise ValueError(msg)
    for name, x in (("X", X), ("y", y)):
        if x.dtype.kind not in "fiub":
            msg = f"{path}: {name} has dtype {x.dtype}, but must hold real numbers."
            raise ValueError(msg)
    mask = _test_mask(path, arrays, split)
    return Table(Path(path).stem, X.astype(float), y.astype(float), mask, whole=y.dtype.kind in "iu")


def _test_mask(path: str | Path, arrays: dict[str, npt.NDArray[Any]], split: int) -> npt.NDArray[Any] | None:
    N = arrays["X"].shape[0]
    if "test_masks" in arrays:
        masks = arrays["test_masks"]
        if masks.ndim != 2 or masks.shape[0] != N or not 0 <= split < masks.shape[1]:
            needed = f"{N} rows and a column {split}"
            msg = f"{path}: test_masks has shape {masks.shape}, but must have {needed}; correct it or change the split."
            raise ValueError(msg)
        return masks[:, split].astype(bool)
    for name in ("test_mask", "train_mask"):
        if name in arrays:
            if arrays[name].shape != (N,):
                msg = f"{path}: {name} has shape {arrays[name].shape}, but must be [{N}]."
                raise ValueError(msg)
            mask = arrays[name].astype(bool)
            return mask if name == "test_mask" else ~mask
    return None
