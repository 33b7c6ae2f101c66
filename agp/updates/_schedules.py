"""Learning rates as functions of the count of steps."""

from collections.abc import Callable
from typing import TypeAlias

from agp.backend import Array, backend_of

__all__ = ["Rate", "delayed", "rate_at"]

Rate: TypeAlias = float | Callable[[Array], Array]
"""A learning rate, or a function of the 0-d count of earlier steps that gives one."""


def delayed(rate: float, start: int) -> Rate:
    """Zero for the first `start` steps, then the rate: what it drives stays frozen for a while."""

    def schedule(count: Array) -> Array:
        xp = backend_of(count).xp
        return xp.where(count >= start, rate + 0.0 * count, 0.0 * count)

    return schedule


def rate_at(rate: Rate, count: Array) -> Array | float:
    """The learning rate after `count` steps."""
    return rate(count) if callable(rate) else rate
