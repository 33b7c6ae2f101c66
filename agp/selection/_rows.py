"""The rows of a fit in stages: all, samples, and those held out."""

from typing import Any, NamedTuple

import numpy as np

from agp.backend import Array, backend_of, to_numpy
from agp.models import repeated_rows
from agp.random import generator

__all__ = ["HELD_OUT", "Data", "Rows", "average", "drawn_rows"]

HELD_OUT = 2000
"""The most rows that are held out; a tenth of all if that is less."""


def average(x: Array, weights: Array | None) -> Array:
    """The average of x [N] over the rows, 0-d, with weights [N] if given."""
    xp = backend_of(x).xp
    return xp.mean(x) if weights is None else xp.sum(weights * x) / xp.sum(weights)


class Data(NamedTuple):
    """Inputs X [N, D], targets y [N, P], and how many observations each row counts as [N]; None for one each."""

    X: Any
    """None where only the targets matter."""
    y: Array
    weights: Array | None

    @property
    def observations(self) -> float:
        """The number of observations."""
        return self.y.shape[0] if self.weights is None else float(backend_of(self.weights).xp.sum(self.weights))

    def targets_on_host(self) -> tuple[Any, Any]:
        """Targets and weights in float64."""
        found = [None if x is None else to_numpy(backend_of(x).gathered(x)).astype(np.float64) for x in self[1:]]
        return found[0], found[1]

    def moments(self) -> tuple[Any, Any]:
        """The means and the variances [P] of the targets, on the host."""
        y, weights = self.targets_on_host()
        mean = np.average(y, axis=0, weights=weights)
        return mean, np.var(y, axis=0) if weights is None else np.average((y - mean) ** 2, axis=0, weights=weights)

    def repeated(self) -> tuple[Array, Array]:
        """X and y, each row repeated by its weight, for starting values."""
        return (self.X, self.y) if self.weights is None else repeated_rows(self.X, self.y, self.weights)

    def at(self, index: Any = None, /) -> "Data":
        """Some of the rows, or all, in memory."""
        return Data(*(None if x is None else backend_of(x).gathered(x, index) for x in self))


class Rows(NamedTuple):
    """All rows, and the numbers of some of them."""

    data: Data
    held: Any
    """The rows held out."""
    order: Any
    """Other rows in random order; samples are the first of these."""

    @property
    def total(self) -> int:
        """N."""
        return self.data.X.shape[0]

    def first(self, count: int, /) -> Data:
        """The first rows in that order, in memory; in their own order if they are all."""
        return self.data.at() if count >= self.total and not len(self.held) else self.data.at(self.order[:count])

    def held_out(self) -> Data:
        return self.data.at(self.held)

    def targets_seen(self, count: int, /) -> Data:
        """The targets of the first rows and of those held out."""
        return self.data._replace(X=None).at(np.concatenate([self.order[:count], self.held]))


def drawn_rows(data: Data, most: int, seed: int, *, hold_out: bool) -> Rows:
    """Draw rows by the seed: at most so many, and if asked a tenth to hold out, but at most 2,000."""
    N = data.X.shape[0]
    if hold_out and N == 1:
        msg = "X has one row, but a collapsed posterior is chosen by rows that are held out; give method='gpr'."
        raise ValueError(msg)
    held = min(HELD_OUT, max(1, N // 10)) if hold_out else 0
    index = generator(seed, 16).choice(N, min(N, held + most), replace=False)
    return Rows(data, np.sort(index[:held]), index[held:])
