"""The classes that files of models name: agp's own by their public names, others where the user hands them over."""

import dataclasses
import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from agp import actions, inducing, kernels, likelihoods, means, models, posteriors, predictors, priors, processes, tree
from agp.errors import FileError

__all__ = ["class_named", "is_own", "known_classes", "name_of"]

ROOMS = (actions, inducing, kernels, likelihoods, means, models, posteriors, predictors, priors, processes)
"""Where the parts of models are."""
NO_PARTS = (kernels.Features, kernels.Waves, predictors.FunctionSamples)
"""What models make, and files do not hold."""


@cache
def _own_classes() -> dict[str, type]:
    """Every class of these rooms that can be a part of a model, by its name there, such as ``agp.kernels.RBF``."""
    named = {f"{room.__name__}.{name}": x for room in ROOMS for name, x in vars(room).items() if _is_part(room, x)}
    return named | {f"agp.posteriors.{cls.__name__}": cls for cls in posteriors.FACTORS}


def _is_part(room: Any, cls: Any) -> bool:
    if not isinstance(cls, type) or inspect.isabstract(cls) or cls in NO_PARTS:
        return False
    if not cls.__module__.startswith(room.__name__):  # the room imports it
        return False
    return tree.is_model_class(cls) or (issubclass(cls, priors.Prior) and dataclasses.is_dataclass(cls))


@cache
def _own_names() -> dict[type, str]:
    return {cls: name for name, cls in _own_classes().items()}


def is_own(cls: type) -> bool:
    """Whether the class is one of agp's."""
    return cls in _own_names()


def name_of(cls: type) -> str:
    """The name of a class in files: the public one of agp's own, ``module:name`` of others.

    Raises
    ------
    TypeError
        If the class is private to agp.
    """
    if is_own(cls):
        return _own_names()[cls]
    if cls.__module__.partition(".")[0] == "agp":
        msg = f"{cls.__module__}.{cls.__qualname__} is private to agp, and no file names it"
        raise TypeError(msg)
    return f"{cls.__module__}:{cls.__qualname__}"


def known_classes(classes: Iterable[type]) -> dict[str, type]:
    """The classes that a file may name, by name: agp's own, and these.

    Raises
    ------
    TypeError
        If one of them is no class of a model, and no dataclass.
    """
    if isinstance(classes, type):
        msg = f"classes is {classes.__name__}, but must be a tuple of classes; write classes=({classes.__name__},)."
        raise TypeError(msg)
    others = tuple(classes)
    for cls in others:
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
            msg = f"classes has {cls!r}, which is no class of a part of a model; decorate such with @agp.tree.model."
            raise TypeError(msg)
        if any(tree.is_model_class(base) for base in cls.__mro__) and not tree.is_model_class(cls):
            msg = f"{cls.__name__} inherits from a model but is none; decorate it with @agp.tree.model."
            raise TypeError(msg)
    return {name_of(cls): cls for cls in others} | _own_classes()


def class_named(name: Any, known: dict[str, type], path: str | Path) -> type:
    """The class of that name; one of the user's that has moved to another module is found by the rest of its name.

    Raises
    ------
    agp.errors.FileError
        If there is none, or more than one.
    """
    if not isinstance(name, str):
        msg = f"its structure has {name!r:.80} where the name of a class belongs"
        raise TypeError(msg)
    if name in known:
        return known[name]
    module, _, inside = name.rpartition(":")
    found = {cls for other, cls in known.items() if module and other.rpartition(":")[2] == inside and not is_own(cls)}
    if len(found) == 1:
        return found.pop()
    where = f"{path} has a part of the class {name.replace(':', '.'):.200}"
    if not module:
        msg = f"{where}, which this version of agp does not have; upgrade agp to read it."
    else:
        hint = "several of that name are given, but none of that module; give one" if found else "hand it over"
        msg = f"{where}, which is not known here; {hint}: agp.load(..., classes=({inside:.80},))."
    raise FileError(msg)
