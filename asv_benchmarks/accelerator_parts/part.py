"""What a part of the report is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]
"""What is measured in an entry, by name: strings and numbers."""
Figures = dict[str, Any]
"""What was found, by name with its unit: strings and numbers."""


@dataclass(frozen=True)
class Plan:
    """What the entries of a part depend on."""

    small: bool
    device: str
    libraries: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A part of the report: entries, each measured by itself in a process that can be ended.

    Parameters
    ----------
    title, note
        The heading of its table, and what the columns mean.
    entries
        The settings of all entries; those of one library follow each other, because they share a process.
    measured
        A function of a module, ``measured(device=, small=, seconds=, **entry) -> figures``; `seconds` is the time
        that it has.
    seconds
        The most time for one entry.
    alone
        Whether each entry has a process of its own, as peaks of memory need it.
    """

    title: str
    note: str
    entries: Callable[[Plan], list[Settings]]
    measured: Callable[..., Figures]
    seconds: float = 90.0
    alone: bool = False
