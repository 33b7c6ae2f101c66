"""What every parameterisation of q(u) offers, in three steps, each with its pullback."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import Gap, InverseFactor, inverse_factor, inverse_residual
from agp.repairs import report

__all__ = ["FollowsInverse", "GroupPosterior", "InverseFactored", "InverseOwner", "Posterior"]

EXACT = 1e-8
"""The residual that is asked of factors which are to change no prediction."""
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

    @property
    def count(self) -> int | None:
        """The number of inducing variables M; None from a posterior that does not say."""
        return None

    _built_by: ClassVar[str] = "pass the class itself, posterior={name}, and from_data builds it"

    inverse_factors: ClassVar[tuple[str, ...]] = ()
    """The auxiliary leaves that follow inverses (`FollowsInverse`); usually none."""

    def inverted_matrix(self, Kuu: Array, /) -> Array:
        """The matrix [M, M] whose inverse the marginals need, for Kuu [M, M]; usually that itself."""
        return Kuu

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

    def path_weights(self, factor: Any, values: Array, noise: Array, /) -> Array:
        """Weights w [P, M, S] with which prior(.) + Kuf^T w are S samples of f as functions.

        Parameters
        ----------
        factor
            From `factorise`.
        values
            What samples of the prior are at the inducing variables [P, M, S]; their covariances are Kuu.
        noise
            Standard normal numbers [P, M, S].

        Raises
        ------
        TypeError
            If the posterior does not tell.
        """
        msg = (
            f"{type(self).__name__} does not tell how samples of functions follow from those of the prior; define "
            "path_weights, or use sample at given inputs."
        )
        raise TypeError(msg)

    def draws(self, rng: Any, /) -> dict[str, Any]:
        """The noise that an evaluation in training needs by name, by NumPy's generator or an `agp.random.Noise`.

        Usually none. Unlike the noise of a likelihood, it belongs to no rows.
        """
        return {}

    def drawn(self, draws: Mapping[str, Array], /) -> "Posterior":
        """The posterior that uses these draws of its own, arrays by name; itself where there are none."""
        return self

    def site_sums(self, factor: Any, Kuf: Array, alpha: Array, beta: Array, mu: Array, /) -> Any:
        """What its steps along natural gradients need of the data, added up over blocks of rows; usually None.

        For Kuf [M, N] and alpha, beta and mu [N, P] as in `agp.posteriors.SiteGradients`.
        """
        return None

    def project_to_sites(
        self, factor: Any, Kuf: Array, kff: Array, /
    ) -> tuple[tuple[Array, Array], Callable[[Array, Array], Any]]:
        """The marginals (mu, var) of `project` for the same arguments, and ``(alpha, beta) -> site_sums``."""
        mu, var = self.project(factor, Kuf, kff)[0]
        return (mu, var), lambda alpha, beta: self.site_sums(factor, Kuf, alpha, beta, mu)

    bounds_variance_gap: ClassVar[bool] = False
    """Whether it is known what inexact inverses can add to the variances (`variance_gap`)."""

    def variance_gap(self, Kuf: Array, /) -> Gap:
        """What inexact inverses can add to the variances at N inputs, summed, as a measure, for Kuf [M, N]."""
        msg = f"{type(self).__name__} does not tell what inexact inverses cost; use the residual."
        raise TypeError(msg)

    def settled(self, Kuu: Array, /) -> Self:
        """The posterior in the state that a step of its sites needs, for Kuu [M, M]; usually itself."""
        return self

    def refreshed(self, Kuu: Array, /) -> Self:
        """The posterior whose auxiliary arrays fit Kuu [M, M], as far as predictions need it; usually itself."""
        return self

    def begun(self, Kuu: Array, /, *, wide: bool = False) -> Self:
        """What training starts from, for Kuu [M, M], where the posterior is still the prior; usually itself.

        With `wide` the likelihood tells nothing of functions far from likely ones, so that q(u) must not be narrow.
        """
        return self

    grows_in_front: ClassVar[bool] = False
    """Whether new inducing variables come before those that are there (`grown`)."""

    def grown(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        """q(u) p(w | u) for new inducing variables w: the same q(f), and the same KL divergence.

        Parameters
        ----------
        Kuu
            The covariance [M', M'] of all; its first M rows are those of u, or the last if `grows_in_front`.
        begun
            New pseudo-observations with the variances that training begins with, where these are the parameters: from
            none at all steps by gradients take far longer. The mean of q(f) is still the same.

        Raises
        ------
        TypeError
            If no such q is among those that the posterior can be.
        """
        msg = f"{type(self).__name__} cannot take new inducing variables and leave q(f) as it is; use Whitened."
        raise TypeError(msg)

    @classmethod
    @abstractmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        """The q(u) of an untrained model, which is the prior, for its covariance Kuu [M, M] and P outputs."""


class GroupPosterior(Posterior):
    """A q(u) of inducing variables in consecutive groups, of so many each: `sizes`."""

    sizes: tuple[int, ...]


class FollowsInverse(ABC):
    """Auxiliary leaves L [M, M], lower triangular, that follow inverses by matrix products alone.

    `agp.updates.InverseUpdate` keeps L L^T close to the inverse of `inverse_target(K, name)` during training, for each
    leaf named in `inverse_factors`, in that order: a later target may depend on an earlier factor. K is the matrix of
    the model, usually its Kuu.
    """

    inverse_factors: ClassVar[tuple[str, ...]] = ("inverse_factor",)

    @abstractmethod
    def inverse_target(self, Kuu: Array, name: str = ..., /) -> Array:
        """The matrix whose inverse the named factor (by default the first) gives, for the model's matrix [M, M]."""

    def inverted_matrix(self, Kuu: Array, /) -> Array:
        """The first target, for Kuu [M, M]."""
        return self.inverse_target(Kuu)

    def inverted(self, Kuu: Array, name: str, /, **settings: Any) -> InverseFactor:
        """`agp.linalg.inverse_factor` of the named target, from the present factor on, with these settings."""
        return inverse_factor(self.inverse_target(Kuu, name), getattr(self, name), **settings)

    def refreshed(self, Kuu: Array, /) -> Self:
        """The same with factors that fit the model's matrix [M, M], as far as predictions need it."""
        current = self
        for name in self.inverse_factors:
            current = current._one_refreshed(Kuu, name)
        return current

    def inverted_anew(self, Kuu: Array, /) -> Self:
        """The same with factors found from nothing, for the model's matrix [M, M]; the present ones may be None."""
        current = self
        for name in self.inverse_factors:
            factor = inverse_factor(current.inverse_target(Kuu, name)).factor
            current = tree.with_leaves(current, {name: factor})
        return current

    def _inverted_from(self, Kuu: Array, name: str, start: Array) -> Array:
        """A factor of the named target, as exact as its precision allows, found from a first one [..., M, M]."""
        return tree.with_leaves(self, {name: start}).inverted(Kuu, name, tolerance=EXACT).factor

    def _one_refreshed(self, Kuu: Array, name: str) -> Self:
        B = backend_of(Kuu)
        Kuu, factor = B.stop_gradient(Kuu), getattr(self, name)
        residual = inverse_residual(self.inverse_target(Kuu, name), factor)

        def better() -> Array:
            found = self.inverted(Kuu, name)
            report(
                f"the {name.replace('_', ' ')} did not fit the parameters (residual {{0:.2g}}); for predictions it was "
                "brought up to date (residual {1:.2g}). Train with InverseUpdate to keep it so.",
                residual,
                found.residual,
            )
            return found.factor

        new = B.cond(residual <= STALE, lambda: factor, better, likely=True)
        return self if new is factor else tree.with_leaves(self, {name: new})


class InverseOwner(ABC):
    """What has a posterior that may follow inverses, and knows the matrix on which their targets depend.

    A process, or a model, to whose protocol this belongs.
    """

    posterior: Any

    @abstractmethod
    def _followed_matrix(self) -> Array:
        """The matrix that `FollowsInverse.inverse_target` takes."""


class InverseFactored(FollowsInverse, Posterior):
    """A posterior over u = f(Z) with such factors, for targets that depend on Kuu [M, M]."""
