"""Likelihoods whose mean is a multiple of exp(f), which is log-normal for Gaussian f."""

from typing import ClassVar

from agp.backend import Array, backend_of
from agp.likelihoods._base import Prediction
from agp.likelihoods._panels import ByPanels
from agp.likelihoods._range import exp_in_range, log_range

NEGLIGIBLE = 8.0
"""If a limit is so many standard deviations away, values above it contribute less than a rounding error."""


class LogLink(ByPanels):
    """Base class for log-concave likelihoods whose mean is a multiple of exp(f)."""

    log_concave: ClassVar[bool] = True
    log_link: ClassVar[bool] = True


def capped_exp(x: Array) -> Array:
    """Compute exp(x), capped below the largest float so that sums stay finite."""
    xp = backend_of(x).xp
    return xp.exp(xp.minimum(x, xp.full_like(x, log_range(x)[1] - 20.0)))


def log_normal_prediction(log_mean: Array, log_noise: Array, var: Array) -> Prediction:
    """Compute the mean and the variance of y [N, P] from log E[m], log E[var(y | f)] and the variance of f.

    Given f, y has the mean m, a multiple of exp(f). var(y) = E[var(y | f)] + E[m]^2 (e^var - 1) is computed from
    logarithms, which do not overflow.
    """
    xp = backend_of(var).xp
    some = var > 0.0
    positive = xp.where(some, var, xp.ones_like(var))
    log_relative = positive + xp.log(-xp.expm1(-positive))
    log_variance = xp.where(some, xp.logaddexp(log_noise, 2.0 * log_mean + log_relative), log_noise)
    return Prediction(*exp_in_range(log_mean, log_variance))


def saturating_moments(m: Array, v: Array, a: Array, /) -> tuple[Array, Array]:
    """Return the mean and variance [N, P] of a normal g such that exp(g) has the mean and variance of r(f).

    The link r(f) is exp(f) for f <= a, and exp(a) (2 - exp(a - f)) above the limit a. It has a continuous slope, and is
    below 2 exp(a). Let f ~ N(m, v), s^2 = v, d = m - a and z = d / s. With the normal distribution function Phi and
    M_k = E[exp(k (a - f)); f > a] = exp(-k d + k^2 v / 2) Phi(z - k s)::

        E[r]   = exp(m + v / 2) Phi(-z - s) + exp(a) (2 Phi(z) - M_1)
        E[r^2] = exp(2 m + 2 v) Phi(-z - 2 s) + exp(2 a) (4 Phi(z) - 4 M_1 + M_2)
    """
    B = backend_of(m)
    xp = B.xp
    s = xp.sqrt(v)
    # where the limit is far above f, or f has no variance below it, g = f
    used = (a < m + 2.0 * v + NEGLIGIBLE * s) & ((s > 0.0) | (a < m))
    m_, a_ = (xp.where(used, x, xp.zeros_like(m)) for x in (m, a + xp.zeros_like(m)))
    tiny = float(xp.finfo(m.dtype).smallest_normal) ** 0.5
    s_ = xp.where(used, xp.maximum(s, xp.full_like(s, tiny)), xp.ones_like(s))
    v_, d = s_ * s_, m_ - a_
    z = d / s_
    above, one, two = (xp.exp(0.5 * k * k * v_ - k * d + B.special("log_ndtr", z - k * s_)) for k in (0.0, 1.0, 2.0))

    def log_total(log_below: Array, rest: Array) -> Array:
        positive = xp.maximum(rest, xp.full_like(rest, float(xp.finfo(rest.dtype).smallest_normal)))
        return xp.logaddexp(log_below, xp.log(positive))

    # both sums relative to exp(a) and exp(2 a)
    first = log_total(d + 0.5 * v_ + B.special("log_ndtr", -z - s_), 2.0 * above - one)
    square = log_total(2.0 * (d + v_) + B.special("log_ndtr", -z - 2.0 * s_), 4.0 * above - 4.0 * one + two)
    spread = xp.maximum(square - 2.0 * first, xp.zeros_like(first))  # log(1 + Var[r] / E[r]^2)
    return xp.where(used, a_ + first - 0.5 * spread, m), xp.where(used, spread, v)
