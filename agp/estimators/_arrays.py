"""Conversion and validation of the arrays that estimators accept and return."""

import math
from typing import Any

import array_api_compat
import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_random_state

from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.tables import collect_frame

MAX_CELLS = 2**28
"""The maximum number of cells of a table or a sparse matrix after conversion, which take 2 GiB."""


def is_foreign(X: Any) -> bool:
    """Whether X is an array of a library other than NumPy."""
    return array_api_compat.is_array_api_obj(X) and not array_api_compat.is_numpy_array(X)


def on_host(x: Any) -> Any:
    """Convert an array of another library to NumPy; return anything else unchanged."""
    return to_numpy(x) if is_foreign(x) else x


def resolve_seed(random_state: Any) -> int:
    """Convert a scikit-learn `random_state` to a seed. Raise ValueError if it is invalid."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except (TypeError, ValueError) as error:
        least = "a whole number from 0 to 2**32 - 1, a numpy.random.RandomState, or None"
        raise ValueError(f"random_state is {random_state!r}, but must be {least}.") from error


def as_output(x: Array, *, host: bool) -> Any:
    """Convert a result to a NumPy array if `host` is true; return it unchanged otherwise."""
    return to_numpy(x) if host else x


def asarray_in_range(
    name: str, numbers: Any, beside: Array, *, positive: bool = False, names: list[str] | None = None
) -> Array:
    """Convert NumPy numbers to the library, device and dtype of the array `beside`.

    Raise ValueError for numbers outside its range; see `refuse_out_of_range`.
    """
    refuse_out_of_range(name, numbers, beside, positive=positive, names=names)
    return asarray_like(numbers, beside)


def refuse_out_of_range(
    name: str, numbers: Any, beside: Array, *, positive: bool = False, names: list[str] | None = None
) -> None:
    """Raise ValueError if finite NumPy numbers would become infinite in the dtype of `beside`.

    Parameters
    ----------
    name
        The name of the numbers.
    numbers
        The numbers [N] or [N, D].
    beside
        An array of the dtype.
    positive
        Also refuse numbers that are zero or would underflow.
    names
        The names of the columns, or None.
    """
    B = backend_of(beside)
    info, size = B.xp.finfo(beside.dtype), np.abs(numbers).astype(np.float64, copy=False)
    beyond = np.isfinite(numbers) & (size > float(info.max))
    if positive:
        beyond |= size < float(info.smallest_normal)
    if not beyond.any():
        return
    row, *column = np.argwhere(beyond)[0].tolist()
    if names is not None:
        name = f"column {names[column[0]]!r}"
    elif column and numbers.shape[1] > 1:
        name = f"column {column[0]} of {name}"
    dtype = B.dtype_name(beside)
    found = f"{name} has {numbers[beyond][0]:g} in row {row}, which is outside the range of {dtype}"
    raise ValueError(f"{found}; use another unit{', or float64' if dtype != 'float64' else ''}.")


def floating(x: Array, /) -> Array:
    """Convert an array of whole numbers or Booleans to the widest float type that its device supports."""
    B = backend_of(x)
    return B.xp.astype(x, B.widest_float(x)) if B.xp.isdtype(x.dtype, ("integral", "bool")) else x


def load_rows(name: str, x: Any) -> Any:
    """Return rows as arrays and data frames in memory, with NaN or None in cells that are masked.

    Sparse matrices become dense, and lazy data frames of polars are computed. Anything else is returned unchanged.

    Raises
    ------
    TypeError
        If rows are a lazy data frame of another library.
    ValueError
        If a dense matrix would have more than `MAX_CELLS` cells.
    """
    return _fill_masked(_as_dense(name, x) if issparse(x) else collect_frame(x, name))


def _as_dense(name: str, x: Any) -> Any:
    cells, size = math.prod(x.shape), np.result_type(x.dtype, np.float32).itemsize
    if cells > MAX_CELLS:
        raise ValueError(
            f"{name} is a sparse matrix of shape {x.shape}, which would take {cells * size:,} bytes as a dense array; "
            f"reduce it to fewer columns, for example with sklearn.decomposition.TruncatedSVD, or pass fewer rows."
        )
    return x.toarray(order="C")


def _fill_masked(x: Any) -> Any:
    """Fill masked cells with NaN, or with None in a text array; return anything else unchanged."""
    if not isinstance(x, np.ma.MaskedArray):
        return x
    found = np.ma.getdata(x)
    if not np.ma.is_masked(x) or found.dtype.kind in "mM":  # a later check refuses dates
        return found
    numbers = found.dtype.kind in "biuf"
    kind: Any = found.dtype if found.dtype.kind == "f" else np.float64 if numbers else object
    found = found.astype(kind)  # a copy
    found[np.ma.getmaskarray(x)] = np.nan if numbers else None
    return found


def plain_labels(y: Any) -> Any:
    """Convert Booleans and whole numbers in arrays of objects or of nullable types to NumPy's; return others unchanged.

    scikit-learn would convert them to floats, or refuse them.
    """
    found = np.asarray(y)
    if found.dtype.kind in "bi":
        return found
    kinds = {type(x) for x in found.ravel().tolist()} if found.dtype == object else set()
    if kinds == {bool}:
        return found.astype(bool)
    small = kinds == {int} and all(abs(x) < 2**63 for x in found.ravel().tolist())
    return found.astype(np.int64) if small else y


def clear_subnormals(x: Any) -> Any:
    """Replace subnormal numbers in a NumPy array by zero: they have few digits, and their inverses overflow."""
    small = (np.abs(x) < np.finfo(x.dtype).smallest_normal) & (x != 0.0)
    return np.where(small, x.dtype.type(0.0), x) if small.any() else x


def refuse_cells(name: str, x: Any, remedy: str | None) -> None:
    """Raise ValueError if a NumPy array has infinite cells or, unless `remedy` is None, missing cells (NaN)."""
    for what, found, then in (("inf", np.isinf(x), "correct it"), ("NaN", np.isnan(x), remedy)):
        if then is not None and found.any():
            row, *column = np.argwhere(found)[0].tolist()
            where = ", ".join([f"row {row}", *(f"column {i}" for i in column)])
            raise ValueError(f"{name} has {what} in {where}; {then}.")


def refuse_words(name: str, x: Any, /) -> None:
    """Raise ValueError if a NumPy array holds text or dates, which would silently become numbers."""
    kind = x.dtype.kind
    if kind in "mM":
        what = "dates" if kind == "M" else "durations"
        remedy = f"pass a data frame, in which {what} become days" if name == "X" else "convert them to numbers"
        raise ValueError(f"{name} holds {what}; {remedy}.")
    if kind in "SU" or (kind == "O" and any(isinstance(one, (str, bytes)) for one in x.ravel())):
        raise ValueError(
            f"{name} holds text; convert it to numbers" + (", or pass a data frame." if name == "X" else ".")
        )


def take_rows(x: Array, rows: Array) -> Array:
    """Return the rows of x [N, ...] where a Boolean array [N] is true, in chunks of known lengths if x is lazy."""
    found: Any = x[rows]
    if not backend_of(x).is_lazy:
        return found
    found = found.compute_chunk_sizes()
    return found.blocks[np.flatnonzero(found.chunks[0]).tolist()]  # without empty chunks
