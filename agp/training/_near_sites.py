"""Training of nearest-neighbour models with sites: the sites of all rows, and hyperparameters given sites, in turn.

At fixed sites, the kernel and the mean function take Newton steps that maximise the densities of pseudo-observations
given their neighbours. The gradient is that of the model's bound, if each site is at its optimum. The parameters of the
likelihood maximise the expected log density at fixed q(f). Sites and neighbours are then renewed. The fixed point is
not a maximum of the bound, because the bound of a row also depends on the sites of its neighbours.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from agp import tree
from agp.backend import backend_of, to_numpy
from agp.bounds import Batch, expected_row_density
from agp.errors import Interrupted, NonFiniteError
from agp.models import TNNGP, SiteModel, WithNeighbours
from agp.priors import Fixed, assign_priors, has_densities, with_priors
from agp.random import generator
from agp.repairs import collect_reports
from agp.training._newton import Ascent, Coordinates, Evidence, expand_priors, newton_names, why_not_newton
from agp.training._progress import Tracker
from agp.training._result import Progress, Result
from agp.training._stages import Clock, FitResult, limit_of_steps, with_message

FEW_ROWS = 12_000
"""The number of rows on which hyperparameters are trained, before all rows."""
NEWTON_ROWS, NEWTON_NEIGHBOURS, NEWTON_STEPS, RADIUS = 8000, 40, 2, 1.0
"""The largest numbers of rows and of neighbours whose densities are maximised, the number of Newton steps in a round,
and the first radius of their trust region."""
LABEL_ROWS, LABEL_NEIGHBOURS = 3000, 100
"""The same numbers for labels, each of which tells little: with few neighbours, variances would become too large."""
SITE_NEIGHBOURS = 20
"""The number of neighbours for the sites during training. The last step uses all neighbours, unless the model's sets
have fewer."""
RATE, SWEEPS, FIRST_SWEEPS, SETTLED = 1.0, 10, 20, 0.03
"""The rate of site steps, the largest number of them in a round and in the first round, and the relative change of the
sites at which they end."""
FALL = 1.0
"""A round whose bound falls by more than so many nats per row is undone."""
SLACK = 0.01
"""A decrease of the bound up to this many nats per row is no reason to shorten a site step."""
ROUNDS, FEW_ROUNDS = 30, 4
"""The default maximum number of rounds, and that of rounds on some of the rows."""
FEW_GAIN = 0.005
"""Rounds on some of the rows end when a round gains less than this many nats per row."""
LIKELIHOOD_STEPS = 10
"""The number of L-BFGS iterations for the parameters of the likelihood in a round."""


def why_not_in_turn(model: Any, /) -> str:
    """Return the reason why sites and hyperparameters cannot be trained in turn, or an empty string."""
    given: Any = model
    if not (isinstance(model, SiteModel) and isinstance(model, WithNeighbours)):
        return f"{type(model).__name__} has no sites with neighbours"
    return why_not_newton(given.as_regression())


def begin_sites(model: TNNGP, batch: Batch, /, *, memory: float | None = None) -> TNNGP:
    """Return the model with sites at the targets or at their level, or else at the prior mean, if it has none.

    At the prior, expectations may be so far from the targets that site steps from there do not converge.
    """
    xp, likelihood = backend_of(model.X).xp, model.likelihood
    if float(xp.max(model.site_precision)) > 0.0:
        return model
    h, f = model.mean_function(model.X)[0], likelihood.observations(batch.y)
    f = likelihood.level(batch.y) if f is None else f
    f = h if f is None else f if batch.offset is None else f - batch.offset
    f = f + xp.zeros_like(model.site_shift)
    alpha, beta = model._gradients_of_sites(f, xp.zeros_like(f), batch, None, memory)
    return model._with_sites(alpha + beta * (f - h), beta)


def spread_sites(model: TNNGP, some: TNNGP, rows: Any, batch: Batch, /, *, memory: float | None = None) -> TNNGP:
    """Return the model with the parameters of a trained model of some rows, and with sites for all rows.

    The sites of the rows, whose numbers are on the host, are those of that model. Those of other rows are at its
    predictions. `batch` contains all rows.
    """
    near = replace(some, neighbours=min(SITE_NEIGHBOURS, some.X.shape[0]), sets=None)
    f, var = near.predictor(memory=memory).predict(model.X, memory=memory)
    parts = {name: vars(some)[name] for name in ("kernel", "likelihood", "mean_function")}
    model = replace(model, **parts)
    alpha, beta = model._gradients_of_sites(f, var, batch, None, memory)
    model = model._with_sites(alpha + beta * (f - model.mean_function(model.X)[0]), beta)
    return model._with_sites(some.site_shift, some.site_precision, _beside(model, rows))


def settle_sites(
    model: TNNGP, batch: Batch, most: int = SWEEPS, /, *, memory: float | None = None
) -> tuple[TNNGP, float]:
    """Return the model after site steps on all rows, until the sites change little, or after `most` steps.

    If the bound falls by more than `SLACK` nats per row, the last step is repeated with a quarter of its rate: like
    Newton's method, steps of all rows together may overshoot. Also return the bound before the last step from sites
    that were kept.
    """
    rate, last = RATE, -math.inf
    kept: Any = None
    for _ in range(most):
        found = model._site_gradients(batch, memory=memory)[""]
        value = float(backend_of(model.X).xp.sum(found.factor(model.site_shift, model.site_precision)))
        if kept is None or value >= last - SLACK * model.X.shape[0]:
            kept, last, rate = (model, found), value, min(RATE, 2.0 * rate)
        else:
            rate *= 0.25
        old = kept[0]
        model = old._site_step(kept[1], rate, clip=False)[0]
        if _change(model.site_shift, old.site_shift) + _change(model.site_precision, old.site_precision) < SETTLED:
            break
    return model, last


def _change(new: Any, old: Any) -> float:
    xp = backend_of(new).xp
    size = float(xp.sum(new * new))
    return math.sqrt(float(xp.sum((new - old) ** 2)) / size) if size > 0.0 else 0.0


def climb_given_sites(
    model: TNNGP, batch: Batch, rows: Any, steps: int = NEWTON_STEPS, /, *, memory: float | None = None
) -> tuple[TNNGP, float]:
    """Return the model after Newton steps at fixed sites, and the gain in nats, or that which a further step promises.

    `rows` are the numbers of the rows whose densities are maximised, on the host. If no step can be computed, only the
    likelihood gains.
    """
    rows = _beside(model, rows)
    model, gain = _fit_likelihood(model, batch, rows, memory)
    held = model.as_regression()
    names = newton_names(held)
    if not names or why_not_newton(held):
        return model, gain
    B = backend_of(held.X)
    objective = Evidence(held, Batch(B.rows_at(held.X, rows), B.rows_at(held.y, rows), 1.0, rows), names)
    start = objective.coordinates.vector_of(held)
    box = objective.coordinates.box(start)
    with collect_reports():
        first = objective(np.clip(start, *box))
        if first is None:
            return model, gain
        search = Ascent(objective, first, box, RADIUS)
        for _ in range(steps):
            search.advance()
    gain += max(search.predicted, search.point.value - first.value)
    return _with_prior_of(model, search.point.model), gain


def _with_prior_of(model: TNNGP, other: Any) -> TNNGP:
    """Return the model with the kernel and the mean function of another model, and the same pseudo-observations."""
    before, after = (each.mean_function(model.X)[0] for each in (model, other))
    shift = model.site_shift + model.site_precision * (before - after)
    return replace(model, kernel=other.kernel, mean_function=other.mean_function, site_shift=shift)


def _fit_likelihood(model: TNNGP, batch: Batch, rows: Any, memory: float | None) -> tuple[TNNGP, float]:
    """Return the model with parameters of the likelihood that maximise the expected log density of rows, and the gain.

    The gain is in nats.
    """
    from scipy.optimize import minimize

    names = [name for name in newton_names(model) if name.startswith("likelihood.")]
    if not names:
        return model, 0.0
    xp = backend_of(rows).xp
    some = batch.take(lambda x: xp.take(x, rows, axis=0))._replace(rows=rows)
    mu, var, _ = model._site_moments(some, memory)
    f = mu + model.mean_function(some.X)[0]
    coordinates, count = Coordinates(model, names), rows.shape[0]
    moved = {leaf.name for leaf in coordinates.leaves}
    priors = [(leaf, prior) for leaf, prior in assign_priors(model) if leaf.name in moved]
    places = {leaf.name: place for leaf, place in zip(coordinates.leaves, coordinates.places, strict=True)}

    def loss(vector: Any) -> tuple[float, Any]:
        at = coordinates.model_at(vector)
        value, pull = expected_row_density(at.likelihood, f, var, some)
        bars, scales = tree.leaves(pull(xp.ones_like(value))[0]), coordinates.scales_at(at)
        total, slope = float(xp.sum(value)), np.zeros_like(vector)
        for name, place in places.items():
            bar = bars.get(name.removeprefix("likelihood."))
            if bar is not None:
                slope[place] = coordinates.take(name, to_numpy(bar * scales[name]))
        for leaf, density, first, _ in expand_priors(at, priors):
            total, place = total + density, places[leaf.name]
            slope[place] += coordinates.take(leaf.name, first)
        return -total / count, -slope / count

    start = coordinates.vector_of(model)
    box = list(zip(*coordinates.box(start), strict=True))
    with np.errstate(all="ignore"):
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=box, options={"maxiter": LIKELIHOOD_STEPS})
        gain = count * (loss(start)[0] - found.fun)
    return (coordinates.model_at(found.x), gain) if np.isfinite(gain) else (model, 0.0)


def fit_near_sites(
    model: Any,
    data: Batch,
    most: int,
    tolerance: float,
    clock: Clock,
    tracker: Tracker,
    seed: int,
    memory: Any,
    frozen: tuple[str, ...] = (),
) -> FitResult[Any]:
    """Train sites and hyperparameters in turn, until a round gains less than the tolerance, in nats per row.

    On Ctrl-C, the result of the last round is raised with `agp.errors.Interrupted`. What matches patterns among
    `frozen` is fixed during the rounds.
    """
    if frozen:
        held = with_priors(model, (*model.priors, *((pattern, Fixed()) for pattern in frozen)))
        try:
            found = fit_near_sites(held, data, most, tolerance, clock, tracker, seed, memory)
        except Interrupted as interrupt:
            result = interrupt.result
            raise Interrupted(replace(result, model=replace(result.model, priors=model.priors))) from None
        return replace(found, model=replace(found.model, priors=model.priors))
    tracker.begin("rounds")
    turns, N = Turns(most, clock, tracker, memory), model.X.shape[0]
    all_neighbours = min(model.neighbours, N - 1)
    width = all_neighbours if model.sets is None else model.sets.shape[1]
    try:
        model = turns.train(model, data, tolerance, seed)
        if width < all_neighbours:
            model = replace(model, sets=model.sets[:, :width])
        else:
            model = settle_sites(model.renew_neighbours(memory=memory), data, 1, memory=memory)[0]
    except KeyboardInterrupt as interrupt:
        raise Interrupted(turns.result(turns.last.renew_neighbours(memory=memory))) from interrupt
    message = f"a round gains less than {tolerance:.2g} nats per row" if turns.converged else limit_of_steps(most)
    message = "a round lowered the bound, and was undone" if turns.undone else message
    return with_message(turns.result(model), turns.converged, clock, message)


class Turns:
    """Rounds of site steps and Newton steps.

    Parameters
    ----------
    most
        The maximum number of rounds.
    watch
        A function of the progress, called after each round, which returns whether to end. None means that the bound is
        not computed.
    tracker
        The progress to tell, or None.
    memory
        Memory budget for working arrays, in MiB.
    """

    def __init__(
        self,
        most: int,
        watch: Callable[[Progress], bool] | None = None,
        tracker: Tracker | None = None,
        memory: float | None = None,
    ) -> None:
        self.most, self.watch, self.tracker, self.memory = most, watch, tracker, memory
        self.began, self.steps = time.perf_counter(), 0
        self.trace: dict[str, list[float]] = {"bound": [], "gain": []}
        self.converged = self.stopped = self.undone = False
        self.given: Any = None
        """The model of all rows before the first round."""
        self.batch: Any = None
        """All rows."""
        self.last: Any = None
        """The model of all rows after the last round."""

    @property
    def is_over(self) -> bool:
        """Whether no further round may begin."""
        return self.stopped or self.steps >= self.most

    def result(self, model: TNNGP) -> Result[Any]:
        """Return the result of the rounds so far, with the given model."""
        return Result(model, self.steps, time.perf_counter() - self.began, self.trace)

    def train(self, model: TNNGP, batch: Batch, tolerance: float, seed: int = 0) -> TNNGP:
        """Return the model after rounds on some of the rows, if there are many, and on all rows."""
        N = model.X.shape[0]
        self.given, self.batch, self.last = model, batch, model
        if not has_densities(model) and N > FEW_ROWS:  # a prior is compared with the densities of all rows
            chosen = np.sort(generator(seed, 37).permutation(N)[:FEW_ROWS])
            some = self.run(*take_rows(model, batch, chosen), FEW_ROUNDS, FEW_GAIN, chosen)
            model = spread_sites(model, some, chosen, batch, memory=self.memory)
            self.converged = self.undone = False
        return model if self.is_over else self.run(model, batch, self.most, tolerance)

    def run(self, model: TNNGP, batch: Batch, rounds: int, tolerance: float, rows: Any = None) -> TNNGP:
        """Return the model after rounds on all its rows, with sites for few neighbours.

        `rows` are their numbers among all rows, if there are others.
        """
        N, k = model.X.shape[0], model.neighbours
        labels = model.likelihood.labels
        most, fewer = (LABEL_ROWS, LABEL_NEIGHBOURS) if labels else (NEWTON_ROWS, NEWTON_NEIGHBOURS)
        count = N if has_densities(model) else min(most, N)
        chosen = np.sort(generator(N, 38).permutation(N)[:count])
        near = replace(model, neighbours=min(k, fewer)).renew_neighbours(memory=self.memory)
        near, height = self._settle(begin_sites(near, batch, memory=self.memory), batch, FIRST_SWEEPS)
        for number in range(min(rounds, self.most - self.steps)):
            near = near.renew_neighbours(memory=self.memory) if number else near
            moved, gain = climb_given_sites(near, batch, chosen, memory=self.memory)
            moved, reached = self._settle(moved, batch, SWEEPS)
            if not reached > height - FALL * N:  # the sites do not follow, so the parameters before are kept
                self.undone = True
                break
            near, height = moved, reached
            self._note(near, batch, gain / count, rows)
            self.converged = gain / count < tolerance
            if self.converged or self.is_over:
                break
        return replace(near, neighbours=k)

    def _settle(self, model: TNNGP, batch: Batch, most: int) -> tuple[TNNGP, float]:
        """Return the model with sites that depend on few neighbours, and the last value of its bound."""
        found, height = settle_sites(_with_few(model), batch, most, memory=self.memory)
        return replace(model, site_shift=found.site_shift, site_precision=found.site_precision), height

    def _note(self, model: TNNGP, batch: Batch, gain: float, rows: Any) -> None:
        """Add a round to the trace, with a bound on the densities of all rows, and call `watch`."""
        if self.watch is None:
            self.steps += 1
            return
        share = model.X.shape[0] / self.given.X.shape[0]
        bound = _with_few(model)._objective(batch, memory=self.memory)[0] / share
        if not math.isfinite(float(bound)):
            raise NonFiniteError("the bound is not finite; try standardised data or float64.", self.result(self.last))
        self.steps += 1
        whole = model if rows is None else spread_sites(self.given, model, rows, self.batch, memory=self.memory)
        self.last = replace(whole, neighbours=self.given.neighbours, sets=None)
        self.trace["bound"].append(float(bound))
        self.trace["gain"].append(gain)
        if self.tracker is not None:
            self.tracker.step(self.steps, self.most, f"round {self.steps}", self.trace["bound"][-1])
        seen = Progress(self.steps, self.last, {"bound": bound}, time.perf_counter() - self.began)
        self.stopped = bool(self.watch(seen))


def with_few_in_sets(model: TNNGP) -> TNNGP:
    """Return the model with few neighbours for the sites, and the same number in predictions."""
    few = replace(model, neighbours=min(SITE_NEIGHBOURS, model.neighbours))
    return replace(few.renew_neighbours(), neighbours=model.neighbours)


def _with_few(model: TNNGP) -> TNNGP:
    """Return the model with few neighbours."""
    k = min(SITE_NEIGHBOURS, model.neighbours)
    return replace(model, neighbours=k, sets=None if model.sets is None else model.sets[:, :k])


def take_rows(model: TNNGP, batch: Batch, rows: Any) -> tuple[TNNGP, Batch]:
    """Return a model and a batch of some rows, whose numbers are on the host."""
    B, rows = backend_of(model.X), _beside(model, rows)
    names = ("X", "site_shift", "site_precision")
    some = {name: B.rows_at(x, rows) for name, x in tree.leaves(model).items() if name in names}
    return replace(model, **some, sets=None), batch.take(lambda x: B.rows_at(x, rows))


def _beside(model: TNNGP, rows: Any) -> Any:
    """Return numbers of rows, which are on the host, beside the rows."""
    B = backend_of(model.X)
    return B.from_numpy(rows, device=B.device_name(model.X) or None)
