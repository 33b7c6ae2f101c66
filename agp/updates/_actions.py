"""Updates of the actions of computation-aware GPs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.actions import Actions, Policy
from agp.backend import backend_of, like
from agp.batch import Batch
from agp.checks import check_whole
from agp.updates._base import Info, Moved, State

__all__ = ["ActionsUpdate", "Normalise"]


@dataclass(frozen=True)
class ActionsUpdate:
    """Actions chosen again by a policy; place it before the optimiser.

    Gradients take the actions as constants: each step follows the exact gradient of a valid bound, but the bound
    changes with the actions from step to step.

    Parameters
    ----------
    policy
        Such as `agp.actions.ConjugateGradients(64)`, or any function of the model that returns `FixedActions`.
    every
        The period in steps, starting with the first.
    """

    policy: Policy
    every: int = 1

    def __post_init__(self) -> None:
        check_whole("every", self.every)
        if not callable(self.policy):
            msg = f"policy is {self.policy!r}, but must be a policy, such as agp.actions.ConjugateGradients(64)."
            raise TypeError(msg)

    def init(self, model: Any, /) -> State:
        """The count of steps, zero. TypeError unless a policy chose the model's actions (`FixedActions`)."""
        if not any(actions.is_chosen for actions in tree.nodes(model, Actions).values()):
            msg = f"{_kinds(model)} are not chosen by a policy; build the model with policy=."
            raise TypeError(msg)
        return {"count": backend_of(model.actions.values).xp.zeros((), **like(model.actions.values))}

    @staticmethod
    def moves(model: Any, /) -> Moved:
        """The actions that a policy has chosen; their number may change."""
        found = _leaves_of({path: node for path, node in tree.nodes(model, Actions).items() if node.is_chosen})
        return Moved(found, resized=found)

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with new actions; logs nothing."""
        count = state["count"]

        def chosen() -> Any:
            return self.policy(model).values

        due = count % float(self.every) == 0.0
        values = chosen() if self.every == 1 else backend_of(count).cond(due, chosen, lambda: model.actions.values)
        return tree.with_leaves(model, {"actions.values": values}), {"count": count + 1.0}, {}


@dataclass(frozen=True)
class Normalise:
    """Sparse actions scaled to unit norm; place it after the optimiser.

    Bounds do not depend on the norms, so gradients are orthogonal to the actions, and steps lengthen them, which would
    slow later steps.
    """

    def init(self, model: Any, /) -> State:
        """An empty state. TypeError if the model has no actions to scale, such as `BlockActions`."""
        if not self._scaled(model):
            msg = f"Normalise is for BlockActions, not for {_kinds(model)}; leave it out."
            raise TypeError(msg)
        return {}

    def moves(self, model: Any, /) -> Moved:
        """The actions that are scaled."""
        return Moved(_leaves_of(self._scaled(model)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with actions of unit norm; logs nothing."""
        scaled = {path: actions.normalised() for path, actions in self._scaled(model).items()}
        return tree.replaced(model, scaled), state, {}

    @staticmethod
    def _scaled(model: Any) -> dict[str, Actions]:
        return {path: actions for path, actions in tree.nodes(model, Actions).items() if actions.normalises}


def _leaves_of(nodes: Mapping[str, Actions]) -> frozenset[str]:
    return frozenset(tree.joined(path, name) for path, node in nodes.items() for name in tree.leaves(node))


def _kinds(model: Any) -> str:
    """The classes of the actions of a model, for messages; that of the model where it has none."""
    found = sorted({type(actions).__name__ for actions in tree.nodes(model, Actions).values()})
    return " and ".join(found) or f"the actions of {type(model).__name__}"
