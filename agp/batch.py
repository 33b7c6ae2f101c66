"""The rows of a training step."""

from typing import NamedTuple

from agp.backend import Array
from agp.random import NO_DRAWS, Draws

__all__ = ["Batch"]


class Batch(NamedTuple):
    """All data, or a minibatch."""

    X: Array
    """Inputs [B, D]."""
    y: Array
    """Targets [B, P]."""
    scale: float | Array = 1.0
    """N / B."""
    rows: Array | None = None
    """The indices [B] of these rows in the data; None for all data in order."""
    draws: Draws = NO_DRAWS
    """Noise and probes of the step."""
