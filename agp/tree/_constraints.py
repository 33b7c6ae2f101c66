"""Constraints: maps between the values in a model and unconstrained values for optimisers.

A field of a model declares its constraint (`agp.tree.param`). Only `agp.tree` applies constraints.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from agp.backend import Array, Backend, backend_of


@dataclass(frozen=True)
class Constraint:
    """The identity map, for any real value. Other constraints override all of its methods."""

    name: str = "real"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """The ends of the interval of values, both excluded. Constraints of users may leave it out."""
    by_entry: ClassVar[Mapping[str, Callable[..., tuple[Array]]]] = {}
    """For elementwise constraints: functions for `Backend.fused` that compute the first three methods, by name."""

    def constrain(self, raw: Array) -> Array:
        """Return the value of an unconstrained leaf."""
        return raw

    def unconstrain(self, value: Array) -> Array:
        """Return the unconstrained leaf: the inverse of `constrain`."""
        return value

    def pull(self, value: Array, bar: Array) -> Array:
        """Return the cotangent of the unconstrained leaf, from the value and its cotangent."""
        return bar

    def log_jacobian(self, raw: Array) -> tuple[Array, Array]:
        """Return log |d value / d raw|, 0-d, and its gradient with respect to raw."""
        xp = backend_of(raw).xp
        zeros = xp.zeros_like(raw)
        return xp.sum(zeros), zeros

    def is_violated(self, value: Array) -> Array:
        """Return a 0-d Boolean, true if any entry is NaN or outside the domain."""
        xp = backend_of(value).xp
        return ~xp.all(xp.isfinite(value))


# v = softplus(r) = log(1 + e^r);  r = v + log(-expm1(-v));  dv/dr = sigmoid(r) = -expm1(-v)


def _softplus(B: Backend, raw: Array) -> tuple[Array]:
    return (B.xp.logaddexp(raw, B.xp.zeros_like(raw)),)


def _inverse_softplus(B: Backend, value: Array) -> tuple[Array]:
    return (value + B.log(-B.xp.expm1(-value)),)


def _pull_softplus(B: Backend, value: Array, bar: Array) -> tuple[Array]:
    return (-bar * B.xp.expm1(-value),)


class _Positive(Constraint):
    range = (0.0, math.inf)
    by_entry = MappingProxyType({"constrain": _softplus, "unconstrain": _inverse_softplus, "pull": _pull_softplus})

    def constrain(self, raw: Array) -> Array:
        return backend_of(raw).fused(_softplus, raw)[0]

    def unconstrain(self, value: Array) -> Array:
        return backend_of(value).fused(_inverse_softplus, value)[0]

    def pull(self, value: Array, bar: Array) -> Array:
        return backend_of(value).fused(_pull_softplus, value, bar)[0]

    def log_jacobian(self, raw: Array) -> tuple[Array, Array]:
        xp = backend_of(raw).xp
        return -xp.sum(self.constrain(-raw)), xp.exp(-self.constrain(raw))  # log sigmoid(r), sigmoid(-r)

    def is_violated(self, value: Array) -> Array:
        xp = backend_of(value).xp
        return ~xp.all(xp.isfinite(value) & (value > 0))


class _Nonnegative(_Positive):
    # zero has the raw value -inf, where the slope is zero
    def log_jacobian(self, raw: Array) -> tuple[Array, Array]:
        xp = backend_of(raw).xp
        moves = xp.isfinite(raw)  # zeros are constants
        terms = -self.constrain(-xp.where(moves, raw, xp.zeros_like(raw)))
        slopes = xp.exp(-self.constrain(raw))
        return xp.sum(xp.where(moves, terms, xp.zeros_like(raw))), xp.where(moves, slopes, xp.zeros_like(raw))

    def is_violated(self, value: Array) -> Array:
        xp = backend_of(value).xp
        return ~xp.all(xp.isfinite(value) & (value >= 0))


# v = 1 / (1 + e^-r);  r = log v - log(1 - v);  dv/dr = v (1 - v)


class _Proportion(Constraint):
    range = (0.0, 1.0)

    def constrain(self, raw: Array) -> Array:
        # |r| is limited, so that rounding never yields 0 or 1
        xp = backend_of(raw).xp
        most = -math.log(float(xp.finfo(raw.dtype).eps))
        return 1.0 / (1.0 + xp.exp(-xp.clip(raw, -most, most)))

    def unconstrain(self, value: Array) -> Array:
        xp = backend_of(value).xp
        return xp.log(value) - xp.log1p(-value)

    def pull(self, value: Array, bar: Array) -> Array:
        return bar * value * (1.0 - value)

    def log_jacobian(self, raw: Array) -> tuple[Array, Array]:
        xp = backend_of(raw).xp
        zeros = xp.zeros_like(raw)
        return -xp.sum(xp.logaddexp(raw, zeros) + xp.logaddexp(-raw, zeros)), -xp.tanh(0.5 * raw)

    def is_violated(self, value: Array) -> Array:
        xp = backend_of(value).xp
        return ~xp.all((value > 0.0) & (value < 1.0))


class _Lower(Constraint):
    # The strict upper triangle [..., M, M] is zero and stays so.
    def constrain(self, raw: Array) -> Array:
        return backend_of(raw).tril(raw)

    def pull(self, value: Array, bar: Array) -> Array:
        return backend_of(value).tril(bar)


class _Ordered(Constraint):
    # A vector [K] in ascending order: v_0 = r_0, v_k = v_{k-1} + softplus(r_k).
    def constrain(self, raw: Array) -> Array:
        xp = backend_of(raw).xp
        return xp.cumulative_sum(xp.concat([raw[:1], POSITIVE.constrain(raw[1:])]))

    def unconstrain(self, value: Array) -> Array:
        return backend_of(value).xp.concat([value[:1], POSITIVE.unconstrain(value[1:] - value[:-1])])

    def pull(self, value: Array, bar: Array) -> Array:
        # each step moves its entry and all later ones
        xp = backend_of(value).xp
        later = xp.flip(xp.cumulative_sum(xp.flip(bar)))
        return xp.concat([later[:1], POSITIVE.pull(value[1:] - value[:-1], later[1:])])

    def log_jacobian(self, raw: Array) -> tuple[Array, Array]:
        xp = backend_of(raw).xp
        value, slopes = POSITIVE.log_jacobian(raw[1:])
        return value, xp.concat([xp.zeros_like(raw[:1]), slopes])

    def is_violated(self, value: Array) -> Array:
        xp = backend_of(value).xp
        return ~(xp.all(xp.isfinite(value)) & xp.all(value[1:] > value[:-1]))


REAL = Constraint()
"""Real numbers: the raw leaf is the value."""
POSITIVE = _Positive("positive")
"""Positive numbers."""
NONNEGATIVE = _Nonnegative("zero or positive")
"""Positive numbers, which are trained, or zero, which stays zero."""
PROPORTION = _Proportion("between 0 and 1")
"""Numbers between 0 and 1, both excluded, such as shares and probabilities."""
ORDERED = _Ordered("in ascending order")
"""Vectors [K] in ascending order."""
LOWER = _Lower("lower-triangular")
"""Lower triangles of matrices [..., M, M]."""
