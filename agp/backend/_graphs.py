"""What is launched on a device as one graph of its own: recorded once, launched again by one call.

Where launches take longer than what they launch, the host is what a step waits for. No library has graphs by default.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agp.backend._library import Library
from agp.backend._types import Array
from agp.errors import BackendError

__all__ = ["Graphs"]

T = TypeVar("T")


class Graphs(Library):
    """Graphs of launches, and what is needed around them: arrays that are overwritten, numbers that come later."""

    def captures(self, x: Array, /) -> bool:
        """Whether the device of x has graphs, which `capture` records."""
        return False

    def capture(self, f: Callable[[], T], x: Array, /) -> tuple[Callable[[], None], T]:
        """Record what f() launches on the device of x.

        Parameters
        ----------
        f
            It is called several times, to warm up and to be recorded, and each time reads and writes the same arrays.
            When it is recorded nothing is computed: it must read no number, and send none.
        x
            An array on the device.

        Returns
        -------
        replay
            Launches all of it again, after what was launched before.
        found
            What f gave: arrays that each replay fills anew.

        Raises
        ------
        BackendError
            If there are no graphs, or f launches what they cannot hold; the message says what.
        """
        msg = f"backend {self.name!r} records no graphs."
        raise BackendError(msg)

    def overwrite(self, several: Sequence[Array], by: Sequence[Array], /, where: Array) -> None:
        """Write other arrays, which may be views of the same ones, into arrays where a 0-d predicate holds."""
        found = [x if x is y else self.xp.where(where, y, x) for x, y in zip(several, by, strict=True)]
        for x, y in zip(several, found, strict=True):
            if x is not y:
                x[...] = y

    def copies(self, several: Sequence[Array], /) -> list[Array]:
        """New arrays of the same numbers, row after row in memory."""
        return [self.xp.asarray(x, copy=True) for x in several]

    def fetch(self, x: Array, /) -> Callable[[], Any]:
        """Begin to bring x to the host as it is now; the function that waits for it, and gives it as NumPy."""
        found = self.to_numpy(self.xp.asarray(x, copy=True))
        return lambda: found
