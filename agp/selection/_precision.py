"""Training in float32: models whose inputs and targets are shifted, so that few digits suffice."""

from typing import Any

from agp import tree
from agp.backend import backend_of

MEAN = "mean_function.value"


def narrow(model: Any) -> Any:
    """Return an exact GP in float32, with the averages of its inputs and targets as origins.

    The kernel is stationary or has a centre. Targets are shifted only if the mean function is a constant.
    """
    leaves = tree.leaves(model)
    xp = backend_of(model.X).xp
    origin = xp.mean(model.X, axis=0)
    shifted = {"X": model.X - origin}
    shifted |= {name: x - origin for name, x in leaves.items() if name.endswith(".centre")}
    if MEAN in leaves:
        level = xp.mean(model.y, axis=0)
        shifted |= {"y": model.y - level, MEAN: leaves[MEAN] - level}
    return tree.with_leaves(model, {name: xp.astype(shifted.get(name, x), xp.float32) for name, x in leaves.items()})


def widen(model: Any, started: Any, trained: Any) -> Any:
    """Return a model with the hyperparameters of `trained`, which was trained from `started`, `narrow(model)`."""
    xp = backend_of(model.X).xp
    own, before, after = tree.leaves(model), tree.leaves(started), tree.leaves(trained, "parameter")
    new = {name: xp.astype(x, own[name].dtype) for name, x in after.items()}
    if MEAN in new:
        new[MEAN] = own[MEAN] + new[MEAN] - xp.astype(before[MEAN], own[MEAN].dtype)
    return tree.with_leaves(model, new)
