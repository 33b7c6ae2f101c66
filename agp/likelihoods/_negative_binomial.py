"""The negative binomial likelihood: counts that vary more than Poisson's."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.constraints import POSITIVE
from agp.likelihoods._base import Likelihood, Prediction
from agp.likelihoods._bernoulli import LINKS
from agp.likelihoods._log_link import capped_exp, log_normal_prediction
from agp.likelihoods._panels import FLOATS, Datum, log_predictive_density
from agp.likelihoods._poisson import check_counts, check_exposure, counts_of_rate, observation_model_of_counts
from agp.likelihoods._quadrature import check_points, expectation
from agp.quantiles import ObservationModel, beta_tail

__all__ = ["NegativeBinomial"]

SERIES = 100.0
"""From this size on, differences of lgamma and of digamma are those of their asymptotic series."""


@tree.model
class NegativeBinomial(Likelihood):
    """Counts y_np with the mean m = exposure exp(f_np) and the variance m + dispersion m^2.

    They are Poisson counts whose rate is itself gamma distributed. With r = 1 / dispersion,
    log p(y | f) = lgamma(y + r) - lgamma(r) - lgamma(y + 1) + y log(m / r) - (y + r) log(1 + m / r).

    Parameters
    ----------
    dispersion
        0-d, without unit; 0 would be `Poisson`. Trained; freeze it to keep it.
    exposure
        What the rate is multiplied with: the length of time, area or bin that each count belongs to.
    points
        Nodes of the Gauss-Hermite quadrature in expectations; predictive densities have panels of their own.
    """

    dispersion: Array = tree.param(POSITIVE, default=1.0)
    exposure: float = 1.0
    points: int = 20

    whole_numbers: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    log_link: ClassVar[bool] = True
    # the curvature is at most (y + r) / 4, but r may be anything: steps are guarded as those of Poisson

    def _log_odds(self, f: Array) -> Array:
        """Log(m / r)."""
        return f + (math.log(self.exposure) + backend_of(f).xp.log(self.dispersion))

    def _log_constant(self, y: Array) -> Array:
        """Lgamma(y + r) - lgamma(r) - y log r - lgamma(y + 1)."""
        B = backend_of(y)
        xp, r = B.xp, 1.0 / self.dispersion
        # Stirling's series cancels by hand what a large r would lose to rounding
        series = (y + r - 0.5) * xp.log1p(y / r) - y + _tail(y + r) - _tail(r + xp.zeros_like(y))
        direct = B.special("gammaln", y + r) - B.special("gammaln", r) - y * xp.log(r)
        return xp.where(r > SERIES, series, direct) - B.special("gammaln", y + 1.0)

    def _constant_slope(self, y: Array) -> Array:
        """The derivative of `_log_constant` with respect to r."""
        B = backend_of(y)
        xp, r = B.xp, 1.0 / self.dispersion
        series = xp.log1p(y / r) - y / r + 0.5 * y / (r * (y + r)) + _tail_slope(y + r) - _tail_slope(r + 0.0 * y)
        direct = B.special("digamma", y + r) - B.special("digamma", r) - y / r
        return xp.where(r > SERIES, series, direct)

    def _log_bend(self, f: Array, y: Array) -> tuple[Array, Array, Array]:
        """Y log m - (y + r) log(1 + m / r), and with it log(1 + m / r) and its derivative m / (m + r)."""
        xp = backend_of(f).xp
        z = self._log_odds(f)
        log_total = xp.logaddexp(z, xp.zeros_like(z))
        value = y * (f + math.log(self.exposure)) - (y + 1.0 / self.dispersion) * log_total
        return value, log_total, xp.exp(z - log_total)

    def _log_density(self, f: Array, y: Array) -> tuple[Array, Pullback]:
        xp = backend_of(f).xp
        value, log_total, share = self._log_bend(f, y)
        r = 1.0 / self.dispersion

        def pullback(bar):
            # d/dr at fixed m: C'(r) - log(1 + m / r) + (y + r) / r m / (m + r), and dr = -r^2 ddispersion
            r_slope = self._constant_slope(y) - log_total + (y / r + 1.0) * share
            bar_of_dispersion = -r * r * xp.sum(bar * r_slope)
            return tree.cotangent(self, dispersion=bar_of_dispersion), bar * (y - (y + r) * share)

        return value + self._log_constant(y), pullback

    def expected_log_density(
        self, mu: Array, var: Array, y: Array, /, draws: Mapping[str, Array] | None = None
    ) -> tuple[Array, Pullback]:
        return expectation(self._log_density, mu, var, y, self.points)

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        # E[var(y | f)] = E[m] + dispersion E[m^2], and E[m^2] = E[m]^2 e^var
        xp = backend_of(mu).xp
        log_mean = mu + 0.5 * var + math.log(self.exposure)
        log_noise = xp.logaddexp(log_mean, 2.0 * log_mean + var + xp.log(self.dispersion))
        return log_normal_prediction(log_mean, log_noise, var)

    def _datum(self, y: Array) -> Datum:
        xp, one = backend_of(y).xp, backend_of(y).xp.ones_like(y)

        def slopes(f: Array) -> tuple[Array, Array]:
            share = self._log_bend(f, y)[2]
            weight = y + 1.0 / self.dispersion
            return y - weight * share, weight * share * (1.0 - share)

        # as that of a gamma variable of shape r, and of a Poisson one where r is large
        some = xp.maximum(y, one)
        return Datum(
            log_density=lambda f: self._log_bend(f, y[..., None])[0],
            slopes=slopes,
            bend=xp.log(some) - xp.log(xp.maximum(self.dispersion * one, one)) - math.log(self.exposure),
            width=xp.sqrt(xp.minimum(1.0 / some + self.dispersion, one)),
        )

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        value = log_predictive_density(self._datum(y), mu, var) + self._log_constant(y)
        return backend_of(mu).xp.sum(value, axis=-1)

    def observation_model(self) -> ObservationModel:
        dispersion = float(self.dispersion)
        odds, expit = math.log(dispersion), LINKS["logit"].cdf

        # P(y <= k) is the probability that a beta variable with r and k + 1 is at most r / (m + r)
        def tail(more: Any, log_mean: Any, upper: bool) -> Any:
            z = log_mean + odds
            return beta_tail(1.0 / dispersion, more, expit(-z), expit(z), upper)

        return observation_model_of_counts(tail, self.exposure, dispersion)

    def _sample(self, f: Any, rng: Any) -> Any:
        # Poisson counts whose rate is gamma distributed with the mean m and the variance dispersion m^2
        dispersion = float(self.dispersion)
        rate = self.exposure * capped_exp(f) * dispersion * rng.standard_gamma(1.0 / dispersion, f.shape)
        return counts_of_rate(rate, rng)

    @property
    def floats_per_row(self) -> int:
        return 8 * self.points + FLOATS

    def from_data(self, variance: float, /) -> Self:
        return self

    def proxies(self, y: Array, /) -> Array:
        return backend_of(y).xp.log(y + 0.5)  # roughly f and a constant

    def check_parameters(self) -> None:
        if self.dispersion.ndim != 0:
            msg = f"dispersion has shape {tuple(self.dispersion.shape)}, but must be one number."
            raise ValueError(msg)
        check_exposure(self.exposure)
        check_points(self.points)

    def check_targets(self, y: Array, /) -> None:
        check_counts(y, "negative binomial")


def _tail(x: Array) -> Array:
    """What lgamma(x) exceeds (x - 1/2) log x - x + log(2 pi) / 2 by, for x > 100: error below 1e-17."""
    inverse = 1.0 / x
    square = inverse * inverse
    return inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square / 1260.0))


def _tail_slope(x: Array) -> Array:
    """The derivative of `_tail`."""
    square = 1.0 / (x * x)
    return -square * (1.0 / 12.0 - square * (1.0 / 120.0 - square / 252.0))
