"""Candidates for many rows: nearest rows, with or without inducing inputs, and their training."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import asarray_like
from agp.batch import Batch
from agp.inducing import Points
from agp.models import NNGP, VIF
from agp.neighbours import merge_repeats
from agp.processes import near_search
from agp.scaling import column_spreads
from agp.selection._climb import parts_beside, search_box
from agp.selection._rows import Data, Rows, average
from agp.selection._watch import Watch
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
FEW, MANY = 100, 200
"""The numbers of neighbours that are compared."""
WITH_INDUCING, INDUCING, INDUCING_ROWS = 50, 512, 6000
"""The numbers of neighbours and of inducing inputs together, and of the training rows from which a comparison computes
their posterior."""
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


class NearRows:
    """The rows on the host that are not held out, with repeated inputs merged, and the held-out rows."""

    def __init__(self, rows: Rows, on_host: Callable[[Data], Data], watch: Watch) -> None:
        kept = np.ones(rows.total, dtype=bool)
        kept[rows.held] = False
        data, self.held = on_host(rows.data.at(np.nonzero(kept)[0])), on_host(rows.held_out())
        self.merged = merge_repeats(data.X, data.y, data.weights, data.noise)
        self.watch = watch
        self.order = np.random.default_rng(0).permutation(len(self.merged.X))

    # -- models -----------------------------------------------------------------------------------------------------

    def model(self, hyper: Any, k: int, **settings: Any) -> NNGP:
        """Return a model with the hyperparameters of another model, and k neighbours."""
        X, y, weights, noise, squares = self.merged
        known = {"weights": weights, "noise": None if noise is None else noise[:, None], "squares": squares}
        parts = parts_beside(hyper, X)._asdict()
        return NNGP(**parts, X=X, y=y, neighbours=k, priors=hyper.priors, **known, **settings)

    def with_inducing(self, hyper: Any) -> VIF:
        """Return a model with the hyperparameters of another model, inducing inputs and neighbours."""
        model = self.model(hyper, WITH_INDUCING)
        Z = model.X[self.order[:INDUCING]]
        names = ("X", "y", "weights", "noise", "squares", "mean_function", "priors", "neighbours")
        parts = {name: getattr(model, name) for name in names}
        inducing = Points(Z, Z_unit=column_spreads(model.X))
        return VIF(model.kernel, model.likelihood, inducing, posterior_rows=INDUCING_ROWS, **parts)

    # -- scores -----------------------------------------------------------------------------------------------------

    def densities(self, model: Any) -> Densities:
        """Compute the log densities of the held-out rows.

        Unless noise is known, the kernel and the noise are multiplied by the factor that gives the held-out errors the
        predicted spread. This changes no mean.
        """
        held = self.held
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

    # -- training ---------------------------------------------------------------------------------------------------

    def train(self, hyper: Any, seconds: float) -> NNGP | None:
        """Maximise the densities of rows given their neighbours, on more and more rows; None if nothing was reached.

        Each number of rows starts from the result of the one before, and its neighbours are those in the metric at that
        time. `seconds` is a limit.
        """
        began, total = time.perf_counter(), len(self.order)
        k = min(TRAINED, total - 1)
        model, sets, spent = self.model(hyper, k, among="others"), None, 0.0
        for count, steps in LEVELS:
            used = 0 if sets is None else len(sets)
            if used and (used >= total or self.watch.is_done or spent * count / used > seconds - spent):
                break
            rows = self.order[:count]
            sets = self._extended(model, sets, rows, k)
            reached = self._advance(model, rows, sets, steps, trust=count > LEVELS[0][0])
            if reached is None:
                return model if used else None
            model, spent = reached, time.perf_counter() - began
        return model

    def calibrate(self, hyper: Any) -> NNGP:
        """Scale the kernel and the noise to the densities of rows given their neighbours."""
        k = min(CALIBRATED, len(self.order) - 1)
        model, rows = self.model(hyper, k, among="others"), self.order[:CALIBRATED_ROWS]
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
        return dataclasses.replace(found, sets=None)

    def _seen(self, point: Any) -> None:
        self.watch(Progress(0, point.model, {"bound": np.asarray(point.value)}, 0.0))
