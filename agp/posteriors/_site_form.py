"""What L-SVGP and R-SVGP share: q(u) is the posterior of pseudo-observations of u with noise variances s."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, backend_of, like
from agp.linalg import diagonal
from agp.posteriors._base import Posterior

__all__ = ["SiteForm", "prior_leaves"]

PRIOR_SITE = 100.0
"""s of an untrained model, relative to the largest row sum of |Kuu|, which no eigenvalue exceeds.

For s = c lambda_max, k_u(x)^T (Kuu + s I)^-1 k_u(x) <= k(x, x) / (1 + c) at any x: variances are those of the prior but
for 1 %.
"""
TRAINING_SITE = 1e-4
"""s where training begins, relative to the mean diagonal of Kuu: from the prior, steps by gradients take far longer."""


class SiteForm(Posterior):
    """q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu), Kt = Kuu + diag(s), with mh = Kt^-1 m (preconditioned) or mh = m."""

    mean: Array
    site: Array
    preconditioned: bool

    @property
    def outputs(self) -> int:
        return self.mean.shape[1]

    @property
    def count(self) -> int:
        return self.mean.shape[0]

    def begun(self, Kuu: Array, /) -> Self:
        xp = backend_of(Kuu).xp
        if bool(xp.any(self.mean != 0.0)) or bool(xp.any(self.site < 0.5 * _prior_site(Kuu))):
            return self
        site = TRAINING_SITE * xp.mean(diagonal(Kuu)) * xp.ones_like(self.site)
        return tree.with_leaves(self, {"site": site}).inverted_anew(Kuu)

    def inverted_anew(self, _Kuu: Array, /) -> Self:
        """The same with inverse factors found from nothing, if it has any."""
        return self


def prior_leaves(Kuu: Array, outputs: int, *, preconditioned: bool) -> dict[str, Any]:
    """The fields of a `SiteForm` that is the prior, with covariance Kuu [M, M], for P outputs.

    The mean is measured in the unit of f, or, where it is that of weights of Kuu, in its inverse.
    """
    xp = backend_of(Kuu).xp
    M, usual = Kuu.shape[0], xp.mean(diagonal(Kuu))
    return {
        "mean": xp.zeros((M, outputs), **like(Kuu)),
        "site": _prior_site(Kuu) * xp.ones((M,), **like(Kuu)),
        "mean_unit": usual**0.5 if preconditioned else usual**-0.5,
        "site_unit": usual,
        "preconditioned": preconditioned,
    }


def _prior_site(Kuu: Array) -> Array:
    xp = backend_of(Kuu).xp
    return PRIOR_SITE * xp.max(xp.sum(xp.abs(Kuu), axis=-1))
