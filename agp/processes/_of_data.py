"""Posteriors that hold the N rows of data, but never store covariances of all rows with each other or with new rows.

At x, the mean is h(x) + k_x^T w, and the variance is k_xx minus the part that the data explain. For exact posteriors
that store K, see `agp.posteriors.Exact`.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn, Self

from agp import tree
from agp.actions import Actions
from agp.backend import Array, Pullback, as_widest_float, backend_of
from agp.bounds import Batch, CovarianceSystem
from agp.inducing import Points
from agp.kernels import Kernel, terms_of
from agp.linalg import nonnegative
from agp.means import Mean
from agp.posteriors import FollowsInverse, Projected
from agp.processes._base import MixedPrecision, SitePull, WithoutSites
from agp.processes._further import refuse_data
from agp.processes._paths import Paths, conditional_paths
from agp.processes._terms import Moments, Term, describe_terms, join_joint_terms, join_terms


class HoldsRows(WithoutSites):
    """Base class of processes that hold the rows of data, whose hyperparameters are trained by the evidence."""

    X: Array
    """The training inputs [N, D]."""

    @property
    def width(self) -> int:
        return self.X.shape[1]

    @property
    def reference(self) -> tuple[str, Array]:
        return "the training data", self.X

    # -- steps of a variational bound --------------------------------------------------------------------------------

    def _no_bound(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has an evidence, not a KL divergence; train the model that built it.")

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        self._no_bound()

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        self._no_bound()

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        self._no_bound()


class DataProcess(HoldsRows):
    """Base class of processes with one setting that hold the rows. Subclasses compute the contribution of the data."""

    kernel: Kernel
    mean_function: Mean

    refused: ClassVar[str]
    """What the error message says cannot be conditioned on further data."""

    @abstractmethod
    def contribution(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Compute the change [n, P] of the mean at X [n, D], and the explained variance [n, P] or [n, 1].

        The posterior mean is the prior mean plus the change. The posterior variance is the prior variance minus the
        explained variance. The pullback is ``(mean_bar, variance_bar) -> X_bar``.
        """

    @abstractmethod
    def mean_change(self, factor: Any, X: Array, /) -> Array:
        """Compute the change [n, P] of the mean at X [n, D]."""

    @abstractmethod
    def explained_covariance(self, factor: Any, X: Array, /) -> Array:
        """Compute the covariance [n, n] at X [n, D] that the data explain."""

    @abstractmethod
    def term_features(self, factor: Any, kernel: Kernel, X: Array, /) -> tuple[Array, Array, Array]:
        """Return the change [n, P] of the mean of a term of f, and its features V [n, r] and G V^T [n, r].

        The covariance of two terms that the data explain is V_i G V_j^T.
        """

    @abstractmethod
    def path_weights(self, factor: Any, values: Array, noise: Array, /) -> Array:
        """Return the weights of function samples, as `agp.posteriors.Posterior.path_weights` does for Points(X)."""

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        (change, explained), pull = self.contribution(factor, X)
        kff, pull_diag = self.kernel.diag(X)
        h, pull_mean = self.mean_function(X)
        var, pull_var = nonnegative(kff[:, None] - explained)

        def pullback(mu_bar, var_bar):
            left = pull_var(var_bar if var.shape[1] == self.outputs else xp.sum(var_bar, axis=1, keepdims=True))
            X_bar = tree.add(pull(mu_bar, -left), pull_mean(mu_bar)[1])
            return None, None, tree.add(X_bar, pull_diag(xp.sum(left, axis=1))[1])

        var = xp.astype(var, X.dtype, copy=False)
        return (h + change, xp.broadcast_to(var, (X.shape[0], self.outputs))), pullback

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        return self.mean_function(X)[0] + self.mean_change(factor, X)

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        xp = backend_of(X).xp
        explained = self.explained_covariance(factor, X)
        covariance = xp.astype(xp.astype(self.kernel(X)[0], explained.dtype) - explained, X.dtype)
        return xp.broadcast_to(covariance, (self.outputs, *covariance.shape))

    def terms(self, names: Sequence[str] = (), /) -> tuple[Term, ...]:
        return describe_terms(self.kernel, self.mean_function, self.width, names)

    def project_terms(self, factor: Any, X: Array, /) -> Moments:
        xp, terms = backend_of(X).xp, terms_of(self.kernel)
        changes, V, GV = zip(*(self.term_features(factor, term, X) for term in terms), strict=True)
        explained = xp.stack(V, axis=1) @ xp.stack(GV, axis=2)
        prior = xp.stack([term.diag(X)[0] for term in terms], axis=1)
        means, h = xp.stack(changes, axis=2), self.mean_function(X)[0]
        return join_terms(means, prior, xp.astype(explained, X.dtype, copy=False)[:, None, :, :], h)

    def project_joint_terms(self, factor: Any, X: Array, /) -> Moments:
        xp, terms, n = backend_of(X).xp, terms_of(self.kernel), X.shape[0]
        changes, V, GV = zip(*(self.term_features(factor, term, X) for term in terms), strict=True)
        explained = xp.astype(xp.concat(V, axis=0) @ xp.concat(GV, axis=0).mT, X.dtype, copy=False)
        prior = [term(X)[0] for term in terms]
        covariance = join_joint_terms(prior, xp.reshape(explained, (len(terms), n, len(terms), n)))
        last = xp.broadcast_to(self.mean_function(X)[0], (n, self.outputs))[:, :, None]
        means = xp.concat([xp.stack(changes, axis=2), last], axis=2)
        return means, xp.broadcast_to(covariance, (self.outputs, *covariance.shape))

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        choice = {"outputs": self.outputs, "count": count, "features": features}
        return conditional_paths(self, Points(self.X), lambda *drawn: self.path_weights(factor, *drawn), rng, **choice)

    def places(self, factor: Any, batch: Batch, /) -> NoReturn:
        refuse_data(self.refused)

    def check(self) -> None:
        self.kernel.check(self.width)
        self.mean_function.check(self.width, self.outputs)


def column(x: Array, /) -> Array:
    """Return an array [N] as a column [N, 1], and a 0-d array unchanged."""
    return x[:, None] if x.ndim else x


def no_pullback(*_: Any) -> NoReturn:
    raise TypeError(
        "a process that holds data is not differentiated with respect to hyperparameters; train the model instead."
    )


# -- conjugate gradients ----------------------------------------------------------------------------------------------


@tree.model
class IterativeFactor:
    """The factor of `Iterative`."""

    weights: Array = tree.auxiliary()
    """C^-1 (y - h) [N, P]."""


@tree.model
class Iterative(DataProcess):
    """The exact posterior for Gaussian noise, from linear systems that are solved by conjugate gradients (`CGGP`).

    An iteration takes O(N^2) operations per test input. Linear systems that are solved together share kernel
    evaluations. C is K + diag(noise).

    Parameters
    ----------
    kernel, mean_function
        The model parts with these names.
    noise
        The noise variance: 0-d, or [N] if it differs between rows.
    X, residual
        The training inputs [N, D], and the targets minus the prior mean, y - h [N, P].
    root
        The result of `agp.bounds.preconditioning_root`, or None for no preconditioner.
    block_rows
        The number of rows of C that are evaluated together.
    tolerance
        The relative residual at which a solve stops.
    max_iterations
        The maximum number of iterations of a solve.
    """

    kernel: Kernel
    mean_function: Mean
    noise: Array = tree.auxiliary()
    X: Array = tree.constant()
    residual: Array = tree.auxiliary()
    root: Array | None = tree.constant(optional=True)
    block_rows: int = 1
    tolerance: float = 1e-6
    max_iterations: int = 512

    rows_share_work = True
    in_float64 = ("root",)
    refused = "CGGP with a matrix that does not fit in memory"

    @property
    def outputs(self) -> int:
        return self.residual.shape[1]

    @property
    def floats_per_row(self) -> int:
        # the covariances, and the vectors of the iteration in float64
        return self.X.shape[0] * (self.kernel.floats_per_entry + 20)

    def factorise(self) -> tuple[IterativeFactor, Pullback]:
        return IterativeFactor(self.solve(self.residual)), no_pullback

    def solve(self, R: Array, /) -> Array:
        """Compute C^-1 R for R [N, k]."""
        system = CovarianceSystem.at(
            self.kernel, self.noise, self.X, self.block_rows, self.root, max_iterations=self.max_iterations
        )
        return backend_of(R).xp.astype(system.solve_covariance(as_widest_float(R), self.tolerance), R.dtype)

    def contribution(self, factor: IterativeFactor, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        Kfs, pull_kernel = self.kernel(self.X, X)
        solution = self.solve(Kfs)

        def pullback(mu_bar, explained_bar):
            return pull_kernel(factor.weights @ mu_bar.mT + 2.0 * solution * explained_bar.mT)[-1]

        return (Kfs.mT @ factor.weights, xp.sum(Kfs * solution, axis=0)[:, None]), pullback

    def mean_change(self, factor: IterativeFactor, X: Array, /) -> Array:
        return self.kernel(X, self.X)[0] @ factor.weights

    def explained_covariance(self, factor: IterativeFactor, X: Array, /) -> Array:
        Kfs = self.kernel(self.X, X)[0]
        return Kfs.mT @ self.solve(Kfs)

    def term_features(self, factor: IterativeFactor, kernel: Kernel, X: Array, /) -> tuple[Array, Array, Array]:
        Kfs = kernel(self.X, X)[0]
        return Kfs.mT @ factor.weights, Kfs.mT, self.solve(Kfs).mT

    def path_weights(self, factor: IterativeFactor, values: Array, noise: Array, /) -> Array:
        # C^-1 (y - h - values - sigma noise)
        xp = backend_of(values).xp
        P, N, S = values.shape
        seen = xp.permute_dims(values + column(xp.sqrt(self.noise)) * noise, (1, 0, 2))
        known = xp.reshape(self.solve(xp.reshape(seen, (N, P * S))), (N, P, S))
        return xp.permute_dims(factor.weights[:, :, None] - known, (1, 0, 2))


# -- projected observations -------------------------------------------------------------------------------------------


@tree.model
class ProjectedFactor(MixedPrecision):
    """The factor of `ComputationAware`."""

    tangent: Array = tree.auxiliary()
    """T [i, i] of `agp.posteriors.ProjectedInverse`."""
    inverse: Array = tree.auxiliary()
    """P [i, i] of `agp.posteriors.ProjectedInverse`."""
    weights: Array = tree.auxiliary()
    """P S^T (y - h) [i, P]."""

    in_float64 = ("tangent", "inverse", "weights")


@tree.model
class ComputationAware(DataProcess):
    """The posterior of a computation-aware GP, from the projections of the data onto the actions S.

    Parameters
    ----------
    kernel, mean_function, actions
        The model parts with these names.
    noise
        The noise variance: 0-d, or [N] if it differs between rows.
    X
        The inputs [N, D] of the support.
    covariance, observations
        The covariance S^T (K + diag(noise)) S [i, i] of the projected observations, and S^T (y - h) [i, P], in float64.
    posterior
        The method that inverts the covariance.
    """

    kernel: Kernel
    mean_function: Mean
    actions: Actions
    posterior: Projected
    noise: Array = tree.auxiliary()
    X: Array = tree.constant()
    covariance: Array = tree.auxiliary()
    observations: Array = tree.auxiliary()

    in_float64 = ("covariance", "observations")
    refused = "CaGP, which has no actions for new rows,"

    @property
    def outputs(self) -> int:
        return self.observations.shape[1]

    @property
    def floats_per_row(self) -> int:
        return self.X.shape[0] * (self.kernel.floats_per_entry + 3) + 6 * self.actions.count

    def factorise(self) -> tuple[ProjectedFactor, Pullback]:
        found = self.posterior.invert_covariance(self.covariance)
        return ProjectedFactor(found.T, found.P, found.P @ self.observations), no_pullback

    def recompute_factors(self) -> Self:
        posterior: Any = self.posterior
        if not isinstance(posterior, FollowsInverse):
            return self
        G = backend_of(self.X).xp.astype(self.covariance, self.X.dtype)
        return tree.replace(self, {"posterior": posterior.recompute_factors(G)})

    def _features(self, X: Array) -> tuple[Array, Pullback]:
        """Compute W = Kfs S [n, i] in float64, and its pullback ``bar -> X_bar``."""
        xp = backend_of(X).xp
        Kfs, pull_kernel = self.kernel(X, self.X)
        W, pull_actions = self.actions.times(Kfs)
        return as_widest_float(W), lambda bar: pull_kernel(pull_actions(xp.astype(bar, X.dtype))[1])[1]

    def contribution(self, factor: ProjectedFactor, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        W, pull = self._features(X)
        WP = W @ factor.inverse

        def pullback(mu_bar, explained_bar):
            return pull(as_widest_float(mu_bar) @ factor.weights.mT + 2.0 * as_widest_float(explained_bar) * WP)

        return (xp.astype(W @ factor.weights, X.dtype), xp.sum(WP * W, axis=1)[:, None]), pullback

    def mean_change(self, factor: ProjectedFactor, X: Array, /) -> Array:
        return backend_of(X).xp.astype(self._features(X)[0] @ factor.weights, X.dtype)

    def explained_covariance(self, factor: ProjectedFactor, X: Array, /) -> Array:
        W = self._features(X)[0]
        return W @ factor.inverse @ W.mT

    def term_features(self, factor: ProjectedFactor, kernel: Kernel, X: Array, /) -> tuple[Array, Array, Array]:
        W = dataclasses.replace(self, kernel=kernel)._features(X)[0]
        return backend_of(X).xp.astype(W @ factor.weights, X.dtype), W, W @ factor.inverse

    def path_weights(self, factor: ProjectedFactor, values: Array, noise: Array, /) -> Array:
        # S (P b - T S^T (values + sigma noise)); P = 2 T - T G T gives the covariances of the posterior
        xp = backend_of(values).xp
        P, m, S = values.shape
        seen = values + column(xp.sqrt(self.noise)) * noise
        projected, times_actions = self.actions.project(xp.reshape(xp.permute_dims(seen, (1, 0, 2)), (m, P * S)))
        change = xp.reshape(factor.tangent @ as_widest_float(projected), (-1, P, S))
        known = factor.weights[:, :, None] - change
        _, weights = times_actions(xp.astype(xp.reshape(known, projected.shape), self.X.dtype))
        return xp.permute_dims(xp.reshape(weights, (m, P, S)), (1, 0, 2))
