"""The classes that files of models name, agp's own or the user's, and the types that they declare for their fields."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from agp import actions, inducing, kernels, likelihoods, means, models, posteriors, predictors, priors, processes, tree
from agp.errors import FileError

ROOMS = (actions, inducing, kernels, likelihoods, means, models, posteriors, predictors, priors, processes)
"""Where the classes of parts of models are."""
NO_PARTS = (kernels.Features, kernels.Waves, predictors.FunctionSamples)
"""Results of models, which files do not hold."""


@cache
def _own_classes() -> dict[str, type]:
    """The concrete classes of parts of models, by their public names, such as ``agp.kernels.RBF``."""
    named = {f"{room.__name__}.{name}": x for room in ROOMS for name, x in vars(room).items() if _is_part(room, x)}
    return named | {f"agp.posteriors.{cls.__name__}": cls for cls in posteriors.FACTORS}


def _is_part(room: Any, cls: Any) -> bool:
    if not isinstance(cls, type) or inspect.isabstract(cls) or cls in NO_PARTS:
        return False
    if not cls.__module__.startswith(room.__name__):  # imported from another room
        return False
    return tree.is_model_class(cls) or (issubclass(cls, priors.Prior) and dataclasses.is_dataclass(cls))


@cache
def _own_names() -> dict[type, str]:
    return {cls: name for name, cls in _own_classes().items()}


def is_own(cls: type) -> bool:
    """Whether the class is one of agp's."""
    return cls in _own_names()


def name_of(cls: type) -> str:
    """The name of a class in files: its public name if it is agp's own, else ``module:name``.

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
    """The classes that a file may name, by name: agp's own, and the given ones.

    Raises
    ------
    TypeError
        If one of them is not a model class or a dataclass.
    """
    if isinstance(classes, type):
        msg = f"classes is {classes.__name__}, but must be a tuple of classes; write classes=({classes.__name__},)."
        raise TypeError(msg)
    others = tuple(classes)
    for cls in others:
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
            msg = f"classes has {cls!r}, which is not the class of a part of a model; decorate it with @agp.tree.model."
            raise TypeError(msg)
        if any(tree.is_model_class(base) for base in cls.__mro__) and not tree.is_model_class(cls):
            msg = f"{cls.__name__} inherits from a model but is not a model class; decorate it with @agp.tree.model."
            raise TypeError(msg)
    return {name_of(cls): cls for cls in others} | _own_classes()


def class_named(name: Any, known: dict[str, type], path: str | Path) -> type:
    """The class of that name. A user's class is found without its module, too, if it has moved to another one.

    Raises
    ------
    agp.errors.FileError
        If there is no such class, or more than one.
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


# -- types of fields ---------------------------------------------------------------------------------------------------


@cache
def declared(cls: type) -> dict[str, Any]:
    """The annotations of one of agp's own classes, resolved."""
    return typing.get_type_hints(cls)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value restored from a file has the declared type.

    Whole numbers count as floats and the other way round; objects of users' classes always fit.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is typing.Literal:
        return any(type(value) is type(one) and value == one for one in args)
    if origin is tuple:
        if args[1:] == (...,):
            args = args[:1] * len(value) if isinstance(value, tuple) else ()
        return isinstance(value, tuple) and len(value) == len(args) and all(map(fits, value, args))
    if hint is None:
        return value is None
    if hint in (int, float):
        return type(value) in (int, float) and (hint is float or value == value // 1)
    if hint is Any or not isinstance(hint, type):  # other hints are not checked
        return True
    cls = type(value)
    return isinstance(value, hint) or (cls.__module__ != "builtins" and not is_own(cls))
