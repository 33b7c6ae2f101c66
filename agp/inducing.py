"""Where inducing inputs start. Drawn on the host, so that every backend gets the same ones for the same seed."""

import warnings

import numpy as np
import numpy.typing as npt
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import cdist

from agp.backend import Array, backend_of, to_numpy
from agp.host import generator

__all__ = ["kmeans"]

ROWS = 20_000
"""k-means sees at most this many rows, drawn at random."""


def kmeans(X: Array, num_inducing: int, /, *, seed: int = 0, iterations: int = 10) -> Array:
    """Inducing inputs Z [M, D] by k-means from a k-means++ start, for inputs X [N, D], N >= M.

    Works in units of each column's spread, on at most 20,000 rows. Rows may repeat; if fewer than M are distinct, some
    inducing inputs coincide.

    Raises
    ------
    ValueError
        If M is not positive or exceeds N.

    Source: Arthur & Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    if not 1 <= num_inducing <= X.shape[0]:
        msg = f"num_inducing is {num_inducing}, but must be between 1 and the number of rows, {X.shape[0]}."
        raise ValueError(msg)
    B = backend_of(X)
    rng = generator(seed, 1)
    index = np.sort(rng.permutation(X.shape[0])[:ROWS])
    rows = B.to_numpy(B.xp.take(X, B.from_numpy(index, device=B.device_name(X)), axis=0)).astype(np.float64)
    spread = rows.std(axis=0)
    usual = np.where(spread > 1e-15 * np.abs(rows).max(axis=0), spread, 1.0)
    scaled = rows / usual
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty cluster keeps its centre, which is what we want
        centres, _ = kmeans2(scaled, _seeds(scaled, num_inducing, rng), iter=iterations, minit="matrix")
    return B.from_numpy(centres * usual, dtype=str(to_numpy(X[:1, :]).dtype), device=B.device_name(X))


def _seeds(rows: npt.NDArray, count: int, rng: np.random.Generator) -> npt.NDArray:
    # SciPy's own k-means++ start recomputes all distances for each centre, O(M^2 N); this one is O(M N).
    chosen = [int(rng.integers(len(rows)))]
    nearest = np.full(len(rows), np.inf)
    for _ in range(count - 1):
        nearest = np.minimum(nearest, cdist(rows[chosen[-1:]], rows, "sqeuclidean")[0])
        total = nearest.sum()
        weights = nearest / total if total > 0 else None
        chosen.append(int(rng.choice(len(rows), p=weights)))
    return rows[chosen]
