"""Mixtures of Gaussians, whose S parts [S N, ...] stand sample after sample: the predictions of sampled processes."""

from agp.backend import Array, Pullback, backend_of, like
from agp.repairs import report

__all__ = ["average", "log_average", "mixture", "slopes"]


def _by_sample(x: Array, rows: int) -> Array:
    return backend_of(x).xp.reshape(x, (-1, rows, *x.shape[1:]))


def average(x: Array, rows: int) -> Array:
    """The mean of the parts [N, ...]."""
    # shares first: the sum of the largest floats would overflow
    return x if x.shape[0] == rows else backend_of(x).xp.sum(_by_sample(x * (rows / x.shape[0]), rows), axis=0)


def mixture(moments: tuple[Array, Array], rows: int) -> tuple[Array, Array]:
    """Mean and variance [N, P] of the mixture."""
    mean, variance = moments
    if mean.shape[0] == rows:
        return moments
    xp, share = backend_of(mean).xp, (mean.shape[0] // rows) ** -0.5
    centre = average(mean, rows)
    apart = share * (_by_sample(mean, rows) - centre)
    total = average(variance, rows) + xp.sum(apart * apart, axis=0)
    # moments of observations may be the largest floats, and their sum larger still
    over = xp.isinf(total) & xp.all(xp.isfinite(_by_sample(variance, rows)), axis=0) & xp.isfinite(centre)
    count = xp.astype(xp.count_nonzero(over), xp.float32)
    report(
        "{0:.0f} predicted variances are too large for their dtype; the largest number stands for each.",
        count,
        count=count > 0.0,
    )
    return centre, xp.where(over, xp.full_like(total, float(xp.finfo(total.dtype).max)), total)


def slopes(moments: tuple[Array, Array], pull: Pullback, X: Array) -> tuple[Array, Array]:
    """The derivatives [N, P, D] of mean and variance of the mixture in X [N, D].

    Parameters
    ----------
    moments
        Those of the parts at X, both [S N, P].
    pull
        ``(mean_bar, variance_bar) -> X_bar``; None is zero.
    X
        Inputs [N, D].
    """
    mean, _ = moments
    xp, rows = backend_of(X).xp, X.shape[0]
    share, zeros = rows / mean.shape[0], xp.zeros_like(mean)
    # the variance is the average of v_s + (m_s - m)^2
    apart = 2.0 * (mean - xp.tile(average(mean, rows), (mean.shape[0] // rows, 1)))
    found: list[list[Array]] = [[], []]
    for p in range(mean.shape[1]):
        one = zeros + share * xp.eye(mean.shape[1], **like(mean))[p, :]
        for into, bars in zip(found, ((one, zeros), (one * apart, one)), strict=True):
            X_bar = pull(*bars)
            into.append(xp.zeros_like(X) if X_bar is None else X_bar)
    first, second = (xp.stack(parts, axis=1) for parts in found)
    return first, second


def log_average(density: Array, rows: int) -> Array:
    """The log of the mean of densities whose logs are given [S N]: [N]."""
    if density.shape[0] == rows:
        return density
    xp = backend_of(density).xp
    parts = _by_sample(density, rows)
    largest = xp.max(parts, axis=0)
    return largest + xp.log(xp.mean(xp.exp(parts - largest), axis=0))
