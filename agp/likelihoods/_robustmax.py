"""The robust-max likelihood for several classes, with one-dimensional quadrature."""

import math
from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.likelihoods._base import Drawn, Prediction
from agp.likelihoods._categories import MultiClass
from agp.likelihoods._quadrature import LOG_SQRT_2PI, check_points, nodes_and_weights, root_and_slope
from agp.likelihoods._range import positive_variance

FLOOR = 1e-10
"""Smaller variances are replaced by this minimum, because quadrature cannot resolve steps of zero width."""


@tree.model
class RobustMax(MultiClass):
    """The robust-max likelihood for C classes, with labels y [N, 1] and one latent function per class.

    p(y = c | f) = 1 - epsilon if f_c is the largest latent function, otherwise epsilon / (C - 1). The probability that
    f_y is the largest is E[prod_(c != y) Phi((f_y - mu_c) / sqrt(var_c))], an expectation over f_y. This expectation is
    computed by Gauss-Hermite quadrature. The predicted class probabilities sum to 1 up to the quadrature error.

    Parameters
    ----------
    classes
        The number of classes C.
    epsilon
        The probability of a wrong label.
    squash
        The values of Phi are mapped to the interval [squash, 1 - squash], so that no factor is 0.
    points
        The number of Gauss-Hermite quadrature nodes.

    Source: Hernandez-Lobato, Hernandez-Lobato & Dupont, "Robust multi-class Gaussian process classification", NeurIPS
    2011.

    Examples
    --------
    However large the largest latent function is, each other label keeps the probability epsilon / 2.

    >>> import numpy as np
    >>> import agp
    >>> likelihood = agp.RobustMax(3, epsilon=0.02)
    >>> for largest in (10.0, 1000.0):
    ...     f = np.asarray([[0.0, 0.0, largest]])
    ...     print(likelihood.predict(f, np.ones((1, 3))).mean.round(2))
    [[0.01 0.01 0.98]]
    [[0.01 0.01 0.98]]
    """

    classes: int
    epsilon: float = 1e-3
    squash: float = 1e-6
    points: int = 20

    slopes_vanish: ClassVar[bool] = True

    def _largest(self, mu: Array, var: Array, chosen: Array) -> tuple[Array, Pullback]:
        """Compute the probability [N] that the chosen latent function is the largest, and its pullback.

        `chosen` is Boolean [N, C] with one True in each row. The pullback is ``bar [N] -> (mu_bar, var_bar)`` with
        cotangents [N, C].
        """
        B = backend_of(mu)
        xp = B.xp
        label = xp.astype(chosen, mu.dtype)
        f, f_slope, weights = nodes_and_weights(
            xp.sum(label * mu, axis=-1), xp.sum(label * var, axis=-1), self.points, FLOOR
        )
        root, slope = root_and_slope(var, FLOOR)
        distance = (f[..., None] - mu[:, None, :]) / root[:, None, :]  # [N, I, C]
        cdf = (1.0 - 2.0 * self.squash) * B.special("ndtr", distance) + self.squash
        log_cdf = xp.log(xp.where(chosen[:, None, :], xp.ones_like(cdf), cdf))
        log_product = xp.sum(log_cdf, axis=-1)

        def pullback(bar):
            # the cotangents of the distances are w prod / Phi~ (1 - 2q) phi, and 0 for the chosen function
            log_ratio = log_product[..., None] - log_cdf - 0.5 * distance * distance - LOG_SQRT_2PI
            ratio = (1.0 - 2.0 * self.squash) * weights[:, None] * xp.exp(log_ratio)
            h = bar[:, None, None] * (1.0 - label[:, None, :]) * ratio / root[:, None, :]
            f_bar = xp.sum(h, axis=-1)
            mu_bar = label * xp.sum(f_bar, axis=-1)[:, None] - xp.sum(h, axis=1)
            var_bar = label * xp.sum(f_bar * f_slope, axis=-1)[:, None] - slope * xp.sum(h * distance, axis=1)
            return mu_bar, var_bar

        return xp.sum(xp.exp(log_product) * weights, axis=-1), pullback

    def _density(self, largest: Array) -> Array:
        return largest * (1.0 - self.epsilon) + (1.0 - largest) * self.epsilon / (self.classes - 1)

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        # p log(1 - epsilon) + (1 - p) log(epsilon / (C - 1))
        right, wrong = math.log1p(-self.epsilon), math.log(self.epsilon / (self.classes - 1))
        largest, pull = self._largest(mu, var, self.is_label(y))

        def pullback(bar):
            return (tree.cotangent(self), *pull((right - wrong) * bar))

        return wrong + (right - wrong) * largest, pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        """Return the class probabilities p [N, C] as means, and p (1 - p) [N, C] as variances."""
        xp = backend_of(mu).xp
        label = xp.zeros_like(mu[:, :1])
        columns = [self._largest(mu, var, self.is_label(label + float(c)))[0] for c in range(self.classes)]
        largest = xp.stack(columns, axis=-1)
        p = self._density(largest)
        # 1 - p without cancellation
        others = largest * self.epsilon + (1.0 - largest) * (1.0 - self.epsilon / (self.classes - 1))
        return Prediction(p, positive_variance(p * others))

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        return backend_of(mu).xp.log(self._density(self._largest(mu, var, self.is_label(y))[0]))

    def _sample(self, f: Any, rng: Any) -> Any:
        largest = f.argmax(axis=-1)[..., None]
        other = (largest + rng.integers(1, self.classes, largest.shape)) % self.classes
        wrong = rng.random(largest.shape) < self.epsilon
        return 1.0 * (largest + wrong * (other - largest))

    @property
    def floats_per_row(self) -> int:
        return 8 + 8 * self.points

    def check_parameters(self) -> None:
        super().check_parameters()
        for name, value, limit in (("epsilon", self.epsilon, 1.0), ("squash", self.squash, 0.5)):
            if not 0.0 < value < limit:
                raise ValueError(f"{name} is {value!r}, but must be more than 0 and less than {limit:g}.")
        check_points(self.points)
