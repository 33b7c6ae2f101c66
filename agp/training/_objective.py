"""-bound / N, for N observations, as a function of one float64 vector on the host, for optimisers that live there."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, backend_of, placed, to_numpy
from agp.batch import Batch
from agp.constraints import POSITIVE
from agp.errors import NotPositiveDefiniteError
from agp.gradient import GradientMode, gradient_of
from agp.repairs import Report, Tally, collect_reports
from agp.speculation import speculate
from agp.training._inner import solved_leaves
from agp.updates import Update
from agp.vectors import Unflatten

__all__ = ["Objective", "Point"]

ROUNDING = 1e3
"""The smallest value of a positive leaf, in units of rounding of its own unit."""


class Point(NamedTuple):
    """The loss -bound / N and its gradient [n] at a vector [n], the model, and the 0-d bound where it was computed.

    What was repaired there counts once the point is an iterate: trial points may be wild, and leave nothing behind.
    """

    vector: npt.NDArray[np.float64]
    model: Any
    loss: float
    slope: npt.NDArray[np.float64]
    bound: Array
    repairs: Tally


class Objective:
    """-bound / N, for N observations, as a function of one float64 vector on the host."""

    def __init__(
        self,
        model: Any,
        batch: Batch,
        moving: list[str],
        inner: Sequence[Update],
        gradient: GradientMode,
        memory: float | None,
    ) -> None:
        self.given = self.settled = model
        self.batch, self.moving, self.count = batch, moving, model._count(batch.y)
        moved = solved_leaves(model, inner).union(moving)
        self.frozen = tuple(name for name in tree.leaves(model, "parameter") if name not in moved)
        self.unflatten = Unflatten(model, moving)
        self.reference = self.unflatten.leaves[0].value  # the data may lie elsewhere
        self.B = backend_of(self.reference)
        self.evaluations = 0
        self.rejections: Counter[str] = Counter()
        self.repairs = Tally()
        self.aside: list[Report] = []  # of callbacks
        states = [update.init(model) for update in inner]

        def evaluated(model: Any, batch: Batch, states: list[Any]) -> tuple[Array, dict[str, Array], Any]:
            for update, state in zip(inner, states, strict=True):
                model, _, _ = update(model, batch, state)
            bound, raw_bar = gradient_of(model, batch, gradient, memory=memory)
            return bound, raw_bar, model

        compiled = backend_of(batch.X).compile(evaluated)
        self._evaluated = lambda model: compiled(model, batch, states)

    def lowest(self, start: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Where raw leaves may go at least [n]: positive values keep a share of their units that rounding leaves alone.

        Of data without noise its variance would fall for ever, and vanish in the end.
        """
        rounding = ROUNDING * float(self.B.xp.finfo(self.reference.dtype).eps)
        least = [
            np.full(math.prod(leaf.value.shape), np.log(rounding) if leaf.constraint is POSITIVE else -np.inf)
            for leaf in self.unflatten.leaves
        ]
        return np.minimum(np.concatenate(least), start)

    def vector_of(self, model: Any) -> npt.NDArray[np.float64]:
        """The moving raw leaves of a model in one vector."""
        return self._on_host(tree.unconstrain(model))

    def _on_host(self, raw: dict[str, Array]) -> npt.NDArray[np.float64]:
        return np.array(to_numpy(self.unflatten.vector(raw)), dtype=np.float64)

    def _model_at(self, vector: npt.NDArray[np.float64]) -> Any:
        """The model with these raw leaves; the others are where inner updates left them at the last iterate."""
        return tree.constrain(self.settled, self.unflatten.raw(placed(vector, self.reference)))

    def __call__(self, vector: npt.NDArray[np.float64]) -> Point | None:
        """The loss there; None, with the reason counted, if it or its gradient is not finite."""
        self.evaluations += 1
        vector = np.array(vector)
        with np.errstate(all="ignore"):  # what overflows at a wild trial point is seen below
            try:
                with collect_reports() as reports:
                    here = self._model_at(vector)
                    (bound, raw_bar, model), _ = speculate(lambda: self._evaluated(here), self.reference)
            except NotPositiveDefiniteError:
                return self._rejected("a factorisation failed")
            tally = Tally(reports)
            if tally.failures:
                return self._rejected("a factorisation failed")
            loss, slope = -float(bound) / self.count, -self._on_host(raw_bar) / self.count
        if not np.isfinite(loss):
            return self._rejected("the bound was not finite")
        if not np.isfinite(slope).all():
            return self._rejected("the gradient was not finite")
        return Point(vector, model, loss, slope, bound, tally)

    def _rejected(self, reason: str) -> None:
        self.rejections[reason] += 1
