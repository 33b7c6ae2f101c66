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
"""The residual below which inverse factors have no effect on predictions."""
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
    block; `kl_divergence` compares q(u) with the prior. Callers treat the factor that `factorise` returns, and its
    cotangent, as opaque: they add the factor's cotangents from the other two pullbacks and pass the sum to the pullback
    of `factorise`.
    """

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs P."""

    @property
    def count(self) -> int | None:
        """The number of inducing variables M, or None if it is unknown."""
        return None

    _built_by: ClassVar[str] = "pass the class itself with posterior={name}, and from_data will build it"

    inverse_factors: ClassVar[tuple[str, ...]] = ()
    """The names of the auxiliary leaves that approximate inverses (`FollowsInverse`); empty by default."""

    def matrix_to_invert(self, Kuu: Array, /) -> Array:
        """Return the matrix [M, M] whose inverse the marginals need, given Kuu [M, M]; by default, Kuu itself."""
        return Kuu

    @abstractmethod
    def factorise(self, Kuu: Array, /) -> tuple[Any, Pullback]:
        """Return the factor for a prior covariance Kuu [M, M], and ``factor_bar -> (posterior_bar, Kuu_bar)``."""

    @abstractmethod
    def project(self, factor: Any, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Return the marginal means and variances (mu, var) of f at N inputs, both [N, P].

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
        """Return KL[q(u) || p(u)] summed over the outputs (a scalar), or an upper bound on it, and
        ``bar -> (posterior_bar, factor_bar)``.
        """

    @abstractmethod
    def project_mean(self, factor: Any, Kuf: Array, /) -> Array:
        """Return only the marginal means [N, P], in O(M N P), given Kuf [M, N]."""

    @abstractmethod
    def project_covariance(self, factor: Any, Kuf: Array, Kff: Array, /) -> Array:
        """Return the joint covariances [P, N, N] of f at N inputs, given Kuf [M, N] and Kff [N, N]."""

    def path_weights(self, factor: Any, values: Array, noise: Array, /) -> Array:
        """Return weights w [P, M, S] such that the functions prior(.) + Kuf^T w are S samples of f.

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
            If the posterior does not define these weights.
        """
        msg = (
            f"{type(self).__name__} cannot turn samples of the prior into samples of functions; implement "
            "`path_weights`, or call `sample` at fixed inputs."
        )
        raise TypeError(msg)

    def draws(self, rng: Any, /) -> dict[str, Any]:
        """Draw the noise for one evaluation in training, by name; by default, there is none.

        `rng` is a NumPy generator or an `agp.random.Noise`. Unlike the noise of a likelihood, this noise is not tied to
        rows of the data.
        """
        return {}

    def with_draws(self, draws: Mapping[str, Array], /) -> "Posterior":
        """Return the posterior that uses these draws (arrays by name), or the posterior itself if there are none."""
        return self

    def site_sums(self, factor: Any, Kuf: Array, alpha: Array, beta: Array, mu: Array, /) -> Any:
        """Return the sums over rows that natural-gradient steps need, or None (the default); sums of blocks can be
        added.

        Kuf is [M, N]; alpha, beta and mu are [N, P], as in `agp.posteriors.SiteGradients`.
        """
        return None

    def project_to_sites(
        self, factor: Any, Kuf: Array, kff: Array, /
    ) -> tuple[tuple[Array, Array], Callable[[Array, Array], Any]]:
        """Return the marginals (mu, var) as `project` does, and ``(alpha, beta) -> site_sums``."""
        mu, var = self.project(factor, Kuf, kff)[0]
        return (mu, var), lambda alpha, beta: self.site_sums(factor, Kuf, alpha, beta, mu)

    bounds_variance_gap: ClassVar[bool] = False
    """Whether `variance_gap` bounds the effect of inexact inverses on the variances."""

    def variance_gap(self, Kuf: Array, /) -> Gap:
        """Bound the total increase of the variances at N inputs that inexact inverses cause, as a `Gap`, given Kuf
        [M, N].
        """
        msg = f"{type(self).__name__} does not bound the effect of inexact inverses; use the residual instead."
        raise TypeError(msg)

    def prepare_site_step(self, Kuu: Array, /) -> Self:
        """Return the posterior prepared for a step of its sites, given Kuu [M, M]; by default, the posterior itself."""
        return self

    def recompute_factors(self, Kuu: Array, /) -> Self:
        """Return the posterior with auxiliary arrays that fit Kuu [M, M] for predictions; by default, the posterior
        itself.
        """
        return self

    def begun(self, Kuu: Array, /, *, wide: bool = False) -> Self:
        """Return the posterior from which training starts if this one is still the prior; by default, the posterior
        itself.

        Kuu is [M, M]. If `wide` is true, the likelihood has no slope far from likely functions, so q(u) must not be
        narrow.
        """
        return self

    grows_in_front: ClassVar[bool] = False
    """Whether `add_inducing` puts new inducing variables before the existing ones."""

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        """Return q(u) p(w | u) for new inducing variables w, with the same q(f) and the same KL divergence.

        Parameters
        ----------
        Kuu
            The covariance [M', M'] of all inducing variables. The rows of u are the first M, or the last M if
            `grows_in_front`.
        begun
            Whether new pseudo-observations, if the posterior has any, start with the variances used at the start of
            training. Training then converges much faster. Only the variance of q(f) changes, not its mean.

        Raises
        ------
        TypeError
            If the parameterisation cannot represent this q.
        """
        msg = f"{type(self).__name__} cannot take new inducing variables without changing q(f); use Whitened."
        raise TypeError(msg)

    @classmethod
    @abstractmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        """Return the q(u) of an untrained model for P outputs: the prior, with covariance Kuu [M, M]."""


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
    """A q(u) that is the prior times tied sites, `shift` [M, P] and `precision` [P, M, M]; zeros give the prior."""

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
        """Return the shift and the precision of the prior, which are zeros."""
        xp, M = backend_of(Kuu).xp, Kuu.shape[0]
        return xp.zeros((M, outputs), **like(Kuu)), xp.zeros((outputs, M, M), **like(Kuu))


class GroupPosterior(Posterior):
    """A q(u) whose inducing variables form consecutive groups of the given `sizes`."""

    sizes: tuple[int, ...]


@former_methods(
    inverted="invert",
    inverted_anew="invert_from_scratch",
    inverted_matrix="matrix_to_invert",
    refreshed="recompute_factors",
)
class FollowsInverse(ABC):
    """Lower triangular auxiliary leaves L [M, M], with L L^T close to inverses, that are updated by matrix products
    alone.

    `agp.updates.InverseUpdate` keeps L L^T close to the inverse of `inverse_target(K, name)` during training, for each
    leaf named in `inverse_factors`. It follows their order, so that a later target may depend on an earlier factor. K
    is the matrix of the model, by default Kuu.
    """

    inverse_factors: ClassVar[tuple[str, ...]] = ("inverse_factor",)

    @abstractmethod
    def inverse_target(self, Kuu: Array, name: str = ..., /) -> Array:
        """Return the matrix that the named factor inverts (by default, the first factor), given the model's matrix
        [M, M].
        """

    def matrix_to_invert(self, Kuu: Array, /) -> Array:
        """Return the first target, given Kuu [M, M]."""
        return self.inverse_target(Kuu)

    def invert(self, Kuu: Array, name: str, /, **settings: Any) -> InverseFactor:
        """Call `agp.linalg.inverse_factor` on the named target, starting from its current factor."""
        return inverse_factor(self.inverse_target(Kuu, name), getattr(self, name), **settings)

    def recompute_factors(self, Kuu: Array, /) -> Self:
        """Return a copy whose factors fit the model's matrix [M, M] well enough for predictions."""
        current = self
        for name in self.inverse_factors:
            current = current._recompute_factor(Kuu, name)
        return current

    def invert_from_scratch(self, Kuu: Array, /) -> Self:
        """Return a copy with factors computed from scratch for the model's matrix [M, M]; the current factors may be
        None.
        """
        current = self
        for name in self.inverse_factors:
            factor = inverse_factor(current.inverse_target(Kuu, name)).factor
            current = tree.with_leaves(current, {name: factor})
        return current

    def _invert_from(self, Kuu: Array, name: str, start: Array) -> Array:
        """Return a factor of the named target, exact to its precision, starting from another factor [..., M, M]."""
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
    """A process or model that knows the matrix from which a posterior with inverse factors derives their targets."""

    posterior: Any

    @abstractmethod
    def _matrix_to_invert(self) -> Array:
        """The argument of `FollowsInverse.inverse_target`."""


class InverseFactored(FollowsInverse, Posterior):
    """A posterior over u = f(Z) with inverse factors for targets that depend on Kuu [M, M]."""
