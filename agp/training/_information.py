"""The average information as a matrix of low rank, and damped steps with it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

COARSE = 1.2
"""The ratio of two values of the damping that need not be distinguished."""
DAMPING = 1e-8
"""The least damping of a step, as a fraction of the largest eigenvalue of the information."""
TINY = 1e-100
"""The information, in nats, below which a direction has no curvature."""
MANY = 256
"""For more parameters than this, steps are computed by Cholesky factors instead of eigenvectors."""
DEPENDENT = 1e-8
"""Singular values of the mean function below this fraction of the largest are zero, or more if rounding is coarse."""


class Information(NamedTuple):
    """A positive semi-definite matrix W^T W + diag(d) [m, m]."""

    vectors: Any
    """W [R, m]."""
    diagonal: Vector
    """d [m], not negative."""

    def at(self, places: npt.NDArray[np.intp]) -> "Information":
        """Return the rows and columns at these places."""
        if len(places) == len(self.diagonal):
            return self
        return Information(self.vectors[:, places], self.diagonal[places])

    def times(self, x: Vector) -> Vector:
        """Return the product with a vector [m]."""
        return self.vectors.T @ (self.vectors @ x) + self.diagonal * x

    def dense(self) -> Any:
        """Return the matrix [m, m]."""
        matrix = self.vectors.T @ self.vectors
        matrix.reshape(-1)[:: len(matrix) + 1] += self.diagonal
        return matrix


class MeanStep(NamedTuple):
    """The optimal change of the c coefficients of the mean function, for a change of the m other coordinates."""

    first: Vector
    """The optimal change [c] if the others do not change."""
    V: Any
    """A matrix [c, k] of rank k."""
    projected: Any
    """A matrix [k, m]."""
    gain: float
    """The gain in nats if the others do not change."""

    def after(self, change: Vector) -> Vector:
        """Return the optimal change [c] for a change [m] of the other coordinates."""
        return self.first - self.V @ (self.projected @ change)


def profile(
    slope: Vector, whitened: Any, curvature: Vector, linear: npt.NDArray[np.bool_], roundoff: float
) -> tuple[Vector, Information, MeanStep]:
    """Return the gradient [m] and the information [m, m] after the mean function is optimised, and its optimum.

    Let B [R, m] be the columns of `Expansion.whitened` for the other coordinates, and H [R, c] those for the
    coefficients of the mean function, with a further row for each coefficient that has a prior. Let U be an orthonormal
    basis of the columns of H. The average information is B^T (I - U U^T) B / 2, to which the `curvature` [n] of the log
    prior is added. The curvature is not negative. `roundoff` is the relative precision of `whitened`.
    """
    own, mean = np.flatnonzero(~linear), np.flatnonzero(linear)
    B, H, places = whitened[:, own], whitened[:, mean], np.flatnonzero(curvature[mean])
    if len(places):
        priors = np.zeros((len(places), len(mean)))
        priors[np.arange(len(places)), places] = np.sqrt(curvature[mean[places]])
        B, H = np.concatenate([B, np.zeros((len(places), len(own)))]), np.concatenate([H, priors])
    U, V = _pseudoinverse(H, roundoff)
    projected, optimum = U.T @ B, slope[mean] @ V
    step = MeanStep(V @ optimum, V, projected, 0.5 * float(optimum @ optimum))
    information = Information(math.sqrt(0.5) * (B - U @ projected), curvature[own])
    return slope[own] - projected.T @ optimum, information, step


def _pseudoinverse(H: Any, roundoff: float) -> tuple[Any, Any]:
    """Return an orthonormal basis U [R, k] of the columns of H [R, c], and V [c, k] with H^+ = V U^T."""
    if H.shape[1] == 1 and (size := float(np.linalg.norm(H))) > 0.0:  # the usual case, a constant mean
        return H / size, np.full((1, 1), 1.0 / size)
    Q, T = np.linalg.qr(H)
    u, sizes, v = np.linalg.svd(T, full_matrices=False)
    kept = sizes > max(DEPENDENT, len(H) * roundoff) * np.max(sizes, initial=0.0)
    return Q @ u[:, kept], v[kept].T / sizes[kept]


def damped_step(g: Vector, A: Information, radius: float) -> Vector:
    """Return (A + lambda I)^-1 g with the smallest lambda for which no entry exceeds the radius."""
    size, at = _solver(g, A)
    least = DAMPING * max(size, TINY)
    step = at(least)
    if np.max(np.abs(step)) <= radius:
        return step
    low, high = least, max(float(np.linalg.norm(g)) / radius, 2.0 * least)
    step = at(high)
    while high > COARSE * low:
        middle = math.sqrt(low * high)
        found = at(middle)
        if np.max(np.abs(found)) > radius:
            low = middle
        else:
            high, step = middle, found
    return step


Solver = tuple[float, Callable[[float], Vector]]
"""An upper bound on the eigenvalues of A, and the function lambda -> (A + lambda I)^-1 g."""


def _solver(g: Vector, A: Information) -> Solver:
    if len(g) <= MANY:
        return _by_eigenvectors(g, A)
    return _by_vectors(g, A) if A.vectors.shape[0] < len(g) else _by_cholesky(g, A)


def _by_eigenvectors(g: Vector, A: Information) -> Solver:
    values, vectors = np.linalg.eigh(A.dense())
    values, g = np.maximum(values, 0.0), vectors.T @ g
    return float(values[-1]), lambda damping: vectors @ (g / (values + damping))


def _by_cholesky(g: Vector, A: Information) -> Solver:
    from scipy.linalg import cho_factor, cho_solve

    dense, identity = A.dense(), np.eye(len(g))
    size = float(np.max(np.sum(np.abs(dense), axis=0)))
    return size, lambda damping: cho_solve(cho_factor(dense + damping * identity), g)


def _by_vectors(g: Vector, A: Information) -> Solver:
    # with E = diag(d) + lambda I and V = W E^-1/2,
    # (W^T W + E)^-1 = E^-1/2 (I - V^T (I + V V^T)^-1 V) E^-1/2
    from scipy.linalg import cho_factor, cho_solve

    W, d = A
    identity, absolute = np.eye(W.shape[0]), np.abs(W)
    size = float(np.max(np.sum(absolute, axis=1) @ absolute + d))

    def at(damping: float) -> Vector:
        root = np.sqrt(d + damping)
        V, u = W / root, g / root
        return (u - cho_solve(cho_factor(identity + V @ V.T), V @ u) @ V) / root

    return size, at
