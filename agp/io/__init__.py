"""Files: models, what has a model inside, and checkpoints of training runs."""

from agp.io._model import load, save

__all__ = ["load", "save"]

# for other rooms
from agp.io._atomic import remove_leftovers, write_atomically
from agp.io._checkpoint import REMEDY, load_checkpoint, save_checkpoint
from agp.io._kinds import Kind, Stored, register_kind
from agp.io._model import load_described, read_model, save_described, write_model
from agp.io._nested import layout, named_arrays, nested
from agp.io._types import fits
