"""The log evidence of an exact GP with Gaussian noise."""

import math
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import add_diagonal, cholesky, diagonal, inverse_from_cholesky

__all__ = ["leave_one_out", "log_evidence"]

LOG_2PI = math.log(2.0 * math.pi)


def log_evidence(model: Any, X: Array, y: Array, /) -> tuple[Array, Pullback]:
    """Log N(y; h(X), Kff + sigma^2 I) summed over the outputs, 0-d.

    Parameters
    ----------
    model
        With the fields kernel, mean_function and likelihood (Gaussian).
    X, y
        All inputs [N, D] and targets [N, P]. O(N^3) operations, O(N^2) memory.

    Returns
    -------
    log_evidence
    pullback
        ``bar=1.0 -> (model_bar, X_bar)``.
    """
    B = backend_of(X)
    xp = B.xp
    N, P = y.shape
    K, pull_kernel = model.kernel(X)
    L = cholesky(add_diagonal(K, model.likelihood.noise_variance))
    h, pull_mean = model.mean_function(X)
    white = B.solve_triangular(L, y - h)
    log_det = 2.0 * xp.sum(xp.log(diagonal(L)))

    def pullback(bar=1.0):
        # K_bar = 1/2 (al al^T - P Ky^-1) with al = Ky^-1 y
        al = B.solve_triangular(L, white, transpose=True)
        K_bar = 0.5 * bar * (al @ al.mT - P * inverse_from_cholesky(L))
        kernel_bar, X_bar = pull_kernel(K_bar)
        likelihood_bar = tree.cotangent(model.likelihood, noise_variance=xp.sum(diagonal(K_bar)))
        mean_bar, X_mean_bar = pull_mean(bar * al)
        model_bar = tree.cotangent(model, kernel=kernel_bar, likelihood=likelihood_bar, mean_function=mean_bar)
        return model_bar, tree.add(X_bar, X_mean_bar)

    return -0.5 * (xp.sum(white * white) + P * log_det + N * P * LOG_2PI), pullback


def leave_one_out(model: Any, X: Array, y: Array, /) -> Array:
    """log p(y_n | all other rows) [N] under an exact GP with Gaussian noise, summed over the outputs; O(N^3).

    Of the inverse K^-1 of the covariance of y, the variance of y_n given the others is 1 / (K^-1)_nn, and its mean
    y_n - (K^-1 (y - h))_n / (K^-1)_nn.

    Source: Rasmussen & Williams, "Gaussian processes for machine learning", 2006, section 5.4.2.
    """
    xp = backend_of(X).xp
    L = cholesky(add_diagonal(model.kernel(X)[0], model.likelihood.noise_variance))
    inverse = inverse_from_cholesky(L)
    variance = 1.0 / diagonal(inverse)[:, None]
    error = (inverse @ (y - model.mean_function(X)[0])) * variance
    return -0.5 * xp.sum(LOG_2PI + xp.log(variance) + error * error / variance, axis=1)
