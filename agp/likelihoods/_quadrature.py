"""Expectations under one-dimensional Gaussians by Gauss-Hermite quadrature."""

import math
from collections.abc import Callable

from agp.backend import Array, Pullback, backend_of, like
from agp.host import gauss_hermite

__all__ = ["expectation", "nodes_and_weights"]

LogDensity = Callable[[Array, Array], tuple[Array, Pullback]]


def nodes_and_weights(mu: Array, var: Array, points: int) -> tuple[Array, Array, Array]:
    """Latent values f = mu + sqrt(2 var) t [N, P, I], slopes df/dvar [N, P, I] and weights [I]."""
    xp = backend_of(mu).xp
    nodes, weights = gauss_hermite(points)
    t = xp.asarray(list(nodes), **like(mu))
    # The square root has no slope at 0: variances below the floor count as the floor.
    floor = math.sqrt(float(xp.finfo(mu.dtype).smallest_normal))
    allowed = var > floor
    root = xp.sqrt(2.0 * xp.where(allowed, var, xp.full_like(var, floor)))
    slope = xp.where(allowed, 1.0 / root, xp.zeros_like(root))
    return mu[..., None] + root[..., None] * t, slope[..., None] * t, xp.asarray(list(weights), **like(mu))


def expectation(log_density: LogDensity, mu: Array, var: Array, y: Array, points: int) -> tuple[Array, Pullback]:
    """E[g(f_np)] summed over p [N], for g = log_density(f, y), and its pullback.

    `log_density(f, y)` takes arrays [N, P, I] and returns values with the pullback ``bar -> (likelihood_bar, f_bar)``.
    The derivative is that of the sum itself (reparameterised), so it agrees with automatic differentiation.
    """
    xp = backend_of(mu).xp
    f, slope, weights = nodes_and_weights(mu, var, points)
    g, pull = log_density(f, y[..., None])

    def pullback(bar):
        likelihood_bar, f_bar = pull(bar[:, None, None] * weights)
        return likelihood_bar, xp.sum(f_bar, axis=-1), xp.sum(f_bar * slope, axis=-1)

    return xp.sum(g * weights, axis=(-2, -1)), pullback
