"""The random order of the rows in an epoch of minibatches; any part of the order can be computed from the seed."""

import math
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.chunking import mebibytes
from agp.random import generator

MAX_LISTED_ROWS = 2**24
"""The order of at most this many rows is stored as a list. Longer orders are computed without storing them."""
ROUNDS = 4
"""The number of rounds of a Feistel network; with four rounds, its permutations look like random permutations."""
POOL_MIB = 64.0
"""The minimum size of a pool of rows, in MiB. Two pools are in memory at a time."""
BATCHES = 8
"""The minimum number of batches in a pool."""

Rows = npt.NDArray[np.int64]
"""Row numbers, on the host."""


class Order:
    """A permutation of N rows for each epoch, stored as a list only if N is at most `most_listed`."""

    def __init__(self, N: int, seed: int, most_listed: int = MAX_LISTED_ROWS) -> None:
        self.N, self.listed = N, most_listed >= N
        self._listed = lru_cache(maxsize=1)(lambda epoch: generator(seed, 2, epoch).permutation(N))
        self._keys = lru_cache(maxsize=1)(lambda epoch: generator(seed, 2, epoch).integers(2**63, size=(ROUNDS, 2)))

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        """Return the rows at positions `start` to `stop` of an epoch."""
        if self.listed:
            return np.ascontiguousarray(self._listed(epoch)[start:stop])
        return permute_index(np.arange(start, stop), self.N, self._keys(epoch))


def permute_index(places: Rows, N: int, keys: Any) -> Rows:
    """Apply a pseudo-random permutation of 0, ..., N - 1 to the numbers `places`, without storing the permutation.

    A Feistel network permutes the numbers below 4^b. A result of N or more is permuted again until it is below N, which
    gives a permutation of the numbers below N. On average, a number is permuted at most four times.

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
            left, right = right, left ^ (_hash64(right, add, times) & mask)
        found[out] = (left << bits) | right
        out = found >= N
    return found.astype(np.int64)


def _hash64(x: Any, add: np.uint64, times: np.uint64) -> Any:
    """Hash x to 64 bits with two multiplications by odd numbers, each followed by a shift."""
    with np.errstate(over="ignore"):  # modulo 2^64
        x = (x + add) * (times | np.uint64(1))
        x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(32))


class Pools:
    """A permutation of N rows that are stored in chunks; only a few chunks are in memory at a time.

    In each epoch, the chunks are taken in random order and grouped into pools of at least `rows` rows, and the rows of
    each pool are shuffled. A minibatch contains rows from only one or two pools, so sorted data should be shuffled once
    beforehand, or stored in many small chunks.
    """

    def __init__(self, chunks: tuple[int, ...], seed: int, rows: int) -> None:
        self.chunks, self.seed, self.least = np.asarray(chunks), seed, rows
        self.starts = np.cumsum(self.chunks) - self.chunks
        self.pools = lru_cache(maxsize=2)(self._pools)

    def _pools(self, epoch: int) -> tuple[list[Any], Rows]:
        """Return the chunks and the end position of each pool in an epoch."""
        order = generator(self.seed, 2, epoch).permutation(len(self.chunks))
        ends, pools, begin = np.cumsum(self.chunks[order]), [], 0
        for i in range(len(order)):
            seen = ends[i] - (ends[begin - 1] if begin else 0)
            if seen >= self.least or i + 1 == len(order):
                pools.append(order[begin : i + 1])
                begin = i + 1
        return pools, np.cumsum([self.chunks[pool].sum() for pool in pools])

    def parts(self, epoch: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Split these positions of an epoch by pool; return (pool, start, stop), counted from the start of the pool."""
        _, ends = self.pools(epoch)
        found, first = [], int(np.searchsorted(ends, start, side="right"))
        for pool in range(first, len(ends)):
            begin = int(ends[pool - 1]) if pool else 0
            found.append((pool, max(start - begin, 0), min(stop, int(ends[pool])) - begin))
            if ends[pool] >= stop:
                break
        return found

    def members(self, epoch: int, pool: int) -> tuple[Any, Rows]:
        """Return the chunks of a pool, and the order [n] of their rows."""
        chunks = self.pools(epoch)[0][pool]
        return chunks, generator(self.seed, 13, epoch, pool).permutation(int(self.chunks[chunks].sum()))

    def numbers(self, epoch: int, pool: int) -> Rows:
        """Return the row numbers of a pool, in the order of the pool."""
        chunks, order = self.members(epoch, pool)
        listed = [int(self.starts[i]) + np.arange(int(self.chunks[i])) for i in chunks]
        return np.concatenate(listed)[order]


class Pooled:
    """Batches of a dask array, taken from one pool after another. The next pool is fetched while steps run.

    Batches have the library, device and dtype of `reference`. With `in_place`, batches stay in the dask array.
    """

    def __init__(
        self, data: tuple[Array | None, ...], size: int, seed: int, reference: Array, *, in_place: bool
    ) -> None:
        self.given = [x is not None for x in data]
        rows: Any = tuple(x for x in data if x is not None)
        self.source, self.reference, self.in_place = backend_of(rows[0]), reference, in_place
        self.rows_of_data, chunks = self.source.in_chunks(rows)
        floats = sum(math.prod(x.shape[1:]) for x in rows)
        least = max(BATCHES * size, int(POOL_MIB / mebibytes(floats, reference)))
        self.pools = Pools(chunks, seed, least)
        self.ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agp-rows")
        self.fetched: OrderedDict[tuple[int, int], Future] = OrderedDict()

    def indices(self, epoch: int, start: int, stop: int) -> Rows:
        """Return the rows at these positions of an epoch, on the host."""
        parts = self.pools.parts(epoch, start, stop)
        return np.concatenate([self.pools.numbers(epoch, pool)[here:there] for pool, here, there in parts])

    def rows(self, epoch: int, start: int, stop: int) -> tuple[tuple[Array | None, ...], Array]:
        """Return the arrays of the data, with None where none is given, and the row numbers at these positions."""
        numbers = self.indices(epoch, start, stop)
        order = np.argsort(numbers)  # in place, sorted rows read each chunk once; otherwise, the order is the same
        if self.in_place:
            found = [self.source.take_rows(x, numbers[order]) for x in self.rows_of_data]
        else:
            parts = self.pools.parts(epoch, start, stop)
            several = [[x[here:there] for x in self._pool(epoch, pool)] for pool, here, there in parts]
            columns = (np.concatenate(column)[order] for column in zip(*several, strict=True))
            found = [asarray_like(column, self.reference) for column in columns]
        here = iter(found)
        return tuple(next(here) if given else None for given in self.given), asarray_like(
            numbers[order], self.reference
        )

    def _pool(self, epoch: int, pool: int) -> tuple[Any, ...]:
        """Return the shuffled rows of a pool on the host, and start to fetch the next pool."""
        last = len(self.pools.pools(epoch)[0]) - 1
        following = (epoch, pool + 1) if pool < last else (epoch + 1, 0)
        for key in ((epoch, pool), following):
            if key not in self.fetched:
                self.fetched[key] = self.ahead.submit(self._fetch, *key)
        found = self.fetched[epoch, pool].result()
        while len(self.fetched) > 3:  # a batch may span two pools
            self.fetched.popitem(last=False)
        return found

    def _fetch(self, epoch: int, pool: int) -> tuple[Any, ...]:
        chunks, order = self.pools.members(epoch, pool)
        return tuple(to_numpy(x)[order] for x in self.source.chunks_of(self.rows_of_data, chunks))
