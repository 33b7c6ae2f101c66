"""Slopes of the profiles of stationary kernels, and of their parameters, that the array library derives."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from agp import tree
from agp.backend import Array, backend_of, has_pullback
from agp.repairs import derived_pullback, value_of


@cache
def own_parameters(cls: type, /) -> frozenset[str]:
    """Return the names of the parameters of the profile of a stationary kernel."""
    return tree.leaf_fields(cls, "parameter") - {"variance", "lengthscale"}


def parameter_bars(bar: Any, names: frozenset[str]) -> dict[str, Array]:
    """Return the cotangents with these names in the gradient of a kernel."""
    return {name: x for name, x in tree.leaves(bar).items() if name in names}


def with_slope(profile: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method `profile` return no slope."""

    @wraps(profile)
    def evaluated(self: Any, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        result = profile(self, r2)
        if has_pullback(result):
            return result
        g, pull = value_of(result), derived_pullback(profile, self, (r2,), {}, 1)
        return g, lambda: pull(backend_of(g).xp.ones_like(g))[1]

    return evaluated
