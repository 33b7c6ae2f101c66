"""The order in which an epoch of minibatches takes the rows: seeded, and computable for any part of an epoch."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.backend import Array, backend_of, placed, to_numpy
from agp.chunking import mebibytes
from agp.random import generator

__all__ = ["LISTED", "Order", "Pooled", "Pools", "Rows", "scrambled"]

LISTED = 2**24
"""The most rows whose order is a list; a longer order is computed, in no memory."""
ROUNDS = 4
"""Of a Feistel network; four make its permutations indistinguishable from random ones."""
POOL = 64.0
"""The least size of the rows of a pool, in MiB; two pools are in memory."""
BATCHES = 8
"""The least number of batches in a pool."""

Rows = npt.NDArray[np.int64]
"""Numbers of rows, on the host."""


class Order:
    """A permutation of N rows for each epoch; a list of more than `most_listed` rows is never made."""

    def __init__(self, N: int, seed: int, most_listed: int = LISTED) -> None:
        self.N, self.seed, self.listed = N, seed, most_listed >= N
        self._listed = lru_cache(maxsize=1)(lambda epoch: generator(seed, 2, epoch).permutation(N))
        self._keys = lru_cache(maxsize=1)(lambda epoch: generator(seed, 2, epoch).integers(2**63, size=(ROUNDS, 2)))

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        """The rows at the places from `start` to `stop` of an epoch."""
        if self.listed:
            return np.ascontiguousarray(self._listed(epoch)[start:stop])
        return scrambled(np.arange(start, stop), self.N, self._keys(epoch))


def scrambled(places: Rows, N: int, keys: Any) -> Rows:
    """A pseudo-random permutation of 0, ..., N - 1 at these numbers, in no memory.

    A Feistel network permutes the numbers below 4^b; it is applied again to results beyond N (at most four times on
    average), which permutes the numbers below N.

    Source: Luby & Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", SIAM J. Comput.
    1988; Black & Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
    """
    bits = np.uint64(max(1, -(-(N - 1).bit_length() // 2)))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    found = places.astype(np.uint64)
    out = np.ones(len(found), dtype=bool)
    while out.any():
        left, right = found[out] >> bits, found[out] & mask
        for add, times in keys.astype(np.uint64):
            left, right = right, left ^ (_mixed(right, add, times) & mask)
        found[out] = (left << bits) | right
        out = found >= N
    return found.astype(np.int64)


def _mixed(x: Any, add: np.uint64, times: np.uint64) -> Any:
    """A hash of x in 64 bits: two rounds of multiplication by an odd number and a shift."""
    with np.errstate(over="ignore"):  # modulo 2^64
        x = (x + add) * (times | np.uint64(1))
        x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(32))


class Pools:
    """A permutation of N rows in chunks of these sizes that keeps few chunks in memory at a time.

    An epoch takes the chunks in random order, in pools of at least so many rows, and the rows of a pool at random. A
    minibatch has rows of one or two pools only: shuffle sorted data once, or store them in many small chunks.
    """

    def __init__(self, chunks: tuple[int, ...], seed: int, rows: int) -> None:
        self.chunks, self.seed, self.least = np.asarray(chunks), seed, rows
        self.starts = np.cumsum(self.chunks) - self.chunks
        self.pools = lru_cache(maxsize=2)(self._pools)

    def _pools(self, epoch: int) -> tuple[list[Any], Rows]:
        """The chunks of each pool of an epoch, and where each pool ends."""
        order = generator(self.seed, 2, epoch).permutation(len(self.chunks))
        ends, pools, begin = np.cumsum(self.chunks[order]), [], 0
        for i in range(len(order)):
            seen = ends[i] - (ends[begin - 1] if begin else 0)
            if seen >= self.least or i + 1 == len(order):
                pools.append(order[begin : i + 1])
                begin = i + 1
        return pools, np.cumsum([self.chunks[pool].sum() for pool in pools])

    def parts(self, epoch: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The places from `start` to `stop` of an epoch, as parts (pool, start, stop) of pools."""
        _, ends = self.pools(epoch)
        found, first = [], int(np.searchsorted(ends, start, side="right"))
        for pool in range(first, len(ends)):
            begin = int(ends[pool - 1]) if pool else 0
            found.append((pool, max(start - begin, 0), min(stop, int(ends[pool])) - begin))
            if ends[pool] >= stop:
                break
        return found

    def members(self, epoch: int, pool: int) -> tuple[Any, Rows]:
        """The chunks of a pool, and the order of their rows [n]."""
        chunks = self.pools(epoch)[0][pool]
        return chunks, generator(self.seed, 13, epoch, pool).permutation(int(self.chunks[chunks].sum()))

    def numbers(self, epoch: int, pool: int) -> Rows:
        """The numbers of the rows of a pool among all rows, in their order."""
        chunks, order = self.members(epoch, pool)
        listed = [int(self.starts[i]) + np.arange(int(self.chunks[i])) for i in chunks]
        return np.concatenate(listed)[order]


class Pooled:
    """The rows of batches of a dask array, pool by pool; the next pool is fetched while steps run.

    Batches are arrays like the reference, or stay in the dask array if `in_place`.
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
        order = np.argsort(numbers)  # in place, each chunk is read once; the same order in both ways
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
