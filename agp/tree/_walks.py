"""What stands in a model: its leaves and nodes, by their paths."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from agp.backend import Array
from agp.constraints import Constraint
from agp.tree._fields import FIELDS, NO_ARRAY, fields_of, is_branch

__all__ = ["Leaf", "describe", "is_placed", "joined", "leaves", "matches", "missing", "nodes", "patterns"]

K = TypeVar("K")


class Leaf(NamedTuple):
    """One array of a model: its path, its role ("parameter", "auxiliary" or "constant"), constraint and value."""

    name: str
    role: str
    constraint: Constraint
    value: Array
    unit: Array | None = None
    """What a parameter is measured in, broadcast to its shape; None is 1."""

    @property
    def raw(self) -> Array:
        """The unconstrained form of the value, without dimension."""
        return self.constraint.unconstrain(self.value if self.unit is None else self.value / self.unit)

    def constrained(self, raw: Array, /) -> Array:
        """The value of a raw leaf."""
        value = self.constraint.constrain(raw)
        return value if self.unit is None else self.unit * value

    def pull(self, bar: Array, /) -> Array:
        """The cotangent of the raw leaf, from that of the value."""
        if self.unit is None:
            return self.constraint.pull(self.value, bar)
        # in this order: the slope of a small value is as small as it, where the unit times the cotangent may overflow
        return self.unit * self.constraint.pull(self.value / self.unit, bar)


def _walk(x: Any, prefix: str, out: list[Leaf]) -> list[Leaf]:
    # a list, not a generator: models are walked several times in each step, and nested generators are slow
    if isinstance(x, tuple):
        for i, part in enumerate(x):
            if part is not None:
                _walk(part, f"{prefix}{i}.", out)
        return out
    values = vars(x)
    for name, role, constraint, unit, _, _ in fields_of(x):
        value = values[name]
        if value is None:
            continue
        if role is not None:
            out.append(Leaf(prefix + name, role, constraint, value, None if unit is None else values[unit]))
        elif is_branch(value):
            _walk(value, f"{prefix}{name}.", out)
    return out


_DESCRIBED: WeakKeyDictionary[Any, tuple[Leaf, ...]] = WeakKeyDictionary()
"""What has been said of models that are still there: each is asked several times in a step, and never changes."""


def describe(model: Any) -> tuple[Leaf, ...]:
    """Every leaf of a model, in the order of declaration: name, role, constraint, value and unit."""
    if type(model) not in FIELDS:  # a tuple of models, or an error
        return tuple(_walk(model, "", []))
    found = _DESCRIBED.get(model)
    if found is None:
        found = _DESCRIBED[model] = tuple(_walk(model, "", []))
    return found


def missing(model: Any) -> list[str]:
    """The names of the leaves that are None; a unit may be."""
    names = []
    for field in fields_of(model):
        value = getattr(model, field.name)
        if field.role is not None:
            names += [field.name] if value is None and not field.optional else []
        elif is_branch(value):
            parts = {str(i): part for i, part in enumerate(value)} if isinstance(value, tuple) else {"": value}
            names += [
                ".".join(filter(None, (field.name, key, name))) for key, part in parts.items() for name in missing(part)
            ]
    return names


@lru_cache(maxsize=1024)
def _needed(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in FIELDS.get(cls, ()) if field.role is not None and not field.optional)


def is_placed(model: Any) -> bool:
    """Whether the leaves of a node itself are arrays, rather than None, or numbers and lists as users give them."""
    values = vars(model)  # asked at each evaluation of a kernel: the types alone are looked at
    return all(type(values[name]) not in NO_ARRAY for name in _needed(type(model)))


def leaves(model: Any, role: str | None = None) -> dict[str, Array]:
    """The leaves by name: all, or those of one role."""
    return {leaf.name: leaf.value for leaf in describe(model) if role is None or leaf.role == role}


def nodes(model: Any, kind: type[K], /) -> dict[str, K]:
    """The models of a kind within a model, itself included, by their paths; the path of the model itself is empty.

    The kind is a class, usually an abstract one that says what a node can do. What stands within a found node is
    looked at, too.
    """
    return _nodes(model, kind, "", {})


def _nodes(x: Any, kind: type, path: str, found: dict[str, Any]) -> dict[str, Any]:
    if isinstance(x, tuple):
        for i, part in enumerate(x):
            if part is not None:
                _nodes(part, kind, f"{path}.{i}", found)
        return found
    if _is_kind(type(x), kind):
        found[path] = x
    values = vars(x)
    for field in fields_of(x):
        if field.role is None and is_branch(value := values[field.name]):
            _nodes(value, kind, joined(path, field.name), found)
    return found


_is_kind = lru_cache(maxsize=4096)(issubclass)  # asked for every node in every step; abstract classes answer slowly


def joined(*parts: str) -> str:
    """The path made up of these, of which some may be empty."""
    return ".".join(filter(None, parts))


@lru_cache(maxsize=4096)  # asked for every leaf in every step
def matches(name: str, pattern: str, /) -> bool:
    """Whether a leaf's name matches a pattern, in whole or from one of its parts on.

    ``kernel.*`` matches ``process.kernel.variance``, and ``Z`` every leaf of that name, wherever it stands.
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def patterns(one_or_more: str | Iterable[str], /) -> tuple[str, ...]:
    """Patterns of leaf names as users give them, one or several."""
    return (one_or_more,) if isinstance(one_or_more, str) else tuple(one_or_more)
