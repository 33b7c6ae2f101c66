"""Moments of mixtures over the samples of a process, and of outputs f = A g that combine functions g.

Arrays [S N, ...] hold the N rows of the first sample, then those of the second, and so on.
"""

from typing import Any, TypeVar

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.likelihoods import average_samples
from agp.repairs import report

T = TypeVar("T")


def _by_sample(x: Array, rows: int) -> Array:
    return backend_of(x).xp.reshape(x, (-1, rows, *x.shape[1:]))


def average(x: Array, rows: int, shares: Array | None = None) -> Array:
    """Average an array [S N, ...] over the samples with weights [S], by default 1 / S; return [N, ...]."""
    if x.shape[0] == rows:
        return x
    if shares is not None:
        return average_samples(_by_sample(x, rows), shares)
    # divides before summing, because the sum of large floats may overflow
    return backend_of(x).xp.sum(_by_sample(x * (rows / x.shape[0]), rows), axis=0)


def mixture(moments: tuple[Array, Array], rows: int, shares: Array | None = None) -> tuple[Array, Array]:
    """Compute the mean and variance [N, P] of the mixture from the moments [S N, P] of its samples."""
    mean, variance = moments
    if mean.shape[0] == rows:
        return moments
    xp = backend_of(mean).xp
    root: Any = (mean.shape[0] // rows) ** -0.5 if shares is None else xp.sqrt(shares)[:, None, None]
    centre = average(mean, rows, shares)
    apart = root * (_by_sample(mean, rows) - centre)
    total = average(variance, rows, shares) + xp.sum(apart * apart, axis=0)
    # the variances of observations may be so large that their sum overflows
    over = xp.isinf(total) & xp.all(xp.isfinite(_by_sample(variance, rows)), axis=0) & xp.isfinite(centre)
    count = xp.astype(xp.count_nonzero(over), xp.float32)
    report(
        "{0:.0f} predicted variances exceed the largest number of their dtype and were replaced by that number.",
        count,
        count=count > 0.0,
    )
    return centre, xp.where(over, xp.full_like(total, float(xp.finfo(total.dtype).max)), total)


def slopes(moments: tuple[Array, Array], pull: Pullback, X: Array, shares: Array | None = None) -> tuple[Array, Array]:
    """Compute the derivatives [N, P, D] of the mean and variance of the mixture with respect to X [N, D].

    `moments` are the means and variances [S N, P] of the samples at X, and ``pull(mean_bar, variance_bar) -> X_bar`` is
    their pullback. An `X_bar` of None means zero. `shares` are the weights [S] of the samples, by default 1 / S.
    """
    mean, _ = moments
    xp, rows = backend_of(X).xp, X.shape[0]
    share: Any = rows / mean.shape[0] if shares is None else xp.repeat(shares, rows)[:, None]
    zeros = xp.zeros_like(mean)
    # the variance is the average of v_s + (m_s - m)^2
    apart = 2.0 * (mean - xp.tile(average(mean, rows, shares), (mean.shape[0] // rows, 1)))
    found: list[list[Array]] = [[], []]
    for p in range(mean.shape[1]):
        one = zeros + share * xp.eye(mean.shape[1], **like(mean))[p, :]
        for into, bars in zip(found, ((one, zeros), (one * apart, one)), strict=True):
            X_bar = pull(*bars)
            into.append(xp.zeros_like(X) if X_bar is None else X_bar)
    first, second = (xp.stack(parts, axis=1) for parts in found)
    return first, second


def log_average(density: Array, rows: int, shares: Array | None = None) -> Array:
    """Average densities over the samples, given their logarithms [S N]; return the logarithm of the average [N]."""
    if density.shape[0] == rows:
        return density
    xp = backend_of(density).xp
    parts = _by_sample(density, rows)
    largest = xp.max(parts, axis=0)
    return largest + xp.log(average_samples(xp.exp(parts - largest), shares))


# -- covariances of outputs f = A g -----------------------------------------------------------------------------------


def cross_covariances(own: Array, latent: Array, mixing: Array | None, /) -> Array:
    """Compute Cov[f_np, f_mq] = sum_l A_pl A_ql Cov_l[n, m] as an array [N, P, N, P].

    `latent` holds the covariances [L, N, N] of the functions g, and `mixing` is A [P, L], or None if A = I. The
    covariances within each output are replaced by `own` [P, N, N].
    """
    xp = backend_of(latent).xp
    A = xp.eye(latent.shape[0], **like(latent)) if mixing is None else mixing
    P, L = A.shape
    pairs = xp.reshape(A[:, None, :] * A[None, :, :], (P * P, L))
    N = latent.shape[-1]
    cross = xp.permute_dims(xp.reshape(combine(pairs, latent), (P, P, N, N)), (2, 0, 3, 1))
    outputs = xp.arange(P, **{**like(own), "dtype": xp.int64})
    same = outputs[:, None, None] == outputs[None, None, :]
    return xp.where(same, xp.permute_dims(own, (1, 0, 2))[..., None], cross)


def combine(weights: Array, latent: Array, /) -> Array:
    """Compute sum_l weights_rl latent_l [R, N, N] from weights [R, L] and covariances [L, N, N]."""
    L, N, _ = latent.shape
    xp = backend_of(latent).xp
    return xp.reshape(weights @ xp.reshape(latent, (L, N * N)), (weights.shape[0], N, N))


def average_parameters(likelihood: T, shares: Array | None, /) -> T:
    """Return the likelihood in which parameters [S, 1, 1] of samples are replaced by their averages."""
    return _with_samples(likelihood, lambda x: average_samples(x, shares)[0, 0])


def at_draws(likelihood: T, numbers: list[tuple[int, int]], /) -> T:
    """Return the likelihood of draws [R, N, P], given how many successive draws are from each sample."""

    def repeat(x: Array) -> Array:
        return backend_of(x).xp.concat([x[s : s + 1, ...] for s, count in numbers for _ in range(count)], axis=0)

    return _with_samples(likelihood, repeat)


def _with_samples(likelihood: T, change: Any) -> T:
    leaves = tree.leaves(likelihood).items()
    return tree.with_leaves(likelihood, {name: change(x) for name, x in leaves if x.ndim == 3})
