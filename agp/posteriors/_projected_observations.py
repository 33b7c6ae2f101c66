"""The inverse of the covariance G = S^T (K + sigma^2 I) S of the projected observations of a computation-aware GP.

The inverse is computed from a Cholesky factor of G, or by matrix products alone. The second form keeps an auxiliary
array L with T = L L^T close to G^-1. It replaces G^-1 by the lower bound P = 2 T - T G T, and log|G| by the upper bound
tr(G T) - i - log|T| for i actions. If T = G^-1, both bounds are exact, and values and gradients equal those of the
Cholesky form.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from agp import tree
from agp.backend import Array, backend_of
from agp.linalg import add_diagonal, cholesky, congruence, diagonal, gram, identity, symmetric_from_lower
from agp.posteriors._base import FollowsInverse


class ProjectedInverse(NamedTuple):
    """Approximations of G^-1 [i, i] and log|G|. If the approximations are exact, T = P = G^-1."""

    T: Array
    """The approximation of G^-1 in derivatives."""
    P: Array
    """The approximation of G^-1 in values and predictions."""
    log_det: Array
    """The approximation of log|G|, a scalar."""


class Projected(ABC):
    """A method that inverts the covariance G of projected observations."""

    inverse_factors: ClassVar[tuple[str, ...]] = ()
    """The names of the auxiliary leaves that approximate inverses; see `FollowsInverse`."""

    @abstractmethod
    def invert_covariance(self, G: Array, /) -> ProjectedInverse:
        """Return G^-1 and log|G|, or approximations of both, for a symmetric positive definite G [i, i]."""


@tree.model
class ProjectedCholesky(Projected):
    """Inversion by a Cholesky factorisation in O(i^3) operations, for the exact computation-aware posterior."""

    def invert_covariance(self, G: Array, /) -> ProjectedInverse:
        B = backend_of(G)
        L = cholesky(G)
        inverse = B.inverse_from_cholesky(L)
        return ProjectedInverse(inverse, inverse, 2.0 * B.xp.sum(B.xp.log(diagonal(L))))


@tree.model
class ProjectedInverseFree(FollowsInverse, Projected):
    """Inversion by matrix products alone.

    For every L, the bound is a lower bound, and variances are at least as large as the exact variances.
    `agp.updates.InverseUpdate` keeps L L^T close to G^-1.
    """

    inverse_factor: Array = tree.auxiliary()
    """L [i, i], lower triangular with a positive diagonal, such that L L^T ~ G^-1."""

    def inverse_target(self, Kuu: Array, name: str = "inverse_factor", /) -> Array:
        """Return G [i, i], because L L^T approximates its inverse."""
        return Kuu

    def invert_covariance(self, G: Array, /) -> ProjectedInverse:
        # P = L (2 I - L^T G L) L^T = L (I - E) L^T, E = L^T G L - I
        xp = backend_of(G).xp
        L = xp.astype(self.inverse_factor, G.dtype)
        E = add_diagonal(symmetric_from_lower(gram(G, L)), -1.0)
        T, change = congruence(L, identity(G)), congruence(L, E)
        log_det = xp.sum(diagonal(E)) - 2.0 * xp.sum(xp.log(diagonal(L)))
        return ProjectedInverse(T, T - change, log_det)
