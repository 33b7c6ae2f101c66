"""The log evidence of an exact GP with Gaussian noise."""

import math
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import add_diagonal, cholesky, diagonal, inverse_from_cholesky, nonnegative

LOG_2PI = math.log(2.0 * math.pi)


def noisy_cholesky(K: Array, noise: Array, weights: Array | None = None, /) -> Array:
    """The Cholesky factor of K + noise diag(1 / weights) [N, N], for weights [N] > 0; without them of K + noise I."""
    if weights is None:
        return cholesky(add_diagonal(K, noise))
    # the factor of R (K + noise / w) R with R^2 = min(w, 1), whose diagonal is well scaled for any weights
    xp = backend_of(K).xp
    one = xp.ones_like(weights)
    root = xp.sqrt(xp.minimum(weights, one))[:, None]
    return cholesky(add_diagonal(root * K * root.mT, noise / xp.maximum(weights, one))) / root


def log_evidence(model: Any, X: Array, y: Array, /) -> tuple[Array, Pullback]:
    """Log N(y; h(X), Kff + sigma^2 I) summed over the outputs, 0-d.

    A row with weight w_n counts as w_n observations y_n with independent noise: N(y; f, s)^w is N(y; f, s / w) times
    (2 pi s)^((1 - w) / 2) w^(-1/2), so that the evidence is

        log N(y; h, Kff + s W^-1) - P / 2 sum_n ((w_n - 1) log(2 pi s) + log w_n).

    Parameters
    ----------
    model
        With the fields kernel, mean_function and likelihood (Gaussian), and perhaps weights [N] (`_row_weights`).
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
    noise, weights = model.likelihood.noise_variance, model._row_weights
    K, pull_kernel = model.kernel(X)
    L = noisy_cholesky(K, noise, weights)
    h, pull_mean = model.mean_function(X)
    white = B.solve_triangular(L, y - h)
    log_det = 2.0 * xp.sum(xp.log(diagonal(L)))
    value = -0.5 * (xp.sum(white * white) + P * log_det + N * P * LOG_2PI)
    if weights is not None:
        value = value - 0.5 * P * xp.sum((weights - 1.0) * (LOG_2PI + xp.log(noise)) + xp.log(weights))

    def pullback(bar=1.0):
        # K_bar = 1/2 (al al^T - P Ky^-1) with al = Ky^-1 y
        al = B.solve_triangular(L, white, transpose=True)
        K_bar = 0.5 * bar * (al @ al.mT - P * inverse_from_cholesky(L))
        kernel_bar, X_bar = pull_kernel(K_bar)
        if weights is None:
            noise_bar = xp.sum(diagonal(K_bar))
        else:
            noise_bar = xp.sum(diagonal(K_bar) / weights - 0.5 * bar * P * (weights - 1.0) / noise)
        likelihood_bar = tree.cotangent(model.likelihood, noise_variance=noise_bar)
        mean_bar, X_mean_bar = pull_mean(bar * al)
        model_bar = tree.cotangent(model, kernel=kernel_bar, likelihood=likelihood_bar, mean_function=mean_bar)
        return model_bar, tree.add(X_bar, X_mean_bar)

    return value, pullback


def leave_one_out(model: Any, X: Array, y: Array, /) -> Array:
    """log p(y_n | all other rows) [N] under an exact GP with Gaussian noise, summed over the outputs; O(N^3).

    With the covariance K of y, the variance of y_n given the others is 1 / (K^-1)_nn, and its mean is
    y_n - (K^-1 (y - h))_n / (K^-1)_nn. For a row of weight w > 1 one observation is left out, and w - 1 remain.

    Source: Rasmussen & Williams, "Gaussian processes for machine learning", 2006, section 5.4.2.
    """
    xp = backend_of(X).xp
    noise, weights = model.likelihood.noise_variance, model._row_weights
    inverse = inverse_from_cholesky(noisy_cholesky(model.kernel(X)[0], noise, weights))
    residual = y - model.mean_function(X)[0]
    if weights is None:
        variance = 1.0 / diagonal(inverse)[:, None]
        error = (inverse @ residual) * variance
    else:
        # f_n given all has the variance p = v (1 - v (K^-1)_nn) with v = s / w and the mean y_n - v (K^-1 r)_n; without
        # the share d = min(w, 1) of the weight both p and the error grow by 1 / (1 - p d / s)
        own = (noise / weights)[:, None]
        share = own * diagonal(inverse)[:, None]
        part = (xp.minimum(weights, xp.ones_like(weights)) / weights)[:, None]
        left = (1.0 - part) + part * share
        variance = own * nonnegative(1.0 - share)[0] / left + noise
        error = own * (inverse @ residual) / left
    return -0.5 * xp.sum(LOG_2PI + xp.log(variance) + error * error / variance, axis=1)
