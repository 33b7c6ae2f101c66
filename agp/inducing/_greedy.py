"""Greedy choice of inducing inputs by conditional variance."""

from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.checks import as_number, check_inputs, check_instance, check_whole
from agp.errors import count_of
from agp.inducing._rows import ROWS, Rows, check_count, check_distinct, distinct, take_rows
from agp.kernels import Kernel
from agp.linalg import add_diagonal, cholesky
from agp.random import generator
from agp.tree import place_leaves

TIE_TOLERANCE = 1e-6
"""Variances with a relative difference below this value count as equal, because backends round kernels differently."""
JITTER = 1e-12
"""The jitter added to the covariance of given inducing inputs, relative to its mean diagonal."""


def greedy_variance(
    X: Array,
    kernel: Kernel,
    num_inducing: int,
    /,
    *,
    seed: int = 0,
    tolerance: float | None = None,
    given: Array | None = None,
    rows: int = ROWS,
) -> Array:
    """Choose inducing inputs Z [M, D] greedily among the rows of X [N, D], by the largest conditional variance.

    The method is a pivoted Cholesky factorisation of k(X, X). Each chosen row reduces the trace tr(Kff - Kfu Kuu^-1
    Kuf) in the collapsed bound. The method uses n rows drawn at random, and takes O(n M^2) time and O(n M) memory on
    the host, in float64. Ties between rows are broken at random; for a stationary kernel, for example, all rows have
    equal variance at the start. If the numerical rank of the covariance is below M, the remaining rows are drawn at
    random. All chosen rows are distinct. Because the first chosen rows lie mostly at the edge of the data, k-means
    gives a smaller trace for few inducing inputs, and this method gives a smaller trace for many.

    Parameters
    ----------
    X
        Inputs [N, D].
    kernel
        The kernel. Set reasonable lengthscales first, because the choice depends on them.
    num_inducing
        M, from 1 to N.
    seed
        The seed for drawing the n rows and breaking ties.
    tolerance
        A fraction in [0, 1), or None (default) to choose exactly M rows. The choice stops early when the trace is at
        most this fraction of tr(Kff), or when no distinct row is left.
    given
        Existing inducing inputs [M0, D], to which the M rows are added. If `given` is the result of an earlier call,
        the greedy sequence continues. With `given` and a tolerance, the result may be empty.
    rows
        The number n of rows to use. If M is larger, the method uses M rows.

    Raises
    ------
    TypeError, ValueError
        If X is not a finite floating-point array [N, D], M is not a whole number from 1 to N, `rows` is not a positive
        whole number, or the tolerance is outside [0, 1). The function also raises ValueError if fewer than M of the
        rows are distinct, the kernel has missing values, the kernel does not accept D columns, or `given` does not have
        D columns.

    Source: Burt, Rasmussen & van der Wilk, "Convergence of sparse variational inference in Gaussian processes
    regression", JMLR 2020.
    """
    M = check_count(X, num_inducing)
    if tolerance is not None and not 0.0 <= as_number(tolerance) < 1.0:
        raise ValueError(f"tolerance is {tolerance!r}, but must be None, or at least 0 and less than 1.")
    host = _on_host(kernel, X.shape[1])
    order = generator(seed, 6).permutation(X.shape[0])[: max(check_whole("rows", rows), M)]
    some = take_rows(X, order)
    chosen = _pivots(host, some, M, tolerance, _selected_inputs(given, X))
    return asarray_like(np.ascontiguousarray(some[chosen]), X if given is None else given)


def _selected_inputs(Z: Array | None, X: Array) -> Rows:
    if Z is None:
        return np.empty((0, X.shape[1]))
    check_inputs("given", Z)
    if Z.shape[1] != X.shape[1]:
        raise ValueError(
            f"`given` has {count_of(Z.shape[1], 'column')}, but X has {count_of(X.shape[1], 'column')}; pass inputs "
            f"with {X.shape[1]} columns."
        )
    return to_numpy(Z).astype(np.float64)


def _on_host(kernel: Any, width: int) -> Kernel:
    check_instance("kernel", kernel, Kernel)
    if absent := tree.missing(kernel):
        raise ValueError(
            f"{', '.join(absent)} of the kernel has no value; set it, or call kernel.from_data(X, variance) first."
        )
    host = tree.to_backend(place_leaves(kernel, np.zeros(1)), "numpy", dtype="float64")
    host.check(width)
    return host


def _pivots(kernel: Kernel, rows: Rows, M: int, tolerance: float | None, given: Rows) -> list[int]:
    """Return the positions of the chosen rows among the rows [n, D]. The shape of `given` is [M0, D]."""
    both, kind = distinct(np.concatenate([given, rows]))
    M0, there = len(given), set(kind[: len(given)].tolist())
    first, kind = both[both >= M0] - M0, kind[M0:]  # rows that are new
    if tolerance is None:
        check_distinct(len(first), len(rows), M)
    M = min(M, len(first))
    left = np.array(kernel.diag(rows)[0])  # the diagonal of Kff - E^T E
    total, largest = left.sum(), left.max()
    E = np.empty((M0 + M, len(rows)))  # E = L^-1 Kuf with Kuu = L L^T
    if M0:
        K = np.asarray(kernel(given)[0])
        L = cholesky(add_diagonal(K, JITTER * np.mean(np.diagonal(K))))  # K may be numerically singular
        E[:M0] = backend_of(K).solve_triangular(L, np.asarray(kernel(given, rows)[0]))
        left = left - np.sum(E[:M0] * E[:M0], axis=0)
    free = np.asarray([k not in there for k in kind.tolist()])
    floor = max((M0 + M) * np.finfo(np.float64).eps, 100.0 * JITTER if M0 else 0.0)
    chosen: list[int] = []
    while len(chosen) < M:
        if tolerance is not None and (chosen or M0) and np.maximum(left, 0.0).sum() <= tolerance * total:
            break
        best = np.max(left, where=free, initial=-np.inf)
        if best <= floor * largest:  # the remaining variances are rounding errors
            if tolerance is not None and (chosen or M0):
                break
            rest = first[free[first]]
            return [*chosen, *map(int, rest[: M - len(chosen)])]
        i = int(np.argmax(free & (left >= (1.0 - TIE_TOLERANCE) * best)))
        j = M0 + len(chosen)
        covariance = np.asarray(kernel(rows[i : i + 1], rows)[0])[0]
        E[j] = (covariance - E[:j, i] @ E[:j]) / np.sqrt(left[i])
        left = left - E[j] * E[j]
        free &= kind != kind[i]
        chosen.append(i)
    return chosen
