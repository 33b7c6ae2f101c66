"""Objectives of computation-aware GPs, computed from sums over the rows of data.

The posterior conditions on the projected observations S^T y. The actions S [m, i] act on m rows, which are called the
support. Let r = y - h be the residuals, and W = k(X, X_support) S [N, i] the cross-covariance. The projected covariance
is G = A + sigma^2 S^T S with A = S^T K S. The posterior has the mean h + W v with v = G^-1 S^T r, and the covariance
K - W G^-1 W^T.

Tiles of K may be float32. Sums are float64, because the relative error of their differences grows in proportion to the
condition number of G / sigma^2.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

from agp import tree
from agp.backend import Array, Pullback, as_widest_float, backend_of, row_numbers
from agp.bounds._batch import Batch
from agp.bounds._collapsed import count_of
from agp.bounds._evidence import targets_of
from agp.bounds._row_noise import LOG_2PI, SplitNoise, cotangent_with_noise, split_weights, split_weights_slope

Loss: TypeAlias = Literal["elbo", "projected"]


class Moments(NamedTuple):
    """Sums in float64 that determine the objective; sums that are not needed are None.

    A is a sum over the support. The other fields are sums over all rows of data.
    """

    A: Any
    """Projected kernel matrix S^T K S [i, i]."""
    M: Any = None
    """Gram matrix W^T W [i, i] of the cross-covariance."""
    c: Any = None
    """Projected residuals W^T r [i, P]."""
    square: Any = None
    """Squared norm of the residuals r, a 0-d array."""
    trace: Any = None
    """Trace of K, a 0-d array."""


class Projection(NamedTuple):
    """Projected covariance G [i, i] and projected residuals b = S^T r [i, P], in float64."""

    G: Array
    b: Array


# -- sums over the rows -----------------------------------------------------------------------------------------------

Rows = tuple[Array, Array | None, Array | None, Array | None, Array | None, Array | None]
"""Inputs [b, D]. Targets, numbers in the support, weights, offset and excess noise (`SplitNoise`) may be None."""


def _moments_of_block(params: tuple[Any, Array], block: Rows) -> tuple[Moments, Pullback]:
    """Sums over a block of rows, and their pullback ``moments_bar -> (model_bar, common_bar)``."""
    model, common = params
    X, y, at, weights, offset, excess = block
    xp = backend_of(X).xp
    K, pull_K = model.kernel(X, model.X)
    narrow, pull_times = model.actions.times(K)
    W = as_widest_float(narrow)
    S, e = None, None
    pull_rows: Any = None
    of_data: Any = None
    if at is not None:
        chosen, pull_rows = model.actions.rows(at)
        S = as_widest_float(chosen)
    if y is not None:
        e = split_weights(common, *(None if x is None else as_widest_float(x) for x in (weights, excess)))
        of_data = _data_moments(model, X, y if offset is None else y - offset, W, e)

    def pullback(bar):
        W_bar, actions_bar, mean_bar, diag_bar, common_bar = None, None, None, None, None
        if S is not None:
            W_bar = S @ bar.A
            actions_bar = pull_rows(xp.astype(W @ bar.A, K.dtype))
        if of_data is not None:
            data_bar, mean_bar, diag_bar, by_row = of_data[1](bar)
            W_bar = tree.add(W_bar, data_bar)
            if excess is not None:
                common_bar = xp.sum(by_row() * split_weights_slope(common, as_widest_float(excess)))
        times_bar, K_bar = pull_times(xp.astype(W_bar, K.dtype))
        kernel_bar = tree.add(pull_K(K_bar)[0], diag_bar)
        actions_bar = tree.add(actions_bar, times_bar)
        return tree.cotangent(model, kernel=kernel_bar, actions=actions_bar, mean_function=mean_bar), common_bar

    A = None if S is None else S.mT @ W
    return Moments(A, *(() if of_data is None else of_data[0])), pullback


def _data_moments(model: Any, X: Array, y: Array, W: Array, e: Array | None) -> tuple[tuple[Array, ...], Pullback]:
    """The sums M, c, square and trace over rows with weights e [b].

    The pullback is ``moments_bar -> (W_bar, mean_bar, kernel_bar, by_row)``, where ``by_row()`` is e e_bar [b].
    """
    xp = backend_of(W).xp
    h, pull_mean = model.mean_function(X)
    kff, pull_kff = model.kernel.diag(X)
    r, k = as_widest_float(y - h), as_widest_float(kff)
    eW, er = (W, r) if e is None else (e[:, None] * W, e[:, None] * r)

    def pullback(bar):
        ones = xp.ones_like(k) if e is None else e
        W_bar = eW @ (2.0 * bar.M) + er @ bar.c.mT
        r_bar = eW @ bar.c + 2.0 * bar.square * er
        mean_bar = pull_mean(xp.astype(-r_bar, X.dtype))[0]
        diag_bar = pull_kff(xp.astype(bar.trace * ones, X.dtype))[0]

        # the sums are linear in e; half of <W, W_bar> + <r, r_bar> is W^T M_bar W + W^T c_bar r + square_bar r^2
        def by_row():
            return 0.5 * (xp.sum(W * W_bar, axis=1) + xp.sum(r * r_bar, axis=1)) + bar.trace * k * ones

        return W_bar, mean_bar, diag_bar, by_row

    return (W.mT @ eW, W.mT @ er, xp.sum(r * er), xp.sum(k if e is None else e * k)), pullback


def _sum_moments(model: Any, common: Array, rows: Rows, block_rows: int) -> tuple[Moments, Pullback]:
    B = backend_of(rows[0])
    if rows[0].shape[0] <= block_rows and not B.is_lazy:
        return _moments_of_block((model, common), rows)
    return B.fold(_moments_of_block, (model, common), rows, block_rows, add=tree.add)


def support_noise(model: Any, /) -> SplitNoise:
    """The noise of the rows of the support, in float64."""
    found = SplitNoise.of(model.likelihood.noise_variance, model._data)
    return SplitNoise(as_widest_float(found.common), None if found.excess is None else as_widest_float(found.excess))


def projection_of(model: Any, A: Array, /) -> tuple[Projection, Array, Pullback]:
    """Compute the projection, log|S^T D S| and the pullback of both from A = S^T K S [i, i].

    D holds the noise variances of the support's rows, relative to the common noise variance b of `SplitNoise`. The
    pullback is ``(G_bar, b_bar, log_det_bar) -> (model_bar, A_bar)``.
    """
    xp = backend_of(A).xp
    h, pull_mean = model.mean_function(model.X)
    b, pull_b = model.actions.project(targets_of(model._data) - h)
    common, excess = support_noise(model)
    weights = None if model.weights is None else as_widest_float(model.weights)
    e = split_weights(common, weights, excess)
    (gram, log_det), pull_gram = model.actions.gram(None if e is None else 1.0 / e)

    def pullback(G_bar, b_bar, log_det_bar):
        actions_bar, r_bar = pull_b(xp.astype(b_bar, model.X.dtype))
        own, inverse_bar = pull_gram(common * G_bar, log_det_bar)
        noise_bar = xp.sum(G_bar * gram)
        if excess is not None:
            noise_bar = noise_bar - xp.sum(inverse_bar / e * split_weights_slope(common, excess))
        bars = {"actions": tree.add(actions_bar, own), "mean_function": pull_mean(-r_bar)[0]}
        return cotangent_with_noise(model, xp.astype(noise_bar, model.X.dtype), **bars), G_bar

    return Projection(A + common * gram, as_widest_float(b)), log_det, pullback


def support_moments(model: Any, rows: int, *, data: bool = False) -> tuple[Moments, Pullback]:
    """Compute A = S^T K S from blocks of the support. With `data=True`, also compute the other sums over these rows."""
    at, held = row_numbers(model.X.shape[0], model.X), model._data
    common, excess = support_noise(model)
    known = (held.y, at, held.weights, held.offset, excess) if data else (None, at, None, None, None)
    held_rows: Any = (model.X, *known)
    moments, pull = _sum_moments(model, common, held_rows, rows)
    return moments._replace(A=0.5 * (moments.A + moments.A.mT)), pull


# -- the bounds -------------------------------------------------------------------------------------------------------


def computation_aware_bound(
    model: Any, batch: Batch, /, *, shared: bool = False, block_rows: int
) -> tuple[Array, Pullback]:
    """Training objective of a computation-aware GP, summed over the outputs.

    The loss "elbo" is a lower bound on the log evidence of the exact GP. Let b = S^T r and v = Q b,
    where Q is the approximation of G^-1 that the posterior uses. Then the loss is::

        -1/2 [ (|r - W v|^2 + P (tr K - tr(Q M))) / sigma^2 + P (N - i) log sigma^2 + N P log 2 pi
               + v^T A v - P tr(Q A) + P log|G| - P log|S^T S| ]

    The loss "projected" is log N(S'^T y; S'^T h, S'^T (K + sigma^2 I) S') with S' = S (S^T S)^-1/2.
    This loss is not a bound; use it for comparisons only.

    Weights and known noise variances of rows multiply the terms of the rows in the sums, and S^T S becomes S^T D S.

    Parameters
    ----------
    model
        A model with the fields `kernel`, `likelihood` (Gaussian), `mean_function`, `actions`, `posterior` and `loss`.
        Its data (`_data`) are the support.
    batch
        All rows, or a minibatch. The scale multiplies the sums over the data, but not A.
    shared
        True if the data and the support are the same rows in the same order. Each covariance is then evaluated once.
    block_rows
        Number of rows per block.

    Returns
    -------
    bound
        A 0-d array.
    pullback
        A function ``bar=1.0 -> (model_bar, None)``.

    Source: Wenger et al., "Computation-aware Gaussian processes: model selection and linear-time inference", NeurIPS
    2024.
    """
    xp, scale = backend_of(model.X).xp, batch.scale
    elbo = model.loss == "elbo"
    noise, P = support_noise(model), model.y.shape[1]
    excess = noise.excess if shared else _excess_of(model, batch)
    moments, pull_support = support_moments(model, block_rows, data=shared and elbo)
    pull_data = None
    if elbo and not shared:
        rows: Rows = (batch.X, batch.y, None, batch.weights, batch.offset, excess)
        data, pull_data = _sum_moments(model, noise.common, rows, block_rows)
        moments = Moments(moments.A, *(scale * x for x in data[1:]))
    projection, log_det, pull_projection = projection_of(model, moments.A)
    inverse = model.posterior.invert_covariance(projection.G)
    N = scale * count_of(batch)
    value, pull_value = (_elbo if elbo else _projected_log_density)(
        moments, projection, inverse, noise.common, log_det, N
    )
    logs, pull_logs = SplitNoise(noise.common, excess if elbo else None).correction(batch.weights, P * scale)
    value = tree.add(value, logs)

    def pullback(bar=1.0):
        bar = as_widest_float(bar * xp.ones_like(value))
        moments_bar, projection_bar, noise_bar, log_det_bar = pull_value(bar)
        noise_bar = tree.add(noise_bar, pull_logs(bar))
        model_bar, A_bar = pull_projection(*projection_bar, log_det_bar)
        moments_bar = moments_bar._replace(A=tree.add(moments_bar.A, A_bar))
        bars = [pull_support(moments_bar if pull_data is None else Moments(moments_bar.A))]
        if pull_data is not None:
            bars.append(pull_data(Moments(None, *(scale * x for x in moments_bar[1:]))))
        for own_bar, common_bar in bars:
            model_bar, noise_bar = tree.add(model_bar, own_bar), tree.add(noise_bar, common_bar)
        return tree.add(model_bar, cotangent_with_noise(model, xp.astype(noise_bar, model.X.dtype))), None

    return xp.astype(value, model.X.dtype), pullback


def _excess_of(model: Any, batch: Batch) -> Array | None:
    """The noise variances of the rows of a batch, minus the smallest one of the support."""
    if batch.noise is None:
        return None
    least = backend_of(batch.noise).xp.min(model._data.noise)
    return batch.noise[:, 0] - backend_of(batch.noise).stop_gradient(least)


def _elbo(moments, projection, inverse, noise, log_det, N) -> tuple[Array, Pullback]:
    """The bound, and its pullback ``bar -> (moments_bar, (G_bar, b_bar), noise_bar, log_det_bar)``."""
    A, M, c, square, trace = moments
    (G, b), (T, Q, log_det_G) = projection, inverse
    xp = backend_of(G).xp
    i, P = b.shape
    v = Q @ b
    Mv, Av = M @ v, A @ v
    misfit = square - 2.0 * xp.sum(v * c) + xp.sum(v * Mv) + P * (trace - xp.sum(Q * M))
    logs = P * (log_det_G - log_det + (N - i) * xp.log(noise) + N * LOG_2PI)
    value = -0.5 * (misfit / noise + xp.sum(v * Av) - P * xp.sum(Q * A) + logs)

    def pullback(bar):
        half = -0.5 * bar
        g = (Mv - c) / noise + Av
        H = A + M / noise
        Tg, Tb = T @ g, T @ b
        outer = Tg @ Tb.mT
        G_bar = P * (T + T @ H @ T) - outer - outer.mT
        spread = v @ v.mT - P * Q
        noise_bar = half * (P * (N - i) / noise - misfit / (noise * noise))
        sums_bar = Moments(
            half * spread, half / noise * spread, -2.0 * half / noise * v, half / noise, P * half / noise
        )
        return sums_bar, (half * G_bar, 2.0 * half * (Q @ g)), noise_bar, -P * half

    return value, pullback


def _projected_log_density(moments, projection, inverse, noise, log_det, N) -> tuple[Array, Pullback]:
    """The log density of the projected observations, and its pullback, which has the same form as that of `_elbo`."""
    del moments, N
    (G, b), (T, Q, log_det_G) = projection, inverse
    xp = backend_of(G).xp
    i, P = b.shape
    v = Q @ b
    value = -0.5 * (xp.sum(b * v) + P * (log_det_G - log_det + i * LOG_2PI))

    def pullback(bar):
        half = -0.5 * bar
        # d (b^T Q b) = 2 (Q b)^T db - (T b)^T dG (T b)
        Tb = T @ b
        return Moments(None), (half * (P * T - Tb @ Tb.mT), 2.0 * half * v), xp.zeros_like(noise), -P * half

    return value, pullback
