"""Conversion, copies and memory layout of a model's arrays."""

import numbers
from collections.abc import Sequence
from typing import Any, TypeVar

from agp.backend import (
    Array,
    asarray_like,
    backend_of,
    check_array_type,
    find_backend,
    get_backend,
    like,
    to_numpy,
)
from agp.tree._copies import with_leaves
from agp.tree._fields import is_model
from agp.tree._walks import leaves

T = TypeVar("T", bound=Any)


def place_leaves(model: T, reference: Array) -> T:
    """Convert leaves that are numbers or lists to arrays with the library, dtype and device of `reference`."""
    xp = backend_of(reference).xp
    given = {name: x for name, x in leaves(model).items() if isinstance(x, (numbers.Real, list, tuple))}
    new = {name: float(x) if isinstance(x, numbers.Real) else x for name, x in given.items()}
    return with_leaves(model, {name: xp.asarray(x, **like(reference)) for name, x in new.items()})


def place_host_arrays(model: T, reference: Array) -> T:
    """Convert leaves that are NumPy arrays to the library, dtype and device of `reference`, as `to_backend` does.

    Whole numbers among constants, such as numbers of rows, keep their dtype. Nothing changes beside lazy arrays.
    """
    there = backend_of(reference)
    if there.is_lazy:
        return model
    parameters, new = leaves(model, "parameter"), {}
    for name, x in leaves(model).items():
        B = find_backend(x)
        if B is None or B.name != "numpy" or (there is B and x.dtype == reference.dtype):
            continue
        whole = B.xp.isdtype(x.dtype, ("integral", "bool"))
        if not (whole and there is B) or name in parameters:
            new[name] = asarray_like(B.xp.astype(x, B.xp.float64) if whole and name in parameters else x, reference)
    return with_leaves(model, new) if new else model


def copy_array(x: Array) -> Array:
    """Return a row-major copy of an array, independent of the original; dask arrays are returned unchanged."""
    B = backend_of(x)
    if B.is_lazy:
        return x
    rows = B.row_major(x)
    return B.xp.asarray(x, copy=True) if rows is x else rows


def zero_like(model: Any) -> Array:
    """Return zero as a scalar array with the library, dtype and device of a model's leaves."""
    first = first_leaf(model)
    return backend_of(first).xp.zeros((), **like(first))


def first_leaf(model: Any) -> Array:
    """Return the first leaf of a model. All leaves have the same library, dtype and device."""
    return next(iter(leaves(model).values()))


def constant_data(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays as constants for automatic differentiation."""
    return tuple(backend_of(x).stop_gradient(x) for x in arrays)


def detach(model: T) -> T:
    """Return the model with row-major leaves that are constants for automatic differentiation."""
    constants = {name: backend_of(x).stop_gradient(x) for name, x in leaves(model).items()}
    return with_leaves(model, row_major(constants))


def make_contiguous(model: T, states: Sequence[Any] = ()) -> tuple[T, list[Any]]:
    """Return the model and the states with row-major arrays, as if they had been loaded from a file."""
    held = leaves(model)
    found = row_major({"": held, **dict(enumerate(states))})
    moved = {name: x for name, x in found.pop("").items() if x is not held[name]}
    return with_leaves(model, moved) if moved else model, list(found.values())


def row_major(x: Any) -> Any:
    """Make an array, or all arrays in nested dictionaries, row-major; other objects are returned unchanged."""
    if not isinstance(x, dict):
        return row_major({"": x})[""]
    found = dict(x)
    waiting, alike = [found], {}
    while waiting:
        here = waiting.pop()
        for name, part in here.items():
            if isinstance(part, dict):
                here[name] = inner = dict(part)
                waiting.append(inner)
            else:
                alike.setdefault(type(part), []).append((here, name))
    for places in alike.values():
        arrays = []
        for here, name in places:
            arrays.append(here[name])  # a loop is faster than a comprehension here
        try:
            B = backend_of(arrays[0])
        except TypeError:  # a state may contain objects that are not arrays
            continue
        for (here, name), array in zip(places, B.row_major_each(arrays), strict=True):
            here[name] = array
    return found


def to_backend(x: T, name: str, *, dtype: Any = None, device: str | None = None) -> T:
    """Copy an array or a model to another array library, device or floating-point type.

    The result is a constant: gradients do not flow through the copy. Inside a program that torch or JAX differentiates,
    use the library's own conversions, such as ``X.to(torch.float64)`` or ``X.astype("float64")``.

    Parameters
    ----------
    x
        An array of any supported library, a model of such arrays, a number, or nested lists of numbers.
    name
        The name of a backend, as listed by the shell command ``agp backends``.
    dtype
        "float64" or "float32", or the corresponding dtype of any library. By default, each array keeps its dtype,
        except for bfloat16, which becomes float32, because NumPy has no bfloat16. Integers in a model, such as numbers
        of rows, are not changed.
    device
        A device of that backend. By default, the library chooses the device.

    Raises
    ------
    TypeError, ValueError
        If x is of an unsupported type, the dtype is not float64 or float32, or the backend has no such device. The
        message lists the devices of the backend.
    agp.errors.BackendError
        If the backend is unknown or not installed.

    Examples
    --------
    Numbers become an array. A model in single precision takes inputs in single precision.

    >>> import numpy as np
    >>> import agp
    >>> agp.to_backend([[1, 2], [3, 4]], "numpy", dtype="float64")
    array([[1., 2.],
           [3., 4.]])
    >>> X = np.asarray([[0.0], [1.0], [2.0]])
    >>> model = agp.to_backend(agp.GPR.from_data(X, np.sin(X)), "numpy", dtype="float32")
    >>> model.predict_mean(agp.to_backend(X, "numpy", dtype="float32")).dtype.name
    'float32'
    """
    B, dtype = get_backend(name), _float_name(dtype)
    if is_model(x):
        here = {k: to_numpy(v) for k, v in leaves(x).items() if not backend_of(v).is_lazy}
        dtypes = {k: dtype if v.dtype.kind == "f" else None for k, v in here.items()}
        return with_leaves(x, {k: B.from_numpy(v, dtype=dtypes[k], device=device) for k, v in here.items()})
    if isinstance(x, (int, float, list, tuple)):
        return B.from_numpy(get_backend("numpy").from_numpy(x), dtype=dtype, device=device)
    check_array_type("x", x)
    return B.from_numpy(to_numpy(x), dtype=dtype, device=device)


def _float_name(dtype: Any) -> str | None:
    """Return the name of a dtype, given as a string or as an object of any library, such as ``torch.float64``."""
    name = dtype if isinstance(dtype, str) else str(dtype).rpartition(".")[2].rstrip("'>")
    if dtype is not None and name not in ("float64", "float32"):
        raise ValueError(f"dtype is {dtype!r}, but must be 'float64' or 'float32'.")
    return None if dtype is None else name
