"""Files: models, what has a model inside, and checkpoints of training runs."""

from agp.io._atomic import remove_leftovers, write_atomically
from agp.io._checkpoint import REMEDY, load_checkpoint, save_checkpoint
from agp.io._kinds import Kind, Stored, register_kind
from agp.io._model import load, load_described, read_model, save, save_described, write_model
from agp.io._nested import layout, named_arrays, nested
from agp.io._types import fits

__all__ = [
    "REMEDY",
    "Kind",
    "Stored",
    "fits",
    "layout",
    "load",
    "load_checkpoint",
    "load_described",
    "named_arrays",
    "nested",
    "read_model",
    "register_kind",
    "remove_leftovers",
    "save",
    "save_checkpoint",
    "save_described",
    "write_atomically",
    "write_model",
]
