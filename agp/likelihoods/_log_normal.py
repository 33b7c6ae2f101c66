"""The log-normal likelihood for positive targets whose logarithm has Gaussian noise."""

from typing import ClassVar

from agp import tree
from agp.backend import Array, backend_of
from agp.likelihoods._base import Likelihood, Prediction
from agp.likelihoods._gaussian import Gaussian
from agp.likelihoods._log_link import log_normal_prediction, saturating_moments
from agp.likelihoods._transformed import Transformed, TransformedGaussian
from agp.likelihoods._transforms import Log, Transform


@tree.model
class LogNormal(Transformed):
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

    gaussian_name: ClassVar[str] = "logs"

    @property
    def gaussian(self) -> Gaussian:
        return self.logs

    @property
    def transform(self) -> Transform:  # type: ignore[override]
        return Log()

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        # var(y) = E[y]^2 (e^v - 1), where v is the variance of log y
        var = var + self.logs.noise_at(mu)
        if self.limit is not None:
            mu, var = saturating_moments(mu, var, self.limit)
        no_noise = backend_of(mu).xp.full_like(mu, -float("inf"))
        return log_normal_prediction(mu + 0.5 * var, no_noise, var)


def with_transform(gaussian: Gaussian, transform: Transform | None, /) -> Likelihood:
    """Return the likelihood of y, given that of the transformed targets; None stands for no transform."""
    if transform is None:
        return gaussian
    return LogNormal(gaussian) if isinstance(transform, Log) else TransformedGaussian(gaussian, transform)
