"""The rows of a training step."""

from typing import NamedTuple

from agp.backend import Array
from agp.random import NO_DRAWS, Draws

__all__ = ["Batch"]


class Batch(NamedTuple):
    """All rows, or a minibatch."""

    X: Array
    """Inputs [B, D]."""
    y: Array
    """Targets [B, P]."""
    scale: float | Array = 1.0
    """The factor N / B by which sums over the rows are multiplied."""
    rows: Array | None = None
    """The indices [B] of these rows in the data; None for all data in order."""
    draws: Draws = NO_DRAWS
    """The noise and the probes of the step."""
