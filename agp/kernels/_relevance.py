"""The share of the variance of a function that is due to each column, under the prior."""

from collections.abc import Iterable
from typing import Any

from agp.backend import Array, backend_of
from agp.kernels._base import Kernel


def pair_rows(X: Array, count: int, rng: Any, /) -> tuple[Array, Array]:
    """Return about `count` pairs of different rows of X [N, D], N > 1: shuffled rows, and the same rows shifted."""
    xp, N = backend_of(X).xp, X.shape[0]
    order = [int(i) for i in rng.permutation(N)[:count]]
    shifts = range(1, 1 + min(N - 1, max(1, count // N)))
    first = order * len(shifts)
    second = [order[i - shift] for shift in shifts for i in range(len(order))]
    x, z = (xp.take(X, xp.asarray(rows), axis=0) for rows in (first, second))
    return x, z


def variance_shares(kernel: Kernel, x: Array, z: Array, groups: Iterable[Iterable[int]], /) -> list[float] | None:
    """Return the share of the prior variance of differences between rows that is due to each group of columns.

    Let x and z be paired rows [N, D], and let x' be x with the entries of one group taken from z. The share is
        sum E[(f(x) - f(x'))^2] / sum E[(f(x) - f(z))^2],    E[(f(x) - f(z))^2] = k(x, x) + k(z, z) - 2 k(x, z),

    without white noise. A group on which the function does not depend has the share 0. The result is None if the
    function is constant.

    Source: Jansen, "Analysis of variance designs for model output", Computer Physics Communications 1999.
    """
    xp, columns = backend_of(x).xp, range(x.shape[1])

    def covariance(a: Array, b: Array) -> float:
        return float(xp.mean(kernel.grouped_covariance(a[:, None, :], b[:, None, :])[0]))

    own = covariance(x, x)

    def differences(other: Array) -> float:
        return own + covariance(other, other) - 2.0 * covariance(x, other)

    total = differences(z)
    if not total > 0.0:
        return None
    masks = [xp.asarray([d in group for d in columns]) for group in map(set, groups)]
    return [max(differences(xp.where(mask, z, x)), 0.0) / total for mask in masks]
