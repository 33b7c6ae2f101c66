"""Where reports of numerical trouble go: to the innermost collector that is open."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_reports: ContextVar[list[Any] | None] = ContextVar("reports", default=None)


def current() -> list[Any] | None:
    """The list of the innermost `collected` block, or None outside of any."""
    return _reports.get()


@contextlib.contextmanager
def collected(reports: list[Any] | None = None) -> Iterator[list[Any]]:
    """Append what is reported inside the block to a list, instead of warning of it at once.

    The entries are `agp.repairs.Report`. They are data: inside a compiled function they can be returned from it like
    any other array, and be read by `agp.repairs.Tally` outside.
    """
    reports = [] if reports is None else reports
    token = _reports.set(reports)
    try:
        yield reports
    finally:
        _reports.reset(token)
