"""Tables of inputs and targets, from packages that bundle data and from files."""

import csv
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.errors import not_installed

__all__ = ["BUNDLED", "Table", "bundled", "from_csv", "from_npz"]


@dataclass(frozen=True)
class Table:
    """Data as they come, in their own units."""

    name: str
    X: npt.NDArray
    """Inputs [N, D], float64."""
    y: npt.NDArray
    """Targets [N], float64."""
    test_mask: npt.NDArray | None = None
    """The rows to test on [N], Boolean, where the source says."""
    columns: list[str] = field(default_factory=list)
    """Names of the columns of X."""
    grid: tuple[int, int] | None = None
    """The rows and columns of an image of which X are the cells in order."""
    whole: bool = False
    """Whether the source stores the targets as whole numbers, not as floats."""


def _elevation() -> Table:
    from matplotlib.cbook import get_sample_data

    file: Any = get_sample_data("jacksboro_fault_dem.npz")
    with file:
        heights = np.asarray(file["elevation"], dtype=np.float64)
    rows, columns = np.indices(heights.shape)
    X = np.stack([columns.ravel(), rows.ravel()], axis=1).astype(np.float64)
    return Table("elevation", X, heights.ravel(), columns=["east", "south"], grid=heights.shape)


def _sklearn(name: str) -> Callable[[], Table]:
    def read() -> Table:
        from sklearn import datasets

        bunch: Any = getattr(datasets, f"load_{name}")()
        columns = [str(column) for column in bunch.feature_names]
        return Table(name, np.asarray(bunch.data, float), np.asarray(bunch.target, float), columns=columns)

    return read


BUNDLED: dict[str, tuple[str, str, Callable[[], Table]]] = {
    "elevation": ("matplotlib", "heights of a valley, 138,632 rows, 2 inputs", _elevation),
    "diabetes": ("scikit-learn", "disease progression, 442 rows, 10 inputs", _sklearn("diabetes")),
    "breast_cancer": ("scikit-learn", "two classes, 569 rows, 30 inputs", _sklearn("breast_cancer")),
    "digits": ("scikit-learn", "ten classes, 1,797 rows, 64 inputs", _sklearn("digits")),
}
"""The data sets that installed packages bundle: package, description, reader."""


def bundled(name: str) -> Table:
    """A data set of that name, from the package that bundles it.

    Raises
    ------
    ValueError
        If the name is unknown; the known ones are listed.
    ImportError
        If the package is not installed; the message names the extra.
    """
    if name not in BUNDLED:
        known = ", ".join(f"{key} ({package}: {text})" for key, (package, text, _) in BUNDLED.items())
        msg = f"unknown data set {name!r}; known are {known}; or name a .csv or .npz file that exists."
        raise ValueError(msg)
    package, _, read = BUNDLED[name]
    try:
        return read()
    except ImportError as error:
        msg = f"the data set {name!r} comes with {not_installed(package, 'data')}."
        raise ImportError(msg) from error


def from_csv(path: str | Path, target: str | None) -> Table:
    """A comma-separated file with one header line: the column `target` is y, all others are X.

    Raises
    ------
    ValueError
        If there is no such column (those there are listed) or more than one, or a cell is not a number.
    """
    with Path(path).open(newline="") as file:
        header = [name.strip() for name in next(csv.reader(file), [])]
    if target is None or target not in header:
        wanted = "no target column was named" if target is None else f"it has no column {target!r}"
        msg = f"{path}: {wanted}; its columns are {', '.join(header) or 'none'}: name one with --target."
        raise ValueError(msg)
    if header.count(target) > 1:
        msg = f"{path} has {header.count(target)} columns named {target!r}; give the target a name of its own."
        raise ValueError(msg)
    if len(header) < 2:
        msg = f"{path} has the target column alone; at least one input column is needed."
        raise ValueError(msg)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about no rows, which is refused below
            cells = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, quotechar='"')
    except ValueError as error:
        msg = f"{path} has a cell that is not a number ({error}); encode or drop such columns."
        raise ValueError(msg) from error
    if cells.size == 0:
        msg = f"{path} has a header but no rows."
        raise ValueError(msg)
    if cells.shape[1] != len(header):
        msg = f"{path} has {len(header)} column names but {cells.shape[1]} columns of numbers."
        raise ValueError(msg)
    at = header.index(target)
    columns = [name for name in header if name != target]
    return Table(Path(path).stem, np.delete(cells, at, axis=1), cells[:, at], columns=columns)


def from_npz(path: str | Path, split: int = 0) -> Table:
    """An npz file with X [N, D], y [N] and at most one of test_mask [N], train_mask [N], test_masks [N, S].

    Parameters
    ----------
    path
        The file.
    split
        The column of test_masks.

    Raises
    ------
    ValueError
        If arrays are missing or do not fit, or there is no such split.
    """
    try:
        with zipfile.ZipFile(path):  # anything else np.load takes for something else
            pass
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (EOFError, NotImplementedError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        msg = f"{path} is not an npz file of plain arrays ({error or 'it ends too early'})."
        raise ValueError(msg) from error
    if missing := {"X", "y"} - arrays.keys():
        msg = f"{path} has no array {' and '.join(sorted(missing))}; it has {', '.join(arrays) or 'none'}."
        raise ValueError(msg)
    X, y = arrays["X"], arrays["y"]
    if X.ndim != 2 or y.shape != (X.shape[0],):
        msg = f"{path}: X has shape {X.shape} and y {y.shape}, but must be [N, D] and [N]."
        raise ValueError(msg)
    for name, x in (("X", X), ("y", y)):
        if x.dtype.kind not in "fiub":
            msg = f"{path}: {name} has dtype {x.dtype}, but must hold real numbers."
            raise ValueError(msg)
    mask = _test_mask(path, arrays, split)
    return Table(Path(path).stem, X.astype(float), y.astype(float), mask, whole=y.dtype.kind in "iu")


def _test_mask(path: str | Path, arrays: dict[str, npt.NDArray], split: int) -> npt.NDArray | None:
    N = arrays["X"].shape[0]
    if "test_masks" in arrays:
        masks = arrays["test_masks"]
        if masks.ndim != 2 or masks.shape[0] != N or not 0 <= split < masks.shape[1]:
            msg = f"{path}: test_masks has shape {masks.shape}, so there is no split {split} of {N} rows."
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
