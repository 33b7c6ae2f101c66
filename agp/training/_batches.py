"""Minibatches: seeded permutations drawn on the host, the same on every backend."""

import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from agp.backend import Array, backend_of
from agp.host import generator
from agp.updates import Batch

__all__ = ["Batches"]


class Batches:
    """The batch of every step: each epoch reshuffles the rows and drops the last, partial batch.

    The batch of step t depends on the seed and t alone, so a resumed run needs no saved generator.

    Parameters
    ----------
    X, y
        All inputs [N, D] and targets [N, P].
    size
        Rows in a batch; N gives the data as they are, unshuffled.
    seed
        Of the permutations.
    """

    def __init__(self, X: Array, y: Array, size: int, seed: int) -> None:
        self.X, self.y, self.size = X, y, size
        self.per_epoch = X.shape[0] // size
        self._permutation = lru_cache(maxsize=1)(lambda epoch: generator(seed, 2, epoch).permutation(X.shape[0]))

    def indices(self, step: int) -> Any:
        """The rows [B] of a step, as a host array."""
        epoch, i = divmod(step, self.per_epoch)
        return np.ascontiguousarray(self._permutation(epoch)[i * self.size : (i + 1) * self.size])

    def fingerprint(self) -> int:
        """A checksum of the data, to tell whether a checkpoint belongs to them."""
        B = backend_of(self.X)
        return zlib.crc32(B.to_numpy(self.y).tobytes(), zlib.crc32(B.to_numpy(self.X).tobytes()))

    def __getitem__(self, step: int) -> Batch:
        if self.per_epoch == 1 and self.size == self.X.shape[0]:
            return Batch(self.X, self.y, 1.0)
        B = backend_of(self.X)
        rows = B.from_numpy(self.indices(step), device=B.device_name(self.X))
        scale = self.X.shape[0] / self.size
        return Batch(B.xp.take(self.X, rows, axis=0), B.xp.take(self.y, rows, axis=0), scale)
