"""Diagonals of covariance matrices: jitter, and the repair of rounded variances."""

from agp.backend import Array, Pullback, backend_of, like


def identity(A: Array) -> Array:
    """The identity of the shape [M, M], dtype and device of A [..., M, M]."""
    B = backend_of(A)
    return B.xp.eye(A.shape[-1], **B.like(A))


def diagonal(A: Array) -> Array:
    """The diagonal [..., M] of A [..., M, M], without the linear algebra extension."""
    return backend_of(A).diagonal(A)


def add_diagonal(A: Array, d: Array | float) -> Array:
    """A + diag(d), for A [..., M, M] and d [M], [..., M], or one number for all entries."""
    return backend_of(A).add_diagonal(A, d)


def default_jitter(A: Array) -> Array:
    """1e-6 (float64) or 1e-4 (float32) of the mean diagonal of each A [..., M, M], [...], without gradient."""
    B = backend_of(A)
    relative = 1e-6 if float(B.xp.finfo(A.dtype).eps) < 1e-10 else 1e-4
    return B.stop_gradient(relative * B.xp.mean(B.diagonal(A), axis=-1))


def add_jitter(A: Array, jitter: float | None = None) -> Array:
    """A + jitter I, for A [..., M, M]; an explicit jitter is absolute, the default is relative (`default_jitter`)."""
    if jitter is not None:
        return add_diagonal(A, jitter)
    relative = default_jitter(A)
    return backend_of(A).add_diagonal(A, relative if A.ndim == 2 else relative[..., None])


def checked_jitter(jitter: float | None) -> float | None:
    """ValueError unless the jitter is None or a finite number from zero on."""
    if jitter is not None and not 0 <= jitter < float("inf"):
        msg = f"jitter is {jitter!r}, but must be None, or a finite number from zero on."
        raise ValueError(msg)
    return jitter


def nonnegative(x: Array, /) -> tuple[Array, Pullback]:
    """Conditional variances x [...] with negative ones raised to zero, and ``bar -> x_bar``.

    The difference of a prior variance and the part explained by the data may fall below zero by rounding; its cotangent
    is zero there. NaN stays NaN.
    """
    xp = backend_of(x).xp
    negative, zeros = x <= 0.0, xp.zeros_like(x)
    return xp.where(negative, zeros, x), lambda bar: xp.where(negative, zeros, bar)


def covariance_with(variances: Array, A: Array, /) -> Array:
    """The symmetric part of covariances A [..., N, N], with these variances [..., N] on the diagonal.

    If conditioning leaves little of the prior variance, the diagonal of A is a difference of nearly equal numbers and
    may be negative. Raising the diagonal keeps a matrix positive semi-definite.
    """
    xp = backend_of(A).xp
    rows = xp.arange(A.shape[-1], **{**like(A), "dtype": xp.int64})
    return xp.where(rows[:, None] == rows[None, :], variances[..., None, :], 0.5 * (A + A.mT))
