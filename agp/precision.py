"""Products as precise as their dtype, where a library would round their factors to fewer digits unless it is told.

That is JAX on most accelerators, whose float32 products have three digits: enough for a neural network, and too few for
an inverse. Its settings are the user's, so what this library computes is computed inside `Backend.full_precision`.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from agp import tree
from agp.backend import Backend, backend_of

__all__ = ["in_full_precision"]

F = TypeVar("F", bound=Callable[..., Any])


def in_full_precision(entrance: F) -> F:
    """A public entrance that computes in full precision, and so does the pullback that it may return beside a value.

    The library is that of the first array among the arguments, or of a leaf of the first model.
    """

    @wraps(entrance)
    def entered(*args: Any, **kwargs: Any) -> Any:
        B = _library_of((*args, *kwargs.values()))
        if B is None or not B.rounds_products:  # without an array it is an error in most cases
            return entrance(*args, **kwargs)
        with B.full_precision():
            found = entrance(*args, **kwargs)
        if type(found) is tuple and len(found) == 2 and callable(found[1]):
            return found[0], _within(B, found[1])
        return found

    return entered  # type: ignore[return-value]


def _within(B: Backend, f: Callable) -> Callable:
    """f, called in full precision."""

    def precise(*args: Any, **kwargs: Any) -> Any:
        with B.full_precision():
            return f(*args, **kwargs)

    return precise


def _library_of(arguments: Iterable[Any]) -> Backend | None:
    models = []
    for x in arguments:
        if x is None or isinstance(x, (type, str, bool, int, list, tuple, dict)):
            continue
        if tree.is_model_class(type(x)):
            models.append(x)
            continue
        try:
            return backend_of(x)
        except TypeError:
            continue
    leaves = (leaf for model in models for leaf in tree.leaves(model).values())
    return next((B for leaf in leaves if (B := _library_of([leaf])) is not None), None)
