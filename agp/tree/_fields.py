"""The registry of model classes and their fields, and functions that recognise models."""

from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple, TypeVar

from agp.tree._constraints import REAL, Constraint

T = TypeVar("T")


class Field(NamedTuple):
    """A field of a model class. With a role, it holds an array; otherwise, it holds a setting or models."""

    name: str
    role: str | None = None
    constraint: Constraint = REAL
    unit: str | None = None
    """The name of the field that holds the unit, or None."""
    is_unit: bool = False
    optional: bool = False
    holds_ties: bool = False


FIELDS: dict[type, tuple[Field, ...]] = {}
"""The fields of every model class."""
WATCHERS: list[Callable[[type], None]] = []
"""Functions to call with every model class."""
NO_ARRAY = frozenset({NoneType, bool, int, float, list, tuple})
"""Types of leaves that have not been converted to arrays."""


def on_model_class(watcher: Callable[[type], None]) -> None:
    """Call `watcher` with every model class that exists or is defined later.

    Plug-ins use this function to register classes.
    """
    WATCHERS.append(watcher)
    for cls in FIELDS:
        watcher(cls)


def is_model(x: Any) -> bool:
    """Whether x is an instance of a class made by `model`.

    Raises
    ------
    TypeError
        If the class of x inherits from a model class but is not decorated itself. The leaves of such an object would be
        lost.
    """
    cls = type(x)
    if cls in FIELDS:
        return True
    if not FIELDS.keys().isdisjoint(cls.__mro__):
        raise TypeError(
            f"{cls.__name__} inherits from a model but is not a model class; decorate it with @agp.tree.model."
        )
    return False


is_model_class: Callable[[type], bool] = FIELDS.__contains__
"""Whether a class was made by `model`."""


def leaf_fields(cls: type, role: str | None = None, /) -> frozenset[str]:
    """Return the names of a model class's fields that hold arrays, or of those with one role."""
    return frozenset(x.name for x in FIELDS[cls] if (x.role is not None if role is None else x.role == role))


def fields_of(x: Any) -> tuple[Field, ...]:
    """Return the fields of a model in the order of declaration. Raise TypeError if x is not a model."""
    found = FIELDS.get(type(x))
    if found is None and not is_model(x):
        raise TypeError(
            f"{type(x).__module__}.{type(x).__qualname__} is not a model; decorate its class with @agp.tree.model."
        )
    return found or ()


PLAIN = frozenset({NoneType, bool, int, float, str})
"""Common types of settings, which contain no models."""


def is_branch(x: Any) -> bool:
    """Whether x is a model, or a possibly nested tuple that contains a model."""
    kind = type(x)
    if kind in FIELDS or kind in PLAIN:
        return kind in FIELDS
    if isinstance(x, tuple):
        return any(map(is_branch, x))
    if isinstance(x, (list, dict)) and any(map(is_model, x.values() if isinstance(x, dict) else x)):
        raise TypeError(f"a field holds models in a {type(x).__name__}, where their leaves would be lost; use a tuple.")
    return is_model(x)


def is_gradient(x: Any) -> bool:
    """Whether x is a model, None, or a tuple of such objects. In gradients, such objects replace models."""
    return x is None or is_model(x) or (isinstance(x, tuple) and all(map(is_gradient, x)))


def from_fields(cls: type[T], values: dict[str, Any]) -> T:
    """Build an instance that owns this dictionary of field values, without a constructor call and without checks."""
    out = object.__new__(cls)
    object.__setattr__(out, "__dict__", values)  # attributes of frozen dataclasses cannot be set
    return out
