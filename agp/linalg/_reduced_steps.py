"""Inversion by matrix products: steps in a lower precision, as long as rounding errors allow them.

A step from L requires the products B = L^T A L and L Phi(B - I). Later steps compute B in the precision of A, and thus
correct the errors of both products.

All precisions sum in float32. `rounding_error` estimates the residual that rounding leaves.

Split products replace x = h + l + r by h, which is x rounded to p bits, and l, which is x - h rounded to p bits. They
replace x y by h h' + (h l' + l h'). Since |l| <= 2^-p |x| and |r| <= 2^(-2p-1) |x|, the relative error of x y is up to
2^(1-2p): the product l l' causes half of it, and r and r' a quarter each. A plain product of numbers with unit roundoff
u has a relative error of up to 2 u, so the unit roundoff of split products is u = 2^-2p.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of, like
from agp.linalg._diagonal import diagonal
from agp.linalg._inverse_step import (
    COLD_START,
    largest_eigenvalue,
    merit_of,
    natural_step,
    residual_of,
    rounding_error,
)
from agp.linalg._step_rules import StepRule
from agp.linalg._triangular import lower_product, lower_times_lower, lower_transposed_product

Parts = tuple[Array, ...]
"""A matrix as the sum of one or two matrices in a lower precision."""

PRECISIONS = {"float32": 2.0**-24, "tf32": 2.0**-11, "bfloat16": 2.0**-8, "tf32x3": 2.0**-22, "bfloat16x3": 2.0**-16}
"""The unit roundoff of each precision: half the largest relative error of the product of two float32 numbers."""
SPLIT_BITS = {"tf32x3": 11, "bfloat16x3": 8}
"""The number p of significant bits of both parts of a number, for split products."""
SINGLE = PRECISIONS["float32"]
MAX_ROUNDING_ERROR = 5e-3
"""Steps in a lower precision end when the rounding error exceeds both half this value and half the tolerance."""


class ReducedSteps(NamedTuple):
    """The state of the iteration in a lower precision."""

    steps: Array
    """The number of steps taken (0-d)."""
    factor: Array
    """The factor L [M, M] in the precision of A."""
    before: Array
    """The factor before the last step."""
    merit: Array
    """The merit before the last step (0-d)."""
    vector: Array
    """The last power iterate [M]."""
    rounding: Array
    """The residual due to the rounding of products (0-d)."""
    going: Array
    """Whether to continue (0-d)."""
    refused: Array
    """Whether the last step was rejected, because of rounding or because it increased the merit (0-d)."""
    reached: Array
    """Whether the residual in this precision is below the tolerance (0-d)."""


class _Products:
    """Products of A / a and sqrt(a) L in a lower precision, returned as float32; a is the largest entry of A."""

    def __init__(self, A: Array, precision: str) -> None:
        self.backend = backend_of(A)
        self.unit, self.bits = PRECISIONS[precision], SPLIT_BITS.get(precision)
        self.dtype, self.context = self.backend.reduced_precision(precision, A)
        xp = self.backend.xp
        largest = xp.max(diagonal(A))
        self.root = xp.sqrt(largest)
        scaled = xp.astype(A / largest, xp.float32)
        self.A, self.squares = self._parts(scaled), scaled * scaled

    def low(self, L: Array) -> Parts:
        """Return sqrt(a) L as an argument for `gram` and `times`."""
        return self._parts(self.root * L)

    def _parts(self, X: Array) -> Parts:
        xp = self.backend.xp
        if self.bits is None:
            return (xp.astype(X, self.dtype, copy=False),)
        X = xp.astype(X, xp.float32, copy=False)
        high = self.backend.round_float32(X, self.bits)
        rest = X - high
        if self.dtype == xp.float32:  # otherwise, the conversion rounds
            rest = self.backend.round_float32(rest, self.bits)
        return xp.astype(high, self.dtype, copy=False), xp.astype(rest, self.dtype, copy=False)

    def _of(self, product: Callable[[Array, Array], Array], X: Parts, Y: Parts) -> Array:
        with self.context():
            if self.bits is None:
                return product(X[0], Y[0])
            return product(X[0], Y[1]) + product(X[1], Y[0]) + product(X[0], Y[0])

    def gram(self, L: Parts) -> Array:
        """Return the lower triangle of L^T A L, given `low(L)`."""
        return self._of(lower_transposed_product, L, self._parts(self._of(lower_product, self.A, L)))

    def times(self, L: Parts, Y: Array) -> Array:
        """Return L Y, given `low(L)` and Y."""
        return self._of(lower_times_lower, L, self._parts(Y)) / self.root

    def rounding(self, L: Array) -> Array:
        """Return the residual due to the rounding of products, for L in the precision of A."""
        return rounding_error(self.squares, self.backend.xp.sum(L * L, axis=-1) * self.root**2, self.unit, SINGLE)


def is_lower(precision: str, A: Array) -> bool:
    """Return whether products in this precision are less accurate than products in the precision of A."""
    return PRECISIONS[precision] > float(backend_of(A).xp.finfo(A.dtype).eps)


def run_reduced_steps(
    A: Array,
    start: Array,
    vector: Array,
    *,
    precision: str,
    tolerance: float,
    least_steps: int,
    max_steps: int,
    step: StepRule,
) -> ReducedSteps:
    """Take steps from `start` until the residual is below the tolerance or close to the rounding error of the products.

    The steps also end if the start is too far from the inverse, if the rounding error is too large, or if a step
    increases the merit. A step that increases the merit is rejected. The arguments are those of
    `agp.linalg.inverse_factor`.
    """
    backend = backend_of(A)
    xp = backend.xp
    low = _Products(A, precision)
    limit = 0.5 * max(tolerance, MAX_ROUNDING_ERROR)

    def advance(*carry: Array) -> tuple[Array, ...]:
        return _advance(low, step, tolerance, limit, least_steps, ReducedSteps(*carry))

    def unfinished(*carry: Array) -> Array:
        c = ReducedSteps(*carry)
        return c.going & (c.steps < max_steps)

    zero = xp.zeros((), **like(A))
    rounding = low.rounding(start)
    fits = rounding <= limit
    first = ReducedSteps(zero, start, start, zero + math.inf, vector, rounding, fits, ~fits, ~fits & fits)
    return ReducedSteps(*backend.while_loop(unfinished, advance, first))


def _advance(
    low: _Products, step: StepRule, tolerance: float, limit: float, least_steps: int, c: ReducedSteps
) -> tuple[Array, ...]:
    backend = low.backend
    xp, dtype, M = backend.xp, c.factor.dtype, c.factor.shape[-1]
    low_L = low.low(c.factor)
    B = low.gram(low_L)
    eigenvalue, vector = (xp.astype(x, dtype) for x in largest_eigenvalue(B, xp.astype(c.vector, B.dtype)))
    residual = xp.astype(residual_of(B), dtype)
    merit = xp.astype(merit_of(xp.astype(c.factor, B.dtype), B), dtype)
    slack = 10.0 * low.unit * (M + xp.abs(merit))
    sound = (eigenvalue <= COLD_START) & (merit <= c.merit + slack) & (c.rounding <= limit)
    target = xp.maximum(2.0 * c.rounding, xp.full_like(c.rounding, tolerance))
    there = sound & (residual < target) & (c.steps >= least_steps)
    gamma = step(c.steps, eigenvalue)
    L_new = natural_step(c.factor, B, xp.astype(gamma, dtype), product=lambda _, Y: low.times(low_L, Y))
    taken = sound & ~there & xp.all(diagonal(L_new) > 0.0)
    # after a unit step, |G+|_F <= sqrt(5)/2 |G|_F^2 + |G|_F^3 / 2: B need not be computed again
    size = residual * math.sqrt(M)
    left = (1.118 + 0.5 * size) * size**2 / math.sqrt(M) + c.rounding
    left = xp.where(gamma == 1.0, left, xp.full_like(left, math.inf))
    enough = taken & (left < target) & (c.steps + 1.0 >= least_steps)
    going = taken & ~enough
    return ReducedSteps(
        steps=c.steps + xp.astype(taken, dtype),
        factor=backend.cond(taken, lambda: L_new, lambda: backend.cond(sound, lambda: c.factor, lambda: c.before)),
        before=c.factor,
        merit=merit,
        vector=xp.where(xp.isfinite(eigenvalue), vector, c.vector),
        rounding=backend.cond(going, lambda: low.rounding(L_new), lambda: c.rounding),
        going=going,
        refused=~taken & ~there,
        reached=(there | enough) & (target <= tolerance),
    )
