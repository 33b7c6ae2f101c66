"""What changes a model during training: pure functions (model, batch, state) -> (model, state, info)."""

from agp.batch import Batch
from agp.updates._adam import Adam, Group
from agp.updates._base import Update
from agp.updates._natural import NaturalGradient
from agp.updates._relaxed import InverseUpdate
from agp.updates._schedules import delayed

__all__ = ["Adam", "Batch", "Group", "InverseUpdate", "NaturalGradient", "Update", "delayed"]
