"""The softmax likelihood for several classes, with Monte Carlo estimates."""

import math
from functools import cache
from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of, like
from agp.checks import check_whole
from agp.likelihoods._base import Drawn, Prediction, shared_precision
from agp.likelihoods._categories import MultiClass
from agp.likelihoods._quadrature import log_sum_exp, root_and_slope
from agp.likelihoods._range import positive_variance
from agp.random import generator

LEAST_PRECISION = 1e-6
"""The smallest precision that the latent functions of a row share."""


@tree.model
class Softmax(MultiClass):
    """The softmax likelihood p(y = c | f) = exp(f_c) / sum_k exp(f_k) for C classes, with labels y [N, 1].

    Expectations are averages over S samples f = mu + sqrt(var) eps. In each training step, eps [S, N, C] is new
    standard normal noise. Predictions, and bounds without `draws`, use fixed noise: seeded antithetic pairs with unit
    variance, which are the same for all rows. Such predictions and bounds are therefore deterministic and do not depend
    on the chunk size. The error of these estimates is of order 1 / sqrt(fixed_samples).

    Parameters
    ----------
    classes
        The number of classes C.
    samples
        The number of samples S in training.
    fixed_samples
        The number of samples S for predictions, rounded up to an even number.

    Examples
    --------
    Differences of f are log odds of classes. Uncertain f make the classes more equal.

    >>> import numpy as np
    >>> import agp
    >>> f = np.log(np.asarray([[1.0, 1.0, 8.0]]))
    >>> likelihood = agp.Softmax(3)
    >>> print(likelihood.predict(f, np.zeros((1, 3))).mean.round(2))
    [[0.1 0.1 0.8]]
    >>> bool(likelihood.predict(f, np.full((1, 3), 4.0)).mean[0, 2] < 0.75)
    True
    """

    classes: int
    samples: int = 20
    fixed_samples: int = 200

    log_concave: ClassVar[bool] = True

    def draws(self, rng: Any, rows: int, latents: int, /) -> dict[str, Any]:
        return {"eps": rng.standard_normal((self.samples, rows, latents))}

    @property
    def is_logistic(self) -> bool:
        return True

    def _noise(self, mu: Array, draws: Drawn = None) -> Array:
        """Return standard normal noise from `draws` [S, N, C] or, without `draws`, fixed noise [S, 1, C]."""
        if draws and "eps" in draws:
            return draws["eps"]
        return asarray_like(_fixed_noise(self.fixed_samples, self.classes), mu)

    def _log_probabilities(self, mu: Array, root: Array, eps: Array) -> Array:
        """Compute the log softmax of the samples [S, N, C]."""
        f = mu + root * eps
        return f - log_sum_exp(f, axis=-1)[..., None]

    def _probabilities(self, mu: Array, var: Array, draws: Drawn = None) -> Array:
        """Compute the softmax of the samples [S, N, C]."""
        xp = backend_of(mu).xp
        f = mu + root_and_slope(var)[0] * self._noise(mu, draws)
        e = xp.exp(f - xp.max(f, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

    def _log_density(self, log_p: Array, y: Array) -> Array:
        """Return the log probabilities of the labels [S, N]."""
        xp = backend_of(log_p).xp
        return xp.sum(xp.where(self.is_label(y), log_p, xp.zeros_like(log_p)), axis=-1)

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        xp = backend_of(mu).xp
        eps = self._noise(mu, draws)
        root, slope = root_and_slope(var)
        log_p = self._log_probabilities(mu, root, eps)

        def pullback(bar):
            label = xp.astype(self.is_label(y), mu.dtype)
            f_bar = bar[:, None] / log_p.shape[0] * (label - xp.exp(log_p))
            return tree.cotangent(self), xp.sum(f_bar, axis=0), xp.sum(f_bar * eps, axis=0) * slope

        return xp.mean(self._log_density(log_p, y), axis=0), pullback

    def site_gradients(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Array]:
        """Return alpha = 1[y = c] - E[p_c] and beta = E[p_c (1 - p_c)], both [N, C].

        By Price's theorem, beta is -2 times the derivative of the expected log density with respect to the variance.
        This estimate of beta is never negative, and it is less noisy than the derivative of the Monte Carlo estimate.
        """
        xp = backend_of(mu).xp
        p = self._probabilities(mu, var, draws)
        label = xp.astype(self.is_label(y), mu.dtype)
        return label - xp.mean(p, axis=0), xp.mean(p * (1.0 - p), axis=0)

    def shared_site_gradients(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Array]:
        """Return alpha = 1[y = c] - E[p_c] [N, C], and beta = tr(W^2) / tr(W) [N, 1] with W = E[diag(p) - p p^T].

        The precision is at least `LEAST_PRECISION`, since rows whose label is certain have W = 0.
        """
        xp = backend_of(mu).xp
        p = self._probabilities(mu, var, draws)
        mean, square = xp.mean(p, axis=0), xp.mean(p * p, axis=0)
        rows = xp.permute_dims(p, (1, 0, 2))  # [N, S, C]
        # |E[p p^T]|^2, from the smaller one of the two Gram matrices
        gram = rows @ rows.mT if p.shape[0] < self.classes else rows.mT @ rows
        outer = xp.sum(gram * gram, axis=(1, 2)) / p.shape[0] ** 2
        beta = shared_precision(
            xp.sum(mean - square, axis=1), xp.sum(mean * mean - 2.0 * mean * square, axis=1) + outer
        )
        label = xp.astype(self.is_label(y), mu.dtype)
        return label - mean, xp.maximum(beta, xp.full_like(beta, LEAST_PRECISION))

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        """Return the class probabilities p [N, C] as means, and p (1 - p) [N, C] as variances."""
        xp = backend_of(mu).xp
        p = xp.mean(self._probabilities(mu, var), axis=0)
        # 1 - p as the sum of the other probabilities, which is accurate for p close to 1
        others = p @ (xp.ones((self.classes, self.classes), **like(p)) - xp.eye(self.classes, **like(p)))
        return Prediction(p, positive_variance(p * others))

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        log_p = self._log_probabilities(mu, root_and_slope(var)[0], self._noise(mu))
        return log_sum_exp(self._log_density(log_p, y), axis=0) - math.log(log_p.shape[0])

    def _sample(self, f: Any, rng: Any) -> Any:
        # the class with the largest sum of latent function and Gumbel noise
        return (f + rng.gumbel(size=f.shape)).argmax(axis=-1)[..., None] + 0.0

    @property
    def floats_per_row(self) -> int:
        return 8 + 4 * max(self.samples, self.fixed_samples)

    def check_parameters(self) -> None:
        super().check_parameters()
        check_whole("samples", self.samples)
        check_whole("fixed_samples", self.fixed_samples)


@cache
def _fixed_noise(samples: int, classes: int) -> list:
    """Draw antithetic pairs +eps, -eps as nested lists [S, 1, C]; the mean square of each column is 1."""
    half = generator(0, 5, classes).standard_normal(((samples + 1) // 2, 1, classes))
    half = half / (half**2).mean(axis=0) ** 0.5
    return [*half.tolist(), *(-half).tolist()]
