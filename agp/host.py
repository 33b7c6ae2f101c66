"""What is made on the host for every backend alike: quadrature nodes, seeded draws. NumPy is at home here."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np

__all__ = ["gauss_hermite", "generator", "underflow_is_zero"]

F = TypeVar("F", bound=Callable[..., Any])


@cache
def gauss_hermite(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes t_i and weights w_i with sum_i w_i g(mu + sqrt(2 var) t_i) ~ E[g(f)], f ~ N(mu, var); sum w_i = 1."""
    nodes, weights = np.polynomial.hermite.hermgauss(points)
    return tuple(map(float, nodes)), tuple(map(float, weights / np.sqrt(np.pi)))


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """The generator of a seed, independent for each purpose."""
    return np.random.default_rng([seed, *purpose])


def underflow_is_zero(f: F) -> F:
    """A public entrance in which numbers too small for a float are zero, also after ``np.seterr(under="raise")``.

    A covariance of distant rows is such a number, and nothing is wrong with it. What a user has set for overflow, for
    division by zero and for invalid operations holds, and all of it is as before in the end.
    """

    @wraps(f)
    def entered(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(under="ignore"):
            return f(*args, **kwargs)

    return entered  # type: ignore[return-value]
