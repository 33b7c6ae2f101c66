"""The log evidence of an exact GP to second order in its hyperparameters, with the average information."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds._batch import Batch
from agp.bounds._evidence import left_out_densities, targets_of
from agp.bounds._row_noise import LOG_2PI, RowNoise, cotangent_with_noise
from agp.linalg import diagonal


class Expansion(NamedTuple):
    """The log evidence l of an exact GP, and its derivatives by n coordinates of the hyperparameters."""

    evidence: Array
    """l, a 0-d array."""
    slopes: Array
    """dl/dtheta [n]."""
    whitened: Array
    """L^-1 b_i as columns [N P, n], with the Cholesky factor L of K + V. There may be more columns than rows.

    For a coordinate of the kernel or the noise, b_i = d(K + V)/dtheta_i (K + V)^-1 r, with the residual r of the
    targets. For a coordinate of the mean function h, b_i = dh/dtheta_i.
    """
    leave_one_out: Array
    """The average log density (0-d) of an observation given the others."""


def expand_evidence(model: Any, batch: Batch, scales: Mapping[str, Array], /) -> Expansion | None:
    """Compute the evidence and its derivatives, or None if a part of the model does not support them.

    Parameters
    ----------
    model, batch
        As for `log_evidence`.
    scales
        For each leaf that moves, its derivatives with respect to its coordinates, in the shape of the leaf. The
        coordinates have the order of the sorted names, and the order of the entries of each leaf.

    If K + V is not positive definite to working precision, all results are NaN; no jitter is added.

    The average information of the coordinates of the kernel and the noise is half of the inner products of the
    `whitened` columns, minus half of the part that the mean function explains. The columns take N^2 (3 D + 5)
    operations beyond those of the gradient.

    Source: Gilmour, Thompson & Cullis, "Average information REML: an efficient algorithm for variance parameter
    estimation in linear mixed models", 1995.
    """
    X, y = batch.X, targets_of(batch)
    B = backend_of(X)
    xp, P = B.xp, y.shape[1]
    linear, basis = model.kernel.linearise(X), model.mean_function.basis(X, P)
    if linear is None or basis is None:
        return None
    noise = RowNoise.of(model.likelihood.noise_variance, batch)
    L = B.lower_cholesky(linear.K, noise.by_row)
    h, pull_mean = model.mean_function(X)
    residual = y - h
    white = B.solve_triangular(L, residual)
    al = B.solve_triangular(L, white, transpose=True)
    logs, pull_logs = noise.correction(P)
    log_det = 2.0 * xp.sum(xp.log(diagonal(L)))
    value = tree.add(-0.5 * (xp.sum(white * white) + P * log_det + X.shape[0] * P * LOG_2PI), logs)
    inverse = B.lower_inverse_from_cholesky(L)
    densities = left_out_densities(noise, residual, al, diagonal(inverse))
    kernel_bar, noise_bar = _pull(linear.pull, noise, pull_logs, al, inverse)
    bar = cotangent_with_noise(model, noise_bar, kernel=kernel_bar, mean_function=pull_mean(al)[0])
    own = al if noise.weights is None else al / noise.weights[:, None]
    products = cotangent_with_noise(model, own, kernel=linear.times(al, None), mean_function=basis)
    slopes, columns = by_coordinate(xp, bar, scales, ()), by_coordinate(xp, products, scales, tuple(y.shape))
    whitened = B.solve_triangular(L, xp.reshape(columns, (X.shape[0], -1)))
    weights = noise.weights
    average = xp.mean(densities) if weights is None else xp.sum(weights * densities) / xp.sum(weights)
    return Expansion(value, slopes, xp.reshape(whitened, (-1, slopes.shape[0])), average)


def _pull(pull: Pullback, noise: RowNoise, pull_logs: Pullback, al: Array, inverse: Array) -> tuple[Any, Array]:
    """Return the gradients of the log evidence by the kernel and the noise variance."""
    # K_bar = 1/2 (al al^T - P Ky^-1), as in `log_evidence`
    B, P, half = backend_of(al), al.shape[1], 0.5 * al

    def rows(start: int, stop: int) -> tuple[Array]:
        # NumPy's products of a column and a row are slow
        first, second = half[start:stop, :], al[:stop, :]
        outer = first * second[:, 0] if P == 1 else first @ second.mT
        return (outer - (0.5 * P) * inverse[start:stop, :stop],)

    (K_bar,) = B.lower_tiles(rows, al.shape[0])
    return pull(K_bar), tree.add(noise.pull(diagonal(K_bar)), pull_logs(1.0))


def by_coordinate(xp: Any, found: Any, scales: Mapping[str, Array], lead: tuple[int, ...]) -> Array:
    """Concatenate the leaves [*lead, *S] of a tree, times their scales, to an array [*lead, n]."""
    leaves = tree.leaves(found)  # compiled functions of JAX sort dictionaries, so the order is always that
    return xp.concat([xp.reshape(leaves[name] * scales[name], (*lead, -1)) for name in sorted(scales)], axis=-1)
