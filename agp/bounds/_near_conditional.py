"""The distribution of rows given their neighbours, for many rows at once, and its adjoint.

A group consists of k neighbours c and, last, the row itself. Let r = k(x, x') - A(x)^T A(x') be the covariance that the
M inducing inputs leave, with the features A, or r = k if there are none. Let R be the matrix r(X_c, X_c) plus the noise
of the neighbours, and b = [-B; 1]. Then

    B = R^-1 r(X_c, x),    D = r(x, x) - B^T r(X_c, x),    u = A(x) - A_c B = F^T b,

where F [k + 1, M] contains the features of the group. The cotangent of the matrix of the group is sym(w b^T), with
w = [R^-1 B_bar; 0] + D_bar b.

Source: Gyger, Furrer & Sigrist, "Vecchia-inducing-points full-scale approximations for Gaussian processes", 2025.
"""

from typing import Any, NamedTuple

from agp.backend import Array, Pullback, backend_of
from agp.kernels import Kernel
from agp.linalg import add_diagonal, lower_cholesky, nonnegative

ROUNDING = 100.0
"""The rounding errors of r, as a multiple of the precision times k."""


class NearConditional(NamedTuple):
    """The weights, variances and features of G rows given their neighbours."""

    b: Array
    """[-B; 1] [G, k + 1], with zeros where a neighbour is absent."""
    variance: Array
    """D [G], without the noise of the rows themselves."""
    features: Array | None
    """u [G, M], or None without inducing inputs."""
    root: Any
    """The Cholesky factors of R [G, k, k], or None if they are no longer needed."""

    def solve(self, x: Array, /) -> Array:
        """Return R^-1 x for x [G, k, n]."""
        B = backend_of(x)
        return B.solve_triangular(self.root, B.solve_triangular(self.root, x), transpose=True)


def condition_on_neighbours(
    kernel: Kernel, X: Array, noise: Array, absent: Array | None, F: Array | None = None, /
) -> tuple[NearConditional, Pullback]:
    """Condition rows on their neighbours.

    Parameters
    ----------
    kernel
        The kernel k.
    X
        The inputs [G, k + 1, D] of the neighbours and, last, of the row itself.
    noise
        The noise variances [G, k] of the neighbours.
    absent
        Whether neighbours are absent (Boolean [G, k]); None if all are present.
    F
        The features [G, k + 1, M] of the inputs, or None.

    Returns
    -------
    conditional
        A `NearConditional`.
    pullback
        A function ``(B_bar [G, k], D_bar [G], u_bar [G, M] or None) -> (kernel_bar, X_bar, noise_bar, F_bar)``.
        `noise_bar` is [G, k + 1]; its last column, that of the row itself, is D_bar.
    """
    K, pull_kernel = kernel.grouped_covariance(X)
    return condition_groups(K, pull_kernel, noise, absent, F)


def near_moments(kernel: Kernel, X: Array, noise: Array, F: Array | None = None, /) -> NearConditional:
    """Return the result of `condition_on_neighbours` for present neighbours, without its pullback, in less time."""
    B = backend_of(X)

    def rows(start: int, stop: int) -> tuple[Array]:
        K = kernel.grouped_covariance(X[:, start:stop, :], X[:, :stop, :])[0]
        return (K if F is None else K - F[:, start:stop, :] @ F[:, :stop, :].mT,)

    (K,) = B.lower_tiles(rows, X.shape[1], groups=X.shape[0])
    return _condition(K if F is None else _raise_variances(K, F), noise, F)[0]


def condition_groups(
    K: Array, pull_kernel: Any, noise: Array, absent: Array | None, F: Array | None
) -> tuple[NearConditional, Pullback]:
    """Condition rows on their neighbours, given the covariances K [G, k + 1, k + 1] and their pullback."""
    xp, k = backend_of(K).xp, K.shape[-1] - 1
    K = K if F is None else _raise_variances(K - F @ F.mT, F)
    keep = None if absent is None else xp.astype(~absent, K.dtype)
    if keep is not None:
        both = xp.concat([keep, xp.ones_like(keep[:, :1])], axis=1)
        K = K * both[:, :, None] * both[:, None, :]
        noise = noise * keep + (1.0 - keep)
    found, pull_variance = _condition(K, noise, F)
    b = found.b
    u: Any = found.features

    def pullback(B_bar: Array, V_bar: Array, u_bar: Any = None) -> Any:
        D_bar = pull_variance(V_bar)
        if F is not None:
            B_bar = B_bar - (F[:, :k, :] @ u_bar[:, :, None])[:, :, 0]
        B_bar = B_bar if keep is None else B_bar * keep
        h = found.solve(B_bar[:, :, None])[:, :, 0]
        w = xp.concat([h, xp.zeros_like(h[:, :1])], axis=1) + D_bar[:, None] * b
        K_bar = 0.5 * (w[:, :, None] * b[:, None, :] + b[:, :, None] * w[:, None, :])
        F_bar = None
        if F is not None:
            F_bar = b[:, :, None] * (u_bar - (w[:, None, :] @ F)[:, 0, :])[:, None, :] - w[:, :, None] * u[:, None, :]
        kernel_bar, X_bar = pull_kernel(K_bar)
        noise_bar = xp.concat([(w * b)[:, :k], V_bar[:, None]], axis=1)  # also where D is 0
        return kernel_bar, X_bar, noise_bar, F_bar

    return found, pullback


def _raise_variances(K: Array, F: Array) -> Array:
    """Return the covariances r [G, k + 1, k + 1] with variances above the rounding errors of r = k - F F^T."""
    B = backend_of(K)
    xp, variances = B.xp, B.diagonal(K)
    least = (ROUNDING * float(xp.finfo(K.dtype).eps)) * (xp.abs(variances) + xp.vecdot(F, F))
    return add_diagonal(K, B.stop_gradient(xp.clip(least - variances, 0.0, None)))


def _condition(K: Array, noise: Array, F: Array | None) -> tuple[NearConditional, Pullback]:
    """Condition rows, given the lower triangles of covariances r, and return the pullback of the variances."""
    B = backend_of(K)
    xp, k = B.xp, K.shape[-1] - 1
    variances = B.diagonal(K)
    prior = variances[:, k:]
    # a larger entry for the row itself does not change `half`, and the factor of a row that its neighbours determine
    # does not fail
    more = prior + xp.mean(variances, axis=1, keepdims=True) + xp.mean(noise, axis=1, keepdims=True)
    L = lower_cholesky(K, xp.concat([noise, more], axis=1))
    half = L[:, k, :k]
    last = xp.concat([xp.zeros_like(half), L[:, k, k:]], axis=1)
    b = B.solve_triangular(L, last[:, :, None], transpose=True)[:, :, 0]  # L^T [-B; 1] is zero in all rows but the last
    D, pull_variance = nonnegative(prior[:, 0] - xp.sum(half * half, axis=1))
    u = None if F is None else (b[:, None, :] @ F)[:, 0, :]
    return NearConditional(b, D, u, L[:, :k, :k]), pull_variance
