"""The objectives of computation-aware GPs, from sums over rows of the data.

With actions S [m, i] over m rows of the data (the support), W = k(X, X_support) S [N, i], residuals r = y - h and the
projected covariance G = A + sigma^2 S^T S, A = S^T K S, the posterior for the observations S^T y has the mean
h + W v, v = G^-1 S^T r, and the covariance K - W G^-1 W^T. Tiles of K may be float32, but sums are float64, since the
differences below lose digits in proportion to the condition number of G over sigma^2.
"""

import math
from typing import Any, Literal, NamedTuple, TypeAlias

from agp import tree
from agp.actions import whole_numbers
from agp.backend import Array, Pullback, backend_of, wide

LOG_2PI = math.log(2.0 * math.pi)

Loss: TypeAlias = Literal["elbo", "projected"]


class Moments(NamedTuple):
    """The sums in float64: A over the support, the others over the data; None if not needed."""

    A: Any
    """S^T K S [i, i]."""
    M: Any = None
    """W^T W [i, i]."""
    c: Any = None
    """W^T r [i, P]."""
    square: Any = None
    """|r|^2, 0-d."""
    trace: Any = None
    """tr K, 0-d."""


class Projection(NamedTuple):
    """G, and the projected residuals S^T r [i, P], in float64."""

    G: Array
    b: Array


# -- sums over the rows -----------------------------------------------------------------------------------------------


def _moments_of_block(model: Any, block: tuple[Array, Array | None, Array | None]) -> tuple[Moments, Pullback]:
    """The sums over a block: inputs [b, D], their targets or None, their indices in the support or None."""
    X, y, at = block
    xp = backend_of(X).xp
    K, pull_K = model.kernel(X, model.X)
    narrow, pull_times = model.actions.times(K)
    W = wide(narrow)
    S, r, kff = None, None, None
    pull_rows: Any = None
    pull_mean: Any = None
    pull_kff: Any = None
    if at is not None:
        chosen, pull_rows = model.actions.rows(at)
        S = wide(chosen)
    if y is not None:
        h, pull_mean = model.mean_function(X)
        r = wide(y - h)
        kff, pull_kff = model.kernel.diag(X)

    def pullback(bar):
        W_bar, actions_bar, mean_bar, diag_bar = None, None, None, None
        if S is not None:
            W_bar = S @ bar.A
            actions_bar = pull_rows(xp.astype(W @ bar.A, K.dtype))
        if r is not None:
            W_bar = tree.add(W_bar, W @ (2.0 * bar.M) + r @ bar.c.mT)
            mean_bar = pull_mean(xp.astype(-(W @ bar.c + 2.0 * bar.square * r), K.dtype))[0]
            diag_bar = pull_kff(xp.astype(bar.trace, K.dtype) * xp.ones_like(kff))[0]
        times_bar, K_bar = pull_times(xp.astype(W_bar, K.dtype))
        kernel_bar = tree.add(pull_K(K_bar)[0], diag_bar)
        actions_bar = tree.add(actions_bar, times_bar)
        return tree.cotangent(model, kernel=kernel_bar, actions=actions_bar, mean_function=mean_bar)

    A = None if S is None else S.mT @ W
    if r is None:
        return Moments(A), pullback
    return Moments(A, W.mT @ W, W.mT @ r, xp.sum(r * r), xp.sum(wide(kff))), pullback


def _summed(model: Any, rows: tuple[Array, Array | None, Array | None], block_rows: int) -> tuple[Moments, Pullback]:
    B = backend_of(rows[0])
    if rows[0].shape[0] <= block_rows and not B.is_lazy:
        return _moments_of_block(model, rows)
    return B.fold(_moments_of_block, model, rows, block_rows, add=tree.add)


def projection_of(model: Any, A: Array, /) -> tuple[Projection, Array, Pullback]:
    """G and S^T r, log|S^T S|, and ``(G_bar, b_bar, log_det_bar) -> (model_bar, A_bar)``, from A = S^T K S [i, i]."""
    xp = backend_of(A).xp
    h, pull_mean = model.mean_function(model.X)
    b, pull_b = model.actions.project(model.y - h)
    (gram, log_det), pull_gram = model.actions.gram()
    noise = wide(model.likelihood.noise_variance)

    def pullback(G_bar, b_bar, log_det_bar):
        actions_bar, r_bar = pull_b(xp.astype(b_bar, model.X.dtype))
        actions_bar = tree.add(actions_bar, pull_gram(noise * G_bar, log_det_bar))
        noise_bar = xp.astype(xp.sum(G_bar * gram), model.X.dtype)
        likelihood_bar = tree.cotangent(model.likelihood, noise_variance=noise_bar)
        mean_bar = pull_mean(-r_bar)[0]
        bars = {"actions": actions_bar, "likelihood": likelihood_bar, "mean_function": mean_bar}
        return tree.cotangent(model, **bars), G_bar

    return Projection(A + noise * gram, wide(b)), log_det, pullback


def support_moments(model: Any, rows: int, *, data: bool = False) -> tuple[Moments, Pullback]:
    """A = S^T K S by blocks of the support; with `data`, also the other sums over the same rows."""
    at = whole_numbers(model.X.shape[0], model.X)
    moments, pull = _summed(model, (model.X, model.y if data else None, at), rows)
    assert moments.A is not None
    return moments._replace(A=0.5 * (moments.A + moments.A.mT)), pull


# -- the bounds -------------------------------------------------------------------------------------------------------


def computation_aware_bound(
    model: Any, X: Array, y: Array, /, *, scale: float = 1.0, shared: bool = False, block_rows: int
) -> tuple[Array, Pullback]:
    """A lower bound on the log evidence of the exact GP (or, for the loss "projected", another objective), 0-d.

    The evidence lower bound ("elbo") of P outputs, with the posterior's approximation Q of G^-1, v = Q b, b = S^T r::

        -1/2 [ (|r - W v|^2 + P (tr K - tr(Q M))) / sigma^2 + P (N - i) log sigma^2 + N P log 2 pi
               + v^T A v - P tr(Q A) + P log|G| - P log|S^T S| ]

    "projected": log N(S'^T y; S'^T h, S'^T (K + sigma^2 I) S') for S' = S (S^T S)^-1/2; not a bound, for study.

    Parameters
    ----------
    model
        With the fields kernel, likelihood (Gaussian), mean_function, actions, X and y (the support), posterior, loss.
    X, y
        All data [N, D] and [N, P], or a minibatch of them.
    scale
        N over the number of rows of the batch; scales the sums over the data, not those over the support.
    shared
        Whether the data are the support, in its order, so that each covariance is evaluated once.
    block_rows
        The number of rows in a block.

    Returns
    -------
    bound
    pullback
        ``bar=1.0 -> (model_bar, None)``.

    Source: Wenger et al., "Computation-aware Gaussian processes: model selection and linear-time inference", NeurIPS
    2024.
    """
    xp = backend_of(model.X).xp
    elbo = model.loss == "elbo"
    moments, pull_support = support_moments(model, block_rows, data=shared and elbo)
    pull_data = None
    if elbo and not shared:
        data, pull_data = _summed(model, (X, y, None), block_rows)
        moments = Moments(moments.A, *(scale * x for x in data[1:]))
    assert moments.A is not None
    projection, log_det, pull_projection = projection_of(model, moments.A)
    inverse = model.posterior.inverted_covariance(projection.G)
    N = scale * X.shape[0]
    value, pull_value = (_elbo if elbo else _projected)(
        moments, projection, inverse, wide(model.likelihood.noise_variance), log_det, N
    )

    def pullback(bar=1.0):
        moments_bar, projection_bar, noise_bar, log_det_bar = pull_value(wide(bar * xp.ones_like(value)))
        model_bar, A_bar = pull_projection(*projection_bar, log_det_bar)
        moments_bar = moments_bar._replace(A=tree.add(moments_bar.A, A_bar))
        if pull_data is None:
            model_bar = tree.add(model_bar, pull_support(moments_bar))
        else:
            model_bar = tree.add(model_bar, pull_support(Moments(moments_bar.A)))
            model_bar = tree.add(model_bar, pull_data(Moments(None, *(scale * x for x in moments_bar[1:]))))
        noise_bar = tree.cotangent(model.likelihood, noise_variance=xp.astype(noise_bar, model.X.dtype))
        return tree.add(model_bar, tree.cotangent(model, likelihood=noise_bar)), None

    return xp.astype(value, model.X.dtype), pullback


def _elbo(moments, projection, inverse, noise, log_det, N) -> tuple[Array, Pullback]:
    """The bound, and ``bar -> (moments_bar, (G_bar, b_bar), noise_bar, log_det_bar)``."""
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


def _projected(moments, projection, inverse, noise, log_det, N) -> tuple[Array, Pullback]:
    """The log density of the projected observations, and the same cotangents."""
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
