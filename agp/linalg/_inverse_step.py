"""Parts of a step in the inversion by matrix products: merit, residual, direction, eigenvalue and rounding estimates.

A is symmetric positive definite, L is lower triangular with a positive diagonal, and B = L^T A L; see
`agp.linalg._inverse`.
"""

import math
from collections.abc import Callable

from agp.backend import Array, backend_of
from agp.linalg._diagonal import identity
from agp.linalg._triangular import gram, lower_times_lower

COLD_START = 100.0
"""A given factor is discarded if the largest eigenvalue of B exceeds this value."""


def starting_factor(A: Array) -> Array:
    """Return L = diag(r_i^-1/2) [M, M] with r_i = sum_j |A_ij|, for which lambda_max(L^T A L) <= 1 (Gershgorin)."""
    xp = backend_of(A).xp
    return identity(A) / xp.sqrt(xp.sum(xp.abs(A), axis=-1))


def natural_step(
    L: Array, B: Array, gamma: Array | float, *, product: Callable[[Array, Array], Array] = lower_times_lower
) -> Array:
    """Return L (I - gamma Phi(B - I)) [M, M] from the lower triangle of B = L^T A L; `product` multiplies triangles."""
    own = backend_of(B)
    Y = own.add_diagonal(B, -0.5 * (own.diagonal(B) + 1.0))
    return L - gamma * product(L, Y)


def largest_eigenvalue(B: Array, vector: Array, *, iterations: int = 4) -> tuple[Array, Array]:
    """Estimate the largest eigenvalue, times 1.1, from the lower triangle of B [M, M]; also return the last iterate."""
    own = backend_of(B)
    xp, matrix, before = own.xp, own.symmetric_from_lower(B), vector
    # after division by max |B_ij|, the largest eigenvalue lies between 1 and M, so iterates need no normalisation
    least = float(xp.finfo(B.dtype).smallest_normal)
    size = xp.clip(xp.max(xp.abs(matrix)), min=least)
    matrix = matrix / size
    for _ in range(iterations):
        before, vector = vector, matrix @ vector
    norm = own.norm(vector)  # if B maps an iterate to zeros, later iterates stay zero
    return 1.1 * size * norm / xp.clip(own.norm(before), min=least), vector / xp.clip(norm, min=least)


def inverse_residual(A: Array, L: Array) -> Array:
    """Return the residual |L^T A L - I|_F / sqrt(M) (0-d) of a lower triangular L with L L^T ~ A^-1."""
    return residual_of(gram(A, L))


def residual_of(B: Array) -> Array:
    """Return the residual |B - I|_F / sqrt(M) (0-d) from the lower triangle of B = L^T A L [M, M]."""
    # |G|_F^2 = 2 sum_{i>j} G_ij^2 + sum_i G_ii^2 from the lower triangle alone
    own = backend_of(B)
    G = own.add_diagonal(B, -1.0)
    entries = own.diagonal(G)
    return own.xp.sqrt((2.0 * own.inner(G, G) - own.inner(entries, entries)) / B.shape[-1])


def merit_of(L: Array, B: Array) -> Array:
    """Return the merit l(L) (0-d) up to an additive constant, or infinity if diag L is not positive."""
    own = backend_of(B)
    xp, entries = own.xp, own.diagonal(L)
    positive = entries > 0.0
    logs = xp.log(xp.where(positive, entries, xp.ones_like(entries)))
    merit = 0.5 * xp.sum(own.diagonal(B)) - xp.sum(logs)
    return xp.where(xp.all(positive), merit, xp.full_like(merit, float("inf")))


ROUNDINGS, SUMS = 0.4, 0.2
"""Constants of `rounding_error`.

For kernel matrices with M = 60 to 1024, the true error was 0.5 to 1.4 times the estimate, in all precisions."""


def rounding_error(squares: Array, d: Array, unit: float, sum_unit: float) -> Array:
    """Estimate the part of the residual (0-d) that is due to the rounding of B = L^T A L.

    An error dA of A changes B by L^T dA L. If the entries of A have independent relative errors of about 0.4 u (root
    mean square), |dB|_F / sqrt(M) ~ 0.4 u (d^T (A * A) d / M)^1/2 with d = diag(L L^T). Sums with unit roundoff v add
    0.2 v (d^T (A * A) d)^1/2. If L L^T = A^-1, the estimate is at most (0.4 u + 0.2 v sqrt(M)) cond(A).

    Parameters
    ----------
    squares
        The squares A * A [M, M].
    d
        The diagonal of L L^T [M].
    unit, sum_unit
        The unit roundoff u of A and of the factors of products, and v of the sums of products: half the distance from 1
        to the next number.
    """
    B, factor = backend_of(d), ROUNDINGS * unit / math.sqrt(d.shape[0]) + SUMS * sum_unit
    product = squares @ B.xp.astype(d, squares.dtype, copy=False)
    return factor * B.xp.sqrt(B.inner(d, B.xp.astype(product, d.dtype, copy=False)))


def starting_vector(A: Array) -> Array:
    """Return a fixed, asymmetric vector [M] from which power iterations start."""
    B = backend_of(A)
    return 1.0 + 0.5 * B.xp.cos(B.xp.arange(A.shape[-1], **B.like(A)))
