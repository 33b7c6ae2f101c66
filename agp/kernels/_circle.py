"""The average over a circle of the correlation exp(-1/2 sin^2(t / 2) / l^2) between two of its points at the angle t.

With c = 1 / (4 l^2), the correlation is exp(c (cos t - 1)), and its average is exp(-c) I_0(c), with the modified Bessel
function I_0.
"""

import math
from typing import NamedTuple

from agp.backend import Array, asarray_like, backend_of

INTERVALS = 64
"""The number of intervals of a half circle. The error of the trapezoidal rule is about 2 exp(-c) I_128(c)."""
LARGE = 200.0
"""Up to this c, the error is below 1e-17; from it on, that of the asymptotic series is."""
TERMS = 9
SERIES = [math.prod((2 * i - 1) ** 2 for i in range(1, k + 1)) / (math.factorial(k) * 8.0**k) for k in range(TERMS)]
"""The coefficients a_k of exp(-c) I_0(c) = (2 pi c)^(-1/2) sum_k a_k / c^k for large c."""


class CircleAverage(NamedTuple):
    """The average a over the circles of all columns: a scalar (0-d), or [S] for S settings."""

    logarithm: Array
    """log a, without the rounding errors of a near 1."""
    slope: Array
    """The derivatives of a by the lengthscale, with its shape."""

    @property
    def value(self) -> Array:
        """The average a."""
        return backend_of(self.logarithm).xp.exp(self.logarithm)

    @property
    def rest(self) -> Array:
        """1 - a, the correlation of a point with itself minus the average."""
        return -backend_of(self.logarithm).xp.expm1(self.logarithm)

    def subtract(self, r2: Array, /) -> Array:
        """Return exp(-r2 / 2) - a, without the rounding errors of 1 if both are near 1."""
        xp = backend_of(r2).xp
        logarithm = self.logarithm[:, None, None] if self.logarithm.ndim else self.logarithm
        return xp.exp(logarithm) * xp.expm1(-0.5 * r2 - logarithm)


def average_on_circles(lengthscale: Array, width: int, /, *, stacked: bool = False) -> CircleAverage:
    """Return the average over `width` circles, with a lengthscale for each column [D], or one for all (0-d).

    If `stacked` is True, lengthscales have a leading axis of settings.
    """
    xp = backend_of(lengthscale).xp
    c = 0.25 / (lengthscale * lengthscale)
    deficit, slope = _by_quadrature(xp.where(c < LARGE, c, xp.full_like(c, LARGE)))
    far, far_slope = _by_series(xp.where(c < LARGE, xp.full_like(c, LARGE), c))
    deficit, slope = xp.where(c < LARGE, deficit, far), xp.where(c < LARGE, slope, far_slope)
    logarithm = xp.log1p(deficit)
    # the average of a product of columns is the product of averages
    by_column = lengthscale.ndim > (1 if stacked else 0)
    total = xp.sum(logarithm, axis=-1) if by_column else width * logarithm
    times = xp.exp(total)[..., None] if by_column else width * xp.exp(total)
    return CircleAverage(total, times * slope / (1.0 + deficit) * (-2.0 * c / lengthscale))


def _by_quadrature(c: Array) -> tuple[Array, Array]:
    """Return the average minus 1, and its derivative by c."""
    xp = backend_of(c).xp
    cosines = asarray_like([math.cos(math.pi * j / INTERVALS) - 1.0 for j in range(INTERVALS + 1)], c)
    weights = asarray_like([(0.5 if j in (0, INTERVALS) else 1.0) / INTERVALS for j in range(INTERVALS + 1)], c)
    entries = xp.expm1(c[..., None] * cosines)
    return xp.sum(weights * entries, axis=-1), xp.sum(weights * cosines * (entries + 1.0), axis=-1)


def _by_series(c: Array) -> tuple[Array, Array]:
    """Return the average minus 1, and its derivative by c, for large c."""
    xp = backend_of(c).xp
    root, total, slope = xp.sqrt(2.0 * math.pi * c), 0.0 * c, 0.0 * c
    for k in range(TERMS - 1, -1, -1):  # Horner's scheme
        total, slope = SERIES[k] + total / c, -(k + 0.5) * SERIES[k] + slope / c
    return total / root - 1.0, slope / (c * root)
