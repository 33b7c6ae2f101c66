"""Decisions that nearly always turn out the same way, taken for granted and checked together.

Where an array lies on a device, the host that asks for a number waits until everything before it is computed, and the
device then waits for the host. So inside a `guessing` block a decision whose outcome is likely is taken without a look;
what would have been looked at is kept, and the caller looks at all of it in one transfer, or starts anew.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["guessed", "guessing"]

_guesses: ContextVar[list[Any] | None] = ContextVar("guesses", default=None)


@contextlib.contextmanager
def guessing(guesses: list[Any] | None) -> Iterator[list[Any] | None]:
    """Inside, append to the list what must turn out true, 0-d, for the decisions to be right; None guesses nothing."""
    token = _guesses.set(guesses)
    try:
        yield guesses
    finally:
        _guesses.reset(token)


def guessed(predicate: Any, /, likely: bool | None) -> bool:
    """Whether a 0-d predicate holds: what is likely, inside a `guessing` block, and else what it says."""
    guesses = _guesses.get()
    if guesses is None or likely is None:
        return bool(predicate)
    guesses.append(predicate if likely else ~predicate)
    return likely
