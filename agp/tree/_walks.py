"""Functions that list the leaves and nodes of a model by path."""

import math
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from agp.backend import Array, backend_of
from agp.errors import name_remedy, similar_names
from agp.tree._constraints import Constraint
from agp.tree._fields import FIELDS, NO_ARRAY
from agp.tree._plans import plan_of

K = TypeVar("K")


class Leaf(NamedTuple):
    """An array of a model, with its path, role ("parameter", "auxiliary" or "constant"), constraint and unit."""

    name: str
    role: str
    constraint: Constraint
    value: Array
    unit: Array | None = None
    """The unit of a parameter, which broadcasts to its shape. None means 1."""

    def log_jacobian(self, raw: Array, /) -> tuple[Array, Array]:
        """Compute log |d value / d raw| at a raw leaf, summed over entries, and its gradient with the shape of raw."""
        total, slope = self.constraint.log_jacobian(raw)
        if self.unit is None:
            return total, slope
        xp = backend_of(raw).xp
        return total + xp.sum(xp.log(xp.broadcast_to(self.unit, raw.shape))), slope


def describe(model: Any) -> tuple[Leaf, ...]:
    """Return all leaves of a model, with name, role, constraint, value and unit, in the order of declaration."""
    plan = plan_of(model)
    nodes, out = plan.nodes(model), []
    for name, place, (key, role, constraint, unit, *_) in plan.leaves.values():
        values = vars(nodes[place])
        out.append(Leaf(name, role or "", constraint, values[key], None if unit is None else values[unit]))
    return tuple(out)


def constraints(model: Any) -> dict[str, Constraint]:
    """Return the constraints of the leaves, by name."""
    return plan_of(model).constraints


def followers(model: Any) -> dict[str, str]:
    """Return the names of the leaves that are tied to others (`ties`), and those of the leaves that they follow."""
    return dict(plan_of(model).followers)


def tied_parts(model: Any) -> list[str]:
    """Return the paths of the parts that follow others (`ties`)."""
    return [other for _, other in plan_of(model).tied]


def missing(model: Any) -> list[str]:
    """Return the names of the leaves that are None and not optional."""
    return [name for name, (_, _, field) in plan_of(model).empty.items() if not field.optional]


@lru_cache(maxsize=1024)
def _required_fields(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in FIELDS.get(cls, ()) if field.role is not None and not field.optional)


def holds_arrays(model: Any) -> bool:
    """Whether the leaves of a node are arrays instead of None, numbers or lists. Leaves of nested nodes are ignored."""
    values = vars(model)  # compares only types, because every evaluation of a kernel calls this function
    for name in _required_fields(type(model)):  # noqa: SIM110 - a loop is faster than a generator
        if type(values[name]) in NO_ARRAY:
            return False
    return True


def leaves(model: Any, role: str | None = None) -> dict[str, Array]:
    """Return all leaves, or the leaves of one role, by name."""
    plan = plan_of(model)
    nodes, out = plan.nodes(model), {}
    for name, place, field in plan.leaves.values():
        if role is None or field.role == role:
            out[name] = vars(nodes[place])[field.name]
    return out


def nodes(model: Any, kind: type[K], /) -> dict[str, K]:
    """Return the parts of a model that are instances of class `kind`, by path.

    The model itself is included, with an empty path, if it is an instance of `kind`. Instances inside other instances
    are also included.
    """
    plan = plan_of(model)
    places = plan.of_kind(kind)
    parts = plan.nodes(model) if places else []
    return {path: parts[place] for path, place in places}


@lru_cache(maxsize=4096)  # every step calls this function for every leaf
def matches(name: str, pattern: str, /) -> bool:
    """Whether the name of a leaf, or the end of the name after any dot, matches a pattern.

    For example, ``kernel.*`` matches ``process.kernel.variance``, and ``Z`` matches ``process.inducing.Z``. A pattern
    that begins with ``^`` is compared with the whole name, with or without a leading ``process.``.
    """
    if pattern.startswith("^"):
        return any(fnmatchcase(whole, pattern[1:]) for whole in (name, name.removeprefix("process.")))
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


ENTRY = re.compile(r"(.+)\[(\d+(?:, ?\d+)*)\]")


def entries_matching(name: str, shape: tuple[int, ...], pattern: str, /) -> tuple[int, ...]:
    """Return the places of the entries of a leaf that a pattern matches, in row-major order.

    A pattern with an index, such as ``kernel.lengthscale[0]`` or ``weights[0, 1]``, matches one entry.

    Raises
    ------
    ValueError
        If the leaf has no such entry.
    """
    count = math.prod(shape)
    if (parts := ENTRY.fullmatch(pattern)) is None:
        return tuple(range(count)) if matches(name, pattern) else ()
    if not matches(name, parts[1]):
        return ()
    index = [int(number) for number in parts[2].split(",")]
    if len(index) != len(shape) or any(i >= size for i, size in zip(index, shape, strict=True)):
        raise ValueError(f"{pattern!r} names an entry of {name}, which has the shape {shape}; count entries from 0.")
    place = 0
    for i, size in zip(index, shape, strict=True):
        place = place * size + i
    return (place,)


def whole_pattern(pattern: str, /) -> str:
    """Return a pattern without the index of an entry."""
    return pattern if (parts := ENTRY.fullmatch(pattern)) is None else parts[1]


def no_match_message(pattern: str, names: Iterable[str], /, constants: Iterable[str] = ()) -> str:
    """Return the message that no parameter matches a pattern: similar names or, if there are none, all names.

    If the pattern matches one of `constants`, the names of leaves that are not trained, the message says so.
    """
    if (constant := next((name for name in constants if matches(name, whole_pattern(pattern))), None)) is not None:
        remedy = "; the period of agp.Periodic is trained" if constant.endswith(".period") else ""
        return f"no parameter matches {pattern!r}: {constant} is a constant, which is not trained{remedy}."
    whole = list(names)
    known: dict[str, None] = {}
    for name in whole:
        parts = name.split(".")
        ends = [parts[i:] for i in reversed(range(len(parts)))]
        known |= dict.fromkeys([".".join(end) for end in ends] + [f"{end[0]}.*" for end in ends if len(end) > 1])
    remedy = name_remedy(pattern, known if similar_names(pattern, known) else whole, "the parameters are")
    return f"no parameter matches {pattern!r}; {remedy}"


def patterns(one_or_more: str | Iterable[str], /) -> tuple[str, ...]:
    """Convert one or several patterns of leaf names to a tuple."""
    one = isinstance(one_or_more, str) or not isinstance(one_or_more, Iterable)
    found: tuple[Any, ...] = (one_or_more,) if one else tuple(one_or_more)
    for pattern in found:
        if not isinstance(pattern, str):
            raise TypeError(f"a pattern of leaf names is {pattern!r}, but must be text, such as 'kernel.lengthscale'.")
    return found
