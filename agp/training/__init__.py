"""The training loop: minibatches, callbacks, progress, checkpoints."""

from agp.training._batches import Batches
from agp.training._loop import Progress, Result, train
from agp.training._recipe import recipe

__all__ = ["Batches", "Progress", "Result", "recipe", "train"]
