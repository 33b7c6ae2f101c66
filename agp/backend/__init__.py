"""Backends: what an array library must bring beyond the Array API standard, and how one is found.

A plug-in is a subclass of `Backend` with one instance per library, announced by an entry point in the group
``agp.backends`` whose name is the import name of the library, or by `register_backend`. Nothing stores a backend: every
function that needs one asks `backend_of(array)`, one dictionary look-up on the type of the array. A plug-in is loaded
when an array of its library is met, or by name.
"""

from agp.backend._arrays import constant, like, numbers_of, placed, to_numpy, wide
from agp.backend._discovery import (
    BackendStatus,
    backend_of,
    check_array_type,
    get_backend,
    known_backends,
    register_backend,
)
from agp.backend._guesses import guessed, guessing
from agp.backend._protocol import Backend
from agp.backend._rows import mapped, row_blocks, row_count
from agp.backend._types import Array, ClosedForm, Pullback

__all__ = [
    "Array",
    "Backend",
    "BackendStatus",
    "ClosedForm",
    "Pullback",
    "backend_of",
    "check_array_type",
    "constant",
    "get_backend",
    "guessed",
    "guessing",
    "known_backends",
    "like",
    "mapped",
    "numbers_of",
    "placed",
    "register_backend",
    "row_blocks",
    "row_count",
    "to_numpy",
    "wide",
]
