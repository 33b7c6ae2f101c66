"""Options of benchmark commands that name tables, sides and checkouts of agp."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
AGAINST = "agp@"
"""Prefix of sides that are other checkouts of agp."""


def chosen(option: str, patterns: list[str] | None, known: list[str]) -> list[str]:
    """The known names that match the patterns, in the order of the patterns; all names if there are no patterns."""
    unknown = [pattern for pattern in patterns or [] if not any(fnmatchcase(name, pattern) for name in known)]
    if unknown:
        raise SystemExit(f"{option} has no {unknown[0]}; use one of {', '.join(known)}.")
    if patterns is None:
        return known
    return list(dict.fromkeys(name for pattern in patterns for name in known if fnmatchcase(name, pattern)))


def checkouts_of(others: Iterable[Path]) -> dict[str, Path]:
    """Map the names of sides to checkouts: this one, and the others by the names of their folders."""
    paths = [path.resolve() for path in others]
    named = {"agp": ROOT} | {f"{AGAINST}{path.name}": path for path in paths}
    if len(named) <= len(paths):
        raise SystemExit("--against has two folders with the same name; rename one of them.")
    if absent := [path for path in paths if not path.is_dir()]:
        raise SystemExit(f"--against names {absent[0]}, but there is no folder with this name.")
    return named
