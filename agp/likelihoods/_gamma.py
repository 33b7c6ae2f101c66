"""The gamma and the exponential likelihoods for positive targets."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.distributions import MAX_LOG, Mixture, ObservationModel, gamma_tail, marginal_mixture
from agp.likelihoods._base import Drawn, Prediction, check_number
from agp.likelihoods._log_link import LogLink, capped_exp, log_normal_prediction
from agp.likelihoods._panels import Datum
from agp.tree import POSITIVE


def _ratio(f: Array, y: Array) -> Array:
    """Compute y exp(-f) for y >= 0, with a cap that prevents overflow."""
    xp = backend_of(f).xp
    return capped_exp(xp.log(xp.where(y > 0.0, y, xp.ones_like(y))) - f) * xp.astype(y > 0.0, y.dtype)


class GammaForm(LogLink):
    """Base class for likelihoods in which y_np is exp(f_np) times a gamma variable."""

    support: ClassVar[tuple[float, float]] = (0.0, math.inf)

    @abstractmethod
    def _shape_like(self, x: Array) -> Array:
        """Return the shape parameter of the gamma distribution, 0-d, with the library, dtype and device of x."""

    def _bar(self, column: Array, mu: Array, y: Array) -> Self:
        """Return the cotangent of the likelihood for cotangents [N, 1] of the expected log densities."""
        return tree.cotangent(self)

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        # -shape mu - y exp(-mu + var / 2), plus the terms that do not depend on f
        xp = backend_of(mu).xp
        shape, ratio, constant = self._shape_like(mu), _ratio(mu - 0.5 * var, y), self._log_constant(y)

        def pullback(bar):
            column = bar[:, None]
            return self._bar(column, mu, y), column * (ratio - shape), -0.5 * column * ratio

        terms = -shape * mu - ratio
        return xp.sum(terms if constant is None else terms + constant, axis=-1), pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        # E[var(y | f)] = shape E[exp(2 f)] = E[y]^2 e^var / shape
        log_shape = backend_of(mu).xp.log(self._shape_like(mu))
        log_mean = mu + 0.5 * var + log_shape
        return log_normal_prediction(log_mean, 2.0 * log_mean + var - log_shape, var)

    def _datum(self, y: Array) -> Datum:
        # -shape f - y exp(-f) decreases steeply at small f, where y exp(-f) exceeds the shape
        xp, shape = backend_of(y).xp, self._shape_like(y)

        def slopes(f: Array) -> tuple[Array, Array]:
            ratio = _ratio(f, y)
            return ratio - shape, ratio

        steep = xp.maximum(shape, xp.ones_like(shape))
        positive = xp.where(y > 0.0, y, xp.ones_like(y))
        return Datum(
            log_density=lambda f: -shape * f - _ratio(f, y[..., None]),
            slopes=slopes,
            bend=xp.log(positive) - xp.log(steep),
            width=xp.zeros_like(y) + 1.0 / xp.sqrt(steep),
        )

    def observations(self, y: Array, /) -> Array:
        # E[log y | f] = f + digamma(shape)
        B = backend_of(y)
        shape = B.xp.zeros_like(y) + self._shape_like(y)  # the leaf may still be a Python number
        return B.xp.log(y) - B.special("digamma", shape)

    def check_targets(self, y: Array, /) -> None:
        xp = backend_of(y).xp
        if not bool(xp.all(y > 0.0)):
            raise ValueError(
                f"targets must be positive for the {type(self).__name__} likelihood; found {float(xp.min(y)):g}."
            )

    def mixture(self, mu: Any, var: Any, /, shares: Any = None) -> Mixture:
        return marginal_mixture(_observation_model(self._shape_like(mu)), mu, var, shares)


def _observation_model(shape: Any) -> ObservationModel:
    """Return the tails of gamma distributions with scale exp(f) on the host, for y = max(shape, 1) * exp(v)."""
    xp = backend_of(shape).xp
    steep = xp.maximum(shape, xp.ones_like(shape))
    log_steep = float(xp.log(steep))
    return ObservationModel(
        tail=lambda v, f, upper: gamma_tail(shape, v - f + log_steep, upper),
        value=lambda v: xp.exp(v + log_steep),
        bends=lambda v: ((v, 1.0 / xp.sqrt(steep)),),
        width=float(1.0 / xp.sqrt(shape)),
        ends=(-MAX_LOG - log_steep, MAX_LOG - log_steep),
    )


@tree.model
class Gamma(GammaForm):
    """The gamma likelihood y_np ~ Gamma(shape, scale=exp(f_np)) for positive targets.

    log p(y | f) = -shape f - lgamma(shape) + (shape - 1) log y - y exp(-f). The mean of y is shape * exp(f), and its
    standard deviation is proportional to the mean. Expectations have closed forms; quadrature is needed only for
    predictive densities. A predicted mean or variance above the largest float is replaced by that float, with a
    `RepairWarning`. Starting values of the prior are computed from log y, a noisy observation of f + digamma(shape).

    Parameters
    ----------
    shape
        The squared ratio of the mean of y to its standard deviation, dimensionless and 0-d. The shape is trained;
        freeze it to keep its value.

    Examples
    --------
    With shape 4, the standard deviation of y is half of its mean, whatever f is.

    >>> import numpy as np
    >>> import agp
    >>> f = np.log(np.asarray([[0.5], [50.0]]))
    >>> mean, variance = agp.Gamma(shape=4.0).predict(f, np.zeros((2, 1)))
    >>> print(mean[:, 0].round(2), np.sqrt(variance[:, 0]).round(2))
    [  2. 200.] [  1. 100.]
    """

    short_name: ClassVar[str] = "gamma"
    shape: Array = tree.param(POSITIVE, default=1.0)

    def _shape_like(self, x: Array) -> Array:
        return self.shape

    def _log_constant(self, y: Array) -> Array:
        B = backend_of(y)
        return (self.shape - 1.0) * B.xp.log(y) - B.special("gammaln", self.shape)

    def _bar(self, column: Array, mu: Array, y: Array) -> Self:
        B = backend_of(mu)
        return tree.cotangent(self, shape=B.xp.sum(column * (B.xp.log(y) - mu - B.special("digamma", self.shape))))

    def observation_model(self) -> ObservationModel:
        return _observation_model(self.shape)

    def _sample(self, f: Any, rng: Any) -> Any:
        return capped_exp(f) * rng.standard_gamma(float(self.shape), f.shape)

    def check_parameters(self) -> None:
        check_number("shape", self.shape)


@tree.model
class Exponential(GammaForm):
    """The exponential likelihood with mean exp(f_np), for waiting times; `Gamma` with shape 1.

    log p(y | f) = -f - y exp(-f). Expectations have closed forms; quadrature is needed only for predictive densities. A
    predicted mean or variance above the largest float is replaced by that float, with a `RepairWarning`. Starting
    values of the prior are computed from log y. A target of 0 is refused: its density exp(-f) has no maximum.

    Examples
    --------
    If the mean waiting time is 10, half of the times are below 6.9, and one in twenty is above 30.

    >>> import numpy as np
    >>> import agp
    >>> f, certain = np.log(np.asarray([[10.0]])), np.zeros((1, 1))
    >>> likelihood = agp.Exponential()
    >>> print(likelihood.predict(f, certain).mean.round(2))
    [[10.]]
    >>> print(likelihood.predictive_quantiles(f, certain, (0.5, 0.95))[:, 0, 0].round(1))
    [ 6.9 30. ]
    """

    short_name: ClassVar[str] = "exponential"

    def _shape_like(self, x: Array) -> Array:
        return backend_of(x).xp.ones((), **like(x))

    def _sample(self, f: Any, rng: Any) -> Any:
        return capped_exp(f) * rng.standard_exponential(f.shape)
