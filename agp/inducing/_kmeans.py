"""Centres of clusters of the data."""

import warnings

import numpy as np

from agp.backend import Array, placed
from agp.checks import check_whole
from agp.inducing._rows import ROWS, Rows, check_count, taken
from agp.random import generator

__all__ = ["kmeans"]

GRID = 2.0**-34
"""Scaled inputs are rounded to multiples of this: ties are then decided alike whatever the units of the columns."""


def kmeans(X: Array, num_inducing: int, /, *, seed: int = 0, iterations: int = 10, rows: int = ROWS) -> Array:
    """Inducing inputs Z [M, D] by k-means from a k-means++ start, for inputs X [N, D], N >= M.

    Works in units of each column's spread, on at most 20,000 rows (`rows`), drawn at random. Rows may repeat; if fewer
    than M are distinct, some inducing inputs coincide.

    Raises
    ------
    TypeError, ValueError
        If X is no finite floating-point array [N, D], or M is not a whole number from 1 to N; or the number of rows to
        look at none from 1 on.

    Source: Arthur & Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    from scipy.cluster.vq import kmeans2

    M = check_count(X, num_inducing)
    rng = generator(seed, 1)
    some = taken(X, np.sort(rng.permutation(X.shape[0])[: check_whole("rows", rows)]))
    centre, spread = some.mean(axis=0), some.std(axis=0)
    usual = np.where(spread > 1e-15 * np.abs(some).max(axis=0), spread, 1.0)
    scaled = np.round((some - centre) / usual / GRID) * GRID
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty cluster keeps its centre, which is what we want
        centres, _ = kmeans2(scaled, _seeds(scaled, M, rng), iter=iterations, minit="matrix")
    return placed(centre + centres * usual, X)


def _seeds(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    from scipy.spatial.distance import cdist

    # SciPy's own k-means++ start recomputes all distances for each centre, O(M^2 N); this one is O(M N).
    chosen = [int(rng.integers(len(rows)))]
    nearest = np.full(len(rows), np.inf)
    for _ in range(count - 1):
        nearest = np.minimum(nearest, cdist(rows[chosen[-1:]], rows, "sqeuclidean")[0])
        total = nearest.sum()
        weights = nearest / total if total > 0 else None
        chosen.append(int(rng.choice(len(rows), p=weights)))
    return rows[chosen]
