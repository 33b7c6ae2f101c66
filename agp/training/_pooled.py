"""Minibatches of rows that lie elsewhere, from a few chunks at a time; the next are fetched while steps run."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from agp.backend import Array, backend_of, placed, to_numpy
from agp.chunking import mebibytes
from agp.training._order import Pools, Rows

__all__ = ["Pooled"]

POOL = 64.0
"""What the rows of a pool take at least, in MiB: this one and the next are in memory."""
BATCHES = 8
"""How many batches a pool gives at least."""


class Pooled:
    """The rows of batches, pool by pool.

    Parameters
    ----------
    X, y
        All inputs [N, D] and targets [N, P], which lie elsewhere.
    size
        Rows in a batch.
    seed
        Of the order.
    reference
        An array of the library and device that batches are wanted on.
    in_place
        Whether batches stay where they are.
    """

    def __init__(self, X: Array, y: Array, size: int, seed: int, reference: Array, *, in_place: bool) -> None:
        self.source, self.reference, self.in_place = backend_of(X), reference, in_place
        self.X, self.y, chunks = self.source.in_chunks(X, y)
        floats = X.shape[1] + y.shape[1]
        least = max(BATCHES * size, int(POOL / mebibytes(floats, reference)))
        self.pools = Pools(chunks, seed, least)
        self.ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agp-rows")
        self.fetched: OrderedDict[tuple[int, int], Future] = OrderedDict()

    def indices(self, epoch: int, start: int, stop: int) -> Rows:
        """The rows at these places of an epoch, on the host."""
        parts = self.pools.parts(epoch, start, stop)
        return np.concatenate([self.pools.numbers(epoch, pool)[here:there] for pool, here, there in parts])

    def rows(self, epoch: int, start: int, stop: int) -> tuple[Array, Array, Array]:
        """X, y and their numbers among all rows, at these places of an epoch."""
        numbers = self.indices(epoch, start, stop)
        order = np.argsort(numbers)  # so that each chunk is looked at once in place; and then in both ways
        if self.in_place:
            X, y = (self.source.selected(x, numbers[order]) for x in (self.X, self.y))
        else:
            parts = self.pools.parts(epoch, start, stop)
            several = [[x[here:there] for x in self._pool(epoch, pool)] for pool, here, there in parts]
            X, y = (placed(np.concatenate(column)[order], self.reference) for column in zip(*several, strict=True))
        return X, y, placed(numbers[order], self.reference)

    def _pool(self, epoch: int, pool: int) -> tuple[Any, Any]:
        """The rows of a pool in their order, on the host; the next pool begins to be fetched."""
        last = len(self.pools.pools(epoch)[0]) - 1
        following = (epoch, pool + 1) if pool < last else (epoch + 1, 0)
        for key in ((epoch, pool), following):
            if key not in self.fetched:
                self.fetched[key] = self.ahead.submit(self._fetch, *key)
        found = self.fetched[epoch, pool].result()
        while len(self.fetched) > 3:  # a batch may lie across two pools
            self.fetched.popitem(last=False)
        return found

    def _fetch(self, epoch: int, pool: int) -> tuple[Any, Any]:
        chunks, order = self.pools.members(epoch, pool)
        X, y = self.source.chunks_of((self.X, self.y), chunks)
        return to_numpy(X)[order], to_numpy(y)[order]
