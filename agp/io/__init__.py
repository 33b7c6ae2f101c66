"""Files that store models, objects that contain a model, or training checkpoints."""

from agp.io._model import load, save

__all__ = ["load", "save"]

# for other subpackages
from agp.io._atomic import check_replaceable, check_writable, explain_write_errors, remove_leftovers, write_atomically
from agp.io._checkpoint import REMEDY, arrays_by_path, load_checkpoint, path_layout, save_checkpoint, unflatten_arrays
from agp.io._classes import SOURCES, fits, known_classes
from agp.io._model import Kind, Stored, load_with_metadata, register_kind, save_with_metadata
from agp.io._structure import decode_setting, encode_setting
