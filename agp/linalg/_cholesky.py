"""The Cholesky factorisation with automatic repair, and its pullback."""

import math

from agp.backend import Array, backend_of
from agp.errors import NotPositiveDefiniteError
from agp.linalg._diagonal import add_diagonal, default_jitter, diagonal, identity
from agp.linalg._triangular import blocks_of, lower_of, symmetric_from_blocks
from agp.repairs import report

REPAIRS = 3
"""The number of further attempts after a failed factorisation; each attempt multiplies the jitter by ten."""

NEGATIVE = (
    "The kernel returned a negative variance ({2:.3g}); check its parameters and its formula, or use float64 if it is "
    "a difference of nearly equal numbers, as of a centred kernel."
)

BLOCK = 128
"""The size up to which blocks are not divided; accelerators use `Backend.device_block` if it is larger."""


def cholesky(A: Array) -> Array:
    """Return lower triangular L with L L^T = A [..., M, M], repaired if necessary.

    If the factorisation fails, the function adds ten, then a hundred, then a thousand times the default jitter to the
    diagonal. In a batch, only the matrices whose factorisation fails are changed. Each repair is reported to
    `agp.repairs`.

    Raises
    ------
    agp.errors.NotPositiveDefiniteError
        If the last repair fails. The message names the likely cause. Inside a compiled function, the factor is NaN, and
        the error is raised when the report is read.
    """
    return _attempt(A, None, 0)


def lower_cholesky(A: Array, d: Array, /) -> Array:
    """Return a matrix whose lower triangle is that of `cholesky` of A + diag(d), for A [..., M, M] and d [..., M].

    Only the lower triangle of A is read. What the other triangle of the result contains is not defined.
    """
    B = backend_of(A)
    L = B.lower_cholesky(A, d)
    good = B.xp.all(B.diagonal(L) < math.inf)  # False for NaN
    return B.cond(good, lambda: L, lambda: cholesky(B.add_diagonal(A, d)), likely=True)


def noisy_cholesky(K: Array, noise: Array, /) -> Array:
    """Return the Cholesky factor [N, N] of K + diag(noise), for a noise variance (0-d) or one for each row [N].

    For matrices K [S, N, N], the factors are [S, N, N], and the noise is [S] or [S, N].

    Huge variances of some rows would make the matrix badly scaled, and a repair would then change all other rows. So
    R (K + diag(noise)) R is factorised, where R is diagonal and no entry of the scaled diagonal is much above K.
    """
    if noise.ndim < K.ndim - 1:
        return cholesky(add_diagonal(K, noise if K.ndim == 2 else noise[:, None]))
    xp = backend_of(K).xp
    usual = xp.mean(diagonal(K), axis=-1, keepdims=True) + xp.min(noise, axis=-1, keepdims=True)
    scale = usual / xp.maximum(noise, usual)
    root = xp.sqrt(scale)[..., None]
    return cholesky(add_diagonal(root * K * root.mT, scale * noise)) / root


def _attempt(A: Array, jitter: Array | None, repairs: int) -> Array:
    # jitter [...] is zero for matrices that have not failed
    B = backend_of(A)
    xp = B.xp
    L = B.cholesky(A if jitter is None else A + jitter[..., None, None] * identity(A))
    good = xp.all(B.diagonal(L) < math.inf, axis=-1)  # False for NaN

    def accept() -> Array:
        if jitter is not None:
            _report_repair(A, jitter, repairs)
        return L

    def again() -> Array:
        default = default_jitter(A)
        before = xp.zeros_like(default) if jitter is None else jitter
        if repairs < REPAIRS:
            more = 10.0 ** (repairs + 1) * default
            return _attempt(A, xp.where(good, before, more), repairs + 1)
        _fail(A, before)
        return L

    return B.cond(xp.all(good) if good.ndim else good, accept, again, likely=True)


def _report_repair(A: Array, jitter: Array, repairs: int) -> None:
    xp = backend_of(A).xp
    largest, count = xp.max(jitter), xp.count_nonzero(jitter)
    attempt, smallest = xp.full_like(largest, float(repairs)), xp.min(diagonal(A))
    for cause, applies in _causes(A):
        message = (
            f"a {A.shape[-1]} x {A.shape[-1]} covariance matrix was not positive definite to working precision; jitter "
            f"{{0:.3g}} was added to its diagonal (attempt {{1:.0f}} of {REPAIRS}). {cause}"
        )
        report(message, largest, attempt, smallest, count=xp.where(applies, count, xp.zeros_like(count)))


def _fail(A: Array, jitter: Array) -> None:
    """Raise the error for a failed last repair; inside compiled functions, report the error instead."""
    B = backend_of(A)
    variances = B.stop_gradient(diagonal(A))
    numbers = B.xp.max(jitter), B.xp.mean(variances), B.xp.min(variances)
    for cause, applies in _causes(A):
        tried = "" if cause is NEGATIVE else ", even with jitter {0:.3g} on its diagonal (mean {1:.3g})"
        message = f"a {A.shape[-1]} x {A.shape[-1]} covariance matrix is not positive definite{tried}. {cause}"
        if not B.is_concrete(A):
            report(message, *numbers, count=applies, fatal=True)
        elif bool(applies):
            raise NotPositiveDefiniteError(message.format(*map(float, numbers)))


def _causes(A: Array) -> list[tuple[str, Array]]:
    """Return the possible causes of a failure, each with a 0-d Boolean that is True only for the actual cause."""
    xp = backend_of(A).xp
    finite = xp.all(xp.isfinite(A))
    positive, negative = xp.all(diagonal(A) > 0), xp.any(diagonal(A) < 0)
    return [
        (NEGATIVE, finite & negative),
        ("It has NaN or infinite entries; check the inputs and the kernel's parameters.", ~finite),
        ("Its diagonal has zeros; check the kernel's variance.", finite & ~positive & ~negative),
        (
            "Likely causes: duplicated or nearly equal inputs, lengthscales much larger than the spread of the inputs, "
            "or float32; use fewer inducing points, more jitter or float64.",
            finite & positive,
        ),
    ]


def positive_definite(A: Array) -> Array:
    """Return whether each of the matrices [P, M, M] has a Cholesky factor without repair (Boolean [P])."""
    B = backend_of(A)
    factors = [B.cholesky(A[p, ...]) for p in range(A.shape[0])]
    return B.xp.stack([B.xp.all(diagonal(L) < math.inf) for L in factors])


def phi(A: Array) -> Array:
    """Return the lower triangle of A [..., M, M] with half the diagonal; this linear map is self-adjoint."""
    B = backend_of(A)
    return B.add_diagonal(B.tril(A), -0.5 * B.diagonal(A))


def cholesky_pullback(L: Array, L_bar: Array) -> Array:
    """Return the symmetric cotangent of A = L L^T [M, M], given the lower triangle of the cotangent of L.

    If you have the cotangent of the relative change L^-1 dL, use `relative_cholesky_pullback`.

    Source: the recursion by halves of Murray, "Differentiation of the Cholesky decomposition", arXiv:1602.07527.
    """
    B = backend_of(L)
    if L.shape[-1] <= BLOCK or L.shape[-1] <= B.device_block(L):
        return _dense_pullback(L, L.mT @ B.tril(L_bar))
    # L22 is the factor of A22 - L21 L21^T, and L21 = A21 L11^-T; takes two thirds of M^3 operations
    L11, L21, L22 = blocks_of(L)
    bar11, bar21, bar22 = blocks_of(L_bar)
    W22 = cholesky_pullback(L22, bar22)
    W12 = B.solve_triangular(L11, (0.5 * bar21 - W22 @ L21).mT, transpose=True)
    W11 = cholesky_pullback(L11, bar11 - lower_of(2.0 * W12, L21))
    return symmetric_from_blocks(W11, W12, W22)


def relative_cholesky_pullback(L: Array, S_bar: Array) -> Array:
    """Return the symmetric cotangent of A = L L^T [M, M], given the lower triangle of the cotangent of L^-1 dL.

    Let dL = L dS with dS = Phi(L^-1 dA L^-T). Then A_bar = L^-T sym(Phi(S_bar)) L^-1. A cotangent L_bar of L
    corresponds to S_bar = L^T L_bar. Some callers compute S_bar without this product.
    """
    if L.shape[-1] <= BLOCK or L.shape[-1] <= backend_of(L).device_block(L):
        return _dense_pullback(L, S_bar)
    B = backend_of(L)
    # W = A_bar solves L^T W L = S, S = sym(Phi(S_bar)), from the last block on: M^3 operations, mostly products;
    # two triangular solves would take 2 M^3 operations
    L11, L21, L22 = blocks_of(L)
    S11, S21, S22 = blocks_of(S_bar)
    W22 = relative_cholesky_pullback(L22, S22)
    # L22^T (W21 L11 + W22 L21) = S21
    known = W22 @ L21
    rest = B.solve_triangular(L22, 0.5 * S21, transpose=True) - known
    W12 = B.solve_triangular(L11, rest.mT, transpose=True)
    # L11^T W11 L11 = S11 - Q - Q^T, Q = L21^T (W21 L11 + W22 L21 / 2); doubled, since Phi will halve it
    Q = L21.mT @ (2.0 * rest + known)
    W11 = relative_cholesky_pullback(L11, S11 - Q - Q.mT)
    return symmetric_from_blocks(W11, W12, W22)


def _dense_pullback(L: Array, S_bar: Array) -> Array:
    # sym(L^-T Phi(S_bar) L^-1) by two solves
    B = backend_of(L)
    half = B.solve_triangular(L, phi(S_bar), transpose=True)
    both = B.solve_triangular(L, half.mT, transpose=True)
    return 0.5 * (both + both.mT)
