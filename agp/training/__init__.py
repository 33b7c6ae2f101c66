"""The training loop: minibatches, callbacks, progress, checkpoints."""

from agp.training._batches import Batches
from agp.training._loop import train
from agp.training._recipe import recipe
from agp.training._result import Progress, Result

__all__ = ["Batches", "Progress", "Result", "recipe", "train"]
