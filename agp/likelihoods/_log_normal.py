"""The log-normal likelihood for positive targets whose logarithm has Gaussian noise."""

from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.distributions import MAX_LOG, Mixture
from agp.likelihoods._base import Drawn, Likelihood, Prediction, forward
from agp.likelihoods._gaussian import Gaussian
from agp.likelihoods._log_link import capped_exp, log_normal_prediction, saturating_moments


@tree.model
class LogNormal(Likelihood):
    """The log-normal likelihood log y_np ~ N(f_np, noise_variance_p) for positive targets.

    p(y | f) = N(log y; f, noise_variance) / y. The standard deviation of the noise is proportional to y. Predictions
    are for y: the mean is E[y] = exp(mu + (var + noise_variance) / 2), and quantiles are the exponentials of quantiles
    of log y. A predicted mean or variance above the largest float is replaced by that float, with a `RepairWarning`.

    Parameters
    ----------
    logs
        The Gaussian likelihood of log y.
    limit
        A value of log y [P]. For predicted moments, y approaches twice the exponential of the limit if log y is above
        it. Otherwise, if the variance of log y is large, moments come from values of y far above the targets. By
        default, there is no limit. `GPRegressor` uses ten times the largest target.

    Examples
    --------
    Observations are skewed: for f = 0, their median is 1, but their mean is larger.

    >>> import numpy as np
    >>> import agp
    >>> likelihood = agp.LogNormal(agp.Gaussian(np.asarray(1.0)))
    >>> zero = np.zeros((1, 1))
    >>> print(likelihood.predictive_quantiles(zero, zero, (0.05, 0.5, 0.95))[:, 0, 0].round(2))
    [0.19 1.   5.18]
    >>> print(likelihood.predict(zero, zero).mean.round(2))
    [[1.65]]
    """

    logs: Gaussian = Gaussian()
    limit: Array | None = tree.constant(default=None, optional=True)

    bounded_curvature: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    missing = forward("logs.missing")
    check_outputs = forward("logs.check_outputs")
    check_parameters = forward("logs.check_parameters")
    variance_cost = forward("logs.variance_cost")

    @property
    def differs_by_sample(self) -> bool:
        return self.logs.differs_by_sample

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        log_y = backend_of(y).xp.log(y)
        value, pull = self.logs.expected_log_density(mu, var, log_y, draws)

        def pullback(bar):
            logs_bar, mu_bar, var_bar = pull(bar)
            return tree.cotangent(self, logs=logs_bar), mu_bar, var_bar

        return value - _log_jacobian(log_y), pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        # var(y) = E[y]^2 (e^v - 1), where v is the variance of log y
        var = var + self.logs.noise_at(mu)
        if self.limit is not None:
            mu, var = saturating_moments(mu, var, self.limit)
        no_noise = backend_of(mu).xp.full_like(mu, -float("inf"))
        return log_normal_prediction(mu + 0.5 * var, no_noise, var)

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        log_y = backend_of(y).xp.log(y)
        return self.logs.predictive_log_density(mu, var, log_y) - _log_jacobian(log_y)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...], shares: Array | None) -> Array:
        log_quantiles = self.logs._quantiles(mu, var, levels, shares)
        xp = backend_of(mu).xp
        least = float(xp.finfo(mu.dtype).smallest_normal)
        return xp.maximum(capped_exp(log_quantiles), xp.full_like(log_quantiles, least))

    def mixture(self, mu: Any, var: Any, /, shares: Any = None) -> Mixture:
        xp = backend_of(mu).xp
        return self.logs.mixture(mu, var, shares)._replace(value=lambda v: xp.exp(xp.clip(v, -MAX_LOG, MAX_LOG)))

    def _sample(self, f: Any, rng: Any) -> Any:
        log_y = self.logs._sample(f, rng)
        xp = backend_of(log_y).xp
        return xp.exp(xp.clip(log_y, -MAX_LOG, MAX_LOG))

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float:
        xp = backend_of(y).xp
        log_y = xp.log(y)
        jacobian = _log_jacobian(log_y)
        counted = jacobian if weights is None else weights * jacobian
        return self.logs.log_density_alone(log_y, weights) - float(xp.mean(counted))

    def __post_init__(self) -> None:
        if not isinstance(self.logs, Gaussian):
            raise TypeError(f"logs is {self.logs!r}, but must be Gaussian(...), the likelihood of log y.")

    def from_data(self, variance: float, /) -> Self:
        return tree.replace(self, {"logs": self.logs.from_data(variance)})

    def from_outputs(self, variances: Array, /) -> Self:
        return tree.replace(self, {"logs": self.logs.from_outputs(variances)})

    def observations(self, y: Array, /) -> Array:
        return backend_of(y).xp.log(y)

    def check_targets(self, y: Array, /) -> None:
        xp = backend_of(y).xp
        if bool(xp.any(y <= 0.0)):
            raise ValueError(f"targets must be positive for the LogNormal likelihood; found {float(xp.min(y)):g}.")


def _log_jacobian(log_y: Array) -> Array:
    """Compute the sum of log y_nk over observed targets [N], the log of the Jacobian of y with respect to log y."""
    xp = backend_of(log_y).xp
    return xp.sum(xp.where(xp.isnan(log_y), xp.zeros_like(log_y), log_y), axis=-1)
