"""Files: models, and checkpoints of training runs."""

from agp.io._atomic import remove_leftovers
from agp.io._checkpoint import REMEDY, load_checkpoint, save_checkpoint
from agp.io._model import Stored, load, read_model, save, write_model
from agp.io._nested import layout, named_arrays, nested

__all__ = [
    "REMEDY",
    "Stored",
    "layout",
    "load",
    "load_checkpoint",
    "named_arrays",
    "nested",
    "read_model",
    "remove_leftovers",
    "save",
    "save_checkpoint",
    "write_model",
]
