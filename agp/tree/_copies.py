"""Copies of models with new leaves or nodes, and gradients with the structure of a model."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from agp.backend import Array
from agp.tree._fields import FIELDS, PLAIN, fields_of, from_fields, is_branch, is_gradient
from agp.tree._plans import plan_of

T = TypeVar("T")


def replace(model: T, new: Mapping[str, Any], /) -> T:
    """Return a copy of the model with new nodes at the given paths. The empty path is the model itself.

    Leaves that are tied to leaves of new nodes change too, unless they are in a new node themselves (`ties`).
    """
    found = _replace(model, new, "")
    plan = plan_of(found) if is_branch(found) else None
    if plan is None or not plan.followers:
        return found
    within = tuple(f"{path}." if path else "" for path in new)
    follow = {x: leader for x, leader in plan.followers.items() if leader.startswith(within) > x.startswith(within)}
    return _with_followers(found, follow)


def _replace(x: Any, new: Mapping[str, Any], path: str) -> Any:
    if path in new:
        return new[path]
    inside = f"{path}." if path else ""
    if not any(name.startswith(inside) for name in new):
        return x
    if isinstance(x, tuple):
        return tuple(_replace(part, new, f"{path}.{i}") for i, part in enumerate(x))
    values = dict(vars(x))
    for field in fields_of(x):
        if field.role is None and is_branch(values[field.name]):
            values[field.name] = _replace(values[field.name], new, inside + field.name)
    return from_fields(type(x), values)


def with_leaves(model: T, new: Mapping[str, Array]) -> T:
    """Return a copy of the model with new values for the named leaves, without a constructor call and without checks.

    Leaves that are tied to them change too, unless they are named (`ties`).

    Raises
    ------
    KeyError
        If the model has no leaf of that name. The message lists the names of all leaves.
    """
    return plan_of(model).with_leaves(model, new)


def equalise(model: T) -> T:
    """Return a copy of the model in which tied leaves have the values of the leaves that they follow.

    Raises
    ------
    ValueError
        If the leaves differ in shape.
    """
    return _with_followers(model, plan_of(model).followers)


def _with_followers(model: T, followers: Mapping[str, str]) -> T:
    """Return a copy in which each of the named leaves has the value of another leaf."""
    if not followers:
        return model
    plan = plan_of(model)
    nodes = plan.nodes(model)
    values = {name: vars(nodes[place])[field.name] for name, place, field in plan.leaves.values()}
    for name, leader in followers.items():
        first, other = (tuple(getattr(values[x], "shape", ())) for x in (leader, name))
        if first != other:
            raise ValueError(
                f"{leader} has the shape {first}, but {name}, a parameter of the same object, has the shape {other}; "
                "use different objects for different columns."
            )
    return plan.with_leaves(model, {name: values[leader] for name, leader in followers.items()})


def with_defaults(model: T, **start: Any) -> T:
    """Return a copy of the model in which the named fields that are None are set to the given values."""
    values = {field.name: getattr(model, field.name) for field in fields_of(model)}
    return from_fields(type(model), values | {name: x for name, x in start.items() if values[name] is None})


def arguments(node: Any, /) -> dict[str, Any]:
    """Return the arguments of a node that users choose: its leaves and settings, without units and nested models."""
    values = vars(node)
    own = (field.name for field in fields_of(node) if not (field.is_unit or field.holds_ties))
    return {name: values[name] for name in own if not is_branch(values[name])}


def with_argument(node: T, name: str, value: Any) -> T:
    """Return a copy of a node with another value of a leaf or a setting. The leaf has no unit, as in a new node."""
    units = {field.unit: None for field in fields_of(node) if field.name == name and field.unit is not None}
    return dataclasses.replace(node, **{name: value}, **units)  # type: ignore[type-var]


def split(model: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split a model into the values of its fields, and a pair of names and settings.

    The values and names are those of the fields that hold arrays or models. The settings are the other fields. Plug-ins
    use this function and `join` to register models as pytrees.
    """
    fields = [(field, getattr(model, field.name)) for field in fields_of(model)]
    inside = [(field.name, x) for field, x in fields if field.role is not None or is_gradient(x)]
    names = tuple(name for name, _ in inside)
    settings = tuple((field.name, x) for field, x in fields if field.name not in names)
    return tuple(x for _, x in inside), (names, settings)


def join(cls: type[T], structure: tuple[Any, ...], parts: tuple[Any, ...]) -> T:
    """Build a model of class `cls` from what `split` returns."""
    names, settings = structure
    return from_fields(cls, dict(settings) | dict(zip(names, parts, strict=True)))


def cotangent(model: T, **bars: Any) -> T:
    """Return a gradient with the settings of the model and the given cotangents; other arrays and parts are None."""
    cls, here = type(model), vars(model)
    blank, _, others = _names_of(cls)
    values = blank.copy()
    for name in others:
        x = here[name]
        if type(x) not in FIELDS and (type(x) in PLAIN or not is_branch(x)):
            values[name] = x
    values.update(bars)
    if len(values) > len(blank):
        raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(bars.keys() - blank.keys()))}.")
    return from_fields(cls, values)


def add(a: Any, b: Any) -> Any:
    """Compute a + b for arrays, models and tuples of them. None counts as zero."""
    if a is None or b is None:
        return b if a is None else a
    if type(a) in FIELDS:
        sums, others = dict(vars(a)), vars(b)
        _, arrays, parts = _names_of(type(a))
        for name in arrays:
            y = others[name]
            if y is not None:
                x = sums[name]
                sums[name] = y if x is None else x + y
        for name in parts:
            x, y = sums[name], others[name]
            if x is None or y is None:
                sums[name] = y if x is None else x
            elif type(x) in FIELDS or (isinstance(x, tuple) and is_gradient(x)):
                sums[name] = add(x, y)
        return from_fields(type(a), sums)
    if isinstance(a, tuple):
        parts = [add(x, y) for x, y in zip(a, b, strict=True)]
        return type(a)(*parts) if hasattr(a, "_fields") else tuple(parts)
    return a + b


@cache
def _names_of(cls: type) -> tuple[dict[str, None], tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a model class as a dictionary of None, the names of arrays, and those of other fields."""
    fields = FIELDS[cls]
    arrays = tuple(field.name for field in fields if field.role is not None)
    return dict.fromkeys(field.name for field in fields), arrays, tuple(x.name for x in fields if x.role is None)
