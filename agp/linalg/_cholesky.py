"""The Cholesky factorisation: one answer to failure on every backend, and its adjoint."""

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from agp.backend import Array, backend_of
from agp.errors import NotPositiveDefiniteError, RepairWarning
from agp.linalg._jitter import default_jitter, diagonal, identity

__all__ = ["cholesky", "cholesky_pullback", "phi", "positive_definite", "recorded_repairs", "report_repair"]

REPAIRS = 3
"""How often a failed factorisation is tried again, each time with ten times more jitter."""

BLOCK = 128
"""Blocks of this size or smaller are solved with as a whole."""

_records: ContextVar[list[str] | None] = ContextVar("repairs", default=None)


@contextlib.contextmanager
def recorded_repairs(records: list[str] | None = None) -> Iterator[list[str]]:
    """Append the repairs made inside the block to a list instead of issuing a `RepairWarning` for each."""
    records = [] if records is None else records
    token = _records.set(records)
    try:
        yield records
    finally:
        _records.reset(token)


def report_repair(message: str) -> None:
    """Tell that numerical trouble was repaired: to `recorded_repairs`, or by a `RepairWarning`."""
    records = _records.get()
    if records is None:
        warnings.warn(message, RepairWarning, stacklevel=3)
    else:
        records.append(message)


def cholesky(A: Array) -> Array:
    """Lower L with L L^T = A [M, M], repaired if need be.

    If A has no factor, ten, a hundred and a thousand times the default jitter are tried; a repair is reported (a
    `RepairWarning`, or the list of `recorded_repairs`). Where the outcome cannot be inspected, inside a compiled
    function, the repairs are silent and the last failure gives NaN.

    Raises
    ------
    agp.errors.NotPositiveDefiniteError
        If the last repair fails; the message gives the likely cause.
    """
    return _attempt(A, 0)


def _attempt(A: Array, repairs: int) -> Array:
    B = backend_of(A)
    xp = B.xp
    jitter = 10.0**repairs * default_jitter(A) if repairs else None
    L = B.cholesky(A if jitter is None else A + jitter * identity(A))

    def accept() -> Array:
        if jitter is not None and B.is_concrete(A):
            report_repair(_repair_message(A, jitter, repairs))
        return L

    def again() -> Array:
        if repairs < REPAIRS:
            return _attempt(A, repairs + 1)
        if B.is_concrete(A):
            raise NotPositiveDefiniteError(_failure_message(A, jitter))
        return L

    return B.cond(xp.all(xp.isfinite(diagonal(L))), accept, again)


def _repair_message(A: Array, jitter: Array, repairs: int) -> str:
    return (
        f"a {A.shape[-1]} x {A.shape[-1]} covariance matrix was not positive definite to working precision; jitter "
        f"{float(jitter):.3g} was added to its diagonal (attempt {repairs} of {REPAIRS}). {_cause(A)}"
    )


def _failure_message(A: Array, jitter: Array) -> str:
    B = backend_of(A)
    mean = float(B.stop_gradient(B.xp.mean(diagonal(A))))
    return (
        f"a {A.shape[-1]} x {A.shape[-1]} covariance matrix is not positive definite, even with jitter "
        f"{float(jitter):.3g} on its diagonal (mean {mean:.3g}). {_cause(A)}"
    )


def _cause(A: Array) -> str:
    xp = backend_of(A).xp
    if not bool(xp.all(xp.isfinite(A))):
        return "It has NaN or infinite entries: look at the inputs and the kernel's parameters."
    if bool(xp.min(diagonal(A)) <= 0):
        return "Its diagonal is not positive: look at the kernel's variance."
    return (
        "Likely causes: duplicated or nearly equal inputs, lengthscales much larger than the spread of the inputs, "
        "or float32; use fewer inducing points, more jitter or float64."
    )


def positive_definite(A: Array) -> Array:
    """Whether each of the matrices [P, M, M] has a Cholesky factor as it is, Boolean [P]."""
    B = backend_of(A)
    factors = [B.cholesky(A[p, ...]) for p in range(A.shape[0])]
    return B.xp.stack([B.xp.all(B.xp.isfinite(diagonal(L))) for L in factors])


def phi(A: Array) -> Array:
    """The lower triangle of A [..., M, M] with its diagonal halved; self-adjoint as a linear map."""
    xp = backend_of(A).xp
    return xp.tril(A) - 0.5 * A * identity(A)


def cholesky_pullback(L: Array, S_bar: Array) -> Array:
    """The cotangent of A = L L^T [M, M], symmetric, from the cotangent of the relative change of L.

    With dL = L dS, dS = Phi(L^-1 dA L^-T), hence A_bar = L^-T sym(Phi(S_bar)) L^-1; of S_bar only the lower triangle is
    read. A cotangent L_bar of L itself is S_bar = L^T L_bar; most callers have S_bar at hand without that product.
    """
    if L.shape[-1] <= BLOCK:
        return _dense_pullback(L, S_bar)
    # W = A_bar solves L^T W L = S, S = sym(Phi(S_bar)), block by block from the last: M^3 operations, most of them
    # in products, where two triangular solves need twice as many
    xp = backend_of(L).xp
    h = L.shape[-1] // 2
    L11, L21, L22 = L[:h, :h], L[h:, :h], L[h:, h:]
    W22 = cholesky_pullback(L22, S_bar[h:, h:])
    # L22^T (W21 L11 + W22 L21) = S21
    known = W22 @ L21
    rest = _solve_transposed(L22, 0.5 * S_bar[h:, :h]) - known
    W12 = _solve_transposed(L11, rest.mT)
    # L11^T W11 L11 = S11 - Q - Q^T, Q = L21^T (W21 L11 + W22 L21 / 2); doubled, since Phi will halve it
    Q = L21.mT @ (2.0 * rest + known)
    W11 = cholesky_pullback(L11, S_bar[:h, :h] - Q - Q.mT)
    return xp.concat([xp.concat([W11, W12], axis=-1), xp.concat([W12.mT, W22], axis=-1)], axis=-2)


def _dense_pullback(L: Array, S_bar: Array) -> Array:
    # sym(L^-T Phi(S_bar) L^-1) by two solves
    both = _solve_transposed(L, _solve_transposed(L, phi(S_bar)).mT)
    return 0.5 * (both + both.mT)


def _solve_transposed(L: Array, X: Array) -> Array:
    """L^-T X, for lower L [M, M] and X [M, N]."""
    return backend_of(L).solve_triangular(L, X, transpose=True)
