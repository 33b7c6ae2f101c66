"""What R-SVGP is with exact and with estimated traces, and with either S: what does not depend on these."""

from abc import abstractmethod
from typing import Any, ClassVar

from agp.backend import Array, Pullback
from agp.linalg import lower_times, lower_transposed_times
from agp.posteriors._base import InverseFactored
from agp.posteriors._site_form import Preconditioned, SiteForm

__all__ = ["RelaxedForm"]


class RelaxedForm(InverseFactored, SiteForm):
    """q(u) = N(Kuu mh, Kuu - Kuu PR Kuu), with PR one Newton-Schulz step from L L^T towards (Kuu + S)^-1."""

    inverse_factor: Array

    mean_weights: ClassVar[tuple[Preconditioned, ...]] = (True, False, "root")

    def inverse_target(self, Kuu: Array, name: str = "inverse_factor", /) -> Array:
        """The matrix [M, M] whose inverse L L^T approximates: Kuu + S."""
        return self.site_noise.added_to(Kuu)

    def _weights(self, factor: Any) -> tuple[Array, Pullback]:
        """Mh [M, P], and ``mh_bar -> (mean_bar, the cotangent of the factor's second part)``."""
        L, m = self.inverse_factor, self.mean
        if self.preconditioned == "root":
            return lower_transposed_times(L, m), lambda mh_bar: (lower_times(L, mh_bar), None)
        if not self.preconditioned:
            return m, lambda mh_bar: (mh_bar, None)
        return self._preconditioned_weights(factor)

    @abstractmethod
    def _preconditioned_weights(self, factor: Any) -> tuple[Array, Pullback]:
        """The same for mh = PR m."""

    def project_mean(self, factor: Any, Kuf: Array, /) -> Array:
        return Kuf.mT @ self._weights(factor)[0]
