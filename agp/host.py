"""What is made on the host for every backend alike: quadrature nodes, seeded draws. NumPy is at home here."""

from functools import cache

import numpy as np

__all__ = ["gauss_hermite", "generator"]


@cache
def gauss_hermite(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes t_i and weights w_i with sum_i w_i g(mu + sqrt(2 var) t_i) ~ E[g(f)], f ~ N(mu, var); sum w_i = 1."""
    nodes, weights = np.polynomial.hermite.hermgauss(points)
    return tuple(map(float, nodes)), tuple(map(float, weights / np.sqrt(np.pi)))


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """The generator of a seed, independent for each purpose."""
    return np.random.default_rng([seed, *purpose])
