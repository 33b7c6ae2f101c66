"""The positions of nodes and leaves in a model. Copies of a model with new leaves share these positions."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from agp.errors import name_remedy
from agp.tree._constraints import Constraint
from agp.tree._fields import FIELDS, Field, fields_of, from_fields, is_branch

T = TypeVar("T")


class Place(NamedTuple):
    """The position of a node, which is a model or a tuple of models."""

    path: str
    cls: type
    parent: int
    """The index, in `Plan.places`, of the node that contains this node."""
    key: Any
    """The name of the field, or the index in the tuple, at which the parent holds this node."""


class Standing(NamedTuple):
    """The position of a leaf."""

    name: str
    place: int
    """The index, in `Plan.places`, of the node that holds this leaf."""
    field: Field


class Plan:
    """The positions of all nodes, parents before children, and of all leaves, in the order of declaration.

    A training step traverses its model many times; a plan avoids searching for nodes and leaves each time. A plan holds
    no nodes and no arrays, so all models with the same structure can share it.
    """

    def __init__(self, model: Any) -> None:
        self.places: list[Place] = []
        self.leaves: dict[str, Standing] = {}
        self.empty: dict[str, Standing] = {}
        """The leaves that are None."""
        self.followers: dict[str, str] = {}
        """The leaves that are tied to others (`agp.tree.ties`), with the names of the leaves that they follow."""
        self._of_kind: dict[type, list[tuple[str, int]]] = {}
        self._by_entry: dict[tuple[str, tuple[str, ...]], tuple[list[tuple[Any, tuple[str, ...]]], list[str]]] = {}
        self.tied: list[tuple[str, str]] = []
        """The paths of parts that are equal: of the first one, and of another one that follows it."""
        self._add(model, "", 0, None)
        for first, other in self.tied:
            self._tie(first, other)
        for name, leader in self.followers.items():
            while leader in self.followers:
                leader = self.followers[leader]
            self.followers[name] = leader

    def _add(self, x: Any, path: str, parent: int, key: Any) -> None:
        number = len(self.places)
        self.places.append(Place(path, type(x), parent, key))
        if isinstance(x, tuple):
            for i, part in enumerate(x):
                if part is not None:
                    self._add(part, join_path(path, str(i)), number, i)
            return
        fields, values = fields_of(x), vars(x)
        for field in fields:
            name, value = join_path(path, field.name), values[field.name]
            if field.role is not None:
                (self.empty if value is None else self.leaves)[name] = Standing(name, number, field)
            elif is_branch(value):
                self._add(value, name, number, field.name)
            elif field.holds_ties:
                self.tied += [(join_path(path, first), join_path(path, other)) for first, other in value]

    def _tie(self, first: str, other: str) -> None:
        """Make all leaves under a path constants that follow the leaves under another path."""
        for name, standing in self.leaves.items():
            if name.startswith(f"{other}."):
                leader = first + name.removeprefix(other)
                if leader in self.leaves and name not in self.followers:
                    self.followers[name] = leader
                    self.leaves[name] = standing._replace(field=standing.field._replace(role="constant"))

    @cached_property
    def groups(self) -> dict[str, list[Standing]]:
        """The leaves that follow each parameter."""
        found: dict[str, list[Standing]] = {}
        for name, leader in self.followers.items():
            found.setdefault(leader, []).append(self.leaves[name])
        return found

    def spread(self, new: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Return new values of leaves, with the same values of leaves that follow them and are not given."""
        if not self.followers:
            return new
        return {**{name: new[leader] for name, leader in self.followers.items() if leader in new}, **new}

    @cached_property
    def parameters(self) -> list[Standing]:
        """The leaves that are parameters."""
        return [standing for standing in self.leaves.values() if standing.field.role == "parameter"]

    @cached_property
    def constraints(self) -> dict[str, Constraint]:
        """The constraints of the leaves, by name."""
        return {name: standing.field.constraint for name, standing in self.leaves.items()}

    def by_entry(self, method: str, names: tuple[str, ...], /) -> tuple[list[tuple[Any, tuple[str, ...]]], list[str]]:
        """Group leaves by the elementwise function of their constraints, and return the names of the other leaves."""
        found = self._by_entry.get((method, names))
        if found is None:
            together: dict[Any, tuple[str, ...]] = {}
            others = []
            for name in names:
                constraint = self.constraints[name]
                if constraint.by_entry:
                    f = constraint.by_entry[method]
                    together[f] = (*together.get(f, ()), name)
                else:
                    others.append(name)
            found = self._by_entry[method, names] = [*together.items()], others
        return found

    def nodes(self, model: Any, /) -> list[Any]:
        """Return the nodes of a model, or of its gradient, by place. Nodes missing from a gradient are None."""
        values = [model]
        for _, _, parent, key in self.places[1:]:
            whole = values[parent]
            values.append(None if whole is None else whole[key] if type(key) is int else vars(whole).get(key))
        return values

    def of_kind(self, kind: type, /) -> list[tuple[str, int]]:
        """Return the paths of all models of class `kind`, and their indices in `places`."""
        places = self._of_kind.get(kind)
        if places is None:
            places = [(x.path, i) for i, x in enumerate(self.places) if x.cls in FIELDS and issubclass(x.cls, kind)]
            self._of_kind[kind] = places
        return places

    def with_leaves(self, model: T, new: Mapping[str, Any], /) -> T:
        """Apply `agp.tree.with_leaves` to a model of this plan; nodes without new leaves are shared, not copied."""
        nodes, places, new = self.nodes(model), self.places, self.spread(new)
        changed: dict[int, Any] = {}  # the new fields of models, and the new parts of tuples
        alike = True
        for name, value in new.items():
            standing = self.leaves.get(name)
            if standing is None or value is None:
                standing, alike = standing or self.empty.get(name), False
            if standing is None:
                unknown = sorted(new.keys() - self.leaves.keys() - self.empty.keys())
                remedy = name_remedy(unknown[0], self.leaves, "its leaves are")
                raise KeyError(f"the model has no leaf {', '.join(unknown)}; {remedy}")
            _, place, field = standing
            if place not in changed:
                changed[place] = dict(vars(nodes[place]))
            changed[place][field.name] = value
        out: Any = model
        for place in range(len(places) - 1, -1, -1):  # children before parents
            if place not in changed:
                continue
            _, cls, parent, key = places[place]
            out = from_fields(cls, changed[place]) if cls in FIELDS else tuple(changed[place])
            if place:
                if parent not in changed:
                    whole = nodes[parent]
                    changed[parent] = list(whole) if isinstance(whole, tuple) else dict(vars(whole))
                changed[parent][key] = out
        if alike and type(out) in FIELDS:
            _PLANS[out] = self
        return out


_PLANS: WeakKeyDictionary[Any, Plan] = WeakKeyDictionary()
"""The plan of each existing model. Models are immutable, so plans stay valid."""


def plan_of(model: Any, /) -> Plan:
    """Return the plan of a model or of a tuple of models."""
    if type(model) not in FIELDS:  # a tuple of models; other objects raise an error
        return Plan(model)
    plan = _PLANS.get(model)
    if plan is None:
        plan = _PLANS[model] = Plan(model)
    return plan


@lru_cache(maxsize=4096)
def join_path(*parts: str) -> str:
    """Join the parts of a path with dots, omitting empty parts."""
    return ".".join(filter(None, parts))
