"""Arrays as models hold them: given numbers placed beside the data, copies of their own, no graph hanging on them."""

import numbers
from typing import Any, TypeVar

from agp import tree
from agp.backend import Array, backend_of, like
from agp.checks import check_parameters

__all__ = ["constant_data", "copied", "detached", "placed", "usable"]

T = TypeVar("T", bound=Any)


def placed(model: T, reference: Array) -> T:
    """The model whose leaves given as numbers or lists have become arrays like the reference."""
    xp = backend_of(reference).xp

    def given(x: Any) -> Any:
        return float(x) if isinstance(x, numbers.Real) else x

    found = {name: given(x) for name, x in tree.leaves(model).items()}
    new = {name: x for name, x in found.items() if isinstance(x, (float, list, tuple))}
    return tree.with_leaves(model, {name: xp.asarray(x, **like(reference)) for name, x in new.items()})


def copied(x: Array) -> Array:
    """The array as a model holds it: what the user does to theirs later does not reach it."""
    return backend_of(x).xp.asarray(x, copy=True)


def constant_data(*arrays: Array) -> tuple[Array, ...]:
    """The arrays as constants for automatic differentiation."""
    return tuple(backend_of(x).stop_gradient(x) for x in arrays)


def detached(model: T) -> T:
    """The model whose leaves are constants for automatic differentiation: no graph hangs on them."""
    return tree.with_leaves(model, {name: backend_of(x).stop_gradient(x) for name, x in tree.leaves(model).items()})


def usable(model: T, reference: Array) -> T:
    """A part of a model with arrays like the reference for all leaves, their values checked, and no graph on them."""
    model = placed(model, reference)
    check_parameters(model, "X", reference)
    return detached(model)
