"""Rows of data in blocks: how many fit into a memory budget, and where the blocks begin and end."""

import math
import numbers

from agp.backend import Array, backend_of

MEMORY = 256.0
"""The budget for the working arrays of a bound or a prediction where none is given, in MiB; on devices the least."""
SHARE = 1.0 / 8.0
"""... and on a device, this share of its memory."""
TILE = 32.0
"""What blocks that are evaluated anew each time may take on a CPU, in MiB: in larger ones every temporary array leaves
the caches and is new memory of the system, and the work takes up to twice as long."""
CACHE = 8.0
"""What rows whose work is done one after the other, whatever the budget, may take on a CPU, in MiB."""


def on_device(x: Array) -> bool:
    """Whether x lies on a device with a memory of its own, whose size is known."""
    return backend_of(x).device_memory(x) is not None


def mebibytes(floats: float, x: Array) -> float:
    """What so many numbers of the dtype of x take, in MiB."""
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
    """The budget in MiB for arrays beside x; None is `MEMORY`, or a share of the memory of the device of x.

    Blocks of other sizes are summed in another order. So nothing counts that changes between runs: of the memory not
    what is free now, but all of it, and rounded down to a power of two, for drivers keep some of it for themselves.
    Raises as `check_memory`.
    """
    if memory is not None:
        check_memory(memory)
        return memory
    whole = backend_of(x).device_memory(x)
    return MEMORY if whole is None else max(MEMORY, 2.0 ** math.floor(math.log2(SHARE * whole)))


def rows_within(memory: float | None, floats_per_row: int, X: Array) -> int:
    """How many rows of X [N, D], from one to N, with so many numbers of its dtype each fit into `memory` MiB."""
    memory = budget(memory, X)
    return int(max(1, min(X.shape[0], memory // mebibytes(floats_per_row, X))))


def tile_rows(memory: float | None, floats_per_row: int, X: Array) -> int:
    """`rows_within` the budget, for blocks that are evaluated anew each time: on a CPU no more than `TILE` allows."""
    rows = rows_within(memory, floats_per_row, X)
    on_cpu = backend_of(X).device_name(X) == "cpu"
    return min(rows, rows_within(TILE, floats_per_row, X)) if on_cpu else rows


def block_rows(memory: float | None, floats_per_row: int, X: Array) -> int | None:
    """Rows to take at once where not all rows of X [N, D] fit into `memory` MiB, or lie elsewhere; None for all."""
    if rows_within(memory, floats_per_row, X) < X.shape[0] or backend_of(X).is_lazy:
        return tile_rows(memory, floats_per_row, X)
    return None


def cached_rows(floats_per_row: int, X: Array) -> int:
    """How many rows of X [N, D], from one to N, to take at once where each needs much and none needs another."""
    if on_device(X):
        return rows_within(None, floats_per_row, X)
    on_cpu = backend_of(X).device_name(X) == "cpu"
    return rows_within(CACHE if on_cpu else TILE, floats_per_row, X)


def row_ranges(N: int, rows: int) -> list[tuple[int, int]]:
    """The ends (start, stop) of consecutive blocks of at most `rows` of N rows."""
    return [(start, min(start + rows, N)) for start in range(0, N, rows)]
