"""q(f) without inducing variables, with a Gaussian site for each datum.

    q(f_p) ~ N(0, K) prod_n exp(lam1_np f_n - lam2_np f_n^2 / 2),  lam2 >= 0

With W = I + s s^T * K, s = sqrt(lam2), and H = diag(s) W^-1 diag(s), the weights are g = lam1 - H K lam1 and

    mu = K g,  var = diag(K - K H K),  KL = sum_p 1/2 (log|W| - tr(H K) + g^T K g).

There is no division by lam2, and K is not factorised.
"""

from typing import NamedTuple

from agp.backend import Array, Pullback, backend_of
from agp.linalg import cholesky, diagonal, each_inverse, each_times, identity, nonnegative


class SolvedSites(NamedTuple):
    """Results for `moments_of_sites`."""

    root: Array
    """LW^-1 diag(s) [P, N, N] with LW LW^T = W: H = root^T root."""
    log_det: Array
    """log|W|, summed over the outputs, 0-d."""
    weights: Array
    """g [N, P]."""


def solved_sites(K: Array, shift: Array, precision: Array, /) -> SolvedSites:
    """The weights of the mean and a root of H, for Kff [N, N] and sites [N, P]."""
    xp = backend_of(K).xp
    s, L = _factorised(K, precision)
    root = each_inverse(L) * s[:, None, :]
    H_mean = each_times(root.mT, each_times(root, K @ shift))
    return SolvedSites(root, 2.0 * xp.sum(xp.log(diagonal(L))), shift - H_mean)


def _factorised(K: Array, precision: Array) -> tuple[Array, Array]:
    """s [P, N] and LW [P, N, N]."""
    s = backend_of(K).xp.sqrt(precision).mT
    return s, cholesky(identity(K) + s[:, :, None] * K * s[:, None, :])


def path_weights_of_sites(K: Array, shift: Array, precision: Array, values: Array, noise: Array, /) -> Array:
    """Weights [P, N, S] that turn samples of the prior into samples of f - h.

    For Kff [N, N], sites [N, P], samples of the prior at the data [P, N, S], and standard normal noise of that shape:
    g - diag(s) W^-1 (s values + noise), where the bracket has the covariance W.
    """
    s, L = _factorised(K, precision)
    roots = each_inverse(L)
    g = solved_sites(K, shift, precision).weights.mT[:, :, None]
    return g - s[:, :, None] * (roots.mT @ (roots @ (s[:, :, None] * values + noise)))


def moments_of_sites(K: Array, shift: Array, precision: Array, /) -> tuple[tuple[Array, Array, Array], Pullback]:
    """(mu [N, P], var [N, P], kl) of f - h for Kff [N, N] and sites [N, P]; ``(mu, var, kl)_bar -> Kff_bar``."""
    xp = backend_of(K).xp
    root, log_det, g = solved_sites(K, shift, precision)
    D = root @ K
    mu = K @ g
    var, pull_var = nonnegative(diagonal(K)[:, None] - xp.sum(D * D, axis=-2).mT)
    # tr(H K) = sum(root * D)
    kl = 0.5 * (log_det - xp.sum(root * D) + xp.sum(g * mu))

    def pullback(mu_bar, var_bar, kl_bar):
        w, m_bar, g_ = pull_var(var_bar).mT[:, :, None], mu_bar.mT[:, :, None], g.mT[:, :, None]
        rest = identity(K) - root.mT @ D  # I - H K
        half_H = 0.5 * kl_bar * (root.mT @ root)
        # mu: rest mu_bar g^T;  var: rest diag(w) rest^T;  KL: 1/2 (H K H + (2 rest - I) g g^T), H K H = H - rest H
        left = rest @ (m_bar + kl_bar * g_) - 0.5 * kl_bar * g_
        K_bar = xp.sum(left * g_.mT + half_H + rest @ (w * rest.mT - half_H), axis=0)
        return 0.5 * (K_bar + K_bar.mT)

    return (mu, var, kl), pullback
