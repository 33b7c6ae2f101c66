"""The decorator of model classes, and the kinds of their fields."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, dataclass_transform

from agp.constraints import POSITIVE, REAL, Constraint
from agp.tree._fields import FIELDS, WATCHERS, Field
from agp.tree._text import text_of

T = TypeVar("T")

_SETTING = (None, REAL, None, False, False)
"""The role and so on of a field that holds no array."""


def param(
    constraint: Constraint = REAL,
    default: Any = dataclasses.MISSING,
    *,
    unit: str | None = None,
    optional: bool = False,
) -> Any:
    """Declare a parameter: trained, in its unconstrained form.

    Parameters
    ----------
    constraint
        The constraint on the values; positive multiples of a value must satisfy it, too.
    default
        The default of the field.
    unit
        The name of a field of the same class, declared with `unit`, that holds the unit of the values.
    optional
        Whether it may remain None.
    """
    return _declare("parameter", constraint, default, unit=unit, optional=optional)


def unit(default: Any = None) -> Any:
    """Declare the unit of a parameter: a positive constant that broadcasts to its shape; None, the default, is 1.

    It is a keyword of the constructor, and `from_data` takes it from the data, so that values in it are of order 1.
    (Type checkers see the default only if it is written: ``unit(default=None)``.)
    """
    return _declare("constant", POSITIVE, default, is_unit=True, optional=True)


def auxiliary(default: Any = dataclasses.MISSING) -> Any:
    """Declare an auxiliary array: part of the state of the model, never differentiated."""
    return _declare("auxiliary", REAL, default)


def constant(default: Any = dataclasses.MISSING, *, optional: bool = False) -> Any:
    """Declare a constant array: data, or a fixed map; an optional one may remain None."""
    return _declare("constant", REAL, default, optional=optional)


def _declare(
    role: str,
    constraint: Constraint,
    default: Any,
    *,
    unit: str | None = None,
    is_unit: bool = False,
    optional: bool = False,
) -> Any:
    metadata = {"agp": (role, constraint, unit, is_unit, optional)}
    kw_only = is_unit or dataclasses.MISSING  # where the class says nothing else
    return dataclasses.field(default=None if optional else default, metadata=metadata, kw_only=kw_only)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(param, auxiliary, constant, unit))
def model(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass, compared by identity, whose arrays are named leaves.

    A class attribute ``_built_by`` may say how users get an instance. It ends the error about arguments that the
    constructor does not take, with the name of the class for ``{name}``.

    Raises
    ------
    TypeError
        If a parameter names a unit that is not a field declared with `unit`.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)  # type: ignore[assignment]
    cls.__repr__ = text_of  # type: ignore[method-assign]
    cls.__init__ = _explained(cls)  # type: ignore[method-assign]
    fields = tuple(Field(f.name, *f.metadata.get("agp", _SETTING)) for f in dataclasses.fields(cls))  # type: ignore[arg-type]
    units = {field.name for field in fields if field.is_unit}
    for field in fields:
        if field.unit is not None and field.unit not in units:
            msg = f"{cls.__name__}.{field.name} has the unit {field.unit!r}; declare that field with tree.unit()."
            raise TypeError(msg)
    FIELDS[cls] = fields
    for watcher in WATCHERS:
        watcher(cls)
    return cls


def _explained(cls: type) -> Callable[..., None]:
    """The constructor of a class, with a remedy in its errors about missing or unknown arguments."""
    init = cls.__init__

    @wraps(init)
    def explained(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            signature = inspect.signature(init)
            try:
                signature.bind(self, *args, **kwargs)
            except TypeError as error:
                fields = ", ".join(list(signature.parameters)[1:])
                remedy = getattr(cls, "_built_by", f"the arguments are {fields}").format(name=cls.__name__)
                msg = f"{cls.__name__}: {error}; {remedy}."
                raise TypeError(msg) from None
            raise

    return explained
