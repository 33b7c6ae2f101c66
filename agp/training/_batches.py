"""Seeded minibatches, which are the same on every backend, and the random draws for training steps."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from agp.backend import Array, Backend, asarray_like, backend_of
from agp.bounds import Batch
from agp.random import NO_DRAWS, Draws, generator
from agp.training._order import Order, Pooled

Place = Literal["host", "device"]

NOISE_STEPS, NOISE_MIB = 10, 16.0
"""The number of steps whose noise is sent to a device in one transfer, and the maximum size of a transfer in MiB."""


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
        """Build the batch of these rows [B], or of all rows if `rows` is None. This function can be traced.

        `data` are the arrays X, y, weights, offset and noise of all rows; the last three may be None.
        """
        if rows is None:
            return _batch(data, 1.0, None, draws)
        X: Any = data[0]
        B = backend_of(X)
        here = tuple(None if x is None else B.rows_at(x, rows) for x in data)
        return _batch(here, X.shape[0] / self.size, rows, draws)

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
        """Draw the noise for a step with the random generator in X's library; the step may be a traced array."""
        if self.draws is None:
            return NO_DRAWS
        return place_draws(X, self.draws(backend_of(X).generator(X, self.seed, 3, step), self.size))


def fingerprint_of(data: tuple[Array | None, ...]) -> int:
    """Return a checksum of the arrays X, y and what is known of rows, which depends on which of them are given."""
    arrays = tuple(x for x in data if x is not None)
    given = sum(1 << 32 + i for i, x in enumerate(data[2:]) if x is not None)
    return backend_of(arrays[0]).checksum(arrays) + given


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


def check_place(draws: Any) -> Place:
    """Return `draws`; raise ValueError unless it is "host" or "device"."""
    if draws not in ("host", "device"):
        msg = f"draws is {draws!r}, but must be 'host' or 'device'."
        raise ValueError(msg)
    return draws
