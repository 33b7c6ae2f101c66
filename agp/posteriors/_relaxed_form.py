"""What R-SVGP is with exact and with estimated traces: its leaves, and what does not depend on the traces."""

from abc import abstractmethod
from typing import Any, ClassVar

from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import Gap, diagonal, identity, lower_times, lower_transposed_times
from agp.posteriors._base import InverseFactored, PreconditionedMean

__all__ = ["RelaxedForm", "initial_site"]

INITIAL_SITE = 1e-4
"""The starting value of s, relative to the mean diagonal of Kuu."""


class RelaxedForm(PreconditionedMean, InverseFactored):
    """q(u) = N(Kuu mh, Kuu - Kuu PR Kuu), with PR one Newton-Schulz step from L L^T towards (Kuu + diag s)^-1."""

    site: Array
    inverse_factor: Array

    bounds_variance_gap: ClassVar[bool] = True

    def inverse_target(self, Kuu: Array, name: str = "inverse_factor", /) -> Array:
        """The matrix [M, M] whose inverse L L^T approximates: Kuu + diag(s)."""
        return Kuu + self.site * identity(Kuu)

    def variance_gap(self, Kuf: Array, /) -> Gap:
        # with T = L L^T, the variance of datum n exceeds the exact one by at most |(I - Kt T) k_un|^2 / min_i s_i
        xp = backend_of(Kuf).xp
        smallest = xp.min(self.site)

        def measured(A: Array, L: Array, _gram: Array) -> Array:
            missing = Kuf - A @ lower_times(L, lower_transposed_times(L, Kuf))
            return xp.sum(missing * missing) / smallest

        return measured

    @abstractmethod
    def _weights(self, factor: Any) -> tuple[Array, Pullback]:
        """Mh [M, P], and ``mh_bar -> (mean_bar, the cotangent of the factor's second part)``."""

    def project_mean(self, factor: Any, Kuf: Array, /) -> Array:
        return Kuf.mT @ self._weights(factor)[0]


def initial_site(Kuu: Array) -> Array:
    """The starting values of s [M]: the same small share of the mean diagonal of Kuu [M, M]."""
    xp = backend_of(Kuu).xp
    return INITIAL_SITE * xp.mean(diagonal(Kuu)) * xp.ones((Kuu.shape[0],), **like(Kuu))
