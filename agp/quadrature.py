"""Nodes and weights of quadrature rules, computed with NumPy."""

from functools import cache

import numpy as np

MAX_NODES = 370
"""Maximum number of nodes of Gauss-Hermite quadrature. With more, weights underflow or become NaN in float64."""


@cache
def gauss_hermite(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes t_i and weights w_i with sum_i w_i g(mu + sqrt(2 var) t_i) ~ E[g(f)], f ~ N(mu, var); sum w_i = 1.

    Raises
    ------
    ValueError
        For more than `MAX_NODES` nodes.
    """
    if points > MAX_NODES:
        msg = f"points is {points}, but Gauss-Hermite weights are finite only up to {MAX_NODES} points; use about 20."
        raise ValueError(msg)
    nodes, weights = np.polynomial.hermite.hermgauss(points)
    return tuple(map(float, nodes)), tuple(map(float, weights / np.sqrt(np.pi)))


@cache
def gauss_legendre(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes x_i in (-1, 1) and weights w_i with sum_i w_i g(x_i) ~ the integral of g from -1 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return tuple(map(float, nodes)), tuple(map(float, weights))
