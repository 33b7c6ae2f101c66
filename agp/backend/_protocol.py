"""Protocol of a backend: the operations that a plug-in provides beyond the Array API standard."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agp.backend._control import ControlFlow
from agp.backend._folds import Folds, row_blocks
from agp.backend._library import Array
from agp.backend._mathematics import Mathematics
from agp.errors import BackendError

T = TypeVar("T")

CHECKSUM_ROWS = 65_536


class Backend(Mathematics, ControlFlow, Folds):
    """Interface to an array library; the defaults are for eager libraries without automatic differentiation.

    A plug-in sets the class attributes and defines at least `cholesky`, `solve_triangular`, `from_numpy` and
    `to_numpy`.
    """

    # -- graphs of device launches, which are recorded once and replayed by a single call -----------------------------

    def captures(self, x: Array, /) -> bool:
        """Whether `capture` can record graphs on the device of x."""
        return False

    def capture(self, f: Callable[[], T], x: Array, /) -> tuple[Callable[[], None], T]:
        """Record the launches of f() on the device of x.

        Parameters
        ----------
        f
            A function that reads and writes the same arrays in every call. agp calls f several times, for warm-up and
            for recording. Nothing is computed during recording, so f must not transfer numbers to or from the host.
        x
            An array on the device.

        Returns
        -------
        replay
            A function that launches the graph again, after all earlier launches.
        found
            The result of f. Each replay overwrites the arrays of this result.

        Raises
        ------
        BackendError
            If the backend does not support graphs, or if f has an operation that cannot be recorded. The message names
            the operation.
        """
        raise BackendError(f"backend {self.name!r} does not support graphs.")

    def overwrite(self, several: Sequence[Array], by: Sequence[Array], /, where: Array) -> None:
        """Copy the arrays `by` into the arrays `several` if the 0-d Boolean `where` is true.

        The arrays `by` may be views of the arrays `several`.
        """
        found = [x if x is y else self.xp.where(where, y, x) for x, y in zip(several, by, strict=True)]
        for x, y in zip(several, found, strict=True):
            if x is not y:
                x[...] = y

    def copies(self, several: Sequence[Array], /) -> list[Array]:
        """Return row-major copies of arrays."""
        return [self.xp.asarray(x, copy=True) for x in several]

    def fetch(self, x: Array, /) -> Callable[[], Any]:
        """Start copying x to the host; return a function that waits for the copy and returns it as a NumPy array."""
        found = self.to_numpy(self.xp.asarray(x, copy=True))
        return lambda: found

    # -- rows of data, which may be lazy: on disk, or distributed over machines; the defaults are for arrays in memory

    def gather(self, x: Array, index: Any = None, /) -> Array:
        """Load x [N, ...], or only the rows with the given indices [n], into memory; the indices are on the host."""
        if index is None:
            return x
        return self.rows_at(x, self.from_numpy(index, device=self.device_name(x) or None))

    def rows_at(self, x: Array, index: Array, /) -> Array:
        """Copy the rows of x [N, ...] at indices [n] on its device; takes O(n) operations for any memory layout."""
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

    def in_chunks(self, rows: tuple[Array, ...], /) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Return arrays [N, ...] with the chunks of the first one, and the number of rows in each chunk.

        Arrays in memory are one chunk.
        """
        return rows, (rows[0].shape[0],)

    def chunks_of(self, several: tuple[Array, ...], chunks: Any, /) -> tuple[Array, ...]:
        """Load the chunks with these numbers from each of several arrays that are divided into the same chunks."""
        return several

    def take_rows(self, x: Array, index: Any, /) -> Array:
        """Select rows of x [N, ...] by a host array of ascending indices [n], without moving rows between machines."""
        return self.gather(x, index)

    def checksum(self, rows: tuple[Array, ...], /) -> int:
        """CRC-32 checksum of row data, the same for every array library."""
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
