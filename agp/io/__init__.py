"""Files: checkpoints of training runs."""

from agp.io._atomic import remove_leftovers
from agp.io._checkpoint import REMEDY, load_checkpoint, save_checkpoint
from agp.io._nested import layout, named_arrays, nested

__all__ = ["REMEDY", "layout", "load_checkpoint", "named_arrays", "nested", "remove_leftovers", "save_checkpoint"]
