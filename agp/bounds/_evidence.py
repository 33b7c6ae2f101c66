"""Log evidence of an exact GP with Gaussian noise."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds._batch import Batch
from agp.bounds._row_noise import LOG_2PI, RowNoise, cotangent_with_noise
from agp.linalg import diagonal, noisy_cholesky, nonnegative


def targets_of(batch: Batch, /) -> Array:
    """The targets [N, P] minus the offset."""
    return batch.y if batch.offset is None else batch.y - batch.offset


def log_evidence(model: Any, batch: Batch, /) -> tuple[Array, Pullback]:
    """Log evidence log N(y - offset; h(X), Kff + V) of an exact GP, summed over the outputs.

    V is the diagonal matrix of the noise variances v_n / w_n of the rows, with v_n = sigma^2 + the known noise of the
    row. The computation takes O(N^3) operations and O(N^2) memory. A row with weight w_n counts as w_n observations of
    y_n with independent noise, so the evidence is

        log N(y; h, Kff + V) - P / 2 sum_n ((w_n - 1) log(2 pi v_n) + log w_n).

    Parameters
    ----------
    model
        A model with the fields `kernel`, `mean_function` and `likelihood` (Gaussian).
    batch
        All rows. Outputs share the known noise.

    Returns
    -------
    log_evidence
        A 0-d array.
    pullback
        A function ``bar=1.0 -> (model_bar, X_bar)``.
    """
    X, y = batch.X, targets_of(batch)
    B = backend_of(X)
    xp = B.xp
    N, P = y.shape
    noise = RowNoise.of(model.likelihood.noise_variance, batch)
    K, pull_kernel = model.kernel(X)
    L = noisy_cholesky(K, noise.by_row)
    h, pull_mean = model.mean_function(X)
    white = B.solve_triangular(L, y - h)
    log_det = 2.0 * xp.sum(xp.log(diagonal(L)))
    logs, pull_logs = noise.correction(P)
    value = -0.5 * (xp.sum(white * white) + P * log_det + N * P * LOG_2PI)

    def pullback(bar=1.0):
        # K_bar = 1/2 (al al^T - P Ky^-1) with al = Ky^-1 y
        al = B.solve_triangular(L, white, transpose=True)
        K_bar = 0.5 * bar * (al @ al.mT - P * B.inverse_from_cholesky(L))
        kernel_bar, X_bar = pull_kernel(K_bar)
        noise_bar = tree.add(noise.pull(diagonal(K_bar)), pull_logs(bar))
        mean_bar, X_mean_bar = pull_mean(bar * al)
        model_bar = cotangent_with_noise(model, noise_bar, kernel=kernel_bar, mean_function=mean_bar)
        return model_bar, tree.add(X_bar, X_mean_bar)

    return tree.add(value, logs), pullback


def leave_one_out(model: Any, batch: Batch, /) -> Array:
    """Leave-one-out log densities log p(y_n | all other rows) [N] of an exact GP, summed over the outputs.

    Let K be the covariance of y. Given the other rows, y_n has the variance 1 / (K^-1)_nn and the mean
    y_n - (K^-1 (y - h))_n / (K^-1)_nn. For a row with a weight w > 1, leaving out one observation reduces the weight to
    w - 1. The computation takes O(N^3) operations.

    Source: Rasmussen & Williams, "Gaussian processes for machine learning", 2006, section 5.4.2.
    """
    return evidence_and_left_out(model, batch)[1]


def evidence_and_left_out(model: Any, batch: Batch, /) -> tuple[Array, Array]:
    """Compute `log_evidence` without its pullback, and `leave_one_out`, from one factorisation."""
    X, y = batch.X, targets_of(batch)
    B = backend_of(X)
    xp, (N, P) = B.xp, y.shape
    noise = RowNoise.of(model.likelihood.noise_variance, batch)
    L = noisy_cholesky(model.kernel(X)[0], noise.by_row)
    residual = y - model.mean_function(X)[0]
    inverse = B.inverse_from_cholesky(L)
    al = inverse @ residual
    log_det = 2.0 * xp.sum(xp.log(diagonal(L)))
    value = -0.5 * (xp.sum(residual * al) + P * log_det + N * P * LOG_2PI)
    return tree.add(value, noise.correction(P)[0]), left_out_densities(noise, residual, al, diagonal(inverse))


def left_out_densities(noise: RowNoise, residual: Array, al: Array, precisions: Array, /) -> Array:
    """Compute `leave_one_out` from the residuals r [N, P], al = K^-1 r, and the diagonal [N] of K^-1."""
    xp = backend_of(residual).xp
    if noise.weights is None:
        variance = 1.0 / precisions[:, None]
        error = al * variance
    else:
        # Given all rows, f_n has the variance p = v (1 - v (K^-1)_nn) with v = s / w, and the mean y_n - v (K^-1 r)_n.
        # Removing the weight d = min(w, 1) multiplies p and the error by 1 / (1 - p d / s).
        weights, one = noise.weights, noise.variance
        own = noise.by_row[:, None]
        share = own * precisions[:, None]
        part = (xp.minimum(weights, xp.ones_like(weights)) / weights)[:, None]
        left = (1.0 - part) + part * share
        variance = own * nonnegative(1.0 - share)[0] / left + (one[:, None] if one.ndim else one)
        error = own * al / left
    return -0.5 * xp.sum(LOG_2PI + xp.log(variance) + error * error / variance, axis=1)
