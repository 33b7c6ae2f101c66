"""Where reports of numerical trouble go: to the innermost open collector."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_collector: ContextVar[list[Any] | None] = ContextVar("collector", default=None)


def current_collector() -> list[Any] | None:
    """The list of the innermost `collect_reports` block, or None outside of any."""
    return _collector.get()


@contextlib.contextmanager
def collect_reports(reports: list[Any] | None = None) -> Iterator[list[Any]]:
    """Append the reports made inside the block to a list, instead of issuing warnings.

    The entries are `agp.repairs.Report`. They are data: a compiled function can return them like any other array, and
    `agp.repairs.Tally` reads them outside.
    """
    reports = [] if reports is None else reports
    token = _collector.set(reports)
    try:
        yield reports
    finally:
        _collector.reset(token)
