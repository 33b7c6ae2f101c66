"""What R-SVGP is with exact and with estimated traces, and with either S: what does not depend on these."""

from abc import abstractmethod
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import block_diagonal, lower_times, lower_transposed_times
from agp.posteriors._base import InverseFactored
from agp.posteriors._site_form import GrowingSiteForm, Preconditioned

__all__ = ["RelaxedForm"]


class RelaxedForm(InverseFactored, GrowingSiteForm):
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

    def _refactored(self, Kuu: Array, new: int) -> Self:
        # diag(L, S^-1/2) is the factor but for what the new variances hide, and the start of its refinement
        M = self.mean.shape[0] - new
        deviations = self.site_noise.variances[M:] ** 0.5
        corner = backend_of(Kuu).xp.eye(new, **like(Kuu)) / deviations[:, None]
        start = block_diagonal([self.inverse_factor, corner], [M, new])
        return tree.with_leaves(self, {"inverse_factor": self._inverted_from(Kuu, "inverse_factor", start)})

    @abstractmethod
    def _preconditioned_weights(self, factor: Any) -> tuple[Array, Pullback]:
        """The same for mh = PR m."""

    def project_mean(self, factor: Any, Kuf: Array, /) -> Array:
        return Kuf.mT @ self._weights(factor)[0]
