"""Rows of files larger than memory, as memory-mapped arrays or as dask arrays that are read chunk by chunk."""

import glob
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agp.backend import Array
from agp.data._tables import unknown_column
from agp.errors import require

KINDS = ".npy, .parquet, .zarr or .h5 (.hdf5)"


class OpenRows(NamedTuple):
    """Rows that are read when needed."""

    X: Array
    """Inputs [N, D]: a memory-mapped array, or a dask array."""
    y: Array | None
    """Targets [N], if a target was named."""
    columns: list[str]
    """Names of the columns of X, if the file has names."""


def is_many(path: str | Path) -> bool:
    """Whether a path is a folder or a pattern, which stand for several files."""
    return any(sign in str(path) for sign in "*?[") or Path(path).is_dir()


def several_files(path: str | Path, /, endings: Sequence[str]) -> list[Path]:
    """The files of a folder or a pattern with these endings, sorted by name. ValueError if there are none."""
    folder = Path(path)
    every = folder.iterdir() if folder.is_dir() else map(Path, glob.glob(str(path)))
    if found := sorted(file for file in every if file.suffix.lower() in endings):
        return found
    msg = f"{path}: there is no file {' or '.join(endings)} of that name."
    raise ValueError(msg)


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
        A `.npy` file [N, D], which is mapped into memory; `.parquet` files, by a pattern such as ``"part-*.parquet"``
        or their folder; a `.zarr` folder or an `.h5` file with an array [N, D].
    target
        The name of the target's column in Parquet, or its number elsewhere (-1 is the last); None for inputs alone.
    without
        Columns of Parquet to leave out.
    dataset
        Which array of a `.zarr` group or an `.h5` file; by default the only one.
    chunk_rows
        The number of rows of a chunk; by default that of the files, or what Dask chooses.

    Raises
    ------
    ValueError
        If there is no such file, column or array, the kind is unknown, or a column holds no numbers.
    ImportError
        If the package that reads such files is not installed; the message names the extra.
    """
    name = str(path)
    kind = ".zarr" if name.rstrip("/").endswith(".zarr") else Path(name.rstrip("*")).suffix
    kind = ".parquet" if not kind and Path(name).is_dir() else kind
    if not glob.glob(name):
        msg = f"{name}: there is no such file."
        raise ValueError(msg)
    if kind == ".npy":
        return _divided(np.load(name, mmap_mode="r"), target, name)
    if kind == ".parquet":
        return _parquet(name, target, without, chunk_rows)
    if kind not in (".zarr", ".h5", ".hdf5"):
        msg = f"{name} is of an unknown kind; rows are opened in {KINDS}, tables that fit into memory by agp.data.load."
        raise ValueError(msg)
    da = _dask_array()
    source = _zarr(name, dataset) if kind == ".zarr" else _hdf5(name, dataset)
    return _divided(da.from_array(source, chunks=_chunks(source, chunk_rows)), target, name)


def _chunks(source: Any, rows: int | None) -> Any:
    if rows is None and source.chunks is not None:
        return (source.chunks[0], *source.shape[1:])
    return ("auto" if rows is None else rows, *source.shape[1:])


def _divided(rows: Array, target: Any, name: str) -> OpenRows:
    """An array [N, D] as inputs and the target's column."""
    if rows.ndim != 2 and target is None:
        return OpenRows(rows, None, [])
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        msg = f"{name} has shape {tuple(rows.shape)} and dtype {rows.dtype}, but must hold numbers [N, D]."
        raise ValueError(msg)
    if target is None:
        return OpenRows(rows, None, [])
    D = rows.shape[1]
    if not isinstance(target, int) or not -D <= target < D or D < 2:
        msg = f"target is {target!r}, but must be the number of one of the {D} columns of {name}, beside others."
        raise ValueError(msg)
    at = target % D
    if at not in (0, D - 1):
        msg = f"target is {target!r}: in {name} it must be the first or the last column, beside the others."
        raise ValueError(msg)
    return OpenRows(rows[:, :at] if at else rows[:, 1:], rows[:, at], [])


def _dask_array() -> Any:
    return require("dask.array", "rows beyond memory need", "dask")


def _parquet(name: str, target: Any, without: Sequence[str], rows: int | None) -> OpenRows:
    _dask_array()
    import dask.dataframe as dd

    frame = dd.read_parquet(name)
    columns = [str(column) for column in frame.columns]
    for asked in (*([] if target is None else [target]), *without):
        if asked not in columns:
            raise ValueError(unknown_column(name, str(asked), columns))
    inputs = [column for column in columns if column != target and column not in without]
    for column in (*inputs, *([] if target is None else [target])):
        if frame.dtypes[column].kind not in "fiub":
            msg = (
                f"{name}: column {column!r} holds {frame.dtypes[column]}, not numbers; write numbers, or leave it out."
            )
            raise ValueError(msg)
    if not inputs:
        msg = f"{name} has no column left for inputs; at least one is needed."
        raise ValueError(msg)
    both = frame[[*inputs, *([target] if target is not None else [])]].astype(float).to_dask_array(lengths=True)
    both = both if rows is None else both.rechunk((rows, -1))
    return OpenRows(both[:, : len(inputs)], None if target is None else both[:, len(inputs)], inputs)


def _zarr(name: str, dataset: str | None) -> Any:
    zarr = _reader("zarr", name)
    found: Any = zarr.open(name, mode="r")
    return found if isinstance(found, zarr.Array) else _member(found, zarr.Array, dataset, name)


def _hdf5(name: str, dataset: str | None) -> Any:
    h5py = _reader("h5py", name)
    return _member(h5py.File(name, "r"), h5py.Dataset, dataset, name)


def _reader(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        msg = f"{name} needs the package {package}, which is not installed."
        raise ImportError(msg) from error


def _member(group: Any, kind: type, dataset: str | None, name: str) -> Any:
    known = [key for key in group if isinstance(group[key], kind)]
    if dataset is None and len(known) == 1:
        return group[known[0]]
    if dataset not in known:
        asked = "no array was named" if dataset is None else f"there is no array {dataset!r}"
        msg = f"{name}: {asked}; it has {', '.join(known) or 'none'}: name one by dataset=."
        raise ValueError(msg)
    return group[dataset]
