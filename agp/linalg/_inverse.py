"""Inversion by matrix products: natural-gradient descent that converges to the Cholesky factor of an inverse.

Let A be symmetric positive definite, L lower triangular with a positive diagonal, and B = L^T A L. The function
l(L) = KL[N(0, L L^T) || N(0, A^-1)] = (tr B - M)/2 - sum log diag L - log|A|/2 is convex in L. Its minimiser is the
Cholesky factor of A^-1. The natural-gradient step is L <- L (I - gamma Phi(B - I)), which requires no factorisation or
solve. Relaxed Gaussian processes use this step instead of a Cholesky factorisation.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of
from agp.linalg._diagonal import diagonal
from agp.linalg._inverse_step import (
    COLD_START,
    largest_eigenvalue,
    merit_of,
    natural_step,
    residual_of,
    rounding_error,
    starting_factor,
    starting_vector,
)
from agp.linalg._reduced_steps import ReducedSteps, is_lower, run_reduced_steps
from agp.linalg._step_rules import StepRule, safe_step
from agp.linalg._triangular import gram
from agp.repairs import report

Gap = Callable[[Array, Array, Array], Array]
"""A stopping criterion (0-d) that is computed from A [M, M], L [M, M] and the lower triangle of B = L^T A L [M, M]."""

CONVERGENCE_RADIUS = 0.68
"""Unit steps converge quadratically from every B with |B - I|_F below this value."""
ONE_STEP_TOLERANCE = 1e-3
"""For tolerances above this value, the least number of steps from the last factor nearly always suffices."""
RESCALE_THRESHOLD = 1e3
"""If the largest eigenvalue of B exceeds this value, L is rescaled so that no eigenvalue of B exceeds 1."""


class InverseFactor(NamedTuple):
    """A triangular factor L with L L^T ~ A^-1, and a record of its computation."""

    factor: Array
    """The factor L [M, M], lower triangular with a positive diagonal."""
    residual: Array
    """The residual |L^T A L - I|_F / sqrt(M) (0-d)."""
    steps: Array
    """The number of natural-gradient steps taken, including rejected steps (0-d)."""
    restarts: Array
    """1 if the given factor was discarded (0-d)."""
    vector: Array
    """The last power iterate [M], from which the eigenvalue estimates of the next call can start."""
    gap: Array
    """The value of the stopping criterion (0-d): the residual, unless another `gap` was given."""
    fallbacks: Array
    """1 if products in the requested lower precision were not accurate enough (0-d)."""
    rounding: Array
    """The estimated residual due to products in lower precision (0-d); 0 if no lower precision was requested."""


class _Carry(NamedTuple):
    count: Array
    L: Array
    B: Array
    merit: Array
    residual: Array
    gap: Array
    best: Array
    stale: Array
    damping: Array
    vector: Array
    floor: Array
    """Twice the residual that is due to rounding, or 0 if unknown."""


def inverse_factor(
    A: Array,
    start: Array | None = None,
    *,
    tolerance: float = 5e-3,
    least_steps: int = 0,
    max_steps: int = 100,
    step: StepRule = safe_step,
    patience: int = 5,
    vector: Array | None = None,
    gap: Gap | None = None,
    precision: str | None = None,
) -> InverseFactor:
    """Compute the Cholesky factor of A^-1 by matrix products, to a residual |L^T A L - I|_F / sqrt(M) < tolerance.

    The iteration ends when the residual falls below the tolerance or stops improving, or after `max_steps` steps. A
    residual below twice its estimated rounding error has stopped improving after the first step without progress, and
    other residuals after several (`patience`). If `gap` is given, it replaces the residual in these tests, and its
    rounding error is unknown.

    Parameters
    ----------
    A
        A symmetric positive definite matrix [M, M].
    start
        A factor to start from, such as the factor of the previous A. The default is `starting_factor(A)`. The default
        also replaces a given factor L if L is not finite or an eigenvalue of L^T A L exceeds 100.
    tolerance
        The residual at which to stop. The residual is tested before each step, so a good factor takes no steps.
    least_steps, max_steps
        The minimum and maximum number of steps.
    step
        The rule for the step size, which receives the number of steps since the start of this call.
    patience
        Stop after this number of consecutive unit steps without progress. A step makes progress if it improves the
        residual (or the gap) or l(L). Close to the solution, a step makes progress only if it halves the residual. A
        shorter step counts as a fraction of a unit step, so the small first steps of a schedule do not use up the
        patience.
    vector
        `InverseFactor.vector` of the previous call.
    gap
        A function that returns the criterion for stopping, by default the residual. The function is called once
        per step.
    precision
        One of "float32", "tf32", "tf32x3", "bfloat16" and "bfloat16x3". In "tf32x3" and "bfloat16x3", three products of
        split matrices replace each product. The first steps multiply in this precision, until the residual is below the
        tolerance or near the rounding error of the products. The residual is then checked in the precision of A,
        and steps continue in that precision if necessary. If A is too ill-conditioned for the lower precision, all
        steps use the precision of A, and `fallbacks` is 1. The argument has no effect unless the requested
        precision is lower than the precision of A.

    Returns
    -------
    InverseFactor
        The residual is NaN if A is not finite. A cold start takes about log(cond A) / log 2.25 + 4 steps, each of which
        takes 4/3 to 1.7 M^3 operations.

    Raises
    ------
    agp.errors.BackendError
        If the array library or the device of A does not support products in the given precision.

    Source: `docs/methods/rsvgp.md` discusses convergence, safe steps, rescues and restarts.
    """
    backend = backend_of(A)
    xp = backend.xp
    vector = starting_vector(A) if vector is None else vector
    zero = xp.zeros((), **backend.like(A))
    rough = None
    if precision is not None and is_lower(precision, A):
        first_of_all = starting_factor(A) if start is None else start
        limits = {"tolerance": tolerance if gap is None else 0.0, "least_steps": least_steps, "max_steps": max_steps}
        rough = run_reduced_steps(A, first_of_all, vector, precision=precision, step=step, **limits)
        start, vector = rough.factor, rough.vector
    L, B, restarts = _first_factor(A, start, vector)

    floor_of = _floor(A) if gap is None and tolerance > 0.0 else lambda _: zero

    def unfinished(*carry: Array) -> Array:
        c = _Carry(*carry)
        improvable = (c.gap >= c.floor) | (c.stale == 0.0)
        wanted = ((c.gap >= tolerance) & improvable) | (c.count < least_steps)
        return wanted & (c.count < max_steps) & (c.stale < patience)

    def advance(*carry: Array) -> tuple[Array, ...]:
        return _advance(A, step, gap, floor_of, _Carry(*carry))

    residual = residual_of(B)
    measured = residual if gap is None else gap(A, L, B)
    count = zero if rough is None else rough.steps
    fallbacks = zero if rough is None else _fallbacks(rough, restarts, residual >= tolerance)
    certain = 0 if rough is not None else max(0, min(least_steps, max_steps, math.ceil(patience)))
    floor = zero if certain > 0 else floor_of(L)  # not tested before steps that are certain
    first = _Carry(count, L, B, merit_of(L, B), residual, measured, measured, zero, zero + 1.0, vector, floor)
    enough = certain > 0 and tolerance >= ONE_STEP_TOLERANCE
    last = _Carry(*backend.while_loop(unfinished, advance, first, at_least=certain, likely_enough=enough))
    rounding = zero if rough is None else rough.rounding
    return InverseFactor(last.L, last.residual, last.count, restarts, last.vector, last.gap, fallbacks, rounding)


def _fallbacks(rough: ReducedSteps, restarts: Array, missed: Array) -> Array:
    xp = backend_of(restarts).xp
    failed = (rough.refused | (rough.reached & missed)) & xp.isfinite(rough.rounding) & (restarts == 0.0)
    return xp.astype(failed, restarts.dtype)


def _first_factor(A: Array, start: Array | None, vector: Array) -> tuple[Array, Array, Array]:
    backend = backend_of(A)
    zero = backend.xp.zeros((), **backend.like(A))

    def cold() -> tuple[Array, Array, Array]:
        factor = starting_factor(A)
        return factor, gram(A, factor), zero + 1.0

    if start is None:
        return *cold()[:2], zero
    B = gram(A, start)
    positive = backend.xp.all(backend.diagonal(start) > 0.0)

    def kept() -> tuple[Array, Array, Array]:
        return start, B, zero

    def looked_at() -> tuple[Array, Array, Array]:
        usable = (largest_eigenvalue(B, vector)[0] <= COLD_START) & positive  # False for NaN
        return backend.cond(usable, kept, cold)

    size = residual_of(B) * math.sqrt(A.shape[-1])  # no eigenvalue of B exceeds 1 + |B - I|_F
    return backend.cond((1.0 + size <= COLD_START) & positive, kept, looked_at, likely=True)


def _floor(A: Array) -> Callable[[Array], Array]:
    """Return a function that estimates, from L, twice the residual that is due to rounding."""
    xp = backend_of(A).xp
    size = xp.max(diagonal(A))  # squares of A itself may overflow
    squares, root, unit = (A / size) ** 2, xp.sqrt(size), 0.5 * float(xp.finfo(A.dtype).eps)

    def floor(L: Array) -> Array:
        scaled = root * L
        return 2.0 * rounding_error(squares, xp.vecdot(scaled, scaled), unit, unit)

    return floor


def _advance(
    A: Array, step: StepRule, gap: Gap | None, floor_of: Callable[[Array], Array], c: _Carry
) -> tuple[Array, ...]:
    xp = backend_of(A).xp
    eigenvalue, vector = largest_eigenvalue(c.B, c.vector)
    L, B, eigenvalue = _rescale_start(c.L, c.B, eigenvalue)
    gamma = step(c.count, eigenvalue)
    # after a rejected step, take the safe step, shortened
    gamma = xp.where(c.damping < 1.0, c.damping * xp.minimum(gamma, safe_step(c.count, eigenvalue)), gamma)
    L_new = natural_step(L, B, gamma)
    B_new = gram(A, L_new)
    merit, residual = merit_of(L_new, B_new), residual_of(B_new)
    # Reject a step that increases the merit or makes it NaN. Near the solution, the merit is flat up to rounding, so
    # the residual decides, which falls quadratically once |G|_F < 0.68.
    rounding = 10.0 * float(xp.finfo(A.dtype).eps) * (A.shape[-1] + xp.abs(c.merit))
    near = c.residual * math.sqrt(A.shape[-1]) < CONVERGENCE_RADIUS
    accept = (merit <= c.merit + rounding) | (near & (residual < c.residual) & xp.isfinite(merit))
    measured = xp.where(accept, residual if gap is None else gap(A, L_new, B_new), c.gap)
    wanted, falls = c.best, merit < c.merit - rounding
    if gap is None:
        # near the solution, a unit step more than halves the residual, until the residual and the merit fluctuate at
        # the floor of the precision
        wanted, falls = xp.where(near, 0.5 * wanted, wanted), falls & ~near
    improved = (measured < wanted) | falls
    spent = xp.where(accept, xp.minimum(gamma, xp.ones_like(gamma)), xp.ones_like(gamma))
    L_next = xp.where(accept, L_new, c.L)
    return _Carry(
        count=c.count + 1.0,
        L=L_next,
        B=xp.where(accept, B_new, c.B),
        merit=xp.where(accept, merit, c.merit),
        residual=xp.where(accept, residual, c.residual),
        gap=measured,
        best=xp.where(measured < wanted, measured, c.best),
        stale=xp.where(improved, xp.zeros_like(c.stale), c.stale + spent),
        damping=xp.where(accept, xp.ones_like(c.damping), 0.5 * c.damping),
        vector=xp.where(xp.isfinite(eigenvalue), vector, c.vector),
        floor=floor_of(L_next),
    )


def _rescale_start(L: Array, B: Array, eigenvalue: Array) -> tuple[Array, Array, Array]:
    # L diag(rho^-1/2) with rho_i = sum_j |B_ij| has lambda_max(B) <= 1, at the cost of one pass over B.
    backend = backend_of(L)
    xp = backend.xp

    def rescued() -> tuple[Array, Array, Array]:
        size = xp.abs(B)
        root = 1.0 / xp.sqrt(xp.sum(size, axis=-1) + xp.sum(xp.tril(size, k=-1), axis=-2))
        return L * root, B * root * root[:, None], xp.ones_like(eigenvalue)

    return backend.cond(eigenvalue > RESCALE_THRESHOLD, rescued, lambda: (L, B, eigenvalue), likely=False)


# -- reports ----------------------------------------------------------------------------------------------------------


def report_restarts(found: InverseFactor, name: str, /, *, among: Array | None = None) -> InverseFactor:
    """Return `found` unchanged; report a repair if the given factor, with this name, was discarded.

    Nothing is reported if the 0-d Boolean `among` is False, because no earlier factor existed.
    """
    xp = backend_of(found.restarts).xp
    restarts = found.restarts
    report(
        f"the {name.replace('_', ' ')} was discarded and computed again in {{0:.0f}} steps (residual {{1:.2g}}), "
        "because it was too far from the inverse; use a smaller rate, so that the parameters change more slowly.",
        found.steps,
        found.residual,
        count=restarts if among is None else restarts * xp.astype(among, restarts.dtype),
    )
    return found
