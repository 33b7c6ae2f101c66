"""The base classes for q(u), the Gaussian approximate posterior of the inducing variables u."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Generic, Self, TypeVar

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import Gap, InverseFactor, inverse_factor, inverse_residual
from agp.repairs import derive_pullbacks, report

Factor = TypeVar("Factor")

EXACT_TOLERANCE = 1e-8
"""The residual below which errors of inverse factors have no visible effect on predictions."""
STALE_TOLERANCE = 0.1
"""Inverse factors whose residual exceeds this value are updated before predictions."""


class Posterior(tree.Part, Generic[Factor], ABC):  # noqa: PYI059 - subclasses may also inherit from other abstract classes
    """A Gaussian q(u) over the values u = f(Z) at M inducing inputs, for P outputs that share the prior covariance.

    `factorise` computes a factor, which contains every intermediate result that does not depend on the inputs.
    `project` returns marginals at a block of inputs, and `kl_divergence` returns the KL divergence of q(u) from the
    prior. Each method also returns its pullback. Callers do not look inside the factor or its cotangent: they add up
    the factor cotangents that the pullbacks of `project` and `kl_divergence` return, and pass the sum to the pullback
    of `factorise`.

    The class is generic in the type of the factor. Subclasses name this type, as in ``Posterior[MyFactor]``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        derive_pullbacks(cls, {"factorise": 1, "project": 3, "kl_divergence": 1})

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs P."""

    @property
    def count(self) -> int | None:
        """The number of inducing variables M, or None if it is unknown."""
        return None

    _built_by: ClassVar[str] = "pass the class itself with posterior={name}, and from_data will build it"

    def check_one_noise(self, noise: Array | None, /) -> None:
        """Raise ValueError if the outputs share one covariance, but known noise variances [k, P] differ by output."""

    holds_data: ClassVar[bool] = False
    """Whether the inducing variables are values at all training inputs."""

    @property
    def floats_per_inducing(self) -> int:
        """The number of floats that a projection and its pullback store per test input and inducing variable."""
        return 3 + 2 * self.outputs  # projections of Kuf with temporaries, and the projection by a scale per output

    @property
    def shares_precision(self) -> bool:
        """Whether several outputs share the precisions of sites, as in a `Dual` with one matrix of precisions."""
        return False

    inverse_factors: ClassVar[tuple[str, ...]] = ()
    """The names of the auxiliary leaves that approximate inverses; see `FollowsInverse`. Empty by default."""

    def matrix_to_invert(self, Kuu: Array, /) -> Array:
        """Return the matrix [M, M] whose inverse is needed for the marginals; by default, Kuu [M, M] itself."""
        return Kuu

    @abstractmethod
    def factorise(self, Kuu: Array, /) -> tuple[Factor, Pullback]:
        """Return the factor for a prior covariance Kuu [M, M].

        The pullback is ``factor_bar -> (posterior_bar, Kuu_bar)``.
        """

    @abstractmethod
    def project(self, factor: Factor, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
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
            (mu, var), with non-negative variances.
        pullback
            ``(mu_bar, var_bar) -> (posterior_bar, factor_bar, Kuf_bar, kff_bar)``.
        """

    @abstractmethod
    def kl_divergence(self, factor: Factor, /) -> tuple[Array, Pullback]:
        """Return KL[q(u) || p(u)], summed over the outputs (a scalar), or an upper bound on this sum.

        The pullback is ``bar -> (posterior_bar, factor_bar)``.
        """

    @abstractmethod
    def project_mean(self, factor: Factor, Kuf: Array, /) -> Array:
        """Return the marginal means [N, P] without the variances, in O(M N P) operations, given Kuf [M, N]."""

    @abstractmethod
    def project_covariance(self, factor: Factor, Kuf: Array, Kff: Array, /) -> Array:
        """Return the joint covariances [P, N, N] of f at N inputs, given Kuf [M, N] and Kff [N, N]."""

    def project_joint(self, factor: Factor, Kuf: Array, kff: Array, Kff: Array, /) -> tuple[Array, Array, Array]:
        """Return the means and variances of `project` and the covariances of `project_covariance`."""
        return *self.project(factor, Kuf, kff)[0], self.project_covariance(factor, Kuf, Kff)

    def weights_of_mean(self, factor: Factor, /) -> Array | None:
        """Return the weights w [M, P] of the mean Kuf^T w, or None (default) if the factor already contains them."""
        return None

    def prepare_means(self, factor: Factor, /) -> Factor:
        """Return the factor for many calls of `project_mean`, with weights that do not depend on the inputs."""
        weights: Any = self.weights_of_mean(factor)
        return factor if weights is None else tree.with_leaves(factor, {"weights": weights})

    def path_weights(self, factor: Factor, values: Array, noise: Array, /) -> Array:
        """Return weights w [P, M, S] such that prior + Kuf^T w is a sample of f, for each of S prior samples.

        Parameters
        ----------
        factor
            From `factorise`.
        values
            Prior samples [P, M, S] of the inducing variables, with covariance Kuu.
        noise
            Standard normal numbers [P, M, S].

        Raises
        ------
        TypeError
            If the posterior does not define these weights.
        """
        name = type(self).__name__
        raise TypeError(f"{name} cannot sample functions; implement `path_weights`, or call `sample` at fixed inputs.")

    def draws(self, rng: Any, /) -> dict[str, Any]:
        """Draw the random numbers for one training step, as named arrays. By default, no numbers are drawn.

        `rng` is a NumPy generator or an `agp.random.Noise`. The numbers do not depend on the rows of the batch.
        """
        return {}

    def with_draws(self, draws: Mapping[str, Array], /) -> "Posterior[Any]":
        """Return a posterior that uses these named random arrays, or the posterior itself if no numbers are drawn."""
        return self

    def site_sums(self, factor: Factor, Kuf: Array, alpha: Array, beta: Array, mu: Array, /) -> Any:
        """Return the sums over rows for natural-gradient steps, or None (default) if q(u) does not support such steps.

        Kuf is [M, N]. The marginal means mu and the derivatives alpha = d/dmu and beta = -2 d/dvar of the expected log
        density have the shape [N, P]. The sums for several blocks of rows can be added up.
        """
        return None

    def project_to_sites(
        self, factor: Factor, Kuf: Array, kff: Array, /
    ) -> tuple[tuple[Array, Array], Callable[[Array, Array], Any]]:
        """Return the marginals (mu, var), as `project` does, and a function ``(alpha, beta) -> site_sums``."""
        mu, var = self.project(factor, Kuf, kff)[0]
        return (mu, var), lambda alpha, beta: self.site_sums(factor, Kuf, alpha, beta, mu)

    bounds_variance_gap: ClassVar[bool] = False
    """Whether the class implements `variance_gap`."""

    def variance_gap(self, Kuf: Array, /) -> Gap:
        """Return a `Gap` that bounds how much inexact inverses increase the sum of N variances, given Kuf [M, N]."""
        raise TypeError(f"{type(self).__name__} does not bound the effect of inexact inverses; use Residual().")

    def prepare_site_step(self, Kuu: Array, /) -> Self:
        """Prepare the posterior for a site step, given Kuu [M, M]; by default, return it unchanged."""
        return self

    def recompute_factors(self, Kuu: Array, /) -> Self:
        """Return the posterior with arrays accurate enough for predictions, given Kuu [M, M]; by default, unchanged."""
        return self

    def begun(self, Kuu: Array, /, *, wide: bool = False) -> Self:
        """Return the posterior from which training starts, given Kuu [M, M]: itself by default, and once it is trained.

        If `wide` is true, q(u) starts with larger variances. Use `wide` if the gradient of the likelihood vanishes for
        functions that fit the data badly.
        """
        return self

    grows_in_front: ClassVar[bool] = False
    """Whether `add_inducing` puts new inducing variables before the existing ones."""

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        """Add inducing variables w: return q(u) p(w | u), which has the same q(f) and the same KL divergence.

        Parameters
        ----------
        Kuu
            The covariance [M', M'] of all inducing variables. The rows of u are the first M, or the last M if
            `grows_in_front` is true.
        begun
            Whether new pseudo-observations start with the variances that are used at the start of training. If true,
            training converges much faster, and the variances of q(f) change, but its means do not. Posteriors without
            pseudo-observations ignore this argument.

        Raises
        ------
        TypeError
            If the parameterisation cannot represent q(u) p(w | u).
        """
        raise TypeError(f"{type(self).__name__} cannot add inducing variables without changing q(f); use Whitened.")

    @classmethod
    @abstractmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        """Return the q(u) of an untrained model with P outputs: the prior, with covariance Kuu [M, M]."""


class WeightedMeans(Posterior[Factor]):
    """A q(u) whose factor has a field `weights`, which is None unless `prepare_means` has computed them."""

    def project_mean(self, factor: Any, Kuf: Array, /) -> Array:
        return Kuf.mT @ (self.weights_of_mean(factor) if factor.weights is None else factor.weights)


class MeanPosterior(WeightedMeans[Factor]):
    """A q(u) with a leaf `mean` [M, P]."""

    mean: Array

    @property
    def outputs(self) -> int:
        return self.mean.shape[1]

    @property
    def count(self) -> int:
        return self.mean.shape[0]


@tree.model
class MeanWithUnit(MeanPosterior[Factor]):
    """A q(u) with a leaf `mean` [M, P] and its unit."""

    mean: Array = tree.param(unit="mean_unit")
    _: KW_ONLY
    mean_unit: Array | None = tree.unit(default=None)


class SitePosterior(WeightedMeans[Factor]):
    """The prior times sites with the leaves `shift` [M, P] and `precision` [P, M, M]; both are zero for the prior.

    If the outputs share the precisions of the rows, `precision` is [1, M, M].
    """

    shift: Array
    precision: Array

    @property
    def outputs(self) -> int:
        return self.shift.shape[1]

    @property
    def count(self) -> int:
        return self.shift.shape[0]

    @property
    def shares_precision(self) -> bool:
        return self.precision.shape[0] < self.outputs

    @staticmethod
    def _no_sites(Kuu: Array, outputs: int, *, shared_precision: bool = False) -> tuple[Array, Array]:
        """Return the shift and the precision of the prior, which are zeros."""
        xp, M = backend_of(Kuu).xp, Kuu.shape[0]
        matrices = 1 if shared_precision else outputs
        return xp.zeros((M, outputs), **like(Kuu)), xp.zeros((matrices, M, M), **like(Kuu))


class GroupPosterior(Posterior[Factor]):
    """A q(u) whose inducing variables form consecutive groups of the given `sizes`."""

    sizes: tuple[int, ...]


class FollowsInverse(ABC):
    """An object with inverse factors: lower triangular auxiliary leaves L [M, M] with L L^T close to an inverse.

    During training, `agp.updates.InverseUpdate` keeps L L^T close to the inverse of `inverse_target(K, name)` for each
    leaf named in `inverse_factors`. The update uses only matrix products. K is a matrix of the model, usually Kuu. The
    leaves are updated in the order of `inverse_factors`, so a later target may depend on an earlier factor.
    """

    inverse_factors: ClassVar[tuple[str, ...]] = ("inverse_factor",)
    target_leaves: ClassVar[tuple[str, ...]] = ()
    """The names of the object's own leaves, other than the factors, on which the targets depend."""

    @abstractmethod
    def inverse_target(self, Kuu: Array, name: str = ..., /) -> Array:
        """Return the matrix that the named factor (by default, the first) inverts, given the model's matrix [M, M]."""

    def matrix_to_invert(self, Kuu: Array, /) -> Array:
        """Return the matrix whose inverse the first factor approximates, given Kuu [M, M]."""
        return self.inverse_target(Kuu)

    def invert(self, Kuu: Array, name: str, /, **settings: Any) -> InverseFactor:
        """Improve the named factor with `agp.linalg.inverse_factor`, starting from its current value."""
        return inverse_factor(self.inverse_target(Kuu, name), getattr(self, name), **settings)

    def recompute_factors(self, Kuu: Array, /) -> Self:
        """Return a copy with factors that are accurate enough for predictions, given the model's matrix [M, M]."""
        current = self
        for name in self.inverse_factors:
            current = current._recompute_factor(Kuu, name)
        return current

    def invert_from_scratch(self, Kuu: Array, /) -> Self:
        """Return a copy with factors computed from scratch, given the model's matrix [M, M]. Old ones may be None."""
        current = self
        for name in self.inverse_factors:
            factor = inverse_factor(current.inverse_target(Kuu, name)).factor
            current = tree.with_leaves(current, {name: factor})
        return current

    def reinvert(self, Kuu: Array, /) -> Self:
        """Return a copy with accurate factors, given the model's matrix [M, M]; iterations start from the old ones."""
        current = self
        for name in self.inverse_factors:
            current = tree.with_leaves(current, {name: current._invert_from(Kuu, name, getattr(current, name))})
        return current

    def _invert_from(self, Kuu: Array, name: str, start: Array) -> Array:
        """Return the named factor, iterated from `start` [..., M, M] to a residual of at most `EXACT_TOLERANCE`."""
        return tree.with_leaves(self, {name: start}).invert(Kuu, name, tolerance=EXACT_TOLERANCE).factor

    def _recompute_factor(self, Kuu: Array, name: str) -> Self:
        B = backend_of(Kuu)
        Kuu, factor = B.stop_gradient(Kuu), getattr(self, name)
        residual = inverse_residual(self.inverse_target(Kuu, name), factor)

        def better() -> Array:
            found = self.invert(Kuu, name)
            report(
                f"the {name.replace('_', ' ')} was inaccurate (residual {{0:.2g}}) and was updated for predictions "
                "(residual {1:.2g}); train with InverseUpdate to keep it accurate.",
                residual,
                found.residual,
            )
            return found.factor

        new = B.cond(residual <= STALE_TOLERANCE, lambda: factor, better, likely=True)
        return self if new is factor else tree.with_leaves(self, {name: new})


class InverseOwner(ABC):
    """A process or model whose posterior may have inverse factors."""

    posterior: Any

    @abstractmethod
    def _matrix_to_invert(self) -> Array:
        """Return the matrix to be passed to `FollowsInverse.inverse_target`."""


class InverseFactored(FollowsInverse, Posterior[Factor]):
    """A q(u) with inverse factors of matrices that depend on Kuu [M, M]."""
