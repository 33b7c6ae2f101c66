"""q(f) without inducing variables, with a Gaussian site for each data row.

    q(f_p) ~ N(0, K) prod_n exp(lam1_np f_n - lam2_np f_n^2 / 2),  lam2 >= 0

Let s = sqrt(lam2), W = I + diag(s) K diag(s) and H = diag(s) W^-1 diag(s). The weights are g = lam1 - H K lam1, and

    mu = K g,  var = diag(K - K H K),  KL = sum_p 1/2 (log|W| - tr(H K) + g^T K g).

The formulas do not divide by lam2, which may be zero, and they do not factorise K.
"""

import math
from typing import Any, NamedTuple

from agp.backend import Array, Pullback, backend_of
from agp.linalg import cholesky, diagonal, each_inverse, each_times, identity, nonnegative


class SolvedSites(NamedTuple):
    """The results of `solve_sites`."""

    root: Array
    """LW^-1 diag(s) [P, N, N] with LW LW^T = W, so that H = root^T root."""
    log_det: Array
    """log|W|, summed over the outputs (a scalar)."""
    weights: Array
    """g [N, P]."""


def solve_sites(K: Array, shift: Array, precision: Array, /) -> SolvedSites:
    """Return the weights g, a root of H and log|W|, given Kff [N, N] and the sites lam1 and lam2 [N, P]."""
    xp = backend_of(K).xp
    s, L = factorise_sites(K, precision)
    root = each_inverse(L) * s[:, None, :]
    H_mean = each_times(root.mT, each_times(root, K @ shift))
    return SolvedSites(root, 2.0 * xp.sum(xp.log(diagonal(L))), shift - H_mean)


def factorise_sites(K: Array, precision: Array, /) -> tuple[Array, Array]:
    """Return s [P, N] and the Cholesky factor LW [P, N, N] of W."""
    s = backend_of(K).xp.sqrt(precision).mT
    return s, cholesky(identity(K) + s[:, :, None] * K * s[:, None, :])


def moments_of_sites(K: Array, shift: Array, precision: Array, /) -> tuple[tuple[Array, Array, Array], Pullback]:
    """Return (mu [N, P], var [N, P], kl) of f - h, given Kff [N, N] and the sites [N, P].

    If huge precisions make the result useless, which shows in a negative divergence, kl is NaN, so that optimisers
    reject the sites. The pullback is ``(mu_bar, var_bar, kl_bar) -> Kff_bar``.
    """
    xp = backend_of(K).xp
    root, log_det, g = solve_sites(K, shift, precision)
    D = root @ K
    mu = K @ g
    var, pull_var = nonnegative(diagonal(K)[:, None] - xp.sum(D * D, axis=-2).mT)
    # tr(H K) = sum(root * D)
    parts = log_det, xp.sum(root * D), xp.sum(g * mu)
    rounding = float(xp.finfo(mu.dtype).eps) ** 0.25
    kl = backend_of(K).fused(_divergence, *parts, rounding, rounding * math.prod(g.shape))[0]

    def pullback(mu_bar, var_bar, kl_bar):
        w, m_bar, g_ = pull_var(var_bar).mT[:, :, None], mu_bar.mT[:, :, None], g.mT[:, :, None]
        rest = identity(K) - root.mT @ D  # I - H K
        half_H = 0.5 * kl_bar * (root.mT @ root)
        # mu: rest mu_bar g^T;  var: rest diag(w) rest^T;  KL: 1/2 (H K H + (2 rest - I) g g^T), H K H = H - rest H
        left = rest @ (m_bar + kl_bar * g_) - 0.5 * kl_bar * g_
        K_bar = xp.sum(left * g_.mT + half_H + rest @ (w * rest.mT - half_H), axis=0)
        return 0.5 * (K_bar + K_bar.mT)

    return (mu, var, kl), pullback


def _divergence(
    B: Any, log_det: Array, trace: Array, square: Array, relative: float, absolute: float
) -> tuple[Array, ...]:
    """KL, or NaN if it is more negative than rounding errors explain."""
    xp = B.xp
    kl = 0.5 * (log_det - trace + square)
    return (xp.where(kl + relative * log_det + absolute >= 0.0, kl, xp.full_like(kl, float("nan"))),)
