"""The classes of agp and of users that model files may contain, and type checks for their fields."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from agp import actions, inducing, kernels, likelihoods, means, models, posteriors, predictors, priors, processes, tree
from agp.errors import FileError

PACKAGES = (actions, inducing, kernels, likelihoods, means, models, posteriors, predictors, priors, processes)
"""The subpackages that define models and their parts."""
NO_PARTS = (kernels.Features, kernels.Waves, predictors.FunctionSamples)
"""Result classes, whose objects cannot be saved."""
SOURCES: list[Callable[[], Iterable[type]]] = []
"""Functions that return further classes, which files may contain without being passed to `agp.load`."""


@cache
def _agp_classes() -> dict[str, type]:
    """Return the concrete classes of models and their parts, by public names such as ``agp.kernels.RBF``."""
    return {
        f"{package.__name__}.{name}": x
        for package in PACKAGES
        for name, x in vars(package).items()
        if _is_part(package, x)
    }


def _is_part(package: Any, cls: Any) -> bool:
    if not isinstance(cls, type) or inspect.isabstract(cls) or cls in NO_PARTS:
        return False
    if not cls.__module__.startswith(package.__name__):  # imported from another subpackage
        return False
    return tree.is_model_class(cls) or (issubclass(cls, priors.Prior) and dataclasses.is_dataclass(cls))


@cache
def _agp_class_names() -> dict[type, str]:
    return {cls: name for name, cls in _agp_classes().items()}


def is_agp_class(cls: type) -> bool:
    """Return True if the class is a public class of agp."""
    return cls in _agp_class_names()


def name_of(cls: type) -> str:
    """Return the name under which files store a class: the public name if it is in agp, otherwise ``module:name``.

    Raise a TypeError if the class is private to agp.
    """
    if is_agp_class(cls):
        return _agp_class_names()[cls]
    if cls.__module__.partition(".")[0] == "agp":
        raise TypeError(f"{cls.__module__}.{cls.__qualname__} is private to agp")
    return f"{cls.__module__}:{cls.__qualname__}"


def known_classes(classes: Iterable[type]) -> dict[str, type]:
    """Return the classes that a file may contain, by name: those of agp, of `SOURCES`, and the given classes.

    Raise a TypeError if a given class is neither a model class nor a dataclass.
    """
    if isinstance(classes, type):
        raise TypeError(
            f"classes is {classes.__name__}, but must be a tuple of classes; write classes=({classes.__name__},)."
        )
    others = (*classes, *(cls for source in SOURCES for cls in source()))
    for cls in others:
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
            raise TypeError(f"classes contains {cls!r}, which is not a model class; decorate it with @agp.tree.model.")
        if any(tree.is_model_class(base) for base in cls.__mro__) and not tree.is_model_class(cls):
            raise TypeError(
                f"{cls.__name__} inherits from a model but is not a model class; decorate it with @agp.tree.model."
            )
    return {name_of(cls): cls for cls in others} | _agp_classes()


def find_class(name: Any, known: dict[str, type], path: str | Path) -> type:
    """Find the class with this name. A user's class is also found if it has moved to another module.

    Raise a FileError if no class or more than one class matches.
    """
    if not isinstance(name, str):
        raise TypeError(f"its structure has {name!r:.80} instead of the name of a class")
    if name in known:
        return known[name]
    module, _, inside = name.rpartition(":")
    found = {
        cls for other, cls in known.items() if module and other.rpartition(":")[2] == inside and not is_agp_class(cls)
    }
    if len(found) == 1:
        return found.pop()
    where = f"{path} has a part of the class {name.replace(':', '.'):.200}"
    if not module:
        msg = f"{where}, which this version of agp does not have; upgrade agp to read it."
    else:
        hint = "pass only one of the classes with this name" if found else "pass it"
        msg = f"{where}, which is not a class of agp; {hint}: agp.load(..., classes=({inside:.80},))."
    raise FileError(msg)


# -- types of fields ---------------------------------------------------------------------------------------------------


resolved_annotations = cache(typing.get_type_hints)
"""Return the resolved annotations of a class of agp."""


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value from a file has the declared type.

    An int counts as a float, and a whole float counts as an int. Objects of users' classes always match.
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
    if hint in (int, float):
        return type(value) in (int, float) and (hint is float or value == value // 1)
    if isinstance(origin, type) and issubclass(origin, typing.Generic):  # such as Posterior[Any]
        hint = origin
    if hint is Any or not isinstance(hint, type):  # other hints are not checked
        return True
    cls = type(value)
    return isinstance(value, hint) or (cls.__module__ != "builtins" and not is_agp_class(cls))
