"""L-BFGS on all data: for bounds without noise, and parameters that are few enough to converge.

Likelihoods that take means over samples have fixed noise where they are given none; it makes their bounds smooth.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, backend_of, placed, to_numpy
from agp.batch import Batch
from agp.checks import check_model, check_whole
from agp.constraints import POSITIVE
from agp.entrances import entrance
from agp.errors import Interrupted, NonFiniteError, NotPositiveDefiniteError
from agp.gradient import GradientMode, gradient_of
from agp.guesses import settled
from agp.host import generator, underflow_is_zero
from agp.leaves import detached
from agp.models import valid_data
from agp.repairs import Report, Tally, collected
from agp.rows import MEMORY
from agp.training._begun import begun
from agp.training._inner import solved_leaves
from agp.training._progress import progress_bar
from agp.training._result import Progress, Result
from agp.training._run import Callback
from agp.updates import Adam, Update

__all__ = ["LBFGSResult", "fit_lbfgs", "why_not_lbfgs"]

HYPERPARAMETERS = ("kernel.*", "likelihood.*")
"""What a restart draws anew; inducing inputs and q(u) begin where the model has them."""
ROUNDING = 1e3
"""The smallest value of a positive leaf, in units of rounding of its own unit."""


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


@entrance
@underflow_is_zero
def fit_lbfgs(
    model: Any,
    X: Array,
    y: Array,
    *,
    max_iterations: int = 1000,
    tolerance: float = 1e-6,
    restarts: int = 0,
    spread: float = 1.0,
    frozen: str | Sequence[str] = (),
    inner: Sequence[Update] = (),
    gradient: GradientMode = "closed-form",
    memory: float = MEMORY,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
) -> LBFGSResult:
    """Maximise the bound of all data over the raw leaves by SciPy's L-BFGS-B, from one or several starts.

    For a model with `priors` the bound plus `agp.priors.log_prior` is maximised, and every bound below means that sum.
    For deterministic bounds: `GPR`, `SGPR`, and `SVGP` with all data, whose auxiliary arrays need `inner` updates; a
    likelihood that takes means over samples has fixed noise here. The raw leaves travel to the host as one float64
    vector and back; the bound and its gradient are computed where the data are, in their dtype.

    Parameters
    ----------
    model
        An `agp.models.Model`; it is not changed: the result holds the trained one.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    max_iterations
        Iterations at most, for each start.
    tolerance
        Stop when no entry of the raw gradient of bound / N exceeds it; raw leaves of a model from `from_data` have no
        dimension, so that this means the same in any units of the data.
    restarts
        Further starts, whose hyperparameters of kernel and likelihood are drawn around those of the model; the best
        start is kept.
    spread
        Of the restarts: positive leaves are multiplied by exp(spread e), others have spread e of their units added,
        e ~ N(0, 1).
    frozen
        Patterns of leaves that stay as they are, such as ``"Z"`` or ``("Z", "likelihood.*")``.
    inner
        Updates that take some leaves to where the bound is highest for the others, such as ``NaturalGradient(1.0)``
        with a Gaussian likelihood, or ``InverseUpdate(1e-9, jumps=True)``. They run before each evaluation, from where
        the last iterate left these leaves, and L-BFGS moves the others: the gradient of the profile of a function is
        the partial one at its optimum.
    gradient
        "closed-form" (every backend) or "autodiff" (torch, JAX).
    memory
        Budget for the working arrays of the bound and its gradient, in MiB.
    seed
        Of the restarts.
    callbacks
        Called with a `Progress` after each iteration, counted over all starts; one that returns True ends the
        optimisation.
    progress
        Show a progress bar (needs the extra ``cli``).

    Raises
    ------
    TypeError, ValueError
        For data that do not fit each other or the model, a pattern that matches nothing, or a model whose objective is
        noisy or has auxiliary arrays, which gradients do not move; use `agp.train` for those.
    agp.errors.NonFiniteError
        If the bound or its gradient is not finite at the model that was given. Elsewhere such a trial point counts
        as rejected: the line search sees a high finite value there and steps back.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds the best so far.

    Source: Byrd, Lu, Nocedal & Zhu, "A limited memory algorithm for bound constrained optimization", 1995.
    """
    check_model(model)
    X, y = valid_data(X, y, missing=model.likelihood.missing)
    model.check(X, y)
    model = detached(model)
    if why := why_not_lbfgs(model, X.shape[0], inner):
        raise TypeError(why)
    limits = _Limits(check_whole("max_iterations", max_iterations, least=0), _not_negative("tolerance", tolerance))
    restarts = check_whole("restarts", restarts, least=0)
    seed, spread = check_whole("seed", seed, least=0), _not_negative("spread", spread)
    moving = _moving(model, frozen, inner, gradient)
    model = (
        begun(model, tree.leaves(model).keys() - moving - solved_leaves(model, inner)) if limits.iterations else model
    )
    objective = _Objective(model, Batch(X, y), moving, inner, gradient, memory)
    search = _Search(objective, limits, list(callbacks))
    total = limits.iterations * (restarts + 1)
    with progress_bar(total) if progress else nullcontext() as bar, collected(objective.aside):
        search.bar = bar
        try:
            search.run(_starts(objective, restarts, seed, spread))
        except KeyboardInterrupt as interrupt:
            raise Interrupted(search.result()) from interrupt
    result = search.result()
    objective.repairs.tell()
    return result


class _Limits(NamedTuple):
    iterations: int
    tolerance: float


def _not_negative(name: str, value: float) -> float:
    if not 0.0 <= value < float("inf"):
        msg = f"{name} is {value!r}, but must be a finite number from zero on."
        raise ValueError(msg)
    return float(value)


def why_not_lbfgs(model: Any, rows: int, inner: Sequence[Update] = (), /) -> str:
    """Why L-BFGS does not serve a model on so many rows with these inner updates; empty where it does."""
    draws = model.draws(generator(0), rows)
    if noise := [name for name in (*draws.by_row, *draws.whole) if not name.startswith("likelihood.")]:
        return f"the objective of this model needs draws ({', '.join(noise)}), L-BFGS none; use agp.train."
    solved = solved_leaves(model, inner)
    if auxiliary := [name for name in tree.leaves(model, "auxiliary") if name not in solved]:
        return f"L-BFGS would leave {', '.join(auxiliary)} behind; use agp.train, or a posterior such as Whitened."
    return ""


def _moving(model: Any, frozen: str | Sequence[str], inner: Sequence[Update], gradient: GradientMode) -> list[str]:
    """The names of the leaves to move; patterns and gradient modes mean, and fail, as they do for Adam."""
    frozen = tree.patterns(frozen)
    solved = solved_leaves(model, inner)
    moving = [name for name in Adam(frozen=frozen, gradient=gradient).init(model)["first"] if name not in solved]
    if not moving:
        by = ", ".join([*frozen, *(type(update).__name__ for update in inner)])
        msg = f"every parameter is frozen by {by}; nothing is left to optimise."
        raise ValueError(msg)
    return moving


# -- the objective on the host ----------------------------------------------------------------------------------------


class _Point(NamedTuple):
    """The loss -bound / N and its gradient [n] at a vector [n], the model, and the 0-d bound where it was computed.

    What was repaired there counts once the point is an iterate: trial points may be wild, and leave nothing behind.
    """

    vector: npt.NDArray[np.float64]
    model: Any
    loss: float
    slope: npt.NDArray[np.float64]
    bound: Array
    repairs: Tally


class _Objective:
    """-bound / N as a function of one float64 vector on the host."""

    def __init__(
        self,
        model: Any,
        batch: Batch,
        moving: list[str],
        inner: Sequence[Update],
        gradient: GradientMode,
        memory: float,
    ) -> None:
        self.given = self.settled = model
        self.batch, self.moving = batch, moving
        leaves = tree.leaves(model)
        self.reference = leaves[moving[0]]  # the data may lie elsewhere
        self.B = backend_of(self.reference)
        self.shapes = [tuple(leaves[name].shape) for name in moving]
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
        constraints = {leaf.name: leaf.constraint for leaf in tree.describe(self.given)}
        least = [
            np.full(np.prod(shape, dtype=int), np.log(rounding) if constraints[name] is POSITIVE else -np.inf)
            for name, shape in zip(self.moving, self.shapes, strict=True)
        ]
        return np.minimum(np.concatenate(least), start)

    def vector_of(self, model: Any) -> npt.NDArray[np.float64]:
        """The moving raw leaves of a model in one vector."""
        return self._joined(tree.unconstrain(model))

    def _joined(self, raw: dict[str, Array]) -> npt.NDArray[np.float64]:
        xp = self.B.xp
        flat = xp.concat([xp.reshape(raw[name], (-1,)) for name in self.moving])
        return np.array(to_numpy(flat), dtype=np.float64)

    def _model_at(self, vector: npt.NDArray[np.float64]) -> Any:
        """The model with these raw leaves; the others are where inner updates left them at the last iterate."""
        xp = self.B.xp
        flat = placed(vector, self.reference)
        ends = np.cumsum([np.prod(shape, dtype=int) for shape in self.shapes]).tolist()
        raw = {
            name: xp.reshape(flat[start:end], shape)
            for name, shape, start, end in zip(self.moving, self.shapes, [0, *ends], ends, strict=False)
        }
        return tree.constrain(self.settled, raw)

    def __call__(self, vector: npt.NDArray[np.float64]) -> _Point | None:
        """The loss there; None, with the reason counted, if it or its gradient is not finite."""
        self.evaluations += 1
        vector = np.array(vector)
        with np.errstate(all="ignore"):  # what overflows at a wild trial point is seen below
            try:
                with collected() as reports:
                    here = self._model_at(vector)
                    (bound, raw_bar, model), _ = settled(lambda: self._evaluated(here), self.reference)
            except NotPositiveDefiniteError:
                return self._rejected("a factorisation failed")
            tally = Tally(reports)
            if tally.failures:
                return self._rejected("a factorisation failed")
            rows = self.batch.X.shape[0]
            loss, slope = -float(bound) / rows, -self._joined(raw_bar) / rows
        if not np.isfinite(loss):
            return self._rejected("the bound was not finite")
        if not np.isfinite(slope).all():
            return self._rejected("the gradient was not finite")
        return _Point(vector, model, loss, slope, bound, tally)

    def _rejected(self, reason: str) -> None:
        self.rejections[reason] += 1


def _starts(objective: _Objective, restarts: int, seed: int, spread: float) -> Iterator[npt.NDArray[np.float64]]:
    """The vector of the model itself, then those of the restarts."""
    yield objective.vector_of(objective.given)
    for i in range(restarts):
        yield objective.vector_of(_perturbed(objective, generator(seed, 4, i), spread))


def _perturbed(objective: _Objective, rng: np.random.Generator, spread: float) -> Any:
    model = objective.given
    new = {}
    for leaf in tree.describe(model):
        name, value = leaf.name, leaf.value
        if name in objective.moving and any(tree.matches(name, pattern) for pattern in HYPERPARAMETERS):
            noise = spread * rng.standard_normal(tuple(value.shape))
            if leaf.constraint is POSITIVE:
                new[name] = placed(to_numpy(value).astype(np.float64) * np.exp(noise), value)
            else:
                new[name] = leaf.constrained(leaf.raw + placed(noise, value))
    return tree.with_leaves(model, new)


# -- the search -------------------------------------------------------------------------------------------------------


class _Start:
    """One run of the optimiser: its last iterate, and the trace that led there."""

    def __init__(self, first: _Point) -> None:
        self.iterate = self.latest = first
        self.trace: dict[str, list[float]] = {"bound": [], "gradient": []}
        self.message, self.converged = "stopped before the optimiser was done", False

    def height(self, vector: npt.NDArray[np.float64]) -> float:
        """A high value for a rejected point: as far up as the slope promised to go down, so that steps shrink."""
        promised = abs(float(self.iterate.slope @ (vector - self.iterate.vector)))
        size = 1.0 + abs(self.iterate.loss)
        return self.iterate.loss + float(np.clip(promised, 1e-3 * size, 1e3 * size))


class _Search:
    """All starts in turn; the best is kept."""

    bar: Any = None

    def __init__(self, objective: _Objective, limits: _Limits, callbacks: list[Callback]) -> None:
        self.objective, self.limits, self.callbacks = objective, limits, callbacks
        self.runs: list[_Start | None] = []
        self.steps, self.seconds, self.stopped = 0, 0.0, False

    def run(self, starts: Iterator[npt.NDArray[np.float64]]) -> None:
        """Optimise from each start until a callback ends it."""
        for vector in starts:
            self._run_from(vector)
            if self.stopped:
                return

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def _run_from(self, vector: npt.NDArray[np.float64]) -> None:
        self.objective.settled = self.objective.given
        with self._timed():
            first = self.objective(vector)
        if first is None and not self.runs:
            reason = next(iter(self.objective.rejections))
            msg = f"{reason} at the model to start from; try standardised data, more jitter or float64."
            raise NonFiniteError(msg, self.result())
        if first is None:
            self.runs.append(None)
            return
        run = _Start(first)
        self.objective.repairs.merge(first.repairs)
        self.runs.append(run)
        if self.limits.iterations:
            self._minimise(run)
        else:
            run.message = "no iterations were asked for"

    def _minimise(self, run: _Start) -> None:
        def loss(vector: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
            if np.array_equal(vector, run.latest.vector):  # the first point is known
                return run.latest.loss, run.latest.slope
            with self._timed():
                point = self.objective(vector)
            if point is None:
                return run.height(vector), np.zeros_like(vector)
            run.latest = point
            return point.loss, point.slope

        def iterated(intermediate_result: Any) -> None:
            if np.array_equal(intermediate_result.x, run.latest.vector):
                run.iterate = run.latest
                self.objective.settled = run.latest.model
                self.objective.repairs.merge(run.latest.repairs)
            self._finish_iteration(run)

        options = {
            "maxiter": self.limits.iterations,
            "maxfun": 100 * self.limits.iterations,
            "gtol": self.limits.tolerance,
            "ftol": 10.0 * float(self.objective.B.xp.finfo(self.objective.reference.dtype).eps),
        }
        from scipy import optimize

        start = run.iterate.vector
        found = optimize.minimize(
            loss,
            start,
            method="L-BFGS-B",
            jac=True,
            bounds=[(least, None) for least in self.objective.lowest(start)],
            callback=iterated,
            options=options,
        )
        run.message, run.converged = str(found.message), bool(found.success)
        if self.stopped:
            run.message = "a callback ended the optimisation"

    def _finish_iteration(self, run: _Start) -> None:
        self.steps += 1
        at = run.iterate
        run.trace["bound"].append(float(at.bound))
        run.trace["gradient"].append(float(np.max(np.abs(at.slope))))
        if self.bar is not None:
            self.bar.show(self.steps, {"bound": float(at.bound)}, self.objective.repairs.total)
        if self.callbacks:
            seen = Progress(self.steps, at.model, {"bound": at.bound}, self.seconds)
            if sum(bool(callback(seen)) for callback in self.callbacks):  # every callback is called
                self.stopped = True
                raise StopIteration

    def result(self) -> LBFGSResult:
        """The best of the starts so far; the model as given if there is none."""
        objective = self.objective
        objective.repairs.add(objective.aside)
        objective.aside.clear()
        counts = {"evaluations": objective.evaluations, "rejections": dict(objective.rejections)}
        done = [run for run in self.runs if run is not None]
        if not done:
            return LBFGSResult(objective.given, 0, self.seconds, **counts)
        best = min(done, key=lambda run: run.iterate.loss)
        return LBFGSResult(
            best.iterate.model,
            len(best.trace["bound"]),
            self.seconds,
            best.trace,
            objective.repairs.messages,
            message=best.message,
            converged=best.converged,
            bounds=[-float("inf") if run is None else float(run.iterate.bound) for run in self.runs],
            **counts,
        )
