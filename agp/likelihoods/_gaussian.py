"""The Gaussian likelihood, y = f + noise, whose variance is trained (one, or one for each output), or known for each
datum.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Backend, Pullback, backend_of
from agp.constraints import POSITIVE
from agp.likelihoods._base import Likelihood, Prediction
from agp.likelihoods._by_output import check_by_output
from agp.likelihoods._range import positive_variance
from agp.quantiles import Mixture, normal_quantile, normal_tail
from agp.scaling import unit_by_column

__all__ = ["Gaussian", "HeteroscedasticGaussian"]

LOG_2PI = math.log(2.0 * math.pi)


def _expected(
    mu: Array, var: Array, y: Array, noise: Array, weight: Array | None = None
) -> tuple[Array, Callable[[Array], tuple]]:
    """The expected log density [N] for noise variances, 0-d, [P] or [N, P], and ``bar -> (noise, mu, var)_bar`` [N, P].

    That of the noise is a function of no arguments, which gives a tuple of one: not all want it, and it is the first to
    overflow. The terms of single targets count with their weights [N, P], where there are any.
    """
    B = backend_of(mu)
    terms, residual, square = B.fused(_terms, mu, var, y, noise)

    def pullback(bar):
        column = bar[:, None] if weight is None else bar[:, None] * weight
        moments_bar = B.fused(_pull_moments, column, residual, noise)
        return partial(B.fused, _pull_noise, column, square, noise), *moments_bar

    return -0.5 * B.xp.sum(terms if weight is None else weight * terms, axis=-1), pullback


# -1/2 log(2 pi s) - ((y - mu)^2 + var) / (2 s)


def _terms(B: Backend, mu: Array, var: Array, y: Array, noise: Array) -> tuple[Array, Array, Array]:
    residual = y - mu
    square = residual * residual + var
    return LOG_2PI + B.xp.log(noise) + square / noise, residual, square


def _pull_moments(B: Backend, column: Array, residual: Array, noise: Array) -> tuple[Array, Array]:
    return column * residual / noise, -0.5 / noise * column + B.xp.zeros_like(residual)


def _pull_noise(_: Backend, column: Array, square: Array, noise: Array) -> tuple[Array]:
    return (column * (square / noise - 1.0) / (2.0 * noise),)


def _like_noise(noise_bar: Callable[[], tuple[Array]], noise: Array) -> Array:
    """The cotangents [N, P] of noise variances, summed to the shape of the leaf, 0-d or [P]."""
    (terms,) = noise_bar()
    return backend_of(terms).xp.sum(terms, axis=0 if noise.ndim else None)


def _log_density(mu: Array, var: Array, y: Array, weight: Array | None = None) -> Array:
    """Log N(y; mu, var) summed over the outputs [N], with weights if there are any."""
    xp = backend_of(mu).xp
    terms = LOG_2PI + xp.log(var) + (y - mu) ** 2 / var
    return -0.5 * xp.sum(terms if weight is None else weight * terms, axis=-1)


def _normal_quantiles(mu: Array, var: Array, levels: tuple[float, ...]) -> Array:
    """The quantiles [Q, N, P] of N(mu, var), for moments [N, P]."""
    xp = backend_of(mu).xp
    root = xp.sqrt(var)
    return xp.stack([mu + normal_quantile(level) * root for level in levels])


def _normal_mixture(mu: Any, var: Any) -> Mixture:
    """The mixture of N(mu, var) over samples, for moments [S, N, P] on the host."""
    xp = backend_of(mu).xp
    root = xp.sqrt(xp.maximum(var, xp.full_like(var, float(xp.finfo(var.dtype).smallest_normal))))
    centre = xp.mean(mu, axis=0)
    return Mixture(
        tail=lambda y, upper: xp.mean(normal_tail((y - mu) / root, upper), axis=0),
        value=lambda y: y,
        centre=centre,
        spread=xp.sqrt(xp.mean(root * root + (mu - centre) ** 2, axis=0)),
    )


def _normal_cdf(mu: Array, var: Array, y: Array) -> Array:
    """P(Y <= y) [N, P] of the mixture of N(mu, var) over samples, for moments [S, N, P]."""
    B = backend_of(mu)
    return B.xp.mean(B.special("ndtr", (y - mu) / B.xp.sqrt(var)), axis=0)


def _normal_crps(mu: Array, var: Array, y: Array) -> Array:
    """The CRPS [N, P] of that mixture: E|Y - y| - E|Y - Y'| / 2.

    Source: Grimit et al., "The continuous ranked probability score for circular variables and its application to
    mesoscale forecast ensemble verification", QJRMS 2006, Eq. 5.
    """
    xp = backend_of(mu).xp
    apart = sum(xp.mean(_absolute(mu - mu[s, ...], var + var[s, ...]), axis=0) for s in range(mu.shape[0]))
    return xp.mean(_absolute(y - mu, var), axis=0) - 0.5 * apart / mu.shape[0]


def _absolute(mean: Array, var: Array) -> Array:
    """E|x| for x ~ N(mean, var): mean (2 Phi(z) - 1) + 2 s phi(z), with z = mean / s."""
    B = backend_of(mean)
    root = B.xp.sqrt(var)
    z = mean / root
    density = B.xp.exp(-0.5 * z * z) * math.sqrt(0.5 / math.pi)
    return mean * (2.0 * B.special("ndtr", z) - 1.0) + 2.0 * root * density


@tree.model
class Gaussian(Likelihood):
    """y_np ~ N(f_np, noise_variance_p): noise shared by the outputs, or of a variance for each.

    Parameters
    ----------
    noise_variance
        sigma^2, 0-d for all outputs or [P] for each, in squared units of the targets. None starts at a tenth of their
        variance: by output where there are several, but for the exact models and their collapsed forms, whose outputs
        share one covariance.
    missing
        Whether a target that is NaN was not observed: its log density is 0, and it moves nothing. By default NaN is
        refused. For models that look at targets one by one, such as `agp.SVGP`; the exact ones and their collapsed
        forms take all targets of a row, or none.
    """

    noise_variance: Array = tree.param(POSITIVE, default=None, unit="noise_variance_unit")
    noise_variance_unit: Array | None = tree.unit(default=None)
    missing: bool = dataclasses.field(default=False, kw_only=True)

    bounded_curvature: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True

    def expected_log_density(
        self, mu: Array, var: Array, y: Array, /, draws: Mapping[str, Array] | None = None
    ) -> tuple[Array, Pullback]:
        y, weight = self._observed(y)
        value, pull = _expected(mu, var, y, self.noise_variance, weight)

        def pullback(bar):
            noise_bar, mu_bar, var_bar = pull(bar)
            own = tree.cotangent(self, noise_variance=_like_noise(noise_bar, self.noise_variance))
            return own, mu_bar, var_bar

        return value, pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        return Prediction(mu, var + self.noise_variance)

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        y, weight = self._observed(y)
        return _log_density(mu, var + self.noise_variance, y, weight)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...]) -> Array:
        if mu.shape[0] > 1:
            return super()._quantiles(mu, var, levels)
        return _normal_quantiles(mu[0, ...], var[0, ...] + self.noise_variance, levels)

    def _cdf(self, mu: Array, var: Array, y: Array) -> Array:
        return _normal_cdf(mu, var + self.noise_variance, y)

    def _crps(self, mu: Array, var: Array, y: Array) -> Array:
        return _normal_crps(mu, var + self.noise_variance, y)

    def mixture(self, mu: Any, var: Any, /) -> Mixture:
        return _normal_mixture(mu, var + self.noise_variance)

    def _sample(self, f: Any, rng: Any) -> Any:
        return f + self.noise_variance**0.5 * rng.standard_normal(f.shape)

    def _observed(self, y: Array) -> tuple[Array, Array | None]:
        """The targets with zeros for those not observed, and weights [N, P], 1 for the observed ones; None for all."""
        if not self.missing:
            return y, None
        xp = backend_of(y).xp
        absent = xp.isnan(y)
        return xp.where(absent, xp.zeros_like(y), y), xp.astype(~absent, y.dtype)

    def check_outputs(self, outputs: int, /) -> None:
        check_by_output("noise_variance", self.noise_variance, outputs)

    def variance_cost(self) -> Array | None:
        return None if self.missing else 0.5 / self.noise_variance

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float | None:
        xp = backend_of(y).xp
        known = ~xp.isnan(y)
        weight = xp.astype(known, y.dtype)
        weight = weight if weights is None else weight * weights[:, None]
        count = xp.sum(weight, axis=0)
        some = xp.where(count > 0.0, count, xp.ones_like(count))
        values = xp.where(known, y, xp.zeros_like(y))
        deviation = values - xp.sum(weight * values, axis=0) / some
        variance = xp.sum(weight * deviation * deviation, axis=0) / some
        positive = xp.where(variance > 0.0, variance, xp.ones_like(variance))
        return -0.5 * float(xp.sum(count * (LOG_2PI + 1.0 + xp.log(positive)))) / y.shape[0]

    def from_data(self, variance: float, /) -> Self:
        return tree.filled(self, noise_variance=0.1 * variance, noise_variance_unit=variance)

    def from_outputs(self, variances: Array, /) -> Self:
        unit = unit_by_column(self.noise_variance, variances)
        return tree.filled(self, noise_variance=0.1 * variances, noise_variance_unit=unit)

    def observations(self, y: Array, /) -> Array:
        return y

    def check_parameters(self) -> None:
        check_by_output("noise_variance", self.noise_variance)

    def check_targets(self, y: Array, /) -> None:
        """Every finite target is allowed."""


@tree.model
class HeteroscedasticGaussian(Likelihood):
    """y_np ~ N(f_np, s_np + common), where the variance s_np of the noise of every single datum is known.

    The targets [N, 2 P] are P columns of values, then P columns with their noise variances in the squared unit of the
    values: so the noise of a datum stays with its row in minibatches and blocks. Observations at new inputs, whose
    noise nobody knows, are predicted with the common noise alone; log densities take the variances of their targets.

    Parameters
    ----------
    common
        A `Gaussian` for noise that all data have besides and that is trained; None for none.
    """

    common: Gaussian | None = None

    bounded_curvature: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True

    def latents(self, columns: int, /) -> int:
        if columns % 2:
            msg = (
                f"y has {columns} columns, but {type(self).__name__} takes an even number: values, then the known "
                "variance of the noise of each."
            )
            raise ValueError(msg)
        return columns // 2

    def check_outputs(self, outputs: int, /) -> None:
        if self.common is not None:
            self.common.check_outputs(outputs)

    def _split(self, y: Array) -> tuple[Array, Array]:
        """The values and the variances of all noise, both [N, P]."""
        P = self.latents(y.shape[1])
        return y[:, :P], self._with_common(y[:, P:])

    def _with_common(self, variance: Array) -> Array:
        return variance if self.common is None else variance + self.common.noise_variance

    def expected_log_density(
        self, mu: Array, var: Array, y: Array, /, draws: Mapping[str, Array] | None = None
    ) -> tuple[Array, Pullback]:
        value, pull = _expected(mu, var, *self._split(y))

        def pullback(bar):
            noise_bar, mu_bar, var_bar = pull(bar)
            if self.common is None:
                return tree.cotangent(self), mu_bar, var_bar
            common_bar = tree.cotangent(self.common, noise_variance=_like_noise(noise_bar, self.common.noise_variance))
            return tree.cotangent(self, common=common_bar), mu_bar, var_bar

        return value, pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        return Prediction(mu, positive_variance(self._with_common(var)))

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        values, noise = self._split(y)
        return _log_density(mu, var + noise, values)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...]) -> Array:
        if mu.shape[0] > 1:
            return super()._quantiles(mu, var, levels)
        return _normal_quantiles(mu[0, ...], self._with_common(var[0, ...]), levels)

    def _cdf(self, mu: Array, var: Array, y: Array) -> Array:
        values, noise = self._split(y)
        return _normal_cdf(mu, var + noise, values)

    def _crps(self, mu: Array, var: Array, y: Array) -> Array:
        values, noise = self._split(y)
        return _normal_crps(mu, var + noise, values)

    def mixture(self, mu: Any, var: Any, /) -> Mixture:
        return _normal_mixture(mu, self._with_common(var))

    def _sample(self, f: Any, rng: Any) -> Any:
        return f if self.common is None else self.common._sample(f, rng)

    @property
    def floats_per_row(self) -> int:
        return 10

    def __post_init__(self) -> None:
        if self.common is not None and not isinstance(self.common, Gaussian):
            msg = f"common is {self.common!r}, but must be None or Gaussian(...), the noise that all data share."
            raise TypeError(msg)

    def from_data(self, variance: float, /) -> Self:
        return self if self.common is None else dataclasses.replace(self, common=self.common.from_data(variance))

    def from_outputs(self, variances: Array, /) -> Self:
        return self if self.common is None else dataclasses.replace(self, common=self.common.from_outputs(variances))

    def observations(self, y: Array, /) -> Array:
        return y[:, : self.latents(y.shape[1])]

    def check_parameters(self) -> None:
        if self.common is not None:
            self.common.check_parameters()

    def check_targets(self, y: Array, /) -> None:
        xp = backend_of(y).xp
        known = y[:, self.latents(y.shape[1]) :]
        if not bool(xp.all(known > 0.0)):
            P = known.shape[1]
            msg = f"the known noise variances, columns {P} to {2 * P - 1} of y, must be positive; found "
            raise ValueError(msg + f"{float(xp.min(known)):g}.")
