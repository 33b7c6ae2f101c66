"""The base classes of q(u): three steps, each with its pullback."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp._deprecated import former_methods
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import Gap, InverseFactor, inverse_factor, inverse_residual
from agp.repairs import report

EXACT_TOLERANCE = 1e-8
"""The residual of inverse factors that must not change predictions."""
STALE_TOLERANCE = 0.1
"""Inverse factors with a larger residual are updated before predictions."""


@former_methods(
    drawn="with_draws",
    grown="add_inducing",
    refreshed="recompute_factors",
    settled="prepare_site_step",
    inverted_matrix="matrix_to_invert",
)
class Posterior(ABC):
    """A Gaussian q(u) over the values u = f(Z) at M inducing inputs, for P outputs that share the prior covariance.

    `factorise` computes everything that depends on Kuu alone; `project` gives marginals at other inputs, block by
    block; `kl_divergence` compares q(u) with the prior. The factor that `factorise` returns is opaque to callers, and
    so is its cotangent: the sum of those from the other two pullbacks goes to the pullback of `factorise`.
    """

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs P."""

    @property
    def count(self) -> int | None:
        """The number of inducing variables M; None if unknown."""
        return None

    _built_by: ClassVar[str] = "pass the class itself, posterior={name}, and from_data builds it"

    inverse_factors: ClassVar[tuple[str, ...]] = ()
    """The auxiliary leaves that approximate inverses (`FollowsInverse`); usually none."""

    def matrix_to_invert(self, Kuu: Array, /) -> Array:
        """The matrix [M, M] whose inverse the marginals need, for Kuu [M, M]; usually Kuu itself."""
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
        """Weights w [P, M, S] such that prior(.) + Kuf^T w are S samples of f as functions.

        Parameters
        ----------
        factor
            From `factorise`.
        values
            Samples of the prior at the inducing variables [P, M, S], with covariance Kuu.
        noise
            Standard normal numbers [P, M, S].

        Raises
        ------
        TypeError
            If the posterior does not define them.
        """
        msg = (
            f"{type(self).__name__} does not define how samples of functions follow from samples of the prior; define "
            "path_weights, or use sample at given inputs."
        )
        raise TypeError(msg)

    def draws(self, rng: Any, /) -> dict[str, Any]:
        """The noise, by name, of an evaluation in training, from a NumPy generator or `agp.random.Noise`; usually none.

        Unlike the noise of a likelihood, it does not belong to rows.
        """
        return {}

    def with_draws(self, draws: Mapping[str, Array], /) -> "Posterior":
        """The posterior that uses these draws, arrays by name; itself if there are none."""
        return self

    def site_sums(self, factor: Any, Kuf: Array, alpha: Array, beta: Array, mu: Array, /) -> Any:
        """The sums over rows that natural-gradient steps need, added up over blocks; usually None.

        For Kuf [M, N] and alpha, beta and mu [N, P] as in `agp.posteriors.SiteGradients`.
        """
        return None

    def project_to_sites(
        self, factor: Any, Kuf: Array, kff: Array, /
    ) -> tuple[tuple[Array, Array], Callable[[Array, Array], Any]]:
        """The marginals (mu, var) as from `project`, and ``(alpha, beta) -> site_sums``."""
        mu, var = self.project(factor, Kuf, kff)[0]
        return (mu, var), lambda alpha, beta: self.site_sums(factor, Kuf, alpha, beta, mu)

    bounds_variance_gap: ClassVar[bool] = False
    """Whether `variance_gap` bounds the effect of inexact inverses on the variances."""

    def variance_gap(self, Kuf: Array, /) -> Gap:
        """A bound on the sum of what inexact inverses add to the variances at N inputs, as a `Gap`, for Kuf [M, N]."""
        msg = f"{type(self).__name__} does not bound the effect of inexact inverses; use the residual."
        raise TypeError(msg)

    def prepare_site_step(self, Kuu: Array, /) -> Self:
        """The posterior prepared for a step of its sites, for Kuu [M, M]; usually itself."""
        return self

    def recompute_factors(self, Kuu: Array, /) -> Self:
        """The posterior with auxiliary arrays that fit Kuu [M, M] for predictions; usually itself."""
        return self

    def begun(self, Kuu: Array, /, *, wide: bool = False) -> Self:
        """The start of training, for Kuu [M, M], if the posterior is still the prior; usually itself.

        With `wide` the likelihood has no slope far from likely functions, so that q(u) must not be narrow.
        """
        return self

    grows_in_front: ClassVar[bool] = False
    """Whether `add_inducing` puts new inducing variables before the existing ones."""

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        """q(u) p(w | u) for new inducing variables w: the same q(f), and the same KL divergence.

        Parameters
        ----------
        Kuu
            The covariance [M', M'] of all; its first M rows are those of u, or the last if `grows_in_front`.
        begun
            Start new pseudo-observations, if those are the parameters, at the variances of the start of training, which
            converges much faster. The mean of q(f) is still the same.

        Raises
        ------
        TypeError
            If the parameterisation cannot represent this q.
        """
        msg = f"{type(self).__name__} cannot take new inducing variables and keep q(f); use Whitened."
        raise TypeError(msg)

    @classmethod
    @abstractmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        """The q(u) of an untrained model, the prior with covariance Kuu [M, M], for P outputs."""


class MeanPosterior(Posterior):
    """A q(u) with a leaf `mean` [M, P]."""

    mean: Array

    @property
    def outputs(self) -> int:
        return self.mean.shape[1]

    @property
    def count(self) -> int:
        return self.mean.shape[0]


class SitePosterior(Posterior):
    """A q(u) that is the prior times tied sites, `shift` [M, P] and `precision` [P, M, M]; zeros are the prior."""

    shift: Array
    precision: Array

    @property
    def outputs(self) -> int:
        return self.shift.shape[1]

    @property
    def count(self) -> int:
        return self.shift.shape[0]

    @staticmethod
    def _no_sites(Kuu: Array, outputs: int) -> tuple[Array, Array]:
        """The shift and the precision of the prior."""
        xp, M = backend_of(Kuu).xp, Kuu.shape[0]
        return xp.zeros((M, outputs), **like(Kuu)), xp.zeros((outputs, M, M), **like(Kuu))


class GroupPosterior(Posterior):
    """A q(u) of inducing variables in consecutive groups of the given `sizes`."""

    sizes: tuple[int, ...]


@former_methods(
    inverted="invert",
    inverted_anew="invert_from_scratch",
    inverted_matrix="matrix_to_invert",
    refreshed="recompute_factors",
)
class FollowsInverse(ABC):
    """Auxiliary leaves L [M, M], lower triangular, with L L^T close to inverses, updated by matrix products alone.

    `agp.updates.InverseUpdate` keeps L L^T close to the inverse of `inverse_target(K, name)` during training, for each
    leaf named in `inverse_factors` in this order: a later target may depend on an earlier factor. K is the matrix of
    the model, usually Kuu.
    """

    inverse_factors: ClassVar[tuple[str, ...]] = ("inverse_factor",)

    @abstractmethod
    def inverse_target(self, Kuu: Array, name: str = ..., /) -> Array:
        """The matrix inverted by the named factor (by default the first), for the model's matrix [M, M]."""

    def matrix_to_invert(self, Kuu: Array, /) -> Array:
        """The first target, for Kuu [M, M]."""
        return self.inverse_target(Kuu)

    def invert(self, Kuu: Array, name: str, /, **settings: Any) -> InverseFactor:
        """`agp.linalg.inverse_factor` of the named target, started from the present factor, with these settings."""
        return inverse_factor(self.inverse_target(Kuu, name), getattr(self, name), **settings)

    def recompute_factors(self, Kuu: Array, /) -> Self:
        """The same with factors that fit the model's matrix [M, M] for predictions."""
        current = self
        for name in self.inverse_factors:
            current = current._recompute_factor(Kuu, name)
        return current

    def invert_from_scratch(self, Kuu: Array, /) -> Self:
        """The same with factors computed from scratch for the model's matrix [M, M]; present ones may be None."""
        current = self
        for name in self.inverse_factors:
            factor = inverse_factor(current.inverse_target(Kuu, name)).factor
            current = tree.with_leaves(current, {name: factor})
        return current

    def _invert_from(self, Kuu: Array, name: str, start: Array) -> Array:
        """A factor of the named target, exact to its precision, started from another [..., M, M]."""
        return tree.with_leaves(self, {name: start}).invert(Kuu, name, tolerance=EXACT_TOLERANCE).factor

    def _recompute_factor(self, Kuu: Array, name: str) -> Self:
        B = backend_of(Kuu)
        Kuu, factor = B.stop_gradient(Kuu), getattr(self, name)
        residual = inverse_residual(self.inverse_target(Kuu, name), factor)

        def better() -> Array:
            found = self.invert(Kuu, name)
            report(
                f"the {name.replace('_', ' ')} did not fit the parameters (residual {{0:.2g}}) and was updated for "
                "predictions (residual {1:.2g}). Train with InverseUpdate to keep it close.",
                residual,
                found.residual,
            )
            return found.factor

        new = B.cond(residual <= STALE_TOLERANCE, lambda: factor, better, likely=True)
        return self if new is factor else tree.with_leaves(self, {name: new})


class InverseOwner(ABC):
    """A process or model with a posterior that may follow inverses, which knows the matrix of their targets."""

    posterior: Any

    @abstractmethod
    def _matrix_to_invert(self) -> Array:
        """The argument of `FollowsInverse.inverse_target`."""


class InverseFactored(FollowsInverse, Posterior):
    """A posterior over u = f(Z) with inverse factors for targets that depend on Kuu [M, M]."""
