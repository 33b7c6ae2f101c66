"""Candidates for many rows: nearest rows, with or without inducing inputs, and their training."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from agp import tree
from agp.backend import asarray_like, to_numpy
from agp.batch import Batch
from agp.bounds import near_densities
from agp.chunking import cached_rows, row_ranges
from agp.inducing import Points
from agp.kernels import Kernel, Sum
from agp.models import NNGP, VIF
from agp.neighbours import TREE_COLUMNS, Merged, NeighbourSearch, merge_repeats
from agp.predictors import Predictor
from agp.processes import near_search
from agp.random import generator
from agp.scaling import column_spreads
from agp.selection._climb import Climber, beside, parts_beside, search_box
from agp.selection._plan import checksum_of
from agp.selection._precision import narrow, widen
from agp.selection._race import revive
from agp.selection._rows import Data, Rows, average
from agp.training import Ascent, Evidence, Progress, newton_names

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
QUICK, QUICK_ROWS, FEW, MANY, MANY_ROWS = 30, 500, 100, 200, 1000
"""The numbers of neighbours and of held-out rows for a first result, the numbers of neighbours to compare, and the number
of held-out rows for the larger one."""
LEAD = 0.1
"""If inducing inputs are behind by this many nats per row, they are not combined with neighbours."""
WITH_INDUCING, INDUCING, BOTH_ROWS = 50, 512, 10_000
"""The numbers of neighbours and of inducing inputs together, and the maximum number of rows for which they are tried."""
NARROW_NOISE = 1e-4
"""The smallest noise variance for training in float32, as a fraction of the variance of the function."""
ROUGHEST, ARRAYS = ("matern32", "matern52", "rbf"), 6
"""The kernels in the order in which they are preferred if their densities are alike, and the number of arrays that the
evaluation of a density holds."""
LEAST_HELD, LEAST_TRAINED = 300, 500
"""The smallest numbers of held-out rows and of training rows, whatever they take."""
SECONDS, SHARE, SPEED, ENTRY, SEARCHED = 5.0, 0.1, 1e10, 60.0, 1e5
"""The time for one evaluation of many densities, without and as a fraction of the time that is left, the assumed number
of operations per second, the operations for an entry of a covariance matrix beyond those for each column, and those for a
search in few columns."""
LOG_2PI = math.log(2.0 * math.pi)
SPREAD = 1.5
"""The largest factor by which the variances are corrected so that held-out rows have the right spread."""


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
    return NNGP(**parts, X=X, y=y, neighbours=k, **known, **settings)


def merged(data: Data) -> Merged:
    """Merge rows with equal inputs, on the host in the precision of the data."""
    arrays = (None if x is None else to_numpy(x) for x in data)
    return merge_repeats(*arrays)


def add_inducing_inputs(model: NNGP, order: Any) -> VIF:
    """Return a model with the same hyperparameters and rows, some of which are also inducing inputs."""
    Z = model.X[order[:INDUCING]]
    names = ("X", "y", "weights", "noise", "squares", "mean_function", "neighbours", "seed")
    parts = {name: getattr(model, name) for name in names}
    inducing = Points(Z, Z_unit=column_spreads(model.X))
    return VIF(model.kernel, model.likelihood, inducing, **parts)


class NearRows:
    """The rows on the host that are not held out, with repeated inputs merged, and the held-out rows.

    Parameters
    ----------
    rows
        The rows of the fit.
    climb
        The checkpoint and the clock of the fit.
    seed
        The seed for the choice of rows.
    """

    def __init__(self, rows: Rows, climb: Climber, seed: int) -> None:
        kept = np.ones(rows.total, dtype=bool)
        kept[rows.held] = False
        self.merged = merged(rows.data.at(np.nonzero(kept)[0]).on_host())
        self.order = generator(seed, 33).permutation(len(self.merged.X))
        self.climb, self.watch = climb, climb.watch
        held = rows.held_out().on_host()
        self.held = held.at(np.arange(self.affordable(MANY, len(held.y), LEAST_HELD)))
        self._calibrated: NNGP | None = None
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
        """Return a model of all rows, in their library, with the hyperparameters and settings of a model of this data."""
        found = near_model(model, merged(data.at()), model.neighbours)
        if not isinstance(model, NNGP):
            found = dataclasses.replace(add_inducing_inputs(found, self.order), inducing=model.inducing)
        return beside(found, data.X)

    # -- scores -----------------------------------------------------------------------------------------------------

    def densities(self, model: Any) -> Densities:
        """Return a model and the log densities of the held-out rows.

        Unless noise is known, the kernel and the noise are multiplied by the factor that gives the held-out errors the
        predicted spread. This changes no mean.
        """
        return self._densities(model, self.held)

    def _densities(self, model: Any, held: Data) -> Densities:
        with np.errstate(all="ignore"):
            latent = self._predictor(model).predict(held.X)
            noise = model.likelihood.noise_variance + (0.0 if held.noise is None else held.noise[:, None])
            variance = latent.variance + noise
            squares = (held.y - latent.mean) ** 2 / variance
        factor = 1.0
        if held.noise is None and np.isfinite(squares).all():
            ratio = float(average(np.mean(squares, axis=1), held.weights))
            factor = min(max(ratio, 1.0 / SPREAD), SPREAD)
            kernel = model.kernel.scale_by(asarray_like(np.asarray(factor), model.X))
            likelihood = tree.with_leaves(
                model.likelihood, {"noise_variance": model.likelihood.noise_variance * factor}
            )
            model = tree.replace(model, {"kernel": kernel, "likelihood": likelihood})
        each = -0.5 * np.sum(LOG_2PI + np.log(factor * variance) + squares / factor, axis=1)
        score = float(average(each, held.weights))
        return Densities(model, each, score if math.isfinite(score) else -math.inf)

    def _predictor(self, model: Any) -> Predictor:
        process = model._posterior_process().with_search(self._search(model.kernel))
        return Predictor((process,), (process.factorise()[0],), model.likelihood)

    def _search(self, kernel: Kernel) -> NeighbourSearch:
        """Return a search in the metric of the kernel; the last one is kept."""
        factors = kernel.inverse_scales(self.merged.X.shape[1])
        name = None if factors is None else to_numpy(factors).tobytes()
        if name is None or self._last is None or self._last[0] != name:
            self._last = name, near_search(kernel, self.merged.X)
        return self._last[1]

    def better(self, one: Densities, other: Densities) -> bool:
        """Whether the first is better than the second by more than the standard error, on the rows that both have."""
        count = min(len(one.each), len(other.each))
        return is_better(one.each[:count], other.each[:count])

    def quick_densities(self, hyper: Any) -> Densities:
        """Return the log densities of some held-out rows given few neighbours."""
        return self._densities(self.model(hyper, QUICK), self._some_held(QUICK_ROWS))

    def _some_held(self, count: int) -> Data:
        return self.held.at(np.arange(min(count, len(self.held.y))))

    def best_of_neighbours(self, hyper: Any, name: str, kernels: Mapping[str, type[Kernel]]) -> tuple[Densities, str]:
        """Return the best of two settings of the hyperparameters and of two numbers of neighbours, and its kernel.

        The settings are those of a model, calibrated, and those that densities of rows given their neighbours give, which
        are also trained for other kernels. More neighbours are used if they are better by more than the standard error.
        """
        best = self.densities(self.model(self.calibrate(hyper), FEW))
        if not self.watch.stage_over and (trained := self.train(hyper, name, kernels)) is not None:
            model, kernel = trained
            found = self.densities(self.model(model, FEW))
            best, name = (found, kernel) if found.score > best.score else (best, name)
        if self.watch.stage_over or len(self.order) <= FEW:
            return best, name
        more = self._densities(self.model(best.model, MANY), self._some_held(MANY_ROWS))
        if self.better(more, best):
            gain = float(np.mean(more.each - best.each[: len(more.each)]))
            best = more._replace(score=best.score + gain)
        return best, name

    # -- training ---------------------------------------------------------------------------------------------------

    def train(self, hyper: Any, name: str, kernels: Mapping[str, type[Kernel]]) -> tuple[NNGP, str] | None:
        """Maximise the densities of rows given their neighbours, on more and more rows; None if nothing was reached.

        Other kernels start from the hyperparameters of the first, and are compared by the densities of the first rows.
        Each number of rows starts from the result of the one before, and the neighbours of further rows are those in its
        metric. Also return the name of the kernel.
        """
        k = min(TRAINED, len(self.order) - 1)
        count, steps = LEVELS[0]
        used = self.affordable(k, min(count, len(self.order)), min(LEAST_TRAINED, len(self.order)))
        rows = self.order[:used]
        best, sets = self._first(self.model(hyper, k, among="others"), rows, k, steps)
        if best is None:
            return None
        plain, linear = name.removesuffix(" + linear"), name.endswith(" + linear")
        starts = {other: _with_kernel(best.model, kind) for other, kind in kernels.items() if other != plain}
        if starts:
            found = {other: self._advance(start, rows, sets, steps, trust=True) for other, start in starts.items()}
            plain, best = self._choose_kernel({plain: best, **found}, rows, sets)
        for count, steps in LEVELS[1:]:
            most = self.affordable(k, min(count, len(self.order)), used)
            if most <= used or self.watch.stage_over:
                break
            rows = self.order[:most]
            sets = self._extended(best.model, sets, rows, k)
            reached = self._advance(best.model, rows, sets, steps, trust=True)
            if reached is None:
                break
            best, used = reached, most
        return best.model, f"{plain} + linear" if linear else plain

    def _first(self, model: NNGP, rows: Any, k: int, steps: int) -> tuple[Any, Any]:
        """Train on the first rows from two starts; return the better result, or None, and its neighbours.

        In the second start, columns count again that the search on few rows had switched off.
        """
        found = []
        for start, more in ((model, 0), (revive(model), REVIVAL_STEPS)):
            sets = self._extended(start, None, rows, k)
            found.append((self._advance(start, rows, sets, steps + more), sets))
        return max(found, key=lambda one: -math.inf if one[0] is None else one[0].value)

    def _choose_kernel(self, found: dict[str, Any], rows: Any, sets: Any) -> tuple[str, Any]:
        """Return the roughest kernel whose densities are within the standard error of the best."""
        found = {name: one for name, one in found.items() if one is not None}
        each = {name: self._near_densities(one.model, rows, sets) for name, one in found.items()}
        best = max(each, key=lambda name: float(np.mean(each[name])))
        ranks = {name: ROUGHEST.index(name) for name in found if name in ROUGHEST}
        for name in sorted(ranks, key=lambda name: ranks[name]):
            if not is_better(each[best], each[name]):
                return name, found[name]
        return best, found[best]

    def _near_densities(self, model: NNGP, rows: Any, sets: Any) -> Any:
        """Return the log densities of rows given their neighbours."""
        size = cached_rows(sets.shape[1] ** 2 * ARRAYS, model.X)
        parts = [near_densities(model, model._near_data, rows[i:j], sets[i:j]) for i, j in row_ranges(len(rows), size)]
        return np.concatenate(parts)

    def calibrate(self, hyper: Any) -> NNGP:
        """Scale the kernel and the noise to the densities of rows given their neighbours."""
        if self._calibrated is not None:
            return self._calibrated
        k = min(CALIBRATED, len(self.order) - 1)
        most = min(CALIBRATED_ROWS, len(self.order))
        model, rows = (
            self.model(hyper, k, among="others"),
            self.order[: self.affordable(k, most, min(most, LEAST_TRAINED))],
        )
        sets = self._extended(model, None, rows, k)
        found = self._advance(model, rows, sets, CALIBRATION_STEPS, only_variances=True)
        self._calibrated = model if found is None else found.model
        return self._calibrated

    def _extended(self, model: NNGP, sets: Any, rows: Any, k: int) -> Any:
        """Return the neighbours of rows, the first of which may be known."""
        start = 0 if sets is None else len(sets)
        more = self._search(model.kernel).others(rows[start:], k)
        if model.weights is not None:
            more = np.concatenate([rows[start:, None], more], axis=1)
        return more if sets is None else np.concatenate([sets, more])

    def _advance(
        self, model: NNGP, rows: Any, sets: Any, steps: int, *, only_variances: bool = False, trust: bool = False
    ) -> "Advanced | None":
        """Take Newton steps, in float32 if there is enough noise; return None if the objective is not finite."""
        piece = f"neighbours {len(rows)} {steps} {'variances' if only_variances else ''} from {checksum_of(model)}"
        found = self.climb.pieces.find(piece, lambda done: Advanced.of(model, done))
        if found is not None:
            return found
        started = narrow(model) if _is_noisy(model) else model
        every = np.full((len(model.X), sets.shape[1]), -1)
        every[rows] = sets
        held = dataclasses.replace(started, sets=every)
        names = [name for name in newton_names(model) if not name.startswith("mean_function.")]
        if only_variances:
            names = [name for name in names if name.endswith("variance")]
        objective = Evidence(held, Batch(held.X[rows], held.y[rows], 1.0, rows), names)
        found = self._ascend(objective, steps, len(rows), trust=trust)
        if found is None:
            return None
        trained, value = found
        model = widen(model, started, trained) if started is not model else dataclasses.replace(trained, sets=None)
        pieces = {name: to_numpy(x) for name, x in tree.leaves(model, "parameter").items()}
        return Advanced.of(model, self.climb.pieces.store(piece, pieces | {"value": np.asarray(value)}))

    def _ascend(self, objective: Evidence, steps: int, rows: int, *, trust: bool) -> tuple[Any, float] | None:
        """Take steps from the model of the objective; return the model, and the last value that was computed.

        If `trust` is true, the last step is taken without an evaluation, unless its predicted gain is large.
        """
        coordinates = objective.coordinates
        start = coordinates.vector_of(coordinates.model)
        box = search_box(coordinates, coordinates.model.X, start, LEAST_NOISE)
        first = objective(np.clip(start, *box))
        if first is None:
            return None
        search = Ascent(objective, first, box, RADIUS)
        self._seen(first)
        for _ in range(steps - trust):
            if self.watch.is_done or search.hoped_gain < TOLERANCE * rows:
                break
            search.advance()
            self._seen(search.point)
        blind = trust and search.predicted < TRUSTED * rows
        return (coordinates.model_at(search.planned()) if blind else search.point.model), search.point.value

    def _seen(self, point: Any) -> None:
        self.watch(Progress(0, point.model, {"bound": np.asarray(point.value)}, 0.0))


class Advanced(NamedTuple):
    """The result of some steps."""

    model: NNGP
    value: float
    """The sum of the log densities after the last step that was evaluated."""

    @classmethod
    def of(cls, model: NNGP, pieces: dict[str, Any]) -> Self:
        """Restore the result from a checkpoint. Raise ValueError unless it fits the leaves of the model."""
        expected = {name: tuple(x.shape) for name, x in tree.leaves(model, "parameter").items()}
        if {name: np.shape(x) for name, x in pieces.items()} != expected | {"value": ()}:
            msg = "the file stores the hyperparameters of another model"
            raise ValueError(msg)
        new = {name: asarray_like(x, model.X) for name, x in pieces.items() if name != "value"}
        return cls(tree.with_leaves(model, new), float(pieces["value"]))


def _with_kernel(model: NNGP, kind: type[Kernel]) -> NNGP:
    """Return the model with another stationary kernel with the same parameters, which may be the first part of a sum."""
    kernel = model.kernel
    if isinstance(kernel, Sum):
        first, *rest = kernel.parts
        return tree.replace(model, {"kernel": Sum((kind(**tree.leaves(first)), *rest))})
    return tree.replace(model, {"kernel": kind(**tree.leaves(kernel))})


def _is_noisy(model: NNGP) -> bool:
    """Whether float32 suffices for the covariance matrices of neighbours."""
    size = float(np.mean(to_numpy(model.kernel.diag(model.X[:LEAST_TRAINED])[0])))
    return model.X.dtype == np.float64 and float(model.likelihood.noise_variance) > NARROW_NOISE * size


def is_better(one: Any, other: Any) -> bool:
    """Whether the first numbers exceed the second on average, by more than the standard error of the difference."""
    difference = one - other
    return float(np.mean(difference)) > float(np.std(difference)) / math.sqrt(len(difference))


def near_kind(model: Any) -> str:
    """Return a description of a model."""
    with_inducing = "" if isinstance(model, NNGP) else f"{model.inducing.count} inducing inputs and "
    return f"{with_inducing}the {model.neighbours} nearest of {model.X.shape[0]:,} rows"
