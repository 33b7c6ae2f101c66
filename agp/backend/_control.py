"""Control flow that a tracing library keeps on the device, speculation about predicates, reports and differentiation.

When the host reads a number from a device, it waits for all earlier computations, and the device then waits for the
host. Inside a `speculating` block, a branch with a likely outcome is therefore taken without reading its predicate. The
predicates are stored. The caller reads them in one transfer, and repeats the computation if a prediction was wrong. A
block in which launches are recorded (`Backend.capture`) is called blind, because the host cannot read any number there.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agp.backend._library import Array, ClosedForm, Library
from agp.errors import BackendError


@dataclass
class _Block:
    """A `speculating` block. Copies of the context may outlive it, in a gradient that is computed later."""

    guesses: list[Any]
    blind: bool
    is_open: bool = True


_block: ContextVar[_Block | None] = ContextVar("block", default=None)
_collector: ContextVar[list[Any] | None] = ContextVar("collector", default=None)


@contextlib.contextmanager
def speculating(guesses: list[Any] | None, *, blind: bool = False) -> Iterator[list[Any] | None]:
    """Assume likely outcomes inside the block, and append each assumption to the list `guesses`.

    An assumption is a 0-d predicate that must hold. If `guesses` is None, nothing is assumed. In a blind block, a
    predicate without a likely outcome raises a BackendError.
    """
    block = None if guesses is None else _Block(guesses, blind)
    token = _block.set(block)
    try:
        yield guesses
    finally:
        _block.reset(token)
        if block is not None:
            block.is_open = False


def assume(predicate: Any, /, likely: bool | None) -> bool:
    """Inside a `speculating` block, return the likely value of a 0-d predicate; elsewhere, return its true value."""
    block = _block.get()
    if block is None or not block.is_open or (likely is None and not block.blind):
        return bool(predicate)
    if likely is None:
        raise BackendError(
            "the host cannot read this predicate while it records launches; give the predicate a likely value."
        )
    block.guesses.append(predicate if likely else ~predicate)
    return likely


def current_collector() -> list[Any] | None:
    """The list of the innermost `collect_reports` block, or None outside such blocks."""
    return _collector.get()


@contextlib.contextmanager
def collect_reports(reports: list[Any] | None = None) -> Iterator[list[Any]]:
    """Append the reports made inside the block to a list, instead of issuing warnings.

    The entries are instances of `agp.repairs.Report`. Inside a transformation, they are traced values, so a tracing
    library returns them with the results, and reports them again outside, where `agp.repairs.Tally` reads them.
    """
    reports = [] if reports is None else reports
    token = _collector.set(reports)
    try:
        yield reports
    finally:
        _collector.reset(token)


class ControlFlow(Library):
    """Branches, loops, compilation and differentiation, for an eager library without automatic differentiation."""

    def cond(
        self,
        predicate: Array,
        if_true: Callable[[], Any],
        if_false: Callable[[], Any],
        /,
        *,
        likely: bool | None = None,
    ) -> Any:
        """Return `if_true()` if the 0-d predicate holds, else `if_false()`; both must return the same shapes.

        `likely` is the usual value of the predicate, which may be assumed first and verified later (see `assume`).
        """
        return if_true() if assume(predicate, likely) else if_false()

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
        """Repeat `carry = body(*carry)` while `condition(*carry)` holds; the loop is not differentiable.

        The condition must hold in the first `at_least` iterations and be false after `at_most` iterations. The loop
        reads the condition only between these limits. If reading makes the host wait for a device, the loop reads the
        condition only every `look_every` iterations. Iterations after the condition has become false must not change
        the result. `likely_enough=True` declares that `at_least` iterations nearly always suffice. The loop may then
        stop after `at_least` iterations, and the condition is verified later (see `assume`).
        """
        for _ in range(at_least):
            carry = body(*carry)
        if likely_enough and assume(~condition(*carry), likely=True):
            return carry
        done, at_once = at_least, look_every if self.reading_waits(carry[0]) else 1
        while done < at_most and assume(condition(*carry), likely=None):
            several = int(min(at_once, at_most - done))
            for _ in range(several):
                carry = body(*carry)
            done += several
        return carry

    def repeat(self, f: Callable, carry: Any, rows: Any, count: Array, /) -> tuple[Any, dict[str, Array]]:
        """Apply ``carry, logged = f(carry, row)`` to one row after another; the loop is not differentiable.

        Parameters
        ----------
        f
            A function ``f(carry, row) -> (carry, logged)``, where `logged` is a dictionary of 0-d arrays.
        carry
            A tuple of models and arrays, which may be nested in lists, tuples and dictionaries.
        rows
            Arrays [K, ...] or None, nested in tuples and dictionaries. A row has the same structure, with arrays [...].
        count
            The number of rows to use (0-d), at most K.

        Returns
        -------
        carry
            The carry after the last row.
        logged
            Arrays [count], or [K] if the host cannot read `count`.

        Raises
        ------
        BackendError
            If the backend has no loops on the device.
        """
        raise BackendError(f"backend {self.name!r} cannot compile loops; run the steps one by one.")

    def compile(self, f: Callable, /) -> Callable:
        """Compile f if the library has a compiler; otherwise return f.

        The program of a function of a module, or of a `functools.partial` of one and settings, may be kept for later
        calls with equal settings and arguments of equal outline, so neither may hold data.
        """
        return f

    def asks_gradient(self, x: Array, /) -> bool:
        """Whether a gradient with respect to x may be needed for the library's automatic differentiation."""
        return False

    def with_pullback(self, f: ClosedForm, arrays: dict[str, Array], /) -> Array:
        """Evaluate `f(arrays)`; automatic differentiation of the result uses the pullback of f.

        Parameters
        ----------
        f
            A function ``arrays -> (value, pullback)``. The pullback ``(value_bar, names) -> cotangents`` returns a
            cotangent for each of the names. The library records no operations of f or its pullback.
        arrays
            Dictionary of all arrays for which gradients may be needed.

        Raises
        ------
        BackendError
            If second derivatives are computed with torch.
        """
        return f(arrays)[0]

    def stop_gradient(self, x: Array, /) -> Array:
        """Return x as a constant for automatic differentiation."""
        return x

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        """Compute f(leaves) and its gradient by automatic differentiation."""
        raise BackendError(f"backend {self.name!r} has no automatic differentiation; use gradient='closed-form'.")
