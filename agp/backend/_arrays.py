"""What callers ask of any array: its dtype and device, its numbers on the host, and others beside it."""

from typing import Any

import numpy as np

from agp.backend._discovery import backend_of
from agp.backend._protocol import Array

__all__ = ["like", "placed", "to_numpy", "wide"]


def like(x: Array, /) -> dict[str, Any]:
    """dtype= and device= for creation calls: ``xp.eye(M, **like(x))``."""
    return backend_of(x).like(x)


def placed(x: Any, beside: Array, /) -> Array:
    """Host numbers (a NumPy array, or lists) as an array of the library and device of another.

    Floating-point numbers take its dtype; whole numbers, such as the positions of rows, stay whole.
    """
    B, host = backend_of(beside), np.asarray(x)
    dtype = B.dtype_name(beside) if host.dtype.kind == "f" else None
    return B.from_numpy(host, dtype=dtype, device=B.device_name(beside) or None)


def to_numpy(x: Array, /) -> Any:
    """An array of any library and device on the host, on purpose; it may share the memory of x."""
    return backend_of(x).to_numpy(x)


def wide(x: Array, /) -> Array:
    """X in the widest floating-point dtype of its device (float64, where there is one), for sums that lose digits."""
    B = backend_of(x)
    return B.xp.astype(x, B.widest_float(x))
