"""The Gaussian likelihood y = f + noise."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Self

from agp import tree
from agp.backend import Array, Backend, Pullback, backend_of
from agp.chunking import unit_by_column
from agp.distributions import Mixture, normal_quantile, normal_tail
from agp.likelihoods._base import Drawn, Likelihood, Prediction, average_samples, check_by_output
from agp.tree import NONNEGATIVE

LOG_2PI = math.log(2.0 * math.pi)
NEGLIGIBLE_NOISE = 1e-9
"""The least noise variance of a row if all noise is known, as a fraction of the variance of the targets."""


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
    """Compute E|x| = mean (2 Phi(z) - 1) + 2 s phi(z) for x ~ N(mean, var), where s = sqrt(var) and z = mean / s."""
    B = backend_of(mean)
    root = B.xp.sqrt(var)
    z = mean / root
    density = B.xp.exp(-0.5 * z * z) * math.sqrt(0.5 / math.pi)
    return mean * (2.0 * B.special("ndtr", z) - 1.0) + 2.0 * root * density


@tree.model
class Gaussian(Likelihood):
    """The Gaussian likelihood y_np ~ N(f_np, noise_variance_p).

    Parameters
    ----------
    noise_variance
        The noise variance in squared units of the targets: one number (0-d) for all outputs, or one per output [P]. By
        default the starting value is a tenth of the variance of each output's targets. In predictions from S settings
        of the hyperparameters, one number for each, [S, 1, 1]. Exact models and their collapsed
        forms accept only one number, because their outputs share a covariance matrix. Zero stays zero in training; use
        it if the noise variances of all rows are known (`noise=`). Known variances below 1e-9 of the variance of the
        targets, such as zero, then count as this number in training.
    missing
        Whether to treat NaN as an unobserved target and ignore it. By default NaN raises an error. Variational models
        such as `agp.SVGP` accept ``missing=True``. Exact models and their collapsed forms require complete rows.

    Examples
    --------
    Predicted observations have the variance of f plus the noise variance.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> model = agp.GPR.from_data(X, y, likelihood=agp.Gaussian(0.04))
    >>> noise = model.predict(X, observed=True).variance - model.predict(X).variance
    >>> print(np.unique(noise.round(6)))
    [0.04]
    """

    short_name: ClassVar[str] = "gaussian"
    noise_variance: Array = tree.param(NONNEGATIVE, default=None, unit="noise_variance_unit")
    noise_variance_unit: Array | None = tree.unit(default=None)
    missing: bool = dataclasses.field(default=False, kw_only=True)

    bounded_curvature: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True
    mean_is_latent: ClassVar[bool] = True
    quality: ClassVar[Literal["error", "label", "fit"]] = "error"
    takes_noise: ClassVar[bool] = True

    def with_noise(self, noise: Array, /) -> tuple[Self, Pullback]:
        at_rows = tree.with_leaves(self, {"noise_variance": self.noise_variance + noise})
        return at_rows, lambda bar: self._bar(lambda: (bar.noise_variance,))

    def raise_noise(self, noise: Array, /) -> Array:
        unit, own = self.noise_variance_unit, backend_of(self.noise_variance)
        if unit is None:
            return noise
        exact, concrete = own.xp.any(self.noise_variance == 0.0), own.is_concrete(self.noise_variance)
        if concrete and not bool(exact):
            return noise
        xp, least = backend_of(noise).xp, NEGLIGIBLE_NOISE * own.xp.min(unit)
        one = xp.ones_like(noise)
        raised = xp.maximum(noise, (float(least) if own.is_concrete(unit) else least) * one)
        return raised if concrete else xp.where(exact, raised, noise)

    def check_noise(self, noise: Array | None, /) -> None:
        xp = backend_of(self.noise_variance).xp
        if not bool(xp.any(self.noise_variance == 0.0)):
            return
        if noise is None:
            raise ValueError("noise_variance is 0, but rows have no known noise; pass noise=, or omit noise_variance.")
        if not bool(xp.all(noise > 0.0)):
            exact = xp.any(xp.reshape(noise, (noise.shape[0], -1)) <= 0.0, axis=1)
            row = int(xp.argmax(xp.astype(exact, xp.int64)))
            raise ValueError(
                f"noise_variance is 0, and so is the known noise of row {row}; pass at least {NEGLIGIBLE_NOISE:g} "
                "times the variance of the targets for all rows, or omit noise_variance."
            )

    def noise_at(self, mu: Array, /) -> Array:
        """Return the noise variances, which broadcast with moments [n, P] or [S n, P] of the latent functions."""
        noise = self.noise_variance
        if noise.ndim < 3:
            return noise
        xp, S = backend_of(mu).xp, noise.shape[0]
        each = xp.broadcast_to(noise, (S, mu.shape[0] // S, noise.shape[2]))
        return xp.reshape(each, (mu.shape[0], noise.shape[2]))

    @property
    def differs_by_sample(self) -> bool:
        return self.noise_variance.ndim == 3

    def _bar(self, noise_bar: Callable[[], tuple[Array]]) -> Self:
        (terms,) = noise_bar()
        if self.noise_variance.ndim < 2:  # variances [N, P] are those of rows with known noise
            terms = backend_of(terms).xp.sum(terms, axis=0 if self.noise_variance.ndim else None)
        return tree.cotangent(self, noise_variance=terms)

    def _mask_missing(self, y: Array) -> tuple[Array, Array | None]:
        """Replace missing values by 0. Also return weights [N, P]: 0 for these, 1 for others, or None if all are 1."""
        if not self.missing:
            return y, None
        xp = backend_of(y).xp
        absent = xp.isnan(y)
        return xp.where(absent, xp.zeros_like(y), y), xp.astype(~absent, y.dtype)

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        B = backend_of(mu)
        values, weight = self._mask_missing(y)
        terms, residual, square = B.fused(_terms, mu, var, values, self.noise_variance)

        def pullback(bar):
            column = bar[:, None] if weight is None else bar[:, None] * weight
            mu_bar, var_bar = B.fused(_pull_moments, column, residual, self.noise_variance)
            # _pull_noise is called only if needed, because it overflows before the other terms
            return self._bar(partial(B.fused, _pull_noise, column, square, self.noise_variance)), mu_bar, var_bar

        return -0.5 * B.xp.sum(terms if weight is None else weight * terms, axis=-1), pullback

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        values, weight = self._mask_missing(y)
        xp, var = backend_of(mu).xp, var + self.noise_at(mu)
        terms = LOG_2PI + xp.log(var) + (values - mu) ** 2 / var
        return -0.5 * xp.sum(terms if weight is None else weight * terms, axis=-1)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...], shares: Array | None) -> Array:
        xp, var = backend_of(mu).xp, var + self.noise_variance
        if mu.shape[0] > 1:  # the search takes blocks of rows, which may have noise of their own
            alone = tree.with_leaves(self, {"noise_variance": xp.zeros_like(var[0, 0, 0])})
            return super(Gaussian, alone)._quantiles(mu, var, levels, shares)
        mu, root = mu[0, ...], xp.sqrt(var[0, ...])
        return xp.stack([mu + normal_quantile(level) * root for level in levels])

    def _cdf(self, mu: Array, var: Array, y: Array, shares: Array | None) -> Array:
        B = backend_of(mu)
        return average_samples(B.special("ndtr", (y - mu) / B.xp.sqrt(var + self.noise_variance)), shares)

    def _crps(self, mu: Array, var: Array, y: Array, shares: Array | None) -> Array:
        """Compute the CRPS E|Y - y| - E|Y - Y'| / 2 [N, P], for independent predicted observations Y and Y'.

        Source: Grimit et al., "The continuous ranked probability score for circular variables and its application to
        mesoscale forecast ensemble verification", QJRMS 2006, Eq. 5.
        """
        S, var = mu.shape[0], var + self.noise_variance
        pairs = (average_samples(_absolute(mu - mu[s, ...], var + var[s, ...]), shares) for s in range(S))
        apart = sum(one / S if shares is None else shares[s] * one for s, one in enumerate(pairs))
        return average_samples(_absolute(y - mu, var), shares) - 0.5 * apart

    def mixture(self, mu: Any, var: Any, /, shares: Any = None) -> Mixture:
        xp, var = backend_of(mu).xp, var + self.noise_variance
        root = xp.sqrt(xp.maximum(var, xp.full_like(var, float(xp.finfo(var.dtype).smallest_normal))))
        centre = average_samples(mu, shares)
        return Mixture(
            tail=lambda y, upper: average_samples(normal_tail((y - mu) / root, upper), shares),
            value=lambda y: y,
            centre=centre,
            spread=xp.sqrt(average_samples(root * root + (mu - centre) ** 2, shares)),
        )

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        return Prediction(mu, var + self.noise_at(mu))

    def _sample(self, f: Any, rng: Any) -> Any:
        return f + self.noise_variance**0.5 * rng.standard_normal(f.shape)

    def check_outputs(self, outputs: int, /) -> None:
        check_by_output("noise_variance", self.noise_variance, outputs)

    def variance_cost(self) -> Array | None:
        return None if self.missing else 0.5 / self.noise_variance

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float:
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
        return tree.with_defaults(self, noise_variance=0.1 * variance, noise_variance_unit=variance)

    def from_outputs(self, variances: Array, /) -> Self:
        unit = unit_by_column(self.noise_variance, variances)
        return tree.with_defaults(self, noise_variance=0.1 * variances, noise_variance_unit=unit)

    def observations(self, y: Array, /) -> Array:
        return y

    def check_parameters(self) -> None:
        check_by_output("noise_variance", self.noise_variance)
