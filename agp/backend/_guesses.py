"""Decisions that nearly always turn out the same way, taken for granted and checked together.

Where an array lies on a device, the host that asks for a number waits until everything before it is computed, and the
device then waits for the host. So inside a `guessing` block a decision whose outcome is likely is taken without a look;
what would have been looked at is kept, and the caller looks at all of it in one transfer, or starts anew. While work is
recorded for a device (`Backend.capture`) there is nothing to look at at all: such a block is blind.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from agp.errors import BackendError

__all__ = ["guessed", "guessing"]

_guesses: ContextVar[list[Any] | None] = ContextVar("guesses", default=None)
_blind: ContextVar[bool] = ContextVar("blind", default=False)


@contextlib.contextmanager
def guessing(guesses: list[Any] | None, *, blind: bool = False) -> Iterator[list[Any] | None]:
    """Inside, append to the list what must turn out true, 0-d, for the decisions to be right; None guesses nothing.

    In a blind block a decision that nobody can foresee is a BackendError.
    """
    tokens = _guesses.set(guesses), _blind.set(blind)
    try:
        yield guesses
    finally:
        _guesses.reset(tokens[0])
        _blind.reset(tokens[1])


def guessed(predicate: Any, /, likely: bool | None) -> bool:
    """Whether a 0-d predicate holds: what is likely, inside a `guessing` block, and else what it says."""
    guesses = _guesses.get()
    if likely is None and _blind.get():
        msg = "how it goes on depends on a number of the device that nobody can foresee."
        raise BackendError(msg)
    if guesses is None or likely is None:
        return bool(predicate)
    guesses.append(predicate if likely else ~predicate)
    return likely
