"""The Poisson likelihood for counts."""

import math
from collections.abc import Mapping
from typing import ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.likelihoods._base import Likelihood, Prediction
from agp.likelihoods._quadrature import check_points, log_expectation
from agp.likelihoods._range import exp_in_range, log_range, report_cut

__all__ = ["Poisson"]


def _log_largest_rate(x: Array) -> float:
    return log_range(x)[1] - 20.0


@tree.model
class Poisson(Likelihood):
    """Counts y_np ~ Poisson(exposure exp(f_np)): f is the logarithm of the rate.

    Expectations are closed forms; predictive densities, and they alone, are quadrature. A predicted mean or variance
    beyond the largest float comes back as that float, with a `RepairWarning`.

    Parameters
    ----------
    exposure
        What the rate is multiplied with: the length of time, area or bin that each count belongs to. Since f has prior
        mean 0, it is also the count to expect before any data.
    points
        Nodes of the Gauss-Hermite quadrature.
    """

    exposure: float = 1.0
    points: int = 20

    log_concave: ClassVar[bool] = True

    def _log_constant(self, y: Array) -> Array:
        return y * math.log(self.exposure) - backend_of(y).special("gammaln", y + 1.0)

    def _log_density(self, f: Array, y: Array) -> tuple[Array, Pullback]:
        rate = self._rate(f)
        return y * f - rate + self._log_constant(y), lambda bar: (tree.cotangent(self), bar * (y - rate))

    def _rate(self, f: Array) -> Array:
        # rates that no number can hold are cut, far enough below the largest that sums of them stay finite
        xp = backend_of(f).xp
        return xp.exp(xp.minimum(f + math.log(self.exposure), xp.full_like(f, _log_largest_rate(f))))

    def expected_log_density(
        self, mu: Array, var: Array, y: Array, /, draws: Mapping[str, Array] | None = None
    ) -> tuple[Array, Pullback]:
        # y mu - b exp(mu + var / 2) + y log b - lgamma(y + 1)
        mean = self._rate(mu + 0.5 * var)

        def pullback(bar):
            column = bar[:, None]
            return tree.cotangent(self), column * (y - mean), -0.5 * column * mean

        return backend_of(mu).xp.sum(y * mu - mean + self._log_constant(y), axis=-1), pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        # var[y] = E[rate] + var[rate] = m + m^2 (e^var - 1), the rate log-normal, by logarithms: they never overflow
        xp = backend_of(mu).xp
        log_mean = mu + 0.5 * var + math.log(self.exposure)
        some = var > 0.0
        positive = xp.where(some, var, xp.ones_like(var))
        log_relative = positive + xp.log(-xp.expm1(-positive))
        log_variance = xp.where(some, xp.logaddexp(log_mean, 2.0 * log_mean + log_relative), log_mean)
        return Prediction(*exp_in_range(log_mean, log_variance))

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        value = log_expectation(self._log_density, mu, var, y, self.points)
        report_cut("log densities", value < -0.5 * math.exp(_log_largest_rate(mu)))
        return backend_of(mu).xp.sum(value, axis=-1)

    @property
    def floats_per_row(self) -> int:
        return 8 + 6 * self.points

    def from_data(self, variance: float, /) -> Self:
        return self

    def check_parameters(self) -> None:
        if not 0.0 < self.exposure < math.inf:
            msg = f"exposure is {self.exposure!r}, but must be positive and finite."
            raise ValueError(msg)
        check_points(self.points)

    def check_targets(self, y: Array, /) -> None:
        xp = backend_of(y).xp
        bad = (y < 0.0) | (y != xp.floor(y))
        if bool(xp.any(bad)):
            example = float(xp.min(xp.where(bad, y, xp.full_like(y, math.inf))))
            msg = f"counts must be whole numbers from 0 on for the Poisson likelihood; found {example:g}."
            raise ValueError(msg)
