"""What training shows while it runs, and what it leaves behind."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agp.backend import Array
from agp.markup import guarded
from agp.training._html import result_html

__all__ = ["LBFGSResult", "Progress", "Result"]


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
    frozen: tuple[str, ...] = field(default=(), kw_only=True)
    """The names of the parameters that no update moved, as far as the updates say."""
    launched_singly: str = field(default="", kw_only=True)
    """Why no step was launched as one graph of the device; empty where steps were, or where there are no graphs."""

    def _repr_html_(self) -> str:
        return guarded(lambda: result_html(self), self)


@dataclass
class LBFGSResult(Result):
    """What `fit_lbfgs` leaves behind; `steps` and `trace` are those of the start that was kept.

    The trace holds "bound" and "gradient" (the largest entry of the raw gradient, per datum) after each iteration. For
    a model with `priors`, "bound" and `bounds` include the log prior: they are what is maximised.
    """

    message: str = ""
    """Why the optimiser stopped, in its own words."""
    converged: bool = False
    """Whether a tolerance was met, rather than a limit."""
    evaluations: int = 0
    """Bounds and gradients computed, over all starts."""
    rejections: dict[str, int] = field(default_factory=dict)
    """Trial points that had no finite bound or gradient, counted by reason over all starts."""
    bounds: list[float] = field(default_factory=list)
    """The final bound of each start; -inf for one that had none."""
