"""L-BFGS on all rows, for deterministic bounds, and the rules that end it.

Likelihoods that average over samples use fixed samples unless draws are passed, so their bounds are smooth.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, to_numpy
from agp.checks import check_callables, check_whole
from agp.errors import Interrupted, NonFiniteError
from agp.gradient import GradientMode
from agp.priors import fixed_entries, restrict
from agp.random import generator
from agp.repairs import collect_reports, public
from agp.training._begun import check_training, initial_state
from agp.training._certificate import judge_bounds
from agp.training._objective import Objective, Point, Vector, closed_form_leaves, why_not_lbfgs
from agp.training._progress import Shown, Tracker, expected_steps, track
from agp.training._result import Callback, LBFGSResult, ModelType, Progress, call_all
from agp.tree import POSITIVE
from agp.updates import Adam, Update, check_rate

HYPERPARAMETERS = ("kernel.*", "likelihood.*")
"""The leaves that a restart draws at random; inducing inputs and q(u) start at their values in the model."""
LAST_ITERATIONS, LAST_SHARE = 20, 0.3
"""`Gain` compares the gain of this many iterations with its limit, on average over this share of all iterations."""
PAIRS = 30
"""The number of last iterations from which the curvature is estimated."""
IN_A_ROW = 2
"""`PredictedGain` ends L-BFGS after this many successive predictions below its limit."""
SHARE = 1e-4
"""The limit of `PredictedGain`, as a fraction of the tolerance."""


class Curvature:
    """The BFGS approximation H of the inverse Hessian of a loss, from the last steps of an optimiser."""

    def __init__(self) -> None:
        self.last: tuple[Vector, Vector] | None = None
        self.pairs: deque[tuple[Vector, Vector]] = deque(maxlen=PAIRS)

    def add(self, vector: Vector, slope: Vector) -> None:
        """Take the next iterate [n] and the gradient [n] there; skip steps along which the slope does not increase."""
        if self.last is not None:
            step, change = vector - self.last[0], slope - self.last[1]
            if step @ change > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change) > 0.0:
                self.pairs.append((step, change))
        self.last = vector, slope

    def decrement(self, slope: Vector) -> float:
        """Return g^T H g / 2, the predicted decrease of the loss by a Newton step; infinite before the second iterate.

        Source: the two-loop recursion of Nocedal, "Updating quasi-Newton matrices with limited storage", 1980.
        """
        from scipy.optimize import LbfgsInvHessProduct

        if not self.pairs:
            return float("inf") if slope.any() else 0.0
        step, change = self.pairs[-1]
        unit = float(step @ change) / float(change @ change)  # of H before the first step
        steps, changes = map(np.asarray, zip(*self.pairs, strict=True))
        return 0.5 * unit * float(slope @ LbfgsInvHessProduct(steps / unit, changes).matvec(slope))


def last_iterations(done: int, /) -> int:
    """Return the number of last iterations whose average gain decides, after `done` iterations.

    Slow training gains by fits and starts, so a fixed number of iterations may gain little far from the optimum.
    """
    return max(LAST_ITERATIONS, int(LAST_SHARE * done))


class Gain:
    """A callback that ends L-BFGS when 20 of the last iterations have gained less than `least` on average, in nats."""

    def __init__(self, least: float) -> None:
        self.least, self.converged, self.message = least, False, ""
        self.rounding = least
        self.bounds: list[float] = []

    def __call__(self, seen: Progress) -> bool:
        self.bounds.append(float(seen.info["bound"]))
        self.end_if_gains_are_below(self.least)
        return self.converged

    def end_if_gains_are_below(self, least: float) -> None:
        """End the training if 20 of the last iterations have gained less than `least` on average, in nats."""
        last = last_iterations(len(self.bounds))
        least = least * last / LAST_ITERATIONS
        if len(self.bounds) > last and self.since(self.bounds[-1 - last :]) < least:
            self.converged = True
            self.message = f"the last {last} iterations gained less than {least:.2g} nats"

    def expected_steps(self, trace: Mapping[str, list[float]], most: float) -> float:
        """Return after how many iterations of a trace the rule is expected to end it."""
        bounds = trace["bound"]
        gains = [one - bounds[max(i - LAST_ITERATIONS, 0)] for i, one in enumerate(bounds)]
        return max(expected_steps(gains, self.least, most), min(LAST_ITERATIONS, most))

    def since(self, bounds: list[float]) -> float:
        """Return the gain since the first of these bounds, or 0 if the list is empty."""
        return self.bounds[-1] - bounds[0] if bounds else 0.0


class PredictedGain(Gain):
    """A callback that ends L-BFGS when a Newton step promises less than 1e-4 tolerances, twice in a row.

    The tolerance is in nats. Rounding errors may hide gains below the tolerance itself. If the limit of steps ended the
    inner updates of most of the last 20 iterations, gradients are inexact, and predictions mean little. L-BFGS then
    also ends when 20 of the last iterations have gained less than `inexact` on average, in nats.
    """

    def __init__(self, tolerance: float, inexact: float = 0.0) -> None:
        super().__init__(SHARE * tolerance)
        self.rounding, self.count = tolerance, 0
        self.inexact = inexact
        self.unfinished: deque[bool] = deque(maxlen=LAST_ITERATIONS)

    def expected_steps(self, trace: Mapping[str, list[float]], most: float) -> float:
        """Return after how many iterations of a trace the rule is expected to end it."""
        return expected_steps(trace["gain"], self.least, most)

    def __call__(self, seen: Progress) -> bool:
        self.bounds.append(float(seen.info["bound"]))
        predicted = float(seen.info["gain"])
        self.count = self.count + 1 if predicted < self.least else 0
        if self.count >= IN_A_ROW:
            self.converged = True
            self.message = f"the predicted gain is {predicted:.1e} nats, less than {self.least:.2g}"
        self.unfinished.append(seen.info["unfinished"])
        if 2 * sum(self.unfinished) > LAST_ITERATIONS:
            self.end_if_gains_are_below(self.inexact)
        return self.converged


@public(repairs=False, ignore="underflow")
def fit_lbfgs(
    model: ModelType,
    X: Array,
    y: Array,
    *,
    max_iterations: int = 1000,
    tolerance: float = 1e-6,
    restarts: int = 0,
    spread: float = 1.0,
    frozen: str | Sequence[str] = (),
    inner: Sequence[Update] = (),
    logarithms: bool = False,
    gradient: GradientMode = "closed-form",
    memory: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: Shown = False,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> LBFGSResult[ModelType]:
    """Maximise the full-data bound over the raw leaves by SciPy's L-BFGS-B, from one or several starts.

    Use this function for models with deterministic bounds: `GPR`, `SGPR`, and `SVGP` on all rows. Models with auxiliary
    arrays require `inner` updates. If a model has `priors`, every bound below includes `agp.priors.log_prior`. L-BFGS
    runs on the host, on a single float64 vector, while the bound and its gradient are computed on the device and in the
    dtype of the data.

    Parameters
    ----------
    model
        An `agp.models.Model`. The model is not changed; the result holds the trained model.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    max_iterations
        The maximum number of iterations from each start.
    tolerance
        Stop when no entry of the gradient of bound / N with respect to the raw leaves exceeds this value. Raw leaves of
        a model from `from_data` are dimensionless, so the units of the data do not matter.
    restarts
        The number of further starts, for each of which the kernel and likelihood hyperparameters are drawn at random
        around those of the model. The best result is kept.
    spread
        The spread of the restarts. With e ~ N(0, 1), positive leaves are multiplied by exp(spread * e). All other
        leaves are shifted by spread * e, in their units.
    frozen
        One or several patterns for the names of leaves that stay fixed, such as ``"Z"`` or ``("Z", "likelihood.*")``.
    inner
        Updates that set some leaves to their optimal values given the others, such as ``NaturalGradient(1.0)`` with a
        Gaussian likelihood, or ``InverseUpdate(1e-9, jumps=True)``. These updates run before each evaluation. L-BFGS
        moves the other leaves.
    logarithms
        Whether L-BFGS moves the logarithms of positive leaves instead of their raw values, and `tolerance` refers to
        them. Lengthscales that tend to infinity then do so in a few iterations.
    gradient
        "closed-form" (every backend) or "autodiff" (torch, JAX).
    memory
        Budget for the working arrays of the bound and its gradient, in MiB; see `agp.models.Model.bound` for the
        meaning of None.
    seed
        The seed for the restarts.
    callbacks
        Functions called with a `Progress` after each iteration; iterations are counted over all starts. If a function
        returns True or a text, the reason, the optimisation ends.
    progress
        Show the progress, or append it to a log file; see `agp.train`.
    weights, offset, noise
        What is known of each row; see `agp.models.Model.bound`.

    Raises
    ------
    TypeError, ValueError
        If X, y and the model do not fit each other, if a pattern matches nothing, if the model's objective is noisy, or
        if the model has auxiliary arrays that no update moves. For noisy objectives, use `agp.train`.
    agp.errors.NonFiniteError
        If the bound or its gradient is not finite at the given model. At later points, the line search is given a high
        finite value instead, so it steps back.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds the best result so far.

    Source: Byrd, Lu, Nocedal & Zhu, "A limited memory algorithm for bound constrained optimization", 1995.

    Examples
    --------
    The best of three starts is kept. The frozen noise variance does not change.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(40)
    >>> model = agp.GPR.from_data(X, y, likelihood=agp.Gaussian(0.01))
    >>> result = agp.fit_lbfgs(model, X, y, restarts=2, frozen="likelihood.*")
    >>> len(result.bounds), max(result.bounds) == result.trace["bound"][-1]
    (3, True)
    >>> result.frozen, round(float(result.model.likelihood.noise_variance), 6)
    (('likelihood.noise_variance',), 0.01)
    """
    data = check_training(model, X, y, weights, offset, noise)
    model = restrict(tree.detach(model))
    if why := why_not_lbfgs(model, X.shape[0], inner):
        raise TypeError(why)
    max_iterations = check_whole("max_iterations", max_iterations, least=0)
    check_rate("tolerance", tolerance)
    check_rate("spread", spread)
    restarts, seed = check_whole("restarts", restarts, least=0), check_whole("seed", seed, least=0)
    moving = _moving(model, frozen, inner, gradient)
    if max_iterations:
        model = initial_state(model, tree.leaves(model).keys() - moving - closed_form_leaves(model, inner))
    logs, kept = bool(logarithms), tree.patterns(frozen)
    objective = Objective(model, data, moving, inner, gradient, memory, logarithms=logs, frozen=kept)
    search = _Search(objective, max_iterations, float(tolerance), check_callables("callbacks", callbacks))
    with track(progress) as tracker, tracker.inside(), collect_reports(objective.aside):
        judge_bounds(tracker, model, data)
        search.watch(tracker, restarts + 1)
        try:
            search.run(_starts(objective, restarts, seed, float(spread)))
        except KeyboardInterrupt as interrupt:
            raise Interrupted(search.result()) from interrupt
        result = search.result()
        tracker.conclude(result.message)
    objective.repairs.tell()
    return result


def _moving(model: Any, frozen: str | Sequence[str], inner: Sequence[Update], gradient: GradientMode) -> list[str]:
    """Return the names of the leaves to move; `frozen` and `gradient` are as in `Adam`."""
    frozen = tree.patterns(frozen)
    solved = closed_form_leaves(model, inner)
    fixed, found = fixed_entries(model, frozen), Adam(frozen=frozen, gradient=gradient).init(model)["first"]
    moving = [
        name for name, x in found.items() if name not in solved and len(fixed.get(name, ())) != math.prod(x.shape)
    ]
    if not moving:
        by = ", ".join([*frozen, *(type(update).__name__ for update in inner)])
        raise ValueError(f"every parameter is frozen by {by}; leave at least one parameter free.")
    return moving


# -- the search -------------------------------------------------------------------------------------------------------


def _starts(objective: Objective, restarts: int, seed: int, spread: float) -> Iterator[Vector]:
    """Yield the starting vector of the model itself, then those of the restarts."""
    model = objective.given
    yield objective.vector_of(model)
    for i in range(restarts):
        rng, raw = generator(seed, 4, i), tree.unconstrain(model)
        new, moved = {}, {}
        for leaf in tree.describe(model):
            name, value = leaf.name, leaf.value
            if name in objective.moving and any(tree.matches(name, pattern) for pattern in HYPERPARAMETERS):
                noise = spread * rng.standard_normal(tuple(value.shape))
                if isinstance(leaf.constraint, type(POSITIVE)):
                    new[name] = asarray_like(to_numpy(value).astype(np.float64) * np.exp(noise), value)
                else:
                    moved[name] = raw[name] + asarray_like(noise, value)
        yield objective.vector_of(tree.constrain(tree.with_leaves(model, new), moved))


class _Start:
    """One run of the optimiser, with its last iterate and the trace up to that iterate."""

    def __init__(self, first: Point, limits: tuple[Vector, Vector]) -> None:
        self.iterate = self.latest = first
        self.lowest, self.highest = limits
        self.curvature = Curvature()
        self.curvature.add(first.vector, first.slope)
        self.trace: dict[str, list[float]] = {"bound": [], "gradient": [], "gain": []}
        self.message, self.converged = "stopped before the optimiser finished", False

    def decrement(self) -> float:
        """Return the predicted decrease of the loss by a Newton step along the entries that are not held by a bound."""
        x, slope = self.iterate.vector, self.iterate.slope
        held = (x <= self.lowest) & (slope > 0.0) | (x >= self.highest) & (slope < 0.0)
        return self.curvature.decrement(np.where(held, 0.0, slope))

    def height(self, vector: Vector) -> float:
        """Return a high loss for a rejected point: the loss at the last iterate plus a change based on the slope."""
        promised = abs(float(self.iterate.slope @ (vector - self.iterate.vector)))
        size = 1.0 + abs(self.iterate.loss)
        return self.iterate.loss + float(np.clip(promised, 1e-3 * size, 1e3 * size))


class _Search:
    """Run L-BFGS from all starts in turn, and keep the best result."""

    tracker: Tracker | None = None
    starts = 1

    def __init__(self, objective: Objective, max_iterations: int, tolerance: float, callbacks: list[Callback]) -> None:
        self.objective, self.callbacks = objective, callbacks
        self.max_iterations, self.tolerance = max_iterations, tolerance
        self.runs: list[_Start | None] = []
        self.steps, self.stopped = 0, ""

    def watch(self, tracker: Tracker, starts: int) -> None:
        """Tell a tracker how far the search is."""
        self.tracker, self.starts = tracker, starts
        tracker.begin("L-BFGS")

    def run(self, starts: Iterator[Vector]) -> None:
        """Optimise from each start in turn; stop early if a callback ends the search."""
        for start in starts:
            vector = np.clip(start, *self.objective.given_limits)
            self.objective.settled = self.objective.given
            first = self.objective(vector)
            if first is None and not self.runs:
                reason = next(iter(self.objective.rejections))
                msg = f"{reason} at the starting model; try standardised data, more jitter or float64."
                raise NonFiniteError(msg, self.result())
            if first is None:
                self.runs.append(None)
                continue
            run = _Start(first, self.objective.limits(vector))
            self.objective.repairs.merge(first.repairs)
            self.runs.append(run)
            if self.max_iterations:
                self._minimise(run)
            else:
                run.message = "max_iterations is 0"
            if self.stopped:
                return

    def _minimise(self, run: _Start) -> None:
        from scipy import optimize

        def loss(vector: Vector) -> tuple[float, Vector]:
            if np.array_equal(vector, run.latest.vector):  # the first point has already been evaluated
                return run.latest.loss, run.latest.slope
            point = self.objective(vector)
            if point is None:
                return run.height(vector), np.zeros_like(vector)
            run.latest = point
            return point.loss, point.slope

        def iterated(intermediate_result: Any) -> None:
            if np.array_equal(intermediate_result.x, run.latest.vector):
                run.iterate = run.latest
                run.curvature.add(run.latest.vector, run.latest.slope)
                self.objective.settled = run.latest.model
                self.objective.repairs.merge(run.latest.repairs)
            self._finish_iteration(run)

        options = {
            "maxiter": self.max_iterations,
            "maxfun": 100 * self.max_iterations,
            "gtol": self.tolerance,
            "ftol": 10.0 * float(self.objective.B.xp.finfo(self.objective.reference.dtype).eps),
        }
        start = run.iterate.vector
        found = optimize.minimize(
            loss,
            start,
            method="L-BFGS-B",
            jac=True,
            bounds=[*zip(run.lowest, run.highest, strict=True)],
            callback=iterated,
            options=options,
        )
        run.message, run.converged = str(found.message), bool(found.success)
        if "ITERATIONS" in run.message and found.nit >= self.max_iterations:
            run.message = f"the limit of {self.max_iterations} iterations (max_iterations) was reached"
        if self.stopped:
            run.message = f"{self.stopped} ended the optimisation"

    def _finish_iteration(self, run: _Start) -> None:
        self.steps += 1
        at = run.iterate
        run.trace["bound"].append(float(at.bound))
        run.trace["gradient"].append(float(np.max(np.abs(at.slope))))
        run.trace["gain"].append(self.objective.count * run.decrement())
        info = {"bound": at.bound, "gain": run.trace["gain"][-1], "unfinished": at.unfinished}
        self.stopped = call_all(self.callbacks, Progress(self.steps, at.model, info, self.objective.seconds))
        if self.tracker is not None:
            self._tell(self.tracker, run)
        if self.stopped:
            raise StopIteration

    def _tell(self, tracker: Tracker, run: _Start) -> None:
        """Tell how far the search is: the gradient or a rule that ends it may end this start before the limit."""
        done, repairs = len(run.trace["bound"]), self.objective.repairs.total
        rules = [rule for rule in self.callbacks if isinstance(rule, Gain)]
        total = expected_steps(run.trace["gradient"], self.tolerance, self.max_iterations)
        total = min(total, *(rule.expected_steps(run.trace, self.max_iterations) for rule in rules), total)
        before = self.steps - done
        after = (self.starts - len(self.runs)) * total
        detail = f"iteration {self.steps:,}" + (f", repairs: {repairs}" if repairs else "")
        tracker.step(self.steps, before + total + after, detail, float(run.iterate.bound))

    def result(self) -> LBFGSResult[Any]:
        """Return the best result so far, or the given model if there is no result yet."""
        objective = self.objective
        objective.repairs.add(objective.aside)
        objective.aside.clear()
        told = {"evaluations": objective.evaluations, "rejections": dict(objective.rejections)}
        told |= {"frozen": objective.frozen}
        done = [run for run in self.runs if run is not None]
        if not done:
            return LBFGSResult(objective.given, 0, self.objective.seconds, **told)
        best = min(done, key=lambda run: run.iterate.loss)
        return LBFGSResult(
            restrict(best.iterate.model, objective.fixed_limits),
            len(best.trace["bound"]),
            self.objective.seconds,
            best.trace,
            objective.repairs.messages,
            message=best.message,
            converged=best.converged,
            bounds=[-float("inf") if run is None else float(run.iterate.bound) for run in self.runs],
            **told,
        )
