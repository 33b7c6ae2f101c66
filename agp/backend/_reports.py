"""Collectors of reports of numerical problems; a report goes to the innermost collector."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_collector: ContextVar[list[Any] | None] = ContextVar("collector", default=None)


def current_collector() -> list[Any] | None:
    """The list of the innermost `collect_reports` block, or None outside such blocks."""
    return _collector.get()


@contextlib.contextmanager
def collect_reports(reports: list[Any] | None = None) -> Iterator[list[Any]]:
    """Append the reports made inside the block to a list, instead of issuing warnings.

    The entries are instances of `agp.repairs.Report`. Compiled functions can return reports in the same way as
    arrays. `agp.repairs.Tally` reads the reports outside the function.
    """
    reports = [] if reports is None else reports
    token = _collector.set(reports)
    try:
        yield reports
    finally:
        _collector.reset(token)
