"""Rows of data: blocks that fit into a memory budget, repetition, the scales of columns, and tags of rows."""

import math
import numbers
from typing import Any, NamedTuple, Self

from agp.backend import Array, assume, backend_of, row_numbers

MEMORY_MIB = 256.0
"""Default budget, in MiB, for the working arrays of a bound or a prediction. On devices, it is the smallest default."""
DEVICE_MEMORY_FRACTION = 1.0 / 8.0
"""Default budget on a device, as a fraction of its memory."""
TILE = 32.0
"""Maximum size, in MiB, of row blocks that are recomputed in each pass on a CPU. Larger temporary arrays do not fit
into the caches and are allocated anew each time, which takes up to twice as long."""
WHOLE_MARGIN = 9e-4
"""Whole numbers may have errors of this size: those of rounding, and steps of finite differences."""
CACHE = 8.0
"""Maximum size, in MiB, of a block of independent rows on a CPU, whatever the budget."""


def on_device(x: Array) -> bool:
    """Return True if x is on a device with its own memory of known size."""
    return backend_of(x).device_memory(x) is not None


def mebibytes(floats: float, x: Array) -> float:
    """Return the memory in MiB that `floats` numbers with the dtype of x occupy."""
    return floats * (backend_of(x).xp.finfo(x.dtype).bits // 8) / 2**20


def check_memory(memory: float | None) -> None:
    """Raise a TypeError or ValueError unless a budget is a positive number of MiB or None."""
    if memory is None:
        return
    if not isinstance(memory, numbers.Real):
        raise TypeError(f"memory is {memory!r}, but must be a number of MiB, such as 256.0, or None.")
    if not memory > 0:
        raise ValueError(f"memory is {memory!r} MiB, but must be positive.")


def budget(memory: float | None, x: Array) -> float:
    """Return the budget in MiB on the device of x. The default is `MEMORY_MIB`, or a fraction of a device's memory.

    The block size determines the order of summation, so the budget must not change between runs. The default therefore
    depends on the total memory instead of the free memory. The default is rounded down to a power of two, so that the
    memory that drivers reserve does not affect it. An invalid budget raises the errors of `check_memory`.
    """
    if memory is not None:
        check_memory(memory)
        return memory
    whole = backend_of(x).device_memory(x)
    if whole is None:
        return MEMORY_MIB
    return max(MEMORY_MIB, 2.0 ** math.floor(math.log2(DEVICE_MEMORY_FRACTION * whole)))


def rows_within(memory: float | None, floats_per_row: int, X: Array) -> int:
    """Return how many rows of X [N, D], from 1 to N, fit into `memory` MiB with `floats_per_row` numbers each."""
    memory = budget(memory, X)
    return int(max(1, min(X.shape[0], memory // mebibytes(floats_per_row, X))))


def tile_rows(memory: float | None, floats_per_row: int, X: Array) -> int:
    """Return `rows_within` for rows that are recomputed in each pass. On a CPU, the rows also fit into `TILE` MiB."""
    rows = rows_within(memory, floats_per_row, X)
    on_cpu = backend_of(X).device_name(X) == "cpu"
    return min(rows, rows_within(TILE, floats_per_row, X)) if on_cpu else rows


def block_rows(memory: float | None, floats_per_row: int, X: Array) -> int | None:
    """Return the block size if X [N, D] is lazy or its rows take more than `memory` MiB, otherwise None."""
    if rows_within(memory, floats_per_row, X) < X.shape[0] or backend_of(X).is_lazy:
        return tile_rows(memory, floats_per_row, X)
    return None


def cached_rows(floats_per_row: int, X: Array) -> int:
    """Return the block size for independent rows of X [N, D] that each take much memory."""
    memory = CACHE if backend_of(X).device_name(X) == "cpu" else TILE
    return rows_within(None if on_device(X) else memory, floats_per_row, X)


def row_ranges(N: int, rows: int) -> list[tuple[int, int]]:
    """Return the ends (start, stop) of consecutive blocks that cover N rows, with at most `rows` rows each."""
    return [(start, min(start + rows, N)) for start in range(0, N, rows)]


def repeat_rows(x: Array | None, samples: int) -> Array | None:
    """Repeat an array along axis 0 for each of S samples; None stays None."""
    return x if x is None or samples <= 1 else backend_of(x).xp.concat([x] * samples, axis=0)


# -- scales -----------------------------------------------------------------------------------------------------------


def column_spreads(X: Array) -> Array:
    """Return the standard deviation [D] of each column of X [N, D], a unit for parameters of this column.

    For a column that is constant up to rounding, return its absolute value, or 1 if the column is zero.
    """
    xp = backend_of(X).xp
    size = xp.max(xp.abs(X), axis=0)
    varies = xp.max(X, axis=0) - xp.min(X, axis=0) > 10.0 * float(xp.finfo(X.dtype).eps) * size
    limits = xp.finfo(X.dtype)
    least, most = float(limits.smallest_normal) ** 0.5 / float(limits.eps), (float(limits.max) / X.shape[0]) ** 0.5
    usual = (size < most) & ((size > least) | (size == 0.0))
    if assume(xp.all(usual), likely=True):
        spreads = xp.std(X, axis=0)
    else:  # squares would overflow or underflow
        unit = xp.where(usual, xp.ones_like(size), size)
        spreads = unit * xp.std(X / unit, axis=0)
    return xp.where(varies, spreads, xp.where(size > 0.0, size, xp.ones_like(size)))


def unit_by_column(value: Any, scales: Array) -> Array:
    """Return the scales [D] as the unit of a parameter with one entry per column, else their geometric mean."""
    xp = backend_of(scales).xp
    if value is None or isinstance(value, (list, tuple)) or (not isinstance(value, numbers.Real) and value.ndim):
        return scales
    return xp.exp(xp.mean(xp.log(scales)))


def check_tagged(width: int) -> None:
    """Raise ValueError unless inputs with this number of columns have a column before the tags."""
    if width < 2:
        raise ValueError(
            f"inputs with slopes have {width} column, but need the columns of the function and a last one with tags; "
            "build rows by agp.kernels.tag_rows."
        )


def are_whole(x: Array) -> Array:
    """Whether numbers are whole, except for errors of at most `WHOLE_MARGIN`."""
    xp = backend_of(x).xp
    return xp.abs(x - xp.round(x)) <= WHOLE_MARGIN


class TaggedRows(NamedTuple):
    """Rows that observe values or slopes of a function, in parts. Their last column contains tags.

    The tag 0 stands for the value, and d + 1 for the slope along column d, counted from 0.
    """

    X: Array
    """The inputs of the function [..., N, D]."""
    V: Array
    """Directions [..., N, D]: a unit vector for a slope, and zero for a value."""
    is_value: Array
    """1 for values and 0 for slopes [..., N]; NaN for wrong tags in compiled programs, which cannot refuse them."""

    @classmethod
    def of(cls, rows: Array, /) -> Self:
        """Split rows [..., N, D + 1]. Raise ValueError unless all tags are whole numbers from 0 to D.

        Rounding errors are allowed, because tags of inducing inputs are kept in other units.
        """
        check_tagged(rows.shape[-1])
        B = backend_of(rows)
        xp, D = B.xp, rows.shape[-1] - 1
        given = rows[..., D]
        tags = xp.round(given)
        valid = (tags >= 0.0) & (tags <= D) & are_whole(given)
        if B.is_concrete(rows) and not assume(xp.all(valid), likely=True):
            raise ValueError(
                f"the last column of the inputs contains {float(given[~valid][0]):.9g}, but must contain tags, which "
                f"are the whole numbers 0 for values and from 1 to {D} for slopes along the columns; build rows by "
                "agp.kernels.tag_rows, and do not scale the tags."
            )
        columns = xp.astype(row_numbers(D, rows), rows.dtype)
        V = xp.astype(tags[..., None] - 1.0 == columns, rows.dtype)
        is_value = xp.astype(tags == 0.0, rows.dtype)
        return cls(rows[..., :D], V, xp.where(valid, is_value, xp.full_like(is_value, math.nan)))

    def widen(self, X_bar: Array, /) -> Array:
        """Return the cotangent of the rows for a cotangent of the inputs. Tags have no gradient, so theirs is zero."""
        xp = backend_of(X_bar).xp
        return xp.concat([X_bar, xp.zeros_like(X_bar[..., :1])], axis=-1)
