"""Graphs of device launches, which are recorded once and replayed by a single call.

Graphs save time if launches take longer than the operations themselves. By default, a backend does not support graphs.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agp.backend._library import Array, Library
from agp.errors import BackendError

T = TypeVar("T")


class Graphs(Library):
    """Graphs of launches, in-place updates of their arrays, and asynchronous reads."""

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
        msg = f"backend {self.name!r} does not support graphs."
        raise BackendError(msg)

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
