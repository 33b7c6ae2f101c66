"""The arrays of a model: made from numbers, moved, copied, detached from automatic differentiation, row-major."""

import numbers
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from agp.backend import Array, backend_of, check_array_type, get_backend, like, to_numpy
from agp.tree._copies import with_leaves
from agp.tree._fields import is_model
from agp.tree._walks import is_placed, leaves, missing

T = TypeVar("T", bound=Any)

FLOATS = ("float64", "float32")
"""The types that `to_backend` can be asked for."""


def placed(model: T, reference: Array) -> T:
    """The model whose leaves given as numbers or lists are arrays like the reference."""
    xp = backend_of(reference).xp
    given = {name: x for name, x in leaves(model).items() if isinstance(x, (numbers.Real, list, tuple))}
    new = {name: float(x) if isinstance(x, numbers.Real) else x for name, x in given.items()}
    return with_leaves(model, {name: xp.asarray(x, **like(reference)) for name, x in new.items()})


def at_inputs(f: Callable, start: str) -> Callable:
    """Decorator for functions of a kernel or a mean at inputs X that return a value and its pullback.

    Leaves given as numbers become arrays like X; one without a value is a TypeError. A missing pullback becomes one
    that raises, for automatic differentiation needs none. `start` is the call that gives values, for the message.
    """

    @wraps(f)
    def evaluated(self: Any, X: Array, *others: Any) -> Any:
        if not is_placed(self):
            if absent := missing(self):
                name = type(self).__name__
                msg = f"{name} has no {' and no '.join(absent)} yet: give numbers, or {start}."
                raise TypeError(msg)
            self = placed(self, X)
        found = f(self, X, *others)
        if type(found) is tuple and len(found) == 2 and found[1] is not None:
            return found
        value = found[0] if type(found) is tuple and len(found) == 2 else found
        return value, _no_pullback(type(self).__name__)

    return evaluated


def _no_pullback(name: str) -> Callable:
    def pullback(*_: Any) -> Any:
        msg = f'{name} returned no pullback beside its value; return one, or train with gradient="autodiff".'
        raise TypeError(msg)

    return pullback


def copied(x: Array) -> Array:
    """A row-major copy of an array, which the user's later changes do not reach; rows elsewhere are not copied."""
    B = backend_of(x)
    if B.is_lazy:
        return x
    rows = B.row_major(x)
    return B.xp.asarray(x, copy=True) if rows is x else rows


def zero_like(model: Any) -> Array:
    """Zero, 0-d, like the leaves of a model."""
    first = first_leaf(model)
    return backend_of(first).xp.zeros((), **like(first))


def first_leaf(model: Any) -> Array:
    """The first leaf of a model; all leaves share its library, dtype and device."""
    return next(iter(leaves(model).values()))


def constant_data(*arrays: Array) -> tuple[Array, ...]:
    """The arrays as constants for automatic differentiation."""
    return tuple(backend_of(x).stop_gradient(x) for x in arrays)


def detached(model: T) -> T:
    """The model with row-major leaves that are constants for automatic differentiation."""
    constants = {name: backend_of(x).stop_gradient(x) for name, x in leaves(model).items()}
    return with_leaves(model, row_major(constants))


def laid_out(model: T, states: Sequence[Any] = ()) -> tuple[T, list[Any]]:
    """The model and the states with row-major arrays (`agp.backend.Backend.row_major`), as files give them back."""
    held = leaves(model)
    found = row_major({"": held, **dict(enumerate(states))})
    moved = {name: x for name, x in found.pop("").items() if x is not held[name]}
    return with_leaves(model, moved) if moved else model, list(found.values())


def row_major(x: Any) -> Any:
    """The row-major form of an array, or of all arrays in (nested) dictionaries; other objects stay as they are."""
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
            arrays.append(here[name])  # without the frame of a comprehension
        try:
            B = backend_of(arrays[0])
        except TypeError:  # a state may hold other objects
            continue
        for (here, name), array in zip(places, B.row_major_each(arrays), strict=True):
            here[name] = array
    return found


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
        If x is of another type, the dtype is another one, or the backend has no such device (its devices are named).
    agp.errors.BackendError
        If the backend is unknown or not installed.
    """
    B, dtype = get_backend(name), _float_name(dtype)
    if is_model(x):
        here = {k: v for k, v in leaves(x).items() if not backend_of(v).is_lazy}
        moved = {k: B.from_numpy(to_numpy(v), dtype=dtype, device=device) for k, v in here.items()}
        return with_leaves(x, moved)
    if isinstance(x, (int, float, list, tuple)):
        return B.from_numpy(get_backend("numpy").from_numpy(x), dtype=dtype, device=device)
    check_array_type("x", x)
    return B.from_numpy(to_numpy(x), dtype=dtype, device=device)


def _float_name(dtype: Any) -> str | None:
    """The name of a dtype, given by name or as an object of any library: numpy.float32, torch.float64, ..."""
    name = dtype if isinstance(dtype, str) else str(dtype).rpartition(".")[2].rstrip("'>")
    if dtype is not None and name not in FLOATS:
        msg = f"dtype is {dtype!r}, but must be {' or '.join(map(repr, FLOATS))}."
        raise ValueError(msg)
    return None if dtype is None else name
