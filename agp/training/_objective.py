"""The L-BFGS objective, -bound / N as a function of one float64 vector, the updates inside it, and its curvature."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.actions import Actions
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.bounds import Batch
from agp.errors import NotPositiveDefiniteError
from agp.gradient import GradientMode, Unflatten, gradient_of_batch
from agp.inducing import Inducing, some_rows
from agp.likelihoods import Likelihood
from agp.models import WithNeighbours
from agp.posteriors import NaturalSteps, Posterior, SiteHolder, start_of
from agp.priors import fixed_entry_names, held_leaves, limits_of
from agp.processes import Sparse
from agp.random import generator
from agp.repairs import Report, Tally, collect_reports, speculate
from agp.training._begun import check_training, observations_of
from agp.tree import POSITIVE
from agp.updates import (
    InverseUpdate,
    MovesLeaves,
    NaturalGradient,
    OptimalPosterior,
    Repeat,
    SiteStep,
    Update,
    leaves_of,
    moves_of,
)

Vector = npt.NDArray[np.float64]

STEP = 1e-4
"""The step of the finite differences, in raw coordinates."""
MAX_INDUCING = 300
"""The maximum number of inducing inputs; it is small because each evaluation solves for q(u)."""
PRIOR_STD = 3.0
"""The prior standard deviation of the log hyperparameters, which corresponds to a factor of 20."""
RATE, STEPS, ROUNDS = 0.8, 8, 5
"""For non-quadratic likelihoods: the rate and the number of natural-gradient steps of q(u) per evaluation, and the
number of initial evaluations, which bring q(u) to its optimum."""

ROUNDING = 1e3
"""The minimum of a positive leaf, as a multiple of machine precision times the leaf's unit."""
TOLERANCE = 1e-7
"""The tolerance for inverse factors. The gradient treats them as constants, which causes a second-order error."""
SOLVE_STEPS = 150
"""The maximum number of steps of `OptimalPosterior` per evaluation. They start from the last iterate, and more than 30
are rare."""
SITE_RATE, SITE_STEPS = 0.8, 8
"""The rate and the number of site steps per evaluation, for non-quadratic likelihoods. The steps start from the sites
of the last iterate."""


# -- updates inside the objective -------------------------------------------------------------------------------------


def inner_updates(model: Any, memory: float | None) -> list[Update]:
    """Return the updates that set some leaves of a model to their optimal values, given the other leaves and all rows.

    Sites are not updated if the likelihood is not log-concave or if inverse factors depend on the sites, because site
    steps may then not converge, nor are those of models with neighbours, which do not maximise the bound. q(u) is not
    updated if the likelihood uses Monte Carlo estimates, whose site gradients are not derivatives of the bound, if its
    slopes vanish, because q(u) may then stay where it starts, or for labels.
    """
    inverses = InverseUpdate.moves(model).leaves
    likelihood = model.likelihood
    if SiteStep().applies(model):
        if inverses or not likelihood.log_concave or isinstance(model, WithNeighbours):
            return []
        exact = SiteStep(1.0, memory=memory)
        return [exact if likelihood.quadratic else Repeat(replace(exact, rate=SITE_RATE), SITE_STEPS)]
    found: list[Update] = [InverseUpdate(TOLERANCE, jumps=True)] if inverses else []
    if likelihood.quadratic and NaturalGradient.stepping(model):
        found.append(NaturalGradient(1.0, memory=memory))
    elif not inverses and has_optimal_posterior(likelihood) and OptimalPosterior.applies(model):
        found.append(OptimalPosterior(max_steps=SOLVE_STEPS, memory=memory))
    return found


def has_optimal_posterior(likelihood: Likelihood, /) -> bool:
    """Return whether `OptimalPosterior` suits a likelihood; for Gaussian noise, a single step does the same."""
    return not (likelihood.quadratic or likelihood.slopes_vanish or likelihood.labels or is_sampled(likelihood))


def is_sampled(likelihood: Likelihood, /) -> bool:
    """Return whether a likelihood uses Monte Carlo estimates."""
    return bool(likelihood.draws(generator(0), 1, likelihood.latents(1)))


def closed_form_leaves(model: Any, inner: Sequence[Update]) -> frozenset[str]:
    """Return the names of leaves that inner updates optimise. Raise TypeError if an update has no method `moves`."""
    found, complete = moves_of(model, inner)
    if not complete:
        unknown = next(update for update in inner if not isinstance(update, MovesLeaves))
        raise TypeError(f"inner contains {unknown!r}, but every entry must be an update with a method `moves`.")
    return found.leaves


def moves_posteriors(model: Any, inner: Sequence[Update]) -> bool:
    """Whether L-BFGS itself moves parameters of a q(u)."""
    own = leaves_of(tree.nodes(model, Posterior), "parameter")
    return bool(own - closed_form_leaves(model, inner))


def why_not_lbfgs(model: Any, rows: int, inner: Sequence[Update] = (), /) -> str:
    """Return the reason why L-BFGS cannot train a model on `rows` rows with these inner updates, or an empty string."""
    draws = model._draws(generator(0), rows)
    if noise := [name for name in (*draws.by_row, *draws.whole) if not name.startswith("likelihood.")]:
        return f"this model's objective is noisy, because it uses random draws ({', '.join(noise)}); use agp.train."
    solved = closed_form_leaves(model, inner)
    if auxiliary := [name for name in tree.leaves(model, "auxiliary") if name not in solved]:
        return f"L-BFGS would not update {', '.join(auxiliary)}; use agp.train, or a posterior such as Whitened."
    return ""


# -- the objective ----------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """The loss -bound / N and its gradient [n] at a vector [n]."""

    vector: Vector
    model: Any
    loss: float
    slope: Vector
    bound: Array
    """The bound, a 0-d array on the device that computed it."""
    repairs: Tally
    """The repairs, which are counted only if the point becomes an iterate."""
    unfinished: bool
    """Whether an inner update was ended by its limit of steps, so that the gradient is inexact."""


class Objective:
    """The loss -bound / N, for N observations, as a function of one float64 vector on the host.

    The vector contains the raw leaves, or, if `logarithms` is true, the logarithms of positive leaves in their units.
    Raw values of large leaves are the leaves themselves, in which a lengthscale that tends to infinity is badly scaled.
    """

    def __init__(
        self,
        model: Any,
        batch: Batch,
        moving: list[str],
        inner: Sequence[Update],
        gradient: GradientMode,
        memory: float | None,
        *,
        logarithms: bool = False,
        frozen: tuple[str, ...] = (),
    ) -> None:
        self.given = self.settled = model
        self.fixed_limits = limits_of(model, frozen)
        self.moving, self.count = moving, observations_of(batch)
        moved = closed_form_leaves(model, inner).union(moving)
        whole = (name for name in tree.leaves(model, "parameter") if name not in moved)
        self.frozen = (*whole, *fixed_entry_names(model, frozen))
        self.unflatten = Unflatten(model, moving, frozen)
        leaves, entries = self.unflatten.leaves, self.unflatten.entries
        self.reference = leaves[0].value  # the data may be on another device
        self.B = backend_of(self.reference)
        # [n], True for the entries of positive leaves
        self.positive = np.concatenate(
            [np.full(count, isinstance(x.constraint, type(POSITIVE))) for x, count in zip(leaves, entries, strict=True)]
        )
        # [n], True for entries that are zero and stay zero: their raw value -inf is no number for an optimiser
        self.zero = np.isneginf(self._on_host(tree.unconstrain(model)))
        self.logs = self.positive & ~self.zero & logarithms
        self.evaluations, self.seconds = 0, 0.0
        self.rejections: Counter[str] = Counter()
        self.repairs = Tally()
        self.aside: list[Report] = []  # reports of callbacks
        self._evaluated = backend_of(batch.X).compile(partial(_evaluate, tuple(inner), gradient, memory))
        self._rest = batch, [update.init(model) for update in inner]

    def limits(self, start: Vector) -> tuple[Vector, Vector]:
        """Return lower and upper bounds [n] on the vector, which a start outside of them widens.

        They include the limits that the model's priors set. Lower bounds keep positive leaves above the level of
        rounding errors. Without them, the noise variance would shrink to zero for data without noise. Upper bounds keep
        leaves finite whose logarithms are in the vector.
        """
        rounding = math.log(ROUNDING * float(self.B.xp.finfo(self.reference.dtype).eps))
        lowest = np.where(self.positive, np.minimum(rounding, start), -np.inf)
        highest = np.where(self.logs, np.maximum(-rounding, start), np.inf)
        least, most = self.given_limits
        return np.clip(lowest, least, most), np.clip(highest, least, most)

    @cached_property
    def given_limits(self) -> tuple[Vector, Vector]:
        """The limits [n] from the model's priors."""
        ends: list[Vector] = []
        found = limits_of(self.given)
        for end, none in (("low", -np.inf), ("high", np.inf)):
            known = {name: getattr(limits, end) for name, limits in found.items()}
            counts = zip(self.unflatten.leaves, self.unflatten.entries, strict=True)
            limited = np.concatenate([np.full(count, leaf.name in known) for leaf, count in counts])
            with np.errstate(all="ignore"):  # limits may be zero or infinite
                vector = self.vector_of(tree.with_leaves(self.given, known))
            ends.append(np.where(limited & ~np.isnan(vector), vector, none))
        return ends[0], ends[1]

    def vector_of(self, model: Any) -> Vector:
        """Return the moving raw leaves of a model in one vector."""
        raw = np.where(self.zero, 0.0, self._on_host(tree.unconstrain(model)))
        return np.where(self.logs, _log_of_raw(raw), raw)

    def _on_host(self, raw: dict[str, Array]) -> Vector:
        return np.array(to_numpy(self.unflatten.vector(raw)), dtype=np.float64)

    def __call__(self, vector: Vector) -> Point | None:
        """Return the loss and gradient at `vector`. If the evaluation fails, count the reason and return None.

        Inner updates start from their results at the last iterate.
        """
        began = time.perf_counter()
        self.evaluations += 1
        vector = np.array(vector)
        with np.errstate(all="ignore"):  # overflow at trial points is detected below
            try:
                with collect_reports() as reports:
                    full = np.where(self.zero, -np.inf, np.where(self.logs, _raw_of_log(vector), vector))
                    here = tree.constrain(self.settled, self.unflatten.raw(asarray_like(full, self.reference)))
                    if self.B.reading_waits(self.reference):
                        found, _ = speculate(lambda: self._evaluated(here, *self._rest), self.reference)
                    else:
                        found = self._evaluated(here, *self._rest)
                    bound, raw_bar, model, unfinished = found
            except NotPositiveDefiniteError:
                return self._reject("a factorisation failed")
            tally = Tally(reports)
            if tally.failures:
                return self._reject("a factorisation failed")
            loss, slope = -float(bound) / self.count, -self._on_host(raw_bar) / self.count
            slope = np.where(self.logs, slope * _raw_per_log(vector), slope)
        self.seconds += time.perf_counter() - began
        if not np.isfinite(loss):
            return self._reject("the bound was not finite")
        if not np.isfinite(slope).all():
            return self._reject("the gradient was not finite")
        return Point(vector, model, loss, slope, bound, tally, any(map(bool, unfinished)))

    def _reject(self, reason: str) -> None:
        self.rejections[reason] += 1


def _evaluate(
    inner: Sequence[Update], gradient: GradientMode, memory: float | None, model: Any, batch: Batch, states: list[Any]
) -> tuple[Array, dict[str, Array], Any, list[Array]]:
    """Apply the inner updates; return the bound, its gradient, the model, and which updates were ended by a limit."""
    unfinished = []
    for update, state in zip(inner, states, strict=True):
        model, _, info = update(model, batch, state)
        unfinished += [info["unfinished"]] if "unfinished" in info else []
    bound, raw_bar = gradient_of_batch(model, batch, gradient, memory=memory)
    return bound, raw_bar, model, unfinished


# -- logarithms of positive leaves v = log(1 + exp(raw)) --------------------------------------------------------------

SMALL = -30.0
"""Below this value, the logarithm and the raw value of a positive leaf are equal up to rounding."""


def _log_of_raw(raw: Vector) -> Vector:
    return np.where(raw < SMALL, raw, np.log(np.logaddexp(np.maximum(raw, SMALL), 0.0)))


def _raw_of_log(log: Vector) -> Vector:
    value = np.exp(np.maximum(log, SMALL))
    return np.where(log < SMALL, log, value + np.log(-np.expm1(-value)))


def _raw_per_log(log: Vector) -> Vector:
    """Return the derivative of the raw value with respect to the logarithm, v / (1 - exp(-v))."""
    value = np.exp(np.maximum(log, SMALL))
    return value / -np.expm1(-value)


# -- the Laplace approximation ----------------------------------------------------------------------------------------


class Laplace(NamedTuple):
    """A normal distribution over the hyperparameters in raw coordinates."""

    unflatten: Unflatten[Any]
    mean: npt.NDArray[np.float64]
    """The hyperparameters [n] of the model."""
    covariance: npt.NDArray[np.float64]
    """The covariance [n, n]."""


def laplace(
    model: Any,
    X: Array,
    y: Array,
    /,
    *,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> Laplace:
    """Compute the Laplace approximation to the posterior of the kernel, likelihood and mean function parameters.

    X [N, D] and y [N, K] are the training data; the keywords are those of `agp.models.Model.bound`. The objective is
    the bound at the optimal q(u) plus the log priors, as a function of the logarithms of positive parameters. The
    precision is the negative Hessian of the objective, computed by finite differences of the closed-form gradient with
    one evaluation per parameter. Inducing inputs are fixed, and at most 300 are used. The logarithms have a weak normal
    prior with standard deviation 3, which corresponds to a factor of 20. This prior keeps the covariance finite if the
    bound is flat or not at a maximum in some direction. The computation requires float64.

    Raises TypeError if the optimal q(u) cannot be computed or the bound uses random draws, ValueError if the data do
    not fit the model, and FloatingPointError if the bound or its gradient is not finite.

    Source: MacKay, "A practical Bayesian framework for backpropagation networks", Neural Computation 1992.
    """
    data = check_training(model, X, y, weights, offset, noise)
    model = _with_solvable_posteriors(model)
    inner = inner_updates(model, None)
    if not model.likelihood.quadratic and NaturalGradient.stepping(model):
        inner = [*inner, Repeat(NaturalGradient(RATE), STEPS)]
    if why := why_not_lbfgs(model, X.shape[0], inner):
        raise TypeError(why)
    if moves_posteriors(model, inner):
        raise TypeError(
            f"laplace needs natural gradients, but {type(model).__name__} does not support them; use another model."
        )
    fixed = leaves_of(tree.nodes(model, Inducing) | tree.nodes(model, Actions)) | closed_form_leaves(model, inner)
    fixed |= held_leaves(model)
    moving = [name for name in tree.leaves(model, "parameter") if name not in fixed]
    objective = Objective(model, data, moving, inner, "closed-form", None)
    mean = objective.vector_of(model)
    for _ in range(1 if model.likelihood.quadratic else ROUNDS):
        objective.settled = _point(objective, mean).model
    from scipy.optimize import approx_fprime

    slopes: Any = approx_fprime(mean, lambda vector: _point(objective, vector).slope, STEP)
    hessian = objective.count * slopes
    # a raw value r with softplus(r) = v has dr / dlog v = v / (1 - exp(-v))
    values = np.logaddexp(mean, 0.0)
    scale = np.where(objective.positive, values / -np.expm1(-values), 1.0)
    curvatures, directions = np.linalg.eigh(0.5 * scale[:, None] * (hessian + hessian.T) * scale)
    root = scale[:, None] * directions / np.sqrt(np.maximum(curvatures, 0.0) + PRIOR_STD**-2)
    return Laplace(objective.unflatten, mean, root @ root.T)


def _with_solvable_posteriors(model: Any) -> Any:
    """Limit the number of inducing inputs, and replace each q(u) that has no natural gradients by a `Whitened` q(u)."""
    new = {}
    for path, node in tree.nodes(model, Sparse).items():
        inducing, many = node.inducing, node.inducing.count > MAX_INDUCING
        if many:
            found = tree.leaves(inducing)
            fewer = {name: some_rows(found[name], MAX_INDUCING, 0) for name in inducing.locations}
            inducing = tree.with_leaves(inducing, fewer)
        if many or not isinstance(node.posterior, (NaturalSteps, SiteHolder)):
            prior = replace(node, inducing=inducing)
            new[path] = Sparse.of(prior, start_of("whitened")(prior.inducing_covariance()[0], node.outputs))
    return tree.replace(model, new)


def _point(objective: Objective, vector: npt.NDArray[np.float64]) -> Any:
    if (point := objective(vector)) is None:
        reasons = " and ".join(objective.rejections)
        raise FloatingPointError(f"{reasons} near the hyperparameters of the model.")
    return point
