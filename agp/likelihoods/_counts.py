"""The Poisson and negative binomial likelihoods for counts."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.distributions import MAX_LOG, ObservationModel, beta_tail, gamma_tail
from agp.likelihoods._base import Drawn, Prediction, check_number
from agp.likelihoods._bernoulli import LINKS
from agp.likelihoods._log_link import LogLink, capped_exp, log_normal_prediction
from agp.likelihoods._panels import Datum
from agp.likelihoods._quadrature import ByQuadrature
from agp.tree import POSITIVE

LARGEST_RATE = 9e18
"""The largest rate for which NumPy can draw Poisson counts."""
SERIES = 100.0
"""Above this argument, differences of lgamma and of digamma are computed from their asymptotic series."""


class Counts(LogLink):
    """Base class for likelihoods of counts with the mean exposure * exp(f)."""

    exposure: float

    whole_numbers: ClassVar[bool] = True

    def level(self, y: Array, /) -> Array:
        # the logarithm of the average rate; a total of 0 is replaced by 0.5
        xp = backend_of(y).xp
        total = xp.sum(y, axis=0)
        return xp.log(xp.where(total > 0.0, total, xp.full_like(total, 0.5))) - math.log(y.shape[0] * self.exposure)

    def proxies(self, y: Array, /) -> Array:
        return backend_of(y).xp.log(y + 0.5)  # approximately f plus a constant

    def _sample_counts(self, rate: Any, rng: Any) -> Any:
        return rng.poisson(rate.clip(max=LARGEST_RATE)) + 0.0

    def _observation_model(self, tail: Callable[[Any, Any, bool], Any], dispersion: float = 0.0) -> ObservationModel:
        """Return the tails on the host, as functions of v with y + 1 = exposure * exp(v).

        The tails are computed by the function tail(y + 1, log mean, upper), which must be continuous in y.
        """
        log_exposure = math.log(self.exposure)

        def bends(v: Any) -> tuple[tuple[Any, Any], ...]:
            # the bends of the density, as in `NegativeBinomial._datum`
            xp = backend_of(v).xp
            square = xp.minimum(xp.exp(-v - log_exposure) + dispersion, xp.ones_like(v))
            return ((v - math.log(max(dispersion, 1.0)), xp.sqrt(square)),)

        return ObservationModel(
            tail=lambda v, f, upper: tail(backend_of(v).xp.exp(v + log_exposure), f + log_exposure, upper),
            value=lambda v: backend_of(v).xp.exp(v + log_exposure) - 1.0,
            bends=bends,
            width=1.0,
            ends=(-log_exposure - 1.0, MAX_LOG - log_exposure),
            place=lambda y: backend_of(y).xp.log(y + 1.0) - log_exposure,
        )

    def check_parameters(self) -> None:
        super().check_parameters()
        if not 0.0 < self.exposure < math.inf:
            raise ValueError(f"exposure is {self.exposure!r}, but must be positive and finite.")

    def check_targets(self, y: Array, /) -> None:
        xp = backend_of(y).xp
        bad = (y < 0.0) | (y != xp.floor(y))
        if bool(xp.any(bad)):
            example = float(xp.min(xp.where(bad, y, xp.full_like(y, math.inf))))
            name = type(self).__name__
            raise ValueError(
                f"counts must be whole numbers of at least 0 for the {name} likelihood; found {example:g}."
            )


@tree.model
class Poisson(Counts):
    """The Poisson likelihood y_np ~ Poisson(exposure * exp(f_np)) for counts; f is the logarithm of the rate.

    Expectations have closed forms; quadrature is needed only for predictive densities. A predicted mean or variance
    above the largest float is replaced by that float, with a `RepairWarning`.

    Parameters
    ----------
    exposure
        The time, the area or the size of the bin in which each count was made. The exposure multiplies the rate.
        At the default prior mean of f, which is 0, the expected count is the exposure.

    Examples
    --------
    At a rate of 5 counts per hour, two hours give 10 counts on average, and 5 to 15 in most cases.

    >>> import numpy as np
    >>> import agp
    >>> likelihood = agp.Poisson(exposure=2.0)
    >>> f, certain = np.log(np.asarray([[5.0]])), np.zeros((1, 1))
    >>> mean, variance = likelihood.predict(f, certain)
    >>> print(mean.round(2), variance.round(2))
    [[10.]] [[10.]]
    >>> print(likelihood.predictive_quantiles(f, certain, (0.05, 0.95))[:, 0, 0])
    [ 5. 15.]
    """

    short_name: ClassVar[str] = "poisson"
    exposure: float = 1.0

    def _log_constant(self, y: Array) -> Array:
        return y * math.log(self.exposure) - backend_of(y).special("gammaln", y + 1.0)

    def _rate(self, f: Array) -> Array:
        return capped_exp(f + math.log(self.exposure))

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        # y mu - b exp(mu + var / 2) + y log b - lgamma(y + 1)
        mean = self._rate(mu + 0.5 * var)

        def pullback(bar):
            column = bar[:, None]
            return tree.cotangent(self), column * (y - mean), -0.5 * column * mean

        return backend_of(mu).xp.sum(y * mu - mean + self._log_constant(y), axis=-1), pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        log_mean = mu + 0.5 * var + math.log(self.exposure)
        return log_normal_prediction(log_mean, log_mean, var)

    def _datum(self, y: Array) -> Datum:
        xp = backend_of(y).xp

        def slopes(f: Array) -> tuple[Array, Array]:
            rate = self._rate(f)
            return y - rate, rate

        some = xp.maximum(y, xp.ones_like(y))
        return Datum(
            log_density=lambda f: y[..., None] * f - self._rate(f),
            slopes=slopes,
            bend=xp.log(some) - math.log(self.exposure),
            width=1.0 / xp.sqrt(some),
        )

    def observation_model(self) -> ObservationModel:
        # P(y <= k) is the probability that a gamma variable with shape k + 1 exceeds the rate
        return self._observation_model(lambda more, log_rate, upper: gamma_tail(more, log_rate, not upper))

    def _sample(self, f: Any, rng: Any) -> Any:
        return self._sample_counts(self.exposure * capped_exp(f), rng)


@tree.model
class NegativeBinomial(Counts, ByQuadrature):
    """The negative binomial likelihood: counts with mean m = exposure * exp(f) and variance m + dispersion m^2.

    Such counts are Poisson counts with gamma-distributed rates. With r = 1 / dispersion,
    log p(y | f) = lgamma(y + r) - lgamma(r) - lgamma(y + 1) + y log(m / r) - (y + r) log(1 + m / r).

    Parameters
    ----------
    dispersion
        A positive, dimensionless number (0-d). The dispersion is trained; freeze it to keep its value. As the
        dispersion tends to 0, the likelihood tends to `Poisson`.
    exposure
        The time, the area or the size of the bin in which each count was made. The exposure multiplies the mean.
    points
        The number of Gauss-Hermite quadrature nodes for computing expectations. Predictive densities use a different
        quadrature rule.

    Examples
    --------
    Counts with mean 10 vary more than Poisson counts, whose variance is 10.

    >>> import numpy as np
    >>> import agp
    >>> f = np.log(np.asarray([[10.0]]))
    >>> for dispersion in (0.01, 0.5):
    ...     mean, variance = agp.NegativeBinomial(dispersion).predict(f, np.zeros((1, 1)))
    ...     print(mean[0].round(2), variance[0].round(2))
    [10.] [11.]
    [10.] [60.]
    """

    short_name: ClassVar[str] = "negative-binomial"
    dispersion: Array = tree.param(POSITIVE, default=1.0)
    exposure: float = 1.0
    points: int = 20

    # bounded_curvature is False: the curvature is at most (y + r) / 4, but r has no bound

    def _log_constant(self, y: Array) -> Array:
        """Compute lgamma(y + r) - lgamma(r) - y log r - lgamma(y + 1)."""
        B = backend_of(y)
        xp, r = B.xp, 1.0 / self.dispersion
        # Stirling's series, without the terms that cancel and that would cause rounding errors for large r
        series = (y + r - 0.5) * xp.log1p(y / r) - y + _tail(y + r) - _tail(r + xp.zeros_like(y))
        direct = B.special("gammaln", y + r) - B.special("gammaln", r) - y * xp.log(r)
        return xp.where(r > SERIES, series, direct) - B.special("gammaln", y + 1.0)

    def _constant_slope(self, y: Array) -> Array:
        """Compute the derivative of `_log_constant` with respect to r."""
        B = backend_of(y)
        xp, r = B.xp, 1.0 / self.dispersion
        series = xp.log1p(y / r) - y / r + 0.5 * y / (r * (y + r)) + _tail_slope(y + r) - _tail_slope(r + 0.0 * y)
        direct = B.special("digamma", y + r) - B.special("digamma", r) - y / r
        return xp.where(r > SERIES, series, direct)

    def _log_bend(self, f: Array, y: Array) -> tuple[Array, Array, Array]:
        """Return y log m - (y + r) l, l = log(1 + m / r), and the derivative m / (m + r) of l with respect to log m."""
        xp = backend_of(f).xp
        z = f + (math.log(self.exposure) + xp.log(self.dispersion))  # log(m / r)
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

        # the bend of a gamma density with shape r, or for large r, that of a Poisson density
        some = xp.maximum(y, one)
        return Datum(
            log_density=lambda f: self._log_bend(f, y[..., None])[0],
            slopes=slopes,
            bend=xp.log(some) - xp.log(xp.maximum(self.dispersion * one, one)) - math.log(self.exposure),
            width=xp.sqrt(xp.minimum(1.0 / some + self.dispersion, one)),
        )

    def observation_model(self) -> ObservationModel:
        dispersion = float(self.dispersion)
        odds, expit = math.log(dispersion), LINKS["logit"].cdf

        # P(y <= k) is the probability that a Beta(r, k + 1) variable is at most r / (m + r)
        def tail(more: Any, log_mean: Any, upper: bool) -> Any:
            z = log_mean + odds
            return beta_tail(1.0 / dispersion, more, expit(-z), expit(z), upper)

        return self._observation_model(tail, dispersion)

    def _sample(self, f: Any, rng: Any) -> Any:
        # the rate has a gamma distribution with mean m and variance dispersion * m^2
        dispersion = float(self.dispersion)
        rate = self.exposure * capped_exp(f) * dispersion * rng.standard_gamma(1.0 / dispersion, f.shape)
        return self._sample_counts(rate, rng)

    def check_parameters(self) -> None:
        check_number("dispersion", self.dispersion)
        super().check_parameters()


def _tail(x: Array) -> Array:
    """Compute lgamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2) for x > 100, with an error below 1e-17."""
    inverse = 1.0 / x
    square = inverse * inverse
    return inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square / 1260.0))


def _tail_slope(x: Array) -> Array:
    """Compute the derivative of `_tail`."""
    square = 1.0 / (x * x)
    return -square * (1.0 / 12.0 - square * (1.0 / 120.0 - square / 252.0))
