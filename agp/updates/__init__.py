"""The parts of a training step. Updates are pure functions (model, batch, state) -> (model, state, info)."""

from agp.updates._adam import Adam, Group
from agp.updates._base import Moved, MovesLeaves, Repeat, Update
from agp.updates._inverse import InverseUpdate, Residual, Stopping, VarianceGap
from agp.updates._natural import NaturalGradient, SiteStep
from agp.updates._optimum import OptimalPosterior
from agp.updates._pseudo_observations import OptimalPseudoObservations
from agp.updates._renewals import ActionsUpdate, NeighboursUpdate, Normalise
from agp.updates._schedules import Plateau, delayed, exponential, linear, stepped

__all__ = [
    "ActionsUpdate",
    "Adam",
    "Group",
    "InverseUpdate",
    "Moved",
    "MovesLeaves",
    "NaturalGradient",
    "NeighboursUpdate",
    "Normalise",
    "OptimalPosterior",
    "OptimalPseudoObservations",
    "Plateau",
    "Repeat",
    "Residual",
    "SiteStep",
    "Stopping",
    "Update",
    "VarianceGap",
    "delayed",
    "exponential",
    "linear",
    "stepped",
]

# for other subpackages
from agp.updates._base import apply_updates, leaves_of, moves_of
from agp.updates._optimum import unexplained_nats
from agp.updates._schedules import Rate, check_rate
