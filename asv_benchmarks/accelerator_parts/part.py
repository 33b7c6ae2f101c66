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
    """What the entries of a part depend on.

    `methods` and `sizes`, where they are not empty, leave out entries with another ``method`` or ``M``.
    """

    small: bool
    device: str
    libraries: tuple[str, ...]
    methods: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    def wants(self, entry: Settings) -> bool:
        """Whether an entry is to be measured; what has no method, or no size, is."""
        return all(
            not wanted or name not in entry or entry[name] in wanted
            for name, wanted in (("method", self.methods), ("M", self.sizes))
        )


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
    guess, small_guess
        Seconds of an entry, as long as none has been measured: on an accelerator, and in small.
    jax
        How many times as long JAX takes, which compiles.
    """

    title: str
    note: str
    entries: Callable[[Plan], list[Settings]]
    measured: Callable[..., Figures]
    seconds: float = 90.0
    alone: bool = False
    guess: float = 5.0
    small_guess: float = 1.0
    jax: float = 8.0

    def expected(self, library: str, *, small: bool) -> float:
        """Seconds of an entry, guessed."""
        return (self.small_guess if small else self.guess) * (self.jax if library == "jax" else 1.0)
