"""What every public prediction does besides predicting."""

from collections.abc import Callable
from typing import Any, TypeVar

from agp.entrances import entrance
from agp.host import overflow_is_judged, underflow_is_zero
from agp.repairs import counted

__all__ = ["public"]

F = TypeVar("F", bound=Callable[..., Any])


def public(f: F) -> F:
    """Decorator: run in the context of the arrays, with NumPy's error state set, and warn of all repairs at once."""
    return counted(entrance(underflow_is_zero(overflow_is_judged(f))))  # type: ignore[return-value]
