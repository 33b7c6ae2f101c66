"""What R-SVGP is with exact and with estimated traces: its leaves, and what does not depend on the traces."""

from abc import abstractmethod
from typing import Any, ClassVar

from agp.backend import Array, Pullback, backend_of
from agp.linalg import Gap, identity, lower_times, lower_transposed_times
from agp.posteriors._base import InverseFactored
from agp.posteriors._site_form import SiteForm

__all__ = ["RelaxedForm"]


class RelaxedForm(InverseFactored, SiteForm):
    """q(u) = N(Kuu mh, Kuu - Kuu PR Kuu), with PR one Newton-Schulz step from L L^T towards (Kuu + diag s)^-1."""

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
