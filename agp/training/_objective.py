"""The objective of L-BFGS: -bound / N as a function of one float64 vector on the host, and the updates inside it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, backend_of, placed, to_numpy
from agp.batch import Batch
from agp.constraints import POSITIVE
from agp.errors import NotPositiveDefiniteError
from agp.gradient import GradientMode, gradient_of
from agp.posteriors import Posterior
from agp.repairs import Report, Tally, collect_reports
from agp.speculation import speculate
from agp.updates import InverseUpdate, MovesLeaves, NaturalGradient, Repeat, SiteStep, Update, moves_of
from agp.vectors import Unflatten

__all__ = ["Objective", "Point", "inner_updates", "moves_posteriors", "solved_leaves"]

ROUNDING = 1e3
"""The smallest value of a positive leaf, in units of rounding of its own unit."""
TOLERANCE = 1e-7
"""Of inverse factors. The gradient takes them for constants, which is an error of second order."""
SITE_RATE, SITE_STEPS = 0.8, 8
"""Site steps in each evaluation for likelihoods that are not quadratic, starting at the sites of the last iterate."""


# -- updates inside the objective -------------------------------------------------------------------------------------


def inner_updates(model: Any, memory: float | None) -> list[Update]:
    """The updates that take some leaves of a model to their optimum given the others, on all rows; maybe none.

    None for sites whose steps may not converge: if the likelihood is not log-concave, or inverse factors depend on
    them.
    """
    inverses = InverseUpdate.moves(model).leaves
    likelihood = model.likelihood
    if SiteStep().applies(model):
        if inverses or not likelihood.log_concave:
            return []
        exact = SiteStep(1.0, memory=memory)
        return [exact if likelihood.quadratic else Repeat(replace(exact, rate=SITE_RATE), SITE_STEPS)]
    found: list[Update] = [InverseUpdate(TOLERANCE, jumps=True)] if inverses else []
    if likelihood.quadratic and NaturalGradient.stepping(model):
        found.append(NaturalGradient(1.0, memory=memory))
    return found


def solved_leaves(model: Any, inner: Sequence[Update]) -> frozenset[str]:
    """The leaves that inner updates take to their optimum. TypeError for an update that does not say what it moves."""
    found, complete = moves_of(model, inner)
    if not complete:
        unknown = next(update for update in inner if not isinstance(update, MovesLeaves))
        msg = f"inner has {unknown!r}, but each must be an update that says by `moves` which leaves are its own."
        raise TypeError(msg)
    return found.leaves


def moves_posteriors(model: Any, inner: Sequence[Update]) -> bool:
    """Whether L-BFGS itself moves parameters of a q(u)."""
    own = {
        tree.joined(path, leaf)
        for path, posterior in tree.nodes(model, Posterior).items()
        for leaf in tree.leaves(posterior, "parameter")
    }
    return bool(own - solved_leaves(model, inner))


# -- the objective ----------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """The loss -bound / N and its gradient [n] at a vector [n]."""

    vector: npt.NDArray[np.float64]
    model: Any
    loss: float
    slope: npt.NDArray[np.float64]
    bound: Array
    """0-d, where it was computed."""
    repairs: Tally
    """Counted once the point is an iterate; repairs at trial points do not matter."""


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
        """Lower bounds [n] of raw leaves, which keep positive values above rounding in their units.

        The noise variance of data without noise would shrink until it vanishes.
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

    def __call__(self, vector: npt.NDArray[np.float64]) -> Point | None:
        """The loss there; None, with the reason counted, if it or its gradient is not finite.

        Inner updates start at the leaves that they reached at the last iterate.
        """
        self.evaluations += 1
        vector = np.array(vector)
        with np.errstate(all="ignore"):  # overflow at trial points is detected below
            try:
                with collect_reports() as reports:
                    here = tree.constrain(self.settled, self.unflatten.raw(placed(vector, self.reference)))
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
