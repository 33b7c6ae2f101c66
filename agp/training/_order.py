"""In which order an epoch of minibatches sees the rows: seeded, and known for any part of it by itself."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.random import generator

__all__ = ["LISTED", "Order", "Pools", "Rows", "scrambled"]

LISTED = 2**24
"""Up to so many rows an order is a list of all; of more it is computed, in no memory."""
ROUNDS = 4
"""Of a Feistel network: with four, its permutations cannot be told from random ones by what they map."""

Rows = npt.NDArray[np.int64]
"""Numbers of rows, on the host."""


class Order:
    """A permutation of N rows for each epoch.

    Parameters
    ----------
    N
        The number of rows.
    seed
        Of the permutations.
    most_listed
        Of more rows than these the order is computed, in no memory; up to so many it is a list of all.
    """

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
    """Where a pseudo-random permutation of 0, ..., N - 1 maps these numbers; it takes no memory.

    A Feistel network permutes the 2 b bits of numbers below 4^b; what it maps beyond N it maps again, until it is below
    (at most four times on average), which permutes those below N.

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
    """A permutation of N rows in chunks that lets few chunks lie in memory at a time.

    An epoch takes the chunks in random order, some of them together as a pool, and the rows of a pool in random order.
    Where neighbours in the data are alike, so are the rows of a chunk, and a minibatch sees no more kinds of rows than
    its pool has: data that are sorted want many small chunks, or to be shuffled once.

    Parameters
    ----------
    chunks
        The number of rows in each chunk.
    seed
        Of the permutations.
    rows
        How many rows a pool has at least.
    """

    def __init__(self, chunks: tuple[int, ...], seed: int, rows: int) -> None:
        self.chunks, self.seed, self.least = np.asarray(chunks), seed, rows
        self.starts = np.cumsum(self.chunks) - self.chunks
        self.pools = lru_cache(maxsize=2)(self._pools)

    def _pools(self, epoch: int) -> tuple[list[Any], Rows]:
        """The chunks of each pool of an epoch, and where each pool ends in it."""
        order = generator(self.seed, 2, epoch).permutation(len(self.chunks))
        ends, pools, begin = np.cumsum(self.chunks[order]), [], 0
        for i in range(len(order)):
            seen = ends[i] - (ends[begin - 1] if begin else 0)
            if seen >= self.least or i + 1 == len(order):
                pools.append(order[begin : i + 1])
                begin = i + 1
        return pools, np.cumsum([self.chunks[pool].sum() for pool in pools])

    def parts(self, epoch: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """What lies at the places from `start` to `stop` of an epoch: parts (pool, start, stop) of pools."""
        _, ends = self.pools(epoch)
        found, first = [], int(np.searchsorted(ends, start, side="right"))
        for pool in range(first, len(ends)):
            begin = int(ends[pool - 1]) if pool else 0
            found.append((pool, max(start - begin, 0), min(stop, int(ends[pool])) - begin))
            if ends[pool] >= stop:
                break
        return found

    def members(self, epoch: int, pool: int) -> tuple[Any, Rows]:
        """The chunks of a pool, and in which order their rows are taken [n]."""
        chunks = self.pools(epoch)[0][pool]
        return chunks, generator(self.seed, 13, epoch, pool).permutation(int(self.chunks[chunks].sum()))

    def numbers(self, epoch: int, pool: int) -> Rows:
        """The numbers of the rows of a pool among all rows, in the order in which they are taken."""
        chunks, order = self.members(epoch, pool)
        listed = [int(self.starts[i]) + np.arange(int(self.chunks[i])) for i in chunks]
        return np.concatenate(listed)[order]
