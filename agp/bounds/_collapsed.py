"""Collapsed lower bound on the log evidence of sparse GP regression, and an upper bound on the log evidence."""

from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.bounds._batch import Batch
from agp.bounds._row_noise import LOG_2PI, SplitNoise, cotangent_with_noise, split_weights, split_weights_slope
from agp.linalg import (
    block_diagonal,
    cholesky,
    diagonal,
    groups_of,
    identity,
    lower_of,
    nonnegative,
    relative_cholesky_pullback,
    solve_lower,
)


class Collapsed(NamedTuple):
    """Factors of the optimal q(u) in sparse GP regression.

    In the whitened variables v = Lu^-1 u, output p has the mean LB^-T c_p. The covariance of each group of inducing
    inputs is (LG LG^T)^-1, with the factor LG of that group.
    """

    Lu: Array
    """Cholesky factor [M, M] of Kuu."""
    LB: Array
    """Cholesky factor [M, M] of I + A A^T / sigma^2, with A = Lu^-1 Kuf."""
    c: Array
    """The vector LB^-1 A (y - h) / sigma^2 of each output, [M, P]."""
    LG: tuple[Array, ...]
    """Cholesky factors of the diagonal blocks in LB LB^T, one for each group of inducing inputs."""


class Statistics(NamedTuple):
    """Weighted sums over the rows of data, from which the collapsed bounds are computed.

    The features of the rows are A = Lu^-1 Kuf [M, N].
    """

    gram: Array
    """Gram matrix A A^T [M, M] of the features."""
    projected: Array
    """Projected targets A (y - h) [M, P]."""
    residual: Array
    """Trace of Kff - Qff, a 0-d array: the sum of kff_n - |a_n|^2, with negative terms set to zero."""
    square: Array
    """Squared norm of y - h, a 0-d array."""


def collapsed_bound(
    model: Any,
    batch: Batch,
    /,
    *,
    sizes: tuple[int, ...] | None = None,
    block_rows: int | None = None,
    kept_rows: int = 0,
) -> tuple[Array, Pullback]:
    """Collapsed evidence lower bound of sparse variational GP regression, summed over the outputs.

    The bound is log N(y; h(X), Qff + sigma^2 I) - tr(Kff - Qff) / (2 sigma^2), with Qff = Kfu Kuu^-1 Kuf. The
    optimal q(u) attains this bound. The computation takes O(N M^2) operations. Weights and known noise variances of
    rows replace sigma^2 I as in `log_evidence`.

    With several orthogonal groups of inducing inputs (SOLVE-GP), Qff is the sum of a matrix Q_g for each group, and
    the groups have independent posteriors. The predictive mean is that of a single group, but the bound of each output
    is lower by 1/2 (sum_g log|I + Q_g / sigma^2| - log|I + Qff / sigma^2|).

    Parameters
    ----------
    model
        An `agp.processes.SparsePrior` with a Gaussian likelihood.
    batch
        All rows. Outputs share the known noise.
    sizes
        Numbers of inducing inputs in the orthogonal groups. By default, all inducing inputs form a single group.
    block_rows
        Number of rows per block. With blocks, no array of size M N is kept in memory, and the pullback evaluates each
        block again. By default, all rows form a single block.
    kept_rows
        Number of rows whose arrays [M, rows] are kept for the pullback, instead of being evaluated again.

    Returns
    -------
    bound
        A 0-d array.
    pullback
        A function ``bar=1.0 -> (model_bar, X_bar)``. `X_bar` is None if `block_rows` is given.

    Source: Titsias, "Variational learning of inducing variables in sparse Gaussian processes", AISTATS 2009.
    """
    Kuu, pull_Kuu = model._inducing_covariance()
    Lu = cholesky(Kuu)
    totals, pull_totals = totals_of(model, Lu, batch, block_rows, kept_rows)
    value, pull_value = bound_of_rows(model, totals, batch, sizes)

    def pullback(bar=1.0):
        totals_bar, noise_bar = pull_value(bar)
        model_bar, change_bar, common_bar, X_bar = pull_totals(totals_bar)
        noise_bar = tree.add(noise_bar, common_bar)
        through_factor = pull_Kuu(relative_cholesky_pullback(Lu, change_bar))
        return tree.add(tree.add(model_bar, through_factor), cotangent_with_noise(model, noise_bar)), X_bar

    return value, pullback


def bound_of_rows(
    model: Any, totals: Statistics, batch: Batch, sizes: tuple[int, ...] | None = None
) -> tuple[Array, Pullback]:
    """The collapsed bound from the statistics of the rows of a batch; its pullback is `bound_from_totals`'s."""
    noise, P = SplitNoise.of(model.likelihood.noise_variance, batch), batch.y.shape[1]
    value, pull = bound_from_totals(totals, noise.common, count_of(batch), sizes)
    logs, pull_logs = noise.correction(batch.weights, P)

    def pullback(bar):
        totals_bar, common_bar = pull(bar)
        return totals_bar, tree.add(common_bar, pull_logs(bar))

    return tree.add(value, logs), pullback


def collapsed_posterior(
    model: Any, batch: Batch, /, *, sizes: tuple[int, ...] | None = None, block_rows: int | None = None
) -> Collapsed:
    """The q(u) that maximises the bound of sparse variational regression, for the arguments of `collapsed_bound`."""
    Lu = cholesky(model._inducing_covariance()[0])
    totals = totals_of(model, Lu, batch, block_rows)[0]
    return posterior_of(Lu, totals, SplitNoise.of(model.likelihood.noise_variance, batch).common, sizes)


def posterior_of(Lu: Array, totals: Statistics, noise: Array, sizes: tuple[int, ...] | None = None) -> Collapsed:
    """The optimal q(u), from the Cholesky factor `Lu` of Kuu and the sums over the rows."""
    LB, c = _whitened_factors(totals, noise)
    return Collapsed(Lu, LB, c, _group_factors(LB, sizes))


def collapsed_statistics(model: Any, batch: Batch, /, *, block_rows: int | None = None) -> Statistics:
    """The sums over the rows that `collapsed_bound` and `collapsed_posterior` use, for the same arguments."""
    return totals_of(model, cholesky(model._inducing_covariance()[0]), batch, block_rows)[0]


def evidence_upper_bound(model: Any, batch: Batch, /, *, block_rows: int | None = None) -> Array:
    """Upper bound on the log evidence log N(y; h(X), Kff + sigma^2 I), summed over the outputs.

    The bound follows from |Kff + sigma^2 I| >= |Qff + sigma^2 I| and Kff <= Qff + t I with t = tr(Kff - Qff). The
    result is a 0-d array without a pullback. The arguments are those of `collapsed_bound`.

    Source: Titsias, "Variational inference for Gaussian and determinantal point processes", NIPS workshop 2014.
    """
    split = SplitNoise.of(model.likelihood.noise_variance, batch)
    noise = split.common
    xp = backend_of(noise).xp
    N, P = count_of(batch), batch.y.shape[1]
    totals = collapsed_statistics(model, batch, block_rows=block_rows)
    LB, _ = _whitened_factors(totals, noise)
    inflated = noise + totals.residual
    _, c = _whitened_factors(totals, inflated)
    log_det = N * (LOG_2PI + xp.log(noise)) + 2.0 * xp.sum(xp.log(diagonal(LB)))
    value = -0.5 * (P * log_det + totals.square / inflated - xp.sum(c * c))
    return tree.add(value, split.correction(batch.weights, P)[0])


def _whitened_factors(totals: Statistics, noise: Array) -> tuple[Array, Array]:
    """The factors LB and c of `Collapsed`."""
    LB = cholesky(identity(totals.gram) + totals.gram / noise)
    return LB, backend_of(LB).solve_triangular(LB, totals.projected) / noise


def _group_factors(LB: Array, sizes: tuple[int, ...] | None) -> tuple[Array, ...]:
    """The Cholesky factors of the diagonal blocks of LB LB^T."""
    if sizes is None or len(sizes) == 1:
        return (LB,)
    return tuple(cholesky(backend_of(LB).times_own_transpose(LB[rows, :])) for rows in groups_of(sizes))


def bound_from_totals(
    totals: Statistics, noise: Array, N: Array | float, sizes: tuple[int, ...] | None = None
) -> tuple[Array, Pullback]:
    """The collapsed bound from the statistics of N observations; its pullback is ``bar -> (totals_bar, noise_bar)``."""
    # -1/2 (N P log(2 pi s) + P sum_g log|LG LG^T| + |y - h|^2 / s - |c|^2 + P tr(Kff - Qff) / s)
    LB, c = _whitened_factors(totals, noise)
    B = backend_of(LB)
    xp = B.xp
    M, P = c.shape
    factors = _group_factors(LB, sizes)
    log_det = N * (LOG_2PI + xp.log(noise)) + sum(2.0 * xp.sum(xp.log(diagonal(LG))) for LG in factors)
    misfit = (totals.square + P * totals.residual) / noise

    def pullback(bar):
        w = B.solve_triangular(LB, c, transpose=True)
        halves = [solve_lower(LG, identity(LG)) for LG in factors]
        inverse = block_diagonal([half.mT @ half for half in halves], [half.shape[0] for half in halves])
        assert inverse is not None
        scale = 0.5 * bar / noise
        gram_bar = -scale * (w @ w.mT + P * inverse)
        squares = xp.sum(c * c) + xp.sum(w * w) + P * sum(xp.sum(half * half) for half in halves)
        noise_bar = scale * (misfit + P * (M - N) - squares)
        return Statistics(gram_bar, 2.0 * scale * w, -P * scale, -scale), noise_bar

    return -0.5 * (P * log_det + misfit - xp.sum(c * c)), pullback


# -- sums over the rows -----------------------------------------------------------------------------------------------


def totals_of(
    model: Any, Lu: Array, batch: Batch, block_rows: int | None, kept_rows: int = 0
) -> tuple[Statistics, Pullback]:
    """The statistics and their pullback.

    The pullback is ``totals_bar -> (model_bar, factor_bar, common_bar, X_bar)``, where `factor_bar` is the cotangent of
    Lu^-1 dLu, and `common_bar` that of the common noise variance in the weights of rows with known noise (None without
    such rows). `X_bar` is None if `block_rows` is given.
    """
    noise = SplitNoise.of(model.likelihood.noise_variance, batch)
    rows = (batch.X, batch.y, batch.weights, batch.offset, noise.excess)
    params = (model, Lu, noise.common)
    if block_rows is None:
        return _statistics(params, rows)
    settings = {"add": tree.add, "kept_rows": kept_rows}
    return backend_of(batch.X).fold(_statistics_of_block, params, rows, block_rows, **settings)


def count_of(batch: Batch, /) -> Array | float:
    """Number of observations in the rows of a batch: the sum of the row weights, or N without weights."""
    weights = batch.weights
    if weights is None:
        return batch.X.shape[0]
    total = backend_of(weights).xp.sum(weights)
    return float(total) if backend_of(batch.X).is_lazy else total


def _statistics_of_block(params: tuple[Any, ...], block: tuple[Any, ...]) -> tuple[Statistics, Pullback]:
    sums, pull = _statistics(params, block)
    return sums, lambda bar: (*pull(bar)[:-1], None)


def _statistics(params: tuple[Any, Array, Array], block: tuple[Any, ...]) -> tuple[Statistics, Pullback]:
    (model, Lu, common), (X, y, weights, offset, excess) = params, block
    B = backend_of(X)
    xp = B.xp
    (Kuf, kff, h), pull_features = model._features(X)
    weights = split_weights(common, weights, excess)
    r = y - h if offset is None else y - offset - h
    A, kff, r = _weight_rows(weights, B.solve_triangular(Lu, Kuf), kff, r)
    sums, pull_residual = _sums(A, kff, r)

    def pullback(bar):
        gram_bar, projected_bar, residual_bar, square_bar = bar
        kff_bar = pull_residual(residual_bar)
        A_bar = (2.0 * gram_bar) @ A + projected_bar @ r.mT - 2.0 * A * kff_bar  # gram_bar is symmetric
        along = A.mT @ projected_bar
        h_bar = -(along + 2.0 * square_bar * r)
        common_bar = None
        if excess is not None:
            # the terms of each row, times their cotangents: a^T gram_bar a + a^T projected_bar r + ...
            quadratic = 0.5 * (xp.sum(A * A_bar, axis=0) + xp.sum(along * r, axis=1))
            by_row = quadratic + kff * kff_bar + square_bar * xp.sum(r * r, axis=1)
            common_bar = xp.sum(by_row * split_weights_slope(common, excess))
        factor_bar = -lower_of(A_bar, A.mT)  # dA = Lu^-1 dKuf - (Lu^-1 dLu) A
        A_bar, kff_bar, h_bar = _weight_rows(weights, A_bar, kff_bar, h_bar)  # the map is its own adjoint
        model_bar, X_bar = pull_features(B.solve_triangular(Lu, A_bar, transpose=True), kff_bar, h_bar)
        return model_bar, factor_bar, common_bar, X_bar

    return sums, pullback


def statistics_of(A: Array, kff: Array, r: Array, weights: Array | None = None) -> Statistics:
    """The statistics of rows with features A [M, N], variances kff [N], residuals r = y - h [N, P] and weights [N]."""
    return _sums(*_weight_rows(weights, A, kff, r))[0]


def _weight_rows(weights: Array | None, A: Array, kff: Array, r: Array) -> tuple[Array, Array, Array]:
    """Return A W^(1/2), W kff and W^(1/2) r with W = diag(weights): plain sums over them are weighted sums."""
    if weights is None:
        return A, kff, r
    root = backend_of(A).xp.sqrt(weights)
    return A * root, weights * kff, root[:, None] * r


def _sums(A: Array, kff: Array, r: Array) -> tuple[Statistics, Pullback]:
    """The statistics, and the pullback of the residual variances kff_n - |a_n|^2."""
    B = backend_of(A)
    xp = B.xp
    residual, pull_residual = nonnegative(kff - xp.sum(A * A, axis=0))
    return Statistics(B.times_own_transpose(A), A @ r, xp.sum(residual), xp.sum(r * r)), pull_residual


# -- the bound by kernel variance and noise ---------------------------------------------------------------------------


class Profile(NamedTuple):
    """The collapsed bound as a function of a kernel factor v and a noise variance s; each evaluation takes O(M)."""

    eigenvalues: Array
    """Eigenvalues [M] of A A^T."""
    squares: Array
    """Squared coordinates of A (y - h) in the eigenbasis of A A^T, summed over the outputs, [M]."""
    residual: Array
    """Trace of Kff - Qff, a 0-d array."""
    square: Array
    """Squared norm of y - h, a 0-d array."""
    observations: float
    """Sum of the row weights, or N without weights."""
    outputs: int

    def bound(self, factor: Array | float, noise: Array | float, /) -> Array:
        """The bound for the kernel factor v and the noise variance s, summed over the outputs.

        The bound is log N(y; h, v Qff + s I) - v tr(Kff - Qff) / (2 s), a 0-d array.
        """
        xp = backend_of(self.eigenvalues).xp
        ratio = factor * self.eigenvalues / noise
        log_det = self.observations * (LOG_2PI + xp.log(xp.asarray(noise, **like(ratio)))) + xp.sum(xp.log1p(ratio))
        explained = factor / noise**2 * xp.sum(self.squares / (1.0 + ratio))
        misfit = (self.square + self.outputs * factor * self.residual) / noise
        return -0.5 * (self.outputs * log_det + misfit - explained)


def profile_of(totals: Statistics, observations: float, /) -> Profile:
    """The profile of the collapsed bound, computed by one eigendecomposition in O(M^3) operations."""
    xp = backend_of(totals.gram).xp
    eigenvalues, vectors = xp.linalg.eigh(totals.gram)
    squares = xp.sum((vectors.mT @ totals.projected) ** 2, axis=1)
    outputs = totals.projected.shape[1]
    return Profile(nonnegative(eigenvalues)[0], squares, totals.residual, totals.square, observations, outputs)
