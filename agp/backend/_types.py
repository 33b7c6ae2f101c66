"""Names of the types that the protocol speaks of."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["Array", "ClosedForm", "Pullback"]

Array: TypeAlias = Any
"""An array of any library that follows the standard; its shape stands in the docstring of whatever takes it."""

Pullback: TypeAlias = Callable[..., Any]
"""Maps the cotangents of a function's outputs to the cotangents of its inputs."""

ClosedForm: TypeAlias = Callable[
    [dict[str, Array]], tuple[Array, Callable[[Array, tuple[str, ...]], Mapping[str, Array]]]
]
"""A function of named arrays with its pullback, as `Backend.with_pullback` takes it."""
