"""Conversion and checks of the arrays that estimators take and return."""

from typing import Any

import array_api_compat
import numpy as np
from sklearn.utils import check_random_state

from agp.backend import Array, backend_of, placed, to_numpy


def is_foreign(X: Any) -> bool:
    """Whether X is an array of a library other than NumPy."""
    return array_api_compat.is_array_api_obj(X) and not array_api_compat.is_numpy_array(X)


def on_host(x: Any) -> Any:
    """An array of another library as one of NumPy; anything else as it is."""
    return to_numpy(x) if is_foreign(x) else x


def seed_of(random_state: Any) -> int:
    """A seed, drawn from any `random_state` of scikit-learn. ValueError for anything else."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except (TypeError, ValueError) as error:
        least = "a whole number from 0 to 2**32 - 1, a numpy.random.RandomState, or None"
        msg = f"random_state is {random_state!r}, but must be {least}."
        raise ValueError(msg) from error


def check_choice(name: str, value: Any, known: tuple[Any, ...]) -> None:
    """ValueError unless a parameter has one of the known values."""
    if value not in known:
        msg = f"{name} is {value!r}, but must be {' or '.join(map(repr, known))}."
        raise ValueError(msg)


def answered(x: Array, *, host: bool) -> Any:
    """A result as a NumPy array if `host`, else as it is."""
    return to_numpy(x) if host else x


def placed_in_range(name: str, numbers: Any, beside: Array, *, positive: bool = False) -> Array:
    """Host numbers as an array like `beside`. ValueError if one overflows there or, if `positive`, underflows."""
    B = backend_of(beside)
    info, size = B.xp.finfo(beside.dtype), np.abs(numbers)
    beyond = np.isfinite(numbers) & (size > float(info.max))
    if positive:
        beyond |= size < float(info.smallest_normal)
    if beyond.any():
        row = int(np.argwhere(beyond)[0, 0])
        dtype = B.dtype_name(beside)
        found = f"{name} has {numbers[beyond][0]:g} in row {row}, which {dtype} cannot hold"
        msg = f"{found}; give it in another unit{', or as float64' if dtype != 'float64' else ''}."
        raise ValueError(msg)
    return placed(numbers, beside)


def floating(x: Array, /) -> Array:
    """An array with whole numbers and Booleans converted to the widest float of its device."""
    B = backend_of(x)
    return B.xp.astype(x, B.widest_float(x)) if B.xp.isdtype(x.dtype, ("integral", "bool")) else x


def unmasked(x: Any) -> Any:
    """Fill masked cells of a masked array with NaN, or None in text; anything else as it is."""
    if not isinstance(x, np.ma.MaskedArray):
        return x
    found = np.ma.getdata(x)
    if not np.ma.is_masked(x) or found.dtype.kind in "mM":  # dates are refused as such
        return found
    numbers = found.dtype.kind in "biuf"
    kind: Any = found.dtype if found.dtype.kind == "f" else np.float64 if numbers else object
    found = found.astype(kind)  # a copy
    found[np.ma.getmaskarray(x)] = np.nan if numbers else None
    return found


def refuse_cells(name: str, x: Any, remedy: str | None) -> None:
    """ValueError if a NumPy array has infinite cells or, if there is a remedy for them, missing cells (NaN)."""
    for what, found, then in (("inf", np.isinf(x), "correct it"), ("NaN", np.isnan(x), remedy)):
        if then is not None and found.any():
            row, *column = np.argwhere(found)[0].tolist()
            where = ", ".join([f"row {row}", *(f"column {i}" for i in column)])
            msg = f"{name} has {what} in {where}; {then}."
            raise ValueError(msg)


def refuse_words(name: str, x: Any, /) -> None:
    """ValueError if a NumPy array holds text or dates, which would silently become numbers."""
    kind = x.dtype.kind
    if kind in "mM":
        remedy = "pass a data frame, of which they become days" if name == "X" else "make numbers of them"
        msg = f"{name} holds dates; {remedy}."
        raise ValueError(msg)
    if kind in "SU" or (kind == "O" and any(isinstance(one, (str, bytes)) for one in x.ravel())):
        msg = f"{name} holds text; make numbers of it" + (", or pass a data frame." if name == "X" else ".")
        raise ValueError(msg)


def selected(x: Array, rows: Array) -> Array:
    """The rows of x [N, ...] where a Boolean array [N] is true; of a lazy array, in chunks of known lengths."""
    found: Any = x[rows]
    if not backend_of(x).is_lazy:
        return found
    found = found.compute_chunk_sizes()
    return found.blocks[np.flatnonzero(found.chunks[0]).tolist()]  # those that have any
