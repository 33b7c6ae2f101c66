"""Reports of numerical repairs, which arrays hold while a function is traced, and their count on the host."""

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, assume, backend_of, current_collector, to_numpy
from agp.errors import NotPositiveDefiniteError, RepairWarning


class Kind(NamedTuple):
    """A kind of numerical problem. Kinds with equal fields are equal."""

    message: str
    """A format string whose fields are the numbers of a report, such as ``"jitter {0:.3g} was added"``."""
    size: int
    """The number of fields in the message."""
    fatal: bool = False
    """True if the problem could not be repaired."""


@tree.model
class Report:
    """Counts of several kinds of problems, and the numbers for the message about the first problem of each kind.

    Parameters
    ----------
    kinds
        The kinds of problems.
    numbers
        One vector that holds, for each kind in turn, the count and the numbers for the message about the first
        occurrence.
    """

    kinds: tuple[Kind, ...]
    numbers: Array = tree.auxiliary()


def report(message: str, /, *numbers: Array, count: Array | None = None, fatal: bool = False) -> None:
    """Report a numerical problem and its repair.

    Parameters
    ----------
    message
        A format string that does not depend on values.
    numbers
        The numbers for the message, as 0-d arrays. At least one number is needed.
    count
        The number of occurrences, 0-d, by default 1. Zero and False mean that nothing is reported.
    fatal
        True if the problem could not be repaired. If the host can read the arrays, an error is raised instead.
    """
    B = backend_of(numbers[0])
    xp, dtype = B.xp, numbers[0].dtype
    if count is not None and B.is_concrete(count) and not assume(xp.astype(count, xp.bool), likely=False):
        return
    times = xp.ones_like(numbers[0]) if count is None else xp.astype(count, dtype)
    vector = xp.stack([times, *(xp.astype(x, dtype) for x in numbers)])
    propagate_reports([Report((Kind(message, len(numbers), fatal),), B.stop_gradient(vector))])


def propagate_reports(reports: Sequence[Report], /) -> None:
    """Pass reports to the innermost `collect_reports` block. Outside all blocks, warn or raise an error immediately.

    Traced reports outside all blocks are dropped, because they have no values.
    """
    collector = current_collector()
    if collector is None:
        Tally(reports).tell()
    else:
        collector.extend(reports)


# -- while values are arrays ------------------------------------------------------------------------------------------


def sum_reports(reports: Iterable[Report], /) -> dict[Kind, Array]:
    """Return a vector [1 + size] for each kind: the sum of the counts, and the numbers for the first message."""
    out: dict[Kind, Array] = {}
    for kind, new in _parts(reports):
        out[kind] = _merge_numbers(out[kind], new) if kind in out else new
    return out


def pack_reports(reports: Iterable[Report], /) -> list[Report]:
    """Sum reports into at most one report, whose numbers can be read in one transfer."""
    parts = list(sum_reports(reports).items())
    if not parts:
        return []
    xp = backend_of(parts[0][1]).xp
    widest = max((x.dtype for _, x in parts), key=lambda dtype: xp.finfo(dtype).bits)
    return [Report(tuple(kind for kind, _ in parts), xp.concat([xp.astype(x, widest) for _, x in parts]))]


def _parts(reports: Iterable[Report]) -> Iterator[tuple[Kind, Any]]:
    for entry in reports:
        start = 0
        for kind in entry.kinds:
            yield kind, entry.numbers[start : start + 1 + kind.size]
            start += 1 + kind.size


def _merge_numbers(a: Array, b: Array) -> Array:
    xp = backend_of(a).xp
    return xp.concat([a[:1] + b[:1], xp.where(a[:1] > 0.0, a[1:], b[1:])])


# -- on the host ------------------------------------------------------------------------------------------------------


def fetch_reports(several: Sequence[Sequence[Report]], /) -> list[list[Report]]:
    """Move the numbers in lists of reports to the host in one transfer. Traced reports are dropped."""
    concrete = [
        [entry for entry in reports if backend_of(entry.numbers).is_concrete(entry.numbers)] for reports in several
    ]
    numbers = [entry.numbers for reports in concrete for entry in reports]
    if not numbers:
        return [[] for _ in several]
    B = backend_of(numbers[0])
    vector, start, fetched = to_numpy(B.xp.concat([B.xp.astype(x, B.widest_float(x)) for x in numbers])), 0, []
    for reports in concrete:
        fetched.append([])
        for entry in reports:
            stop = start + entry.numbers.shape[0]
            fetched[-1].append(Report(entry.kinds, vector[start:stop]))
            start = stop
    return fetched


class Tally:
    """A count of repairs, on the host.

    Parameters
    ----------
    reports
        The initial reports of the tally.
    """

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self._seen: dict[str, tuple[str, int]] = {}
        self.failures: list[str] = []
        """Messages of problems that could not be repaired."""
        self.add(reports)

    def add(self, reports: Iterable[Report], /) -> None:
        """Count reports. Traced reports are dropped, because they have no values."""
        (concrete,) = fetch_reports([list(reports)])
        for kind, (times, *values) in _parts(concrete):
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
        """The number of repairs of each kind, by the message about the first repair of that kind."""
        return Counter(dict(self._seen.values()))

    def tell(self) -> None:
        """Issue one warning about all repairs, if any. The warning points to the line that called agp.

        Raises
        ------
        agp.errors.NotPositiveDefiniteError
            If a problem could not be repaired.
        """
        if self.failures:
            raise NotPositiveDefiniteError(self.failures[0])
        if self.total:
            warnings.warn(str(self), RepairWarning, stacklevel=outside())

    def __str__(self) -> str:
        (first, _), *others = self.messages.items()
        also = "".join(f" {times} of another kind: {message}" for message, times in others)
        return first if self.total == 1 else f"{self.total} numerical repairs; the first: {first}{also}"

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def rows(self) -> list[list[Any]]:
        """Return the content as a list of [kind, first message, count]."""
        return [[kind, first, times] for kind, (first, times) in self._seen.items()]

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]], /) -> "Tally":
        """Create a tally from the content that `rows` returns."""
        tally = cls()
        tally._seen = {kind: (first, times) for kind, first, times in rows}
        return tally


OWN = ("agp", "agp_backends")


def outside() -> int:
    """Return the stack level, counted from the caller, of the first function outside agp."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame, level = frame.f_back, level + 1
    return level
