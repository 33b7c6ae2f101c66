"""The rows that a fit in stages looks at: held out, samples, and all."""

from typing import Any, NamedTuple

import numpy as np

from agp.backend import Array, backend_of, to_numpy
from agp.models import repeated_rows
from agp.random import generator

__all__ = ["HELD_OUT", "Data", "Rows", "Targets", "average", "drawn_rows"]

HELD_OUT = 2000
"""Rows that are held out at the most; a tenth of all otherwise."""


def average(x: Array, weights: Array | None) -> Array:
    """The average of x [N] over the rows, 0-d, with weights [N] if there are any."""
    xp = backend_of(x).xp
    return xp.mean(x) if weights is None else xp.sum(weights * x) / xp.sum(weights)


class Targets(NamedTuple):
    """Targets y [N, P], and how many observations each row counts as [N]; None for one each."""

    y: Array
    weights: Array | None

    @property
    def observations(self) -> float:
        """The number of observations."""
        return self.y.shape[0] if self.weights is None else float(backend_of(self.weights).xp.sum(self.weights))

    def moments(self) -> tuple[Any, Any]:
        """The means and the variances [P], on the host."""
        y, weights = self.on_host()
        mean = np.average(y, axis=0, weights=weights)
        return mean, np.var(y, axis=0) if weights is None else np.average((y - mean) ** 2, axis=0, weights=weights)

    def on_host(self) -> tuple[Any, Any]:
        """Both in double precision."""
        found = [None if x is None else to_numpy(backend_of(x).gathered(x)).astype(np.float64) for x in self]
        return found[0], found[1]


class Data(NamedTuple):
    """Inputs X [N, D], and what `Targets` holds."""

    X: Array
    y: Array
    weights: Array | None

    @property
    def targets(self) -> Targets:
        return Targets(self.y, self.weights)

    @property
    def observations(self) -> float:
        """The number of observations."""
        return self.targets.observations

    def repeated(self) -> tuple[Array, Array]:
        """X and y, each row as often as its weight says, for starting values."""
        return (self.X, self.y) if self.weights is None else repeated_rows(self.X, self.y, self.weights)

    def at(self, index: Any = None, /) -> "Data":
        """Some of the rows, or all, in memory."""
        return Data(*(None if x is None else backend_of(x).gathered(x, index) for x in self))


class Rows(NamedTuple):
    """All rows, and the numbers of some in the order in which they were drawn."""

    data: Data
    held: Any
    """Those that are held out."""
    order: Any
    """Others; each sample is the first of these."""

    @property
    def total(self) -> int:
        """N."""
        return self.data.X.shape[0]

    def first(self, count: int, /) -> Data:
        """The first rows in that order, in memory; as they are if they are all."""
        return self.data.at() if count >= self.total and not len(self.held) else self.data.at(self.order[:count])

    def held_out(self) -> Data:
        return self.data.at(self.held)

    def seen(self, count: int, /) -> Targets:
        """The targets of the first rows, and of those that are held out."""
        index = np.concatenate([self.order[:count], self.held])
        return Targets(*(None if x is None else backend_of(x).gathered(x, index) for x in self.data.targets))


def drawn_rows(data: Data, most: int, seed: int, *, hold_out: bool) -> Rows:
    """Draw rows by the seed: a tenth held out, 2,000 at most, if that is wanted; and at most so many others."""
    N = data.X.shape[0]
    if hold_out and N == 1:
        msg = "X has one row, but a collapsed posterior is chosen by rows that are held out; give method='gpr'."
        raise ValueError(msg)
    held = min(HELD_OUT, max(1, N // 10)) if hold_out else 0
    index = generator(seed, 16).choice(N, min(N, held + most), replace=False)
    return Rows(data, np.sort(index[:held]), index[held:])
