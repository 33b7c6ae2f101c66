"""What files hold beside models: things with a model inside, of rooms above this one."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["KIND", "REMEDY", "Kind", "Stored", "kind_named", "kind_of", "kinds", "register_kind"]

KIND = "model"
"""What stands for itself."""
REMEDY = "name another file."
HOMES = {"estimator": "agp.estimators"}
"""The rooms that register further kinds; a room is loaded when a file of its kind is met."""


class Stored(NamedTuple):
    """What a file with a model holds."""

    model: Any
    kind: str
    """What the model is part of: "model" where it stands for itself."""
    facts: Mapping[str, Any]
    """What was written beside it: text, numbers, lists and dictionaries."""
    parts: Mapping[str, Any]
    """Further models, or parts of models, by name."""
    arrays: Mapping[str, Any]
    """Further arrays of NumPy, by name."""


class Kind(NamedTuple):
    """How things with a model inside are written and read."""

    cls: type
    taken_apart: Callable[[Any], Stored]
    put_together: Callable[[Stored, Mapping[str, str | None]], Any]
    """From what a file holds, and the backend, device and dtype that were asked for."""


_KINDS: dict[str, Kind] = {}


def register_kind(name: str, kind: Kind) -> None:
    """Let `agp.save` and `agp.load` know of a kind of `HOMES`."""
    _KINDS[name] = kind


def kinds() -> tuple[str, ...]:
    """The kinds that files can have."""
    return KIND, *HOMES


def kind_of(x: Any) -> Kind | None:
    """The kind of a thing; None for models, and for what is none of them."""
    return next((kind for kind in _KINDS.values() if isinstance(x, kind.cls)), None)


def kind_named(name: str, path: str | Path) -> Kind:
    """The kind of that name, its room loaded. ImportError, naming the extra, if the room needs what is missing."""
    try:
        importlib.import_module(HOMES[name])
    except ImportError as error:
        msg = f"{path} holds an {name}: {error}"
        raise ImportError(msg) from error
    return _KINDS[name]
