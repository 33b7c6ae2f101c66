"""What the host asks of a device, by the line of the library that asks."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agp
import agp_backends

__all__ = ["Asking", "Counts", "counted", "tell"]

TESTS = Path(__file__).parents[1]
PACKAGES = {f"{Path(package.__file__).parent}/": package.__name__ for package in (agp, agp_backends)}
PLUGINS = ("agp/backend/", "agp_backends/")


@dataclass
class Counts:
    """How often the host launched kernels, waited for the device, and sent it numbers, from which lines.

    `tables` are addresses of arrays that one call of the library sends to its own kernel, without waiting.
    """

    launches: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)
    tables: Counter[str] = field(default_factory=Counter)

    @property
    def totals(self) -> tuple[int, int, int]:
        """Launches, reads and uploads."""
        return self.launches.total(), self.reads.total(), self.uploads.total()

    def __str__(self) -> str:
        return "\n".join(
            f"{counter.total()} {what}\n" + "\n".join(f"  {n:5d}  {line}" for line, n in counter.most_common())
            for what, counter in vars(self).items()
        )


class Asking:
    """An update that asks the device for one thing in each step, and changes nothing."""

    def __init__(self, ask):
        self.ask = ask

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        self.ask(batch.X)
        return model, state, {}


_counting: list[Counts] = []
"""Those that count now."""


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Count inside."""
    counts = Counts()
    _counting.append(counts)
    try:
        yield counts
    finally:
        _counting.remove(counts)


def tell(kind: str, number: int = 1) -> None:
    """So many of one kind, from here."""
    if _counting and number:
        line = _line()
        for counts in _counting:
            getattr(counts, kind)[line] += number


def _line() -> str:
    """The innermost line of the library outside of plug-ins, or else inside of them, or else of a test."""
    frame: Any = sys._getframe(2)
    within, first = "", ""
    while frame is not None:
        file = frame.f_code.co_filename
        root = next((root for root in PACKAGES if file.startswith(root)), None)
        if root is not None:
            here = f"{PACKAGES[root]}/{file.removeprefix(root)}:{frame.f_lineno}"
            if not here.startswith(PLUGINS):
                return here
            within = within or here
        elif file.startswith(f"{TESTS}/") and "/standins/" not in file:
            first = first or f"{file.removeprefix(f'{TESTS}/')}:{frame.f_lineno}"
        frame = frame.f_back
    return within or first or "elsewhere"
