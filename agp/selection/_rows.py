"""The rows for a staged fit: all rows, samples of them, and held-out rows."""

import math
from typing import Any, NamedTuple

import numpy as np

from agp.backend import Array, backend_of, to_numpy
from agp.models import repetitions
from agp.random import generator

HELD_OUT = 2000
"""The maximum number of held-out rows."""


def average(x: Array, weights: Array | None) -> Array:
    """Return the average of x [N] over the rows, weighted if weights [N] are given."""
    xp = backend_of(x).xp
    return xp.mean(x) if weights is None else xp.sum(weights * x) / xp.sum(weights)


def finite_average(x: Array, weights: Array | None) -> float:
    """Return `average`, or -inf if it is not finite."""
    found = float(average(x, weights))
    return found if math.isfinite(found) else -math.inf


class Data(NamedTuple):
    """Rows with inputs [N, D] and targets [N, P]."""

    X: Any
    """None if only the targets are needed."""
    y: Array
    weights: Array | None = None
    """The number of observations [N] that each row represents; None means one."""
    noise: Array | None = None
    """Known noise variances [N]; None means 0."""

    @property
    def observations(self) -> float:
        """The number of observations."""
        return self.y.shape[0] if self.weights is None else float(backend_of(self.weights).xp.sum(self.weights))

    def targets_on_host(self) -> tuple[Any, Any]:
        """Return the targets and the weights on the host, in float64."""
        y, weights = (
            None if x is None else to_numpy(backend_of(x).gather(x)).astype(np.float64) for x in (self.y, self.weights)
        )
        return y, weights

    def moments(self) -> tuple[Any, Any]:
        """Return the means and the variances [P] of the targets, on the host."""
        y, weights = self.targets_on_host()
        mean = np.average(y, axis=0, weights=weights)
        return mean, np.average((y - mean) ** 2, axis=0, weights=weights)

    def repeat_rows(self) -> tuple[Array, Array]:
        """Return X and y with each row repeated according to its weight, for computing starting values."""
        index = None if self.weights is None else repetitions(to_numpy(self.weights))
        return (self.X, self.y) if index is None else tuple(backend_of(x).gather(x, index) for x in (self.X, self.y))

    def on_host(self) -> "Data":
        """Return the rows on the host, in float64."""
        return Data(*(None if x is None else to_numpy(x).astype(np.float64) for x in self))

    def at(self, index: Any = None, /) -> "Data":
        """Return the rows with these indices, or all rows, as arrays in memory."""
        return Data(*(None if x is None else backend_of(x).gather(x, index) for x in self))


class Rows(NamedTuple):
    """All rows, and the row numbers of the samples and of the held-out rows."""

    data: Data
    held: Any
    """The numbers of the held-out rows."""
    order: Any
    """The numbers of the other rows in random order; each sample consists of the first of them."""

    @property
    def total(self) -> int:
        """The number of rows N."""
        return self.data.X.shape[0]

    def first(self, count: int, /) -> Data:
        """Return the first rows of the sample, in memory. If `count` covers all rows, they keep their order."""
        return self.data.at() if count >= self.total and not len(self.held) else self.data.at(self.order[:count])

    def held_out(self) -> Data:
        return self.data.at(self.held)

    def targets_seen(self, count: int, /) -> Data:
        """Return the targets of the first rows and of the held-out rows."""
        return self.data._replace(X=None).at(np.concatenate([self.order[:count], self.held]))


def subsample_rows(data: Data, most: int, seed: int, *, hold_out: bool) -> Rows:
    """Draw a sample of at most `most` rows. If `hold_out` is true, also draw a tenth of all rows, but at most 2,000."""
    N = data.X.shape[0]
    if hold_out and N == 1:
        msg = "X has one row, but two are needed, because one row is held out; pass method='gpr'."
        raise ValueError(msg)
    held = min(HELD_OUT, max(1, N // 10)) if hold_out else 0
    index = generator(seed, 16).choice(N, min(N, held + most), replace=False)
    return Rows(data, np.sort(index[:held]), index[held:])
