"""Rows of the data, drawn at random."""

import numpy as np

from agp.backend import Array, placed
from agp.inducing._rows import check_count, check_distinct, distinct, taken
from agp.random import generator

__all__ = ["random"]


def random(X: Array, num_inducing: int, /, *, seed: int = 0) -> Array:
    """Inducing inputs Z [M, D]: M distinct rows of X [N, D], drawn without replacement.

    Raises
    ------
    TypeError, ValueError
        If X is no finite floating-point array [N, D], M is not a whole number from 1 to N, or fewer than M rows are
        distinct.
    """
    M = check_count(X, num_inducing)
    order = generator(seed, 5).permutation(X.shape[0])
    rows = taken(X, order[:M])
    first = distinct(rows)[0]
    if len(first) < M:  # rows repeat: now all must be looked at
        rows = taken(X, order)
        first = distinct(rows)[0]
        check_distinct(len(first), len(rows), M)
    return placed(np.ascontiguousarray(rows[first[:M]]), X)
