"""Control flow: branches and loops, which a tracing library keeps on the device, and speculation about predicates.

Where arrays are on a device, the host that reads a number waits until everything before it is computed, and the device
then waits for the host. Inside a `guessing` block, a decision with a likely outcome is therefore taken without reading
its predicate. The predicates are kept; the caller reads all of them in one transfer, and starts again if one was wrong.
While work is recorded for a device (`Backend.capture`), nothing can be read at all: such a block is blind.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from agp.backend._library import Library
from agp.backend._types import Array
from agp.errors import BackendError

__all__ = ["ControlFlow", "guessed", "guessing"]

_guesses: ContextVar[list[Any] | None] = ContextVar("guesses", default=None)
_blind: ContextVar[bool] = ContextVar("blind", default=False)


@contextlib.contextmanager
def guessing(guesses: list[Any] | None, *, blind: bool = False) -> Iterator[list[Any] | None]:
    """Inside, assume likely outcomes, and append to the list the 0-d predicates that must hold; None assumes nothing.

    In a blind block, a decision without a likely outcome is a BackendError.
    """
    tokens = _guesses.set(guesses), _blind.set(blind)
    try:
        yield guesses
    finally:
        _guesses.reset(tokens[0])
        _blind.reset(tokens[1])


def guessed(predicate: Any, /, likely: bool | None) -> bool:
    """The value of a 0-d predicate: the likely one inside a `guessing` block, otherwise the one read from a device."""
    guesses = _guesses.get()
    if likely is None and _blind.get():
        msg = "control flow depends on a number on the device that has no likely outcome."
        raise BackendError(msg)
    if guesses is None or likely is None:
        return bool(predicate)
    guesses.append(predicate if likely else ~predicate)
    return likely


class ControlFlow(Library):
    """Branches, loops and compilation, as an eager library has them."""

    # What is reported to `agp.repairs` inside a transformation belongs to its trace: a library that traces hands it
    # out beside the results, and reports it again outside.

    def cond(
        self,
        predicate: Array,
        if_true: Callable[[], Any],
        if_false: Callable[[], Any],
        /,
        *,
        likely: bool | None = None,
    ) -> Any:
        """`if_true()` where the 0-d predicate holds, else `if_false()`; both give the same shapes.

        `likely` says how the predicate nearly always turns out: that may be taken for granted, and checked later
        (`agp.backend.guessed`).
        """
        return if_true() if guessed(predicate, likely) else if_false()

    def while_loop(
        self,
        condition: Callable[..., Array],
        body: Callable[..., tuple[Any, ...]],
        carry: tuple[Any, ...],
        /,
        *,
        at_least: int = 0,
        at_most: float = float("inf"),
        look_every: int = 1,
        likely_enough: bool = False,
    ) -> tuple[Any, ...]:
        """Repeat `carry = body(*carry)` while `condition(*carry)`; never differentiated.

        `at_least` and `at_most` tell how often the condition is known to hold: it need not be looked at then. With
        `look_every` it is looked at once in so many times where that makes the host wait for a device; the body must
        then change nothing that matters once the condition does not hold. `likely_enough` says that the condition
        nearly never holds more often than `at_least`: that may be taken for granted (`agp.backend.guessed`).
        """
        for _ in range(at_least):
            carry = body(*carry)
        if likely_enough and guessed(~condition(*carry), likely=True):
            return carry
        done, at_once = at_least, look_every if self.reading_waits(carry[0]) else 1
        while done < at_most and guessed(condition(*carry), likely=None):
            several = int(min(at_once, at_most - done))
            for _ in range(several):
                carry = body(*carry)
            done += several
        return carry

    def repeat(self, f: Callable, carry: Any, rows: Any, count: Array, /) -> tuple[Any, dict[str, Array]]:
        """What `f` makes of the carry, row after row, and what it has logged; never differentiated.

        Parameters
        ----------
        f
            ``f(carry, row) -> (carry, logged)``, where `logged` holds 0-d arrays by name.
        carry
            A tuple of models, arrays, and lists, tuples and dictionaries of them.
        rows
            Arrays [K, ...], and None, in tuples and dictionaries; a row has the same structure with arrays [...].
        count
            How many rows to take, 0-d, at most K.

        Returns
        -------
        carry
        logged
            Arrays [K], or [count] where that can be read.

        Raises
        ------
        BackendError
            Where there are no loops on the device.
        """
        msg = f"backend {self.name!r} compiles no loops; take the steps one by one."
        raise BackendError(msg)

    def compile(self, f: Callable, /) -> Callable:
        """f, compiled where the library can do so and get the same numbers."""
        return f
