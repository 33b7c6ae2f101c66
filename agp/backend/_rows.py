"""Rows of arrays in (nested) tuples and dictionaries, cut into blocks."""

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["mapped", "row_blocks", "row_count"]


def row_blocks(rows: Any, block_rows: int, /) -> Iterator[Any]:
    """Consecutive blocks of at most so many rows of arrays [N, ...] in (nested) tuples and dictionaries; None stays.

    The last block has what is left. The first array says what N is.
    """
    N = row_count(rows)
    if block_rows >= N:
        yield rows
        return
    for start in range(0, N, block_rows):
        yield _cut(rows, start, min(start + block_rows, N))


def row_count(rows: Any, /) -> int:
    """The number of rows of arrays [N, ...] in (nested) tuples and dictionaries."""
    while isinstance(rows, (tuple, dict)):
        parts = rows.values() if isinstance(rows, dict) else rows
        rows = next(part for part in parts if part is not None)
    return rows.shape[0]


def _cut(rows: Any, start: int, stop: int) -> Any:
    return mapped(rows, lambda x: x[start:stop, ...])


def mapped(rows: Any, f: Callable[[Any], Any], /) -> Any:
    """What f makes of each array in (nested) tuples and dictionaries, in the same structure; None stays."""
    if rows is None:
        return None
    if isinstance(rows, dict):
        return {name: mapped(part, f) for name, part in rows.items()}
    if isinstance(rows, tuple):
        return tuple(mapped(part, f) for part in rows)
    return f(rows)
