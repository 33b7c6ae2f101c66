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
from agp.actions import whole_numbers
from agp.backend import Array, Pullback, as_widest_float, backend_of
from agp.bounds._evidence import LOG_2PI

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


def _moments_of_block(model: Any, block: tuple[Array, Array | None, Array | None]) -> tuple[Moments, Pullback]:
    """Sums over a block of rows, and their pullback.

    The block contains the inputs [b, D], and the targets and the row numbers in the support, which may be None.
    """
    X, y, at = block
    xp = backend_of(X).xp
    K, pull_K = model.kernel(X, model.X)
    narrow, pull_times = model.actions.times(K)
    W = as_widest_float(narrow)
    S, r, kff = None, None, None
    pull_rows: Any = None
    pull_mean: Any = None
    pull_kff: Any = None
    if at is not None:
        chosen, pull_rows = model.actions.rows(at)
        S = as_widest_float(chosen)
    if y is not None:
        h, pull_mean = model.mean_function(X)
        r = as_widest_float(y - h)
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
    return Moments(A, W.mT @ W, W.mT @ r, xp.sum(r * r), xp.sum(as_widest_float(kff))), pullback


def _sum_moments(
    model: Any, rows: tuple[Array, Array | None, Array | None], block_rows: int
) -> tuple[Moments, Pullback]:
    B = backend_of(rows[0])
    if rows[0].shape[0] <= block_rows and not B.is_lazy:
        return _moments_of_block(model, rows)
    return B.fold(_moments_of_block, model, rows, block_rows, add=tree.add)


def projection_of(model: Any, A: Array, /) -> tuple[Projection, Array, Pullback]:
    """Compute the projection, log|S^T S| and the pullback of both from A = S^T K S [i, i].

    The pullback is ``(G_bar, b_bar, log_det_bar) -> (model_bar, A_bar)``.
    """
    xp = backend_of(A).xp
    h, pull_mean = model.mean_function(model.X)
    b, pull_b = model.actions.project(model.y - h)
    (gram, log_det), pull_gram = model.actions.gram()
    noise = as_widest_float(model.likelihood.noise_variance)

    def pullback(G_bar, b_bar, log_det_bar):
        actions_bar, r_bar = pull_b(xp.astype(b_bar, model.X.dtype))
        actions_bar = tree.add(actions_bar, pull_gram(noise * G_bar, log_det_bar))
        noise_bar = xp.astype(xp.sum(G_bar * gram), model.X.dtype)
        likelihood_bar = tree.cotangent(model.likelihood, noise_variance=noise_bar)
        mean_bar = pull_mean(-r_bar)[0]
        bars = {"actions": actions_bar, "likelihood": likelihood_bar, "mean_function": mean_bar}
        return tree.cotangent(model, **bars), G_bar

    return Projection(A + noise * gram, as_widest_float(b)), log_det, pullback


def support_moments(model: Any, rows: int, *, data: bool = False) -> tuple[Moments, Pullback]:
    """Compute A = S^T K S from blocks of the support. With `data=True`, also compute the other sums over these rows."""
    at = whole_numbers(model.X.shape[0], model.X)
    moments, pull = _sum_moments(model, (model.X, model.y if data else None, at), rows)
    return moments._replace(A=0.5 * (moments.A + moments.A.mT)), pull


# -- the bounds -------------------------------------------------------------------------------------------------------


def computation_aware_bound(
    model: Any, X: Array, y: Array, /, *, scale: float = 1.0, shared: bool = False, block_rows: int
) -> tuple[Array, Pullback]:
    """Training objective of a computation-aware GP, summed over the outputs.

    The loss "elbo" is a lower bound on the log evidence of the exact GP. Let b = S^T r and v = Q b,
    where Q is the approximation of G^-1 that the posterior uses. Then the loss is::

        -1/2 [ (|r - W v|^2 + P (tr K - tr(Q M))) / sigma^2 + P (N - i) log sigma^2 + N P log 2 pi
               + v^T A v - P tr(Q A) + P log|G| - P log|S^T S| ]

    The loss "projected" is log N(S'^T y; S'^T h, S'^T (K + sigma^2 I) S') with S' = S (S^T S)^-1/2.
    This loss is not a bound; use it for comparisons only.

    Parameters
    ----------
    model
        A model with the fields `kernel`, `likelihood` (Gaussian), `mean_function`, `actions`, `posterior` and `loss`.
        Its fields `X` and `y` are the support.
    X, y
        All inputs [N, D] and targets [N, P], or a minibatch of their rows.
    scale
        N divided by the number of rows in the batch. The scale multiplies the sums over the data, but not A.
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
    xp = backend_of(model.X).xp
    elbo = model.loss == "elbo"
    moments, pull_support = support_moments(model, block_rows, data=shared and elbo)
    pull_data = None
    if elbo and not shared:
        data, pull_data = _sum_moments(model, (X, y, None), block_rows)
        moments = Moments(moments.A, *(scale * x for x in data[1:]))
    projection, log_det, pull_projection = projection_of(model, moments.A)
    inverse = model.posterior.invert_covariance(projection.G)
    N = scale * X.shape[0]
    value, pull_value = (_elbo if elbo else _projected_log_density)(
        moments, projection, inverse, as_widest_float(model.likelihood.noise_variance), log_det, N
    )

    def pullback(bar=1.0):
        moments_bar, projection_bar, noise_bar, log_det_bar = pull_value(as_widest_float(bar * xp.ones_like(value)))
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
