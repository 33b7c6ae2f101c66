"""Whether what a file has for a field is what the class declares there."""

import types
import typing
from functools import cache
from typing import Any

from agp.io._classes import is_own

__all__ = ["declared", "fits"]


@cache
def declared(cls: type) -> dict[str, Any]:
    """The annotations of one of agp's own classes, resolved."""
    return typing.get_type_hints(cls)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value restored from a file is one of the declared type.

    Whole numbers will do for floats and the other way round. Objects of users' classes are what they say.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is typing.Literal:
        return any(type(value) is type(one) and value == one for one in args)
    if origin is tuple:
        return _is_tuple_of(value, args)
    if hint is None:
        return value is None
    if hint in (int, float):
        return type(value) in (int, float) and (hint is float or value == value // 1)
    if hint is Any or not isinstance(hint, type):  # or something that is not looked into
        return True
    return isinstance(value, hint) or _is_foreign(value)


def _is_tuple_of(value: Any, args: tuple[Any, ...]) -> bool:
    if not isinstance(value, tuple):
        return False
    if args[1:] == (...,):
        return all(fits(part, args[0]) for part in value)
    return len(value) == len(args) and all(fits(part, one) for part, one in zip(value, args, strict=True))


def _is_foreign(value: Any) -> bool:
    """Whether an object of a user's class."""
    return type(value).__module__ != "builtins" and not is_own(type(value))
