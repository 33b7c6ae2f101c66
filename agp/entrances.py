"""Where this library begins to compute: the settings of the array library and of the thread that its numbers need.

CuPy computes on the current device of the thread, which may be another than that of the data. JAX, on most
accelerators, rounds the factors of float32 products to three digits unless it is told otherwise: enough for a neural
network, and too few for an inverse. On a CPU, pools of threads fight each other over small operations. These settings
are the user's, so what this library computes is computed inside `Backend.context`, and they are as before in the end.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from agp import tree
from agp.backend import Array, Backend, backend_of, backend_of_type

F = TypeVar("F", bound=Callable[..., Any])


def entrance(f: F) -> F:
    """A public entrance that computes within the context of its arrays, and so does the pullback that it may return.

    The arrays are told by the first among the arguments that does not lie elsewhere, or else by one in the first tuple
    or model that has any. A pullback is the second of two values.
    """

    @wraps(f)
    def entered(*args: Any, **kwargs: Any) -> Any:
        for x in args:  # most types have been seen
            B = backend_of_type(type(x))
            if B is not None and not B.is_lazy:
                break
        else:
            B, x = _first_array((*args, *kwargs.values()))
        if B is None or not B.needs_context:  # without an array it is an error in most cases
            return f(*args, **kwargs)
        with B.context(x):
            found = f(*args, **kwargs)
        if type(found) is tuple and len(found) == 2 and callable(found[1]):
            return found[0], _within(B, x, found[1])
        return found

    return entered  # type: ignore[return-value]


def _within(B: Backend, x: Array, f: Callable) -> Callable:
    """f, called within the context of x."""

    def inside(*args: Any, **kwargs: Any) -> Any:
        with B.context(x):
            return f(*args, **kwargs)

    return inside


def _first_array(arguments: Iterable[Any]) -> tuple[Backend | None, Array]:
    inside = []
    for x in arguments:
        if x is None or isinstance(x, (type, str, bool, int, list, dict)):
            continue
        if isinstance(x, tuple) or tree.is_model_class(type(x)):
            inside.append(x)
            continue
        try:
            B = backend_of(x)
        except TypeError:
            continue
        if not B.is_lazy:  # rows are evaluated beside the leaves
            return B, x
    parts = (x if isinstance(x, tuple) else tree.leaves(x).values() for x in inside)
    return next((found for part in parts if (found := _first_array(part))[0] is not None), (None, None))
