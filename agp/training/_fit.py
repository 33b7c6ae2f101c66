"""Training to convergence, by L-BFGS if the model allows it and by the updates of `recipe` otherwise."""

import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agp._context import public
from agp.backend import Array, backend_of, to_numpy
from agp.batch import Batch
from agp.checks import check_callables, check_positive, check_whole
from agp.errors import ConvergenceWarning, Interrupted, NonFiniteError, NoSignalWarning
from agp.gradient import GradientMode
from agp.random import generator
from agp.repairs import outside
from agp.training._batches import Place, check_place
from agp.training._begun import check_training, observations_of
from agp.training._certificate import baseline
from agp.training._lbfgs import fit_lbfgs, why_not_lbfgs
from agp.training._loop import train
from agp.training._objective import inner_updates, moves_posteriors
from agp.training._recipe import FINAL_RATE_FRACTION, RATE, recipe
from agp.training._result import Callback, ModelType, Progress, Result
from agp.training._resume import checkpoint_exists, load_trace
from agp.updates import Update

BATCH_ROWS = 1024
"""The default number of rows in a minibatch."""
LBFGS_ROWS = 2048
"""A model that can use minibatches is trained by L-BFGS if there are at most this many rows."""
ITERATIONS = 1000
"""The default maximum number of L-BFGS iterations."""
STEPS, EPOCHS = 5_000, 20
"""The default limit on training by `recipe`: this many steps or passes over the data, whichever takes more steps."""
WINDOW_STEPS, WINDOW_EPOCHS = 500, 5
"""The slope of a noisy bound is estimated over this many steps or passes, whichever takes more steps."""
MIN_EPOCH_STEPS = 100
"""The minimum number of steps whose gain is compared with the tolerance, and the window for a bound without noise."""
FIRST_STEPS = 200
"""The number of steps of `recipe` before L-BFGS, if L-BFGS moves a q(u)."""
LAST_ITERATIONS = 20
"""L-BFGS stops when this many iterations together gain less than the tolerance."""
COOLING_SHARE, COOLING_STEPS = 0.2, 100
"""After convergence, training continues for `COOLING_SHARE` times the number of steps so far, but at least for
`COOLING_STEPS` steps, while the learning rates fall to a tenth."""


@dataclass
class FitResult(Result[ModelType]):
    """The result of `fit`, with the reason why the training ended."""

    converged: bool = False
    """True if the training ended because the tolerance was met, False if a limit or a callback ended it."""
    message: str = ""
    """Why the training ended."""
    learned: bool = True
    """True if the bound exceeds the log density of the targets without the inputs, or if the training did not converge.
    The log density without inputs is that of a normal distribution or of the class frequencies."""


@public(repairs=False, ignore=None)
def fit(
    model: ModelType,
    X: Array,
    y: Array,
    /,
    *,
    tolerance: float = 1e-3,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    batch_size: int | None = None,
    updates: Callable[..., list[Update]] | None = None,
    gradient: GradientMode = "closed-form",
    memory: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    checkpoint: str | Path | None = None,
    draws: Place = "host",
    graphs: bool = True,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> FitResult[ModelType]:
    """Train a model to convergence, or until a limit is reached.

    Training uses L-BFGS (`fit_lbfgs`) if the bound is deterministic and each step uses all rows. Otherwise, it uses
    minibatches and the updates of `recipe`. Each L-BFGS evaluation solves for the sites, the inverse factors and, if
    the likelihood is Gaussian, q(u). If L-BFGS has to optimise a q(u) itself, 200 steps of `recipe` come first.

    Parameters
    ----------
    model
        An `agp.models.Model`. The model is not changed; `FitResult.model` is the trained model.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    tolerance
        The gain below which training has converged, in nats per datum. Training by `recipe` has converged when an epoch
        (at least 100 steps) gains less than the tolerance. The gain is estimated from the slope of the bound over the
        last 5 epochs or 500 steps, whichever is more. If each step uses all rows, it is estimated from the last 100
        steps. After convergence, training continues for a fifth of the steps taken so far, while the learning rates
        fall to a tenth. L-BFGS stops when 20 iterations gain less than the tolerance, or when no entry of the gradient
        with respect to the dimensionless raw leaves exceeds a thousandth of the tolerance.
    max_steps
        Maximum number of steps; the default is 5,000 or 20 epochs, whichever is more. With L-BFGS, each iteration
        counts as a step, and the default is 1,000.
    max_seconds
        Maximum time in seconds; unlimited by default.
    batch_size
        The number of rows in a minibatch; by default 1,024, or all rows if the model requires them. If you pass
        `batch_size`, training does not use L-BFGS.
    updates
        A function that returns the updates to use instead of `recipe` and L-BFGS. Like `recipe`, the function takes a
        model, the number of steps, and the keywords `rate`, `gradient` and `memory`.
    gradient, memory
        See `agp.recipe`.
    seed
        The seed for the minibatches.
    callbacks
        Functions called with a `Progress` after each step. If a callback returns True, the training ends.
    progress
        Show a progress bar (needs the extra ``cli``).
    draws, graphs
        See `agp.train`.
    checkpoint
        See `agp.train`. L-BFGS writes no checkpoints, so training with a checkpoint uses `recipe`. If `fit` can train
        the model only by L-BFGS, passing a checkpoint raises an error. The final steps, with falling learning rates,
        are stored in a second file, whose name ends in "-last".
    weights, offset, noise
        What is known of each row; see `agp.models.Model.bound`.

    Raises
    ------
    TypeError, ValueError
        In the same cases as `train` and `fit_lbfgs`; also if the tolerance or a limit is not a positive number.

    Warns
    -----
    agp.errors.ConvergenceWarning
        If a limit on steps or time ended the training.
    agp.errors.NoSignalWarning
        If the trained model predicts no better than the mean of the targets or the class frequencies.
    """
    data = check_training(model, X, y, weights, offset, noise)
    X, y = data.X, data.y
    check_plan(updates)
    tolerance = check_positive("tolerance", tolerance)
    check_place(draws)
    clock = _Clock(None if max_seconds is None else check_positive("max_seconds", max_seconds))
    watchers = [*check_callables("callbacks", callbacks), clock]
    settings: dict[str, Any] = {"callbacks": watchers, "progress": progress, "seed": seed}
    settings |= {"weights": weights, "offset": offset, "noise": noise}
    launched: dict[str, Any] = {"draws": draws, "graphs": graphs}
    inner = inner_updates(model, memory)
    if updates is None and not why_not_lbfgs(model, X.shape[0], inner):
        if not model.stochastic and not inner:
            _refuse(checkpoint, batch_size)
        if checkpoint is None and batch_size is None and (not model.stochastic or X.shape[0] <= LBFGS_ROWS):
            limit = ITERATIONS if max_steps is None else check_whole("max_steps", max_steps)
            how = {"gradient": gradient, "memory": memory}
            found = _by_lbfgs(model, data, limit, tolerance, clock, inner, how, settings, graphs)
            return warn_without_signal(found, data)
    size = min(X.shape[0], BATCH_ROWS) if batch_size is None and model.stochastic else batch_size
    epoch = max(1, X.shape[0] // (size or X.shape[0]))
    noisy = size not in (None, X.shape[0]) or any(model._draws(generator(0), X.shape[0]))
    steps = max(STEPS, EPOCHS * epoch) if max_steps is None else check_whole("max_steps", max_steps)
    slope = _Slope(X.shape[0], epoch, tolerance, noisy=noisy)
    planned = partial(updates or recipe, gradient=gradient, memory=memory)
    cooled = _beside(checkpoint, slope)
    watched: dict[str, Any] = {**settings, "callbacks": [*watchers, slope]}
    watched |= {"updates": planned(model, steps, rate=RATE), "checkpoint": checkpoint, **launched}
    found = train(model, X, y, steps=slope.steps if slope.converged else steps, batch_size=size, **watched)
    if slope.converged:
        settings |= _cooling(found, steps, planned) | {"batch_size": size, "checkpoint": cooled, **launched}
        found = resume_training(found, train, X, y, settings)
        return warn_without_signal(_with_message(found, True, clock, slope.message), data)
    return _with_message(found, False, clock, _ending(found, steps))


def _cooling(found: Result[Any], steps: int, planned: Callable[..., list[Update]]) -> dict[str, Any]:
    """Return the number of steps after convergence, and the updates whose learning rates fall to a tenth in them."""
    cooling = min(steps - found.steps, max(COOLING_STEPS, int(COOLING_SHARE * found.steps)))
    reached = RATE * (1.0 - (1.0 - FINAL_RATE_FRACTION) * found.steps / steps)
    return {"steps": cooling, "updates": planned(found.model, cooling, rate=reached)}


def _beside(checkpoint: str | Path | None, slope: "_Slope") -> Path | None:
    """Return the path of the second checkpoint file, which stores the final steps.

    If the checkpoint exists, `slope` resumes from the stored bounds. If the stored training has not converged, an
    existing second file is from another training run and is deleted.
    """
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    slope.resume(load_trace(path).get("bound", []))
    last = path.with_name(f"{path.stem}-last{path.suffix}")
    if not slope.converged and checkpoint_exists(last):
        load_trace(last)  # raises unless it is the checkpoint of a training run
        last.unlink()
    return last


def _by_lbfgs(
    model: ModelType,
    data: Batch,
    limit: int,
    tolerance: float,
    clock: "_Clock",
    inner: list[Update],
    how: dict[str, Any],
    watched: dict[str, Any],
    graphs: bool,
) -> FitResult[ModelType]:
    """Run L-BFGS until the gain is below the tolerance; restart it once if rounding has ended a line search.

    If L-BFGS moves a q(u), steps of `recipe` come first, because L-BFGS from a poor start may mistake the signal for
    noise.
    """
    X, y = data.X, data.y
    gain, found = Gain(tolerance * observations_of(data)), Result(model, 0, 0.0)
    if moves_posteriors(model, inner):
        steps = min(FIRST_STEPS, limit)
        found = train(model, X, y, steps=steps, updates=recipe(model, steps, **how), graphs=graphs, **watched)
        if found.steps < steps or steps == limit:
            return _with_message(found, False, clock, _ending(found, steps))
    settings = {**watched, **how, "inner": inner, "tolerance": 1e-3 * tolerance}
    settings["callbacks"] = [*watched["callbacks"], gain]

    def search(before: Result[Any]) -> Any:
        return resume_training(before, fit_lbfgs, X, y, {**settings, "max_iterations": limit - before.steps})

    found = search(found)
    if "ABNORMAL" in found.message and found.steps < limit and not clock.ended:
        height = gain.bounds[-1:]
        found = search(found)
        if "ABNORMAL" in found.message and gain.since(height) < gain.least:
            found = replace(found, converged=True, message="the line search finds no further gain above rounding")
    ending = f"the limit of {limit} iterations was reached" if found.steps >= limit else found.message
    return _with_message(found, found.converged or gain.converged, clock, gain.message or ending)


def check_plan(updates: Any) -> None:
    """Raise TypeError unless `updates` is None or a function that returns updates."""
    if updates is not None and (not callable(updates) or isinstance(updates, type)):
        msg = (
            f"updates is {updates!r}, but must be a function of a model and the number of steps, such as agp.recipe; "
            "pass lists of updates to agp.train."
        )
        raise TypeError(msg)


def _refuse(checkpoint: Any, batch_size: Any) -> None:
    given = {"checkpoint": checkpoint, "batch_size": batch_size}
    if named := [name for name, value in given.items() if value is not None]:
        names = " and ".join(named)
        msg = f"{names} cannot be used with L-BFGS, which trains this model on all rows; omit {names} or use agp.train."
        raise ValueError(msg)


def _ending(found: Result[Any], steps: int) -> str:
    return "a callback ended the training" if found.steps < steps else f"the limit of {steps} steps was reached"


def _with_message(found: Any, converged: bool, clock: "_Clock", message: str) -> FitResult[Any]:
    if clock.ended and not converged:
        message = f"the limit of {clock.budget:g} s was reached"
    if not converged:
        text = f"the training has not converged after {found.steps} steps: {message}; train longer or raise tolerance."
        warnings.warn(text, ConvergenceWarning, stacklevel=outside())
    shared = {each.name: getattr(found, each.name) for each in fields(Result)}
    return FitResult(**shared, converged=converged, message=message)


def warn_without_signal(found: FitResult[ModelType], data: Batch) -> FitResult[ModelType]:
    """Return the result; if the model has learned nothing about the targets, warn and set `learned` to False."""
    bounds = found.trace.get("bound", [])[-LAST_ITERATIONS:]
    if not (found.converged and bounds):
        return found
    alone = data.X.shape[0] * baseline(found.model.likelihood, data.y, *data.known)
    gain = float(np.mean(bounds)) - alone
    if gain > 0.0:
        return found
    text = (
        f"the model has learned nothing: after {found.steps} steps, its bound is {-gain:.3g} nats below the log "
        "density of the targets without the inputs; if the inputs are informative, try other lengthscales, another "
        "kernel or more inducing inputs."
    )
    warnings.warn(text, NoSignalWarning, stacklevel=outside())
    return replace(found, learned=False)


def resume_training(first: Any, training: Callable[..., Any], X: Array, y: Array, settings: dict[str, Any]) -> Any:
    """Continue training after the result `first`, which is included in the new result or in an error's `.result`."""
    settings = {**settings, "callbacks": [_later(callback, first) for callback in settings["callbacks"]]}
    try:
        return _join_results(first, training(first.model, X, y, **settings))
    except (Interrupted, NonFiniteError) as error:
        error.result = first if error.result is None else _join_results(first, error.result)
        raise


def _join_results(first: Any, second: Any) -> Any:
    """Combine the results of two training runs: add steps, times and repairs, join traces, keep the second model."""
    trace = {name: [*first.trace.get(name, []), *steps] for name, steps in second.trace.items()} or first.trace
    steps, seconds = first.steps + second.steps, first.seconds + second.seconds
    return replace(second, steps=steps, seconds=seconds, trace=trace, repairs=first.repairs + second.repairs)


def _later(callback: Callback, first: Result[Any]) -> Callback:
    """Return a callback that adds the steps and seconds of the result `first` to the progress."""

    def seen(progress: Progress) -> Any:
        step, seconds = progress.step + first.steps, progress.seconds + first.seconds
        return callback(progress._replace(step=step, seconds=seconds))

    return seen


class _Clock:
    """A callback that ends the training when the time limit is reached."""

    def __init__(self, budget: float | None) -> None:
        self.budget, self.ended = budget, False
        self.start = time.perf_counter()

    def __call__(self, _seen: Progress) -> bool:
        self.ended = self.budget is not None and time.perf_counter() - self.start >= self.budget
        return self.ended


class Gain:
    """A callback that ends L-BFGS when the last 20 iterations have gained less than `least`, in nats."""

    def __init__(self, least: float) -> None:
        self.least, self.converged, self.message = least, False, ""
        self.bounds: list[float] = []

    def __call__(self, seen: Progress) -> bool:
        self.bounds.append(float(seen.info["bound"]))
        if len(self.bounds) > LAST_ITERATIONS and self.since(self.bounds[-1 - LAST_ITERATIONS :]) < self.least:
            self.converged = True
            self.message = f"the last {LAST_ITERATIONS} iterations gained less than {self.least:.2g} nats"
        return self.converged

    def since(self, bounds: list[float]) -> float:
        """Return the gain since the first of these bounds, or 0 if the list is empty."""
        return self.bounds[-1] - bounds[0] if bounds else 0.0


class _Slope:
    """A callback that ends the training when the bound rises by less than the tolerance per epoch.

    The callback fits a straight line to the bounds of the last steps to average out the minibatch noise.
    """

    def __init__(self, rows: int, epoch: int, tolerance: float, *, noisy: bool) -> None:
        self.window = max(WINDOW_STEPS, WINDOW_EPOCHS * epoch) if noisy else MIN_EPOCH_STEPS
        self.epoch, self.rows, self.tolerance = max(epoch, MIN_EPOCH_STEPS), rows, tolerance
        self.steps = 0
        self.read: list[float] = []
        self.waiting: list[Array] = []
        self.converged, self.message = False, ""

    def resume(self, bounds: list[float]) -> None:
        """Continue after an earlier training run, given the bounds of its steps."""
        self.steps = len(bounds)
        self.read = bounds[-(self.window + self.steps_since_check()) :]
        self._judge()

    def steps_since_check(self) -> int:
        """Return the number of steps since the slope was last computed."""
        return self.steps % (self.window // 5)

    def __call__(self, seen: Progress) -> bool:
        self.waiting.append(seen.info["bound"])
        self.steps += 1
        if not self.steps_since_check():  # read in one transfer
            xp = backend_of(self.waiting[0]).xp
            self.read = [*self.read, *to_numpy(xp.stack(self.waiting)).tolist()][-self.window :]
            self.waiting = []
            self._judge()
        return self.converged

    def _judge(self) -> None:
        if len(self.read) < self.window or self.steps_since_check():
            return
        times = np.arange(self.window) - 0.5 * (self.window - 1)
        gained = float(times @ np.asarray(self.read)) / float(times @ times) * self.epoch / self.rows
        self.converged = gained < self.tolerance
        self.message = f"{self.epoch} steps gain {gained:.1e} nats per datum, less than {self.tolerance:g}"
