"""Blocks of rows that fit a memory budget."""

import math
import numbers

from agp.backend import Array, backend_of

MEMORY = 256.0
"""The default budget for the working arrays of a bound or a prediction, in MiB; on devices the smallest default."""
SHARE = 1.0 / 8.0
"""The default budget on a device, as a share of its memory."""
TILE = 32.0
"""The largest blocks on a CPU of rows that are evaluated again each time, in MiB: larger temporary arrays do not fit
the caches and are allocated by the system each time, which takes up to twice as long."""
CACHE = 8.0
"""The same for rows that are processed one after the other, whatever the budget."""


def on_device(x: Array) -> bool:
    """Whether x is on a device with its own memory of known size."""
    return backend_of(x).device_memory(x) is not None


def mebibytes(floats: float, x: Array) -> float:
    """The memory of so many numbers of the dtype of x, in MiB."""
    return floats * (backend_of(x).xp.finfo(x.dtype).bits // 8) / 2**20


def check_memory(memory: float | None) -> None:
    """TypeError or ValueError unless a budget is a positive number of MiB, or None."""
    if memory is None:
        return
    if not isinstance(memory, numbers.Real):
        msg = f"memory is {memory!r}, but must be a number of MiB, such as 256.0, or None."
        raise TypeError(msg)
    if not memory > 0:
        msg = f"memory is {memory!r} MiB, but must be positive."
        raise ValueError(msg)


def budget(memory: float | None, x: Array) -> float:
    """The budget in MiB for arrays like x; None is `MEMORY`, or a share of the memory of the device of x.

    The block size determines the order of summation, so the budget must not change between runs: it depends on the
    total memory, not the free one, rounded down to a power of two since drivers reserve some. Errors as `check_memory`.
    """
    if memory is not None:
        check_memory(memory)
        return memory
    whole = backend_of(x).device_memory(x)
    return MEMORY if whole is None else max(MEMORY, 2.0 ** math.floor(math.log2(SHARE * whole)))


def rows_within(memory: float | None, floats_per_row: int, X: Array) -> int:
    """The number of rows of X [N, D], from 1 to N, with so many numbers of its dtype each that fit `memory` MiB."""
    memory = budget(memory, X)
    return int(max(1, min(X.shape[0], memory // mebibytes(floats_per_row, X))))


def tile_rows(memory: float | None, floats_per_row: int, X: Array) -> int:
    """`rows_within`, for blocks that are evaluated again each time: on a CPU no more than fit `TILE`."""
    rows = rows_within(memory, floats_per_row, X)
    on_cpu = backend_of(X).device_name(X) == "cpu"
    return min(rows, rows_within(TILE, floats_per_row, X)) if on_cpu else rows


def block_rows(memory: float | None, floats_per_row: int, X: Array) -> int | None:
    """The block size if X [N, D] is lazy or not all rows fit `memory` MiB; None for all rows at once."""
    if rows_within(memory, floats_per_row, X) < X.shape[0] or backend_of(X).is_lazy:
        return tile_rows(memory, floats_per_row, X)
    return None


def cached_rows(floats_per_row: int, X: Array) -> int:
    """The block size for rows of X [N, D] that each need much memory and are independent of each other."""
    memory = CACHE if backend_of(X).device_name(X) == "cpu" else TILE
    return rows_within(None if on_device(X) else memory, floats_per_row, X)


def row_ranges(N: int, rows: int) -> list[tuple[int, int]]:
    """The ends (start, stop) of consecutive blocks of at most `rows` of N rows."""
    return [(start, min(start + rows, N)) for start in range(0, N, rows)]
