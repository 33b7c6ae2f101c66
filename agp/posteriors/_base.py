"""What every parameterisation of q(u) offers, in three steps, each with its pullback."""

from abc import ABC, abstractmethod
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import inverse_factor, inverse_residual, report_repair

__all__ = ["InverseFactored", "Posterior"]

STALE = 0.1
"""The residual of an inverse factor above which predictions bring it up to date first."""


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

    def refreshed(self, Kuu: Array, /) -> Self:
        """The posterior whose auxiliary arrays fit Kuu [M, M], as far as predictions need it; usually itself."""
        return self

    @classmethod
    @abstractmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        """The starting q(u) for a prior covariance Kuu [M, M] and P outputs."""


class InverseFactored(Posterior):
    """A posterior whose auxiliary `inverse_factor` L [M, M] follows an inverse by matrix products alone.

    `agp.updates.InverseUpdate` keeps L L^T close to the inverse of `inverse_target(Kuu)` during training.
    """

    inverse_factor: Array

    @abstractmethod
    def inverse_target(self, Kuu: Array, /) -> Array:
        """The matrix [M, M] whose inverse L L^T approximates, for a prior covariance Kuu [M, M]."""

    def refreshed(self, Kuu: Array, /) -> Self:
        B = backend_of(Kuu)
        target = self.inverse_target(Kuu)
        residual = inverse_residual(target, self.inverse_factor)
        if not B.is_concrete(residual) or bool(residual <= STALE):
            return self
        found = inverse_factor(target, self.inverse_factor)
        report_repair(
            f"the inverse factor did not fit the parameters (residual {float(residual):.2g}); for predictions it was "
            f"brought up to date (residual {float(found.residual):.2g}). Train with InverseUpdate to keep it so."
        )
        return tree.with_leaves(self, {"inverse_factor": found.factor})
