"""Numbers for the levels of categories: their effects on the targets, beside a smooth function of the numbers."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.backend import Array, backend_of
from agp.kernels import Kernel, Matern52, RandomEffects
from agp.models import GPR
from agp.random import generator
from agp.selection._climb import exact_gp, model_on
from agp.selection._given import Columns, Data
from agp.training import fit_newton

TRAINED_ROWS, ROWS = 500, 2000
"""The numbers of rows for training the hyperparameters, and for computing the effects."""
LEAST_LEVELS, ROWS_PER_LEVEL = 3, 30
"""Categories have effects if they have at least so many levels, and so many rows for each level."""
STEPS, TOLERANCE = 12, 0.5
"""The maximum number of Newton steps, and the predicted gain in nats at which training ends."""


def level_effects(
    X: Array, y: Array, categories: tuple[int, ...], *, weights: Array | None = None, seed: int = 0
) -> dict[int, npt.NDArray[np.float64]]:
    """Return the effects [L] of the levels of categories, by column, for the columns with many rows per level.

    Levels differ in an order and by distances that codes do not tell. As further inputs, their effects let kernels use
    these. The effects are the posterior means of random effects in an additive model of the normal scores of the
    targets, so that they do not depend on units or on outliers.

    Parameters
    ----------
    X, y
        Inputs [N, D], with codes of levels in some columns, and targets [N, 1].
    categories
        These columns.
    weights
        The number of observations [N] that each row represents; 1 by default.
    seed
        Seed for the random choice of rows.
    """
    data = Data(X, y, weights).at(generator(seed, 35).permutation(X.shape[0])[:ROWS]).on_host()
    xp = backend_of(X).xp
    levels = {d: int(xp.max(X[:, d])) + 1 for d in categories}
    chosen = {d: L for d, L in levels.items() if L >= LEAST_LEVELS and len(data.y) >= ROWS_PER_LEVEL * L}
    if not chosen:
        return {}
    data = data._replace(y=_normal_scores(data.y), noise=None)
    model = _additive_model(data, Columns(X.shape[1], categories))
    return _effects_in(model, chosen)


def _normal_scores(y: Any) -> Any:
    """Return the quantiles [N, 1] of a standard normal distribution at the ranks of the targets."""
    from scipy import stats

    return stats.norm.ppf((stats.rankdata(y, axis=0) - 0.5) / len(y))


def _additive_model(data: Data, columns: Columns) -> GPR:
    """Train the sum of a smooth function of the numbers and random effects."""
    effects: Kernel = RandomEffects().on(columns.categories)
    kernel = Matern52().on(columns.numbers) + effects if columns.numbers else effects
    few = data.at(np.arange(min(len(data.y), TRAINED_ROWS)))
    begun = exact_gp(few, kernel=kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an approximate optimum suffices
        trained = fit_newton(begun, few.X, few.y, max_iterations=STEPS, tolerance=TOLERANCE, weights=few.weights).model
    return model_on(trained, data)


def _effects_in(model: GPR, levels: dict[int, int]) -> dict[int, npt.NDArray[np.float64]]:
    """Return the predictions [L] at rows that differ only in the L levels of a column, minus their mean, by column."""
    ends = np.cumsum([0, *levels.values()])
    rows = np.repeat(model.X[:1, :], ends[-1], axis=0)
    for (column, count), first in zip(levels.items(), ends[:-1], strict=True):
        rows[first : first + count, column] = np.arange(count)
    means = model.predict_mean(rows)[:, 0]
    parts: Any = np.split(means, ends[1:-1])
    return {column: part - np.mean(part) for column, part in zip(levels, parts, strict=True)}
