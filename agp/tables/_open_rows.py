"""Rows of files that are larger than memory, as memory-mapped arrays or as Dask arrays that are read in chunks."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agp.backend import Array
from agp.errors import explain_call, join_words, name_remedy, require
from agp.tables._files import ending_of, unknown_column_message

KINDS = ".npy, .parquet, .zarr or .h5 (.hdf5)"


class OpenRows(NamedTuple):
    """Rows that are read only when they are needed."""

    X: Array
    """Inputs [N, D]: a memory-mapped array, or a Dask array."""
    y: Array | None
    """Targets [N], or None if no target was named."""
    columns: list[str]
    """The names of the columns of X; empty if the file has no column names."""


def is_many(path: str | Path) -> bool:
    """Whether a path is a folder or a pattern, which may stand for several files, and not the name of a file."""
    return os.path.isdir(path) or (any(sign in str(path) for sign in "*?[") and not os.path.isfile(path))


def several_files(path: str | Path, /, endings: Sequence[str]) -> list[Path]:
    """Return the sorted files with these endings in a folder or matching a pattern. Raise ValueError if none exist."""
    folder = Path(path)
    every = folder.iterdir() if folder.is_dir() else map(Path, glob.glob(str(path)))
    if found := sorted(file for file in every if ending_of(file) in endings):
        return found
    raise ValueError(f"{path}: no {join_words(endings[:3], 'or')} file matches; correct the path.")


@explain_call
def open_rows(
    path: str | Path,
    *,
    target: str | int | None = None,
    without: Sequence[str] = (),
    dataset: str | None = None,
    chunk_rows: int | None = None,
) -> OpenRows:
    """Open one or more files of numbers without reading the rows, for data larger than memory.

    Parameters
    ----------
    path
        The path of a `.npy` file, a `.zarr` folder, an `.h5` file or a `.parquet` file. All kinds except `.parquet`
        contain an array [N, D]. Several `.parquet` files are given by their folder or by a pattern such as
        ``"part-*.parquet"``. A `.npy` file is mapped into memory.
    target
        The target column: its name in Parquet files, or its number in other files (-1 for the last column). By default
        all columns are inputs.
    without
        Columns of Parquet files to leave out.
    dataset
        The name of the array in a `.zarr` group or an `.h5` file. It is not needed if the file contains only one array.
    chunk_rows
        The number of rows per chunk. By default, the files' own chunks are used, or Dask chooses the number if the
        files have no chunks.

    Raises
    ------
    ValueError
        If the file, the column or the array does not exist, the kind of file is unknown, or a column does not contain
        numbers.
    ImportError
        If the package that reads the file is not installed; the message names the extra that installs it.
    """
    name = str(path)
    kind = Path(name.rstrip("*")).suffix
    kind = ".parquet" if not kind and Path(name).is_dir() else kind
    if not Path(name).exists() and not glob.glob(name):
        raise ValueError(f"{name}: the file does not exist; correct the path.")
    if kind == ".npy":
        return _split_target(np.load(name, mmap_mode="r"), target, name)
    if kind not in (".parquet", ".zarr", ".h5", ".hdf5"):
        raise ValueError(
            f"{name} has an unknown file type; use {KINDS}, or pass a data frame if the rows fit into memory."
        )
    da = require("dask.array", "rows that do not fit into memory need", "dask")
    if kind == ".parquet":
        return _parquet(name, target, without, chunk_rows)
    source = _zarr(name, dataset) if kind == ".zarr" else _hdf5(name, dataset)
    own = "auto" if source.chunks is None else source.chunks[0]
    chunks = (own if chunk_rows is None else chunk_rows, *source.shape[1:])
    return _split_target(da.from_array(source, chunks=chunks), target, name)


def _split_target(rows: Array, target: Any, name: str) -> OpenRows:
    """Split an array [N, D] into the inputs and the target column."""
    suitable = rows.dtype.kind in "fiu" if rows.ndim == 2 else target is None
    if not suitable:
        raise ValueError(
            f"{name} has shape {tuple(rows.shape)} and dtype {rows.dtype}, but must be an array [N, D] of numbers."
        )
    if target is None:
        return OpenRows(rows, None, [])
    D = rows.shape[1]
    if not isinstance(target, int) or not -D <= target < D or D < 2:
        raise ValueError(
            f"target is {target!r}, but must be a column number of {name}, from {-D} to {D - 1}; at least one "
            "other column is needed for X."
        )
    at = target % D
    if at not in (0, D - 1):
        raise ValueError(f"target is {target!r}, but must be the first or the last column of {name}; move the column.")
    return OpenRows(rows[:, :at] if at else rows[:, 1:], rows[:, at], [])


def _parquet(name: str, target: Any, without: Sequence[str], rows: int | None) -> OpenRows:
    import dask.dataframe as dd

    frame = dd.read_parquet(name)
    columns = [str(column) for column in frame.columns]
    targets = [] if target is None else [target]
    for asked in (*targets, *without):
        if asked not in columns:
            raise ValueError(unknown_column_message(name, str(asked), columns))
    inputs = [column for column in columns if column not in (*targets, *without)]
    for column in (*inputs, *targets):
        if (dtype := frame.dtypes[column]).kind not in "fiub":
            raise ValueError(
                f"{name}: column {column!r} holds {dtype}, not numbers; convert it to numbers, or leave it out."
            )
    if not inputs:
        raise ValueError(f"{name} has no column left for inputs; at least one is needed.")
    both = frame[[*inputs, *targets]].astype(float).to_dask_array(lengths=True)
    both = both if rows is None else both.rechunk((rows, -1))
    return OpenRows(both[:, : len(inputs)], None if target is None else both[:, len(inputs)], inputs)


def _zarr(name: str, dataset: str | None) -> Any:
    zarr = require("zarr", f"{name} needs", "arrays")
    found: Any = zarr.open(name, mode="r")
    return found if isinstance(found, zarr.Array) else _member(found, zarr.Array, dataset, name)


def _hdf5(name: str, dataset: str | None) -> Any:
    h5py = require("h5py", f"{name} needs", "arrays")
    return _member(h5py.File(name, "r"), h5py.Dataset, dataset, name)


def _member(group: Any, kind: type, dataset: str | None, name: str) -> Any:
    known = [key for key in group if isinstance(group[key], kind)]
    if dataset is None and len(known) == 1:
        return group[known[0]]
    if dataset not in known:
        asked = "no array was chosen" if dataset is None else f"it has no array {dataset!r}"
        raise ValueError(f"{name}: {asked}; {name_remedy(dataset, known or ['none'], 'set dataset to one of')}")
    return group[dataset]
