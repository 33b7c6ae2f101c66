"""The raw leaves of a model: the unconstrained, dimensionless arrays that optimisers change."""

from collections.abc import Mapping
from typing import Any, TypeVar

from agp.backend import Array, backend_of
from agp.tree._constraints import NONNEGATIVE, REAL
from agp.tree._copies import add
from agp.tree._plans import Plan, plan_of

T = TypeVar("T")


def unconstrain(model: Any) -> dict[str, Array]:
    """Return the raw leaves of the parameters, by name."""
    plan = plan_of(model)
    nodes, out, given = plan.nodes(model), {}, {}
    for name, place, (key, _, constraint, unit, *_) in plan.parameters:
        values = vars(nodes[place])
        out[name] = values[key] if unit is None or values[unit] is None else values[key] / values[unit]
        if constraint is not REAL:
            given[name] = (out[name],)
    return out | _map_constraints(plan, "unconstrain", given)


def constrain(model: T, raw: Mapping[str, Array]) -> T:
    """Return the model with the parameters that the given raw leaves define, and with equal values of tied leaves."""
    plan = plan_of(model)
    nodes, given, sizes = plan.nodes(model), {}, {}
    for name, place, (_, _, constraint, unit, *_) in plan.parameters:
        if name in raw:
            sizes[name] = None if unit is None else vars(nodes[place])[unit]
            if constraint is not REAL:
                given[name] = (raw[name],)
    new = {**raw, **_map_constraints(plan, "constrain", given)}
    for name, size in sizes.items():
        if size is not None:
            new[name] = size * new[name]
    return plan.with_leaves(model, new)


def pull_raw(model: Any, bar: Any) -> dict[str, Array]:
    """Convert a gradient with the structure of a model to a gradient with respect to raw leaves; None becomes zero."""
    plan = plan_of(model)
    nodes, bars, out, given, sizes = plan.nodes(model), plan.nodes(bar), {}, {}, {}
    for name, place, (key, _, constraint, unit, *_) in plan.parameters:
        values = vars(nodes[place])
        value, leaf_bar = values[key], _bar_at(bars, place, key)
        for _, other, field in plan.groups.get(name, ()):
            leaf_bar = add(leaf_bar, _bar_at(bars, other, field.name))
        out[name] = backend_of(value).xp.zeros_like(value) if leaf_bar is None else leaf_bar
        sizes[name] = size = None if unit is None else values[unit]
        if leaf_bar is not None and constraint is not REAL:
            given[name] = (value if size is None else value / size, leaf_bar)
    out |= _map_constraints(plan, "pull", given)
    # multiplies by the unit last: for small values, unit times cotangent may overflow before the small slope reduces it
    for name, size in sizes.items():
        if size is not None:
            out[name] = size * out[name]
    return out


def _bar_at(bars: list[Any], place: int, key: str) -> Any:
    return None if bars[place] is None else vars(bars[place]).get(key)


def _map_constraints(plan: Plan, method: str, given: Mapping[str, tuple[Array, ...]]) -> dict[str, Array]:
    """Apply a method of each leaf's constraint to its arrays, with one call for each elementwise constraint."""
    groups, others = plan.by_entry(method, (*given,))
    out = {}
    for name in others:
        out[name] = getattr(plan.constraints[name], method)(*given[name])
    for by_entry, names in groups:
        several = [given[name] for name in names]
        results = backend_of(several[0][0]).elementwise_each(by_entry, several, lower=[False] * len(several))
        for name, (x,) in zip(names, results, strict=True):
            out[name] = x
    return out


def zero_leaves(model: Any) -> frozenset[str]:
    """Return the names of parameters that are zero and stay zero, because their raw leaves are -inf."""
    plan = plan_of(model)
    nodes = plan.nodes(model)
    found = (
        (name, vars(nodes[place])[field.name])
        for name, place, field in plan.parameters
        if field.constraint is NONNEGATIVE
    )
    return frozenset(
        name for name, x in found if backend_of(x).is_concrete(x) and not bool(backend_of(x).xp.any(x != 0.0))
    )
