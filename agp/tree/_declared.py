"""The decorator of model classes, and the functions that declare their fields."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

from agp.errors import explain_arguments
from agp.tree._constraints import POSITIVE, REAL, Constraint
from agp.tree._fields import FIELDS, WATCHERS, Field
from agp.tree._text import text_of

T = TypeVar("T")


def param(
    constraint: Constraint = REAL,
    default: Any = dataclasses.MISSING,
    *,
    unit: str | None = None,
    optional: bool = False,
) -> Any:
    """Declare a parameter. Training changes the parameter through its unconstrained form.

    Parameters
    ----------
    constraint
        The constraint on the values. If the parameter has a unit, the constraint applies to the values divided by it,
        so that positive multiples of a valid value must also be valid.
    default
        The default value of the field.
    unit
        The name of the field that holds the unit of the values. The same class must declare this field with `unit`.
    optional
        Whether the parameter may remain None.
    """
    return _declare("parameter", constraint, default, unit=unit, optional=optional)


def unit(default: Any = None) -> Any:
    """Declare the unit of a parameter, a positive constant that broadcasts to its shape. The default, None, means 1.

    The unit is a keyword argument of the constructor. `from_data` chooses the unit from the data, such that the
    parameter is of order 1 in this unit. Type checkers recognise the default only in the form ``unit(default=None)``.
    """
    return _declare("constant", POSITIVE, default, is_unit=True, optional=True)


def auxiliary(default: Any = dataclasses.MISSING) -> Any:
    """Declare an auxiliary array, which is part of the model's state and has no gradient."""
    return _declare("auxiliary", REAL, default)


def constant(default: Any = dataclasses.MISSING, *, optional: bool = False) -> Any:
    """Declare a constant array, such as data or a fixed map. The array may remain None if `optional` is True."""
    return _declare("constant", REAL, default, optional=optional)


def ties(default: Any = ()) -> Any:
    """Declare the setting that says which parts of this node are equal: pairs of paths within the node.

    The leaves of the second part of each pair are not parameters. They always have the values of the first part, and
    their cotangents are added to those of the first part. Type checkers recognise the default only in the form
    ``ties(default=())``.
    """
    return dataclasses.field(default=default, kw_only=True, metadata={"agp": (None, REAL, None, False, False, True)})


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
    kw_only = is_unit or dataclasses.MISSING  # MISSING leaves the choice to the class
    return dataclasses.field(default=None if optional else default, metadata=metadata, kw_only=kw_only)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(param, auxiliary, constant, unit, ties))
def model(cls: type[T]) -> type[T]:
    """Turn a class into a model class: a frozen dataclass, compared by identity, whose arrays are named leaves.

    The optional class attribute ``_built_by`` describes how users build an instance. Errors about wrong constructor
    arguments end with this text, in which ``{name}`` stands for the name of the class.

    Raises
    ------
    TypeError
        If the unit of a parameter is not a field declared with `unit`.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)  # type: ignore[assignment]
    cls.__repr__ = text_of  # type: ignore[method-assign]
    explain_arguments(cls, getattr(cls, "_built_by", "").format(name=cls.__name__))
    fields = tuple(Field(f.name, *f.metadata.get("agp", ())) for f in dataclasses.fields(cls))  # type: ignore[arg-type]
    units = {field.name for field in fields if field.is_unit}
    for field in fields:
        if field.unit is not None and field.unit not in units:
            raise TypeError(
                f"{cls.__name__}.{field.name} has the unit {field.unit!r}; declare {field.unit} with tree.unit()."
            )
    FIELDS[cls] = fields
    for watcher in WATCHERS:
        watcher(cls)
    return cls
