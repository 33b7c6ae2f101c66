"""What every parameterisation of q(u) offers, in three steps, each with its pullback."""

from abc import ABC, abstractmethod
from typing import Any, Self

from agp.backend import Array, Pullback

__all__ = ["Posterior"]


class Posterior(ABC):
    """A Gaussian q(u) over the values u = f(Z) at M inducing inputs, for P outputs that share the prior covariance.

    `factorise` does what depends on Kuu alone, once; `project` carries q(u) to other inputs, block by block;
    `kl_divergence` measures q(u) against the prior. What `factorise` returns (the factor) is opaque to the caller, and
    so is its cotangent: it is passed from the pullbacks of the other two, added up, to the pullback of `factorise`.
    """

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs P."""

    @abstractmethod
    def factorise(self, Kuu: Array, /) -> tuple[Any, Pullback]:
        """The factor for a prior covariance Kuu [M, M], and ``factor_bar -> (posterior_bar, Kuu_bar)``."""

    @abstractmethod
    def project(self, factor: Any, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Marginal means and variances (mu, var), both [N, P], of f at N inputs.

        Parameters
        ----------
        factor
            From `factorise`.
        Kuf, kff
            Covariances [M, N] and prior variances [N].

        Returns
        -------
        marginals
            (mu, var); the variances are not negative.
        pullback
            ``(mu_bar, var_bar) -> (posterior_bar, factor_bar, Kuf_bar, kff_bar)``.
        """

    @abstractmethod
    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        """KL[q(u) || p(u)] summed over the outputs, 0-d (or an upper bound on it), and
        ``bar -> (posterior_bar, factor_bar)``.
        """

    @abstractmethod
    def project_mean(self, factor: Any, Kuf: Array, /) -> Array:
        """The marginal means [N, P] alone, in O(M N P), for Kuf [M, N]."""

    @abstractmethod
    def project_covariance(self, factor: Any, Kuf: Array, Kff: Array, /) -> Array:
        """The joint covariances [P, N, N] of f at N inputs, for Kuf [M, N] and Kff [N, N]."""

    @classmethod
    @abstractmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        """The starting q(u) for a prior covariance Kuu [M, M] and P outputs."""
