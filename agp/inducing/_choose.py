"""One entrance to all ways of choosing inducing inputs."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from agp.backend import Array
from agp.checks import check_inputs, check_like
from agp.inducing._greedy import greedy_variance
from agp.inducing._kmeans import kmeans
from agp.inducing._random import random
from agp.inducing._rows import check_count
from agp.kernels import Kernel

__all__ = ["How", "choose"]

How: TypeAlias = Literal["kmeans", "random", "greedy-variance"] | Callable[[Array, Kernel, int, int], Array]
"""A way by name, or a function of (X [N, D], kernel, M, seed) that gives Z [M', D]."""

_WAYS: dict[str, Callable[[Array, Kernel, int, int], Array]] = {
    "kmeans": lambda X, _, num_inducing, seed: kmeans(X, num_inducing, seed=seed),
    "random": lambda X, _, num_inducing, seed: random(X, num_inducing, seed=seed),
    "greedy-variance": lambda X, kernel, num_inducing, seed: greedy_variance(X, kernel, num_inducing, seed=seed),
}


def choose(X: Array, kernel: Kernel, num_inducing: int, /, *, seed: int = 0, how: How = "kmeans") -> Array:
    """Inducing inputs Z [M, D] for inputs X [N, D] and a kernel whose values are known.

    Parameters
    ----------
    X
        Inputs [N, D].
    kernel
        The kernel, for the ways that look at it.
    num_inducing
        M, from 1 to N. A function of your own may give another number of rows, up to N.
    seed
        Of whatever is random.
    how
        "kmeans" (`agp.inducing.kmeans`), "random" (`agp.inducing.random`), "greedy-variance"
        (`agp.inducing.greedy_variance`), or a function of (X, kernel, M, seed).

    Raises
    ------
    TypeError, ValueError
        If the way is unknown, as the way itself raises, or if what a function gives is no finite array [M', D] like X
        with 1 <= M' <= N.
    """
    if not callable(how):
        if not isinstance(how, str) or how not in _WAYS:
            names = ", ".join(map(repr, _WAYS))
            msg = f"inducing is {how!r}, but must be one of {names}, or a function of (X, kernel, num_inducing, seed)."
            raise ValueError(msg)
        return _WAYS[how](X, kernel, num_inducing, seed)
    Z: Any = how(X, kernel, check_count(X, num_inducing), seed)
    name = "what the function for inducing inputs gave"
    check_inputs(name, Z)
    check_like(name, Z, "X", X)
    if Z.shape[1] != X.shape[1] or Z.shape[0] > X.shape[0]:
        msg = f"{name} has shape {tuple(Z.shape)}; X has {tuple(X.shape)}: give as many columns, and no more rows."
        raise ValueError(msg)
    return Z
