"""The stages of `fit_classification`: the search for kernels, and posteriors of all rows or with inducing inputs."""

import math
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import asarray_like, backend_of, to_numpy
from agp.bounds import Batch
from agp.kernels import RBF, Kernel, White
from agp.models import SVGP, TNNGP, TVGP, Ensemble
from agp.priors import Priors
from agp.random import generator
from agp.selection._class_kernels import LATER_STEPS, Searched, Start, compared_kernels, start_model, train_kernel
from agp.selection._class_posteriors import (
    Settled,
    best_spread,
    combine,
    densities,
    model_of_rows,
    near_model_of_rows,
    settle,
    settle_inducing,
    sparse_model,
    stack,
)
from agp.selection._climb import ignore_repairs
from agp.selection._given import (
    KERNELS,
    Columns,
    Data,
    Rows,
    base_name,
    checksum_of,
    describe_part,
    foreign_names,
    split_name,
    subsample_rows,
)
from agp.selection._near_sites import expected_seconds, include_rows, is_searched_quickly, train_near_rows
from agp.selection._outlook import stages_of_labels
from agp.selection._sizes import EXACT_ROWS
from agp.selection._trial import Candidate, ClassificationResult, Found, Trial, first_model
from agp.selection._watch import Pieces, Watch
from agp.training import Piece, Progress, Score, why_not_in_turn

ALL_ROWS = 2000
"""The maximum number of rows for a posterior of all rows."""
SEARCH_ROWS, LATER_ROWS, LATER_OPERATIONS = 500, 1000, 6.4e8
"""The maximum numbers of rows for comparing kernels and for training them further, for two classes; for C classes,
N rows take at most `LATER_OPERATIONS` = C N^3."""
SEARCH_OPERATIONS = 1e8
"""The maximum of C N^3 for comparing kernels with C classes."""
MOST_CLASSES, ROWS_PER_CLASS = 10, 5
"""The search uses rows of at most so many classes. Each of them keeps so many rows, if it has them."""
CLOSE = 25.0
"""Kernels whose evidence is lower than that of the best by more nats than this are left out."""
MOST_INDUCING, LEAST = 1024, 256
"""The largest and the smallest usual number of inducing inputs."""
LEAST_GAIN = 2e-3
"""The gain in nats per held-out row for which twice as many inducing inputs are used."""
OPERATIONS, OPERATIONS_OF_LABELS = 2.5e10, 50
"""The limit of N M (M + D + 50 C) for M inducing inputs, which is proportional to the time of a site step."""
FIRST_ROWS, FIRST_STEPS, STEPS, LAST_STEPS = 4000, 12, 8, 2
"""Sites of inducing inputs start with steps on so many rows, followed by steps on the rows that are not held out, and
finally on all rows."""
LEAST_WEIGHT = 0.02
"""The smallest weight of a kernel that is kept."""
CHANCE = 2.0
"""The gain in nats, over the frequencies of the classes, of a model that has learned something."""


class ClassPlan(NamedTuple):
    """The arguments of `fit_classification` that describe the model."""

    kernel: Any
    likelihood: Any
    priors: Any
    memory: float | None
    most: int
    seed: int
    columns: Columns
    frozen: tuple[str, ...] = ()
    limits: Priors = ()

    @property
    def is_foreign(self) -> bool:
        """Whether the kernel has parts that do not belong to agp, which may need the library of the rows."""
        return isinstance(self.kernel, Kernel) and bool(foreign_names(self.kernel))

    def facts(self) -> dict[str, Any]:
        """Return the arguments as strings, by name."""
        return {name: describe_part(part) for name, part in self._asdict().items()}


class Sample(NamedTuple):
    """Rows for the search, of some classes, with labels from 0 to the number of these classes."""

    data: Data
    likelihood: Any


def sample_rows(data: Data, plan: ClassPlan, count: int) -> Sample:
    """Draw about `count` rows, in proportion to the frequencies of the classes, for the search.

    The rows are on the host, unless a kernel of the user may need their library.

    Of many classes, the most frequent ones are used. A class keeps at least `ROWS_PER_CLASS` rows, if it has them.
    """
    labels = to_numpy(backend_of(data.y).gather(data.y))[:, 0].astype(np.int64)
    classes, counts = np.unique(labels, return_counts=True)
    chosen = np.sort(classes[np.argsort(-counts, kind="stable")[:MOST_CLASSES]])
    likelihood, rng = plan.likelihood, generator(plan.seed, 19)
    order = rng.permutation(len(labels))
    order = order[np.isin(labels[order], chosen)]
    key = np.empty(len(order))
    for label in chosen:
        at = np.flatnonzero(labels[order] == label)
        rank = np.arange(len(at))
        key[at] = np.where(rank < ROWS_PER_CLASS, -1.0, (rank + 0.5) / max(len(at), 1))
    rows = np.sort(order[np.argsort(key, kind="stable")[:count]])
    some = data.at(rows)
    some = some if plan.is_foreign else some.on_host()
    if likelihood.latents(1) == 1 or len(chosen) == len(classes) == likelihood.classes:
        return Sample(some, likelihood)
    y = np.searchsorted(chosen, labels[rows]).astype(np.float64)[:, None]
    return Sample(some._replace(y=asarray_like(y, some.X)), type(likelihood)(max(2, len(chosen))))


class ClassFit:
    """The stages of a fit. `result` returns the best model so far."""

    def __init__(self, plan: ClassPlan, data: Data, pieces: Pieces, watch: Watch) -> None:
        self.plan, self.data, self.pieces, self.watch = plan, data, pieces, watch
        self.candidates: list[Candidate] = watch.candidates
        self.several = plan.likelihood.latents(1) > 1
        self.chosen: Found | None = None
        self.unsettled = ""
        self.searched: list[Searched] = []
        """The trained kernels, for a fit that is interrupted."""
        self.settled: list[Settled] = []
        self.batch = Batch(data.X, data.y, weights=data.weights)
        self.how: dict[str, Any] = {"memory": plan.memory, "is_over": lambda: watch.is_done}

    def expect(self, *, exact: bool) -> None:
        """Tell the progress the stages that are expected, and what labels are predicted without the inputs."""
        N, latents = self.data.X.shape[0], self.plan.likelihood.latents(1)
        pieces = stages_of_labels(self._sizes(), N, latents, self._inducing_sizes(N)[-1], exact=exact)
        if not exact and self._has_many_rows:
            pieces.append(Piece("neighbours", sum(expected_seconds(N).values())))
        self.watch.expect(pieces, Score("label", self._baseline()))

    def _baseline(self) -> float:
        """Return the log density of a label, in nats, given only the frequencies of the labels."""
        labels, weights = self.data.targets_on_host()
        share = np.bincount(labels[:, 0].astype(np.int64), weights)
        share = share[share > 0.0] / share.sum()
        return float(share @ np.log(share))

    def run(self, *, exact: bool) -> None:
        """Run all stages, for a posterior of all rows or for inducing inputs."""
        with self.watch.stage("kernels", self._sizes()[0], 0.5):
            found = self._compare_kernels()
        found = [one for one in found if one.evidence >= found[0].evidence - CLOSE]
        rows = self._sizes()[1]
        if rows > self._sizes()[0] and not (exact and self.several):
            with self.watch.stage("further rows", rows, 0.7):
                found = [self._train_further(one, rows) for one in (found if exact else found[:1])]
        self._of_all_rows(found) if exact else self._with_inducing(found[0])

    # -- hyperparameters --------------------------------------------------------------------------------------------

    def _sizes(self) -> tuple[int, int]:
        """Return the numbers of rows for comparing kernels and for training them further."""
        N = self.data.X.shape[0]
        if not self.several:
            return min(N, SEARCH_ROWS), min(N, LATER_ROWS)
        classes = min(self.plan.likelihood.classes, MOST_CLASSES)
        first, last = (int((most / classes) ** (1.0 / 3.0)) for most in (SEARCH_OPERATIONS, LATER_OPERATIONS))
        return min(N, first), min(N, last)

    def _compare_kernels(self) -> list[Searched]:
        """Return the trained kernels, the best first."""
        sample = sample_rows(self.data, self.plan, self._sizes()[0])
        found: list[Searched] = []

        def train(start: Start, most: int) -> Searched:
            return self._train(start_model(start, *sample, self.plan), sample, most)

        for one in compared_kernels(self.plan.kernel, sample.data.X, self.plan.columns, train):
            found.append(one)
            if self._is_cut():
                break
        return sorted(found, key=lambda one: -one.evidence)

    def _train_further(self, one: Searched, rows: int) -> Searched:
        if one.start.tied or self._is_cut():
            return one
        return self._train(one, sample_rows(self.data, self.plan, rows), LATER_STEPS)

    def _is_cut(self) -> bool:
        """Return whether the time for a stage is up, and note that the limit made it shorter."""
        over = self.watch.stage_over
        self.watch.cut = self.watch.cut or (over and self.watch.was_cut)
        return over

    def _train(self, one: Searched, sample: Sample, most: int) -> Searched:
        """Train a kernel on a sample, or return the result from the checkpoint."""
        begun = start_model(one.start, *sample, self.plan).model
        rows = begun.X.shape[0]
        piece = f"{one.name} {rows} {most} from {checksum_of(one.model)}"
        done = self.pieces.find(piece, lambda stored: Trial.of(begun, one.name, stored))
        if done is None:
            new = train_kernel(one, *sample, self.plan, most, self._see)
            trial = Trial(new.model, Candidate(one.name, rows, new.evidence, math.nan))
            done = Trial.of(begun, one.name, self.pieces.store(piece, trial.pieces()))
        evidence = done.scores.evidence
        self.candidates.append(Candidate(one.name, rows, evidence / rows, math.nan))
        self._is_cut()
        self.searched.append(one._replace(model=done.model, evidence=evidence))
        return self.searched[-1]

    def _see(self, model: Any, bound: float) -> bool:
        """Show a model to the callbacks, and return whether the stage must end."""
        return self.watch(Progress(0, model, {"bound": np.asarray(bound)}, 0.0))  # type: ignore[dict-item]

    # -- all rows ---------------------------------------------------------------------------------------------------

    def _of_all_rows(self, found: list[Searched]) -> None:
        """Average posteriors of all rows, with weights by left-out rows."""
        data, likelihood = self.data, self.plan.likelihood
        with self.watch.stage("posterior", data.X.shape[0]):
            for one in found:
                model = model_of_rows(one.model.kernel, likelihood, data)
                like = self.settled[-1] if self.settled else None
                self.settled.append(settle(one.name, model, self.batch, like=like, **self.how))
                self._see(self.settled[-1].model, self.settled[-1].bound)
                if self.watch.is_done:
                    break
            self._average(self.settled)

    def _average(self, done: list[Settled]) -> None:
        """Keep the average of posteriors of all rows, with weights by left-out rows."""
        likelihood, y, memory = self.plan.likelihood, self.data.y, self.plan.memory
        weights = None if self.data.weights is None else self.data.targets_on_host()[1]
        logs = np.stack([densities(likelihood, x.mean, x.variance, y, memory=memory) for x in done], axis=1)
        rows, averages = y.shape[0], np.average(logs, axis=0, weights=weights)
        self.candidates += [
            Candidate(x.name, rows, math.nan, float(average)) for x, average in zip(done, averages, strict=True)
        ]
        shares = stack(logs, weights)
        kept = np.flatnonzero(shares >= LEAST_WEIGHT)
        done, shares = [done[i] for i in kept], shares[kept] / shares[kept].sum()
        mean, variance = combine(shares, [(x.mean, x.variance) for x in done])

        def score(spread: float) -> float:
            return float(np.average(densities(likelihood, mean, spread * variance, y, memory=memory), weights=weights))

        spread, density = best_spread(score, self.several)
        model: Any = done[0].model
        if len(done) > 1 or spread != 1.0:
            model = Ensemble(tuple(x.model for x in done), asarray_like(np.asarray(shares), self.data.X), spread)
        bound = float(shares @ np.asarray([x.bound for x in done]))
        kind = f"a posterior of all {self.data.X.shape[0]:,} rows"
        self.chosen = Found(model, ", ".join(x.name for x in done), kind, bound, self.data, density, held_out=False)
        if not all(x.is_settled for x in done):
            self.unsettled = "the sites have not reached their fixed point"

    # -- inducing inputs --------------------------------------------------------------------------------------------

    def _with_inducing(self, one: Searched) -> None:
        """Compute posteriors with inducing inputs, choose their number by held-out rows, and include these rows."""
        rows = subsample_rows(self.data, self.data.X.shape[0], self.plan.seed, hold_out=True)
        held = rows.held_out()
        others = rows.first(rows.total)
        with self.watch.stage("posterior", rows.total):
            best: tuple[float, Any, float] = (-math.inf, None, 1.0)
            for count in self._inducing_sizes(others.X.shape[0]):
                model = self._settle_rows(one, others, count)
                density, spread = self._held_density(model, held)
                if best[1] is None or density > best[0] + LEAST_GAIN:
                    best = density, model, spread
                if self.watch.is_done:
                    break
            density, model, spread = best
            if not self.watch.is_done:
                model = settle_inducing(model, self.batch, LAST_STEPS, **self.how)
            count = len(tree.leaves(model)["process.inducing.Z"])
            self._choose(model, one.name, f"a posterior with {count:,} inducing inputs on", density, spread)
        if self._takes_near_rows(one):
            with self.watch.stage("neighbours", rows.total):
                self._of_near_rows(one, rows, others, density)

    def _choose(self, model: Any, name: str, kind: str, density: float, spread: float) -> None:
        """Keep a model of all rows, whose average density of held-out rows is given, with a factor of its variances."""
        data = self.data
        bound = float(model.bound(data.X, data.y, weights=data.weights, memory=self.plan.memory)[0])
        if spread != 1.0:
            model = Ensemble((model,), asarray_like(np.ones(1), data.X), spread)
        kind = f"{kind} {data.X.shape[0]:,} rows"
        self.chosen = Found(model, name, kind, bound, data, density, held_out=True)
        self._see(model, bound)
        self.candidates.append(Candidate(name, data.X.shape[0], math.nan, math.nan, held_out=density))

    def _takes_near_rows(self, one: Searched) -> bool:
        """Whether a posterior given nearest rows is compared: for two classes, many rows, and free hyperparameters."""
        plain = self.plan.priors == "auto" and not self.plan.frozen and not self.plan.limits
        free = plain and not tree.nodes(one.model.kernel, White)
        return free and self._has_many_rows and not self.watch.is_done

    @property
    def _has_many_rows(self) -> bool:
        """Whether there are two classes, and enough rows for nearest rows, which are found quickly."""
        N, D = self.data.X.shape
        return not self.several and N > EXACT_ROWS and is_searched_quickly(N, D)

    def _of_near_rows(self, one: Searched, rows: Rows, others: Data, density: float) -> None:
        """Keep a posterior given nearest rows, if it predicts the held-out rows better than by `density`."""
        held, kernels = rows.held_out(), KERNELS if isinstance(self.plan.kernel, str) else {}
        start = near_model_of_rows(one.model.kernel, self.plan.likelihood, others)
        if why_not_in_turn(start):
            return
        batch = Batch(others.X, others.y, weights=others.weights)
        with ignore_repairs():
            found = train_near_rows(start, batch, kernels, self.plan.seed, self.watch, lambda: self.watch.stage_over)
        reached, spread = self._held_density(found, held)
        name = f"{base_name(found.kernel)}{split_name(one.name)[1]}" if kernels else one.name
        if not reached > density + LEAST_GAIN:
            self.candidates.append(Candidate(name, rows.total, math.nan, math.nan, held_out=reached))
            return
        whole = near_model_of_rows(found.kernel, self.plan.likelihood, self.data)
        found = include_rows(found, whole, rows.order, self.batch)
        self._choose(found, name, f"the {found.neighbours} nearest of", reached, spread)

    def _inducing_sizes(self, rows: int) -> list[int]:
        """Return the numbers of inducing inputs to compare: half of the largest affordable number, and this number."""
        others = OPERATIONS_OF_LABELS * self.plan.likelihood.latents(1) + self.data.X.shape[1]
        count = min(self.plan.most, rows)
        while count > min(LEAST, self.plan.most) and rows * count * (count + others) > OPERATIONS:
            count = max(min(LEAST, self.plan.most), count // 2)
        return [count // 2, count] if count > LEAST else [count]

    def _settle_rows(self, one: Searched, others: Data, count: int) -> SVGP:
        """Return a posterior with so many inducing inputs; its sites start with steps on some of the rows."""
        xp = backend_of(others.X).xp

        def first(most: int) -> Data:
            return Data(*(None if x is None else x[:most, ...] for x in others))

        model = sparse_model(one.model.kernel, self.plan.likelihood, first(count))
        few, N = min(FIRST_ROWS, others.X.shape[0]), others.X.shape[0]
        some = first(few)
        scale = N / few if others.weights is None else float(xp.sum(others.weights) / xp.sum(some.weights))
        model = settle_inducing(model, Batch(some.X, some.y, scale, weights=some.weights), FIRST_STEPS, **self.how)
        if few == N or self.watch.is_done:
            return model
        return settle_inducing(model, Batch(others.X, others.y, weights=others.weights), STEPS, **self.how)

    def _held_density(self, model: SVGP | TNNGP, held: Data) -> tuple[float, float]:
        """Return the average log density of held-out rows at the best factor of the variances, and this factor."""
        found = model.predictor().predict(held.X, memory=self.plan.memory)
        weights = None if held.weights is None else held.targets_on_host()[1]

        def score(spread: float) -> float:
            moments = found.mean, spread * found.variance
            logs = densities(self.plan.likelihood, *moments, held.y, memory=self.plan.memory)
            return float(np.average(logs, weights=weights))

        spread, density = best_spread(score, self.several)
        return density, spread

    # -- result -----------------------------------------------------------------------------------------------------

    def result(self) -> ClassificationResult:
        """Return the best result so far."""
        watch, data = self.watch, self.data
        if self.chosen is None:
            self._average(self.settled) if self.settled else self._keep_sample()
        best: Any = self.chosen
        baseline = self._baseline()
        gain = data.observations * (best.log_density - baseline)
        ending = watch.ending() or self.unsettled
        learned = gain > CHANCE or bool(watch.ending())  # a fit that ended early may still learn
        message = f"{best.kernel}, {best.kind}" + (f"; {ending}" if ending else "")
        if not learned:
            message = (
                "the inputs do not predict the labels: the probabilities of the best model are no better than the "
                "frequencies of the classes; check that inputs and labels belong together, or add rows or columns"
            )
        return ClassificationResult(
            best.model,
            **watch.record(),
            converged=not ending,
            message=message,
            candidates=self.candidates,
            kernel=best.kernel,
            bound=best.bound,
            baseline=baseline,
            log_density=best.log_density,
            holds_data=not isinstance(first_model(best.model), SVGP),
            ending=ending,
            learned=bool(learned),
        )

    def _keep_sample(self) -> None:
        """Keep a posterior of a sample after an early interrupt, with the best kernel so far."""
        data, likelihood = self.data, self.plan.likelihood
        order = generator(self.plan.seed, 20).permutation(data.X.shape[0])
        some = data.at(np.sort(order[:SEARCH_ROWS]))
        if self.searched:
            kernel = max(self.searched, key=lambda one: one.evidence / one.model.X.shape[0]).model.kernel
        else:
            kernel = TVGP.from_data(some.X, some.y, likelihood=likelihood, kernel=RBF()).kernel
        batch = Batch(some.X, some.y, weights=some.weights)
        model = model_of_rows(kernel, likelihood, some)
        found = settle("a sample", model, batch, memory=self.plan.memory, is_over=lambda: True, like=None)
        logs = densities(likelihood, found.mean, found.variance, some.y, memory=self.plan.memory)
        kind = f"a posterior of {some.X.shape[0]:,} rows"
        self.chosen = Found(
            found.model, "the best kernel so far", kind, found.bound, some, float(np.mean(logs)), held_out=False
        )
