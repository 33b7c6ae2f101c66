"""Moments of observations whose mean is exp(f) up to a limit, and approaches twice the limit above it."""

from agp import tree
from agp.backend import Array
from agp.likelihoods import saturating_moments


@tree.model
class Saturation:
    """Limits above which a logarithmic link saturates, for moments of observations.

    If the logarithm of a rate is Gaussian with a large variance, its mean exp(m + v / 2) comes from values of f far
    above those that the data support. Moments of observations are therefore those of the link r(f) = exp(f) for f <= a,
    and r(f) = exp(a) (2 - exp(a - f)) above. They are computed from the normal distribution of f under which exp(f) has
    the same mean and variance as r(f). All other predictions use exp(f).

    Parameters
    ----------
    limits
        The limit a of each latent function [P], in units of `scales`; infinity means no limit.
    scales
        The numbers [P] by which each latent function is divided before the link is applied.
    """

    limits: Array = tree.constant()
    scales: Array = tree.constant()

    def bound_moments(self, mean: Array, variance: Array, /) -> tuple[Array, Array]:
        """Return the mean and variance [n, P] of the latent function whose exponential has the bounded moments."""
        u = self.scales[None, :]
        mean, variance = saturating_moments(mean / u, variance / (u * u), self.limits[None, :])
        return mean * u, variance * (u * u)
