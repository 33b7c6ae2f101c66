"""Nested dictionaries of arrays as a flat dictionary, which files hold, and a layout, which JSON holds."""

from collections.abc import Iterator, Mapping
from typing import Any

from agp.backend import backend_of, to_numpy

__all__ = ["layout", "named_arrays", "nested"]


def named_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arrays (any library) on the host, as NumPy, by path: ``{"a": {"b": x}}`` gives ``{"a/b": x}``.

    Raises
    ------
    TypeError
        If something in the dictionaries is no array, or a key no text.
    """
    return {name: _on_host(name, x) for name, x in _walk(arrays)}


def layout(arrays: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The same dictionaries with the path of each array in its place."""
    return {
        key: layout(value, f"{_path(prefix, key)}/") if isinstance(value, dict) else _path(prefix, key)
        for key, value in arrays.items()
    }


def nested(layout: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dictionaries of a layout.

    Raises
    ------
    ValueError
        If the layout is malformed, or does not name every array once.
    """
    seen: list[str] = []
    out = _placed(layout, arrays, seen)
    if not isinstance(layout, dict) or len(seen) != len(arrays) or len(seen) != len(set(seen)):
        msg = "its structure does not name every array once"
        raise ValueError(msg)
    return out


def _placed(layout: Any, arrays: Mapping[str, Any], seen: list[str]) -> Any:
    if isinstance(layout, dict):
        return {key: _placed(value, arrays, seen) for key, value in layout.items()}
    if not isinstance(layout, str) or layout not in arrays:
        msg = f"its structure has {str(layout)[:80]!r} where the name of an array belongs"
        raise ValueError(msg)
    seen.append(layout)
    return arrays[layout]


def _walk(arrays: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in arrays.items():
        path = _path(prefix, key)
        if isinstance(value, dict):
            yield from _walk(value, path + "/")
        else:
            yield path, value


def _path(prefix: str, key: Any) -> str:
    """Keys joined by slashes, those inside of a key escaped as in JSON pointers (RFC 6901), so that no two agree."""
    if not isinstance(key, str):
        msg = f"{prefix}{key!r} cannot be saved: the keys of dictionaries must be text."
        raise TypeError(msg)
    return prefix + key.replace("~", "~0").replace("/", "~1")


def _on_host(name: str, x: Any) -> Any:
    try:
        if backend_of(x).is_lazy:
            msg = "its rows lie elsewhere, and a file would hold them; save model.predictor(), which predicts alike."
            raise TypeError(msg)
        return to_numpy(x)
    except TypeError as error:
        msg = f"{name} cannot be saved: {error}"
        raise TypeError(msg) from error
