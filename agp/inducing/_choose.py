"""Choice of inducing inputs: k-means, random rows, and a function that calls a method by its name (`choose`)."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from agp.backend import Array, asarray_like
from agp.checks import check_inputs, check_like, check_whole
from agp.errors import count_of, name_remedy, similar_names
from agp.inducing._greedy import greedy_variance
from agp.inducing._rows import ROWS, Rows, check_count, check_distinct, distinct, distinct_rows, take_rows
from agp.kernels import Kernel
from agp.random import generator

GRID = 2.0**-34
"""Scaled inputs are rounded to multiples of this value, so that ties do not depend on the units of the columns."""

FEW = 4096
"""With at most this many rows, k-means tests whether the number of distinct rows is the number of inducing inputs."""


def kmeans(X: Array, num_inducing: int, /, *, seed: int = 0, iterations: int = 10, rows: int = ROWS) -> Array:
    """Choose inducing inputs Z [M, D] by k-means with a k-means++ start, for inputs X [N, D] with N >= M.

    Columns are divided by their standard deviations. The method uses at most `rows` rows, drawn at random. In columns
    with two values, such as 0 and 1, averages mean nothing: there, an inducing input has the values of the row that is
    nearest to its centre. If fewer than M rows are distinct, some inducing inputs coincide. If exactly M of at most
    4,096 rows are distinct, these are the inducing inputs, in the order of the rows, and nothing is drawn.

    Raises
    ------
    TypeError, ValueError
        If X is not a finite floating-point array [N, D], M is not a whole number from 1 to N, or `rows` is not a
        positive whole number.

    Source: Arthur & Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    from scipy.cluster.vq import kmeans2

    M = check_count(X, num_inducing)
    if X.shape[0] <= FEW and len(first := distinct_rows(X)) == M:
        return asarray_like(take_rows(X, first), X)
    rng = generator(seed, 1)
    some = take_rows(X, np.sort(rng.permutation(X.shape[0])[: check_whole("rows", rows)]))
    centre, spread = some.mean(axis=0), some.std(axis=0)
    usual = np.where(spread > 1e-15 * np.abs(some).max(axis=0), spread, 1.0)
    scaled = np.round((some - centre) / usual / GRID) * GRID
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty cluster keeps its centre intentionally
        centres, _ = kmeans2(scaled, _seeds(scaled, M, rng), iter=check_whole("iterations", iterations), minit="matrix")
    Z, binary = centre + centres * usual, _two_valued(some)
    if binary.any():
        Z[:, binary] = some[_nearest_rows(scaled, centres, binary), :][:, binary]
    return asarray_like(Z, X)


def _two_valued(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return whether each column [D] has two different values."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    return (low < high) & np.all((rows == low) | (rows == high), axis=0)


def _nearest_rows(rows: Rows, centres: Rows, binary: npt.NDArray[np.bool_]) -> list[int]:
    """Return the number of the row nearest to each centre.

    If all columns are binary, the rows differ where possible, since equal ones would be equal inducing inputs.
    """
    from scipy.spatial.distance import cdist

    if not binary.all():
        return [int(np.argmin(cdist(centre[None], rows, "sqeuclidean")[0])) for centre in centres]
    first = distinct(rows)[0]
    candidates, taken, found = rows[first], np.zeros(len(first), dtype=bool), []
    for centre in centres:
        away = cdist(centre[None], candidates, "sqeuclidean")[0]
        nearest = int(np.argmin(away if taken.all() else np.where(taken, np.inf, away)))
        taken[nearest] = True
        found.append(int(first[nearest]))
    return found


def _seeds(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    from scipy.spatial.distance import cdist

    # SciPy's k-means++ start recomputes all distances for each centre, in O(M^2 N); this start takes O(M N)
    chosen = [int(rng.integers(len(rows)))]
    nearest = np.full(len(rows), np.inf)
    for _ in range(count - 1):
        nearest = np.minimum(nearest, cdist(rows[chosen[-1:]], rows, "sqeuclidean")[0])
        total = nearest.sum()
        weights = nearest / total if total > 0 else None
        chosen.append(int(rng.choice(len(rows), p=weights)))
    return rows[chosen]


def random(X: Array, num_inducing: int, /, *, seed: int = 0) -> Array:
    """Draw M distinct rows of X [N, D] without replacement, as inducing inputs Z [M, D].

    Raises
    ------
    TypeError, ValueError
        If X is not a finite floating-point array [N, D], M is not a whole number from 1 to N, or fewer than M rows are
        distinct.
    """
    M = check_count(X, num_inducing)
    order = generator(seed, 5).permutation(X.shape[0])
    rows = take_rows(X, order[:M])
    first = distinct(rows)[0]
    if len(first) < M:  # some of these rows are equal: use all rows
        rows = take_rows(X, order)
        first = distinct(rows)[0]
        check_distinct(len(first), len(rows), M)
    return asarray_like(np.ascontiguousarray(rows[first[:M]]), X)


def _centres(X: Array, kernel: Kernel, M: int, seed: int) -> Array:
    """Return the centres of k-means or, if columns contain codes of levels, whose means mean nothing, random rows."""
    if not kernel.category_levels(X.shape[1]):
        return kmeans(X, M, seed=seed)
    order = generator(seed, 5).permutation(X.shape[0])
    first = distinct(take_rows(X, order))[0]
    some = np.concatenate([order[first], np.delete(order, first)])[: check_count(X, M)]
    return asarray_like(take_rows(X, some), X)


How: TypeAlias = Literal["kmeans", "random", "greedy-variance"] | Callable[[Array, Kernel, int, int], Array]
"""The name of a method that chooses inducing inputs, or a function of (X [N, D], kernel, M, seed) -> Z [M', D]."""

_WAYS: dict[str, Callable[[Array, Kernel, int, int], Array]] = {
    "kmeans": lambda X, kernel, num_inducing, seed: _centres(X, kernel, num_inducing, seed),
    "random": lambda X, _, num_inducing, seed: random(X, num_inducing, seed=seed),
    "greedy-variance": lambda X, kernel, num_inducing, seed: greedy_variance(X, kernel, num_inducing, seed=seed),
}


def choose(X: Array, kernel: Kernel, num_inducing: int, /, *, seed: int = 0, how: How = "kmeans") -> Array:
    """Choose inducing inputs Z [M, D] for inputs X [N, D] and a kernel.

    Parameters
    ----------
    X
        Inputs [N, D].
    kernel
        The kernel, with a value for each leaf. The methods "kmeans" and "random" do not use the kernel.
    num_inducing
        M, from 1 to N. If `how` is a function, it may return a different number of rows, at most N.
    seed
        The seed for drawing random numbers.
    how
        "kmeans" (`agp.inducing.kmeans`; random rows if columns contain codes of levels), "random"
        (`agp.inducing.random`), "greedy-variance"
        (`agp.inducing.greedy_variance`), or a function of (X, kernel, M, seed).

    Raises
    ------
    TypeError, ValueError
        If the method is unknown or its arguments are not valid. These errors are also raised unless the function `how`
        returns a finite array [M', D] with the library, dtype and device of X, and with M' from 1 to N.
    """
    if not callable(how):
        if not isinstance(how, str) or how not in _WAYS:
            names = ", ".join(map(repr, _WAYS))
            said = f"inducing is {how!r}, but must be one of {names}, or a function of (X, kernel, num_inducing, seed)"
            raise ValueError(f"{said}; {name_remedy(how, _WAYS)}" if similar_names(how, _WAYS) else f"{said}.")
        return _WAYS[how](X, kernel, num_inducing, seed)
    Z: Any = how(X, kernel, check_count(X, num_inducing), seed)
    name = "the result of the function that chooses inducing inputs"
    check_inputs(name, Z)
    check_like(name, Z, "X", X)
    if Z.shape[1] != X.shape[1] or Z.shape[0] > X.shape[0]:
        limits = f"{count_of(X.shape[1], 'column')} and at most {X.shape[0]} rows"
        raise ValueError(f"{name} has shape {tuple(Z.shape)}, but X has shape {tuple(X.shape)}; return {limits}.")
    return Z
