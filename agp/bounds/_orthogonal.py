"""Further bounds for sparse GP regression with orthogonal groups of inducing inputs."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.bounds._batch import Batch
from agp.bounds._collapsed import Statistics, bound_of_rows, totals_of
from agp.bounds._evidence import targets_of
from agp.bounds._row_noise import LOG_2PI, RowNoise, cotangent_with_noise
from agp.linalg import (
    block_diagonal,
    cholesky,
    diagonal,
    groups_of,
    identity,
    lower_of,
    relative_cholesky_pullback,
    symmetric_from_blocks,
)


def free_collapsed_bound(
    model: Any, batch: Batch, /, *, sizes: tuple[int, int], block_rows: int | None = None
) -> tuple[Array, Pullback]:
    """Evidence lower bound with an optimal q(u) for the first group and a given q(v) for the second group.

    The bound is the sum over the outputs of
    log N(r; 0, Quu + sigma^2 I) - (tr(Kff - Qff) + tr(S_v Dm Dm^T)) / (2 sigma^2) - KL[q(v) || p(v)].
    Here r = y - h(X) - Dm^T m_v, and Dm = Lv^-1 Cvf are the whitened features of the second group.

    Parameters
    ----------
    model
        A model as for `collapsed_bound`, whose field `second` is the posterior of the second group.
    batch
        All rows, as for `collapsed_bound`.
    sizes
        Numbers of inducing inputs in the two groups.
    block_rows
        As for `collapsed_bound`.

    Returns
    -------
    bound
        A 0-d array.
    pullback
        A function ``bar=1.0 -> (model_bar, X_bar)``. `X_bar` is None if `block_rows` is given.

    Source: Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020.
    """
    Kuu, pull_Kuu = model._inducing_covariance()
    L = cholesky(Kuu)
    rows = groups_of(sizes)[1]
    state, pull_state = model.second.whitened_state(L[rows, rows])
    totals, pull_totals = totals_of(model, L, batch, block_rows)
    rest, pull_rest = _subtract_second_group(totals, state, sizes)
    value, pull_value = bound_of_rows(model, rest, batch)
    kl, pull_kl = state.white_kl()

    def pullback(bar=1.0):
        rest_bar, noise_bar = pull_value(bar)
        totals_bar, state_bar = pull_rest(rest_bar)
        second_bar, S_second = pull_state(tree.add(state_bar, pull_kl(-bar)))
        model_bar, S_bar, common_bar, X_bar = pull_totals(totals_bar)
        if S_second is not None:
            S_bar = S_bar + block_diagonal([None, S_second], sizes)
        own = cotangent_with_noise(model, tree.add(noise_bar, common_bar), second=second_bar)
        return tree.add(tree.add(model_bar, own), pull_Kuu(relative_cholesky_pullback(L, S_bar))), X_bar

    return value - kl, pullback


def optimal_first_group(totals: Statistics, noise: Array, state: Any, sizes: tuple[int, int]) -> tuple[Array, Array]:
    """Whitened mean [M, P] of the optimal q(u) for a given q(v), and the Cholesky factor [M, M] of its precision."""
    rest = _subtract_second_group(totals, state, sizes)[0]
    LB = cholesky(identity(rest.gram) + rest.gram / noise)
    B = backend_of(LB)
    return B.solve_triangular(LB, B.solve_triangular(LB, rest.projected), transpose=True) / noise, LB


def _subtract_second_group(totals: Statistics, state: Any, sizes: tuple[int, int]) -> tuple[Statistics, Pullback]:
    """The statistics of the first group, for targets minus the mean of q(v), and the pullback of the statistics.

    The variance of q(v), averaged over the outputs, is added to `residual`.
    """
    first, second = groups_of(sizes)
    xp = backend_of(totals.gram).xp
    Guv, Gvv = totals.gram[first, second], totals.gram[second, second]
    (m, _), pull_mean = state.white_moments(identity(Gvv))
    P = m.shape[1]
    Dy = totals.projected[second, :]
    Gm = Gvv @ m
    spread, pull_spread = state.white_spread(Gvv)
    rest = Statistics(
        gram=totals.gram[first, first],
        projected=totals.projected[first, :] - Guv @ m,
        residual=totals.residual + spread / P,
        square=totals.square - 2.0 * xp.sum(m * Dy) + xp.sum(m * Gm),
    )

    def pullback(bar):
        spread_bar, S_bar = pull_spread(bar.residual / P)
        cross = -0.5 * bar.projected @ m.mT
        corner = bar.square * (m @ m.mT) + S_bar
        gram_bar = symmetric_from_blocks(bar.gram, cross, corner)
        projected_bar = xp.concat([bar.projected, -2.0 * bar.square * m], axis=0)
        mean_bar = -Guv.mT @ bar.projected + 2.0 * bar.square * (Gm - Dy)
        state_bar = tree.add(pull_mean(mean_bar, xp.zeros_like(m))[0], spread_bar)
        return Statistics(gram_bar, projected_bar, bar.residual, bar.square), state_bar

    return rest, pullback


def tight_bound(model: Any, batch: Batch, /, *, sizes: tuple[int, ...]) -> tuple[Array, Pullback]:
    """Tighter evidence lower bound for sparse GP regression, with at most a few thousand rows.

    The bound is log N(y; h(X), Qff + sigma^2 I) - 1/2 tr[(Quu + sigma^2 I)^-1 (Kff - Qff)], summed over the outputs.
    Qff is the Nyström approximation of Kff from all groups of inducing inputs. Quu is the Nyström approximation from
    the first group only. The variational posterior lets u depend on the part of f that the inducing variables do not
    explain, so the bound is higher than `collapsed_bound` for the same inducing inputs. The computation requires the
    full matrix Kff, and takes O(N^2 M) operations and O(N^2) memory.

    Parameters
    ----------
    model
        A model as for `collapsed_bound`.
    batch
        All rows, as for `collapsed_bound`.
    sizes
        Numbers of inducing inputs in the orthogonal groups. With a single group, the bound is that of Shi, Titsias &
        Mnih.

    Returns
    -------
    bound
        A 0-d array.
    pullback
        A function ``bar=1.0 -> (model_bar, X_bar)``.

    Source: Shi, Titsias & Mnih, AISTATS 2020, appendix A, for one group; agp adds the optimal q(v) of the other groups.
    """
    X, y = batch.X, targets_of(batch)
    B = backend_of(X)
    xp = B.xp
    N, P = y.shape
    noise = RowNoise.of(model.likelihood.noise_variance, batch)
    Kuu, pull_Kuu = model._inducing_covariance()
    (Kuf, _, h), pull_features = model._features(X)
    Kff, pull_Kff = model.inducing.full(model.kernel, X)
    L = cholesky(Kuu)
    A = B.solve_triangular(L, Kuf)
    A1 = A[: sizes[0], :]
    r = y - h
    left = Kff - A.mT @ A
    all_inverse, all_log_det = _inverse_with_noise(A, noise.by_row)
    inverse, _ = _inverse_with_noise(A1, noise.by_row)
    al = all_inverse @ r
    logs, pull_logs = noise.correction(P)
    value = -0.5 * (P * (N * LOG_2PI + all_log_det + xp.sum(inverse * left)) + xp.sum(r * al))

    def pullback(bar=1.0):
        # With C = Qff + s I and T = (Quu + s I)^-1, the cotangent of C is 1/2 (al al^T - P C^-1), that of T is
        # -P/2 (Kff - Qff).
        through = 0.5 * bar * (al @ al.mT - P * all_inverse)
        T_bar = 0.5 * P * bar * (inverse @ left @ inverse)  # cotangent of Quu + s I
        Q_bar = through + 0.5 * P * bar * inverse
        A_bar = 2.0 * A @ Q_bar
        first_bar = 2.0 * A1 @ T_bar
        A_bar = xp.concat([A_bar[: sizes[0], :] + first_bar, A_bar[sizes[0] :, :]], axis=0)
        model_bar, X_bar = pull_features(B.solve_triangular(L, A_bar, transpose=True), xp.zeros_like(r[:, 0]), bar * al)
        inducing_bar, kernel_bar, X_full_bar = pull_Kff(-0.5 * P * bar * inverse)
        noise_bar = tree.add(noise.pull(diagonal(through) + diagonal(T_bar)), pull_logs(bar))
        own = cotangent_with_noise(model, noise_bar, kernel=kernel_bar, inducing=inducing_bar)
        through_factor = pull_Kuu(relative_cholesky_pullback(L, -lower_of(A_bar, A.mT)))
        return tree.add(tree.add(model_bar, own), through_factor), tree.add(X_bar, X_full_bar)

    return tree.add(value, logs), pullback


def _inverse_with_noise(A: Array, noise: Array) -> tuple[Array, Array]:
    """The inverse [N, N] and the log determinant of A^T A + V for A [M, N], by an M x M factorisation.

    V is diagonal with the noise variances of the rows, 0-d or [N].
    """
    B = backend_of(A)
    xp = B.xp
    N = A.shape[1]
    noise = xp.broadcast_to(noise, (N,))
    root = xp.sqrt(noise)
    scaled = A / root  # V^-1/2 (A^T A + V) V^-1/2 = I + scaled^T scaled
    gram = B.times_own_transpose(scaled)
    LB = cholesky(identity(gram) + gram)
    F = B.solve_triangular(LB, scaled)
    log_det = xp.sum(xp.log(noise)) + 2.0 * xp.sum(xp.log(diagonal(LB)))
    return (xp.eye(N, **like(A)) - F.mT @ F) / (root[:, None] * root), log_det
