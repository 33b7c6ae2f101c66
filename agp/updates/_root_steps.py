"""Steps of every q(u) along its natural gradient, from the plain one that an optimiser has at hand."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from agp import tree
from agp.backend import Array
from agp.posteriors import RootSteps

__all__ = ["root_steps", "stepping_leaves"]

REACH = 1.0
"""How far a mean may move in a step, in its own standard deviations, where the curvature of the likelihood has no
bound: a Newton step on exp(f) from below overshoots by as much as counts are large."""


def _stepping(model: Any, frozen: tuple[str, ...]) -> dict[str, RootSteps]:
    """Every q(u) whose marginals meet the likelihood, or a part of one, and which takes such steps, by path.

    ValueError if some of its leaves are frozen and some are not.
    """
    wholes = model._site_paths
    found = tree.nodes(model, RootSteps).items()
    return {path: posterior for path, posterior in found if _steps_at(path, wholes, frozen)}


def _leaves_at(path: str) -> tuple[str, str]:
    """The names of the leaves mean and scale of the posterior at that path."""
    return tree.joined(path, "mean"), tree.joined(path, "scale")


@lru_cache(maxsize=256)
def _steps_at(path: str, wholes: tuple[str, ...], frozen: tuple[str, ...]) -> bool:
    """Whether the posterior at that path is one of those that meet the likelihood, or within one, and is not frozen."""
    if not any(path == whole or path.startswith(f"{whole}.") for whole in wholes):
        return False
    names = _leaves_at(path)
    kept = [name for name in names if any(tree.matches(name, pattern) for pattern in frozen)]
    if kept and len(kept) < len(names):
        msg = (
            f"natural-gradient steps would move {', '.join(kept)}; freeze {', '.join(names)} together, or none of them."
        )
        raise ValueError(msg)
    return not kept


def stepping_leaves(model: Any, frozen: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the leaves that `root_steps` moves."""
    return tuple(name for path in _stepping(model, frozen) for name in _leaves_at(path))


def root_steps(
    model: Any, raw: Mapping[str, Array], gradient: Mapping[str, Array], rate: Any, frozen: tuple[str, ...]
) -> dict[str, Array]:
    """The leaves of q(u) after the step, raw, by name, from all raw leaves and the gradient by these.

    Both leaves are real, or lower triangular, so that the raw ones are those of the same q(u) in other units.
    """
    moved: dict[str, Array] = {}
    reach = float("inf") if model.likelihood.bounded_curvature else REACH
    for path, posterior in _stepping(model, frozen).items():
        mean, scale = _leaves_at(path)
        now = raw[mean], raw[scale]
        moved[mean], moved[scale] = posterior.root_step(*now, gradient[mean], gradient[scale], rate, reach)
    return moved
