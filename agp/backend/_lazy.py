"""Rows of data that may be lazy: on disk, or distributed over machines. The defaults are for arrays in memory."""

import zlib
from collections.abc import Callable
from typing import Any

from agp.backend._folds import row_blocks
from agp.backend._library import Array, Library

CHECKSUM_ROWS = 65_536


class LazyRows(Library):
    """Operations on rows of data that a lazy or distributed array library overrides."""

    def gathered(self, x: Array, index: Any = None, /) -> Array:
        """The rows x [N, ...], or those at a host array of indices [n], as an array in memory."""
        if index is None:
            return x
        return self.rows_at(x, self.from_numpy(index, device=self.device_name(x) or None))

    def rows_at(self, x: Array, index: Array, /) -> Array:
        """The rows of x [N, ...] at indices [n] on its device; the cost is that of n rows, in any memory layout."""
        return self.xp.take(x, index, axis=0)

    def same_rows(self, x: Array, y: Array, /) -> bool:
        """Whether two arrays of rows are equal."""
        return x is y or (x.shape == y.shape and bool(self.xp.all(x == y)))

    def generated_rows(self, f: Callable[[int, int], dict[str, Any]], X: Array, /) -> dict[str, Array]:
        """Arrays [S, N, ...] chunked like X [N, D], whose parts [S, rows, ...] ``f(start, rows)`` makes on the host."""
        names = self.dtype_name(X), self.device_name(X) or None
        return {name: self.from_numpy(x, dtype=names[0], device=names[1]) for name, x in f(0, X.shape[0]).items()}

    def in_chunks(self, X: Array, y: Array, /) -> tuple[Array, Array, tuple[int, ...]]:
        """X and y in common chunks, and the number of rows in each; arrays in memory are one chunk."""
        return X, y, (X.shape[0],)

    def chunks_of(self, several: tuple[Array, ...], chunks: Any, /) -> tuple[Array, ...]:
        """The rows of the chunks with these numbers, in memory, of arrays in common chunks."""
        return several

    def selected(self, x: Array, index: Any, /) -> Array:
        """The rows of x [N, ...] at a host array of ascending indices [n], each left where it is."""
        return self.gathered(x, index)

    def checksum(self, rows: tuple[Array, ...], /) -> int:
        """A CRC-32 of arrays of rows, the same for every array library."""
        found = 0
        for block in row_blocks(rows, CHECKSUM_ROWS):
            for x in block:
                found = zlib.crc32(self.to_numpy(x).tobytes(), found)
        return found

    def map_chunks(
        self, f: Callable[..., tuple[Array, ...]], rows: tuple[Array, ...], example: tuple[Array, ...], /
    ) -> tuple[Array, ...]:
        """``f(*rows)``: a tuple of arrays with one row for each row of the arguments, computed lazily for lazy rows.

        `example` is the result of f for one row, in arrays of any library.
        """
        return f(*rows)
