"""The raw leaves of a model: unconstrained and without dimension, as optimisers see them."""

from collections.abc import Mapping
from typing import Any, TypeVar

from agp.backend import Array, backend_of
from agp.tree._copies import with_leaves
from agp.tree._walks import describe, leaves

__all__ = ["constrain", "pull_raw", "unconstrain"]

T = TypeVar("T")


def unconstrain(model: Any) -> dict[str, Array]:
    """The raw leaves of the parameters, by name."""
    return {leaf.name: leaf.raw for leaf in describe(model) if leaf.role == "parameter"}


def constrain(model: T, raw: Mapping[str, Array]) -> T:
    """The model whose named parameters have these raw leaves."""
    found = {leaf.name: leaf for leaf in describe(model)}
    return with_leaves(model, {name: found[name].constrained(x) for name, x in raw.items()})


def pull_raw(model: Any, bar: Any) -> dict[str, Array]:
    """The gradient with respect to the raw leaves, from a gradient in the model's structure; None becomes zero."""
    bars = leaves(bar) if bar is not None else {}
    out = {}
    for leaf in describe(model):
        if leaf.role == "parameter":
            known = bars.get(leaf.name)
            out[leaf.name] = leaf.pull(backend_of(leaf.value).xp.zeros_like(leaf.value) if known is None else known)
    return out
