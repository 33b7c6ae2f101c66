"""Low-rank factors of covariance matrices from their columns, and preconditioners."""

from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of, like

TIE = 1e-6
"""Pivots within this relative distance count as equal, since backends may differ in the last digits of kernels."""


ROUNDING = 100.0
"""Pivots below this multiple of the rounding end the factorisation."""


class LowRank(NamedTuple):
    """A partial Cholesky factorisation U U^T of a matrix K."""

    U: Array
    """[N, m], with columns of zeros once the rank of K is exhausted."""
    pivots: Array
    """The rows [m] in the order of their choice."""
    rest: Array
    """The diagonal [N] of K - U U^T."""


def pivoted_cholesky(
    column: Callable[[Array], Array], diagonal: Array, rank: int, /, *, precision: float | None = None
) -> LowRank:
    """The greedy partial Cholesky factorisation of a symmetric positive semi-definite K [N, N]: O(N m^2).

    Each pivot is the row with the largest remaining diagonal, the first of equals. Not differentiable.

    Parameters
    ----------
    column
        Maps the index of a row, an array [1], to the column K[:, i] as [N, 1].
    diagonal
        Of K [N], in the dtype of the factor.
    rank
        m, from 1 to N.
    precision
        The relative accuracy of the columns; by default that of the diagonal's dtype. Pivots below a hundred times this
        share of the largest entry of the diagonal end the factorisation.

    Source: Harbrecht, Peters & Schneider, "On the low-rank approximation by the pivoted Cholesky decomposition", 2012.
    """
    B = backend_of(diagonal)
    xp = B.xp
    columns = xp.eye(rank, **like(diagonal))
    precision = float(xp.finfo(diagonal.dtype).eps) if precision is None else precision
    floor = ROUNDING * precision * xp.max(diagonal)

    infinite = xp.full((1,), float("inf"), **like(diagonal))

    def body(count, U, pivots, rest):
        best = xp.max(rest)
        pivot = xp.reshape(xp.argmax(xp.astype(rest >= (1.0 - TIE) * best, U.dtype)), (1,))
        # u = (K[:, i] - U U[i, :]^T) / sqrt(rest_i)
        left = xp.astype(column(pivot), U.dtype, copy=False) - U @ B.rows_at(U, pivot).mT
        u = left[:, 0] / xp.sqrt(xp.where(best > floor, B.rows_at(rest, pivot), infinite))  # 0 where all is rounding
        here, place = B.rows_at(columns, count)[0, :], xp.astype(pivot, U.dtype)
        rest = xp.clip(rest - u * u, min=0.0)  # of the pivot itself a rounding
        return count + 1, B.add_product(U, u[:, None], here), B.add_product(pivots, place, here), rest

    start = (
        xp.zeros((1,), **{**like(diagonal), "dtype": xp.int64}),
        xp.zeros((diagonal.shape[0], rank), **like(diagonal)),
        xp.zeros((rank,), **like(diagonal)),
        diagonal,
    )
    _, U, pivots, rest = B.while_loop(lambda count, *_: count[0] < rank, body, start, at_least=rank, at_most=rank)
    return LowRank(U, xp.astype(pivots, xp.int64), rest)


class Preconditioner(NamedTuple):
    """P = U U^T + noise I [N, N], for U [N, m], or noise I."""

    U: Array | None
    noise: Array
    Q: Array | None
    """U R^-1 [N, m] for the triangular R with R^T R = noise I + U^T U."""
    log_det: Array
    """log|P|, 0-d."""

    def solve(self, x: Array, /) -> Array:
        """P^-1 x [N, k] = (x - Q Q^T x) / noise."""
        return x / self.noise if self.Q is None else (x - self.Q @ (self.Q.mT @ x)) / self.noise

    def sample(self, low: Array | None, full: Array, /) -> Array:
        """U low + sqrt(noise) full [N, k], which has the covariance P for standard normal low [m, k] and full."""
        z = backend_of(full).xp.sqrt(self.noise) * full
        return z if self.U is None else z + self.U @ low


def preconditioner(U: Array | None, noise: Array, rows: int, /) -> Preconditioner:
    """P = U U^T + noise I, from U [N, m] (None for none), the noise variance, 0-d, and N.

    R is from the QR decomposition of U over sqrt(noise) I, which keeps twice the digits of the Gram matrix.
    """
    xp = backend_of(noise).xp
    if U is None:
        return Preconditioner(None, noise, None, rows * xp.log(noise))
    N, m = U.shape
    eye = xp.eye(m, **like(U))
    Q, R = xp.linalg.qr(xp.concat([U, xp.sqrt(noise) * eye], axis=0))
    log_det = (N - m) * xp.log(noise) + 2.0 * xp.sum(xp.log(xp.abs(xp.sum(R * eye, axis=0))))
    # a copy, which products with a view of Q would make each time
    return Preconditioner(U, noise, xp.asarray(Q[:N, :], copy=True), log_det)
