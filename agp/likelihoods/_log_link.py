"""What likelihoods whose mean is a multiple of exp(f) share: f is Gaussian, the mean log-normal."""

from agp.backend import Array, backend_of
from agp.likelihoods._base import Prediction
from agp.likelihoods._range import exp_in_range, log_range

__all__ = ["capped_exp", "log_largest", "log_normal_prediction"]


def log_largest(x: Array) -> float:
    """The logarithm at which `capped_exp` cuts."""
    return log_range(x)[1] - 20.0


def capped_exp(x: Array) -> Array:
    """exp(x), cut where no number can hold it, far enough below the largest that sums of them stay finite."""
    xp = backend_of(x).xp
    return xp.exp(xp.minimum(x, xp.full_like(x, log_largest(x))))


def log_normal_prediction(log_mean: Array, log_noise: Array, var: Array) -> Prediction:
    """Mean and variance of observations [N, P], from log E[m], log E[var(y | f)] and the variance of log m = f + const.

    var(y) = E[var(y | f)] + E[m]^2 (e^var - 1), by logarithms, which never overflow.
    """
    xp = backend_of(var).xp
    some = var > 0.0
    positive = xp.where(some, var, xp.ones_like(var))
    log_relative = positive + xp.log(-xp.expm1(-positive))
    log_variance = xp.where(some, xp.logaddexp(log_noise, 2.0 * log_mean + log_relative), log_noise)
    return Prediction(*exp_in_range(log_mean, log_variance))
