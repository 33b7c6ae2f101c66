"""Graphs of device launches: recorded once, and replayed by one call.

They help where launches take longer than the operations themselves. By default a library has none.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agp.backend._library import Array, Library
from agp.errors import BackendError

T = TypeVar("T")


class Graphs(Library):
    """Graphs of launches, in-place writes to their arrays, and asynchronous reads."""

    def captures(self, x: Array, /) -> bool:
        """Whether `capture` can record graphs on the device of x."""
        return False

    def capture(self, f: Callable[[], T], x: Array, /) -> tuple[Callable[[], None], T]:
        """Record the launches of f() on the device of x.

        Parameters
        ----------
        f
            Called several times, for warm-up and for recording; each time it reads and writes the same arrays. Nothing
            is computed while it is recorded: it must not transfer numbers to or from the host.
        x
            An array on the device.

        Returns
        -------
        replay
            Launches everything again, after earlier launches.
        found
            The result of f: arrays that each replay overwrites.

        Raises
        ------
        BackendError
            If there are no graphs, or they cannot hold a launch of f; the message names it.
        """
        msg = f"backend {self.name!r} records no graphs."
        raise BackendError(msg)

    def overwrite(self, several: Sequence[Array], by: Sequence[Array], /, where: Array) -> None:
        """Where a 0-d predicate holds, write the arrays `by`, which may be views of `several`, into `several`."""
        found = [x if x is y else self.xp.where(where, y, x) for x, y in zip(several, by, strict=True)]
        for x, y in zip(several, found, strict=True):
            if x is not y:
                x[...] = y

    def copies(self, several: Sequence[Array], /) -> list[Array]:
        """Row-major copies of arrays."""
        return [self.xp.asarray(x, copy=True) for x in several]

    def fetch(self, x: Array, /) -> Callable[[], Any]:
        """Start to copy x to the host; the function returned waits for the copy and gives it as a NumPy array."""
        found = self.to_numpy(self.xp.asarray(x, copy=True))
        return lambda: found
