"""The rows of a training step."""

from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of
from agp.random import NO_DRAWS, Draws

__all__ = ["Batch"]


class Batch(NamedTuple):
    """All rows, or a minibatch, with what is known of each row."""

    X: Array
    """Inputs [B, D]."""
    y: Array
    """Targets [B, K]."""
    scale: float | Array = 1.0
    """The factor N / B by which sums over the rows are multiplied."""
    rows: Array | None = None
    """The indices [B] of these rows in the data; None for all data in order."""
    draws: Draws = NO_DRAWS
    """The noise and the probes of the step."""
    weights: Array | None = None
    """The weights [B]: the number of observations that each row represents. None means 1."""
    offset: Array | None = None
    """Numbers [B, 1] or [B, P] that are added to the latent functions, such as log exposures. None means 0."""
    noise: Array | None = None
    """Known noise variances [B, 1] or [B, P], which are added to the trained noise variance. None means 0."""

    @property
    def known(self) -> tuple[Array | None, Array | None, Array | None]:
        """The weights, the offset and the noise."""
        return self.weights, self.offset, self.noise

    def take(self, rows: Callable[[Array], Array]) -> "Batch":
        """Return a batch of some rows, which the function takes from each array."""
        parts = {name: getattr(self, name) for name in ("X", "y", "weights", "offset", "noise")}
        return self._replace(**{name: None if x is None else rows(x) for name, x in parts.items()})

    def tile(self, samples: int) -> "Batch":
        """Repeat targets, weights, offset and noise along axis 0, for each of S samples of the latent functions."""
        if samples <= 1:
            return self
        parts = {name: getattr(self, name) for name in ("y", "weights", "offset", "noise")}
        return self._replace(**{name: repeat_rows(x, samples) for name, x in parts.items()})


def repeat_rows(x: Array | None, samples: int) -> Array | None:
    """Repeat an array along axis 0 for each of S samples; None stays None."""
    return x if x is None or samples <= 1 else backend_of(x).xp.concat([x] * samples, axis=0)
