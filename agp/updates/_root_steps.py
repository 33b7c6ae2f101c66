"""Steps of every q(u) along its natural gradient, from the plain one that an optimiser has at hand."""

from collections.abc import Mapping
from typing import Any

from agp import tree
from agp.backend import Array
from agp.posteriors import RootSteps

__all__ = ["root_steps", "stepping_leaves"]

LEAVES = ("mean", "scale")
REACH = 1.0
"""How far a mean may move in a step, in its own standard deviations, where the curvature of the likelihood has no
bound: a Newton step on exp(f) from below overshoots by as much as counts are large."""


def _stepping(model: Any, frozen: tuple[str, ...]) -> dict[str, RootSteps]:
    """Every q(u) whose marginals meet the likelihood, or a part of one, and which takes such steps, by path.

    ValueError if some of its leaves are frozen and some are not.
    """
    found = {}
    for path, posterior in tree.nodes(model, RootSteps).items():
        if not any(path == whole or path.startswith(f"{whole}.") for whole in model.site_paths):
            continue
        names = [tree.joined(path, leaf) for leaf in LEAVES]
        kept = [name for name in names if any(tree.matches(name, pattern) for pattern in frozen)]
        if kept and len(kept) < len(names):
            msg = (
                f"natural-gradient steps would move {', '.join(kept)}; freeze {', '.join(names)} together, or none of "
                "them."
            )
            raise ValueError(msg)
        if not kept:
            found[path] = posterior
    return found


def stepping_leaves(model: Any, frozen: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the leaves that `root_steps` moves."""
    return tuple(tree.joined(path, leaf) for path in _stepping(model, frozen) for leaf in LEAVES)


def root_steps(model: Any, gradient: Mapping[str, Array], rate: Any, frozen: tuple[str, ...]) -> dict[str, Array]:
    """The leaves of q(u) after the step, raw, by name, from the gradient by raw leaves.

    Both leaves are real, or lower triangular, so that the raw ones are those of the same q(u) in other units.
    """
    moved: dict[str, Array] = {}
    raw = tree.unconstrain(model)
    reach = float("inf") if model.likelihood.bounded_curvature else REACH
    for path, posterior in _stepping(model, frozen).items():
        mean, scale = (tree.joined(path, leaf) for leaf in LEAVES)
        start = tree.with_leaves(posterior, {"mean": raw[mean], "scale": raw[scale]})
        new = start.root_step(gradient[mean], gradient[scale], rate, reach)
        moved |= {mean: new.mean, scale: new.scale}
    return moved
