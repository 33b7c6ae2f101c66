"""A sparse Gaussian process: a prior, inducing variables and q(u)."""

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of, like
from agp.bounds import Batch
from agp.checks import as_number, check_inputs, usable
from agp.inducing import Inducing, Points
from agp.kernels import Kernel, terms_of
from agp.linalg import add_jitter, default_jitter
from agp.means import Mean, ZeroMean
from agp.posteriors import InverseOwner, Posterior, start_of
from agp.processes._base import Process, SitePull
from agp.processes._further import DataPlace, InducingPlace, Place
from agp.processes._paths import Paths, conditional_paths
from agp.processes._terms import Moments, Term, describe_terms, project_joint_terms, project_terms
from agp.random import Draws, draws_with_prefix, prefix_draws
from agp.repairs import public
from agp.tree import constant_data, detach

FLOOR = 1e-12
"""Before square roots are taken, variances are raised to at least this fraction of the prior variance."""


class SparsePrior(ABC):
    """A process or model with the fields kernel, inducing, mean_function and jitter.

    The inducing variables are values of f - h, where h is the mean function. The cotangent of a process or model is an
    object of the same class.
    """

    kernel: Kernel
    inducing: Inducing
    mean_function: Mean
    jitter: float | None

    def _add_inducing(self, Z: Array, /, *, begun: bool = False) -> Self:
        """Return a copy with additional inducing inputs Z [M, D] and the same q(f).

        `begun` is as in `agp.posteriors.Posterior.add_inducing`. Raise TypeError if the posterior cannot represent the
        same q(f).
        """
        raise TypeError(f"{type(self).__name__} cannot add inducing inputs; use SGPR or SVGP.")

    def _inducing_covariance(self) -> tuple[Array, Pullback]:
        """Return Kuu + jitter I [M, M], and its pullback ``(Kuu_bar, **cotangents of other fields) -> self_bar``."""
        Kuu, pull = self.inducing.covariance(self.kernel)

        def pullback(Kuu_bar, **others):
            if Kuu_bar is not None and self.jitter is None:  # the default is a share of the diagonal of Kuu
                Kuu_bar = add_jitter(Kuu_bar)
            inducing_bar, kernel_bar = pull(Kuu_bar)
            return tree.cotangent(self, kernel=kernel_bar, inducing=inducing_bar, **others)

        return add_jitter(Kuu, self.jitter), pullback

    def _absolute_jitter(self) -> Array:
        """Return the jitter that is added to the diagonal of Kuu, as a 0-d array."""
        Kuu = self.inducing.covariance(self.kernel)[0]
        return default_jitter(Kuu) if self.jitter is None else backend_of(Kuu).xp.asarray(self.jitter, **like(Kuu))

    def _features(self, X: Array, /) -> tuple[tuple[Array, Array, Array], Pullback]:
        """Return Kuf [M, N], kff [N] and h [N, P] (or [N, 1]) at X [N, D].

        The pullback is ``(Kuf_bar, kff_bar, h_bar, **cotangents of other fields) -> (self_bar, X_bar)``.
        """
        Kuf, pull_Kuf = self.inducing.cross(self.kernel, X)
        kff, pull_kff = self.inducing.diag(self.kernel, X)
        h, pull_mean = self.mean_function(X)

        def pullback(Kuf_bar, kff_bar, h_bar, **others):
            inducing_bar, kernel_bar, X_bar = pull_Kuf(Kuf_bar)
            inducing_diag_bar, kernel_diag_bar, X_diag_bar = pull_kff(kff_bar)
            mean_bar, X_mean_bar = pull_mean(h_bar)
            bar = tree.cotangent(
                self,
                kernel=tree.add(kernel_bar, kernel_diag_bar),
                inducing=tree.add(inducing_bar, inducing_diag_bar),
                mean_function=mean_bar,
                **others,
            )
            return bar, tree.add(tree.add(X_bar, X_diag_bar), X_mean_bar)

        return (Kuf, kff, h), pullback


def initialise_prior(
    X: Array,
    kernel: Kernel | None,
    mean_function: Mean | None,
    level: Array,
    variance: float,
    /,
    *,
    inducing: Any,
    Z: Array | None,
    num_inducing: int | None,
    seed: int,
    jitter: float | None,
) -> dict[str, Any]:
    """Return the fields of a `SparsePrior` by name, with starting values for inputs X [N, D].

    `level` [P] and `variance` are the expected means and the expected variance of the functions. The other arguments
    and the errors are as for `Sparse.from_data`.
    """
    place, how = _resolve_inducing(inducing, Z)
    choice = {"num_inducing": num_inducing, "how": how, "seed": seed}
    place, kernel = place.initialise(X, place.usual_kernel() if kernel is None else kernel, variance, **choice)
    mean_function = ZeroMean() if mean_function is None else mean_function
    if kernel.reads_tags:
        mean_function = mean_function.with_slopes()
    mean_function = usable(mean_function.from_data(X, level, variance**0.5), X)
    mean_function.check(X.shape[1], level.shape[0])
    jitter = _check_jitter(jitter)
    return {"kernel": kernel, "inducing": place, "mean_function": mean_function, "jitter": jitter}


@tree.model
class Sparse(Process, SparsePrior, InverseOwner):
    """A sparse Gaussian process with P outputs and M inducing variables.

    All outputs share the kernel and the inducing variables.

    Parameters
    ----------
    kernel
        The prior covariance of f.
    inducing
        `agp.inducing.Points`, or other inducing variables.
    posterior
        q(u) for f - h. The posterior class, such as `Whitened` or `Relaxed`, determines the method.
    mean_function
        The prior mean h of f.
    jitter
        The number added to the diagonal of Kuu. By default, 1e-6 (float64) or 1e-4 (float32) times the mean of the
        diagonal.
    """

    kernel: Kernel
    inducing: Inducing
    posterior: Posterior[Any]
    mean_function: Mean = ZeroMean()
    jitter: float | None = None

    shares_inputs: ClassVar[bool] = True

    @classmethod
    @public(repairs=False)
    def from_data(
        cls,
        X: Array,
        /,
        *,
        outputs: int = 1,
        posterior: Any = "relaxed",
        kernel: Kernel | None = None,
        inducing: Any = "kmeans",
        Z: Array | None = None,
        num_inducing: int | None = None,
        mean_function: Mean | None = None,
        level: Array | None = None,
        variance: float = 1.0,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """Build a process for inputs X [N, D], and compute missing leaves.

        The process can be a layer or part of a stack.

        Parameters
        ----------
        X
            Inputs [N, D], which are not stored.
        outputs
            The number of outputs P.
        posterior
            A posterior class, its name, or a function of Kuu and P.
        kernel, mean_function
            By default, the kernel is `RBF` with a lengthscale for each column, and the mean function is `ZeroMean`.
        inducing, Z, num_inducing, seed
            `inducing` is an `agp.inducing.Inducing`, or a value for the `how` argument of `agp.inducing.choose`. `Z`
            contains inducing inputs [M, D]. `num_inducing` is the number of inducing inputs. `seed` is the seed for
            choosing inducing inputs.
        level, variance
            The starting value [P] of the mean function (zero by default), and the prior variance of f.
        jitter
            See `Sparse`.

        Raises
        ------
        TypeError, ValueError
            If X is not a finite floating-point array, a parameter violates its constraint, or M is out of range.
        """
        check_inputs("X", X)
        (X,) = constant_data(X)
        start = start_of(posterior)
        level = backend_of(X).xp.zeros((outputs,), **like(X)) if level is None else level
        choice = {"inducing": inducing, "Z": Z, "num_inducing": num_inducing, "seed": seed, "jitter": jitter}
        prior = initialise_prior(X, kernel, mean_function, level, variance, **choice)
        Kuu = cls(**prior, posterior=None).inducing_covariance()[0]  # type: ignore[arg-type]
        return detach(cls(**prior, posterior=start(Kuu, outputs)))

    inducing_covariance = SparsePrior._inducing_covariance
    features = SparsePrior._features

    @classmethod
    def of(cls, prior: SparsePrior, posterior: Posterior[Any], /) -> Self:
        """Return a process that combines the prior of another process or model with the given q(u)."""
        return cls(prior.kernel, prior.inducing, posterior, prior.mean_function, prior.jitter)

    @property
    def outputs(self) -> int:
        return self.posterior.outputs

    @property
    def width(self) -> int:
        return self.inducing.width

    @property
    def reference(self) -> tuple[str, Array]:
        name, x = self.inducing.reference
        return "the training data" if self.posterior.holds_data else name, x

    @property
    def floats_per_row(self) -> int:
        return self.inducing.floats_per_row(self.kernel) + self.inducing.count * self.posterior.floats_per_inducing

    @property
    def floats_per_mean(self) -> int:
        return self.inducing.floats_per_row(self.kernel) + self.outputs

    def factorise(self) -> tuple[Any, Pullback]:
        Kuu, pull_Kuu = self.inducing_covariance()
        factor, pull_factor = self.posterior.factorise(Kuu)

        def pullback(factor_bar):
            posterior_bar, Kuu_bar = pull_factor(factor_bar)
            return pull_Kuu(Kuu_bar, posterior=posterior_bar)

        return factor, pullback

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        moments, _, pullback = self._project_with_prior(factor, X)
        return moments, pullback

    def _project_with_prior(self, factor: Any, X: Array) -> tuple[tuple[Array, Array], Array, Pullback]:
        """Return the marginals, the prior variances kff [N], and the pullback of the marginals."""
        (Kuf, kff, h), pull_features = self.features(X)
        (residual, var), pull_moments = self.posterior.project(factor, Kuf, kff)

        def pullback(mu_bar, var_bar):
            posterior_bar, factor_bar, Kuf_bar, kff_bar = pull_moments(mu_bar, var_bar)
            bar, X_bar = pull_features(Kuf_bar, kff_bar, mu_bar, posterior=posterior_bar)
            return bar, factor_bar, X_bar

        return (h + residual, var), kff, pullback

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        kl, pull = self.posterior.kl_divergence(factor)

        def pullback(bar):
            posterior_bar, factor_bar = pull(bar)
            return tree.cotangent(self, posterior=posterior_bar), factor_bar

        return kl, pullback

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        # mu + sqrt(max(var, floor)) eps
        B = backend_of(X)
        xp = B.xp
        (mu, var), kff, pull = self._project_with_prior(factor, X)
        floor = B.stop_gradient(FLOOR * kff)[:, None]
        above = var > floor
        deviation = xp.sqrt(xp.where(above, var, floor))
        zero = xp.zeros_like(var)  # where the prior variance is zero, the floor is zero too

        def pullback(bar):
            bars = xp.reshape(bar, noise.shape)
            slope = xp.where(above, 0.5 / xp.where(above, deviation, 1.0 + zero), zero)
            return pull(xp.sum(bars, axis=0), slope * xp.sum(bars * noise, axis=0))

        samples = mu[None, :, :] + deviation[None, :, :] * noise
        return xp.reshape(samples, (-1, self.outputs)), pullback

    # -- prediction -------------------------------------------------------------------------------------------------

    def prepare_means(self, factor: Any, /) -> Any:
        return self.posterior.prepare_means(factor)

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        Kuf = self.inducing.cross(self.kernel, X)[0]
        return self.mean_function(X)[0] + self.posterior.project_mean(factor, Kuf)

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        Kuf, Kff = self.inducing.cross(self.kernel, X)[0], self.inducing.full(self.kernel, X)[0]
        return self.posterior.project_covariance(factor, Kuf, Kff)

    def project_joint(self, factor: Any, X: Array, /) -> tuple[Array, Array, Array]:
        (Kuf, kff, h), _ = self.features(X)
        residual, var, covariance = self.posterior.project_joint(
            factor, Kuf, kff, self.inducing.full(self.kernel, X)[0]
        )
        return h + residual, var, covariance

    def terms(self, names: Sequence[str] = (), /) -> tuple[Term, ...]:
        return describe_terms(self.kernel, self.mean_function, self.width, names)

    def project_terms(self, factor: Any, X: Array, /) -> Moments:
        parts, h = self.inducing.cross_terms(self.kernel, X), self.mean_function(X)[0]
        return project_terms(lambda *at: self.posterior.project(factor, *at), parts, h, self.outputs)

    def project_joint_terms(self, factor: Any, X: Array, /) -> Moments:
        parts, h = self.inducing.cross_terms(self.kernel, X), self.mean_function(X)[0]
        if not isinstance(self.inducing, Points):
            return super().project_joint_terms(factor, X)
        prior = [self.inducing.full(term, X)[0] for term in terms_of(self.kernel)]
        return project_joint_terms(lambda *at: self.posterior.project(factor, *at), parts, prior, h, self.outputs)

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        def weights_of(values: Array, noise: Array) -> Array:
            xp = backend_of(values).xp
            jitter = asarray_like(rng.standard_normal(values.shape), values)  # u has the covariance Kuu + jitter I
            u = values + xp.sqrt(self._absolute_jitter()) * jitter
            return self.posterior.path_weights(factor, u, noise)

        choice = {"outputs": self.outputs, "count": count, "features": features}
        return conditional_paths(self, self.inducing, weights_of, rng, **choice)

    def places(self, factor: Any, batch: Batch, /) -> dict[str, Place]:
        if not self.posterior.holds_data:
            return {"": InducingPlace.of(self, factor, batch.X)}
        self.posterior.check_one_noise(batch.noise)
        return {"": DataPlace(self, factor, batch.X)}

    def inducing_moments(self) -> tuple[Array, Array]:
        """Return the mean [M, P] and the covariances [P, M, M] of u.

        With orthogonal groups, the inducing variables are [u; v]. Let J = Kvu Kuu^-1. The mean of u is m_u, and the
        mean of v - J u is m_v. The covariances of u and v - J u are S_u and S_v. Then [u; v] has the mean
        [m_u; m_v + J m_u] and the covariance [[S_u, S_u J^T], [J S_u, S_v + J S_u J^T]].
        """
        Kuu = self.inducing_covariance()[0]
        factor = self.posterior.factorise(Kuu)[0]
        return self.posterior.project_mean(factor, Kuu), self.posterior.project_covariance(factor, Kuu, Kuu)

    # -- updates ----------------------------------------------------------------------------------------------------

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        (Kuf, kff, h), _ = self.features(X)
        (residual, var), to_sums = self.posterior.project_to_sites(factor, Kuf, kff)

        def to_sites(mu_bar: Array, var_bar: Array) -> dict[str, Any]:
            sums = to_sums(mu_bar, -2.0 * var_bar)
            return {} if sums is None else {"posterior": sums}

        return (h + residual, var), to_sites

    def _matrix_to_invert(self) -> Array:
        """Return Kuu [M, M]."""
        return self.inducing_covariance()[0]

    @property
    def shares_precision(self) -> bool:
        return self.posterior.shares_precision

    @property
    def site_paths(self) -> tuple[str, ...]:
        return ("posterior",)

    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        return {"posterior": factor}

    def _add_inducing(self, Z: Array, /, *, begun: bool = False) -> Self:
        inducing = self.inducing.add_inducing(Z, front=self.posterior.grows_in_front)
        wider = tree.replace(self, {"inducing": inducing})
        posterior = self.posterior.add_inducing(wider.inducing_covariance()[0], begun=begun)
        return tree.replace(wider, {"posterior": posterior})

    def recompute_factors(self) -> Self:
        if not self.posterior.inverse_factors:
            return self
        posterior = self.posterior.recompute_factors(self.inducing_covariance()[0])
        return self if posterior is self.posterior else tree.replace(self, {"posterior": posterior})

    def check(self) -> None:
        self.inducing.check(self.kernel)
        M, count = self.inducing.count, self.posterior.count
        if count not in (None, M):
            raise ValueError(
                f"q(u) has {count} inducing variables, but the process has {M} inducing variables; build q(u) with {M} "
                "inducing variables."
            )
        self.mean_function.check_tags(tagged=self.kernel.reads_tags)
        self.mean_function.check(self.width, self.outputs)

    def draws(self, rng: Any, rows: int, /) -> Draws:
        return prefix_draws("posterior", Draws({}, self.posterior.draws(rng)))

    def with_draws(self, draws: Draws, /) -> "Sparse":
        posterior = self.posterior.with_draws(draws_with_prefix("posterior", draws).whole)
        return self if posterior is self.posterior else tree.replace(self, {"posterior": posterior})


def _check_jitter(jitter: float | None) -> float | None:
    """Return the jitter; raise ValueError unless it is None or a finite number of at least 0."""
    if jitter is not None and not 0 <= as_number(jitter) < float("inf"):
        raise ValueError(f"jitter is {jitter!r}, but must be None or a finite number of at least 0.")
    return jitter


def _resolve_inducing(inducing: Any, Z: Array | None, /) -> tuple[Inducing, Any]:
    """Return the inducing variables and the method that chooses their inputs.

    The argument `inducing` is either an `Inducing` or the name of a method. Raise ValueError if Z is given together
    with an `Inducing`, and TypeError for a class.
    """
    if isinstance(inducing, type) and issubclass(inducing, Inducing):
        raise TypeError(f"inducing is the class {inducing.__name__}; pass an object, such as {inducing.__name__}(...).")
    if not isinstance(inducing, Inducing):
        return Points(Z), inducing
    if Z is not None:
        raise ValueError(
            f"Z is given together with inducing={type(inducing).__name__}; pass the inducing inputs only once, as in "
            f"inducing={type(inducing).__name__}(..., Z=Z)."
        )
    return inducing, "kmeans"
