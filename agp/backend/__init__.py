"""Backends: what array libraries provide beyond the Array API standard, and their discovery.

A plug-in is a subclass of `Backend` with one instance per library, announced by an entry point in the group
``agp.backends`` whose name is the import name of the library, or by `register_backend`. No object stores its backend:
functions call `backend_of(array)`, a dictionary look-up by the type of the array. A plug-in is loaded at the first
array of its library, or by name.
"""

from agp.backend._arrays import like, placed, to_numpy, wide
from agp.backend._discovery import BackendStatus, backend_of, get_backend, known_backends, register_backend
from agp.backend._folds import mapped
from agp.backend._library import Array, ClosedForm, Pullback, is_row_major
from agp.backend._protocol import Backend

__all__ = [
    "Array",
    "Backend",
    "BackendStatus",
    "ClosedForm",
    "Pullback",
    "backend_of",
    "get_backend",
    "is_row_major",
    "known_backends",
    "like",
    "mapped",
    "placed",
    "register_backend",
    "to_numpy",
    "wide",
]

# for other rooms
from agp.backend._arrays import constant, constants, numbers_of
from agp.backend._control import guessed, guessing
from agp.backend._discovery import backend_of_type, check_array_type
from agp.backend._folds import row_blocks
from agp.backend._reports import collect_reports, current_collector
