"""The rows that a fit in stages looks at: held out, samples, and all."""

from typing import Any, NamedTuple

import numpy as np

from agp.backend import Array, backend_of
from agp.host import generator

__all__ = ["HELD_OUT", "Rows", "drawn_rows"]

HELD_OUT = 2000
"""Rows that are held out at the most; a tenth of all otherwise."""


class Rows(NamedTuple):
    """Data X [N, D] and y [N, P], and the numbers of some rows in the order in which they were drawn."""

    X: Array
    y: Array
    held: Any
    """Those that are held out."""
    order: Any
    """Others; each sample is the first of these."""

    @property
    def total(self) -> int:
        """N."""
        return self.X.shape[0]

    def first(self, count: int, /) -> tuple[Array, Array]:
        """The first rows in that order, in memory; as they are if they are all."""
        if count >= self.total and not len(self.held):
            return backend_of(self.X).gathered(self.X), backend_of(self.y).gathered(self.y)
        return self._at(self.order[:count])

    def held_out(self) -> tuple[Array, Array]:
        return self._at(self.held)

    def seen(self, count: int, /) -> Array:
        """The targets of the first rows, and of those that are held out."""
        return backend_of(self.y).gathered(self.y, np.concatenate([self.order[:count], self.held]))

    def _at(self, index: Any) -> tuple[Array, Array]:
        return backend_of(self.X).gathered(self.X, index), backend_of(self.y).gathered(self.y, index)


def drawn_rows(X: Array, y: Array, most: int, seed: int, *, hold_out: bool) -> Rows:
    """Draw rows by the seed: a tenth held out, 2,000 at most, if that is wanted; and at most so many others."""
    N = X.shape[0]
    if hold_out and N == 1:
        msg = "X has one row, but a collapsed posterior is chosen by rows that are held out; give method='gpr'."
        raise ValueError(msg)
    held = min(HELD_OUT, max(1, N // 10)) if hold_out else 0
    index = generator(seed, 16).choice(N, min(N, held + most), replace=False)
    return Rows(X, y, np.sort(index[:held]), index[held:])
