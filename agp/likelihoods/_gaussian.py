"""Gaussian likelihoods, y = f + noise: the variance of the noise is trained, or known for each datum."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Backend, Pullback, backend_of
from agp.constraints import POSITIVE
from agp.likelihoods._base import Drawn, Likelihood, Prediction, check_by_output
from agp.likelihoods._range import positive_variance
from agp.quantiles import Mixture, normal_quantile, normal_tail
from agp.scaling import unit_by_column

LOG_2PI = math.log(2.0 * math.pi)


# -1/2 log(2 pi s) - ((y - mu)^2 + var) / (2 s)


def _terms(B: Backend, mu: Array, var: Array, y: Array, noise: Array) -> tuple[Array, Array, Array]:
    residual = y - mu
    square = residual * residual + var
    return LOG_2PI + B.xp.log(noise) + square / noise, residual, square


def _pull_moments(B: Backend, column: Array, residual: Array, noise: Array) -> tuple[Array, Array]:
    return column * residual / noise, -0.5 / noise * column + B.xp.zeros_like(residual)


def _pull_noise(_: Backend, column: Array, square: Array, noise: Array) -> tuple[Array]:
    return (column * (square / noise - 1.0) / (2.0 * noise),)


def _absolute(mean: Array, var: Array) -> Array:
    """E|x| for x ~ N(mean, var): mean (2 Phi(z) - 1) + 2 s phi(z), with z = mean / s."""
    B = backend_of(mean)
    root = B.xp.sqrt(var)
    z = mean / root
    density = B.xp.exp(-0.5 * z * z) * math.sqrt(0.5 / math.pi)
    return mean * (2.0 * B.special("ndtr", z) - 1.0) + 2.0 * root * density


class GaussianNoise(Likelihood):
    """Gaussian noise of any variances: predictions are normal, and a mixture of normals for several samples."""

    bounded_curvature: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True

    @abstractmethod
    def _split(self, y: Array) -> tuple[Array, Array]:
        """Observed values [N, P], and the variances of their noise, 0-d, [P] or [N, P]."""

    @abstractmethod
    def _with_noise(self, var: Array) -> Array:
        """Variances [..., P] of f plus those of the noise of new observations."""

    def _observed(self, y: Array) -> tuple[Array, Array | None]:
        """The values with zeros for unobserved ones, and weights [N, P], 1 where observed; None if all are."""
        return y, None

    @abstractmethod
    def _bar(self, noise_bar: Callable[[], tuple[Array]]) -> Self:
        """The cotangent of the likelihood, from a function that returns those of the noise variances [N, P]."""

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        B = backend_of(mu)
        values, noise = self._split(y)
        values, weight = self._observed(values)
        terms, residual, square = B.fused(_terms, mu, var, values, noise)

        def pullback(bar):
            column = bar[:, None] if weight is None else bar[:, None] * weight
            mu_bar, var_bar = B.fused(_pull_moments, column, residual, noise)
            # evaluated only if needed, since it is the first to overflow
            return self._bar(partial(B.fused, _pull_noise, column, square, noise)), mu_bar, var_bar

        return -0.5 * B.xp.sum(terms if weight is None else weight * terms, axis=-1), pullback

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        values, noise = self._split(y)
        values, weight = self._observed(values)
        xp, var = backend_of(mu).xp, var + noise
        terms = LOG_2PI + xp.log(var) + (values - mu) ** 2 / var
        return -0.5 * xp.sum(terms if weight is None else weight * terms, axis=-1)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...]) -> Array:
        if mu.shape[0] > 1:
            return super()._quantiles(mu, var, levels)
        xp, mu = backend_of(mu).xp, mu[0, ...]
        root = xp.sqrt(self._with_noise(var[0, ...]))
        return xp.stack([mu + normal_quantile(level) * root for level in levels])

    def _cdf(self, mu: Array, var: Array, y: Array) -> Array:
        B, (values, noise) = backend_of(mu), self._split(y)
        return B.xp.mean(B.special("ndtr", (values - mu) / B.xp.sqrt(var + noise)), axis=0)

    def _crps(self, mu: Array, var: Array, y: Array) -> Array:
        """E|Y - y| - E|Y - Y'| / 2 [N, P].

        Source: Grimit et al., "The continuous ranked probability score for circular variables and its application to
        mesoscale forecast ensemble verification", QJRMS 2006, Eq. 5.
        """
        xp, (values, noise) = backend_of(mu).xp, self._split(y)
        var = var + noise
        apart = sum(xp.mean(_absolute(mu - mu[s, ...], var + var[s, ...]), axis=0) for s in range(mu.shape[0]))
        return xp.mean(_absolute(values - mu, var), axis=0) - 0.5 * apart / mu.shape[0]

    def mixture(self, mu: Any, var: Any, /) -> Mixture:
        xp, var = backend_of(mu).xp, self._with_noise(var)
        root = xp.sqrt(xp.maximum(var, xp.full_like(var, float(xp.finfo(var.dtype).smallest_normal))))
        centre = xp.mean(mu, axis=0)
        return Mixture(
            tail=lambda y, upper: xp.mean(normal_tail((y - mu) / root, upper), axis=0),
            value=lambda y: y,
            centre=centre,
            spread=xp.sqrt(xp.mean(root * root + (mu - centre) ** 2, axis=0)),
        )


@tree.model
class Gaussian(GaussianNoise):
    """y_np ~ N(f_np, noise_variance_p): noise with one variance for all outputs, or one for each.

    Parameters
    ----------
    noise_variance
        sigma^2, 0-d for all outputs or [P] for each, in squared units of the targets. None starts at a tenth of their
        variance, output by output; exact models and their collapsed forms use one value, since their outputs share a
        covariance.
    missing
        Whether NaN marks an unobserved target, which has no influence: its log density is 0. By default NaN is refused.
        Available in models that treat targets one by one, such as `agp.SVGP`; exact models and their collapsed forms
        need all targets of a row.
    """

    noise_variance: Array = tree.param(POSITIVE, default=None, unit="noise_variance_unit")
    noise_variance_unit: Array | None = tree.unit(default=None)
    missing: bool = dataclasses.field(default=False, kw_only=True)

    def _bar(self, noise_bar: Callable[[], tuple[Array]]) -> Self:
        (terms,) = noise_bar()
        return tree.cotangent(
            self, noise_variance=backend_of(terms).xp.sum(terms, axis=0 if self.noise_variance.ndim else None)
        )

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        return Prediction(mu, var + self.noise_variance)

    def _split(self, y: Array) -> tuple[Array, Array]:
        return y, self.noise_variance

    def _with_noise(self, var: Array) -> Array:
        return var + self.noise_variance

    def _sample(self, f: Any, rng: Any) -> Any:
        return f + self.noise_variance**0.5 * rng.standard_normal(f.shape)

    def _observed(self, y: Array) -> tuple[Array, Array | None]:
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


@tree.model
class HeteroscedasticGaussian(GaussianNoise):
    """y_np ~ N(f_np, s_np + common), with a known noise variance s_np for each datum.

    The targets [N, 2 P] are P columns of values, then P columns of their noise variances, so that these stay with their
    rows in minibatches and blocks. Predictions at new inputs include only the common noise; log densities use the
    variances of their targets.

    Parameters
    ----------
    common
        A `Gaussian` for additional noise that all data share and whose variance is trained; None for none.
    """

    common: Gaussian | None = None

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
        P = self.latents(y.shape[1])
        return y[:, :P], self._with_noise(y[:, P:])

    def _with_noise(self, var: Array) -> Array:
        return var if self.common is None else var + self.common.noise_variance

    def _bar(self, noise_bar: Callable[[], tuple[Array]]) -> Self:
        return tree.cotangent(self, **({} if self.common is None else {"common": self.common._bar(noise_bar)}))

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        return Prediction(mu, positive_variance(self._with_noise(var)))

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
