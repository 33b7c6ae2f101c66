"""Text representations of models."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from agp.backend import Array, backend_of, to_numpy
from agp.tree._fields import NO_ARRAY, Field, fields_of, is_branch, is_model
from agp.tree._plans import join_path
from agp.tree._walks import nodes

MAX_NUMBERS = 8
"""Leaves with at most this many entries are printed in full. For larger leaves, only dtype and shape are printed."""


def outline(model: Any) -> str:
    """Return the classes and settings of a model, and the dtypes and shapes of its leaves, as text."""
    return _text(model, _shape, lambda *_: False)


def text_of(self: Any) -> str:
    """Return the classes and leaves of a model and its settings other than the defaults, as text.

    Entries are shown of small leaves only, and leaves without a value are left out.
    """
    return _text(self, _numbers, _is_usual)


def settings(model: Any) -> dict[str, str]:
    """Return everything in a model except its arrays, as text: the class of each node and the value of each setting.

    The keys are paths, such as ``process.kernel`` and ``process.jitter``.
    """
    entries: dict[str, str] = {}
    for path, node in nodes(model, object).items():
        entries[path] = type(node).__name__
        for field in fields_of(node):
            value = getattr(node, field.name)
            if field.role is None and not is_branch(value):
                entries[join_path(path, field.name)] = repr(value)
    return entries


def structure(x: Any) -> str:
    """Return the classes of a model and its parts, and the settings that differ from the defaults, as text."""
    if not is_model(x):
        return f"({', '.join(map(structure, x))})" if isinstance(x, tuple) else repr(x)
    usual, inside = {field.name: field.default for field in dataclasses.fields(x)}, []
    for field in fields_of(x):
        value = getattr(x, field.name)
        if field.role is not None:
            continue
        if is_branch(value):
            inside += map(structure, value if isinstance(value, tuple) else (value,))
        elif value != usual[field.name]:
            inside.append(f"{field.name}={value!r}")
    return type(x).__name__ + (f"({', '.join(inside)})" if inside else "")


def _is_usual(field: Field, value: Any, usual: Any) -> bool:
    """Whether a setting, which is no model, has its default, or a leaf has no value by default."""
    if field.role is not None:
        return value is None and usual is None
    return type(value) is type(usual) and not is_branch(value) and value == usual


def _text(x: Any, shown: Callable[[Any], str], omitted: Callable[[Field, Any, Any], bool]) -> str:
    if isinstance(x, tuple):
        return f"({', '.join(_text(part, shown, omitted) for part in x)}{',' if len(x) == 1 else ''})"
    if not is_model(x):
        return repr(x)
    usual, parts = {field.name: field.default for field in dataclasses.fields(x)}, []
    for field in fields_of(x):
        value = getattr(x, field.name)
        if (field.holds_ties and not value) or omitted(field, value, usual[field.name]):
            continue
        if field.role is None:
            text = _text(value, shown, omitted) if is_branch(value) else repr(value)
        elif field.is_unit:
            continue
        else:
            text = shown(value) if type(value) not in NO_ARRAY else repr(value)
        parts.append(f"{field.name}={text}")
    return f"{type(x).__name__}({', '.join(parts)})"


def _shape(x: Array) -> str:
    return f"{str(x.dtype).rpartition('.')[2]}{list(x.shape)}"


def _numbers(x: Array) -> str:
    if not backend_of(x).is_concrete(x) or math.prod(x.shape) > MAX_NUMBERS:
        return _shape(x)
    return _format_number(to_numpy(x).tolist())


def _format_number(x: Any) -> str:
    if isinstance(x, list):
        return f"[{', '.join(map(_format_number, x))}]"
    return f"{x:.6g}" if isinstance(x, float) else repr(x)
