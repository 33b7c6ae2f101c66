"""Updates that renew actions and neighbours, which no optimiser moves."""

from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.actions import Actions, Policy
from agp.backend import backend_of
from agp.bounds import Batch
from agp.checks import check_whole
from agp.models import WithNeighbours
from agp.updates._base import Info, Moved, State, class_names, leaves_of

EVERY = 40
"""The default interval in steps."""


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
            raise TypeError(
                f"policy is {self.policy!r}, but must be a policy, such as agp.actions.ConjugateGradients(64)."
            )

    def init(self, model: Any, /) -> State:
        """Return a step count of zero. Raise TypeError unless a policy chose the model's actions (`FixedActions`)."""
        if not any(actions.is_chosen for actions in tree.nodes(model, Actions).values()):
            names = class_names(model, Actions)
            raise TypeError(
                f"ActionsUpdate needs actions chosen by a policy, not {names}; build the model with policy=."
            )
        return {"count": tree.zero_like(model)}

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
            raise TypeError(
                f"Normalise needs BlockActions, not {class_names(model, Actions)}; remove Normalise from the updates."
            )
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


@dataclass(frozen=True)
class NeighboursUpdate:
    """An update that renews the neighbours of the rows of `NNGP`, `VIF` or `TNNGP`; place it before the optimiser.

    Gradients treat the neighbours as constants. They are the nearest rows in the metric of the kernel at the time of
    the last renewal, so the bound changes whenever they are renewed.

    Parameters
    ----------
    every
        The interval between two renewals, in steps. The first step renews no neighbours.
    """

    every: int = EVERY

    def __post_init__(self) -> None:
        check_whole("every", self.every)

    @staticmethod
    def applies(model: Any, /) -> bool:
        """Whether the model stores neighbours."""
        return isinstance(model, WithNeighbours) and model.sets is not None

    def init(self, model: Any, /) -> State:
        """Return a step count of zero. Raise TypeError unless the model stores neighbours."""
        if not self.applies(model):
            raise TypeError(
                f"NeighboursUpdate needs a model with neighbours, not {type(model).__name__}; build one with "
                "agp.NNGP.from_data or agp.VIF.from_data."
            )
        return {"count": tree.zero_like(model)}

    def moves(self, model: Any, /) -> Moved:
        """Return the neighbours."""
        return Moved(frozenset({"sets"}) if self.applies(model) else frozenset())

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model, with new neighbours if it is time; nothing is logged."""
        count = state["count"]
        due = (count % float(self.every) == 0.0) & (count > 0.0)
        B = backend_of(count)

        def find() -> Any:
            return B.xp.astype(model._find_sets(), model.sets.dtype, copy=False)

        sets = B.cond(due, find, lambda: model.sets, likely=False)
        return tree.with_leaves(model, {"sets": sets}), {"count": count + 1.0}, {}
