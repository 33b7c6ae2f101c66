"""The search of L-BFGS: starts, iterations, rejected points, and the best of all."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import placed, to_numpy
from agp.constraints import POSITIVE
from agp.errors import NonFiniteError
from agp.random import generator
from agp.training._objective import Objective, Point
from agp.training._result import LBFGSResult, Progress
from agp.training._run import Callback

__all__ = ["Limits", "Search", "starts"]

HYPERPARAMETERS = ("kernel.*", "likelihood.*")
"""What a restart draws anew; inducing inputs and q(u) begin where the model has them."""


class Limits(NamedTuple):
    """Of each start: iterations at most, and the entry of the raw gradient per datum that is small enough."""

    iterations: int
    tolerance: float


def starts(objective: Objective, restarts: int, seed: int, spread: float) -> Iterator[npt.NDArray[np.float64]]:
    """The vector of the model itself, then those of the restarts."""
    yield objective.vector_of(objective.given)
    for i in range(restarts):
        yield objective.vector_of(_perturbed(objective, generator(seed, 4, i), spread))


def _perturbed(objective: Objective, rng: np.random.Generator, spread: float) -> Any:
    model = objective.given
    raw, new, moved = tree.unconstrain(model), {}, {}
    for leaf in tree.describe(model):
        name, value = leaf.name, leaf.value
        if name in objective.moving and any(tree.matches(name, pattern) for pattern in HYPERPARAMETERS):
            noise = spread * rng.standard_normal(tuple(value.shape))
            if leaf.constraint is POSITIVE:
                new[name] = placed(to_numpy(value).astype(np.float64) * np.exp(noise), value)
            else:
                moved[name] = raw[name] + placed(noise, value)
    return tree.constrain(tree.with_leaves(model, new), moved)


class _Start:
    """One run of the optimiser: its last iterate, and the trace that led there."""

    def __init__(self, first: Point) -> None:
        self.iterate = self.latest = first
        self.trace: dict[str, list[float]] = {"bound": [], "gradient": []}
        self.message, self.converged = "stopped before the optimiser was done", False

    def height(self, vector: npt.NDArray[np.float64]) -> float:
        """A high value for a rejected point: as far up as the slope promised to go down, so that steps shrink."""
        promised = abs(float(self.iterate.slope @ (vector - self.iterate.vector)))
        size = 1.0 + abs(self.iterate.loss)
        return self.iterate.loss + float(np.clip(promised, 1e-3 * size, 1e3 * size))


class Search:
    """All starts in turn; the best is kept."""

    bar: Any = None

    def __init__(self, objective: Objective, limits: Limits, callbacks: list[Callback]) -> None:
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
        told = {"evaluations": objective.evaluations, "rejections": dict(objective.rejections)}
        told |= {"frozen": objective.frozen}
        done = [run for run in self.runs if run is not None]
        if not done:
            return LBFGSResult(objective.given, 0, self.seconds, **told)
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
            **told,
        )
