"""What rounding does to variances and covariances, undone."""

from agp.backend import Array, Pullback, backend_of, like

__all__ = ["covariance_with", "nonnegative"]


def nonnegative(x: Array, /) -> tuple[Array, Pullback]:
    """Conditional variances x [...], those below zero raised to zero, and ``bar -> x_bar``.

    A difference of a prior variance and what the data explain, both of which are rounded, may fall below zero. There it
    does not depend on either, and its cotangent is zero. NaN stays NaN.
    """
    xp = backend_of(x).xp
    negative, zeros = x <= 0.0, xp.zeros_like(x)
    return xp.where(negative, zeros, x), lambda bar: xp.where(negative, zeros, bar)


def covariance_with(variances: Array, A: Array, /) -> Array:
    """The symmetric part of covariances A [..., N, N], with these variances [..., N] on the diagonal.

    Where conditioning leaves little of the prior variance, the diagonal of A is a difference of nearly equal numbers
    and may be negative, and variances that were raised to zero are not on it. A larger diagonal keeps a matrix
    positive semi-definite.
    """
    xp = backend_of(A).xp
    rows = xp.arange(A.shape[-1], **{**like(A), "dtype": xp.int64})
    return xp.where(rows[:, None] == rows[None, :], variances[..., None, :], 0.5 * (A + A.mT))
