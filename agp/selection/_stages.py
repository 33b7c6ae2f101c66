"""The stages of a fit: search, training, comparison and posterior, each of which may be the last."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, backend_of
from agp.kernels import Kernel, Linear, Product, Sum
from agp.models import GPR
from agp.selection._candidates import FAR, Chosen, Found, best_setting, close_to_best, select_best, sort_by_density
from agp.selection._collapse import Collapse, collapse
from agp.selection._exact import (
    LONG,
    Tuned,
    evaluate_on,
    exact_gp,
    log_density_of,
    on_rows,
    search_hyperparameters,
    train_exact,
)
from agp.selection._plan import Plan, checksum_of
from agp.selection._result import Candidate, RegressionResult
from agp.selection._rows import Data, Rows
from agp.selection._signal import CHANCE, baseline_of, constant_model, exceeds_chance, predicts
from agp.selection._sizes import Sizes
from agp.selection._watch import Pieces, Watch

SAMPLE, LARGER, EXACT_ROWS = 500, 2000, 4000
"""The number of rows for comparing starts and kernels, the number for training the best kernels, and the maximum number
of rows of an exact GP."""
ITERATIONS, LAST_ITERATIONS = 25, 8
"""The numbers of L-BFGS iterations on the larger sample, and of further iterations on `EXACT_ROWS` rows."""
MOST_ITERATIONS, EVIDENCE_COST = 400, 1.2e12
"""The maximum numbers of L-BFGS iterations and of operations if the larger sample contains all rows. The evidence and
its gradient take 4 N^3 operations."""
COMPARED_ROWS, FEW = 50_000, 1024
"""The numbers of rows and inducing inputs in a comparison."""
SHARES = {"search": 0.15, "train": 0.45}
"""The latest end of a stage, as a fraction of the time limit."""
AMPLE, SPEED = 8.0, 2e10
"""Constants for a time limit. No stage is skipped if the remaining time exceeds `AMPLE` times that for search and
comparison. `SPEED` is in operations per second."""
SOME, OVER = 2.0, 0.2
"""Constants for a time limit. Training starts only if there is time for `SOME` evaluations of the evidence. An exact
posterior, which takes 2 N^3 operations, may take `OVER` times the limit even if no time is left."""


def is_exact(method: str, X: Array) -> bool:
    """Whether this method, or "auto", gives the exact posterior of rows X."""
    return method == "gpr" or (method == "auto" and X.shape[0] <= EXACT_ROWS and not backend_of(X).is_lazy)


class Fit:
    """A fit in progress; `result` can be called at any time."""

    def __init__(self, plan: Plan, rows: Rows, most: int, pieces: Pieces, watch: Watch) -> None:
        self.plan, self.rows, self.pieces, self.watch = plan, rows, pieces, watch
        drawn = len(rows.order)
        self.few = min(FEW, most, drawn)
        self.sizes = Sizes(self.few, min(most, drawn), drawn, rows.total)
        self.candidates: list[Candidate] = []
        self.best: Callable[[], Found] = lambda: self._exact_of(self._initialise(), SAMPLE, "")

    # -- the two methods --------------------------------------------------------------------------------------------

    def run_exact(self) -> None:
        """Compare kernels on the sample, train the best on up to 2,000 rows, and keep the posterior of all rows."""
        found = self._search()
        rows = min(self.rows.total, LARGER)
        of_parts = isinstance(self.plan.kernel, (Product, Sum))  # these require more iterations than the search runs
        if (rows > SAMPLE or of_parts) and self._in_time(rows):
            iterations = ITERATIONS
            if rows == self.rows.total:
                iterations = max(ITERATIONS, min(MOST_ITERATIONS, int(EVIDENCE_COST / (4.0 * rows**3))))
            found = self._on_rows(found, rows)
            found = sort_by_density([*found, *self._train(close_to_best(found), rows, iterations)])
            self._keep_exact(found[0])
        if self.rows.total > rows and self._in_time(self.rows.total):
            found = self._on_rows(found[:1], self.rows.total)
            found = sort_by_density([*found, *self._train(found, self.rows.total, LAST_ITERATIONS)])
        self._keep_exact(found[0])

    def _in_time(self, rows: int) -> bool:
        """Whether enough time is left to compute the evidence of `rows` rows and its gradient a few times."""
        if not self.watch.is_done and SOME * 4.0 * rows**3 > self.watch.left() * SPEED:
            self.watch.late = True
        return not self.watch.is_done

    def _on_rows(self, found: list[Chosen], rows: int) -> list[Chosen]:
        """Score the hyperparameters of the candidates on more rows; return the candidates, the best first."""
        data = self.rows.first(rows)
        judged = []
        with self.watch.stage("judge", data.X.shape[0]):
            for one in found:
                model = on_rows(one.tuned.model, data, self.plan.parts(one.tuned.model.kernel, data)["priors"])
                piece = f"judge {one.name} {rows} from {checksum_of(model)}"
                tuned = self._find(piece, model) or self._store(piece, model, evaluate_on(model, data))
                judged.append(one._replace(tuned=tuned, log_density=tuned.score))
        return sort_by_density(judged)

    def run_collapsed(self) -> None:
        """Compare kernels on the held-out rows with few inducing inputs, then choose the number of inducing inputs."""
        found = self._compare(self._search())
        ample = self.watch.left() > AMPLE * self.watch.elapsed()
        if not found:  # the result is the posterior of the sample
            return
        if not self.watch.is_done and not ample:
            best = found[0]
            trained = self._train([best], LARGER, ITERATIONS)[0].tuned
            found = [best._replace(tuned=trained, settings=((1.0, float(trained.model.likelihood.noise_variance)),))]
        if not self.watch.is_done and ample:
            found = self._compare(self._train(close_to_best(found), LARGER, ITERATIONS), found)
        if not self.watch.is_done and ample and len(self.rows.order) > LARGER:
            found = self._compare(self._train(found[:1], EXACT_ROWS, LAST_ITERATIONS), found)
        if not self.watch.is_done:
            self._grow(select_best(found))

    # -- hyperparameters --------------------------------------------------------------------------------------------

    def _search(self) -> list[Chosen]:
        """Search for the hyperparameters of each kernel on the sample; return the candidates, the best first."""
        data = self.rows.first(SAMPLE)
        found: list[Chosen] = []
        with self.watch.stage("search", data.X.shape[0], SHARES["search"]):
            for name, kernel in self.plan.kernels().items():
                if found and self.watch.stage_over:
                    break
                tuned = self._search_kernel(name, kernel, data)
                found = sort_by_density([*found, Chosen(name, tuned, log_density=tuned.score)])
                self._keep_sample(found[0])
            if isinstance(self.plan.kernel, str) and not self.watch.stage_over:
                found = sort_by_density([*found, *self._with_linear(found[0], data)])
                self._keep_sample(found[0])
        self._note(found, data.X.shape[0])
        return found

    def _initialise(self) -> GPR:
        data = self.rows.first(SAMPLE)
        kernel = next(iter(self.plan.kernels().values()))
        return exact_gp(data, kernel=kernel, **self.plan.parts(kernel, data))

    def _search_kernel(self, name: str, kernel: Kernel, data: Data) -> Tuned:
        parts, piece = self.plan.parts(kernel, data), f"search {name}"
        settings = (self.watch, self.plan.least_gain, lambda: self.rows.first(COMPARED_ROWS).X)
        model = exact_gp(data, kernel=kernel, **parts)
        found = self._find(piece, model)
        return found or self._store(piece, model, search_hyperparameters(kernel, data, parts, *settings))

    def _train_model(self, piece: str, model: Any, data: Data, iterations: int) -> Tuned:
        """Train a model for at most this many iterations, or take the result from the checkpoint."""
        piece = f"{piece} from {checksum_of(model)}"
        settings = (iterations, self.watch, self.plan.least_gain)
        return self._find(piece, model) or self._store(piece, model, train_exact(model, data, *settings))

    def _find(self, piece: str, model: Any) -> Tuned | None:
        """Return the model with the result from the checkpoint, or None if it is not there."""
        return self.pieces.find(piece, lambda done: Tuned.of(model, done))

    def _store(self, piece: str, model: Any, found: Tuned) -> Tuned:
        """Store a result in the checkpoint, and return it as it would be read from there."""
        return Tuned.of(model, self.pieces.store(piece, found.pieces()))

    def _with_linear(self, best: Chosen, data: Data) -> list[Chosen]:
        """Add a linear kernel to the best kernel; return the sum if its gain is not due to chance."""
        kernel = best.tuned.model.kernel + Linear.centred(data.repeat_rows()[0])
        model = on_rows(best.tuned.model, data, self.plan.parts(kernel, data)["priors"], kernel)
        name = f"{best.name} + linear"
        tuned = self._train_model(f"search {name}", model, data, LONG)
        gain = data.observations * (tuned.evidence - best.tuned.evidence)
        return [Chosen(name, tuned, log_density=tuned.score)] if gain > data.X.shape[1] + CHANCE else []

    def _train(self, found: list[Chosen], rows: int, iterations: int) -> list[Chosen]:
        """Train the hyperparameters of each candidate with the exact evidence of more rows."""
        data = self.rows.first(rows)
        done = data.X.shape[0]
        more: list[Chosen] = []
        with self.watch.stage("train", done, SHARES["train"]):
            for one in found:
                if more and self.watch.stage_over:
                    break
                start = one.tuned.model
                model = on_rows(start, data, self.plan.parts(start.kernel, data)["priors"])
                tuned = self._train_model(f"train {one.name} {done}", model, data, iterations)
                more.append(Chosen(one.name, tuned, log_density=tuned.score))
        self._note(more, done)
        return more

    # -- posteriors -------------------------------------------------------------------------------------------------

    def _compare(self, found: list[Chosen], before: Sequence[Chosen] = ()) -> list[Chosen]:
        """Score candidates on the held-out rows; return them with the earlier candidates, the best first."""
        both = [*before]
        rows = self._rows_to_compare(len(found))
        data, held = self.rows.first(rows), self.rows.held_out()
        with self.watch.stage("compare", data.X.shape[0]):
            for one in found:
                if both and self.watch.is_done:
                    break
                begun = self.watch.elapsed()
                try:
                    model = one.tuned.model
                    passed = collapse(model, data.X[: self.few, :], data, held, self.plan.memory, inside=False)
                    seconds = (self.watch.elapsed() - begun) / passed.rows
                    scored = self._score_candidate(one, passed)._replace(seconds=seconds)
                except ArithmeticError:  # the precision of the dtype is too low
                    continue
                both = sort_by_density([*both, scored])
                self._keep_collapsed(both[0])
        return [*both[:1], *(one._replace(passed=None) for one in both[1:])]  # free the large arrays of the others

    def _rows_to_compare(self, passes: int) -> int:
        rows = min(COMPARED_ROWS, len(self.rows.order))
        if self.watch.limit is None:
            return rows
        operations = SHARES["search"] * self.watch.limit * SPEED
        return max(min(rows, 2 * self.few), min(rows, int(operations / (2.0 * passes * self.few**2))))

    def _score_candidate(self, one: Chosen, passed: Collapse) -> Chosen:
        factor, noise, bound = passed.profile()
        settings = ((1.0, float(passed.model.likelihood.noise_variance)), (factor, noise))
        scored = sorted(((passed.log_density(*setting), setting) for setting in settings), reverse=True)
        density, setting = scored[0]
        gain = density - passed.log_density(*setting, count=max(1, self.few // 2))
        behind = one.tuned.log_density - density
        gain = behind if behind > FAR else gain  # too few inducing inputs for the signal
        tuned, rows = one.tuned, one.tuned.model.X.shape[0]
        self.candidates.append(Candidate(one.name, rows, tuned.evidence, tuned.log_density, bound, density))
        return one._replace(passed=passed, settings=tuple(at for _, at in scored), log_density=density, gain=gain)

    def _grow(self, best: Chosen) -> None:
        """Compute the posterior with the best number of inducing inputs, on all rows or on fewer rows."""
        sizes, rows = self.sizes, self.rows.total
        M = sizes.affordable(best.gain, best.seconds, self.watch)
        if not M:
            self.watch.late = True
            return
        if sizes.few < M < sizes.most and self.watch.limit is None and sizes.pays(best.gain, sizes.part()):
            M, rows = sizes.most, sizes.part()
        with self.watch.stage("posterior", rows):
            Z, held = self.rows.first(M).X, self.rows.held_out()
            inside = rows == self.rows.total
            data = self.rows.data if inside else self.rows.first(rows)
            try:
                passed = collapse(best.tuned.model, Z, data, held, self.plan.memory, inside=inside)
            except ArithmeticError:  # the precision of the dtype is too low
                return
            setting, density = best_setting(passed, best.settings)
            count = sizes.least(M, density, lambda fewer: passed.log_density(*setting, count=fewer))
            self.best = lambda: self._collapsed_candidate(best, passed, setting, count, density)

    # -- results ----------------------------------------------------------------------------------------------------

    def _note(self, found: list[Chosen], rows: int) -> None:
        """Record the candidates if no rows are held out."""
        if not len(self.rows.held):
            self.candidates += [Candidate(one.name, rows, *one.tuned[1:]) for one in found]

    def _keep_sample(self, one: Chosen) -> None:
        self.best = lambda: self._exact_of(one.tuned.model, SAMPLE, one.name)

    def _keep_exact(self, one: Chosen) -> None:
        """Keep the exact posterior of all rows, or of as many as the time limit allows."""
        rows = self.rows.total
        if self.watch.limit is not None:
            seconds = max(self.watch.left(), OVER * self.watch.limit)
            rows = max(SAMPLE, min(rows, int((seconds * SPEED / 2.0) ** (1.0 / 3.0))))
        self.best = lambda: self._exact_of(one.tuned.model, rows, one.name)

    def _keep_collapsed(self, one: Chosen) -> None:
        self.best = lambda: self._collapsed_candidate(one, one.passed, one.settings[0], self.few, one.log_density)

    def _exact_of(self, model: Any, rows: int, name: str) -> Found:
        """Compute the exact posterior of the first rows in the random order, or of all rows."""
        data = self.rows.data if rows >= self.rows.total else self.rows.first(rows)
        parts = {"likelihood": model.likelihood, "mean_function": model.mean_function, "priors": dict(model.priors)}
        found = exact_gp(data, kernel=model.kernel, **parts)
        kind, bound = f"the exact posterior of {data.X.shape[0]:,} rows", float(found.bound(data.X, data.y)[0])
        return Found(found, name, kind, bound, data, log_density_of(found), held_out=False)

    def _collapsed_candidate(
        self, one: Chosen, passed: Any, setting: tuple[float, float], count: int, density: float
    ) -> Found:
        model, bound = passed.posterior(*setting, count)
        seen = self.rows.data if passed.inside else self.rows.targets_seen(passed.rows)
        kind = f"a collapsed posterior with {count:,} inducing inputs on {seen.y.shape[0]:,} rows"
        return Found(model, one.name, kind, bound, seen, density, held_out=True)

    def result(self) -> RegressionResult:
        """Return the best result so far."""
        best = self.best()
        watch, model = self.watch, best.model
        parameters = sum(
            np.prod(x.shape, dtype=int)
            for name, x in tree.leaves(model, "parameter").items()
            if not {"posterior", "inducing"} & {*name.split(".")}
        )
        count, every = best.targets.observations, self.rows.data
        gain = best.bound - count * baseline_of(model.likelihood, best.targets)
        learned = exceeds_chance(gain, parameters, count) or (
            best.held_out and predicts(best.log_density, self.rows.first(COMPARED_ROWS), self.rows.held_out())
        )
        ending = watch.ending()
        learned = learned or bool(ending)  # a fit that ended early may still learn
        message = f"{best.kernel}, {best.kind}" + (f"; {ending}" if ending else "")
        if not learned:
            sample, one = self.rows.first(SAMPLE), self.rows.first(1)
            constant = constant_model(self._initialise(), sample.X, one, every)
            kept = "the best of them" if constant is None else "a model that predicts the mean"
            model = model if constant is None else constant
            message = (
                f"the inputs do not predict the targets: the best of {len(self.candidates)} models has {parameters} "
                f"hyperparameters and gains {gain:.1f} nats over the mean; {kept} is returned"
            )
        return RegressionResult(
            model,
            watch.steps,
            watch.elapsed(),
            {"bound": watch.bounds},
            converged=not ending,
            message=message,
            candidates=self.candidates,
            kernel=best.kernel,
            stages=watch.stages,
            bound=best.bound * every.observations / count,
            baseline=baseline_of(model.likelihood, every),
            log_density=best.log_density,
            learned=bool(learned),
        )
