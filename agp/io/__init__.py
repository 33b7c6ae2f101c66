"""Files: models, what has a model inside, and checkpoints of training runs."""

from agp.io._model import load, save

__all__ = ["load", "save"]

# for other rooms
from agp.io._atomic import remove_leftovers, write_atomically
from agp.io._checkpoint import REMEDY, layout, load_checkpoint, named_arrays, nested, save_checkpoint
from agp.io._classes import fits
from agp.io._model import Kind, Stored, load_described, register_kind, save_described
