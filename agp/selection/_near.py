"""Candidates for many rows: nearest rows, with or without inducing inputs, and the densities of held-out rows."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import asarray_like, to_numpy
from agp.chunking import column_spreads
from agp.errors import NotPositiveDefiniteError
from agp.inducing import Points
from agp.kernels import Kernel
from agp.models import NNGP, VIF
from agp.neighbours import TREE_COLUMNS, NeighbourSearch
from agp.predictors import Predictor
from agp.processes import near_search
from agp.random import generator
from agp.selection._climb import beside, ignore_repairs, parts_beside
from agp.selection._repeats import Merged, merge_repeats
from agp.selection._rows import Data, Rows, average, finite_average
from agp.selection._watch import Watch

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
    Z = model.X[order[:INDUCING]]
    names = ("X", "y", "weights", "noise", "squares", "mean_function", "priors", "neighbours", "seed")
    parts = {name: getattr(model, name) for name in names}
    return VIF(model.kernel, model.likelihood, Points(Z, Z_unit=column_spreads(model.X)), **parts)


class NearCandidates:
    """Models on the rows that are not held out, with repeated inputs merged, and their scores on the held-out rows.

    All rows are on the host.

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
        self.merged = merge_rows(rows.data.at(np.nonzero(kept)[0]).on_host())
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

    def densities(self, model: Any) -> Densities:
        """Return a model and the log densities of the held-out rows.

        Unless noise is known, the kernel and the noise are multiplied by the factor that gives the held-out errors the
        predicted spread. This changes no mean.
        """
        return self._densities(model, self.held)

    def _densities(self, model: Any, held: Data) -> Densities:
        try:
            with np.errstate(all="ignore"), ignore_repairs():
                latent = self._predictor(model).predict(held.X)
                noise = model.likelihood.noise_variance + (0.0 if held.noise is None else held.noise[:, None])
                variance = latent.variance + noise
                squares = (held.y - latent.mean) ** 2 / variance
        except NotPositiveDefiniteError:  # the precision is too low
            return Densities(model, np.full(len(held.y), -np.inf), -math.inf)
        factor = 1.0
        if held.noise is None and np.isfinite(squares).all():
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
        factors = kernel.inverse_scales(self.merged.X.shape[1])
        name = None if factors is None else to_numpy(factors).tobytes()
        if name is None or self._last is None or self._last[0] != name:
            self._last = name, near_search(kernel, self.merged.X)
        return self._last[1]

    def is_better(self, one: Densities, other: Densities) -> bool:
        """Whether the first is better than the second by more than the standard error, on the rows that both have."""
        if not math.isfinite(other.score):
            return math.isfinite(one.score)
        count = min(len(one.each), len(other.each))
        return exceeds(one.each[:count], other.each[:count])

    def some_densities(self, model: Any, count: int) -> Densities:
        """Return `densities` for some of the held-out rows."""
        return self._densities(model, self.held.at(np.arange(min(count, len(self.held.y)))))

    def quick_densities(self, hyper: Any) -> Densities:
        """Return the log densities of some held-out rows given few neighbours."""
        return self.some_densities(self.model(hyper, QUICK), QUICK_ROWS)


def exceeds(one: Any, other: Any) -> bool:
    """Whether the first numbers exceed the second on average, by more than the standard error of the difference.

    They do not if any number is not finite.
    """
    with np.errstate(invalid="ignore"):
        difference = one - other
        return float(np.mean(difference)) > float(np.std(difference)) / math.sqrt(len(difference))


def describe_near(model: Any) -> str:
    """Return a description of a model."""
    with_inducing = "" if isinstance(model, NNGP) else f"{model.inducing.count} inducing inputs and "
    return f"{with_inducing}the {model.neighbours} nearest of {model.X.shape[0]:,} rows"
