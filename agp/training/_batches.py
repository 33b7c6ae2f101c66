"""Seeded minibatches, which are the same on every backend: the random order of the rows, and the draws of steps.

Any part of the order can be computed from the seed.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agp.backend import Array, Backend, asarray_like, backend_of, to_numpy
from agp.bounds import Batch
from agp.chunking import mebibytes
from agp.random import NO_DRAWS, Draws, generator

MAX_LISTED_ROWS = 2**24
"""The order of at most this many rows is stored as a list. Longer orders are computed without storing them."""
ROUNDS = 4
"""The number of rounds of a Feistel network; with four rounds, its permutations look like random permutations."""
POOL_MIB = 64.0
"""The minimum size of a pool of rows, in MiB. Two pools are in memory at a time."""
BATCHES = 8
"""The minimum number of batches in a pool."""
NOISE_STEPS, NOISE_MIB = 10, 16.0
"""The number of steps whose noise is sent to a device in one transfer, and the maximum size of a transfer in MiB."""

Place = Literal["host", "device"]
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


# -- batches ----------------------------------------------------------------------------------------------------------


class Batches:
    """Minibatches by step number. Rows are reshuffled in each epoch, and an incomplete last batch is dropped.

    The batch for step t depends only on t and the seed, so no random generator is stored in checkpoints.

    Parameters
    ----------
    X, y
        All inputs [N, D] and targets [N, P]. Batches of a dask array are fetched in advance, a few chunks at a time.
    size
        Number of rows in a batch. If `size` is N, each batch contains all rows in the original order.
    seed
        The seed for the permutations and the draws.
    draws
        A function that draws the noise for a step with a given number of rows (`agp.models.Model._draws`).
    place
        Where the noise is drawn: "host" or "device". Noise from the host is the same for every library.
    known
        The weights, the offset and the noise of all rows; see `Batch`.
    reference
        An array with the desired library and device of the batches; required if the rows are in a dask array.
    in_place
        If True, batches stay in the dask array, and each worker evaluates its share of a step.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        size: int,
        seed: int,
        draws: Callable[[Any, int], Draws] | None = None,
        place: Place = "host",
        *,
        known: tuple[Array | None, ...] = (None, None, None),
        reference: Array | None = None,
        in_place: bool = False,
    ) -> None:
        if draws is not None and not any(draws(generator(seed, 3, 0), 1)):
            draws = None  # creating a generator takes longer than some steps
        self.data = (X, y, *known)
        self.X, self.size, self.seed, self.draws = X, size, seed, draws
        self.draws_on_device = place == "device"
        self.per_epoch = X.shape[0] // size
        self.order = Order(X.shape[0], seed)
        self.reference = X if reference is None else reference
        self.pooled = None
        if backend_of(X).is_lazy and not self.whole:
            self.pooled = Pooled(self.data, size, seed, self.reference, in_place=in_place)
        self._placed = lru_cache(maxsize=1)(lambda epoch: asarray_like(self.order.rows(epoch, 0, X.shape[0]), X))
        self._joined_draws = lru_cache(maxsize=1)(self._together)

    @property
    def backend(self) -> Backend:
        """The array library that holds the batches and evaluates the steps."""
        moved = self.pooled is not None and not self.pooled.in_place
        return backend_of(self.reference if moved else self.X)

    def indices(self, step: int) -> Any:
        """Return the row numbers [B] of a step, as a host array."""
        epoch, here = self._place(step)
        if self.pooled is not None:
            return self.pooled.indices(epoch, here.start, here.stop)
        return self.order.rows(epoch, here.start, here.stop)

    def _place(self, step: int) -> tuple[int, slice]:
        """Return the epoch of a step, and the slice of the permutation that contains the rows of the step."""
        epoch, i = divmod(step, self.per_epoch)
        return epoch, slice(i * self.size, (i + 1) * self.size)

    def fingerprint(self) -> int:
        """Return a checksum of the data, for checkpoints."""
        return fingerprint_of(self.data)

    @property
    def whole(self) -> bool:
        """Whether each batch contains all rows."""
        return self.size == self.X.shape[0]

    def __getitem__(self, step: int) -> Batch:
        return self.of_parts(*self.parts(step))

    def parts(self, step: int) -> tuple[Any, Draws]:
        """Return the parts of a batch that depend on the step: the rows (None for all rows) and the noise."""
        if self.draws is None:
            draws = NO_DRAWS
        else:
            draws = self.device_draws(self.reference, step) if self.draws_on_device else self._draws_from_host(step)
        if self.pooled is None:
            return None if self.whole else self._rows(step), draws
        epoch, here = self._place(step)
        return self.pooled.rows(epoch, here.start, here.stop), draws

    def of_parts(self, rows: Any, draws: Draws) -> Batch:
        """Build the batch from what `parts` returns."""
        if self.pooled is None:
            return self.of(self.data, rows, draws)
        data, places = rows
        return _batch(data, self.X.shape[0] / self.size, places, draws)

    def _rows(self, step: int) -> Array:
        """Return the row numbers [B] of a step. One transfer sends the row numbers of a whole epoch to the device."""
        epoch, here = self._place(step)
        return self._placed(epoch)[here] if self.order.listed else asarray_like(self.indices(step), self.X)

    def of(self, data: tuple[Array | None, ...], rows: Array | None, draws: Draws) -> Batch:
        """Build the batch of these rows, as `batch_of` does."""
        return batch_of(data, rows, draws, self.size)

    def host_draws(self, step: int) -> Draws:
        """Return the noise of a step on the host, or empty draws if the device draws the noise."""
        if self.draws is None or self.draws_on_device:
            return NO_DRAWS
        return self.draws(generator(self.seed, 3, step), self.size)

    def _draws_from_host(self, step: int) -> Draws:
        """Draw the noise of a step on the host; return it in arrays of the batches' library."""
        if backend_of(self.reference).reading_waits(self.reference):
            group, i = divmod(step, NOISE_STEPS)
            if (several := self._joined_draws(group)) is not None:
                return Draws(*({name: x[i, ...] for name, x in part.items()} for part in several))
        return place_draws(self.reference, self.host_draws(step))

    def _together(self, group: int) -> Draws | None:
        """Return the noise of several steps, stacked along a new first axis, or None if it takes too much memory."""
        first = self.host_draws(group * NOISE_STEPS)
        if sum(x.nbytes for part in first for x in part.values()) * NOISE_STEPS > NOISE_MIB * 2**20:
            return None
        several = [first, *(self.host_draws(group * NOISE_STEPS + i) for i in range(1, NOISE_STEPS))]
        parts = ({name: np.stack([one[k][name] for one in several]) for name in first[k]} for k in range(2))
        return place_draws(self.reference, Draws(*parts))

    def device_draws(self, X: Array, step: int | Array) -> Draws:
        """Draw the noise for a step with the random generator in X's library."""
        return NO_DRAWS if self.draws is None else draw_on_device(self.draws, X, self.seed, step, self.size)

    @property
    def device_seed(self) -> int | None:
        """The seed if the device draws noise, or None if there is no noise or the host draws it."""
        return self.seed if self.draws_on_device and self.draws is not None else None


def fingerprint_of(data: tuple[Array | None, ...]) -> int:
    """Return a checksum of the arrays X, y and what is known of rows, which depends on which of them are given."""
    arrays = tuple(x for x in data if x is not None)
    given = sum(1 << 32 + i for i, x in enumerate(data[2:]) if x is not None)
    return backend_of(arrays[0]).checksum(arrays) + given


def batch_of(data: tuple[Array | None, ...], rows: Array | None, draws: Draws, size: int) -> Batch:
    """Build the batch of these rows [size], or of all rows if `rows` is None. This function can be traced.

    `data` are the arrays X, y, weights, offset and noise of all rows; the last three may be None.
    """
    if rows is None:
        return _batch(data, 1.0, None, draws)
    X: Any = data[0]
    B = backend_of(X)
    here = tuple(None if x is None else B.rows_at(x, rows) for x in data)
    return _batch(here, X.shape[0] / size, rows, draws)


def draw_on_device(draws: Callable[[Any, int], Draws], X: Array, seed: int, step: int | Array, size: int) -> Draws:
    """Draw the noise for a step with the random generator in X's library; the step may be a traced array."""
    return place_draws(X, draws(backend_of(X).generator(X, seed, 3, step), size))


def _batch(data: Any, scale: float, rows: Array | None, draws: Draws) -> Batch:
    X, y, *known = data
    return Batch(X, y, scale, rows, draws, *known)


def place_draws(X: Array, draws: Draws) -> Draws:
    """Convert the draws to the library and device of X, and floats to the dtype of X."""
    if draws is NO_DRAWS:
        return draws
    B = backend_of(X)

    def one(x: Any) -> Array:
        if backend_of(x) is not B or isinstance(x, np.ndarray):
            return asarray_like(x, X)
        return B.xp.astype(x, X.dtype) if B.xp.isdtype(x.dtype, "real floating") else x

    return Draws(*({name: one(x) for name, x in part.items()} for part in draws))
