"""Likelihoods whose mean is a multiple of exp(f), which is log-normal for Gaussian f."""

from typing import ClassVar

from agp.backend import Array, backend_of
from agp.likelihoods._base import Prediction
from agp.likelihoods._panels import ByPanels
from agp.likelihoods._range import exp_in_range, log_range


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
