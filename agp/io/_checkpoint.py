"""Checkpoints: files that hold nested dictionaries of arrays, and facts that JSON can represent.

The dictionaries are stored as JSON, with each array replaced by its path, which is the array's name in the file.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agp.backend import backend_of, to_numpy
from agp.io._atomic import write_atomically
from agp.io._container import pack, refusing, unpack

KIND = "checkpoint"
REMEDY = "name another file, or remove it to start afresh."


def save_checkpoint(path: str | Path, arrays: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write nested dictionaries of arrays from any library, and facts, to one file. See `write_atomically`.

    Raise a TypeError or ValueError if an array or a fact cannot be stored in a file.
    """
    structure = {"kind": KIND, "version": 1, "arrays": path_layout(arrays), "facts": facts}
    write_atomically(path, pack(arrays_by_path(arrays), structure))


def load_checkpoint(path: str | Path, most: float = math.inf) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the arrays and facts that `save_checkpoint` wrote. The arrays are NumPy arrays.

    Raise a FileError if the file is not a checkpoint, is damaged, cannot be read or has more than `most` bytes.
    """
    with refusing(path, KIND, REMEDY):
        arrays, structure = unpack(path, most)
        if not isinstance(structure, dict) or structure.get("kind") != KIND or structure.get("version") != 1:
            raise ValueError(f"it does not hold a {KIND} of version 1")
        if not isinstance(structure.get("facts"), dict):
            raise ValueError("its structure has no dictionary 'facts'")
        return unflatten_arrays(structure.get("arrays"), arrays), structure["facts"]


# -- nested dictionaries ----------------------------------------------------------------------------------------------


def arrays_by_path(arrays: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Convert nested dictionaries to NumPy arrays by path: ``{"a": {"b": x}}`` becomes ``{"a/b": x}``.

    Raise a TypeError if a value is not an array, or a key is not text.
    """
    found = {}
    for key, value in arrays.items():
        path = _path(prefix, key)
        found |= arrays_by_path(value, f"{path}/") if isinstance(value, dict) else {path: _on_host(path, value)}
    return found


def path_layout(arrays: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Replace each array in nested dictionaries by its path."""
    return {
        key: path_layout(value, f"{_path(prefix, key)}/") if isinstance(value, dict) else _path(prefix, key)
        for key, value in arrays.items()
    }


def unflatten_arrays(layout: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each path in a layout of nested dictionaries by its array.

    Raise a ValueError if the layout is malformed, or does not contain the path of every array exactly once.
    """
    seen: list[str] = []
    out = _unflatten(layout, arrays, seen)
    if not isinstance(layout, dict) or sorted(seen) != sorted(arrays):
        raise ValueError("its structure does not name every array exactly once")
    return out


def _unflatten(layout: Any, arrays: Mapping[str, Any], seen: list[str]) -> Any:
    if isinstance(layout, dict):
        return {key: _unflatten(value, arrays, seen) for key, value in layout.items()}
    if not isinstance(layout, str) or layout not in arrays:
        raise ValueError(f"its structure has {str(layout)[:80]!r} instead of the name of an array")
    seen.append(layout)
    return arrays[layout]


def _path(prefix: str, key: Any) -> str:
    """Append a key to the prefix. Slashes in keys are escaped as in JSON pointers (RFC 6901), to make paths unique."""
    if not isinstance(key, str):
        raise TypeError(f"{prefix}{key!r} cannot be saved: dictionary keys must be text.")
    return prefix + key.replace("~", "~0").replace("/", "~1")


def _on_host(name: str, x: Any) -> Any:
    try:
        if backend_of(x).is_lazy:
            raise TypeError("its rows are lazy, but a file must contain all rows; save model.predictor() instead.")
        return to_numpy(x)
    except TypeError as error:
        raise TypeError(f"{name} cannot be saved: {error}") from error
