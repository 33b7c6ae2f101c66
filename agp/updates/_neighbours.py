"""The update that renews the neighbours of models whose rows depend on near rows."""

from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.backend import backend_of, like
from agp.bounds import Batch
from agp.checks import check_whole
from agp.models import NearRegression
from agp.updates._base import Info, Moved, State

EVERY = 40
"""The default interval in steps."""


@dataclass(frozen=True)
class NeighboursUpdate:
    """An update that renews the neighbours of the rows of `NNGP` or `VIF`. Place the update before the optimiser.

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
        return isinstance(model, NearRegression) and model.sets is not None

    def init(self, model: Any, /) -> State:
        """Return a step count of zero. Raise TypeError unless the model stores neighbours."""
        if not self.applies(model):
            msg = (
                f"NeighboursUpdate needs a model with neighbours, not {type(model).__name__}; build one with "
                "agp.NNGP.from_data or agp.VIF.from_data."
            )
            raise TypeError(msg)
        return {"count": backend_of(model.X).xp.zeros((), **like(model.X))}

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
