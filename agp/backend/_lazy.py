"""Operations on rows of data that may be lazy: on disk, or distributed over machines.

The defaults are for arrays in memory.
"""

import zlib
from collections.abc import Callable
from typing import Any

from agp.backend._folds import row_blocks
from agp.backend._library import Array, Library

CHECKSUM_ROWS = 65_536


class LazyRows(Library):
    """Operations on rows of data; lazy and distributed array libraries override these methods."""

    def gather(self, x: Array, index: Any = None, /) -> Array:
        """Load x [N, ...], or only the rows with the given indices [n], into memory; the indices are on the host."""
        if index is None:
            return x
        return self.rows_at(x, self.from_numpy(index, device=self.device_name(x) or None))

    def rows_at(self, x: Array, index: Array, /) -> Array:
        """Copy the rows of x [N, ...] at indices [n] on its device; takes O(n) operations in any memory layout."""
        return self.xp.take(x, index, axis=0)

    def same_rows(self, x: Array, y: Array, /) -> bool:
        """Whether two arrays have equal shapes and entries."""
        return x is y or (x.shape == y.shape and bool(self.xp.all(x == y)))

    def generate_rows(self, f: Callable[[int, int], dict[str, Any]], X: Array, /) -> dict[str, Array]:
        """Generate arrays [S, N, ...] with the chunks of X [N, D].

        ``f(start, rows)`` creates a chunk [S, rows, ...] on the host.
        """
        names = self.dtype_name(X), self.device_name(X) or None
        return {name: self.from_numpy(x, dtype=names[0], device=names[1]) for name, x in f(0, X.shape[0]).items()}

    def in_chunks(self, X: Array, y: Array, /) -> tuple[Array, Array, tuple[int, ...]]:
        """Return X and y with the same chunks, and the number of rows in each chunk; arrays in memory are one chunk."""
        return X, y, (X.shape[0],)

    def chunks_of(self, several: tuple[Array, ...], chunks: Any, /) -> tuple[Array, ...]:
        """Load the chunks with these numbers from each of several arrays that are divided into the same chunks."""
        return several

    def take_rows(self, x: Array, index: Any, /) -> Array:
        """Select rows of x [N, ...] by a host array of ascending indices [n], without moving rows between machines."""
        return self.gather(x, index)

    def checksum(self, rows: tuple[Array, ...], /) -> int:
        """CRC-32 checksum of arrays of rows, the same for every array library."""
        found = 0
        for block in row_blocks(rows, CHECKSUM_ROWS):
            for x in block:
                found = zlib.crc32(self.to_numpy(x).tobytes(), found)
        return found

    def map_chunks(
        self, f: Callable[..., tuple[Array, ...]], rows: tuple[Array, ...], example: tuple[Array, ...], /
    ) -> tuple[Array, ...]:
        """Compute ``f(*rows)``, a tuple of arrays with one row for each row of the arguments.

        Lazy arguments give lazy results. `example` is the result of f for one row, in arrays of any library.
        """
        return f(*rows)
