"""What may come of a hostile problem, and what may not: sound numbers, or an error of the library that says why."""

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hostile_problems import NEAR, Problem, arrays, drawn

import agp
import agp_backends
from agp.backend import asarray_like, to_numpy
from agp.errors import BackendError, NonFiniteError, NotPositiveDefiniteError, RepairWarning, UntouchedWarning

__all__ = ["Outcome", "describe_error", "judged", "unsound"]

ALLOWED = (ValueError, TypeError, NonFiniteError, NotPositiveDefiniteError, BackendError)
HOMES = tuple(str(Path(package.__file__).parent) for package in (agp, agp_backends) if package.__file__)


class Outcome(NamedTuple):
    """What came of a problem."""

    seed: int
    model: str
    seconds: float
    errors: list[tuple[str, str, str]]
    """Allowed errors: where, class and first line of the message."""
    defects: list[tuple[str, str]]
    """What must not be: where, and what."""
    repairs: int
    """Warnings of repairs."""


class _Judge:
    """Runs the stages of one problem, and writes down what each gives."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, str, str]] = []
        self.defects: list[tuple[str, str]] = []
        self.repairs = 0

    def stage(self, name: str, action: Callable[[], Any]) -> Any:
        """What the action returns, or the error that it raised; a warning other than that of a repair is a defect."""
        with self._heard(name), np.errstate(over="warn", divide="warn", invalid="warn", under="ignore"):
            try:
                found = action()
            except ALLOWED as error:
                if message := unsound(error):
                    self.defects.append((name, message))
                else:
                    self.errors.append((name, type(error).__name__, str(error).partition("\n")[0]))
                return error
            except Exception as error:
                self.defects.append((name, describe_error(error)))
                return error
        return found

    @contextmanager
    def _heard(self, name: str) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for one in caught:
            if issubclass(one.category, UntouchedWarning):
                continue  # lists of updates that leave something behind are among the problems
            if issubclass(one.category, RepairWarning):
                self.repairs += 1
            else:
                place = f"{Path(one.filename).name}:{one.lineno}"
                self._defect(name, f"{one.category.__name__} at {place}: {one.message}")

    def need(self, name: str, condition: Any, message: str) -> None:
        if not condition:
            self._defect(name, message)

    def _defect(self, name: str, message: str) -> None:
        if (name, message) not in self.defects:
            self.defects.append((name, message))


def describe_error(error: BaseException) -> str:
    """The class and the message of an error, and the lines that raised and that called."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = [x for x in traceback.extract_tb(error.__traceback__) if x.filename.startswith(HOMES)]
    place = f", called from {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}{place}: {str(error)[:200]}"


def unsound(error: BaseException) -> str:
    """What is wrong with an error of an allowed class; nothing, usually."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    first = str(error).partition("\n")[0]
    if not last.filename.startswith(HOMES):
        return "foreign " + describe_error(error)
    if len(first) < 20 or not first.endswith((".", "?", "so far")):
        return "an error without a cause: " + describe_error(error)
    return ""


def judged(
    seed: int, library: str = "numpy", device: str | None = None, *, tiny: bool = False, model: str | None = None
) -> Outcome:
    """Build, evaluate, train, predict; every number is looked at."""
    start, judge = time.perf_counter(), _Judge()
    problem = drawn(seed, tiny=tiny, model=model)
    X, y, elsewhere, known = arrays(problem, library, device)
    built = judge.stage("build", lambda: problem.build(X, y, **known))
    if not isinstance(built, Exception):
        _bound(judge, "bound", built, X, y, known)
        _predictions(judge, problem, "start: ", built, elsewhere, y, known)
        if problem.model in NEAR:
            _near(judge, problem, built, elsewhere, y, known)
        trained = _trained(judge, problem, built, X, y, known)
        _predictions(judge, problem, "trained: ", trained, elsewhere, y, known)
        if problem.deterministic:
            fitted = judge.stage("fit", lambda: agp.fit_lbfgs(built, X, y, max_iterations=4, **known))
            if not isinstance(fitted, Exception):
                judge.need("fit", np.isfinite(fitted.trace["bound"]).all(), "a bound that is not finite")
                _latent(judge, "fitted: ", fitted.model, elsewhere)
    seconds = time.perf_counter() - start
    return Outcome(seed, problem.model, seconds, judge.errors, judge.defects, judge.repairs)


def _bound(judge: _Judge, name: str, model: Any, X: Any, y: Any, known: Any) -> None:
    found = judge.stage(name, lambda: agp.value_and_gradient(model, X, y, **known))
    if isinstance(found, Exception):
        return
    for leaf, x in {"the bound": found[0], **found[1]}.items():
        judge.need(name, np.isfinite(to_numpy(x)).all(), f"{leaf} is not finite")


def _trained(judge: _Judge, problem: Problem, model: Any, X: Any, y: Any, known: Any) -> Any:
    """The model after training, or the last sound one."""
    options = {"steps": problem.steps, "batch_size": problem.batch_size, **known}
    result = judge.stage("train", lambda: agp.train(model, X, y, updates=problem.updates(model), **options))
    if isinstance(result, NonFiniteError):
        judge.need("train", result.result is not None, "NonFiniteError without a result")
        result = result.result
    if isinstance(result, Exception) or result is None:
        return model
    for name, numbers in result.trace.items():
        judge.need("train", np.isfinite(numbers).all(), f"{name} of the trace is not finite")
    for name, x in agp.tree.leaves(result.model).items():
        judge.need("train", np.isfinite(to_numpy(x)).all(), f"{name} is not finite after training")
    return result.model


def _near(judge: _Judge, problem: Problem, model: Any, X: Any, y: Any, known: Any) -> None:
    """What models with neighbours have besides: left-out rows, functions, and further data."""
    if hasattr(model, "leave_one_out"):
        given, rows = ((), {}) if problem.model == "nngp" else ((y,), known)  # which it holds
        density = judge.stage("left out", lambda: model.leave_one_out(*given, **rows))
        if not isinstance(density, Exception):
            judge.need("left out", np.isfinite(to_numpy(density)).all(), "a log density that is not finite")
    functions = judge.stage("functions", lambda: model.sample_functions(2, features=32)(X))
    if not isinstance(functions, Exception):
        judge.need("functions", np.isfinite(to_numpy(functions)).all(), "a function that is not finite")
    more = np.ones_like(to_numpy(y[:2, :])) if problem.observed_zero else None
    noise = None if more is None else asarray_like(more, y)
    count = min(2, y.shape[0])
    further = judge.stage(
        "further data", lambda: model.predictor().condition_on(X[:count, :], y[:count, :], noise=noise)
    )
    if not isinstance(further, Exception):
        _latent(judge, "further: ", further, X)


def _latent(judge: _Judge, name: str, model: Any, X: Any) -> None:
    latent = judge.stage(name + "predict", lambda: model.predict(X))
    if not isinstance(latent, Exception):
        mean, variance = map(to_numpy, latent)
        judge.need(name + "predict", np.isfinite(mean).all(), "a mean that is not finite")
        judge.need(name + "predict", np.isfinite(variance).all(), "a variance that is not finite")
        judge.need(name + "predict", (variance >= 0.0).all(), f"a variance below zero: {variance.min():g}")


def _predictions(judge: _Judge, problem: Problem, name: str, model: Any, X: Any, y: Any, known: Any) -> None:
    _latent(judge, name, model, X)
    observed = judge.stage(name + "observed", lambda: model.predict(X, observed=True))
    if not isinstance(observed, Exception):
        _observed(judge, problem, name + "observed", *map(to_numpy, observed))
    N = y.shape[0]
    at_rows = {key: x for key, x in known.items() if key != "weights"}
    density = judge.stage(name + "density", lambda: model.log_density(X[:N, :], y, **at_rows))
    if not isinstance(density, Exception):
        judge.need(name + "density", np.isfinite(to_numpy(density)).all(), "a log density that is not finite")
    if not problem.deep:
        _joint(judge, name, model, X)


def _observed(judge: _Judge, problem: Problem, name: str, mean: np.ndarray, variance: np.ndarray) -> None:
    judge.need(name, np.isfinite(mean).all(), "a mean that is not finite")
    if not problem.observed_infinite:
        judge.need(name, np.isfinite(variance).all(), "a variance that is not finite")
    positive = variance >= 0.0 if problem.observed_zero else variance > 0.0
    judge.need(name, positive.all(), f"a variance of {variance.min():g}")


def _joint(judge: _Judge, name: str, model: Any, X: Any) -> None:
    covariance = judge.stage(name + "covariance", lambda: model.predict_covariance(X))
    if not isinstance(covariance, Exception):
        C = to_numpy(covariance)
        judge.need(name + "covariance", np.isfinite(C).all(), "an entry that is not finite")
        judge.need(name + "covariance", (np.diagonal(C, axis1=1, axis2=2) >= 0.0).all(), "a diagonal below zero")
        judge.need(name + "covariance", (np.swapaxes(C, 1, 2) == C).all(), "not symmetric")
    sample = judge.stage(name + "sample", lambda: model.sample(X, 2, seed=1))
    if not isinstance(sample, Exception):
        judge.need(name + "sample", np.isfinite(to_numpy(sample)).all(), "a sample that is not finite")
