"""Training to convergence, by Newton's method or L-BFGS if the model allows it, and by `recipe` otherwise."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, to_numpy
from agp.bounds import Batch
from agp.checks import check_callables, check_choice, check_positive, check_whole
from agp.errors import NonFiniteError, NoSignalWarning, count_of
from agp.gradient import GradientMode
from agp.priors import Prior, restrict, with_priors
from agp.random import generator
from agp.repairs import outside, public
from agp.training._batches import Place
from agp.training._begun import FINAL_RATE_FRACTION, RATE, check_training, recipe
from agp.training._certificate import baseline, judge_bounds
from agp.training._lbfgs import LAST_ITERATIONS
from agp.training._loop import check_updates, train
from agp.training._near_sites import ROUNDS, fit_near_sites, why_not_in_turn
from agp.training._newton import why_not_newton
from agp.training._newton_fit import fit_newton
from agp.training._objective import inner_updates, why_not_lbfgs
from agp.training._progress import Level, Shown, expected_steps, track
from agp.training._result import Callback, ModelType, Progress, Result
from agp.training._resume import checkpoint_exists, load_trace
from agp.training._settling import moves_any, settle_posterior, settling_updates
from agp.training._stages import (
    Clock,
    FitResult,
    by_lbfgs,
    ending_of,
    limit_of_steps,
    resume_training,
    with_message,
)
from agp.updates import Adam, MovesLeaves, Update

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
NEWTON_TOLERANCE = 1e-2
"""Newton's method stops when the predicted gain in nats is below this fraction of the tolerance."""
LEAST_GAIN = 1e-3
"""A gain over the density of the targets without the inputs counts if it exceeds this many nats."""
FIRST_WINDOWS = 2
"""The usual number of steps until convergence, as a multiple of the window, before a slope is known."""
COOLING_SHARE, COOLING_STEPS = 0.2, 100
"""After convergence, training continues for `COOLING_SHARE` times the number of steps so far, but at least for
`COOLING_STEPS` steps, while the learning rates fall to a tenth."""


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
    updates: Callable[..., list[Update]] | Sequence[Update] | None = None,
    frozen: str | Iterable[str] = (),
    priors: Mapping[str, Prior] | None = None,
    gradient: GradientMode = "closed-form",
    memory: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: Shown = False,
    checkpoint: str | Path | None = None,
    draws: Place = "host",
    graphs: bool = True,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> FitResult[ModelType]:
    """Train a model to convergence, or until a limit is reached.

    Training uses Newton's method (`fit_newton`) for exact GPs, and L-BFGS (`fit_lbfgs`) if the bound is deterministic
    and each step uses all rows. For `TNNGP`, site steps and Newton steps take turns, in rounds. Otherwise, it uses
    minibatches and the updates of `recipe`. Each L-BFGS evaluation solves for the sites, the inverse factors and the
    q(u) of W-SVGP and M-SVGP (`agp.updates.OptimalPosterior`). If L-BFGS has to optimise a q(u) itself, 200 steps of
    `recipe` come first. That is the case for other methods, and for likelihoods with Monte Carlo estimates, such as
    `Softmax`, or vanishing slopes, such as `RobustMax`, or labels, such as `Bernoulli`.

    Minibatches leave q(u) near its optimum, at a distance that matters for error bars. After such a training, q(u) is
    therefore moved to its optimum on all rows, if the bound is deterministic: by `agp.updates.OptimalPosterior`, by
    `agp.updates.OptimalPseudoObservations` for R-SVGP and L-SVGP, or by a site step. It costs a few passes over the
    rows. A limit in seconds and own `updates` leave q(u) as it is, and so do methods without such an update, such as
    A-SVGP, SOLVE-GP and deep GPs.

    A `TNNGP` is trained in rounds: steps of all sites, then Newton steps given the sites. It has converged if a round
    gains less than the tolerance.

    If only the parameters of the kernel, the likelihood and the mean function move, converged means at the optimum: a
    Newton step would gain next to nothing (see `tolerance`). With an `OptimalPosterior`, inducing inputs are therefore
    fixed. Only if there are so few of them that the model loses more than 0.002 nats per datum, they move first, and
    are then fixed.

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
        fall to a tenth. Newton's method stops when the predicted gain of a step is below a hundredth of the tolerance,
        in nats instead of nats per datum. L-BFGS on hyperparameters alone stops when the predicted gain of a Newton
        step is below 1e-4 times the tolerance, also in nats, for two iterations in a row. The prediction uses the
        curvature that L-BFGS has seen, and is logged as "gain". If L-BFGS also moves inducing inputs or a q(u), whose
        curvature it does not know, it stops when 20 iterations gain less than the tolerance, on average over the last
        30 % of its iterations, or when no entry of the gradient with respect to the dimensionless raw leaves exceeds a
        thousandth of the tolerance.
    max_steps
        Maximum number of steps; the default is 5,000 or 20 epochs, whichever is more. With L-BFGS or Newton's method,
        each iteration counts as a step, and the default is 1,000. For `TNNGP`, each round counts, and it is 30.
    max_seconds
        Maximum time in seconds; unlimited by default.
    batch_size
        The number of rows in a minibatch; by default 1,024, or all rows if the model requires them. If you pass
        `batch_size`, training uses neither L-BFGS nor Newton's method.
    updates
        The updates to use instead of `recipe`, L-BFGS and Newton's method: a list, or a function that returns one. Like
        `recipe`, the function takes a model, the number of steps, and the keywords `rate`, `gradient` and `memory`. The
        rates of a list do not fall after convergence.
    frozen
        One or several patterns for the names of leaves, such as ``"likelihood.*"`` or ``"Z"``, or of single entries,
        such as ``"kernel.lengthscale[0]"``, which this training does not change.
    priors
        Priors and limits that replace those of the model, as in `from_data`. For example,
        ``{"likelihood.noise_variance": agp.priors.Between(1e-4)}`` keeps the noise variance above 1e-4.
    gradient, memory
        See `agp.recipe`.
    seed
        The seed for the minibatches.
    callbacks
        Functions called with a `Progress` after each step. If a callback returns True or a text, the training ends;
        `Result.message` gives the text as the reason.
    progress
        Show the progress, or append it to a log file; see `agp.train`.
    draws, graphs
        See `agp.train`.
    checkpoint
        See `agp.train`. L-BFGS and Newton's method write no checkpoints, so training with a checkpoint uses `recipe`.
        If `fit` can train the model only by L-BFGS or Newton's method, passing a checkpoint raises an error. The final
        steps, with falling learning rates, are stored in a second file, whose name ends in "-last".
    weights, offset, noise
        What is known of each row; see `agp.models.Model.bound`.

    Raises
    ------
    TypeError, ValueError
        In the same cases as `train` and `fit_lbfgs`; also if the tolerance or a limit is not a positive number, a
        pattern matches nothing, or both `frozen` and `updates` are given.

    Warns
    -----
    agp.errors.ConvergenceWarning
        If a limit on steps or time ended the training.
    agp.errors.NoSignalWarning
        If the trained model predicts no better than the mean of the targets or the class frequencies.

    Examples
    --------
    The result holds the trained model; the given model does not change.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(40)
    >>> model = agp.SGPR.from_data(X, y, num_inducing=10)
    >>> result = agp.fit(model, X, y)
    >>> result.converged, result.learned
    (True, True)
    >>> bool(result.model.bound(X, y)[0] > model.bound(X, y)[0])
    True
    >>> mean, variance = result.model.predict(np.asarray([[1.5]]))
    >>> bool(abs(mean[0, 0] - np.sin(1.5)) < 0.1)
    True
    """
    data = check_training(model, X, y, weights, offset, noise)
    X, y = data.X, data.y
    check_plan(updates)
    kept = _check_frozen(model, frozen, updates)
    if priors is not None:
        model = restrict(with_priors(model, priors))
    tolerance = check_positive("tolerance", tolerance)
    check_choice("draws", draws, get_args(Place))
    budget = None if max_seconds is None else check_positive("max_seconds", max_seconds)
    clock = Clock(budget, check_callables("callbacks", callbacks))
    settings: dict[str, Any] = {"callbacks": [clock], "seed": seed}
    settings |= {"weights": weights, "offset": offset, "noise": noise}
    launched: dict[str, Any] = {"draws": draws, "graphs": graphs}
    inner = [update for update in inner_updates(model, memory) if not moves_any(update, model, kept)]
    limit = None if max_steps is None else check_whole("max_steps", max_steps)
    with track(progress) as tracker, tracker.inside(max_seconds=budget) as level:
        judge_bounds(tracker, model, data)
        settings["progress"] = tracker
        found: FitResult[Any] | None = None
        if updates is None and not why_not_lbfgs(model, X.shape[0], inner):
            if not model.stochastic and not inner:
                _refuse(checkpoint, batch_size)
            if checkpoint is None and batch_size is None and (not model.stochastic or X.shape[0] <= LBFGS_ROWS):
                how = {"gradient": gradient, "memory": memory, "frozen": kept}
                most = ITERATIONS if limit is None else limit
                found = _on_all_rows(model, data, most, tolerance, clock, inner, how, settings, graphs)
        alone = updates is None and checkpoint is None and batch_size is None and gradient == "closed-form"
        if found is None and alone and not why_not_in_turn(model):
            rounds = ROUNDS if limit is None else limit
            near: Any = model
            found = fit_near_sites(near, data, rounds, tolerance, clock, tracker, seed, memory, kept)
            found = warn_without_signal(found, data, 1)
        if found is None:
            planned = _plan_of(updates, kept, gradient, memory)
            settling = settling_updates(model, X.shape[0], inner, kept, memory) if updates is None else []
            settle = partial(settle_posterior, data=data, updates=settling, memory=memory)
            settings |= {"batch_size": batch_size, "checkpoint": checkpoint, **launched}
            found = _by_recipe(model, data, limit, tolerance, clock, planned, settle, settings, level)
        tracker.conclude(f"converged, {found.message}" if found.converged else found.message)
        return found


def _on_all_rows(
    model: ModelType,
    data: Batch,
    limit: int,
    tolerance: float,
    clock: Clock,
    inner: list[Update],
    how: dict[str, Any],
    settings: dict[str, Any],
    graphs: bool,
) -> FitResult[ModelType]:
    """Train a model by Newton's method if it supports it, or else by L-BFGS."""
    found = None
    if how["gradient"] == "closed-form" and not why_not_newton(model):
        found = _by_newton(model, data, limit, tolerance, clock, settings | {"frozen": how["frozen"]})
    if found is None:
        found = by_lbfgs(model, data, limit, tolerance, clock, inner, how, settings, graphs)
    return warn_without_signal(found, data, 1)


def _by_recipe(
    model: ModelType,
    data: Batch,
    limit: int | None,
    tolerance: float,
    clock: Clock,
    planned: Callable[..., list[Update]],
    settle: Callable[..., Any],
    settings: dict[str, Any],
    level: Level,
) -> FitResult[ModelType]:
    """Train a model by the updates that `planned` returns, until an epoch gains less than the tolerance.

    The function `settle` moves q(u) to its optimum before and after the last steps, in which the rates fall.
    """
    X, y, batch_size = data.X, data.y, settings["batch_size"]
    size = min(X.shape[0], BATCH_ROWS) if batch_size is None and model.stochastic else batch_size
    epoch = max(1, X.shape[0] // (size or X.shape[0]))
    noisy = size not in (None, X.shape[0]) or any(model._draws(generator(0), X.shape[0]))
    steps = max(STEPS, EPOCHS * epoch) if limit is None else limit
    slope = _Slope(X.shape[0], epoch, tolerance, noisy=noisy)
    cooled = _beside(settings["checkpoint"], slope)
    before = slope.steps

    def tell(_seen: Progress) -> None:
        level.steps = slope.steps - before, slope.expected_steps(steps) - before

    watched = {**settings, "callbacks": [clock, slope, tell], "batch_size": size}
    watched["updates"] = planned(model, steps, rate=RATE)
    found = train(model, X, y, steps=slope.steps if slope.converged else steps, **watched)
    if slope.converged:
        level.steps = 0.0, 0.0  # the number of the last steps is known
        found = settle(found)
        last = _cooling(found, steps, planned) | {"batch_size": size, "checkpoint": cooled}
        found = settle(resume_training(found, train, X, y, settings | last))
        return warn_without_signal(with_message(found, True, clock, slope.message), data)
    if not clock.ended:
        found = settle(found)
    return with_message(found, False, clock, ending_of(found, steps))


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


def _by_newton(
    model: ModelType, data: Batch, limit: int, tolerance: float, clock: Clock, settings: dict[str, Any]
) -> FitResult[ModelType] | None:
    """Run Newton's method; return None if the covariance matrix of the given model needs jitter, as for L-BFGS."""
    settings = {name: value for name, value in settings.items() if name != "seed"}
    settings |= {"max_iterations": limit, "tolerance": NEWTON_TOLERANCE * tolerance}
    try:
        found = fit_newton(model, data.X, data.y, **settings)
    except NonFiniteError:
        return None
    reached = not found.converged and found.steps >= limit
    return with_message(found, found.converged, clock, limit_of_steps(limit) if reached else found.message)


def check_plan(updates: Any) -> None:
    """Raise TypeError unless `updates` is None, a list of updates, or a function that returns updates."""
    if isinstance(updates, list | tuple):
        check_updates(updates)
    elif isinstance(updates, MovesLeaves | type) or not (updates is None or callable(updates)):
        raise TypeError(
            f"updates is {updates!r}, but must be a list of updates, such as [agp.updates.Adam(0.01)], or a function "
            "of a model and the number of steps, such as agp.recipe."
        )


def _check_frozen(model: Any, frozen: str | Iterable[str], updates: Any) -> tuple[str, ...]:
    """Return the patterns of frozen leaves; raise an error if one matches nothing, or if updates are given too."""
    kept = tree.patterns(frozen)
    if kept and updates is not None:
        raise ValueError("frozen cannot be combined with updates; pass frozen to the updates, as in Adam(frozen='Z').")
    if kept:
        Adam(frozen=kept).init(model)
    return kept


def _plan_of(updates: Any, kept: tuple[str, ...], gradient: GradientMode, memory: Any) -> Callable[..., list[Update]]:
    """Return a function like `recipe`."""
    if isinstance(updates, list | tuple):
        return lambda *_, **__: list(updates)
    frozen = {"frozen": kept} if updates is None else {}
    return partial(updates or recipe, gradient=gradient, memory=memory, **frozen)


def _refuse(checkpoint: Any, batch_size: Any) -> None:
    given = {"checkpoint": checkpoint, "batch_size": batch_size}
    if named := [name for name, value in given.items() if value is not None]:
        names = " and ".join(named)
        remedy = f"omit {names} or use agp.train"
        raise ValueError(f"{names} cannot be used with the optimiser that trains this model on all rows; {remedy}.")


def warn_without_signal(found: FitResult[ModelType], data: Batch, last: int = LAST_ITERATIONS) -> FitResult[ModelType]:
    """Return the result; if the model has learned nothing about the targets, warn and set `learned` to False.

    The bound, which may be noisy, is the average over the `last` steps.
    """
    if not found.converged:
        return found
    bounds = found.trace.get("bound", [])[-last:]
    if not bounds:  # the given model is at its optimum
        known = dict(zip(("weights", "offset", "noise"), data.known, strict=True))
        bounds = [float(found.model.bound(data.X, data.y, **known)[0])]
    alone = data.X.shape[0] * baseline(found.model.likelihood, data.y, *data.known)
    gain = float(np.mean(bounds)) - alone
    if gain > LEAST_GAIN:
        return found
    all_known = data.noise is not None and bool(tree.zero_leaves(found.model.likelihood))
    warnings.warn(_no_signal_message(found.steps, all_known=all_known), NoSignalWarning, stacklevel=outside())
    return replace(found, learned=False)


def _no_signal_message(steps: int, *, all_known: bool) -> str:
    if all_known:
        return (
            f"after {count_of(steps, 'step')}, the log density of the targets is no higher than without the inputs; "
            "the known noise variances may be too small: check noise, and use Gaussian() instead of Gaussian(0.0), so "
            "that a further variance is trained; or check that inputs and targets belong together."
        )
    return (
        f"the model has learned nothing: after {count_of(steps, 'step')}, it predicts the targets no better than "
        "without the inputs; check that inputs and targets belong together, or add rows or columns; if you chose the "
        "kernel or its lengthscales, try others."
    )


class _Slope:
    """A callback that ends the training when the bound rises by less than the tolerance per epoch.

    The callback fits a straight line to the bounds of the last steps to average out the minibatch noise.
    """

    def __init__(self, rows: int, epoch: int, tolerance: float, *, noisy: bool) -> None:
        self.window = max(WINDOW_STEPS, WINDOW_EPOCHS * epoch) if noisy else MIN_EPOCH_STEPS
        self.epoch, self.rows, self.tolerance = max(epoch, MIN_EPOCH_STEPS), rows, tolerance
        self.steps = 0
        self.read: list[float] = []
        self.gains: list[float] = []
        """The gains per datum, in nats, whenever they were computed."""
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

    def expected_steps(self, most: int) -> float:
        """Return the expected number of steps, at most `most`, with those after convergence."""
        often = self.window // 5
        first = max(self.steps - often * (len(self.gains) - 1), self.window) if self.gains else self.window
        gains = [*([math.inf] * (first // often - 1)), *self.gains]
        least = FIRST_WINDOWS * self.window if not self.gains else self.steps
        end = max(expected_steps(gains, self.tolerance, most, every=often) if self.gains else least, self.steps)
        return min(end + max(COOLING_STEPS, COOLING_SHARE * end), most)

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
        self.gains.append(gained)
        self.converged = gained < self.tolerance
        self.message = f"{self.epoch} steps gain {gained:.1e} nats per datum, less than {self.tolerance:g}"
