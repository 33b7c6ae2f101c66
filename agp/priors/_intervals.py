"""Parameters with limits as smooth functions of unlimited coordinates, for optimisers that know no limits."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from agp import tree
from agp.backend import Array, backend_of
from agp.priors._limits import Limits

T = TypeVar("T")

MARGIN = 1e-2
"""The distance from limits to which raw leaves are moved, where coordinates would be infinite. It is at most a tenth of
the interval. A positive parameter changes by at most 1 % of its value, and a real one by at most 1 % of its unit."""


def to_coordinates(model: Any, limits: Mapping[str, Limits], /) -> dict[str, Array]:
    """Return the raw leaves of a model by name, or the coordinates z of those with limits; see `at_coordinates`."""
    raw = tree.unconstrain(model)
    for leaf in tree.describe(model) if limits else ():
        if leaf.name in limits:
            raw[leaf.name] = _coordinates(raw[leaf.name], *_raw_limits(leaf, limits[leaf.name]))
    return raw


def at_coordinates(model: T, coordinates: Mapping[str, Array], limits: Mapping[str, Limits], /) -> T:
    """Return the model with raw leaves r = z + log(1 + exp(low - z)) - log(1 + exp(z - high)) at coordinates z.

    Here, low and high are the limits of the raw leaf. Far from them, r is nearly z, and without limits, r = z. Fixed
    entries, whose limits are equal, have these values at any z. The slope of r vanishes only at infinite z.
    """
    raw, known = dict(coordinates), {leaf.name: leaf for leaf in tree.describe(model)} if limits else {}
    for name in limits:
        z, (low, high) = coordinates[name], _raw_limits(known[name], limits[name])
        raw[name] = into_interval(z, low, high)
    model = tree.constrain(model, raw)
    # rounding must not leave the interval; its slope is that without rounding, or a limit could not be left again
    values, exact = tree.leaves(model), {}
    for name, (low, high) in limits.items():
        x, B = values[name], backend_of(values[name])
        exact[name] = x + B.stop_gradient(B.xp.clip(x, low, high) - x)
    return tree.equalise(tree.with_leaves(model, exact)) if exact else model


def _raw_limits(leaf: tree.Leaf, limits: Limits) -> Limits:
    """Return the limits of a raw leaf, which are infinite where the constraint does not allow the limit itself."""
    low, high = (leaf.constraint.unconstrain(x if leaf.unit is None else x / leaf.unit) for x in limits)
    xp = backend_of(low).xp
    none = xp.full_like(low, math.inf)
    return Limits(xp.where(xp.isnan(low), -none, low), xp.where(xp.isnan(high), none, high))


def into_interval(z: Array, low: Array, high: Array, /) -> Array:
    """Return x = z + log(1 + exp(low - z)) - log(1 + exp(z - high)), which lies between the limits for any z.

    Limits may be infinite. Far from them, x is nearly z; without limits, it is z.
    """
    xp = backend_of(z).xp
    return xp.logaddexp(z, low) - xp.logaddexp(z - high, xp.zeros_like(z))


def out_of_interval(x: Array, low: Array, high: Array, /) -> Array:
    """Return z at x = `into_interval(z, low, high)`, which is infinite at limits."""
    xp = backend_of(x).xp
    return x + xp.log(-xp.expm1(low - x)) - xp.log(-xp.expm1(x - high))


def _coordinates(raw: Array, low: Array, high: Array) -> Array:
    B = backend_of(raw)
    xp = B.xp
    fixed = low == high
    width = xp.where(fixed, xp.ones_like(raw), high - low)
    margin = xp.minimum(0.1 * width, xp.full_like(raw, MARGIN))
    x = xp.clip(raw, low + margin, high - margin)
    x = xp.where(fixed, raw, x)
    z = out_of_interval(x, xp.where(fixed, x - 1.0, low), xp.where(fixed, x + 1.0, high))
    return xp.where(fixed, x, z)
