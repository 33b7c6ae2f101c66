"""Log evidence of an exact GP with Gaussian noise."""

import math
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import diagonal, noisy_cholesky, nonnegative

LOG_2PI = math.log(2.0 * math.pi)


def log_evidence(model: Any, X: Array, y: Array, /) -> tuple[Array, Pullback]:
    """Log evidence log N(y; h(X), Kff + sigma^2 I) of an exact GP, summed over the outputs.

    The computation takes O(N^3) operations and O(N^2) memory. A row with weight w_n counts as w_n observations of y_n
    with independent noise of variance s = sigma^2. Since N(y; f, s)^w = N(y; f, s / w) (2 pi s)^((1 - w) / 2) w^(-1/2),
    the evidence is

        log N(y; h, Kff + s W^-1) - P / 2 sum_n ((w_n - 1) log(2 pi s) + log w_n).

    Parameters
    ----------
    model
        A model with the fields `kernel`, `mean_function` and `likelihood` (Gaussian), and optional weights [N]
        (`_row_weights`).
    X, y
        All inputs [N, D] and targets [N, P].

    Returns
    -------
    log_evidence
        A 0-d array.
    pullback
        A function ``bar=1.0 -> (model_bar, X_bar)``.
    """
    B = backend_of(X)
    xp = B.xp
    N, P = y.shape
    noise, weights = model.likelihood.noise_variance, model._row_weights
    K, pull_kernel = model.kernel(X)
    L = noisy_cholesky(K, noise if weights is None else noise / weights)
    h, pull_mean = model.mean_function(X)
    white = B.solve_triangular(L, y - h)
    log_det = 2.0 * xp.sum(xp.log(diagonal(L)))
    value = -0.5 * (xp.sum(white * white) + P * log_det + N * P * LOG_2PI)
    if weights is not None:
        value = value - 0.5 * P * xp.sum((weights - 1.0) * (LOG_2PI + xp.log(noise)) + xp.log(weights))

    def pullback(bar=1.0):
        # K_bar = 1/2 (al al^T - P Ky^-1) with al = Ky^-1 y
        al = B.solve_triangular(L, white, transpose=True)
        K_bar = 0.5 * bar * (al @ al.mT - P * B.inverse_from_cholesky(L))
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
    """Leave-one-out log densities log p(y_n | all other rows) [N] of an exact GP, summed over the outputs.

    Let K be the covariance of y. Given the other rows, y_n has the variance 1 / (K^-1)_nn and the mean
    y_n - (K^-1 (y - h))_n / (K^-1)_nn. For a row with a weight w > 1, leaving out one observation reduces the weight to
    w - 1. The computation takes O(N^3) operations.

    Source: Rasmussen & Williams, "Gaussian processes for machine learning", 2006, section 5.4.2.
    """
    B = backend_of(X)
    xp = B.xp
    noise, weights = model.likelihood.noise_variance, model._row_weights
    by_row = noise if weights is None else noise / weights
    inverse = B.inverse_from_cholesky(noisy_cholesky(model.kernel(X)[0], by_row))
    residual = y - model.mean_function(X)[0]
    if weights is None:
        variance = 1.0 / diagonal(inverse)[:, None]
        error = (inverse @ residual) * variance
    else:
        # Given all rows, f_n has the variance p = v (1 - v (K^-1)_nn) with v = s / w, and the mean y_n - v (K^-1 r)_n.
        # Removing the weight d = min(w, 1) multiplies p and the error by 1 / (1 - p d / s).
        own = (noise / weights)[:, None]
        share = own * diagonal(inverse)[:, None]
        part = (xp.minimum(weights, xp.ones_like(weights)) / weights)[:, None]
        left = (1.0 - part) + part * share
        variance = own * nonnegative(1.0 - share)[0] / left + noise
        error = own * (inverse @ residual) / left
    return -0.5 * xp.sum(LOG_2PI + xp.log(variance) + error * error / variance, axis=1)
