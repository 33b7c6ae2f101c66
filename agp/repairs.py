"""Numerical repairs as data: reports that survive compilation, and one warning with a count.

Code that repairs something calls `report` with arrays, which also works while a function is traced: plug-ins collect
the reports in every transformation that opens a trace (a branch, a loop, a compiled step), return the arrays with the
results, and report them again outside. A `Tally` reads them at the end of a public function, or in the training loop.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, backend_of, collect_reports, current_collector, guessed, to_numpy
from agp.errors import NotPositiveDefiniteError, RepairWarning

__all__ = ["Kind", "Report", "Tally", "collect_reports", "packed", "report", "reported", "summed"]


def __getattr__(name: str) -> Any:
    if name == "collected":
        msg = "agp.repairs.collected goes with the next release; write agp.repairs.collect_reports."
        warnings.warn(msg, DeprecationWarning, stacklevel=2)
        return collect_reports
    msg = f"module 'agp.repairs' has no attribute {name!r}"
    raise AttributeError(msg)


class Kind(NamedTuple):
    """A kind of numerical trouble; kinds with equal fields are the same."""

    message: str
    """A format string whose fields are the numbers of a report, such as ``"jitter {0:.3g} was added"``."""
    size: int
    """The number of numbers."""
    fatal: bool = False
    """Whether no repair helped."""


@tree.model
class Report:
    """Counts of some kinds of trouble, and their numbers at the first occurrence.

    Parameters
    ----------
    kinds
        The kinds.
    numbers
        A vector: for each kind in turn the count, and its numbers at the first occurrence.
    """

    kinds: tuple[Kind, ...]
    numbers: Array = tree.auxiliary()


def report(message: str, /, *numbers: Array, count: Array | None = None, fatal: bool = False) -> None:
    """Report numerical trouble, and that it was repaired.

    Parameters
    ----------
    message
        A format string that does not depend on values.
    numbers
        The numbers for it, one 0-d array or more.
    count
        How often it occurred, 0-d, possibly zero or False; once by default.
    fatal
        Whether no repair helped. Where values can be inspected, raise an error instead.
    """
    B = backend_of(numbers[0])
    xp, dtype = B.xp, numbers[0].dtype
    if count is not None and B.is_concrete(count) and not guessed(xp.astype(count, xp.bool), likely=False):
        return
    times = xp.ones_like(numbers[0]) if count is None else xp.astype(count, dtype)
    vector = xp.stack([times, *(xp.astype(x, dtype) for x in numbers)])
    reported([Report((Kind(message, len(numbers), fatal),), B.stop_gradient(vector))])


def reported(reports: Sequence[Report], /) -> None:
    """Pass reports to the innermost `collect_reports` block; outside of any, warn or raise at once.

    Traced reports outside of any block are dropped, for they have no values.
    """
    collector = current_collector()
    if collector is None:
        Tally(reports).tell()
    else:
        collector.extend(reports)


# -- while values are arrays ------------------------------------------------------------------------------------------


def summed(reports: Iterable[Report], /) -> dict[Kind, Array]:
    """The numbers of each kind [1 + size]: the sum of the counts, and the numbers of the first occurrence."""
    out: dict[Kind, Array] = {}
    for kind, new in _parts(reports):
        out[kind] = _added(out[kind], new) if kind in out else new
    return out


def packed(reports: Iterable[Report], /) -> list[Report]:
    """The sums in at most one report, whose numbers can be read in one transfer."""
    parts = list(summed(reports).items())
    if not parts:
        return []
    xp = backend_of(parts[0][1]).xp
    widest = max((x.dtype for _, x in parts), key=lambda dtype: xp.finfo(dtype).bits)
    return [Report(tuple(kind for kind, _ in parts), xp.concat([xp.astype(x, widest) for _, x in parts]))]


def _parts(reports: Iterable[Report]) -> Iterator[tuple[Kind, Any]]:
    for one in reports:
        start = 0
        for kind in one.kinds:
            yield kind, one.numbers[start : start + 1 + kind.size]
            start += 1 + kind.size


def _added(a: Array, b: Array) -> Array:
    xp = backend_of(a).xp
    return xp.concat([a[:1] + b[:1], xp.where(a[:1] > 0.0, a[1:], b[1:])])


# -- on the host ------------------------------------------------------------------------------------------------------


def fetched(several: Sequence[Sequence[Report]], /) -> list[list[Report]]:
    """Lists of reports with numbers on the host, by one transfer; traced reports are dropped."""
    known = [[one for one in reports if backend_of(one.numbers).is_concrete(one.numbers)] for reports in several]
    numbers = [one.numbers for reports in known for one in reports]
    if not numbers:
        return [[] for _ in several]
    B = backend_of(numbers[0])
    vector, start, found = to_numpy(B.xp.concat([B.xp.astype(x, B.widest_float(x)) for x in numbers])), 0, []
    for reports in known:
        found.append([])
        for one in reports:
            stop = start + one.numbers.shape[0]
            found[-1].append(Report(one.kinds, vector[start:stop]))
            start = stop
    return found


class Tally:
    """A count of repairs on the host.

    Parameters
    ----------
    reports
        The first to count.
    """

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self._seen: dict[str, tuple[str, int]] = {}
        self.failures: list[str] = []
        """Messages of trouble that no repair helped."""
        self.add(reports)

    def add(self, reports: Iterable[Report], /) -> None:
        """Count reports; traced ones, which have no values, are dropped."""
        (known,) = fetched([list(reports)])
        for kind, (times, *values) in _parts(known):
            if not times > 0.0:
                continue
            if kind.fatal:
                self.failures.append(kind.message.format(*values))
                continue
            first, before = self._seen.get(kind.message, (kind.message.format(*values), 0))
            self._seen[kind.message] = first, before + int(times)

    def merge(self, other: "Tally", /) -> None:
        """Add the counts of another tally, without its failures."""
        for kind, (first, times) in other._seen.items():
            mine, before = self._seen.get(kind, (first, 0))
            self._seen[kind] = mine, before + times

    @property
    def total(self) -> int:
        """The number of repairs."""
        return sum(times for _, times in self._seen.values())

    @property
    def messages(self) -> Counter[str]:
        """The number of repairs of each kind, by the message of its first occurrence."""
        return Counter(dict(self._seen.values()))

    def tell(self) -> None:
        """Issue one warning about all repairs, if any, at the line that called this library.

        Raises
        ------
        agp.errors.NotPositiveDefiniteError
            If there was trouble that no repair helped.
        """
        if self.failures:
            raise NotPositiveDefiniteError(self.failures[0])
        if self.total:
            warnings.warn(str(self), RepairWarning, stacklevel=outside())

    def __str__(self) -> str:
        (first, _), *others = self.messages.items()
        also = "".join(f" Of another kind, {times}: {message}" for message, times in others)
        return first if self.total == 1 else f"{self.total} numerical repairs; the first: {first}{also}"

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def rows(self) -> list[list[Any]]:
        """The content as lists of kind, first message and count."""
        return [[kind, first, times] for kind, (first, times) in self._seen.items()]

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]], /) -> "Tally":
        """The inverse of `rows`."""
        tally = cls()
        tally._seen = {kind: (first, times) for kind, first, times in rows}
        return tally


OWN = ("agp", "agp_backends")


def outside() -> int:
    """The stack level, counted from the caller, of the first function outside this library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame, level = frame.f_back, level + 1
    return level
