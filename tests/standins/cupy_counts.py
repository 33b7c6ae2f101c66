"""What the host asks of a device, by the line of the library that asks."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = tuple(f"{ROOT / folder}/" for folder in ("agp", "backends"))
PLUGINS = tuple(f"{ROOT / folder}/" for folder in ("agp/backend", "backends"))


@dataclass
class Counts:
    """How often the host waited for the device, sent it numbers, and launched kernels, from which lines.

    `tables` are addresses of arrays that one call of the library sends to its own kernel, without waiting.
    """

    syncs: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    tables: Counter[str] = field(default_factory=Counter)


_active: list[Counts] = []


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Count inside."""
    counts = Counts()
    _active.append(counts)
    try:
        yield counts
    finally:
        _active.remove(counts)


def tell(kind: str, number: int = 1) -> None:
    """So many of one kind, from here."""
    if _active and number:
        line = _line()
        for counts in _active:
            getattr(counts, kind)[line] += number


def _line() -> str:
    """The innermost line of the library outside of plug-ins, or else inside of them, or else of a test."""
    frame, within, first = sys._getframe(2), "", ""
    while frame is not None:
        name = frame.f_code.co_filename
        here = f"{name.removeprefix(f'{ROOT}/')}:{frame.f_lineno}"
        if name.startswith(LIBRARY):
            if not name.startswith(PLUGINS):
                return here
            within = within or here
        elif name.startswith(f"{ROOT / 'tests'}/") and "/standins/" not in name:
            first = first or here
        frame = frame.f_back
    return within or first or "elsewhere"
