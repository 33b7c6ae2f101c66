"""What L-SVGP and R-SVGP share: q(u) is the posterior of pseudo-observations of u with noise of covariance S."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self

from agp import tree
from agp.backend import Array, backend_of, like
from agp.linalg import diagonal
from agp.posteriors._base import Posterior
from agp.posteriors._growth import extended
from agp.posteriors._site_noise import DiagonalNoise, SiteNoise

__all__ = ["GrowingSiteForm", "Preconditioned", "SiteForm"]

Preconditioned = bool | Literal["root"]
"""Which weights mh [M, P] of Kuu the mean m stands for."""

PRIOR_SITE = 100.0
"""s of an untrained model, relative to the largest row sum of |Kuu|, which no eigenvalue exceeds.

For s = c lambda_max, k_u(x)^T (Kuu + s I)^-1 k_u(x) <= k(x, x) / (1 + c) at any x: variances are those of the prior but
for 1 %.
"""

FORGOTTEN_SITE = 1e8
"""s of new variables that are to change nothing, relative to the same."""

WIDE = 0.1
"""s where training begins with a likelihood that is flat away from likely functions, relative to the mean diagonal of
Kuu: marginals as narrow as usual would not see all classes."""


class SiteForm(Posterior):
    """q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu), Kt = Kuu + S, with mh = Kt^-1 m (preconditioned) or mh = m."""

    mean: Array
    preconditioned: Any

    mean_weights: ClassVar[tuple[Preconditioned, ...]] = (True, False)
    """What `preconditioned` may be."""
    noise_kind: ClassVar[type[SiteNoise]] = DiagonalNoise
    """What S is, and which leaf holds it."""

    def __post_init__(self) -> None:
        self._check_preconditioned(self.preconditioned)

    @property
    def site_noise(self) -> SiteNoise:
        """S."""
        return self.noise_kind(getattr(self, self.noise_kind.name))

    @property
    def outputs(self) -> int:
        return self.mean.shape[1]

    @property
    def count(self) -> int:
        return self.mean.shape[0]

    def _bars(self, *, mean: Array | None = None, noise: Array | None = None) -> Self:
        """The cotangent of the posterior, from those of m and of the leaf of S."""
        return tree.cotangent(self, mean=mean, **{self.site_noise.name: noise})

    def begun(self, Kuu: Array, /, *, wide: bool = False) -> Self:
        xp = backend_of(Kuu).xp
        noise = self.site_noise
        if bool(xp.any(self.mean != 0.0)) or bool(xp.any(noise.variances < 0.5 * _prior_site(Kuu))):
            return self
        share = WIDE if wide else noise.start
        variances = share * xp.mean(diagonal(Kuu)) * xp.ones_like(noise.variances)
        return tree.with_leaves(self, {noise.name: noise.independent(variances).leaf}).inverted_anew(Kuu)

    def inverted_anew(self, _Kuu: Array, /) -> Self:
        """The same with inverse factors found from nothing, if it has any."""
        return self

    @classmethod
    def _prior_leaves(cls, Kuu: Array, outputs: int, preconditioned: Preconditioned) -> dict[str, Any]:
        """The fields of the prior, with covariance Kuu [M, M], for P outputs.

        The mean is measured in the unit of f, or, where it is that of weights of Kuu, in its inverse; L^T m has that of
        weights where m has none.
        """
        cls._check_preconditioned(preconditioned)
        xp = backend_of(Kuu).xp
        M, usual, noise = Kuu.shape[0], xp.mean(diagonal(Kuu)), cls.noise_kind
        return {
            "mean": xp.zeros((M, outputs), **like(Kuu)),
            noise.name: noise.independent(_prior_site(Kuu) * xp.ones((M,), **like(Kuu))).leaf,
            "mean_unit": usual ** (0.0 if preconditioned == "root" else 0.5 if preconditioned else -0.5),
            f"{noise.name}_unit": noise.unit(usual),
            "preconditioned": preconditioned,
        }

    @classmethod
    def _check_preconditioned(cls, value: Any) -> None:
        if value not in cls.mean_weights:
            known = " or ".join(map(repr, cls.mean_weights))
            msg = f"preconditioned is {value!r}, but must be {known} for {cls.__name__}."
            raise ValueError(msg)


def _prior_site(Kuu: Array) -> Array:
    xp = backend_of(Kuu).xp
    return PRIOR_SITE * xp.max(xp.sum(xp.abs(Kuu), axis=-1))


class GrowingSiteForm(SiteForm):
    """Such a q(u) that can take new inducing variables."""

    def grown(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        # pseudo-observations of w with the mean that q(u) gives them: mh = [mh; 0] at any variance, and for large ones
        # nothing is learned from them
        xp, noise, M = backend_of(Kuu).xp, self.site_noise, self.mean.shape[0]
        new = Kuu.shape[0] - M
        if begun:
            variances = noise.start * xp.mean(diagonal(Kuu)) * xp.ones((new,), **like(Kuu))
        else:
            variances = FORGOTTEN_SITE / PRIOR_SITE * _prior_site(Kuu) * xp.ones((new,), **like(Kuu))
        if self.preconditioned is True:
            weights = self._weights(self.factorise(Kuu[:M, :M])[0])[0]
            mean = xp.concat([self.mean, Kuu[M:, :M] @ weights], axis=0)
        else:
            mean = extended(self.mean, new)
        leaves = {"mean": mean, noise.name: noise.extended(variances).leaf}
        return tree.with_leaves(self, leaves)._refactored(Kuu, new)

    def _refactored(self, _Kuu: Array, _new: int) -> Self:
        """The same with inverse factors for so many new variables, if it has any."""
        return self

    @abstractmethod
    def _weights(self, factor: Any) -> tuple[Array, Any]:
        """mh [M, P], and its pullback."""
