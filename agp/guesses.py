"""Work on a device, its likely decisions taken for granted and checked by one look in the end."""

from collections.abc import Callable
from typing import Any, TypeVar

from agp.backend import Array, backend_of, guessing
from agp.repairs import collected, reported

T = TypeVar("T")


def settled(f: Callable[[], T], beside: Array, /) -> tuple[T, bool]:
    """f(), and whether everything likely that was taken for granted in it was so.

    Where it was not, f is evaluated again, each decision looked at; what was reported before is forgotten. So f must
    not change anything. Where looking costs nothing, on the host, nothing is taken for granted.
    """
    if not backend_of(beside).reading_waits(beside):
        return f(), True
    guesses: list[Any] = []
    try:
        with guessing(guesses), collected() as reports:
            found = f()
    except Exception:  # it may come of a wrong guess
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
