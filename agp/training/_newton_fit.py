"""Newton's method for exact GPs: the public function, its trace and its result."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of
from agp.checks import check_callables, check_positive, check_whole
from agp.errors import Interrupted, NonFiniteError
from agp.gradient import unfrozen
from agp.priors import held_leaves, restrict
from agp.repairs import public
from agp.training._begun import check_training, observations_of
from agp.training._certificate import judge_bounds
from agp.training._newton import Evidence, Expanded, ascend, why_not_newton
from agp.training._progress import Shown, Tracker, expected_steps, track
from agp.training._result import Callback, LBFGSResult, ModelType, Progress, call_all


@public(repairs=False, ignore="underflow")
def fit_newton(
    model: ModelType,
    X: Array,
    y: Array,
    *,
    max_iterations: int = 200,
    tolerance: float = 1e-3,
    frozen: str | Sequence[str] = (),
    callbacks: Iterable[Callback] = (),
    progress: Shown = False,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> LBFGSResult[ModelType]:
    """Maximise the log evidence of an exact GP by Newton's method with the average information.

    Each iteration computes the evidence, its gradient and the average information, a positive semi-definite estimate of
    the curvature, which costs about a tenth of the evidence. A trust region limits the change of the logarithms of
    positive parameters. Usually, 10 to 30 iterations suffice. If the model has `priors`, their logarithms are added to
    the evidence. Steps to points where the covariance matrix cannot be factorised are rejected; no jitter is added.

    Parameters
    ----------
    model
        A `GPR` whose kernel has the method `linearise`, as agp's kernels do, and whose mean function has the method
        `basis`. The model is not changed; the result holds the trained model.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    max_iterations
        The maximum number of iterations.
    tolerance
        Stop when the predicted gain of the next step is below this value, in nats. If rejected steps have limited the
        next step, stop when further steps of any length gain less.
    frozen
        One or several patterns for the names of leaves, or of single entries, that stay fixed.
    callbacks
        Functions called with a `Progress` after each iteration. If a function returns True or a text, the reason, the
        optimisation ends.
    progress
        Show the progress, or append it to a log file; see `agp.train`.
    weights, offset, noise
        What is known of each row; see `agp.models.Model.bound`.

    Returns
    -------
    LBFGSResult
        The trace contains "bound", "gradient" (the largest absolute entry of the gradient with respect to the
        logarithms of positive parameters, per datum) and "gain" (the predicted gain of the next step, in nats).

    Raises
    ------
    TypeError, ValueError
        If X, y and the model do not fit each other, or if a pattern matches nothing. Also if Newton's method does not
        support the model; then use `agp.fit_lbfgs`.
    agp.errors.NonFiniteError
        If the evidence or its gradient is not finite at the given model.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds the result so far.

    Source: Gilmour, Thompson & Cullis, "Average information REML: an efficient algorithm for variance parameter
    estimation in linear mixed models", 1995.

    Examples
    --------
    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 50)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.cos(37.0 * X[:, 0])
    >>> found = agp.fit_newton(agp.GPR.from_data(X, y), X, y)
    >>> found.converged, found.steps < 20
    (True, True)
    """
    data = check_training(model, X, y, weights, offset, noise)
    if why := why_not_newton(model):
        raise TypeError(f"Newton's method does not support this model: {why}; use agp.fit_lbfgs.")
    max_iterations = check_whole("max_iterations", max_iterations, least=0)
    tolerance = check_positive("tolerance", tolerance)
    model, kept = restrict(tree.detach(model)), tree.patterns(frozen)
    names = unfrozen(model, (*kept, *(f"^{name}" for name in sorted(held_leaves(model)))))
    search = _Search(Evidence(model, data, names, kept), observations_of(data), check_callables("callbacks", callbacks))
    with track(progress) as tracker, tracker.inside():
        judge_bounds(tracker, model, data)
        tracker.begin("Newton")
        try:
            search.run(max_iterations, tolerance, tracker)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(search.result()) from interrupt
        tracker.conclude(search.message)
    return search.result()


class _Search:
    """Newton's method from the model's own parameters."""

    def __init__(self, objective: Evidence, count: float, callbacks: list[Callback]) -> None:
        self.objective, self.count, self.callbacks = objective, count, callbacks
        self.trace: dict[str, list[float]] = {"bound": [], "gradient": [], "gain": []}
        self.point: Expanded | None = None
        self.steps, self.stopped = 0, ""
        self.message, self.converged = "stopped before the optimiser finished", False

    def run(self, max_iterations: int, tolerance: float, tracker: Tracker) -> None:
        """Take steps until the predicted gain is below the tolerance."""
        start = self.objective.coordinates.vector_of(self.objective.coordinates.model)
        box = self.objective.coordinates.box(start)
        settings: dict[str, Any] = {"most": max_iterations + 1, "tolerance": tolerance, "box": box}

        def seen(point: Expanded, hoped: float) -> bool:
            stopped = self._watch(point, hoped)
            total = expected_steps(self.trace["gain"], tolerance, max_iterations)
            tracker.step(self.steps, total, f"iteration {self.steps:,}", point.value)
            return stopped

        point, self.converged, stopped = ascend(self.objective, start, seen=seen, thorough=True, **settings)
        if point is None:
            reason = next(iter(self.objective.rejections))
            msg = f"{reason} at the starting model; try standardised data, more noise or float64."
            raise NonFiniteError(msg, self.result())
        self.message = f"the limit of {max_iterations} iterations (max_iterations) was reached"
        if stopped:
            self.message = f"{self.stopped} ended the optimisation"
        elif self.converged:
            self.message = f"further steps gain less than {tolerance:.2g} nats"
            error = self.objective.rounding_error(point.model)
            dtype = backend_of(point.model.X).dtype_name(point.model.X)
            if error > tolerance and dtype == "float32":
                self.message = f"further steps gain less than rounding errors of float32, about {error:.1g} nats"

    def _watch(self, point: Expanded, hoped: float) -> bool:
        first, self.point = self.point is None, point
        if first:
            return False
        self.steps += 1
        self.trace["bound"].append(point.value)
        self.trace["gradient"].append(float(np.max(np.abs(point.slope), initial=0.0)) / self.count)
        self.trace["gain"].append(hoped)
        bound = asarray_like(np.asarray(point.value), tree.first_leaf(point.model))
        seen = Progress(self.steps, point.model, {"bound": bound}, self.objective.seconds)
        self.stopped = call_all(self.callbacks, seen)
        return bool(self.stopped)

    def result(self) -> LBFGSResult[Any]:
        """Return the last point, or the given model if there is none."""
        objective, moved = self.objective, {leaf.name for leaf in self.objective.coordinates.leaves}
        given, point = objective.coordinates.model, self.point
        frozen = tuple(name for name in tree.leaves(given, "parameter") if name not in moved)
        frozen = (*frozen, *objective.coordinates.fixed_names)
        told = {"evaluations": objective.evaluations, "rejections": dict(objective.rejections), "frozen": frozen}
        if point is None:
            return LBFGSResult(given, 0, objective.seconds, **told)
        return LBFGSResult(
            restrict(point.model, objective.coordinates.given_limits),
            self.steps,
            objective.seconds,
            self.trace,
            message=self.message,
            converged=self.converged,
            bounds=[point.value if math.isfinite(point.value) else -math.inf],
            **told,
        )
