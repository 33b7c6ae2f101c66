"""Copies of models with other leaves or nodes, and gradients in the structure of a model."""

from collections.abc import Mapping
from typing import Any, TypeVar

from agp.backend import Array
from agp.tree._fields import fields_of, is_branch, is_gradient, is_model, made
from agp.tree._walks import leaves

__all__ = ["add", "cotangent", "filled", "join", "replaced", "split", "with_leaves"]

T = TypeVar("T")


def replaced(model: T, new: Mapping[str, Any], /) -> T:
    """A copy of the model in which the nodes at these paths are others; the empty path is the model itself."""
    if "" in new:
        return new[""]
    return _replaced(model, new, "")


def _replaced(x: Any, new: Mapping[str, Any], path: str) -> Any:
    if path in new:
        return new[path]
    inside = f"{path}." if path else ""
    if not any(name.startswith(inside) for name in new):
        return x
    if isinstance(x, tuple):
        return tuple(_replaced(part, new, f"{path}.{i}") for i, part in enumerate(x))
    values = dict(vars(x))
    for field in fields_of(x):
        if field.role is None and is_branch(values[field.name]):
            values[field.name] = _replaced(values[field.name], new, inside + field.name)
    return made(type(x), values)


def with_leaves(model: T, new: Mapping[str, Array]) -> T:
    """A copy of the model in which the named leaves are replaced; no constructor runs and nothing is checked.

    Raises
    ------
    KeyError
        If the model has no leaf of such a name (its names are listed).
    """
    seen: set[str] = set()
    out = _rebuild(model, new, "", seen)
    if len(seen) < len(new):
        msg = f"no leaf named {', '.join(sorted(set(new) - seen))}; the leaves are {', '.join(leaves(model))}."
        raise KeyError(msg)
    return out


def _rebuild(x: Any, new: Mapping[str, Array], prefix: str, seen: set[str]) -> Any:
    if isinstance(x, tuple):
        parts = ((f"{prefix}{i}.", part) for i, part in enumerate(x))
        return tuple(None if part is None else _rebuild(part, new, path, seen) for path, part in parts)
    values = dict(vars(x))
    for field in fields_of(x):
        path = prefix + field.name
        if field.role is None:
            if is_branch(values[field.name]):
                values[field.name] = _rebuild(values[field.name], new, path + ".", seen)
        elif path in new:
            seen.add(path)
            values[field.name] = new[path]
    return made(type(x), values)


def filled(model: T, **start: Any) -> T:
    """A copy of the model in which the named fields that are None have these values."""
    values = {field.name: getattr(model, field.name) for field in fields_of(model)}
    return made(type(model), values | {name: x for name, x in start.items() if values[name] is None})


def split(model: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The fields that hold arrays or models, in order, and their names with the settings: what a plug-in registers."""
    fields = [(field, getattr(model, field.name)) for field in fields_of(model)]
    inside = [(field.name, x) for field, x in fields if field.role is not None or is_gradient(x)]
    names = tuple(name for name, _ in inside)
    settings = tuple((field.name, x) for field, x in fields if field.name not in names)
    return tuple(x for _, x in inside), (names, settings)


def join(cls: type[T], structure: tuple[Any, ...], parts: tuple[Any, ...]) -> T:
    """The inverse of `split` for a model of that class."""
    names, settings = structure
    return made(cls, dict(settings) | dict(zip(names, parts, strict=True)))


def cotangent(model: T, **bars: Any) -> T:
    """A gradient of the model's class: the named fields, None (no gradient) in all others; settings are kept."""
    values = dict(vars(model))
    for name, role, *_ in fields_of(model):
        if role is not None or is_branch(values[name]):
            values[name] = None
    if not bars.keys() <= values.keys():
        msg = f"{type(model).__name__} has no field {', '.join(sorted(bars.keys() - values.keys()))}."
        raise TypeError(msg)
    values.update(bars)
    return made(type(model), values)


def add(a: Any, b: Any) -> Any:
    """A + b for arrays, models and tuples of them; None is zero."""
    if a is None or b is None:
        return b if a is None else a
    if is_model(a):
        sums, others = dict(vars(a)), vars(b)
        for f in fields_of(a):
            x, y = sums[f.name], others[f.name]
            if y is not None and (f.role is not None or is_gradient(x)):
                sums[f.name] = y if x is None else add(x, y)
        return made(type(a), sums)
    if isinstance(a, tuple):
        parts = [add(x, y) for x, y in zip(a, b, strict=True)]
        return type(a)(*parts) if hasattr(a, "_fields") else tuple(parts)
    return a + b
