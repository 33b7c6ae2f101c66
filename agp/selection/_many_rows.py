"""The choice between nearest rows, inducing inputs, and both, for many rows."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from agp.backend import backend_of
from agp.kernels import White
from agp.selection._climb import StageOver, ignore_repairs
from agp.selection._given import KERNELS, Plan
from agp.selection._learned_metric import learn_metric
from agp.selection._near import FEW, MANY, QUICK, QUICK_ROWS, Densities, NearCandidates, NearTraining, describe_near
from agp.selection._race import SAMPLE
from agp.selection._seasons import train_without_times
from agp.selection._sizes import LARGE_COST
from agp.selection._stages import JUDGED, JUDGED_ROWS, LARGER, SAMPLED_STEPS, SHARES, Fit, Passed
from agp.selection._targets import in_own_units
from agp.selection._trial import Candidate, Found, Trial

MANY_ROWS = 1000
"""The number of held-out rows for comparing the larger number of neighbours with the smaller one."""
BOTH_ROWS, LEAD = 10_000, 0.1
"""Inducing inputs are combined with neighbours for at most so many rows, unless they are behind by more than `LEAD`
nats per row. Up to this number, hyperparameters are also trained for inducing inputs alone."""
SHARE = 0.9
"""The latest end of the training on nearest rows, as a fraction of the time limit."""
TIE = 0.005
"""Inducing inputs alone are preferred if they are at most this many nats per row behind, because they need no rows."""
MORE_ROWS = 0.03
"""The largest gain in nats per row from computing a collapsed posterior on more rows."""
TRAINED = 0.02
"""The largest gain in nats per row from training hyperparameters for inducing inputs."""
FURTHER, QUIET = 1.5, 1e-5
"""The gain from all further doublings of the number of inducing inputs, as a multiple of the last, if the noise
variance is above a fraction of that of the targets."""


def run_many_rows(fit: Fit, method: str) -> None:
    """Choose between nearest rows, inducing inputs, and both, by the density of the held-out rows.

    `method` is "auto", or "nngp" or "vif" for only one kind of model.
    """
    found = fit.search(compete=False)
    if not found or fit.watch.is_done:
        return
    near, one = NearCandidates(fit.rows, fit.watch, fit.seed), found[0]
    training = NearTraining(near, fit.climb)
    quick = near.densities(near.model(one.model, QUICK), QUICK_ROWS)
    _keep(fit, near, one.kernel, quick)
    one = _without_times(fit, near, one, quick)
    one = fit.train([one], LARGER, SAMPLED_STEPS) if len(fit.rows.order) > SAMPLE else one
    if fit.watch.is_done:
        return
    best = None
    if method != "vif":
        best, training, one = _choose_neighbours(fit, training, one, _learn_metric(fit, one))
    if method == "nngp" or fit.watch.is_done:
        return
    close, passed = True, None
    if best is not None:
        with ignore_repairs():
            passed = fit.pass_over(one, min(JUDGED, fit.few), JUDGED_ROWS)
        if not _may_reach(fit, passed, best, LEAD):
            return
        close = passed is None or passed.trial.score > best.score - LEAD
    if best is None or (close and len(near.order) <= BOTH_ROWS):
        best = _choose_both(fit, training, one, best)
    series = any(times.is_series for times in fit.times)  # inducing inputs are too few for what changes from row to row
    if method == "auto" and not series and not fit.watch.is_done and _may_reach(fit, passed, best, MORE_ROWS):
        affordable = len(near.order) <= BOTH_ROWS and fit.watch.limit is None
        _choose_collapsed(fit, one, best.score, found if affordable else None)


def _without_times(fit: Fit, near: NearCandidates, one: Trial, quick: Densities) -> Trial:
    """Return the candidate, or that without the times of a series if it predicts the held-out, later rows better."""
    sample = fit.on_host(fit.rows.first(SAMPLE))
    for times in fit.times if isinstance(fit.plan.kernel, str) else ():
        with fit.watch.stage("without times", len(sample.y)):
            try:
                without = train_without_times(fit.plan, sample, fit.climb, one, times)
            except StageOver:
                return one
        if without is None:
            continue
        found = near.densities(near.model(without.model, QUICK), QUICK_ROWS)
        if near.is_better(found, quick):
            _keep(fit, near, without.kernel, found)
            one, quick = without, found
    return one


def _may_reach(fit: Fit, passed: Passed | None, best: Densities, more: float) -> bool:
    """Whether more inducing inputs, and `more` nats per row from more rows, may predict as well as nearest rows.

    Further doublings usually gain half as much each, unless there is hardly any noise.
    """
    noise, variance = float(best.model.likelihood.noise_variance), float(np.var(fit.rows.held_out().on_host().y))
    if passed is None or noise < QUIET * variance:
        return True
    return passed.trial.score + FURTHER * max(passed.gain, 0.0) + more > best.score


def why_not_neighbours(plan: Plan, X: Any) -> str:
    """Return the reason why near rows cannot be found and compared on the host, or an empty string."""
    B = backend_of(X)
    if B.is_lazy:
        return "the rows are not in memory"
    if any(isinstance(node, White) for node in plan.nodes):
        return "the kernel contains white noise"
    foreign = plan.foreign
    return f"{foreign[0]} is no part of agp, and may not support NumPy" if foreign and B.name != "numpy" else ""


def _learn_metric(fit: Fit, one: Trial) -> Trial | None:
    """Return the best candidate with a learned metric, if it may be better. It is not tried for series."""
    if fit.watch.is_done or any(times.is_series for times in fit.times):
        return None
    with fit.watch.stage("metric", one.model.X.shape[0], SHARES["train"]):
        found = learn_metric(fit.plan, fit.climb, one)
    if found is not None:
        fit.note([found])
    return found


class _Choice(NamedTuple):
    """A candidate with nearest rows, and what it was trained from."""

    best: Densities
    training: NearTraining
    one: Trial
    """The candidate on few rows."""
    kernel: str
    found: Callable[[], Found]
    """A function that computes the model of all rows."""


def _choose_neighbours(
    fit: Fit, training: NearTraining, one: Trial, turned: Trial | None
) -> tuple[Densities, NearTraining, Trial]:
    """Choose between two settings of the hyperparameters, two metrics, and two numbers of neighbours.

    The settings are those of the search, calibrated, and those that the densities of rows given their neighbours give,
    which are also trained for other kernels. A learned metric, `turned`, is used if its calibrated settings are better
    by more than the standard error, and so are more neighbours. Also return the training and the candidate on few rows
    from which the result comes.
    """
    near, watch = training.near, fit.watch
    with watch.stage("neighbours", len(near.order), SHARE):
        chosen = _calibrate(fit, training, one)
        if turned is not None and not watch.stage_over:
            new = _calibrate(fit, NearTraining(near, fit.climb), turned)
            chosen = new if near.is_better(new.best, chosen.best) else chosen
            fit.best = chosen.found
        if not watch.stage_over:
            chosen = _train(fit, chosen)
        best = chosen.best
        if not watch.stage_over and len(near.order) > FEW:
            more = near.densities(near.model(best.model, MANY), MANY_ROWS)
            if near.is_better(more, best):
                gain = float(np.mean(more.each - best.each[: len(more.each)]))
                best = more._replace(score=best.score + gain)
                _keep(fit, near, chosen.kernel, best)
    return best, chosen.training, chosen.one


def _calibrate(fit: Fit, training: NearTraining, one: Trial) -> _Choice:
    """Return a candidate with calibrated hyperparameters, which is kept."""
    near = training.near
    found = near.densities(near.model(training.calibrate(one.model), FEW))
    return _Choice(found, training, one, one.kernel, _keep(fit, near, one.kernel, found))


def _train(fit: Fit, choice: _Choice) -> _Choice:
    """Train the hyperparameters of a candidate for nearest rows; return the better result, which is kept."""
    near = choice.training.near
    kernels = KERNELS if isinstance(fit.plan.kernel, str) else {}
    trained = choice.training.train(choice.one.model, choice.kernel, kernels)
    found = None if trained is None else near.densities(near.model(trained[0], FEW))
    if trained is None or found is None or not found.score > choice.best.score:
        return choice
    kept = _keep(fit, near, trained[1], found)
    return choice._replace(best=found, kernel=trained[1], found=kept)


def _choose_both(fit: Fit, training: NearTraining, one: Trial, best: Densities | None) -> Densities:
    """Combine inducing inputs with neighbours, and return the better result."""
    near = training.near
    with fit.watch.stage("both", len(near.order)):
        both = near.densities(near.with_inducing(training.calibrate(one.model)))
    if best is not None and not near.is_better(both, best):
        return best
    _keep(fit, near, one.kernel, both)
    return both


def _choose_collapsed(fit: Fit, one: Trial, score: float, found: list[Trial] | None) -> None:
    """Keep a collapsed posterior if it predicts the held-out rows as well as nearest rows do.

    `found` are candidates of the search, which are trained for inducing inputs if `one` is not hopeless; None if this
    takes too long.
    """
    if 2.0 * fit.rows.total * fit.few**2 > LARGE_COST:
        return

    def reached(passed: Passed, more: float = 0.0) -> bool:
        further = FURTHER * fit.sizes.further_gain(passed.gain, LARGE_COST)
        return passed.trial.score + further + more >= score - TIE

    passed = _compare(fit, one)
    if passed is not None and found is not None and not fit.watch.is_done and reached(passed, TRAINED):
        again = _compare(fit, fit.train_for_inducing(found))
        passed = passed if again is None or again.trial.score < passed.trial.score else again
    if passed is None or fit.watch.is_done or not reached(passed):
        return
    grown = fit.grow(passed, LARGE_COST)
    if grown is not None and grown.log_density >= score - TIE:
        fit.best = lambda: grown


def _compare(fit: Fit, one: Trial) -> Passed | None:
    with ignore_repairs():
        return fit.compare(one)


def _keep(fit: Fit, near: NearCandidates, kernel: str, found: Densities) -> Callable[[], Found]:
    """Keep a model of nearest rows, for all rows, unless it fails; return a function that computes what is kept."""
    data, slope = fit.rows.data, fit.slope(near.held.at(np.arange(len(found.each))))
    scores = Candidate(kernel, len(near.order), math.nan, math.nan, held_out=found.score)
    fit.candidates.append(in_own_units(scores, fit.transform, 0.0, slope, 0.0))

    def best() -> Found:
        model, seen = near.of_all_rows(found.model, data), data._replace(X=None)
        bound = found.score * data.observations
        return Found(model, kernel, describe_near(model), bound, seen, found.score, held_out=True, slope=slope)

    if math.isfinite(found.score):
        fit.best = best
    return fit.best
