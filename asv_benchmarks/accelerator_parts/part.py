"""Definition of a part of the report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]
"""The settings of an entry: strings and numbers by name."""
PATIENCE = 3.0
"""Factor of the time limits of JAX."""
Figures = dict[str, Any]
"""The results of an entry: strings and numbers by name; names contain the unit."""


@dataclass(frozen=True)
class Plan:
    """The choices that determine the entries of each part.

    If `methods` or `sizes` is not empty, entries with another ``method`` or ``M`` are left out.
    """

    small: bool
    device: str
    libraries: tuple[str, ...]
    methods: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    def wants(self, entry: Settings) -> bool:
        """Whether `methods` and `sizes` include an entry; entries without a method or size are always included."""
        return all(
            not wanted or name not in entry or entry[name] in wanted
            for name, wanted in (("method", self.methods), ("M", self.sizes))
        )


@dataclass(frozen=True)
class Part:
    """A part of the report: entries that are measured one by one in a process with a time limit.

    Parameters
    ----------
    title, note
        The heading of the table, and an explanation of its columns.
    entries
        A function that returns the settings of all entries. Entries of the same library are consecutive, because they
        share a process.
    measured
        A function at module level, ``measured(device=, small=, seconds=, **entry) -> figures``, where `seconds` is its
        time limit.
    seconds
        Time limit for one entry.
    guess, small_guess
        Estimated seconds of an entry before any has been measured: on an accelerator, and in small sizes.
    jax, cupy
        Ratios of the times of libraries that compile at the first call to this estimate.
    arranged
        A function that arranges entries, as settings and figures, for the page; by default, each has a row.
    processes
        Number of entries that run at the same time, in parts that do not measure times.
    """

    title: str
    note: str
    entries: Callable[[Plan], list[Settings]]
    measured: Callable[..., Figures]
    seconds: float = 20.0
    guess: float = 1.5
    small_guess: float = 1.0
    jax: float = 8.0
    cupy: float = 1.0
    arranged: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None
    processes: int = 1

    def expected(self, library: str, *, small: bool) -> float:
        """Estimate the seconds of an entry without measurements."""
        factor = {"jax": self.jax, "cupy": self.cupy}.get(library, 1.0)
        return (self.small_guess if small else self.guess) * factor

    def limit(self, library: str) -> float:
        """Time limit of an entry: a longer one for JAX, which compiles."""
        return self.seconds * (PATIENCE if library == "jax" else 1.0)
