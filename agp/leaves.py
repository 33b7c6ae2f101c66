"""Arrays as models hold them: given numbers placed beside the data, copies of their own, no graph hanging on them."""

import numbers
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from agp import tree
from agp.backend import Array, backend_of, like
from agp.checks import check_parameters

T = TypeVar("T", bound=Any)


def placed(model: T, reference: Array) -> T:
    """The model whose leaves given as numbers or lists have become arrays like the reference."""
    xp = backend_of(reference).xp

    def given(x: Any) -> Any:
        return float(x) if isinstance(x, numbers.Real) else x

    found = {name: given(x) for name, x in tree.leaves(model).items()}
    new = {name: x for name, x in found.items() if isinstance(x, (float, list, tuple))}
    return tree.with_leaves(model, {name: xp.asarray(x, **like(reference)) for name, x in new.items()})


def at_inputs(f: Callable, start: str) -> Callable:
    """A function of a kernel or a mean at inputs X, with its pullback, for parts as users write them, too.

    Leaves that are given as numbers become arrays like X; one that has no value is a TypeError. A pullback that is
    missing becomes one that says so, so that automatic differentiation, which needs none, can do without. `start` is
    the call that gives the part its values, for the message.
    """

    @wraps(f)
    def evaluated(self: Any, X: Array, *others: Any) -> Any:
        if not tree.is_placed(self):
            if missing := tree.missing(self):
                name = type(self).__name__
                msg = f"{name} has no {' and no '.join(missing)} yet: give numbers, or {start}."
                raise TypeError(msg)
            self = placed(self, X)
        found = f(self, X, *others)
        if type(found) is tuple and len(found) == 2 and found[1] is not None:
            return found
        value = found[0] if type(found) is tuple and len(found) == 2 else found
        return value, _no_pullback(type(self).__name__)

    return evaluated


def _no_pullback(name: str) -> Callable:
    def pullback(*_: Any) -> Any:
        msg = f'{name} returned no pullback beside its value; return one, or train with gradient="autodiff".'
        raise TypeError(msg)

    return pullback


def copied(x: Array) -> Array:
    """The array as a model holds it: what users do to theirs later does not reach it; rows elsewhere stay there."""
    B = backend_of(x)
    if B.rows_elsewhere:
        return x
    rows = B.row_major(x)
    return B.xp.asarray(x, copy=True) if rows is x else rows


def zero_like(model: Any) -> Array:
    """Zero, 0-d, like the leaves of a model; the data may lie elsewhere."""
    first = first_leaf(model)
    return backend_of(first).xp.zeros((), **like(first))


def first_leaf(model: Any) -> Array:
    """A leaf that tells the library, dtype and device of all."""
    return next(iter(tree.leaves(model).values()))


def constant_data(*arrays: Array) -> tuple[Array, ...]:
    """The arrays as constants for automatic differentiation."""
    return tuple(backend_of(x).stop_gradient(x) for x in arrays)


def detached(model: T) -> T:
    """The model whose leaves are constants for automatic differentiation, no graph hangs on them, and row-major."""
    constants = {name: backend_of(x).stop_gradient(x) for name, x in tree.leaves(model).items()}
    return tree.with_leaves(model, row_major(constants))


def laid_out(model: T, states: Sequence[Any] = ()) -> tuple[T, list[Any]]:
    """The model and the states with row-major arrays (`agp.backend.Backend.row_major`), as a file gives them back."""
    held = tree.leaves(model)
    found = row_major({"": held, **dict(enumerate(states))})
    leaves = found.pop("")
    moved = {name: x for name, x in leaves.items() if x is not held[name]}
    return tree.with_leaves(model, moved) if moved else model, list(found.values())


def row_major(x: Any) -> Any:
    """The arrays in dictionaries, which may be nested, row after row in memory; what is no array stays as it is."""
    if not isinstance(x, dict):
        return row_major({"": x})[""]
    found = dict(x)
    waiting, alike = [found], {}
    while waiting:
        here = waiting.pop()
        for name, part in here.items():
            if isinstance(part, dict):
                here[name] = inner = dict(part)
                waiting.append(inner)
            else:
                alike.setdefault(type(part), []).append((here, name))
    for places in alike.values():
        arrays = []
        for here, name in places:
            arrays.append(here[name])  # without the frame of a comprehension
        try:
            B = backend_of(arrays[0])
        except TypeError:  # states hold what they like where no file is written
            continue
        for (here, name), array in zip(places, B.row_major_each(arrays), strict=True):
            here[name] = array
    return found


def usable(model: T, reference: Array) -> T:
    """A part of a model with arrays like the reference for all leaves, their values checked, and no graph on them."""
    model = placed(model, reference)
    check_parameters(model, "X", reference)
    return detached(model)
