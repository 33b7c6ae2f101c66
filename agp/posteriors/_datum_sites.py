"""q(f) without inducing variables, with a Gaussian site for each data row.

    q(f_p) ~ N(0, K) prod_n exp(lam1_np f_n - lam2_np f_n^2 / 2),  lam2 >= 0

Let s = sqrt(lam2), W = I + diag(s) K diag(s) and H = diag(s) W^-1 diag(s). The weights are g = lam1 - H K lam1, and

    mu = K g,  var = diag(K - K H K),  KL = sum_p 1/2 (log|W| - tr(H K) + g^T K g).

The formulas do not divide by lam2, which may be zero, and they do not factorise K. The precisions [N, Q] have one
column for each output (Q = P) or are shared by all outputs (Q = 1), which then share W and the variances.
"""

import math
from typing import Any

from agp.backend import Array, Pullback, backend_of
from agp.linalg import cholesky, diagonal, each_inverse, each_times, identity, nonnegative

LEAST_SHARE = 0.625
"""Variances are computed from the diagonal of W^-1 if each lam2 k(x, x) is at least eps to this power."""


def factorise_sites(K: Array, precision: Array, /) -> tuple[Array, Array]:
    """Return s [Q, N] and the Cholesky factor LW [Q, N, N] of W."""
    s = backend_of(K).xp.sqrt(precision).mT
    return s, cholesky(identity(K) + s[:, :, None] * K * s[:, None, :])


def weights_of_sites(K: Array, shift: Array, root: Array, /) -> Array:
    """Return g [N, P], given Kff [N, N], lam1 [N, P] and the root LW^-1 diag(s) [Q, N, N] of H."""
    return shift - _each(root.mT, _each(root, K @ shift))


def moments_of_sites(K: Array, shift: Array, precision: Array, /) -> tuple[tuple[Array, Array, Array], Pullback]:
    """Return (mu [N, P], var [N, P], kl) of f - h, given Kff [N, N] and the sites lam1 [N, P] and lam2 [N, Q].

    Since diag(s) K diag(s) = W - I, lam2_n var_n = 1 - (W^-1)_nn, and tr(H K) = N - tr(W^-1). Where a precision is too
    small to divide by, all variances are computed as differences. If huge precisions make the result useless, which
    shows in a negative divergence, kl is NaN, so that optimisers reject the sites. The pullback is
    ``(mu_bar, var_bar, kl_bar) -> Kff_bar``.
    """
    B, prior = backend_of(K), diagonal(K)[:, None]
    xp = B.xp
    copies = shift.shape[1] // precision.shape[1]  # the number of outputs for each W
    s, L = factorise_sites(K, precision)
    inverse = each_inverse(L)
    root = inverse * s[:, None, :]
    g = weights_of_sites(K, shift, root)
    mu = K @ g
    explained = 1.0 - xp.sum(inverse * inverse, axis=-2).mT  # lam2 var [N, Q]

    def differences() -> Array:
        D = root @ K
        return prior - xp.sum(D * D, axis=-2).mT

    large = xp.all(precision * prior >= float(xp.finfo(K.dtype).eps) ** LEAST_SHARE)
    var, pull_var = nonnegative(B.cond(large, lambda: explained / precision, differences, likely=True))
    parts = 2.0 * copies * xp.sum(xp.log(diagonal(L))), copies * xp.sum(explained), xp.sum(g * mu)
    rounding = float(xp.finfo(mu.dtype).eps) ** 0.25
    kl = B.fused(_divergence, *parts, rounding, rounding * math.prod(g.shape))[0]

    def pullback(mu_bar, var_bar, kl_bar):
        var_bar = xp.sum(var_bar, axis=1, keepdims=True) if copies > 1 else var_bar
        w = pull_var(var_bar).mT[:, :, None]
        H = root.mT @ root
        rest = identity(K) - H @ K
        half_H = (0.5 * copies * kl_bar) * H
        # mu: rest mu_bar g^T;  var: rest diag(w) rest^T;  KL: 1/2 (H K H + (2 rest - I) g g^T), H K H = H - rest H
        left = _each(rest, mu_bar + kl_bar * g) - 0.5 * kl_bar * g
        K_bar = left @ g.mT + xp.sum(half_H + rest @ (w * rest.mT - half_H), axis=0)
        return 0.5 * (K_bar + K_bar.mT)

    return (mu, xp.broadcast_to(var, mu.shape), kl), pullback


def _each(A: Array, x: Array) -> Array:
    """Multiply the columns of x [N, P] by the matrices A [Q, N, N]."""
    return A[0, ...] @ x if A.shape[0] == 1 else each_times(A, x)


def _divergence(
    B: Any, log_det: Array, trace: Array, square: Array, relative: float, absolute: float
) -> tuple[Array, ...]:
    """KL, or NaN if it is more negative than rounding errors explain."""
    xp = B.xp
    kl = 0.5 * (log_det - trace + square)
    return (xp.where(kl + relative * log_det + absolute >= 0.0, kl, xp.full_like(kl, float("nan"))),)
