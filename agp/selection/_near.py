"""Candidates for many rows: nearest rows, with or without inducing inputs, their scores and their training."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import asarray_like, backend_of, to_numpy
from agp.bounds import Batch, near_densities
from agp.chunking import cached_rows, column_spreads, row_ranges
from agp.errors import NotPositiveDefiniteError, count_of
from agp.inducing import Points
from agp.kernels import Kernel
from agp.models import NNGP, VIF
from agp.neighbours import TREE_COLUMNS, NeighbourSearch
from agp.predictors import Predictor
from agp.priors import limits_of
from agp.processes import near_search
from agp.random import generator
from agp.selection._climb import Climber, beside, ignore_repairs, narrow, parts_beside, search_box, widen
from agp.selection._given import ROUGHEST, Data, Rows, average, checksum_of, finite_average, split_name, with_base
from agp.selection._race import revive
from agp.selection._repeats import Merged, merge_repeats
from agp.selection._trial import exceeds, pieces_of, restore
from agp.selection._watch import Watch
from agp.training import Ascent, Evidence, Progress, newton_names, why_not_newton

QUICK, QUICK_ROWS = 30, 500
"""The numbers of neighbours and of held-out rows for a first result."""
WITH_INDUCING, INDUCING = 50, 512
"""The numbers of neighbours and of inducing inputs together."""
LEAST_HELD = 300
"""The smallest number of held-out rows, whatever they take."""
SECONDS, SHARE, SPEED, ENTRY, SEARCHED = 5.0, 0.1, 1e10, 60.0, 1e5
"""The time for one evaluation of many densities, without and as a fraction of the time that is left, the assumed number
of operations per second, the operations for an entry of a covariance matrix beyond those for each column, and those for
a search in few columns."""
FEW, MANY = 100, 200
"""The numbers of neighbours to compare."""
LOG_2PI = math.log(2.0 * math.pi)
SPREAD = 1.5
"""The largest factor by which the variances are corrected so that held-out rows have the right spread."""
TRAINED, LEVELS = 60, ((2000, 2), (4000, 2), (12_000, 3))
"""The number of neighbours in training, and the numbers of rows whose densities are maximised, with those of steps."""
REVIVAL_STEPS = 3
"""The number of further steps for revived columns."""
TOLERANCE, TRUSTED, RADIUS = 0.002, 0.02, 1.0
"""The predicted gain at which training ends, and the largest one for which the last step is not evaluated, in nats per
row, and the first radius of the trust region."""
LEAST_NOISE = math.log(1e-12)
"""The smallest logarithm of the noise variance, as a fraction of the targets' variance."""
CALIBRATED, CALIBRATED_ROWS, CALIBRATION_STEPS = 50, 2000, 3
"""The numbers of neighbours, rows and steps for calibrating the variance of the kernel and the noise."""
NARROW_NOISE = 1e-4
"""The smallest noise variance for training in float32, as a fraction of the variance of the function."""
ARRAYS = 6
"""The number of arrays that the evaluation of a density holds."""
LEAST_TRAINED = 500
"""The smallest number of rows, whatever they take."""


class Densities(NamedTuple):
    """A model and the log densities of the held-out rows."""

    model: Any
    """The model, which holds the other rows."""
    each: Any
    """[H]."""
    score: float
    """Their average."""


def near_model(hyper: Any, data: Merged, k: int, **settings: Any) -> NNGP:
    """Return a model with the hyperparameters of another model, and at most k neighbours among these rows."""
    X, y, weights, noise, squares = data
    known = {"weights": weights, "noise": None if noise is None else noise[:, None], "squares": squares}
    parts = parts_beside(hyper, X)._asdict()
    return NNGP(**parts, X=X, y=y, neighbours=k, priors=hyper.priors, **known, **settings)


def merge_rows(data: Data) -> Merged:
    """Merge rows with equal inputs, on the host in the precision of the data."""
    arrays = (None if x is None else to_numpy(x) for x in data)
    return merge_repeats(*arrays)


def add_inducing_inputs(model: NNGP, order: Any) -> VIF:
    """Return a model with the same hyperparameters and rows, some of which are also inducing inputs."""
    Z = backend_of(model.X).gather(model.X, order[:INDUCING])
    names = ("X", "y", "weights", "noise", "squares", "mean_function", "priors", "neighbours", "seed")
    parts = {name: getattr(model, name) for name in names}
    return VIF(model.kernel, model.likelihood, Points(Z, Z_unit=column_spreads(model.X)), **parts)


class NearCandidates:
    """Models on the rows that are not held out, with repeated inputs merged, and their scores on the held-out rows.

    All rows are on the host or, in float64, on the accelerator of the data.

    Parameters
    ----------
    rows
        The rows of the fit.
    watch
        The clock of the fit.
    seed
        The seed for the choice of rows.
    """

    def __init__(self, rows: Rows, watch: Watch, seed: int) -> None:
        kept = np.ones(rows.total, dtype=bool)
        kept[rows.held] = False
        merged = merge_rows(rows.data.at(np.nonzero(kept)[0]).on_host())
        self.beside = _accelerator_of(rows.data.X, merged.X)
        self.merged = Merged(*(None if x is None else asarray_like(x, self.beside) for x in merged))
        self.order = generator(seed, 33).permutation(len(self.merged.X))
        self.watch = watch
        held = rows.held_out().on_host()
        self.held = held.at(np.arange(self.affordable(FEW, len(held.y), LEAST_HELD)))
        self._last: tuple[Any, NeighbourSearch] | None = None

    def affordable(self, k: int, most: int, least: int) -> int:
        """Return a number of rows, from `least` to `most`, whose densities given k neighbours take a few seconds."""
        N, D = self.merged.X.shape
        search = 2.0 * N * D if D > TREE_COLUMNS else SEARCHED
        operations = search + k * k * (2.0 * D + ENTRY) + k**3 / 3.0
        seconds = min(SECONDS, SHARE * self.watch.left())
        return int(min(most, max(least, seconds * SPEED / operations)))

    # -- models -----------------------------------------------------------------------------------------------------

    def model(self, hyper: Any, k: int, **settings: Any) -> NNGP:
        """Return a model with the hyperparameters of another model, and k neighbours."""
        return near_model(hyper, self.merged, k, **settings)

    def with_inducing(self, hyper: Any) -> VIF:
        """Return a model with the hyperparameters of another model, inducing inputs and neighbours."""
        return add_inducing_inputs(self.model(hyper, WITH_INDUCING), self.order)

    def of_all_rows(self, model: Any, data: Data) -> Any:
        """Return a model of all rows, in their library, like a model of the rows that are not held out."""
        found = near_model(model, merge_rows(data.at()), model.neighbours)
        if not isinstance(model, NNGP):
            inducing = beside(model.inducing, found.X)
            found = dataclasses.replace(add_inducing_inputs(found, self.order), inducing=inducing)
        return beside(found, data.X)

    # -- scores -----------------------------------------------------------------------------------------------------

    def densities(self, model: Any, count: int | None = None) -> Densities:
        """Return a model and the log densities of the held-out rows, or of so many of them.

        Unless noise is known or parameters are limited, the kernel and the noise are multiplied by the factor that
        gives the held-out errors the predicted spread. This changes no mean.
        """
        held = self.held if count is None else self.held.at(np.arange(min(count, len(self.held.y))))
        try:
            with np.errstate(all="ignore"), ignore_repairs():
                latent = self._predictor(model).predict(asarray_like(held.X, self.beside))
                noise = to_numpy(model.likelihood.noise_variance)
                variance = to_numpy(latent.variance) + noise + (0.0 if held.noise is None else held.noise[:, None])
                squares = (held.y - to_numpy(latent.mean)) ** 2 / variance
        except NotPositiveDefiniteError:  # the precision is too low
            return Densities(model, np.full(len(held.y), -np.inf), -math.inf)
        factor = 1.0
        if held.noise is None and np.isfinite(squares).all() and not limits_of(model):
            ratio = float(average(np.mean(squares, axis=1), held.weights))
            factor = min(max(ratio, 1.0 / SPREAD), SPREAD)
            kernel = model.kernel.scale_by(asarray_like(np.asarray(factor), model.X))
            likelihood = tree.with_leaves(
                model.likelihood, {"noise_variance": model.likelihood.noise_variance * factor}
            )
            model = tree.replace(model, {"kernel": kernel, "likelihood": likelihood})
        with np.errstate(all="ignore"):
            each = -0.5 * np.sum(LOG_2PI + np.log(factor * variance) + squares / factor, axis=1)
            return Densities(model, each, finite_average(each, held.weights))

    def _predictor(self, model: Any) -> Predictor:
        process = model._posterior_process().with_search(self.search(model.kernel))
        return Predictor((process,), (process.factorise()[0],), model.likelihood)

    def search(self, kernel: Kernel) -> NeighbourSearch:
        """Return a search in the metric of the kernel; the last one is kept."""
        X = self.merged.X
        factors = kernel.inverse_scales(X.shape[1])
        name = None if factors is None else (to_numpy(factors).tobytes(), kernel.metric_inputs(X) is X)
        if name is None or self._last is None or self._last[0] != name:
            self._last = name, near_search(kernel, self.merged.X)
        return self._last[1]

    def is_better(self, one: Densities, other: Densities) -> bool:
        """Whether the first is better than the second by more than the standard error, on the rows that both have."""
        if not math.isfinite(other.score):
            return math.isfinite(one.score)
        count = min(len(one.each), len(other.each))
        return exceeds(one.each[:count], other.each[:count])


def _accelerator_of(X: Any, host: Any) -> Any:
    """Return an array beside which to place rows: the host's, or one in float64 on the accelerator of X.

    Libraries that compile each shape anew would take longer there.
    """
    B = backend_of(X)
    if B.is_lazy or B.device_memory(X) is None or B.loops_on_device:
        return host
    return B.xp.zeros((), dtype=B.xp.float64, device=X.device)


def describe_near(model: Any) -> str:
    """Return a description of a model."""
    with_inducing = "" if isinstance(model, NNGP) else f"{count_of(model.inducing.count, 'inducing input')} and "
    return f"{with_inducing}the {model.neighbours} nearest of {model.X.shape[0]:,} rows"


# -- training on the densities of rows given their neighbours ---------------------------------------------------------


class Advanced(NamedTuple):
    """The result of some steps."""

    model: NNGP
    value: float
    """The sum of the log densities after the last step that was evaluated."""


class NearTraining:
    """Training of hyperparameters on the rows that are not held out.

    Parameters
    ----------
    near
        The rows.
    climb
        The checkpoint and the clock of the fit.
    """

    def __init__(self, near: NearCandidates, climb: Climber) -> None:
        self.near, self.climb = near, climb
        self._calibrated: NNGP | None = None

    def train(self, hyper: Any, name: str, kernels: Mapping[str, type[Kernel]]) -> tuple[NNGP, str] | None:
        """Maximise the densities of rows given their neighbours, on more and more rows; None if nothing was reached.

        Other kernels start from the hyperparameters of the first, and are compared by the densities of the first rows.
        Each number of rows starts from the result of the one before, and the neighbours of further rows are those in
        its metric. Also return the name of the kernel.
        """
        k = min(TRAINED, len(self.near.order) - 1)
        count, steps = LEVELS[0]
        used = self.near.affordable(k, min(count, len(self.near.order)), min(LEAST_TRAINED, len(self.near.order)))
        rows = self.near.order[:used]
        best, sets = self._first(self.near.model(hyper, k, among="others"), rows, k, steps)
        if best is None:
            return None
        plain, parts = split_name(name)
        others = {other: with_base(best.model.kernel, kind) for other, kind in kernels.items() if other != plain}
        starts = {other: tree.replace(best.model, {"kernel": kernel}) for other, kernel in others.items()}
        if starts:
            found = {other: self._advance(start, rows, sets, steps, trust=True) for other, start in starts.items()}
            plain, best = self._choose_kernel({plain: best, **found}, rows, sets)
        for count, steps in LEVELS[1:]:
            most = self.near.affordable(k, min(count, len(self.near.order)), used)
            if most <= used or self.climb.watch.stage_over:
                break
            rows = self.near.order[:most]
            sets = self._add_sets(best.model, sets, rows, k)
            reached = self._advance(best.model, rows, sets, steps, trust=True)
            if reached is None:
                break
            best, used = reached, most
        return best.model, f"{plain}{parts}"

    def _first(self, model: NNGP, rows: Any, k: int, steps: int) -> tuple[Any, Any]:
        """Train on the first rows from two starts; return the better result, or None, and its neighbours.

        In the second start, columns count again that the search on few rows had switched off.
        """
        found = []
        for start, more in ((model, 0), (revive(model), REVIVAL_STEPS)):
            sets = self._add_sets(start, None, rows, k)
            found.append((self._advance(start, rows, sets, steps + more), sets))
        return max(found, key=lambda one: -math.inf if one[0] is None else one[0].value)

    def _choose_kernel(self, found: dict[str, Any], rows: Any, sets: Any) -> tuple[str, Any]:
        """Return the roughest kernel whose densities are within the standard error of the best."""
        found = {name: one for name, one in found.items() if one is not None}
        each = {name: self._near_densities(one.model, rows, sets) for name, one in found.items()}
        best = max(each, key=lambda name: finite_average(each[name], None))
        ranks = {name: ROUGHEST.index(name) for name in found if name in ROUGHEST}
        for name in sorted(ranks, key=lambda name: ranks[name]):
            if not exceeds(each[best], each[name]):
                return name, found[name]
        return best, found[best]

    def _near_densities(self, model: NNGP, rows: Any, sets: Any) -> Any:
        """Return the log densities of rows given their neighbours, or -inf if a factorisation failed."""
        size, data = cached_rows(sets.shape[1] ** 2 * ARRAYS, model.X), model._near_data
        try:
            with ignore_repairs():
                near = self._numbers_beside(rows, sets)
                parts = [
                    to_numpy(near_densities(model, data, *(x[i:j, ...] for x in near)))
                    for i, j in row_ranges(len(rows), size)
                ]
        except NotPositiveDefiniteError:
            return np.full(len(rows), -np.inf)
        return np.concatenate(parts)

    def _numbers_beside(self, *numbers: Any) -> tuple[Any, ...]:
        """Return numbers of rows beside the rows."""
        B = backend_of(self.near.beside)
        return tuple(B.from_numpy(x, device=B.device_name(self.near.beside) or None) for x in numbers)

    def calibrate(self, hyper: Any) -> NNGP:
        """Scale the kernel and the noise to the densities of rows given their neighbours."""
        if self._calibrated is not None:
            return self._calibrated
        k = min(CALIBRATED, len(self.near.order) - 1)
        most = min(CALIBRATED_ROWS, len(self.near.order))
        model = self.near.model(hyper, k, among="others")
        rows = self.near.order[: self.near.affordable(k, most, min(most, LEAST_TRAINED))]
        sets = self._add_sets(model, None, rows, k)
        found = self._advance(model, rows, sets, CALIBRATION_STEPS, only_variances=True)
        self._calibrated = model if found is None else found.model
        return self._calibrated

    def _add_sets(self, model: NNGP, sets: Any, rows: Any, k: int) -> Any:
        """Return the neighbours of rows, the first of which may be known."""
        start = 0 if sets is None else len(sets)
        (new,) = self._numbers_beside(rows[start:])
        more = to_numpy(self.near.search(model.kernel).others(new, k))
        if model.weights is not None:
            more = np.concatenate([rows[start:, None], more], axis=1)
        return more if sets is None else np.concatenate([sets, more])

    def _advance(
        self, model: NNGP, rows: Any, sets: Any, steps: int, *, only_variances: bool = False, trust: bool = False
    ) -> Advanced | None:
        """Take Newton steps, in float32 if there is enough noise.

        Return None if the objective is not finite, if there is no other row, or if the kernel or the mean function does
        not support the method.
        """
        if why_not_newton(model) or not sets.shape[1]:
            return None
        own, sets = self._with_neighbours(model, rows, sets)
        kinds = " ".join(type(part).__name__ for part in tree.nodes(model.kernel, Kernel).values())
        which = f"{kinds} variances" if only_variances else kinds  # other kernels may have the same parameters
        piece = f"neighbours {which} {len(rows)} {steps} from {checksum_of(own)}"
        found = self.climb.pieces.find(piece, lambda done: restore(model, done, "value"))
        if found is not None:
            return Advanced(*found)
        names = [name for name in newton_names(model) if not name.startswith("mean_function.")]
        if only_variances:
            names = [name for name in names if name.endswith("variance")]
        reached = (
            self._ascend_narrowly(own, sets, names, steps, trust=trust)
            if _is_noisy(model) and not limits_of(model)
            else None
        )
        reached = self._ascend(own, sets, names, steps, trust=trust) if reached is None else reached
        if reached is None:
            return None
        trained, value = reached
        return Advanced(*restore(model, self.climb.pieces.store(piece, pieces_of(trained, value=value)), "value"))

    def _with_neighbours(self, model: NNGP, rows: Any, sets: Any) -> tuple[NNGP, Any]:
        """Return a model that holds only these rows, which come first, and their neighbours, with their new numbers."""
        N = model.X.shape[0]
        others = np.zeros(N, dtype=bool)
        others[sets] = True
        others[rows] = False
        numbers = np.concatenate([rows, np.nonzero(others)[0]])
        places = np.empty(N, dtype=np.int64)
        places[numbers] = np.arange(len(numbers))
        held = Merged(*(None if x is None else backend_of(x).gather(x, numbers) for x in self.near.merged))
        return near_model(model, held, model.neighbours, among=model.among), places[sets]

    def _ascend_narrowly(self, model: NNGP, *given: Any, trust: bool) -> tuple[Any, float] | None:
        """Take steps in float32; return the model in float64."""
        thin = narrow(model)
        found = self._ascend(thin, *given, trust=trust)
        return None if found is None else (widen(model, thin, found[0]), found[1])

    def _ascend(self, model: NNGP, sets: Any, names: list[str], steps: int, *, trust: bool) -> tuple[Any, float] | None:
        """Take steps from a model; return the model, and the last value that was computed, or None.

        The evidence is that of the first rows, whose neighbours are given. If `trust` is true, the last step is
        taken without an evaluation, unless its predicted gain is large.
        """
        count = len(sets)
        sets, numbers = self._numbers_beside(sets, np.arange(count))
        held = dataclasses.replace(model, sets=sets)
        objective = Evidence(held, Batch(held.X[:count, :], held.y[:count, :], 1.0, numbers), names)
        coordinates = objective.coordinates
        start = coordinates.vector_of(held)
        box = search_box(coordinates, held.X, start, LEAST_NOISE)
        with ignore_repairs():
            first = objective(np.clip(start, *box))
            if first is None:
                return None
            search = Ascent(objective, first, box, RADIUS)
            self._note(first)
            for _ in range(steps - trust):
                if self.climb.watch.is_done or search.hoped_gain < TOLERANCE * count:
                    break
                search.advance()
                self._note(search.point)
        blind = trust and search.predicted < TRUSTED * count
        reached = coordinates.model_at(search.next_vector()) if blind else search.point.model
        return reached, search.point.value

    def _note(self, point: Any) -> None:
        self.climb.watch(Progress(0, point.model, {"bound": np.asarray(point.value)}, 0.0))


def _is_noisy(model: NNGP) -> bool:
    """Whether float32 suffices for the covariance matrices of neighbours."""
    size = float(np.mean(to_numpy(model.kernel.diag(model.X[:LEAST_TRAINED])[0])))
    return (
        backend_of(model.X).dtype_name(model.X) == "float64"
        and float(model.likelihood.noise_variance) > NARROW_NOISE * size
    )
