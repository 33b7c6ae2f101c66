"""The leaves and nodes of a model, by path."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from agp.backend import Array, backend_of
from agp.constraints import Constraint
from agp.tree._fields import FIELDS, NO_ARRAY
from agp.tree._plans import plan_of

K = TypeVar("K")


class Leaf(NamedTuple):
    """One array of a model: its path, its role ("parameter", "auxiliary" or "constant"), constraint and value."""

    name: str
    role: str
    constraint: Constraint
    value: Array
    unit: Array | None = None
    """The unit of a parameter, broadcast to its shape; None is 1."""

    def log_jacobian(self, raw: Array, /) -> tuple[Array, Array]:
        """log |d value / d raw| at a raw leaf, 0-d, and its gradient like raw."""
        total, slope = self.constraint.log_jacobian(raw)
        if self.unit is None:
            return total, slope
        xp = backend_of(raw).xp
        return total + xp.sum(xp.log(xp.broadcast_to(self.unit, raw.shape))), slope


def describe(model: Any) -> tuple[Leaf, ...]:
    """Every leaf of a model, in the order of declaration: name, role, constraint, value and unit."""
    plan = plan_of(model)
    nodes, out = plan.nodes(model), []
    for name, place, (key, role, constraint, unit, _, _) in plan.leaves.values():
        values = vars(nodes[place])
        out.append(Leaf(name, role or "", constraint, values[key], None if unit is None else values[unit]))
    return tuple(out)


def constraints(model: Any) -> dict[str, Constraint]:
    """The constraints of the leaves, by name."""
    return plan_of(model).constraints


def missing(model: Any) -> list[str]:
    """The names of the leaves that are None and not optional."""
    return [name for name, (_, _, field) in plan_of(model).empty.items() if not field.optional]


@lru_cache(maxsize=1024)
def _needed(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in FIELDS.get(cls, ()) if field.role is not None and not field.optional)


def is_placed(model: Any) -> bool:
    """Whether the leaves of a node itself are arrays, rather than None, or numbers and lists as users give them."""
    values = vars(model)  # called at each evaluation of a kernel, so only types are compared
    for name in _needed(type(model)):  # noqa: SIM110 - without the frames of a generator
        if type(values[name]) in NO_ARRAY:
            return False
    return True


def leaves(model: Any, role: str | None = None) -> dict[str, Array]:
    """The leaves by name: all, or those of one role."""
    plan = plan_of(model)
    nodes, out = plan.nodes(model), {}
    for name, place, field in plan.leaves.values():
        if role is None or field.role == role:
            out[name] = vars(nodes[place])[field.name]
    return out


def nodes(model: Any, kind: type[K], /) -> dict[str, K]:
    """The models of a kind within a model, itself included, by their paths; the path of the model itself is empty.

    The kind is a class, usually an abstract one. Nodes inside a node of that kind are included.
    """
    plan = plan_of(model)
    places = plan.of_kind(kind)
    found = plan.nodes(model) if places else []
    return {path: found[place] for path, place in places}


@lru_cache(maxsize=4096)  # called for every leaf in every step
def matches(name: str, pattern: str, /) -> bool:
    """Whether a leaf's name, or the name from one of its parts on, matches a pattern.

    ``kernel.*`` matches ``process.kernel.variance``, and ``Z`` every leaf of that name, at any path.
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def patterns(one_or_more: str | Iterable[str], /) -> tuple[str, ...]:
    """One or several patterns of leaf names, as a tuple."""
    return (one_or_more,) if isinstance(one_or_more, str) else tuple(one_or_more)
