"""Preconditioners, and low-rank factors of covariance matrices computed from a subset of the columns."""

from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of, like

TIE_TOLERANCE = 1e-6
"""Pivots within this relative distance count as equal, since backends may round kernels differently."""
ROUNDING = 100.0
"""Pivots below this multiple of the rounding error end the factorisation."""


class LowRank(NamedTuple):
    """A partial Cholesky factorisation U U^T of a matrix K."""

    U: Array
    """The factor U [N, m]; after the rank of K is reached, further columns are zero."""
    pivots: Array
    """The indices [m] of the pivot rows, in the order of selection."""
    rest: Array
    """The diagonal [N] of the remainder K - U U^T."""


def pivoted_cholesky(
    column: Callable[[Array], Array], diagonal: Array, rank: int, /, *, precision: float | None = None
) -> LowRank:
    """Compute the greedy partial Cholesky factorisation of a symmetric positive semi-definite K [N, N].

    Each pivot is the row with the largest remaining diagonal entry, or the first such row if several are equal. The
    factorisation takes O(N m^2) operations. The function is not differentiable.

    Parameters
    ----------
    column
        A function that maps the index i of a row, an array [1], to the column K[:, i] as [N, 1].
    diagonal
        The diagonal [N] of K, in the dtype of the factor.
    rank
        The number of columns m of the factor, from 1 to N.
    precision
        The relative accuracy of the columns, by default the accuracy of the diagonal's dtype. The factorisation ends at
        a pivot below 100 * precision times the largest entry of the diagonal.

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
        pivot = xp.reshape(xp.argmax(xp.astype(rest >= (1.0 - TIE_TOLERANCE) * best, U.dtype)), (1,))
        # u = (K[:, i] - U U[i, :]^T) / sqrt(rest_i)
        left = xp.astype(column(pivot), U.dtype, copy=False) - U @ B.rows_at(U, pivot).mT
        u = left[:, 0] / xp.sqrt(xp.where(best > floor, B.rows_at(rest, pivot), infinite))  # 0 if nothing is left
        here, place = B.rows_at(columns, count)[0, :], xp.astype(pivot, U.dtype)
        rest = xp.clip(rest - u * u, min=0.0)  # at the pivot, rest - u^2 is a rounding error
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
    """The preconditioner P = U U^T + noise I [N, N] for U [N, m], or P = noise I."""

    U: Array | None
    noise: Array
    Q: Array | None
    """The matrix U R^-1 [N, m] for the triangular R with R^T R = noise I + U^T U."""
    log_det: Array
    """The log determinant of P (0-d)."""

    def solve(self, x: Array, /) -> Array:
        """Return P^-1 x = (x - Q Q^T x) / noise for x [N, k]."""
        return x / self.noise if self.Q is None else (x - self.Q @ (self.Q.mT @ x)) / self.noise

    def sample(self, low: Array | None, full: Array, /) -> Array:
        """Return samples U low + sqrt(noise) full [N, k] from N(0, P), for standard normal `low` and `full`."""
        z = backend_of(full).xp.sqrt(self.noise) * full
        return z if self.U is None else z + self.U @ low


def preconditioner(U: Array | None, noise: Array, rows: int, /) -> Preconditioner:
    """Create the preconditioner P = U U^T + noise I for U [N, m], or P = noise I if U is None.

    The noise variance is a 0-d array, and `rows` is N. The triangular factor R (see `Preconditioner.Q`) comes from the
    QR decomposition of [U; sqrt(noise) I]. The QR decomposition keeps twice as many digits as a factorisation of the
    Gram matrix.
    """
    xp = backend_of(noise).xp
    if U is None:
        return Preconditioner(None, noise, None, rows * xp.log(noise))
    N, m = U.shape
    eye = xp.eye(m, **like(U))
    Q, R = xp.linalg.qr(xp.concat([U, xp.sqrt(noise) * eye], axis=0))
    log_det = (N - m) * xp.log(noise) + 2.0 * xp.sum(xp.log(xp.abs(xp.sum(R * eye, axis=0))))
    # copy once: each product with a view of Q would make a copy
    return Preconditioner(U, noise, xp.asarray(Q[:N, :], copy=True), log_det)
