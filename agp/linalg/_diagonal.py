"""Diagonals of covariance matrices: jitter, and the repair of negative variances."""

from agp.backend import Array, Pullback, backend_of, like


def identity(A: Array) -> Array:
    """Return the identity [M, M] with the dtype and device of A [..., M, M]."""
    B = backend_of(A)
    return B.xp.eye(A.shape[-1], **B.like(A))


def diagonal(A: Array) -> Array:
    """Return the diagonal [..., M] of A [..., M, M]."""
    return backend_of(A).diagonal(A)


def add_diagonal(A: Array, d: Array | float) -> Array:
    """Return A + diag(d), for A [..., M, M] and a number d or an array [M] or [..., M]."""
    return backend_of(A).add_diagonal(A, d)


def default_jitter(A: Array) -> Array:
    """Return 1e-6 (float64) or 1e-4 (float32) times the mean diagonal entry of A [..., M, M].

    The function is linear and, as a map from the diagonal to a multiple of the identity, equal to its own pullback.
    """
    B = backend_of(A)
    relative = 1e-6 if float(B.xp.finfo(A.dtype).eps) < 1e-10 else 1e-4
    return relative * B.xp.mean(B.diagonal(A), axis=-1)


def add_jitter(A: Array, jitter: float | None = None) -> Array:
    """Return A + jitter I for A [..., M, M]. A given jitter is absolute; the default is relative (`default_jitter`)."""
    if jitter is not None:
        return add_diagonal(A, jitter)
    relative = default_jitter(A)
    return backend_of(A).add_diagonal(A, relative if A.ndim == 2 else relative[..., None])


def nonnegative(x: Array, /) -> tuple[Array, Pullback]:
    """Set negative entries of conditional variances x [...] to zero; also return the pullback ``bar -> x_bar``.

    A conditional variance is a prior variance minus the part that the data explain. Rounding may make this
    difference negative. The cotangent of a negative entry is zero. NaN stays NaN.
    """
    xp = backend_of(x).xp
    negative, zeros = x <= 0.0, xp.zeros_like(x)
    return xp.where(negative, zeros, x), lambda bar: xp.where(negative, zeros, bar)


def covariance_with(variances: Array, A: Array, /) -> Array:
    """Return the symmetric part of covariances A [..., N, N], with the given variances [..., N] on the diagonal.

    If conditioning removes nearly all the prior variance, the diagonal of A is a difference of nearly equal numbers and
    may be negative. A positive semi-definite matrix remains positive semi-definite if its diagonal is increased.
    """
    xp = backend_of(A).xp
    rows = xp.arange(A.shape[-1], **{**like(A), "dtype": xp.int64})
    return xp.where(rows[:, None] == rows[None, :], variances[..., None, :], 0.5 * (A + A.mT))
