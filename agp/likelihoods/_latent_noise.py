"""The Gaussian likelihood whose noise variance is a latent function of the inputs."""

import math
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.distributions import MAX_LOG, MIN_PROBABILITY, Mixture, gaussian_expectation, normal_tail
from agp.likelihoods._base import Drawn, Likelihood, Prediction, average_samples
from agp.likelihoods._log_link import capped_exp
from agp.likelihoods._panels import FLOATS, Datum, log_predictive_density
from agp.likelihoods._range import exp_in_range

LOG_2PI = math.log(2.0 * math.pi)
NOISE_FRACTION = 0.1
"""The starting value of the noise variance, as a fraction of the variance of the targets."""


@tree.model
class LatentNoiseGaussian(Likelihood):
    """The Gaussian likelihood y_nk ~ N(f_nk, (u exp(g_nk / u))^2), whose latent functions are f and g.

    The mean is f, and g determines the noise standard deviation. Targets [N, K] have P = 2 K latent functions: the K
    functions f, then the K functions g. Expectations have closed forms. In predictive densities, the integral over f is
    exact, and the integral over g is computed by quadrature. If the noise variance of each target is known, use
    `Gaussian` and pass the variances as ``noise=``.

    Parameters
    ----------
    unit
        The constant u, 0-d or [K], in the unit of the targets. This constant gives g the same unit as f, so that f and
        g can share a kernel. The default is the standard deviation of the targets, or 1 without data. The noise
        variance starts at a tenth of the variance of the targets.

    Source: Lazaro-Gredilla & Titsias, "Variational heteroscedastic Gaussian process regression", ICML 2011.

    Examples
    --------
    The noise grows with x. The model learns this as the second of its two latent functions.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 4.0, 100)[:, None]
    >>> y = np.sin(X) + X * np.random.default_rng(0).standard_normal(X.shape)
    >>> parts = {"num_inducing": 8, "posterior": "whitened"}
    >>> model = agp.SVGP.from_data(X, y, likelihood=agp.LatentNoiseGaussian(), **parts)
    >>> trained = agp.fit(model, X, y).model
    >>> trained.predict(X).mean.shape
    (100, 2)
    >>> variance = trained.predict(X, observed=True).variance[:, 0]
    >>> bool(variance[-1] > 10.0 * variance[0])
    True
    """

    short_name: ClassVar[str] = "latent-noise"
    unit: Array | None = tree.unit(default=None)

    couples_outputs: ClassVar[bool] = True
    mean_is_latent: ClassVar[bool] = True

    def latents(self, columns: int, /) -> int:
        return 2 * columns

    def _in_units(self, g: Array) -> Array:
        return g if self.unit is None else g / self.unit

    def _log_noise(self, g: Array) -> Array:
        """Compute the logarithm of the noise standard deviation from g."""
        return g if self.unit is None else g / self.unit + backend_of(g).xp.log(self.unit)

    def _variance_in_units(self, var: Array) -> Array:
        return self._in_units(self._in_units(var))

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        # -log(2 pi) / 2 - l - ((y - m)^2 + v) E[exp(-2 log noise)] / 2 with l = E[log noise]
        xp, K = backend_of(mu).xp, y.shape[1]
        log_noise = self._log_noise(mu[:, K:])
        precision = capped_exp(2.0 * (self._variance_in_units(var[:, K:]) - log_noise))
        residual = y - mu[:, :K]
        square = (residual * residual + var[:, :K]) * precision

        def pullback(bar):
            column = bar[:, None]
            f_bar, g_bar = column * residual * precision, self._in_units(column * (square - 1.0))
            f_var_bar, g_var_bar = -0.5 * column * precision, -self._variance_in_units(column * square)
            return (
                tree.cotangent(self),
                xp.concat([f_bar, g_bar], axis=1),
                xp.concat([f_var_bar, g_var_bar], axis=1),
            )

        return -xp.sum(0.5 * LOG_2PI + log_noise + 0.5 * square, axis=-1), pullback

    def check_offset(self, offset: Array | None, /) -> None:
        if offset is not None and offset.shape[-1] == 1:
            raise ValueError(
                f"offset has one column, but half of the latent functions of {type(self).__name__} define the noise; "
                "pass offset [N, 2 K], with zeros for the noise."
            )

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        """Return the means and variances of observations [N, K], for latent means and variances [N, 2 K]."""
        xp, K = backend_of(mu).xp, mu.shape[1] // 2
        log_noise = 2.0 * (self._log_noise(mu[:, K:]) + self._variance_in_units(var[:, K:]))
        own = var[:, :K]
        some = own > 0.0
        log_own = xp.log(xp.where(some, own, xp.ones_like(own)))
        log_variance = xp.where(some, xp.logaddexp(log_noise, log_own), log_noise)
        return Prediction(mu[:, :K], *exp_in_range(log_variance))

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        xp, K = backend_of(mu).xp, y.shape[1]
        own, square = var[:, :K], (y - mu[:, :K]) ** 2
        # N(y; m, v + e^(2 l)) has its maximum at l = log((y - m)^2 - v) / 2, or decreases everywhere if (y - m)^2 < v
        log_noise, spread = self._log_noise(mu[:, K:]), self._variance_in_units(var[:, K:])
        datum = _density_of_log_noise(own, square)
        return xp.sum(log_predictive_density(datum, log_noise, spread), axis=-1)

    def mixture(self, mu: Any, var: Any, /, shares: Any = None) -> Mixture:
        """Return the tails, integrated over the logarithm of the noise by quadrature.

        The tails bend where the noise standard deviation equals the residual or the standard deviation of f.
        """
        xp, K = backend_of(mu).xp, mu.shape[2] // 2
        mean, own = mu[..., :K], xp.sqrt(var[..., :K] + MIN_PROBABILITY)
        log_noise, spread = self._log_noise(mu[..., K:]), self._variance_in_units(var[..., K:])
        highest = xp.full_like(log_noise, 0.5 * MAX_LOG)
        centre = average_samples(mean, shares)
        apart = (mean - centre) ** 2 + own * own + xp.exp(2.0 * xp.minimum(log_noise, highest))

        def tail(y: Any, upper: bool) -> Any:
            residual = y - mean

            def of_noise(g: Any) -> Any:
                noise = xp.exp(xp.minimum(g, highest[..., None]))
                return normal_tail(residual[..., None] / xp.hypot(own[..., None], noise), upper)

            bends = (xp.log(xp.maximum(xp.abs(residual), own)), 0.5), (xp.log(own), 0.5)
            return average_samples(gaussian_expectation(of_noise, log_noise, spread, bends), shares)

        return Mixture(tail, lambda y: y, centre, xp.sqrt(average_samples(apart, shares)))

    def _sample(self, f: Any, rng: Any) -> Any:
        K = f.shape[-1] // 2
        log_noise = self._log_noise(f[..., K:])
        return f[..., :K] + capped_exp(log_noise) * rng.standard_normal(log_noise.shape)

    @property
    def floats_per_row(self) -> int:
        return 10 + FLOATS

    def from_data(self, variance: float, /) -> Self:
        return tree.with_defaults(self, unit=math.sqrt(variance))

    def from_outputs(self, variances: Array, /) -> Self:
        K = variances.shape[0] // 2
        return self.from_data(float(variances[0])) if K == 1 else tree.with_defaults(self, unit=variances[:K] ** 0.5)

    def observations(self, y: Array, /) -> Array:
        # columns for g with its starting mean and its prior variance, the variance of the targets
        xp = backend_of(y).xp
        centred = y - xp.mean(y, axis=0)
        start = 0.5 * math.log(NOISE_FRACTION) * xp.sqrt(xp.mean(centred * centred, axis=0))
        return xp.concat([y, centred + start], axis=1)


def _density_of_log_noise(own: Array, square: Array) -> Datum:
    """log N(y; m, v + e^(2 l)) as a function of l, for v = `own` and (y - m)^2 = `square`, each [N, K]."""
    xp = backend_of(own).xp
    tiny = float(xp.finfo(own.dtype).smallest_normal) ** 0.5
    log_own = xp.log(own + tiny)

    def log_density(log_noise: Array) -> Array:
        log_total = xp.logaddexp(log_own[..., None], 2.0 * log_noise)
        return -0.5 * (LOG_2PI + log_total + square[..., None] * xp.exp(-log_total))

    def slopes(log_noise: Array) -> tuple[Array, Array]:
        log_total = xp.logaddexp(log_own, 2.0 * log_noise)
        share, excess = xp.exp(2.0 * log_noise - log_total), square * xp.exp(-log_total)
        return share * (excess - 1.0), 2.0 * share * (share * excess - (1.0 - share) * (excess - 1.0))

    largest = xp.maximum(xp.maximum(square, own), xp.full_like(own, tiny))
    return Datum(log_density, slopes, bend=0.5 * xp.log(largest), width=0.5 * xp.ones_like(own))
