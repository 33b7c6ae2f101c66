"""The Bernoulli likelihood for two classes."""

import math
from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_whole
from agp.likelihoods._base import Likelihood, Prediction
from agp.likelihoods._quadrature import expectation

__all__ = ["Bernoulli"]

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


@tree.model
class Bernoulli(Likelihood):
    """y in {0, 1} with p(y = 1 | f) = (1 - 2 squash) Phi(f) + squash, the probit link.

    Parameters
    ----------
    squash
        Probability of a label flipped by accident, each way; 0 is the pure probit, and 1e-3 what GPflow uses.
    points
        Nodes of the Gauss-Hermite quadrature.
    """

    squash: float = 0.0
    points: int = 20

    def _log_density(self, f: Array, y: Array) -> tuple[Array, Pullback]:
        B = backend_of(f)
        xp = B.xp
        sign = 2.0 * y - 1.0
        x = sign * f
        if self.squash:
            value = xp.log((1.0 - 2.0 * self.squash) * B.special("ndtr", x) + self.squash)
        else:
            value = B.special("log_ndtr", x)

        def pullback(bar):
            # d/dx log((1 - 2q) Phi(x) + q) = (1 - 2q) phi(x) / p, formed in the log so that it is safe in the tails
            ratio = (1.0 - 2.0 * self.squash) * xp.exp(-0.5 * x * x - LOG_SQRT_2PI - value)
            return tree.cotangent(self), bar * sign * ratio

        return value, pullback

    def expected_log_density(self, mu: Array, var: Array, y: Array, /) -> tuple[Array, Pullback]:
        return expectation(self._log_density, mu, var, y, self.points)

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        B = backend_of(mu)
        p = (1.0 - 2.0 * self.squash) * B.special("ndtr", mu / B.xp.sqrt(1.0 + var)) + self.squash
        return Prediction(p, p * (1.0 - p))

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        # Phi(f) averaged over N(f; mu, var) is Phi(mu / sqrt(1 + var))
        xp = backend_of(mu).xp
        return xp.sum(self._log_density(mu / xp.sqrt(1.0 + var), y)[0], axis=-1)

    @property
    def floats_per_row(self) -> int:
        return 8 * self.points

    def check_parameters(self) -> None:
        if not 0.0 <= self.squash < 0.5:
            msg = f"squash is {self.squash!r}, but must be at least 0 and less than 0.5."
            raise ValueError(msg)
        check_whole("points", self.points)

    def from_data(self, variance: float, /) -> Self:
        return self

    def latent_variance(self, variance: float, /) -> float:
        return 1.0

    def check_targets(self, y: Array, /) -> None:
        xp = backend_of(y).xp
        bad = (y != 0.0) & (y != 1.0)
        if bool(xp.any(bad)):
            example = float(xp.max(xp.where(bad, y, xp.full_like(y, -math.inf))))
            msg = f"labels must be 0 or 1 for the Bernoulli likelihood; found {example:g}."
            raise ValueError(msg)
