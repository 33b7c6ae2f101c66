"""Moments of observations whose mean is exp(f) up to a limit, and approaches twice the limit above it."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback
from agp.likelihoods import Likelihood, saturating_moments
from agp.predictors._conditional import Conditional, Observe, delegate
from agp.predictors._predictor import Predictor
from agp.processes import Paths


@tree.model
class SaturatingConditional(Conditional):
    """A posterior of latent functions f, for moments of observations under a link that saturates.

    If the logarithm of a rate is Gaussian with a large variance, its mean exp(m + v / 2) comes from values of f far
    above those that the data support. Moments of observations are therefore those of the link r(f) = exp(f) for f <= a,
    and r(f) = exp(a) (2 - exp(a - f)) above. They are computed from the normal distribution of f under which exp(f) has
    the same mean and variance as r(f). All other predictions use exp(f).

    Parameters
    ----------
    conditional
        The posterior of the latent functions.
    limits
        The limit a of each latent function [P], in units of `scales`; infinity means no limit.
    scales
        The numbers [P] by which each latent function is divided before the link is applied.
    """

    conditional: Conditional
    limits: Array = tree.constant()
    scales: Array = tree.constant()

    outputs = delegate("conditional", "outputs")  # type: ignore[override]
    width = delegate("conditional", "width")  # type: ignore[override]
    reference = delegate("conditional", "reference")  # type: ignore[override]
    floats_per_row = delegate("conditional", "floats_per_row")  # type: ignore[override]
    rows_share_work = delegate("conditional", "rows_share_work")  # type: ignore[override]
    mixing = delegate("conditional", "mixing")  # type: ignore[override]

    observes = True

    def mean(self, X: Array, /) -> Array:
        return self.conditional.mean(X)

    def moments(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        return self.conditional.moments(X)

    def observed_moments(self, X: Array, observe: Observe, /) -> tuple[Array, Array]:
        def saturated(mean: Array, variance: Array) -> tuple[Array, Array]:
            u = self.scales[None, :]
            mean, variance = saturating_moments(mean / u, variance / (u * u), self.limits[None, :])
            return observe(mean * u, variance * (u * u))

        return self.conditional.observed_moments(X, saturated)

    def covariance(self, X: Array, /) -> Array:
        return self.conditional.covariance(X)

    def for_rows(self, X: Array, /) -> "SaturatingConditional":
        return SaturatingConditional(self.conditional.for_rows(X), self.limits, self.scales)

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        return self.conditional.paths(rng, count, features)

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> "SaturatingConditional":
        return SaturatingConditional(self.conditional.condition_on(X, y, likelihood), self.limits, self.scales)


def with_saturation(predictor: Predictor, limits: Array, scales: Array, /) -> Predictor:
    """Return a predictor with bounded moments of observations; see `SaturatingConditional` for the arguments."""
    bounded = tuple(SaturatingConditional(one, limits, scales) for one in predictor.conditionals)
    return tree.replace(predictor, {"conditionals": bounded})
