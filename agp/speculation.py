"""Speculative execution on a device: assume the likely outcome of decisions, then verify all with one host read."""

from collections.abc import Callable
from typing import Any, TypeVar

from agp.backend import Array, backend_of, guessing
from agp.repairs import collect_reports, reported

T = TypeVar("T")


def speculate(f: Callable[[], T], beside: Array, /) -> tuple[T, bool]:
    """f(), and whether every outcome assumed in it was right.

    If one was wrong, f is evaluated again with every decision read from the device, and the first reports of repairs
    are dropped, so f must not have side effects. On the host, where reading costs nothing, nothing is assumed.
    """
    if not backend_of(beside).reading_waits(beside):
        return f(), True
    guesses: list[Any] = []
    try:
        with guessing(guesses), collect_reports() as reports:
            found = f()
    except Exception:  # a wrong guess may have caused it
        if _all_true(guesses):
            raise
    else:
        if _all_true(guesses):
            if reports:
                reported(reports)
            return found, True
    with guessing(None):
        return f(), False


def _all_true(guesses: list[Any]) -> bool:
    if not guesses:
        return True
    xp = backend_of(guesses[0]).xp
    return bool(xp.all(xp.stack(guesses)))
