"""q(f) without inducing variables, with a Gaussian site for each data row.

    q(f_p) ~ N(0, K) prod_n exp(lam1_np f_n - lam2_np f_n^2 / 2),  lam2 >= 0

Let s = sqrt(lam2), W = I + diag(s) K diag(s) and H = diag(s) W^-1 diag(s). The weights are g = lam1 - H K lam1, and

    mu = K g,  var = diag(K - K H K),  KL = sum_p 1/2 (log|W| - tr(H K) + g^T K g).

The formulas do not divide by lam2, which may be zero, and they do not factorise K. The precisions [N, Q] have one
column for each output (Q = P) or are shared by all outputs (Q = 1), which then share W and the variances.
"""

import math
from typing import Any, NamedTuple

from agp.backend import Array, Pullback, backend_of
from agp.linalg import cholesky, diagonal, each_inverse, each_times, identity, nonnegative

LEAST_SHARE = 0.625
"""Variances are computed from the diagonal of W^-1 if each lam2 k(x, x) is at least eps to this power, or all are zero.
"""
SMALLEST = 1e-38
"""A positive number in all precisions, to divide by instead of zero."""


class SiteSystem(NamedTuple):
    """Solutions with W for given precisions, which do not depend on lam1."""

    K: Array
    """Kff [N, N]."""
    precision: Array
    """lam2 [N, Q]."""
    factor: Array
    """The Cholesky factor LW [Q, N, N] of W."""
    inverse: Array
    """LW^-1 [Q, N, N]."""
    root: Array
    """LW^-1 diag(s) [Q, N, N], a root of H = root^T root."""
    shares: Array
    """lam2 var [N, Q], which is 1 - diag(W^-1), since diag(s) K diag(s) = W - I."""

    @classmethod
    def of(cls, K: Array, precision: Array, /) -> "SiteSystem":
        """Factorise W, given Kff [N, N] and lam2 [N, Q]."""
        s = backend_of(K).xp.sqrt(precision).mT
        factor = cholesky(identity(K) + s[:, :, None] * K * s[:, None, :])
        inverse = each_inverse(factor)
        shares = 1.0 - backend_of(K).xp.sum(inverse * inverse, axis=-2).mT
        return cls(K, precision, factor, inverse, inverse * s[:, None, :], shares)

    def weights(self, shift: Array, /) -> Array:
        """Return g [N, P], given lam1 [N, P]."""
        return shift - _each(self.root.mT, _each(self.root, self.K @ shift))

    def divergence(self, weights: Array, mu: Array, /) -> Array:
        """Return the KL divergence, given g and mu [N, P]; tr(H K) is the sum of `shares`.

        A negative result, which is due to huge precisions, is NaN.
        """
        B = backend_of(self.K)
        xp, copies = B.xp, mu.shape[1] // self.precision.shape[1]
        logs, traces = xp.sum(xp.log(diagonal(self.factor))), xp.sum(self.shares)
        rounding = float(xp.finfo(mu.dtype).eps) ** 0.25
        parts = 2.0 * copies * logs, copies * traces, xp.sum(weights * mu)
        return B.fused(_divergence, *parts, rounding, rounding * math.prod(mu.shape))[0]


def moments_of_sites(K: Array, shift: Array, precision: Array, /) -> tuple[tuple[Array, Array, Array], Pullback]:
    """Return (mu [N, P], var [N, P], kl) of f - h, given Kff [N, N] and the sites lam1 [N, P] and lam2 [N, Q].

    Where a precision is too small to divide by, all variances are computed as differences. If huge precisions make the
    result useless, kl is NaN, so that optimisers reject the sites. The pullback is ``(mu_bar, var_bar, kl_bar) ->
    Kff_bar``.
    """
    B, prior = backend_of(K), diagonal(K)[:, None]
    xp = B.xp
    system = SiteSystem.of(K, precision)
    root, g = system.root, system.weights(shift)
    mu = K @ g

    def differences() -> Array:
        D = root @ K
        return prior - xp.sum(D * D, axis=-2).mT

    def shares() -> Array:
        return B.fused(_variances, system.shares, precision, prior)[0]

    least = float(xp.finfo(K.dtype).eps) ** LEAST_SHARE
    large = xp.all(B.fused(_are_large, precision, prior, xp.max(precision), least)[0])
    var, pull_var = nonnegative(B.cond(large, shares, differences, likely=True))
    copies = shift.shape[1] // precision.shape[1]  # the number of outputs for each W

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

    return (mu, xp.broadcast_to(var, mu.shape), system.divergence(g, mu)), pullback


def _each(A: Array, x: Array) -> Array:
    """Multiply the columns of x [N, P] by the matrices A [Q, N, N]."""
    return A[0, ...] @ x if A.shape[0] == 1 else each_times(A, x)


def _are_large(_: Any, precision: Array, prior: Array, largest: Array, least: float) -> tuple[Array]:
    """Whether precisions are large enough to divide by, or, as before the first step, all are zero."""
    return ((precision * prior >= least) | (largest <= 0.0),)


def _variances(B: Any, shares: Array, precision: Array, prior: Array) -> tuple[Array]:
    """The variances of f, which are the prior ones where the precisions are zero."""
    ratios = shares / B.xp.clip(precision, SMALLEST, math.inf)
    return (B.xp.where(precision > 0.0, ratios, prior),)


def _divergence(
    B: Any, log_det: Array, trace: Array, square: Array, relative: float, absolute: float
) -> tuple[Array, ...]:
    """KL, or NaN if it is more negative than rounding errors explain."""
    xp = B.xp
    kl = 0.5 * (log_det - trace + square)
    return (xp.where(kl + relative * log_det + absolute >= 0.0, kl, xp.full_like(kl, float("nan"))),)
