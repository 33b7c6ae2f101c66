"""What training shows while it runs, and what it leaves behind."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agp.backend import Array

__all__ = ["Progress", "Result"]


class Progress(NamedTuple):
    """What a callback sees after a step."""

    step: int
    """Steps finished."""
    model: Any
    info: dict[str, Array]
    """What the updates logged: 0-d arrays by name, "bound" among them."""
    seconds: float
    """Time spent in steps so far, callbacks excluded."""


@dataclass
class Result:
    """What training leaves behind."""

    model: Any
    """The trained model."""
    steps: int
    """Steps finished in all, those before a resumption included."""
    seconds: float
    """Time spent in steps, callbacks excluded."""
    trace: dict[str, list[float]] = field(default_factory=dict)
    """What the updates logged, by name: one number a step."""
    repairs: Counter[str] = field(default_factory=Counter)
    """How often each kind of numerical trouble was met and repaired, by the message of its first time."""
