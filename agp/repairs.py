"""What was repaired, as data: reports that survive compilation, and the one counted warning made of them.

`report` stands where a repair is made. It records arrays, so that it means the same while a function is traced:
plug-ins collect inside every transformation that opens a trace (a branch, a loop, a compiled step), hand the arrays out
beside the results, and report them again outside. At a public entrance, or in the loop of the training, a `Tally` reads
them.
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
    """A kind of trouble. Kinds are equal if all of it is."""

    message: str
    """A format string whose fields are the numbers of a report, such as ``"jitter {0:.3g} was added"``."""
    size: int
    """How many numbers there are."""
    fatal: bool = False
    """Whether no repair helped."""


@tree.model
class Report:
    """How often trouble of some kinds was met, and its numbers the first time.

    Parameters
    ----------
    kinds
        The kinds.
    numbers
        For each kind in turn how often, 0 if never, and its numbers the first time: a vector.
    """

    kinds: tuple[Kind, ...]
    numbers: Array = tree.auxiliary()


def report(message: str, /, *numbers: Array, count: Array | None = None, fatal: bool = False) -> None:
    """Say that trouble was met here, and repaired.

    Parameters
    ----------
    message
        A format string; it is the same whatever the values are.
    numbers
        What it is filled with, one 0-d array or more.
    count
        How often, 0-d: zero, or False, for not at all. Once by default.
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
    """Pass reports on to the innermost `collect_reports` block; outside of any, warn of them or raise at once.

    What is still traced when nobody collects is left out: it has no values that could be told.
    """
    collector = current_collector()
    if collector is None:
        Tally(reports).tell()
    else:
        collector.extend(reports)


# -- while values are arrays ------------------------------------------------------------------------------------------


def summed(reports: Iterable[Report], /) -> dict[Kind, Array]:
    """The numbers of each kind [1 + size]: counts added up, the others as they were the first time."""
    out: dict[Kind, Array] = {}
    for kind, new in _parts(reports):
        out[kind] = _added(out[kind], new) if kind in out else new
    return out


def packed(reports: Iterable[Report], /) -> list[Report]:
    """The same in one report at most, whose numbers are read in one transfer."""
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
    """Lists of reports, their numbers on the host by one transfer; those without values are left out."""
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
    """Repairs that were counted on the host.

    Parameters
    ----------
    reports
        The first to count.
    """

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self._seen: dict[str, tuple[str, int]] = {}
        self.failures: list[str] = []
        """Messages of what no repair helped."""
        self.add(reports)

    def add(self, reports: Iterable[Report], /) -> None:
        """Count reports whose values can be inspected; the others are left out."""
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
        """Count what another has counted, failures excepted."""
        for kind, (first, times) in other._seen.items():
            mine, before = self._seen.get(kind, (first, 0))
            self._seen[kind] = mine, before + times

    @property
    def total(self) -> int:
        """How many repairs there were."""
        return sum(times for _, times in self._seen.values())

    @property
    def messages(self) -> Counter[str]:
        """How often each kind was met, by the message of the first time."""
        return Counter(dict(self._seen.values()))

    def tell(self) -> None:
        """Give one warning about all repairs, if any, at the line that called this library.

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
        """The content as plain lists: kind, first message and count of each."""
        return [[kind, first, times] for kind, (first, times) in self._seen.items()]

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]], /) -> "Tally":
        """The inverse of `rows`."""
        tally = cls()
        tally._seen = {kind: (first, times) for kind, first, times in rows}
        return tally


OWN = ("agp", "agp_backends")


def outside() -> int:
    """The stack level, counted from the caller, of the first function that is not of this library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame, level = frame.f_back, level + 1
    return level
