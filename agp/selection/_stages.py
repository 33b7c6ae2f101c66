"""The stages of a fit: search, training, comparison and posterior, each of which may be the last."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from agp.backend import asarray_like
from agp.bounds import evidence_and_left_out
from agp.likelihoods import Transform
from agp.models import GPR, GPRMixture
from agp.priors import log_prior
from agp.selection._climb import (
    Climber,
    StageOver,
    affordable_rows,
    beside,
    exact_gp,
    model_on,
    needs_wide,
    observations,
    on_rows,
    operations,
    parts_beside,
)
from agp.selection._collapse import Collapse, collapse
from agp.selection._given import Data, Plan, Rows, finite_average, split_name
from agp.selection._pruning import prune
from agp.selection._race import SAMPLE, STEPS, Mixed, Race, mix, train_revived
from agp.selection._seasons import Times
from agp.selection._signal import (
    CLEAR,
    PERMUTED_STEPS,
    baseline_of,
    beats_permutations,
    constant_model,
    predicts,
    predicts_left_out,
    why_nothing_learned,
)
from agp.selection._sizes import COST, Sizes
from agp.selection._targets import (
    choose_transform,
    in_own_units,
    mean_log_slope,
    mix_transforms,
    predicts_better,
    transform_targets,
)
from agp.selection._trial import Candidate, Found, RegressionResult, Trial, best_of_kernels, close_to_best, sort_trials
from agp.selection._watch import Pieces, Watch
from agp.training import fit

LARGER, SAMPLED_ROWS = 2000, 3200
"""The number of rows for training the best candidates, and that for a last training before a collapsed posterior."""
TRAIN_STEPS, SAMPLED_STEPS, REVIVAL_STEPS, WIDE_STEPS, LAST_STEPS, POLISH_STEPS = 8, 12, 6, 1, 3, 20
"""The maximum numbers of evaluations: on up to `LARGER` rows for an exact and for a collapsed posterior, after a
revival, in float64 after float32, on more than `LARGER` rows, and for the last training on at most `SAMPLE` rows."""
MANY_COLUMNS = 200
"""If there are more columns than this, training may use fewer rows."""
NARROW_ROWS = 1000
"""From this number of rows on, training starts in float32."""
LAST_TOLERANCE, POLISH_TOLERANCE = 0.5, 1e-3
"""The predicted gains in nats at which training ends on more than `LARGER` rows, and on at most `SAMPLE` rows."""
WIDE_ROWS, COMPARED_ROWS, FEW = 10_000, 16_384, 1024
"""The numbers of rows for starting values and for a comparison, and the number of inducing inputs in a comparison."""
FAR = 0.3
"""A difference in nats per row that cannot be due to the choice of the sample."""
BETTER = 0.05
"""Hyperparameters from few rows are kept if they predict the held-out rows better by this many nats per row."""
JUDGED_ROWS, JUDGED = 4096, 512
"""The numbers of rows and of inducing inputs for comparing kernels."""
SHARES = {"search": 0.15, "transforms": 0.2, "search again": 0.3, "train": 0.45}
"""The latest end of a stage, as a fraction of the time limit."""
AMPLE = 8.0
"""Without a time limit, and with one if the remaining time exceeds `AMPLE` times that for the search, no stage is
skipped."""
SOME, OVER, POSTERIOR_SHARE = 2.0, 0.1, 0.5
"""Constants for a time limit. Training starts only if there is time for `SOME` evaluations of the evidence. An exact
posterior takes `POSTERIOR_SHARE` times the operations of an evaluation, and may take `OVER` times the limit even if no
time is left."""


class Passed(NamedTuple):
    """A candidate with its held-out log density for few inducing inputs."""

    trial: Trial
    sums: Collapse
    setting: tuple[float, float]
    """The best of the settings."""
    settings: tuple[tuple[float, float], ...]
    """Pairs of a kernel factor and a noise variance: from training, from the held-out rows and from the bound."""
    gain: float
    """The gain from the last doubling of the inducing inputs, in nats per row, or the lead of the exact GP of the
    sample if it exceeds `FAR`."""


def _kind(data: Data) -> str:
    return f"the exact posterior of {data.X.shape[0]:,} rows"


class Fit:
    """A fit in progress; `result` can be called at any time."""

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        most: int,
        pieces: Pieces,
        watch: Watch,
        seed: int = 0,
        times: Sequence[Times] = (),
    ) -> None:
        self.plan, self.rows, self.watch, self.seed, self.times = plan, rows, watch, seed, times
        self.climb = Climber(plan, pieces, watch, exact=not len(rows.held))
        drawn = len(rows.order)
        self.few = min(FEW, most, drawn)
        self.sizes = Sizes(self.few, min(most, drawn), drawn, rows.total)
        self.candidates: list[Candidate] = watch.candidates
        self.certain = False
        self.transform: Transform | None = None
        self.best: Callable[[], Found] = lambda: self._exact_of(self._initialise(), SAMPLE, "")

    # -- the methods -----------------------------------------------------------------------------------------------

    def run_mixture(self) -> None:
        """Integrate over the hyperparameters of an exact GP of all rows."""
        data = self.on_host(self.rows.data.at())
        with self.watch.stage("integrate", self.rows.total):
            mixed = mix(self.plan, data, self.watch, self.times)
        self._keep_mixture(mixed)
        if not self.plan.transforms or self.watch.is_done:
            return
        with self.watch.stage("transforms", self.rows.total):
            transform, mixed, tried = mix_transforms(self.plan, self.climb, mixed, data, self.watch, self.times)
        self.candidates += tried
        if transform is not None:
            self._use(transform)
            self._keep_mixture(mixed)

    def run_exact(self) -> None:
        """Compare kernels on the sample, train the best on up to 2,000 rows, and keep the posterior of all rows."""
        found = self.search()
        if not found:
            return
        total = self.rows.total
        rows = min(total, LARGER)
        if rows <= SAMPLE:
            self._keep_exact(self._polish(found[0]))
            return
        self._keep_exact(found[0])
        if self._in_time(rows):
            best = self.train(close_to_best(found), rows, TRAIN_STEPS)
            self._keep_exact(best)
            if total > rows and self._in_time(total):
                self._keep_exact(self.train([best], total, LAST_STEPS))

    def run_collapsed(self) -> None:
        """Train the best candidate on up to 3,200 rows, then choose the number of inducing inputs."""
        found = self.search(compete=False)
        if not found or self.watch.is_done:
            return
        best = self.train_for_inducing(found)
        passed = None if self.watch.is_done else self.compare(best)
        if passed is None:
            return
        self.best = lambda: self._collapsed_candidate(passed.trial, passed.sums, passed.setting, self.few)
        if not self.watch.is_done:
            grown = self.grow(passed)
            self.best = self.best if grown is None else lambda: grown

    def train_for_inducing(self, found: list[Trial]) -> Trial:
        """Choose a kernel by the predictions from few inducing inputs, and train it on up to 3,200 rows."""
        drawn = len(self.rows.order)
        ample = self.watch.left() > AMPLE * self.watch.elapsed()
        self.watch.cut = self.watch.cut or not ample
        judged = self._judge(best_of_kernels(found)) if ample else found[:1]
        trained = judged[:1]
        if drawn > SAMPLE and not self.watch.is_done:
            trained.append(self.train(trained, LARGER, SAMPLED_STEPS))
        if drawn > LARGER and not self.watch.is_done and ample:
            trained.append(self.train(trained[-1:], SAMPLED_ROWS, LAST_STEPS))
        best = trained[-1]
        if ample and len(trained) > 1 and not self.watch.is_done:  # more rows may still be few
            last = self._judge(trained[-1:])[0]
            best = judged[0] if judged[0].score > last.score + BETTER else last
        return best

    def _in_time(self, rows: int) -> bool:
        """Whether enough time is left to compute the evidence of `rows` rows and its gradient a few times."""
        cost = SOME * operations(self._trained_rows(rows), self.rows.data.X.shape[1])
        if not self.watch.is_done and cost > self.watch.left() * self.climb.speed:
            self.watch.late = True
        return not self.watch.is_done

    def _trained_rows(self, rows: int) -> int:
        """Return the number of rows for training: fewer than `rows` if there are many columns.

        With more than `MANY_COLUMNS` columns, an evaluation of the evidence takes the time of `LARGER` rows (or `rows`,
        if they are more) with `MANY_COLUMNS` columns, or that of `SAMPLE` rows if this is longer.
        """
        most = operations(max(rows, LARGER), MANY_COLUMNS)
        return affordable_rows(rows, self.rows.data.X.shape[1], most, least=SAMPLE)

    # -- hyperparameters --------------------------------------------------------------------------------------------

    def search(self, *, compete: bool = True) -> list[Trial]:
        """Search for kernels and hyperparameters on the sample; return the candidates, the best first."""
        found = self._race("search", compete=compete)
        if not found or not self.plan.transforms or self.watch.is_done:
            return found
        sample = self.on_host(self.rows.first(SAMPLE))
        with self.watch.stage("transforms", sample.X.shape[0], SHARES["transforms"]):
            choice, tried = choose_transform(self.plan, self.climb, found[0], sample, self.rows.data)
        self.candidates += tried
        if choice.transform is None or self.watch.is_done:
            return found
        rows, best = self.rows, self.best
        self._use(choice.transform)
        again: list[Trial] = []
        try:
            again = self._race("search again", compete=compete)
            if again and choice.is_doubtful and not predicts_better(again[0], found[0], choice.transform, sample):
                again, self.best = [], best
        finally:
            if self.best is best:  # the transform is worse, or the search ended before it found anything
                self.rows, self.transform = rows, None
        return again or found

    def _race(self, stage: str, *, compete: bool) -> list[Trial]:
        """Compare starts and kernels on the sample."""
        sample, wide = (self.on_host(self.rows.first(rows)) for rows in (SAMPLE, WIDE_ROWS))
        race = Race(self.plan, wide, sample, self.climb, compete=compete, times=self.times)
        found, before = [], len(self.climb.done)
        with self.watch.stage(stage, sample.X.shape[0], SHARES[stage]):
            try:
                for found in race.run():
                    self._keep_sample(found[0])
            except StageOver:
                if not found and self.climb.done[before:]:
                    found = sort_trials(self.climb.done[before:])
                    self._keep_sample(found[0])
        self.note([*found, *race.beaten])
        return found

    def _use(self, transform: Transform) -> None:
        """Replace the targets of all rows by their transforms."""
        self.rows, self.transform = self.rows._replace(data=transform_targets(self.rows.data, transform)), transform

    def on_host(self, data: Data) -> Data:
        """Return rows on the host in float64, so that all libraries choose alike, unless users' parts need others."""
        return data if self.plan.foreign else data.on_host()

    def _initialise(self) -> GPR:
        data = self.rows.first(SAMPLE)
        kernel = next(iter(self.plan.kernels().values()))
        return exact_gp(data, kernel=kernel, **self.plan.parts(kernel, data))

    def train(self, found: list[Trial], rows: int, steps: int) -> Trial:
        """Train the hyperparameters of each candidate with the exact evidence of more rows; return the best."""
        data, before = self.rows.first(self._trained_rows(rows)), len(self.climb.done)
        with self.watch.stage("train", data.X.shape[0], SHARES["train"]):
            try:
                best = self._train_on(data, found, steps)
            except StageOver:
                best = max(self.climb.done[before:], key=lambda one: one.score, default=found[0])
        self.note(self.climb.done[before:])
        return best

    def _train_on(self, data: Data, found: list[Trial], steps: int) -> Trial:
        count = data.X.shape[0]
        narrowly = count >= NARROW_ROWS
        last: Any = {"tolerance": LAST_TOLERANCE} if count > LARGER else {}
        more: list[Trial] = []
        for one in found:
            model = on_rows(one.model, data, self.plan.parts(one.model.kernel, data)["priors"])
            settings: Any = {"narrowly": narrowly or bool(more), "rival": next(iter(more), None)}
            more.append(self.climb("train", one.kernel, model, steps, **settings, **last))
        first, best = more[0], sort_trials(more)[0]
        if not narrowly:
            best = sort_trials([best, *train_revived(self.climb, best, REVIVAL_STEPS, narrowly=True)])[0]
        wide = self.climb.exact and needs_wide(best.model)
        if (narrowly or best is not first) and (wide or count == self.rows.total):
            best = self.climb("last", best.kernel, best.model, STEPS if wide else WIDE_STEPS, **last)
        return best

    def _polish(self, one: Trial) -> Trial:
        """Train a candidate further on its own rows, and remove columns that are not needed."""
        with self.watch.stage("train", self.rows.total, SHARES["train"]):
            try:
                found = self.climb("polish", one.kernel, one.model, POLISH_STEPS, tolerance=POLISH_TOLERANCE)
            except StageOver:
                return one
            self.note([found])
            if not found.score > -np.inf:
                return one
            try:
                pruned = prune(self.plan, self.climb, found) if self.plan.is_plain else None
            except StageOver:
                return found
        self.note([] if pruned is None else [pruned])
        return found if pruned is None else pruned

    # -- posteriors -------------------------------------------------------------------------------------------------

    def _judge(self, found: list[Trial]) -> list[Trial]:
        """Score candidates on the held-out rows with few rows and inducing inputs; the best comes first.

        The evidence of few rows and the density of left-out rows prefer kernels that are smoother than what predicts
        best from inducing inputs.
        """
        judged = []
        with self.watch.stage("judge", min(JUDGED_ROWS, len(self.rows.order))):
            for one in found:
                if judged and self.watch.is_done:
                    break
                passed = self.pass_over(one, min(JUDGED, self.few), JUDGED_ROWS)
                if passed is not None:
                    judged.append(passed.trial)
        self.note(judged, JUDGED_ROWS)
        return sort_trials(judged) or found

    def compare(self, one: Trial) -> Passed | None:
        """Compute the collapsed posterior of a candidate with few inducing inputs, and its held-out log density."""
        rows = self._rows_to_compare()
        with self.watch.stage("compare", rows):
            found = self.pass_over(one, self.few, rows)
        if found is not None:
            self.note([found.trial], rows)
        return found

    def pass_over(self, one: Trial, inducing: int, rows: int) -> Passed | None:
        """Score a candidate on the held-out rows in a pass over some of the other rows; None if it fails."""
        data, held = self.rows.first(rows), self.rows.held_out()
        begun = self.watch.elapsed()
        try:
            sums = collapse(parts_beside(one.model, data.X), data.X[:inducing, :], data, held, self.plan.memory)
        except ArithmeticError:  # the precision of the dtype is too low
            return None
        seconds = (self.watch.elapsed() - begun) / sums.rows
        factor, noise, bound = sums.profile()
        trained = float(sums.model.likelihood.noise_variance)
        settings = ((1.0, trained), (1.0, sums.calibrate_noise(trained)), (factor, noise))
        settings = settings[:1] if self.plan.limits else settings
        setting, density = sums.best_setting(settings)
        gain = density - sums.log_density(*setting, count=max(1, inducing // 2))
        behind = one.scores.log_density - density
        gain = behind if behind > FAR else gain  # too few inducing inputs for the signal
        scores = one.scores._replace(bound=bound, held_out=density)
        return Passed(Trial(one.model, scores, seconds), sums, setting, settings, gain)

    def _rows_to_compare(self) -> int:
        rows = min(COMPARED_ROWS, len(self.rows.order))
        if self.watch.limit is None:
            return rows
        most = SHARES["search"] * self.watch.limit * self.climb.speed
        return max(min(rows, 2 * self.few), min(rows, int(most / (2.0 * self.few**2))))

    def grow(self, best: Passed, cost: float = COST) -> Found | None:
        """Compute the posterior with the best number of inducing inputs, on all rows or on fewer; None if it fails.

        `cost` is the maximum number of operations.
        """
        sizes, rows = self.sizes, self.rows.total
        M = sizes.affordable(best.gain, best.trial.seconds, self.watch, cost)
        if not M:
            self.watch.late = True
            return None
        if sizes.few < M < sizes.most and self.watch.limit is None and sizes.pays(best.gain, sizes.part(cost)):
            M, rows = sizes.most, sizes.part(cost)
        with self.watch.stage("posterior", rows):
            Z, held = self.rows.first(M).X, self.rows.held_out()
            inside = rows == self.rows.total
            data = self.rows.data if inside else self.rows.first(rows)
            try:
                hyper = parts_beside(best.trial.model, Z)
                passed = collapse(hyper, Z, data, held, self.plan.memory, inside=inside)
            except ArithmeticError:  # the precision of the dtype is too low
                return None
            setting, density = passed.best_setting(best.settings)
            count = sizes.least(M, density, lambda fewer: passed.log_density(*setting, count=fewer))
            scores = best.trial.scores._replace(held_out=density)
            return self._collapsed_candidate(best.trial._replace(scores=scores), passed, setting, count)

    # -- results ----------------------------------------------------------------------------------------------------

    def note(self, found: list[Trial], rows: int = 0) -> None:
        """Record the scores of candidates. `rows` is the number of rows of their bounds."""
        for one in found:
            slopes = [self.slope(self.rows.first(count)) for count in (one.scores.rows, rows) if count]
            held = self.slope(self.rows.held_out()) if rows else 0.0
            self.candidates.append(in_own_units(one.scores, self.transform, slopes[0], held, slopes[-1]))

    def slope(self, data: Data) -> float:
        """Return the average log slope of the transform at rows whose targets are transformed; otherwise 0."""
        return mean_log_slope(self.transform, data)

    def _keep_mixture(self, mixed: Mixed) -> None:
        found, candidates, self.certain = mixed
        slope = self.slope(found.targets)
        self.candidates += [in_own_units(one, self.transform, slope, 0.0, 0.0) for one in candidates]
        self.best = lambda: found._replace(model=beside(found.model, self.rows.data.X), slope=slope)

    def _keep_sample(self, one: Trial) -> None:
        self.best = lambda: self._exact_of(one.model, SAMPLE, one.kernel)

    def _keep_exact(self, one: Trial) -> None:
        """Keep the exact posterior of all rows, or of as many as the time limit allows."""
        rows = self.rows.total
        if self.watch.limit is not None:
            seconds = max(self.watch.left(), OVER * self.watch.limit)
            most = seconds * self.climb.speed / POSTERIOR_SHARE
            rows = affordable_rows(rows, self.rows.data.X.shape[1], most, least=SAMPLE)
        if one.model.X.shape[0] == self.rows.total <= rows and one.score > -np.inf:
            self.best = lambda: self._of_all_rows(one)
        else:
            self.best = lambda: self._exact_of(one.model, rows, one.kernel)

    def _of_all_rows(self, one: Trial) -> Found:
        """Return the exact posterior of a candidate that was trained on all rows."""
        data, model = self.rows.data, one.model
        bound = one.scores.evidence * observations(model) - (float(log_prior(model)[0]) if model.priors else 0.0)
        model = model if beside(model, data.X) is model else model_on(model, data)
        density, slope = one.scores.log_density, self.slope(data)
        return Found(model, one.kernel, _kind(data), bound, data, density, held_out=False, slope=slope)

    def _exact_of(self, model: Any, rows: int, name: str) -> Found:
        """Compute the exact posterior of the first rows in the random order, or of all rows."""
        data = self.rows.data if rows >= self.rows.total else self.rows.first(rows)
        found = model_on(model, data)
        evidence, left_out = evidence_and_left_out(found, found._data)
        density = finite_average(left_out, found.weights)
        return Found(found, name, _kind(data), float(evidence), data, density, held_out=False, slope=self.slope(data))

    def _collapsed_candidate(self, one: Trial, passed: Any, setting: tuple[float, float], count: int) -> Found:
        model, bound = passed.posterior(*setting, count)
        seen = self.rows.data if passed.inside else self.rows.targets_seen(passed.rows)
        kind = f"a collapsed posterior with {count:,} inducing inputs on {seen.y.shape[0]:,} rows"
        slope = self.slope(self.rows.held_out())
        return Found(model, one.kernel, kind, bound, seen, one.scores.held_out, held_out=True, slope=slope)

    def _has_signal(self, best: Found, gain: float) -> bool:
        """Whether a gain in evidence, in nats, is not due to chance: it is clear, or exceeds that of permutations."""
        columns = self.rows.data.X.shape[1]
        if not 0.0 < gain <= CLEAR + columns or self.watch.is_done or self.watch.interrupted:
            return gain > 0.0
        data = self.on_host(self.rows.first(SAMPLE))
        named = self.plan.kernels()
        kernel = named.get(split_name(best.kernel)[0], next(iter(named.values())))
        y = data.targets_on_host()[0]

        def train(targets: Any) -> float:
            own = data._replace(y=asarray_like(targets, data.X))
            model = exact_gp(own, kernel=kernel, **self.plan.parts(kernel, own))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = fit(model, own.X, own.y, max_steps=PERMUTED_STEPS, weights=own.weights)
            return float(found.model.bound(own.X, own.y)[0])

        return beats_permutations(train, y, self.seed)

    def result(self) -> RegressionResult:
        """Return the best result so far."""
        best = self.best()
        watch, model = self.watch, best.model
        count, every = best.targets.observations, self.rows.data
        if best.held_out:
            learned = predicts(best.log_density, self.rows.first(COMPARED_ROWS), self.rows.held_out())
        elif isinstance(model, GPRMixture):
            learned = self.certain or predicts_left_out(best.log_density, best.targets)
        else:
            learned = self._has_signal(best, best.bound - count * baseline_of(model.likelihood, best.targets))
        ending = watch.ending()
        learned = learned or bool(ending)  # a fit that ended early may still learn
        of = f"{best.kernel} of the transform {self.transform.short_name}" if self.transform else best.kernel
        message = f"{of}, {best.kind}" + (f"; {ending}" if ending else "")
        if not learned:
            constant = None
            if isinstance(self.plan.kernel, str) and not isinstance(model, GPRMixture):  # else the user chose the model
                sample, one = self.rows.first(SAMPLE), self.rows.first(1)
                constant = constant_model(self._initialise(), sample.X, one, every)
            model = model if constant is None else constant
            message = why_nothing_learned(every) + ("" if constant is None else "; the model predicts the mean")
        return RegressionResult(
            model,
            **watch.record(),
            converged=not ending,
            message=message,
            candidates=self.candidates,
            kernel=best.kernel,
            bound=(best.bound / count + self.slope(best.targets)) * every.observations,
            baseline=baseline_of(model.likelihood, every) + self.slope(every),
            log_density=best.log_density + best.slope,
            learned=bool(learned),
            ending=ending,
            transform=self.transform,
        )
