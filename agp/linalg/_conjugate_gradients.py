"""Conjugate gradients for linear systems, and Lanczos quadrature for log determinants."""

from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of, like

LOOK_EVERY = 5
"""The number of iterations after which the host checks again whether a device has finished."""


class Solution(NamedTuple):
    """The result of `conjugate_gradients`, for k right-hand sides."""

    x: Array
    """The solutions [N, k]."""
    residual: Array
    """The relative residuals |b - A x| / |b| [k], computed by recursion; 0 where b = 0."""
    iterations: Array
    """The number of products with A (0-d)."""
    steps: Array
    """The step lengths a_j [L, k] of the first L iterations; they are 0 after a column has stopped."""
    ratios: Array
    """The ratios b_j [L, k] of successive squared residuals, which determine the conjugate directions."""


def conjugate_gradients(
    product: Callable[[Array], Array],
    rhs: Array,
    /,
    *,
    solve: Callable[[Array], Array] | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    coefficients: int = 0,
) -> Solution:
    """Solve A x = b for each column b of the right-hand sides; each iteration takes a single product with A.

    Each column starts at zero and stops at its tolerance. A column also stops if d^T A d is not positive for its
    search direction d, because A is then indefinite to working precision. Compiled loops run on the device. The
    function is not differentiable.

    Parameters
    ----------
    product
        A function that maps x [N, k] to A x, for a symmetric positive definite A [N, N].
    rhs
        Right-hand sides [N, k].
    solve
        A function that maps x [N, k] to P^-1 x, where the preconditioner P is symmetric, positive definite and close to
        A. The default P is the identity.
    tolerance
        Stop when the norm of the residual, divided by the norm of the right-hand side, falls to this value.
    max_iterations
        The maximum number of iterations.
    coefficients
        The number L of iterations whose coefficients are recorded for `log_quadrature`.

    Source: Hestenes & Stiefel, "Methods of conjugate gradients for solving linear systems", 1952.
    """
    B = backend_of(rhs)
    xp = B.xp
    solve = (lambda r: r) if solve is None else solve
    index = xp.arange(coefficients, **like(rhs))[:, None]
    squares = xp.sum(rhs * rhs, axis=0)
    limit, zero = tolerance * tolerance * squares, xp.zeros_like(squares)
    infinite = xp.full_like(squares, float("inf"))
    least = float(xp.finfo(rhs.dtype).smallest_normal)

    def condition(count, x, residual, direction, square, active, steps, ratios):  # noqa: ARG001
        return xp.any(active) & (xp.max(count) < float(max_iterations))

    def body(count, x, residual, direction, square, active, steps, ratios):
        # a column that has stopped has a squared residual of 0, and takes steps of length zero
        moved = product(direction)
        curvature = xp.sum(direction * moved, axis=0)
        stuck = curvature <= 0.0  # NaN propagates to the solution and ends the iteration
        step = square / xp.where(stuck, infinite, curvature)
        x, residual = B.add_product(x, step, direction), residual - step * moved
        preconditioned = solve(residual)
        here = xp.astype(index == count, rhs.dtype)
        count = count + xp.astype(active, rhs.dtype)
        active = active & (xp.sum(residual * residual, axis=0) > xp.where(stuck, infinite, limit))
        new = xp.where(active, xp.sum(residual * preconditioned, axis=0), zero)
        ratio = new / xp.clip(square, min=least)
        steps, ratios = B.add_product(steps, here, step), B.add_product(ratios, here, ratio)
        return count, x, residual, B.add_product(preconditioned, ratio, direction), new, active, steps, ratios

    direction, active = solve(rhs), squares > limit
    start = (
        zero,
        xp.zeros_like(rhs),
        rhs,
        direction,
        xp.where(active, xp.sum(rhs * direction, axis=0), zero),
        active,
        xp.zeros((coefficients, rhs.shape[1]), **like(rhs)),
        xp.zeros((coefficients, rhs.shape[1]), **like(rhs)),
    )
    found = B.while_loop(condition, body, start, at_most=max_iterations, look_every=LOOK_EVERY)
    count, x, residual, _, _, _, steps, ratios = found
    relative = xp.sqrt(xp.sum(residual * residual, axis=0) / xp.where(squares > 0.0, squares, xp.ones_like(squares)))
    return Solution(x, relative, xp.max(count), steps, ratios)


def log_quadrature(steps: Array, ratios: Array, /) -> Array:
    """Return the Gauss quadratures e_0^T log(T) e_0 [k] from the coefficients [L, k] of conjugate gradients.

    Let T be the Lanczos matrix of P^-1/2 A P^-1/2 from the iteration with right-hand side z. T is tridiagonal, with
    T_jj = 1 / a_j + b_{j-1} / a_{j-1} and T_{j,j+1} = sqrt(b_j) / a_j. For z ~ N(0, P), N e_0^T log(T) e_0 estimates
    log|A| - log|P|. The result is NaN if the coefficients are not finite.

    Source: Ubaru, Chen & Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature", 2017.
    """
    xp = backend_of(steps).xp
    T = _tridiagonal(steps.mT, ratios.mT)
    usable = xp.all(xp.isfinite(T))  # some libraries raise an error if T has NaN
    eigenvalues, vectors = xp.linalg.eigh(xp.where(usable, T, xp.eye(T.shape[-1], **like(T))))
    smallest = float(xp.finfo(T.dtype).smallest_normal)
    logs = xp.sum(vectors[:, 0, :] ** 2 * xp.log(xp.clip(eigenvalues, smallest)), axis=-1)
    return xp.where(usable, logs, xp.full_like(logs, xp.nan))


def _tridiagonal(a: Array, b: Array) -> Array:
    """Return T [k, L, L] for coefficients [k, L]; rows of T without an iteration are rows of the identity."""
    xp = backend_of(a).xp
    L = a.shape[1]
    taken = a != 0.0
    one, zero = xp.ones_like(a), xp.zeros_like(a)
    inverse = one / xp.where(taken, a, one)
    both = taken[:, :-1] & taken[:, 1:]
    before = xp.where(both, b[:, :-1] * inverse[:, :-1], zero[:, 1:])
    off = xp.where(both, xp.sqrt(xp.abs(b[:, :-1])) * inverse[:, :-1], zero[:, 1:])
    main = inverse + xp.concat([zero[:, :1], before], axis=1)
    upper = xp.concat([off, zero[:, :1]], axis=1)[:, :, None] * xp.eye(L, k=1, **like(a))
    return main[:, :, None] * xp.eye(L, **like(a)) + upper + upper.mT
