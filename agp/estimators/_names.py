"""Names of columns in files. Names that are not text, such as numbers, tuples and dates, are stored with their type."""

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

BY_NAME = ("kinds", "levels", "orders", "styles", "ranges", "truths", "effects")
"""The entries of the state of an encoder whose keys are names of columns."""


def with_coded_names(state: dict[str, Any], left_out: Iterable[Any]) -> dict[str, Any]:
    """Return the state of an encoder for a file, in which numbers replace names of columns unless all are text.

    Raise TypeError if a name cannot be stored.
    """
    names = [*state["kinds"], *left_out]
    if all(isinstance(name, str) for name in names):
        return state
    codes = {name: str(i) for i, name in enumerate(names)}
    coded = {entry: {codes[name]: value for name, value in state[entry].items()} for entry in BY_NAME}
    return {**state, **coded, "names": [_encode(name) for name in names]}


def with_names(state: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the state of an encoder with the names of its columns, and the names of columns that are left out.

    The second part is empty if all names are text. Raise LookupError, TypeError or ValueError if the state is damaged.
    """
    if "names" not in state:
        return dict(state), []
    names = [_decode(name) for name in state["names"]]
    if len({*names}) != len(names):
        raise ValueError("some names of its columns are repeated")
    codes = {str(i): name for i, name in enumerate(names)}
    named = {entry: {codes[code]: value for code, value in state.get(entry, {}).items()} for entry in BY_NAME}
    return {**state, **named}, names[len(named["kinds"]) :]


def _encode(name: Any) -> list[Any]:
    """Return the type and the value of a name."""
    value = name.item() if isinstance(name, np.generic) else name
    if isinstance(value, tuple):
        return ["tuple", [_encode(part) for part in value]]
    if type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value)):
        return [type(value).__name__, value]
    if isinstance(value, dt.datetime) and dt.datetime.fromisoformat(value.isoformat()[:32]) == value:
        return ["datetime", value.isoformat()]
    if type(value) is dt.date:
        return ["date", value.isoformat()]
    raise TypeError(
        f"the table has a column named {name!r:.80}, which cannot be stored; use text as column names, and fit again."
    )


def _decode(found: Any) -> Any:
    """Return the name that `_encode` stored. Raise TypeError or ValueError if it is none."""
    kind, value = found
    plain = {"str": str, "int": int, "bool": bool, "float": float}
    if kind == "tuple" and isinstance(value, list):
        return tuple(_decode(part) for part in value)
    if kind in plain and type(value) is plain[kind]:
        return value
    if kind == "datetime":
        return dt.datetime.fromisoformat(value)
    if kind == "date":
        return dt.date.fromisoformat(value)
    raise ValueError(f"it has {str(found)[:80]} instead of the name of a column")
