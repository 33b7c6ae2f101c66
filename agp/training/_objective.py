"""The L-BFGS objective, -bound / N as a function of one float64 vector, and the updates inside it."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.batch import Batch
from agp.constraints import POSITIVE
from agp.errors import NotPositiveDefiniteError
from agp.gradient import GradientMode, gradient_of_batch
from agp.posteriors import Posterior
from agp.repairs import Report, Tally, collect_reports
from agp.speculation import speculate
from agp.training._begun import observations_of
from agp.updates import InverseUpdate, MovesLeaves, NaturalGradient, Repeat, SiteStep, Update, leaves_of, moves_of
from agp.vectors import Unflatten

ROUNDING = 1e3
"""The minimum of a positive leaf, as a multiple of machine precision times the leaf's unit."""
TOLERANCE = 1e-7
"""The tolerance for inverse factors. The gradient treats them as constants, which causes a second-order error."""
SITE_RATE, SITE_STEPS = 0.8, 8
"""The rate and the number of site steps per evaluation, for non-quadratic likelihoods. The steps start from the sites
of the last iterate."""


# -- updates inside the objective -------------------------------------------------------------------------------------


def inner_updates(model: Any, memory: float | None) -> list[Update]:
    """Return the updates that set some leaves of a model to their optimal values, given the other leaves and all rows.

    Sites are not updated if the likelihood is not log-concave or if inverse factors depend on the sites, because site
    steps may then not converge.
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


def closed_form_leaves(model: Any, inner: Sequence[Update]) -> frozenset[str]:
    """Return the names of leaves that inner updates optimise. Raise TypeError if an update has no method `moves`."""
    found, complete = moves_of(model, inner)
    if not complete:
        unknown = next(update for update in inner if not isinstance(update, MovesLeaves))
        msg = f"inner contains {unknown!r}, but every entry must be an update with a method `moves`."
        raise TypeError(msg)
    return found.leaves


def moves_posteriors(model: Any, inner: Sequence[Update]) -> bool:
    """Whether L-BFGS itself moves parameters of a q(u)."""
    own = leaves_of(tree.nodes(model, Posterior), "parameter")
    return bool(own - closed_form_leaves(model, inner))


# -- the objective ----------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """The loss -bound / N and its gradient [n] at a vector [n]."""

    vector: npt.NDArray[np.float64]
    model: Any
    loss: float
    slope: npt.NDArray[np.float64]
    bound: Array
    """The bound, a 0-d array on the device that computed it."""
    repairs: Tally
    """The repairs, which are counted only if the point becomes an iterate."""


class Objective:
    """The loss -bound / N, for N observations, as a function of one float64 vector on the host."""

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
        self.moving, self.count = moving, observations_of(batch)
        moved = closed_form_leaves(model, inner).union(moving)
        self.frozen = tuple(name for name in tree.leaves(model, "parameter") if name not in moved)
        self.unflatten = Unflatten(model, moving)
        leaves = self.unflatten.leaves
        self.reference = leaves[0].value  # the data may be on another device
        self.B = backend_of(self.reference)
        # [n], True for the entries of positive leaves
        self.positive = np.concatenate(
            [np.full(math.prod(x.value.shape), isinstance(x.constraint, type(POSITIVE))) for x in leaves]
        )
        # [n], True for entries that are zero and stay zero: their raw value -inf is no number for an optimiser
        self.zero = np.isneginf(self._on_host(tree.unconstrain(model)))
        self.evaluations, self.seconds = 0, 0.0
        self.rejections: Counter[str] = Counter()
        self.repairs = Tally()
        self.aside: list[Report] = []  # reports of callbacks
        states = [update.init(model) for update in inner]

        def evaluated(model: Any, batch: Batch, states: list[Any]) -> tuple[Array, dict[str, Array], Any]:
            for update, state in zip(inner, states, strict=True):
                model, _, _ = update(model, batch, state)
            bound, raw_bar = gradient_of_batch(model, batch, gradient, memory=memory)
            return bound, raw_bar, model

        self._evaluated = backend_of(batch.X).compile(evaluated)
        self._rest = batch, states

    def lowest(self, start: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return lower bounds [n] on the raw leaves, which keep positive leaves above the level of rounding errors.

        Without these bounds, the noise variance would shrink to zero for data without noise.
        """
        rounding = ROUNDING * float(self.B.xp.finfo(self.reference.dtype).eps)
        return np.where(self.positive, np.minimum(np.log(rounding), start), -np.inf)

    def vector_of(self, model: Any) -> npt.NDArray[np.float64]:
        """Return the moving raw leaves of a model in one vector."""
        return np.where(self.zero, 0.0, self._on_host(tree.unconstrain(model)))

    def _on_host(self, raw: dict[str, Array]) -> npt.NDArray[np.float64]:
        return np.array(to_numpy(self.unflatten.vector(raw)), dtype=np.float64)

    def __call__(self, vector: npt.NDArray[np.float64]) -> Point | None:
        """Return the loss and gradient at `vector`. If the evaluation fails, count the reason and return None.

        Inner updates start from their results at the last iterate.
        """
        began = time.perf_counter()
        self.evaluations += 1
        vector = np.array(vector)
        with np.errstate(all="ignore"):  # overflow at trial points is detected below
            try:
                with collect_reports() as reports:
                    full = np.where(self.zero, -np.inf, vector)
                    here = tree.constrain(self.settled, self.unflatten.raw(asarray_like(full, self.reference)))
                    if self.B.reading_waits(self.reference):
                        found, _ = speculate(lambda: self._evaluated(here, *self._rest), self.reference)
                    else:
                        found = self._evaluated(here, *self._rest)
                    bound, raw_bar, model = found
            except NotPositiveDefiniteError:
                return self._reject("a factorisation failed")
            tally = Tally(reports)
            if tally.failures:
                return self._reject("a factorisation failed")
            loss, slope = -float(bound) / self.count, -self._on_host(raw_bar) / self.count
        self.seconds += time.perf_counter() - began
        if not np.isfinite(loss):
            return self._reject("the bound was not finite")
        if not np.isfinite(slope).all():
            return self._reject("the gradient was not finite")
        return Point(vector, model, loss, slope, bound, tally)

    def _reject(self, reason: str) -> None:
        self.rejections[reason] += 1
