"""The cubic operations of the bounds of SVGP and SOLVE-GP: their numbers, and CPU seconds with NumPy and SciPy."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular

KINDS = ("cholesky", "solve", "product")
REPEATS = 3
"""Number of repetitions of an operation; the median counts."""

Operation = tuple[str, tuple[int, ...]]
"""A kind, and its sizes: (M,) for a Cholesky factorisation, (M, N) for a triangular solve with N right-hand sides, and
(L, M, N) for the product of matrices [L, M] and [M, N]."""


def operations(first: int, second: int, batch: int) -> list[Operation]:
    """The operations for a batch of N rows, where M and M2 are the sizes of both groups of inducing inputs.

    SVGP takes M^3 for factorisations, M^3 + 2 N M^2 for solves and N M^2 for products. SOLVE-GP takes M^3 + M2^3,
    M^3 + 2 N M^2 + M2^3 + 2 N M2^2 + M2 M^2, and N M^2 + N M2^2 + N M M2 + M M2^2.

    Source: Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", 2020.
    """
    groups = [size for size in (first, second) if size]
    found: list[Operation] = []
    for size in groups:
        found += [("cholesky", (size,)), ("solve", (size, size)), ("solve", (size, batch)), ("solve", (size, batch))]
        found += [("product", (size, size, batch))]
    if second:
        found += [("solve", (first, second)), ("product", (second, first, batch)), ("product", (second, first, second))]
    return found


def count(operation: Operation) -> int:
    """The number of multiplications up to a constant for each kind."""
    kind, sizes = operation
    return sizes[0] ** 3 if kind == "cholesky" else sizes[0] ** 2 * sizes[1] if kind == "solve" else int(np.prod(sizes))


def seconds(operation: Operation) -> float:
    """CPU seconds of an operation in float64."""
    work = prepare(operation)
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return float(np.median(times))


def prepare(operation: Operation) -> Callable[[], Any]:
    """An operation on random matrices, as a function without arguments."""
    kind, sizes = operation
    rng = np.random.default_rng(0)
    if kind == "product":
        A, B = rng.standard_normal(sizes[:2]), rng.standard_normal(sizes[1:])
        return lambda: A @ B
    root = rng.standard_normal((sizes[0], sizes[0]))
    K = root @ root.T + sizes[0] * np.eye(sizes[0])
    if kind == "cholesky":
        return lambda: cholesky(K, lower=True)
    L, B = cholesky(K, lower=True), rng.standard_normal(sizes)
    return lambda: solve_triangular(L, B, lower=True)


def costs(first: int, second: int, batch: int) -> dict[str, float]:
    """For each kind, the number of operations in units of N^3 for N rows in a batch, and their CPU seconds."""
    found: dict[str, float] = {}
    for kind in KINDS:
        own = [one for one in operations(first, second, batch) if one[0] == kind]
        known = {one: seconds(one) for one in set(own)}
        found[f"{kind}_count"] = sum(map(count, own)) / batch**3
        found[f"{kind}_seconds"] = sum(known[one] for one in own)
    return found
