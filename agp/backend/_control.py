"""Control flow, which a tracing library keeps on the device; speculation about predicates; differentiation.

Where arrays are on a device, the host that reads a number waits until everything before it is computed, and the device
then waits for the host. Inside a `guessing` block, a decision with a likely outcome is therefore taken without reading
its predicate. The predicates are kept; the caller reads all of them in one transfer, and starts again if one was wrong.
While work is recorded for a device (`Backend.capture`), nothing can be read at all: such a block is blind.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from agp.backend._library import Array, ClosedForm, Library
from agp.errors import BackendError

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
    """Branches, loops, compilation and differentiation, for an eager library without automatic differentiation."""

    # Reports to `agp.repairs` inside a transformation belong to its trace: a tracing library returns them with the
    # results, and reports them again outside.

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

        `likely` is the usual value of the predicate, which may be assumed now and verified later (`guessed`).
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

        The condition is known to hold `at_least` and `at_most` so many times, and need not be read then. Where reading
        makes the host wait for a device, it is read every `look_every` iterations; iterations after it has failed must
        not matter. With `likely_enough`, `at_least` iterations nearly always suffice, which may be assumed (`guessed`).
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
        """Apply ``carry, logged = f(carry, row)`` row after row; never differentiated.

        Parameters
        ----------
        f
            ``f(carry, row) -> (carry, logged)``, where `logged` holds 0-d arrays by name.
        carry
            A tuple of models, arrays, and lists, tuples and dictionaries of them.
        rows
            Arrays [K, ...], and None, in tuples and dictionaries; a row has the same structure with arrays [...].
        count
            The number of rows to take, 0-d, at most K.

        Returns
        -------
        carry
        logged
            Arrays [K], or [count] if that can be read.

        Raises
        ------
        BackendError
            Where there are no loops on the device.
        """
        msg = f"backend {self.name!r} compiles no loops; take the steps one by one."
        raise BackendError(msg)

    def compile(self, f: Callable, /) -> Callable:
        """f, compiled if the library can, with the same results."""
        return f

    def asks_gradient(self, x: Array, /) -> bool:
        """Whether the library's automatic differentiation may ask for a gradient with respect to x."""
        return False

    def with_pullback(self, f: ClosedForm, arrays: dict[str, Array], /) -> Array:
        """The value of `f(arrays)`, which the library differentiates by the pullback of f.

        Parameters
        ----------
        f
            ``arrays -> (value, pullback)`` with ``pullback(value_bar, names) -> cotangents``: an array for each name of
            an array whose gradient is needed. The library's own differentiation records neither.
        arrays
            All arrays with possible gradients, by name.

        Raises
        ------
        BackendError
            On torch, for second derivatives.
        """
        return f(arrays)[0]

    def stop_gradient(self, x: Array, /) -> Array:
        """X as a constant for automatic differentiation."""
        return x

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        """f(leaves) and its gradient by automatic differentiation."""
        msg = f"backend {self.name!r} has no automatic differentiation; use gradient='closed-form'."
        raise BackendError(msg)
