"""Models as text."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from agp.backend import Array, backend_of, to_numpy
from agp.tree._fields import NO_ARRAY, fields_of, is_branch, is_model

SHOWN = 8
"""The largest number of entries of a leaf that is printed in full; of others, dtype and shape."""


def outline(model: Any) -> str:
    """The classes and settings of a model, and the dtypes and shapes of its leaves."""
    return _text(model, _shape)


def text_of(self: Any) -> str:
    """The classes, settings and leaves of a model, with the numbers of small leaves."""
    return _text(self, _numbers)


def structure(x: Any) -> str:
    """The classes of a model and its parts, and the settings that are not the defaults, without leaves."""
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


def _text(x: Any, shown: Callable[[Any], str]) -> str:
    if isinstance(x, tuple):
        return f"({', '.join(_text(part, shown) for part in x)}{',' if len(x) == 1 else ''})"
    if x is None or not is_model(x):
        return repr(x)
    parts = []
    for field in fields_of(x):
        value = getattr(x, field.name)
        if field.role is None:
            text = _text(value, shown) if is_branch(value) else repr(value)
        elif field.is_unit:
            continue
        else:
            text = shown(value) if type(value) not in NO_ARRAY else repr(value)
        parts.append(f"{field.name}={text}")
    return f"{type(x).__name__}({', '.join(parts)})"


def _shape(x: Array) -> str:
    return f"{str(x.dtype).rpartition('.')[2]}{list(x.shape)}"


def _numbers(x: Array) -> str:
    if not backend_of(x).is_concrete(x) or math.prod(x.shape) > SHOWN:
        return _shape(x)
    return _rounded(to_numpy(x).tolist())


def _rounded(x: Any) -> str:
    if isinstance(x, list):
        return f"[{', '.join(map(_rounded, x))}]"
    return f"{x:.6g}" if isinstance(x, float) else repr(x)
