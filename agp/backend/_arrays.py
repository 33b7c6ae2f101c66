"""Functions for arrays of any library: dtype and device, transfers to the host, and creation of similar arrays."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from agp.backend._discovery import backend_of
from agp.backend._library import Array

CONSTANTS = 256
"""Maximum number of constants in the cache."""

_constants: OrderedDict[tuple, Array] = OrderedDict()


def like(x: Array, /) -> dict[str, Any]:
    """Keyword arguments that give a new array the dtype and device of x, as in ``xp.eye(M, **like(x))``."""
    return backend_of(x).like(x)


def asarray_like(x: Any, beside: Array, /) -> Array:
    """Convert a NumPy array, or lists of numbers, to an array with the library and device of `beside`.

    Floating-point numbers are converted to the dtype of `beside`; integers, such as row indices, remain integers.
    """
    B, host = backend_of(beside), np.asarray(x)
    dtype = B.dtype_name(beside) if host.dtype.kind == "f" else None
    return B.from_numpy(host, dtype=dtype, device=B.device_name(beside) or None)


def row_numbers(count: int, beside: Array, /, *, start: int = 0) -> Array:
    """Return the integers [count] from `start` on, on the device of `beside`."""
    B = backend_of(beside)
    place = {name: x for name, x in B.like(beside).items() if name != "dtype"}
    return B.xp.arange(start, start + count, **place)


def constant(numbers: tuple[float, ...], beside: Array, /) -> Array:
    """Convert a vector of constants, such as quadrature nodes, to the library, dtype and device of `beside`.

    A cache avoids repeated transfers to a device. While a function is traced, nothing is cached: the numbers become
    part of the compiled function.
    """
    B = backend_of(beside)
    if not B.is_concrete(beside):
        return asarray_like(numbers, beside)
    key = (B.name, B.dtype_name(beside), B.device_name(beside), numbers)
    found = _constants.pop(key, None)
    if found is None:
        found = asarray_like(numbers, beside)
    if B.is_concrete(found):
        _constants[key] = found  # the most recently used entry is last
        if len(_constants) > CONSTANTS:
            _constants.popitem(last=False)
    return found


def constants() -> tuple[Array, ...]:
    """Return the cached constants, which a recorded graph must keep alive."""
    return tuple(_constants.values())


def numbers_of(several: Sequence[Array | float], /) -> list[float]:
    """Convert numbers, or 0-d arrays on one device, to floats in a single transfer; Booleans become 0 and 1."""
    arrays = [x for x in several if not isinstance(x, (int, float))]
    if not arrays:
        return [float(x) for x in several]
    B = backend_of(arrays[0])
    floating = next((x for x in arrays if B.xp.isdtype(x.dtype, "real floating")), None)
    dtype = B.xp.float32 if floating is None else B.widest_float(floating)
    stacked = B.xp.stack([B.xp.astype(x, dtype, copy=False) for x in arrays])
    values = iter(to_numpy(stacked))
    return [float(x) if isinstance(x, (int, float)) else float(next(values)) for x in several]


def to_numpy(x: Array, /) -> Any:
    """Convert an array of any library and device to a NumPy array, which may share the memory of x.

    Examples
    --------
    A NumPy array is returned as it is. Copy the result before you change it.

    >>> import numpy as np
    >>> import agp
    >>> x = np.asarray([1.0, 2.0])
    >>> agp.to_numpy(x) is x
    True
    """
    return backend_of(x).to_numpy(x)


def as_widest_float(x: Array, /) -> Array:
    """Convert x to float64, or to the widest floating-point dtype of its device, for accurate sums."""
    B = backend_of(x)
    return B.xp.astype(x, B.widest_float(x), copy=False)
