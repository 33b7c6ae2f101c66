"""The raw leaves of a model: unconstrained and without dimension, as optimisers see them."""

from collections.abc import Mapping
from typing import Any, TypeVar

from agp.backend import Array, backend_of
from agp.constraints import REAL
from agp.tree._plans import Plan, plan_of

__all__ = ["constrain", "pull_raw", "unconstrain"]

T = TypeVar("T")


def unconstrain(model: Any) -> dict[str, Array]:
    """The raw leaves of the parameters, by name."""
    plan = plan_of(model)
    nodes, out = plan.nodes(model), {}
    for name, place, (key, _, _, unit, _, _) in plan.parameters:
        values = vars(nodes[place])
        out[name] = values[key] if unit is None or values[unit] is None else values[key] / values[unit]
    return out | _mapped(plan, "unconstrain", {name: (value,) for name, value in out.items()})


def constrain(model: T, raw: Mapping[str, Array]) -> T:
    """The model whose named parameters have these raw leaves."""
    plan = plan_of(model)
    nodes, new = plan.nodes(model), dict(raw)
    new |= _mapped(plan, "constrain", {name: (raw[name],) for name, _, _ in plan.parameters if name in raw})
    for name, place, (_, _, _, unit, _, _) in plan.parameters:
        if name in raw and unit is not None and (size := vars(nodes[place])[unit]) is not None:
            new[name] = size * new[name]
    return plan.with_leaves(model, new)


def pull_raw(model: Any, bar: Any) -> dict[str, Array]:
    """The gradient with respect to the raw leaves, from a gradient in the model's structure; None becomes zero."""
    plan = plan_of(model)
    nodes, bars, out, given, sizes = plan.nodes(model), plan.nodes(bar), {}, {}, {}
    for name, place, (key, _, constraint, unit, _, _) in plan.parameters:
        values = vars(nodes[place])
        value, known = values[key], None if bars[place] is None else vars(bars[place]).get(key)
        out[name] = backend_of(value).xp.zeros_like(value) if known is None else known
        sizes[name] = size = None if unit is None else values[unit]
        if known is not None and constraint is not REAL:
            given[name] = (value if size is None else value / size, known)
    out |= _mapped(plan, "pull", given)
    # in this order: the slope of a small value is as small as it, where the unit times the cotangent may overflow
    return {name: x if sizes[name] is None else sizes[name] * x for name, x in out.items()}


def _mapped(plan: Plan, method: str, given: Mapping[str, tuple[Array, ...]]) -> dict[str, Array]:
    """What a method of their constraints makes of the arrays of leaves that are not real, by name.

    Constraints that map each entry by itself map all their leaves together.
    """
    out, together = {}, {}
    for name, arrays in given.items():
        constraint = plan.constraints[name]
        if constraint.by_entry:
            together.setdefault(constraint, []).append(name)
        elif constraint is not REAL:
            out[name] = getattr(constraint, method)(*arrays)
    for constraint, names in together.items():
        f = getattr(constraint, method)
        several = [given[name] for name in names]
        B = backend_of(several[0][0])
        found = B.elementwise_each(lambda *arrays, f=f: (f(*arrays),), several, lower=[False] * len(several))
        out |= {name: x for name, (x,) in zip(names, found, strict=True)}
    return out
