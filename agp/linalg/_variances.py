"""Variances that rounding has made negative."""

from agp.backend import Array, Pullback, backend_of

__all__ = ["nonnegative"]


def nonnegative(x: Array, /) -> tuple[Array, Pullback]:
    """Conditional variances x [...], those below zero raised to zero, and ``bar -> x_bar``.

    A difference of a prior variance and what the data explain, both of which are rounded, may fall below zero. There it
    does not depend on either, and its cotangent is zero. NaN stays NaN.
    """
    xp = backend_of(x).xp
    negative, zeros = x <= 0.0, xp.zeros_like(x)
    return xp.where(negative, zeros, x), lambda bar: xp.where(negative, zeros, bar)
