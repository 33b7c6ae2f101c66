"""Candidates for many rows: nearest rows, with or without inducing inputs, and their training."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import asarray_like, to_numpy
from agp.batch import Batch
from agp.inducing import Points
from agp.models import NNGP, VIF
from agp.neighbours import Merged, merge_repeats
from agp.processes import near_search
from agp.random import generator
from agp.scaling import column_spreads
from agp.selection._climb import Climber, beside, parts_beside, search_box
from agp.selection._plan import checksum_of
from agp.selection._rows import Data, Rows, average
from agp.training import Ascent, Evidence, Progress, newton_names

TRAINED, LEVELS = 60, ((2000, 2), (4000, 1), (12_000, 2))
"""The number of neighbours in training, and the numbers of rows whose densities are maximised, with those of steps."""
TOLERANCE, TRUSTED, RADIUS = 0.002, 0.02, 1.0
"""The predicted gain at which training ends, and the largest one for which the last step is not evaluated, in nats per
row, and the first radius of the trust region."""
LEAST_NOISE = math.log(1e-12)
"""The smallest logarithm of the noise variance, as a fraction of the targets' variance."""
CALIBRATED, CALIBRATED_ROWS, CALIBRATION_STEPS = 50, 2000, 4
"""The numbers of neighbours, rows and steps for calibrating the variance of the kernel and the noise."""
QUICK, QUICK_ROWS, FEW, MANY = 30, 1000, 100, 200
"""The numbers of neighbours and of held-out rows for comparing kernels, and the numbers of neighbours to compare."""
LEAD = 0.1
"""If inducing inputs are behind by this many nats per row, they are not combined with neighbours."""
WITH_INDUCING, INDUCING, INDUCING_ROWS = 50, 512, 6000
"""The numbers of neighbours and of inducing inputs together, and of the training rows from which a comparison computes
their posterior."""
SECONDS, SHARE, SPEED, ENTRY = 5.0, 0.1, 1e10, 60.0
"""The time for one evaluation of many densities, without and as a fraction of the time that is left, the assumed number
of operations per second, and the operations for an entry of a covariance matrix beyond those for each column."""
LEAST_HELD, LEAST_TRAINED = 300, 500
"""The smallest numbers of held-out rows and of training rows, whatever they take."""
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
    return VIF(model.kernel, model.likelihood, inducing, posterior_rows=INDUCING_ROWS, **parts)


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

    def affordable(self, k: int, most: int, least: int) -> int:
        """Return a number of rows, from `least` to `most`, whose densities given k neighbours take a few seconds."""
        N, D = self.merged.X.shape
        operations = 2.0 * N * D + k * k * (2.0 * D + ENTRY) + k**3 / 3.0
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
            latent = model.predictor().predict(held.X)
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

    def better(self, one: Densities, other: Densities) -> bool:
        """Whether the first is better than the second by more than the standard error of the difference."""
        difference = one.each - other.each
        error = float(np.std(difference)) / math.sqrt(len(difference))
        return one.score - other.score > error

    def quick_score(self, hyper: Any) -> float:
        """Return the average log density of some held-out rows given few neighbours."""
        held = self.held.at(np.arange(min(QUICK_ROWS, len(self.held.y))))
        return self._densities(self.model(hyper, QUICK), held).score

    def best_of_neighbours(self, hyper: Any) -> Densities:
        """Return the best of two settings of the hyperparameters and of two numbers of neighbours.

        The settings are those of a model, calibrated, and those that densities of rows given their neighbours give. More
        neighbours are used if they are better by more than the standard error.
        """
        found = [self.densities(self.model(self.calibrate(hyper), FEW))]
        if not self.watch.stage_over and (trained := self.train(hyper)) is not None:
            found.append(self.densities(self.model(trained, FEW)))
        best = max(found, key=lambda one: one.score)
        if self.watch.stage_over or len(self.order) <= FEW:
            return best
        more = self.densities(self.model(best.model, MANY))
        return more if self.better(more, best) else best

    def is_far_ahead(self, best: Densities, passed: Any) -> bool:
        """Whether inducing inputs predict the held-out rows so much worse that they cannot help."""
        return passed is not None and best.score - passed.trial.score > LEAD

    # -- training ---------------------------------------------------------------------------------------------------

    def train(self, hyper: Any) -> NNGP | None:
        """Maximise the densities of rows given their neighbours, on more and more rows; None if nothing was reached.

        Each number of rows starts from the result of the one before, and the neighbours of further rows are those in its
        metric.
        """
        k = min(TRAINED, len(self.order) - 1)
        model, sets, used = self.model(hyper, k, among="others"), None, 0
        for count, steps in LEVELS:
            most = self.affordable(k, min(count, len(self.order)), min(LEAST_TRAINED, len(self.order)))
            if most <= used or (used and self.watch.stage_over):
                break
            rows = self.order[:most]
            sets = self._extended(model, sets, rows, k)
            reached = self._advance(model, rows, sets, steps, trust=used > 0)
            if reached is None:
                break
            model, used = reached, most
        return model if used else None

    def calibrate(self, hyper: Any) -> NNGP:
        """Scale the kernel and the noise to the densities of rows given their neighbours."""
        k = min(CALIBRATED, len(self.order) - 1)
        most = min(CALIBRATED_ROWS, len(self.order))
        model, rows = (
            self.model(hyper, k, among="others"),
            self.order[: self.affordable(k, most, min(most, LEAST_TRAINED))],
        )
        sets = self._extended(model, None, rows, k)
        found = self._advance(model, rows, sets, CALIBRATION_STEPS, only_variances=True)
        return model if found is None else found

    def _extended(self, model: NNGP, sets: Any, rows: Any, k: int) -> Any:
        """Return the neighbours of rows, the first of which may be known."""
        start = 0 if sets is None else len(sets)
        more = near_search(model.kernel, model.X).others(rows[start:], k)
        if model.weights is not None:
            more = np.concatenate([rows[start:, None], more], axis=1)
        return more if sets is None else np.concatenate([sets, more])

    def _advance(
        self, model: NNGP, rows: Any, sets: Any, steps: int, *, only_variances: bool = False, trust: bool = False
    ) -> NNGP | None:
        """Take Newton steps; return None if the objective is not finite at the start.

        If `trust` is true, a last step is taken without an evaluation, unless its predicted gain is large.
        """
        piece = f"neighbours {len(rows)} {steps} {'variances' if only_variances else ''} from {checksum_of(model)}"
        found = self.climb.pieces.find(piece, lambda done: _with_pieces(model, done))
        if found is not None:
            return found
        every = np.full((len(model.X), sets.shape[1]), -1)
        every[rows] = sets
        model = dataclasses.replace(model, sets=every)
        batch = Batch(model.X[rows], model.y[rows], 1.0, rows)
        names = [name for name in newton_names(model) if not name.startswith("mean_function.")]
        if only_variances:
            names = [name for name in names if name.endswith("variance")]
        objective = Evidence(model, batch, names)
        coordinates = objective.coordinates
        start = coordinates.vector_of(model)
        box = search_box(coordinates, model.X, start, LEAST_NOISE)
        first = objective(np.clip(start, *box))
        if first is None:
            return None
        search = Ascent(objective, first, box, RADIUS)
        self._seen(first)
        for _ in range(steps):
            if self.watch.is_done or search.hoped_gain < TOLERANCE * len(rows):
                break
            search.advance()
            self._seen(search.point)
        found = search.point.model
        if trust and search.hoped_gain < TRUSTED * len(rows):
            found = coordinates.model_at(search.planned())
        kept = {name: to_numpy(x) for name, x in tree.leaves(found, "parameter").items()}
        return _with_pieces(dataclasses.replace(model, sets=None), self.climb.pieces.store(piece, kept))

    def _seen(self, point: Any) -> None:
        self.watch(Progress(0, point.model, {"bound": np.asarray(point.value)}, 0.0))


def _with_pieces(model: NNGP, pieces: dict[str, Any]) -> NNGP:
    """Restore the hyperparameters from a checkpoint. Raise ValueError unless they fit the leaves of the model."""
    expected = {name: tuple(x.shape) for name, x in tree.leaves(model, "parameter").items()}
    if {name: np.shape(x) for name, x in pieces.items()} != expected:
        msg = "the file stores the hyperparameters of another model"
        raise ValueError(msg)
    return tree.with_leaves(model, {name: asarray_like(x, model.X) for name, x in pieces.items()})


def near_kind(model: Any) -> str:
    """Return a description of a model."""
    with_inducing = "" if isinstance(model, NNGP) else f"{model.inducing.count} inducing inputs and "
    return f"{with_inducing}the {model.neighbours} nearest of {model.X.shape[0]:,} rows"
