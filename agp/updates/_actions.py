"""Updates that change the actions of computation-aware GPs."""

from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.actions import Actions, Policy
from agp.backend import backend_of, like
from agp.bounds import Batch
from agp.checks import check_whole
from agp.updates._base import Info, Moved, State, class_names, leaves_of


@dataclass(frozen=True)
class ActionsUpdate:
    """An update that replaces the actions with new actions, chosen by a policy. Place the update before the optimiser.

    Gradients treat the actions as constants. Each step follows the exact gradient of a valid bound, but the bound
    changes whenever the actions change.

    Parameters
    ----------
    policy
        A policy such as `agp.actions.ConjugateGradients(64)`, or any function of the model that returns `FixedActions`.
    every
        The interval between two choices of actions, in steps. The first step always chooses new actions.
    """

    policy: Policy
    every: int = 1

    def __post_init__(self) -> None:
        check_whole("every", self.every)
        if not callable(self.policy):
            msg = f"policy is {self.policy!r}, but must be a policy, such as agp.actions.ConjugateGradients(64)."
            raise TypeError(msg)

    def init(self, model: Any, /) -> State:
        """Return a step count of zero. Raise TypeError unless a policy chose the model's actions (`FixedActions`)."""
        if not any(actions.is_chosen for actions in tree.nodes(model, Actions).values()):
            names = class_names(model, Actions)
            msg = f"ActionsUpdate needs actions chosen by a policy, not {names}; build the model with policy=."
            raise TypeError(msg)
        return {"count": backend_of(model.actions.values).xp.zeros((), **like(model.actions.values))}

    @staticmethod
    def moves(model: Any, /) -> Moved:
        """Return the actions chosen by a policy. Steps may change the number of actions."""
        found = leaves_of({path: node for path, node in tree.nodes(model, Actions).items() if node.is_chosen})
        return Moved(found, resized=found)

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model with new actions; nothing is logged."""
        count = state["count"]

        def chosen() -> Any:
            return self.policy(model).values

        due = count % float(self.every) == 0.0
        values = chosen() if self.every == 1 else backend_of(count).cond(due, chosen, lambda: model.actions.values)
        return tree.with_leaves(model, {"actions.values": values}), {"count": count + 1.0}, {}


@dataclass(frozen=True)
class Normalise:
    """An update that scales sparse actions to unit norm. Place the update after the optimiser.

    Bounds do not depend on the norms of the actions, so gradients are orthogonal to the actions. Without this update,
    each step would make the actions longer, and later steps would be less effective.
    """

    def init(self, model: Any, /) -> State:
        """Return an empty state. Raise TypeError if the model has no actions to scale, such as `BlockActions`."""
        if not self._scale(model):
            msg = f"Normalise needs BlockActions, not {class_names(model, Actions)}; remove Normalise from the updates."
            raise TypeError(msg)
        return {}

    def moves(self, model: Any, /) -> Moved:
        """Return the actions that the update scales."""
        return Moved(leaves_of(self._scale(model)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model with actions of unit norm; nothing is logged."""
        scaled = {path: actions.normalise() for path, actions in self._scale(model).items()}
        return tree.replace(model, scaled), state, {}

    @staticmethod
    def _scale(model: Any) -> dict[str, Actions]:
        return {path: actions for path, actions in tree.nodes(model, Actions).items() if actions.is_scale_invariant}
