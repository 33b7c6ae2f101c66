"""Speculative execution on a device: assume likely outcomes of decisions, then verify all of them in one transfer."""

from collections.abc import Callable
from typing import Any, TypeVar

from agp.backend import Array, backend_of, collect_reports, speculating
from agp.repairs._reports import propagate_reports

T = TypeVar("T")


def speculate(f: Callable[[], T], beside: Array, /) -> tuple[T, bool]:
    """Return f() and a Boolean, which is true if all assumptions about decisions in f were right.

    If an assumption was wrong, f is evaluated again, and each decision is read from the device. The repair reports of
    the first evaluation are dropped. f must not have side effects. On the host, where decisions can be read without
    delay, nothing is assumed.
    """
    if not backend_of(beside).reading_waits(beside):
        return f(), True
    guesses: list[Any] = []
    try:
        with speculating(guesses), collect_reports() as reports:
            result = f()
    except Exception:  # a wrong assumption may be the cause
        if _all_true(guesses):
            raise
    else:
        if _all_true(guesses):
            if reports:
                propagate_reports(reports)
            return result, True
    with speculating(None):
        return f(), False


def _all_true(guesses: list[Any]) -> bool:
    if not guesses:
        return True
    xp = backend_of(guesses[0]).xp
    return bool(xp.all(xp.stack(guesses)))
