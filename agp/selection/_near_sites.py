"""Nearest-neighbour models with sites: the choice of kernels, their starting values, and the number of neighbours."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, to_numpy
from agp.bounds import Batch
from agp.kernels import Kernel
from agp.models import TNNGP
from agp.neighbours import TREE_COLUMNS
from agp.random import generator
from agp.repairs import collect_reports
from agp.selection._given import KERNELS, ROUGHEST, with_base
from agp.selection._trial import exceeds
from agp.training import (
    FitResult,
    Piece,
    Progress,
    Turns,
    fit,
    settle_sites,
    spread_sites,
    take_rows,
    track,
    why_not_in_turn,
    with_few_in_sets,
)

MOST_DISTANCES = 1e10
"""The largest number of rows squared, times the columns, if there are too many columns for a tree."""
START_SHARE, LEAST_SECONDS = 0.3, 1.0
"""The largest fraction of a time limit for the choice of the start, and the shortest time for training."""
START_SECONDS, SECONDS = 2e-3, 5e-4
"""The usual seconds for a row in the choice of the start, and in training."""
START_ROWS, START_ROUNDS = 4000, 2
"""The largest number of rows for comparing starts, and the number of rounds from each."""
MOST_ROUNDS, TOLERANCE = 4, 2e-3
"""The maximum number of rounds, and the gain in nats per row at which they end, if the model is one of several."""
ALL_STEPS = 10
"""The number of site steps after further rows are included."""
SHORT = 0.3
"""The lengthscales of the second start, in units of the spread of a column times the square root of their number."""
NUMBERS, JUDGED_ROWS = (100, 200), 1000
"""The larger numbers of neighbours to compare, and the number of left-out rows by which they are compared."""


def is_searched_quickly(rows: int, columns: int) -> bool:
    """Whether the nearest other rows of all rows are found in less time than W-SVGP takes, as far as sizes tell."""
    return columns <= TREE_COLUMNS or rows * rows * columns <= MOST_DISTANCES


def expected_seconds(rows: int) -> dict[str, float]:
    """Return the usual seconds of the choice of the start, and of training, for the progress."""
    return {"kernels": START_SECONDS * min(rows, START_ROWS), "training": SECONDS * rows}


def fit_near_rows(
    model: TNNGP,
    X: Array,
    y: Array,
    /,
    *,
    kernels: Mapping[str, type[Kernel]] = KERNELS,
    seed: int = 0,
    **settings: Any,
) -> FitResult[Any]:
    """Choose the kernel and its starting values on some of the rows, train with `agp.fit`, and choose neighbours.

    Parameters
    ----------
    model
        An untrained model.
    X, y
        The data with which it was built.
    kernels
        The base kernels to compare, by name; if there are none, the model's kernel and its values are kept.
    seed, settings
        See `agp.fit`.
    """
    began, limit = time.monotonic(), settings.get("max_seconds")
    known: dict[str, Any] = {name: settings.get(name) for name in ("weights", "offset", "noise")}
    batch = model._batch(X, y, **known)
    pieces = [Piece(name, cost) for name, cost in expected_seconds(model.X.shape[0]).items()]
    with track(settings.pop("progress", False)) as tracker, tracker.inside(pieces, max_seconds=limit):
        model = with_few_in_sets(model)
        if kernels and not why_not_in_turn(model):
            tracker.begin("kernels")
            over = math.inf if limit is None else began + START_SHARE * limit
            model = choose_start(model, batch, kernels, seed, lambda: time.monotonic() > over)
        if limit is not None:
            settings["max_seconds"] = max(limit - (time.monotonic() - began), LEAST_SECONDS)
        tracker.begin("training")
        found = fit(model, X, y, seed=seed, **settings, progress=tracker)  # type: ignore[arg-type]
        late = limit is not None and (not found.converged or time.monotonic() - began > limit)
        model = found.model if late else choose_neighbours(found.model, batch, seed)
        tracker.conclude(found.message)
    return dataclasses.replace(found, model=model)


def train_near_rows(
    model: TNNGP,
    batch: Batch,
    kernels: Mapping[str, type[Kernel]],
    seed: int,
    watch: Callable[[Progress], bool],
    is_over: Callable[[], bool],
) -> TNNGP:
    """Return the model with a chosen kernel, trained hyperparameters, sites for few neighbours, and chosen neighbours.

    `watch` is called after each round, and returns whether to end, which `is_over` also says.
    """
    model = choose_start(model, batch, kernels, seed, is_over) if kernels else with_few_in_sets(model)
    if not is_over():
        model = Turns(MOST_ROUNDS, watch).train(model, batch, TOLERANCE, seed)
    return model if is_over() else choose_neighbours(model, batch, seed)


def include_rows(model: TNNGP, whole: TNNGP, rows: Any, batch: Batch) -> TNNGP:
    """Return a model of all rows, like a trained model of some rows, whose numbers are given.

    `whole` is an untrained model of all rows, and `batch` contains them.
    """
    found = with_few_in_sets(spread_sites(whole, model, rows, batch))
    return dataclasses.replace(settle_sites(found, batch, ALL_STEPS)[0], neighbours=model.neighbours)


def choose_start(
    model: TNNGP,
    batch: Batch,
    kernels: Mapping[str, type[Kernel]],
    seed: int,
    is_over: Callable[[], bool] = lambda: False,
) -> TNNGP:
    """Return the model with the kernel and the values that predict some of the rows best from the others, and sites.

    In a second start, all columns count alike. Of kernels that are alike, the roughest is taken.
    """
    order = generator(seed, 39).permutation(model.X.shape[0])
    rows = np.sort(order[:START_ROWS])
    some, few = take_rows(model, batch, rows)
    starts = (some, _with_short_scales(some))
    tried = []
    for start in starts:
        tried.append(_after_rounds(start, few))
        if is_over():
            break
    best = max(tried, key=lambda pair: float(np.mean(pair[1])))
    found = {"": best}
    for name, kind in kernels.items():
        kernel = with_base(best[0].kernel, kind)
        if is_over():
            break
        if type(kernel) is not type(best[0].kernel) or str(kernel) != str(best[0].kernel):
            found[name] = _after_rounds(dataclasses.replace(best[0], kernel=kernel), few, 1)
    with collect_reports():
        return with_few_in_sets(spread_sites(model, _roughest(found), rows, batch))


def _with_short_scales(model: TNNGP) -> TNNGP:
    """Return the model with the same short lengthscale, in units of the spreads, for all columns."""
    size = SHORT * model.X.shape[1] ** 0.5
    leaves = [leaf for leaf in tree.describe(model) if leaf.name.endswith("lengthscale") and leaf.unit is not None]
    return tree.with_leaves(model, {leaf.name: leaf.value * 0.0 + size * leaf.unit for leaf in leaves})


def _after_rounds(start: TNNGP, batch: Batch, rounds: int = START_ROUNDS) -> tuple[TNNGP, Any]:
    """Return a model after some rounds, and the log densities of its rows given the others."""
    with collect_reports():
        found = Turns(rounds).run(start, batch, rounds, 0.0)
        return found, _densities(found, batch)


def _densities(model: TNNGP, batch: Batch) -> Any:
    """Return the log densities of the rows of a model given the others, times their shares of the weights."""
    each = to_numpy(model._left_out_densities(batch, None)).astype(np.float64)
    each = np.where(np.isfinite(each), each, -math.inf)
    if batch.weights is None:
        return each
    weights = to_numpy(batch.weights)
    return each * (weights / np.mean(weights))


def _roughest(found: Mapping[str, tuple[TNNGP, Any]]) -> TNNGP:
    """Return the roughest model whose densities are as good as those of the best, within the standard error."""
    best = max(found.values(), key=lambda pair: float(np.mean(pair[1])))
    for kind in (KERNELS[name] for name in ROUGHEST):
        for model, each in found.values():
            if str(with_base(model.kernel, kind)) == str(model.kernel) and not exceeds(best[1], each):
                return model
    return best[0]


def choose_neighbours(model: TNNGP, batch: Batch, seed: int = 0) -> TNNGP:
    """Return the model with more neighbours in predictions, if some left-out rows are predicted better from them.

    The sets of neighbours of the training rows, from which the sites follow, do not change.
    """
    N = model.X.shape[0]
    rows = np.sort(generator(seed, 40).permutation(N)[:JUDGED_ROWS])
    best, score = model.neighbours, None
    for k in (best, *(k for k in NUMBERS if best < k < N)):
        with collect_reports():
            found = _densities_of(dataclasses.replace(model, neighbours=k, sets=None), batch, rows)
        if score is None or exceeds(found, score):
            best, score = k, found
    return dataclasses.replace(model, neighbours=best)


def _densities_of(model: TNNGP, batch: Batch, rows: Any) -> Any:
    """Return the result of `_densities` for some rows of a model."""
    B = backend_of(model.X)
    some = batch.take(lambda x: B.gather(x, rows))
    return _densities(model, some._replace(rows=B.from_numpy(rows, device=B.device_name(model.X) or None)))
