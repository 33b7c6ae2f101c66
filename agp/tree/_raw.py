"""The raw leaves of a model: unconstrained and without dimension, as optimisers see them."""

from collections.abc import Mapping
from typing import Any, TypeVar

from agp.backend import Array, backend_of
from agp.constraints import REAL
from agp.tree._plans import plan_of

__all__ = ["constrain", "pull_raw", "unconstrain"]

T = TypeVar("T")


def unconstrain(model: Any) -> dict[str, Array]:
    """The raw leaves of the parameters, by name."""
    plan = plan_of(model)
    nodes, out = plan.nodes(model), {}
    for name, place, (key, _, constraint, unit, _, _) in plan.parameters:
        values = vars(nodes[place])
        value = values[key] if unit is None or values[unit] is None else values[key] / values[unit]
        out[name] = value if constraint is REAL else constraint.unconstrain(value)
    return out


def constrain(model: T, raw: Mapping[str, Array]) -> T:
    """The model whose named parameters have these raw leaves."""
    plan = plan_of(model)
    nodes, new = plan.nodes(model), dict(raw)
    for name, place, (_, _, constraint, unit, _, _) in plan.parameters:
        if name in raw:
            value, values = raw[name] if constraint is REAL else constraint.constrain(raw[name]), vars(nodes[place])
            new[name] = value if unit is None or values[unit] is None else values[unit] * value
    return plan.with_leaves(model, new)


def pull_raw(model: Any, bar: Any) -> dict[str, Array]:
    """The gradient with respect to the raw leaves, from a gradient in the model's structure; None becomes zero."""
    plan = plan_of(model)
    nodes, bars, out = plan.nodes(model), plan.nodes(bar), {}
    for name, place, (key, _, constraint, unit, _, _) in plan.parameters:
        values = vars(nodes[place])
        value, known = values[key], None if bars[place] is None else vars(bars[place]).get(key)
        if known is None:
            known = backend_of(value).xp.zeros_like(value)
        size = None if unit is None else values[unit]
        if constraint is not REAL:
            known = constraint.pull(value if size is None else value / size, known)
        # in this order: the slope of a small value is as small as it, where the unit times the cotangent may overflow
        out[name] = known if size is None else size * known
    return out
