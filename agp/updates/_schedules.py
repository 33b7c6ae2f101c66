"""Learning rates as functions of the count of steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from agp.backend import Array, backend_of

__all__ = ["Rate", "delayed", "rate_at"]

Rate: TypeAlias = float | Callable[[Array], Array]
"""A learning rate, or a function of the 0-d count of earlier steps that gives one."""


@dataclass(frozen=True)
class delayed:  # noqa: N801 - reads as the function that it is
    """Zero for the first `start` steps, then the rate: what it drives stays frozen for a while."""

    rate: float
    start: int

    def __call__(self, count: Array, /) -> Array:
        """The rate after `count` steps, 0-d."""
        xp = backend_of(count).xp
        return xp.where(count >= self.start, xp.full_like(count, self.rate), xp.zeros_like(count))


def rate_at(rate: Rate, count: Array) -> Array | float:
    """The learning rate after `count` steps."""
    return rate(count) if callable(rate) else rate
