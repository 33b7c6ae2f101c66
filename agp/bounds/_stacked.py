"""Log evidence of exact GPs at several settings of the hyperparameters."""

from collections.abc import Iterator
from typing import Any

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds._batch import Batch
from agp.bounds._evidence import left_out_densities, targets_of
from agp.bounds._row_noise import LOG_2PI, RowNoise
from agp.kernels import Kernel
from agp.linalg import add_diagonal, diagonal

ENTRIES = 2**18
"""The number of entries of covariance matrices that are computed together, so that they stay in the caches."""


def stacked_evidence(kernel: Kernel, noise: Array, batch: Batch, /, *, level: Array | None = None) -> Array:
    """Return the log evidence [S] of exact GPs with mean 0, summed over the outputs; see `log_evidence`.

    The evidence is NaN or infinite where a covariance matrix is not positive definite; no jitter is added.

    Parameters
    ----------
    kernel
        A kernel whose parameters have a leading axis S.
    noise
        The trained noise variances [S].
    batch
        All rows. Outputs share the known noise.
    level
        The prior variance of a constant (0-d), which is added to all covariances; None means 0.
    """
    return backend_of(batch.X).xp.concat([value for value, *_ in _parts(kernel, noise, batch, level)], axis=0)


def stacked_leave_one_out(kernel: Kernel, noise: Array, batch: Batch, /, *, level: Array | None = None) -> Array:
    """Return the log densities [S, N] of the rows given the other rows; see `leave_one_out`."""
    B = backend_of(batch.X)
    found = []
    for _, L, rows, residual in _parts(kernel, noise, batch, level):
        for s in range(L.shape[0]):
            inverse = B.inverse_from_cholesky(L[s, ...])
            own = RowNoise(rows.variance[s, ...], rows.weights)
            found.append(left_out_densities(own, residual, inverse @ residual, diagonal(inverse)))
    return B.xp.stack(found)


def _parts(
    kernel: Kernel, noise: Array, batch: Batch, level: Array | None
) -> Iterator[tuple[Array, Array, RowNoise, Array]]:
    """Yield evidences, Cholesky factors, the noise of the rows and the targets, for several settings at a time."""
    X, y = batch.X, targets_of(batch)
    B = backend_of(X)
    xp, (N, P) = B.xp, y.shape
    step = max(1, ENTRIES // (N * N))
    for start in range(0, noise.shape[0], step):
        places = slice(start, min(start + step, noise.shape[0]))
        rows = RowNoise.of(noise[places, None], batch)
        K = tree.add(_part_of_stack(kernel, places).stacked_covariance(X)[0], level)
        L = B.cholesky(add_diagonal(K, xp.broadcast_to(rows.by_row, K.shape[:2])))
        white = xp.stack([B.solve_triangular(L[s, ...], y) for s in range(L.shape[0])])
        log_det = 2.0 * xp.sum(xp.log(diagonal(L)), axis=-1)
        value = -0.5 * (xp.sum(white * white, axis=(1, 2)) + P * log_det + N * P * LOG_2PI)
        variances = xp.broadcast_to(rows.variance, K.shape[:2])
        yield tree.add(value, rows.correction(P)[0]), L, RowNoise(variances, rows.weights), y


def _part_of_stack(stack: Any, places: slice, /) -> Any:
    """Return the stack of some of the settings."""
    return tree.with_leaves(stack, {name: x[places, ...] for name, x in tree.leaves(stack, "parameter").items()})
