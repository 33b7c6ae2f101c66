"""The Gaussian likelihood, y = f + noise."""

import math
from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.constraints import POSITIVE
from agp.likelihoods._base import Likelihood, Prediction

__all__ = ["Gaussian"]

LOG_2PI = math.log(2.0 * math.pi)


@tree.model
class Gaussian(Likelihood):
    """y_np ~ N(f_np, noise_variance), the noise shared by the outputs.

    Parameters
    ----------
    noise_variance
        sigma^2, 0-d, in squared units of the targets. None starts at a tenth of their variance.
    """

    noise_variance: Array = tree.param(POSITIVE, default=None)

    def expected_log_density(self, mu: Array, var: Array, y: Array, /) -> tuple[Array, Pullback]:
        # -1/2 log(2 pi s) - ((y - mu)^2 + var) / (2 s)
        xp = backend_of(mu).xp
        s = self.noise_variance
        residual = y - mu
        square = residual * residual + var

        def pullback(bar):
            column = bar[:, None]
            mu_bar = column * residual / s
            noise_bar = xp.sum(column * (square / s - 1.0)) / (2.0 * s)
            return tree.cotangent(self, noise_variance=noise_bar), mu_bar, -0.5 / s * column + xp.zeros_like(var)

        return -0.5 * xp.sum(LOG_2PI + xp.log(s) + square / s, axis=-1), pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        return Prediction(mu, var + self.noise_variance)

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        xp = backend_of(mu).xp
        total = var + self.noise_variance
        return -0.5 * xp.sum(LOG_2PI + xp.log(total) + (y - mu) ** 2 / total, axis=-1)

    def from_data(self, variance: float, /) -> Self:
        return tree.filled(self, noise_variance=0.1 * variance)

    def latent_variance(self, variance: float, /) -> float:
        return variance

    def check_parameters(self) -> None:
        if self.noise_variance.ndim != 0:
            msg = f"noise_variance has shape {tuple(self.noise_variance.shape)}, but must be one number."
            raise ValueError(msg)

    def check_targets(self, y: Array, /) -> None:
        """Every finite target is allowed."""
