"""L-BFGS in stages: which leaves move, and when it has converged."""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array
from agp.bounds import Batch
from agp.errors import ConvergenceWarning, Interrupted, NonFiniteError, NotPositiveDefiniteError
from agp.gradient import unfrozen
from agp.inducing import Inducing
from agp.repairs import collect_reports, outside
from agp.training._begun import initial_state, observations_of, recipe
from agp.training._lbfgs import Gain, PredictedGain, fit_lbfgs
from agp.training._loop import train
from agp.training._objective import closed_form_leaves, moves_posteriors
from agp.training._result import Callback, ModelType, Progress, Result, call_all
from agp.training._settling import matching_update, settle_posterior
from agp.updates import OptimalPosterior, Update, unexplained_nats

FIRST_STEPS = 200
"""The number of steps of `recipe` before L-BFGS, if L-BFGS moves a q(u)."""
ROUNDS = 4
"""The maximum number of searches by L-BFGS, if the pseudo-observations of q(u) are optimised in turn."""
LOSS = 0.002
"""Inducing inputs move if `agp.updates.unexplained_nats` exceeds this many nats per datum."""


@dataclass(repr=False)
class FitResult(Result[ModelType]):
    """The result of `fit`, with the reason why the training ended."""

    converged: bool = False
    """True if the training ended because the tolerance was met, False if a limit or a callback ended it."""
    message: str = ""
    """Why the training ended."""
    learned: bool = True
    """True if the bound exceeds the log density of the targets without the inputs, or if the training did not converge.
    The log density without inputs is that of a normal distribution or of the class frequencies."""


class Clock:
    """A callback that ends the training when the time limit is reached, or when a user's callback returns True."""

    def __init__(self, budget: float | None, callbacks: Iterable[Callback] = ()) -> None:
        self.budget, self.callbacks, self.ended = budget, [*callbacks], False
        self.stopped = ""
        """The callback that ended the training, in words."""
        self.start = time.perf_counter()

    def __call__(self, seen: Progress) -> bool:
        self.stopped = call_all(self.callbacks, seen)
        self.ended = self.budget is not None and time.perf_counter() - self.start >= self.budget
        return self.ended or bool(self.stopped)


class _Stages:
    """L-BFGS searches one after another, each from the result of the last one."""

    def __init__(self, data: Batch, limit: int, tolerance: float, clock: Clock, settings: dict[str, Any]) -> None:
        self.data, self.limit, self.tolerance, self.clock = data, limit, tolerance, clock
        self.settings = settings
        self.rule: Gain = PredictedGain(tolerance)

    def run(self, before: Any, *, frozen: tuple[str, ...] = (), few: bool) -> Any:
        """Run L-BFGS until it has converged, and restart it once if rounding has ended a line search.

        If `few` is true, only few leaves move, and the curvature that L-BFGS sees predicts the gain. Otherwise, and if
        gradients are inexact, the gain of the last iterations decides (see `last_iterations`).
        """
        count = observations_of(self.data)
        self.rule = PredictedGain(self.tolerance, self.tolerance * count) if few else Gain(self.tolerance * count)
        slope = 1e-3 * self.tolerance / (count if few else 1.0)
        frozen = (*self.settings["frozen"], *frozen)
        given = {**self.settings, "frozen": frozen, "tolerance": slope, "logarithms": few}
        given["callbacks"] = [*self.settings["callbacks"], self.rule]

        def search(before: Any) -> Any:
            some = {**given, "max_iterations": self.limit - before.steps}
            return resume_training(before, fit_lbfgs, self.data.X, self.data.y, some)

        found = search(before)
        if "ABNORMAL" in found.message and found.steps < self.limit and not self.clock.ended:
            height = self.rule.bounds[-1:]
            found = search(found)
            if "ABNORMAL" in found.message and self.rule.since(height) < self.rule.rounding:
                found = replace(found, converged=True, message="the line search finds no further gain above rounding")
        return replace(found, converged=found.converged or self.rule.converged)

    def in_turn(self, found: Any, matching: Update) -> Any:
        """Run L-BFGS and the steps of pseudo-observations in turn, until both together gain less than the tolerance."""
        least = self.tolerance * observations_of(self.data)
        for _ in range(ROUNDS):
            before = self.bound(found)
            found = self.run(self.settle(found, matching), few=False)
            found = self.settle(found, matching)
            if not found.converged or self.bound(found) - before < least:
                break
        return found

    def settle(self, found: Any, matching: Update) -> Any:
        """Return the result after the steps of pseudo-observations."""
        return settle_posterior(found, self.data, [matching], self.settings["memory"])

    def bound(self, found: Any) -> float:
        """Return the bound of a result, on all rows."""
        return float(found.model._objective(self.data, memory=self.settings["memory"])[0])

    def finish(self, found: Any) -> FitResult[Any]:
        """Return the result of the last search."""
        ending = limit_of_steps(self.limit) if found.steps >= self.limit else found.message
        return with_message(found, found.converged, self.clock, self.rule.message or ending)


def by_lbfgs(
    model: ModelType,
    data: Batch,
    limit: int,
    tolerance: float,
    clock: Clock,
    inner: list[Update],
    how: dict[str, Any],
    watched: dict[str, Any],
    graphs: bool,
) -> FitResult[ModelType]:
    """Train a model by L-BFGS.

    If L-BFGS moves a q(u), steps of `recipe` come first, because L-BFGS from a poor start may mistake the signal for
    noise. If this q(u) has pseudo-observations, they are moved to their optimum before, between and after the searches.
    If each evaluation solves for the q(u) of another likelihood than the Gaussian, inducing inputs are fixed
    unless there are too few of them (`LOSS`), at the start or at the result. If they move, they are fixed again in a
    last search.
    """
    X, y = data.X, data.y
    slow = moves_posteriors(model, inner)
    matching = matching_update(model, how["frozen"], how["memory"]) if slow else None
    found = Result(model, 0, 0.0)
    if matching is not None:
        found = settle_posterior(replace(found, model=initial_state(model)), data, [matching], how["memory"])
    if slow:
        steps = min(FIRST_STEPS, limit)
        found = train(found.model, X, y, steps=steps, updates=recipe(model, steps, **how), graphs=graphs, **watched)
        if found.steps < steps or steps == limit:
            return with_message(found, False, clock, ending_of(found, steps))
    stages, places = _Stages(data, limit, tolerance, clock, {**watched, **how, "inner": inner}), _places(model)
    free = set(unfrozen(model, how["frozen"])) - closed_form_leaves(model, inner) - set(places)
    if matching is not None:
        return stages.finish(stages.in_turn(found, matching))
    if not (free and any(isinstance(update, OptimalPosterior) for update in inner)):
        return stages.finish(stages.run(found, few=not (slow or places)))
    if not _lacks_inducing(model, data, inner, places):
        found = stages.run(found, frozen=places, few=True)
        if not (found.converged and _lacks_inducing(found.model, data, (), places)):
            return stages.finish(found)
    found = stages.run(found, few=False)
    return stages.finish(stages.run(found, frozen=places, few=True) if found.converged else found)


def _lacks_inducing(model: Any, data: Batch, inner: Sequence[Update], places: tuple[str, ...]) -> bool:
    """Return whether there are inducing inputs, but so few that the model loses much, after the inner updates."""
    if not places:
        return False
    with collect_reports(), np.errstate(all="ignore"):  # the search reports the same repairs
        try:
            for update in inner:
                model = update(model, data, update.init(model))[0]
            return float(unexplained_nats(model, data)) > LOSS * observations_of(data)
        except NotPositiveDefiniteError:
            return False  # the search reports the error


def _places(model: Any) -> tuple[str, ...]:
    """Return the names of the parameters that are inducing inputs."""
    nodes = tree.nodes(model, Inducing).items()
    names = {tree.join_path(path, name) for path, inducing in nodes for name in inducing.locations}
    return tuple(name for name in tree.leaves(model, "parameter") if name in names)


def limit_of_steps(steps: int) -> str:
    """Return the words for the end of a training by its number of steps."""
    return f"the limit of {steps} steps (max_steps) was reached"


def limit_of_seconds(seconds: float) -> str:
    """Return the words for the end of a training by its time."""
    return f"the limit of {seconds:g} s (max_seconds) was reached"


def ending_of(found: Result[Any], steps: int) -> str:
    return "a callback ended the training" if found.steps < steps else limit_of_steps(steps)


def with_message(found: Any, converged: bool, clock: "Clock", message: str) -> FitResult[Any]:
    if clock.stopped and not converged:
        message = f"{clock.stopped} ended the training"
    elif clock.ended and not converged:
        message = limit_of_seconds(float(clock.budget or 0.0))
    if not converged:
        advice = "" if clock.stopped else "; train longer or raise tolerance"  # who ended it, knows
        text = f"the training has not converged after {found.steps} steps: {message}{advice}."
        warnings.warn(text, ConvergenceWarning, stacklevel=outside())
    shared: dict[str, Any] = {each.name: getattr(found, each.name) for each in fields(Result)}
    shared |= {"message": message}
    return FitResult(**shared, converged=converged)


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
    """Return a callback that adds the steps and seconds of the result `first` to the progress.

    Rules that look at gains alone stay as they are, so that the progress knows them.
    """
    if isinstance(callback, Gain):
        return callback

    def seen(progress: Progress) -> Any:
        step, seconds = progress.step + first.steps, progress.seconds + first.seconds
        return callback(progress._replace(step=step, seconds=seconds))

    return seen
