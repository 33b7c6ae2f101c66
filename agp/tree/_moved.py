"""Crossing on purpose: arrays and models from one library, device or dtype to another."""

from typing import Any, TypeVar

from agp.backend import backend_of, check_array_type, get_backend, to_numpy
from agp.tree._copies import with_leaves
from agp.tree._fields import is_model
from agp.tree._walks import leaves

__all__ = ["to_backend"]

T = TypeVar("T")

FLOATS = ("float64", "float32")
"""The types that `to_backend` can be asked for."""


def _dtype_name(dtype: Any) -> str | None:
    """The name of a dtype, given by its name or as an object of any library: numpy.float32, torch.float64, ..."""
    name = dtype if isinstance(dtype, str) else str(dtype).rpartition(".")[2].rstrip("'>")
    if dtype is not None and name not in FLOATS:
        msg = f"dtype is {dtype!r}, but must be {' or '.join(map(repr, FLOATS))}."
        raise ValueError(msg)
    return None if dtype is None else name


def to_backend(x: T, name: str, *, dtype: Any = None, device: str | None = None) -> T:
    """Copy an array or a model to another array library, device or floating-point type.

    Parameters
    ----------
    x
        An array of any known library, a model of such arrays, or (nested) lists of numbers.
    name
        The backend, as `agp backends` lists it.
    dtype
        "float64" or "float32", or such a dtype of any library; by default each array keeps its own.
    device
        A device of that backend; by default the library's default device.

    Raises
    ------
    TypeError, ValueError
        If x is nothing of the kind, the dtype is another one, or the backend has no such device (it names those there).
    agp.errors.BackendError
        If the backend is unknown or not installed.
    """
    B, dtype = get_backend(name), _dtype_name(dtype)
    if is_model(x):
        here = {k: v for k, v in leaves(x).items() if not backend_of(v).is_lazy}
        moved = {k: B.from_numpy(to_numpy(v), dtype=dtype, device=device) for k, v in here.items()}
        return with_leaves(x, moved)
    if isinstance(x, (int, float, list, tuple)):
        return B.from_numpy(get_backend("numpy").from_numpy(x), dtype=dtype, device=device)
    check_array_type("x", x)
    return B.from_numpy(to_numpy(x), dtype=dtype, device=device)
