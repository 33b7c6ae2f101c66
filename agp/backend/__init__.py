"""Backends provide operations beyond the Array API standard; this package finds the backend of an array.

A plug-in is a subclass of `Backend` with one instance per library. An entry point in the group ``agp.backends``
announces the plug-in under the import name of its library. Without an entry point, call `register_backend`. A plug-in
is loaded when agp receives the first array of its library, or when you call `get_backend(name)`. Objects do not store
their backend: functions call `backend_of(array)`, which looks up the array's type in a dictionary.
"""

from agp.backend._arrays import as_widest_float, asarray_like, like, to_numpy
from agp.backend._discovery import BackendStatus, backend_of, get_backend, known_backends, register_backend
from agp.backend._folds import map_arrays
from agp.backend._library import Array, ClosedForm, Pullback, is_row_major
from agp.backend._protocol import Backend

__all__ = [
    "Array",
    "Backend",
    "BackendStatus",
    "ClosedForm",
    "Pullback",
    "as_widest_float",
    "asarray_like",
    "backend_of",
    "get_backend",
    "is_row_major",
    "known_backends",
    "like",
    "map_arrays",
    "register_backend",
    "to_numpy",
]

# for other subpackages
from agp.backend._arrays import constant, constants, numbers_of, row_numbers
from agp.backend._control import assume, collect_reports, current_collector, speculating
from agp.backend._discovery import backend_of_type, check_array_type, find_backend
from agp.backend._folds import row_blocks
from agp.backend._library import has_pullback
