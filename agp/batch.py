"""The rows that a training step sees."""

from collections.abc import Mapping
from typing import NamedTuple

from agp.backend import Array

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
    """The positions [B] of these rows among all data; None for all data in order."""
    draws: Mapping[str, Array] | None = None
    """Noise and probes that the step needs, by name, drawn on the host from the seed and the step."""
