"""Posteriors that hold the N rows of data: mu = h + Kfs w, and var = kff minus the variance that the data explain."""

from abc import abstractmethod
from typing import Any, Self

from agp import tree
from agp.actions import Actions
from agp.backend import Array, Pullback, as_widest_float, backend_of, like
from agp.bounds import CovarianceSystem, noisy_cholesky
from agp.inducing import Points
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.linalg import add_diagonal, cholesky, nonnegative
from agp.means import Mean
from agp.posteriors import path_weights_of_sites, solve_sites
from agp.predictors._conditional import Conditional
from agp.predictors._further import refuse_data, sites_of_new
from agp.processes import Paths, conditional_paths


class DataConditional(Conditional):
    """Base class of posteriors that hold the data. Subclasses compute the contribution of the data."""

    kernel: Kernel
    mean_function: Mean
    X: Array
    """The training inputs [N, D]."""
    weights: Array
    """The weights of the posterior mean, [., P]."""

    @abstractmethod
    def contribution(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Compute the change [n, P] of the mean at X [n, D], and the explained variance [n, P] or [n, 1].

        The posterior mean is the prior mean plus the change. The posterior variance is the prior variance minus the
        explained variance. The pullback is ``(mean_bar, variance_bar) -> X_bar``.
        """

    @property
    def outputs(self) -> int:
        return self.weights.shape[1]

    @property
    def width(self) -> int:
        return self.X.shape[1]

    @property
    def reference(self) -> tuple[str, Array]:
        return "the training data", self.X

    @property
    def floats_per_row(self) -> int:
        return self.X.shape[0] * (self.kernel.floats_per_entry + 2)

    def mean(self, X: Array, /) -> Array:
        return self.mean_function(X)[0] + self.kernel(X, self.X)[0] @ self.weights

    def moments(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        (change, explained), pull = self.contribution(X)
        kff, pull_diag = self.kernel.diag(X)
        h, pull_mean = self.mean_function(X)
        var, pull_var = nonnegative(kff[:, None] - explained)

        def pullback(mu_bar, var_bar):
            left = pull_var(var_bar if var.shape[1] == self.outputs else xp.sum(var_bar, axis=1, keepdims=True))
            X_bar = tree.add(pull(mu_bar, -left), pull_mean(mu_bar)[1])
            return tree.add(X_bar, pull_diag(xp.sum(left, axis=1))[1])

        var = xp.astype(var, X.dtype, copy=False)
        return (h + change, xp.broadcast_to(var, (X.shape[0], self.outputs))), pullback

    def _for_each(self, covariance: Array) -> Array:
        """Repeat a covariance [n, n] for each of P outputs; return [P, n, n]."""
        return backend_of(covariance).xp.broadcast_to(covariance, (self.outputs, *covariance.shape))

    def _paths(self, weights_of: Any, rng: Any, count: int, features: int) -> Paths:
        choice = {"outputs": self.outputs, "count": count, "features": features}
        return conditional_paths(self, Points(self.X), weights_of, rng, **choice)


# -- exact posteriors -------------------------------------------------------------------------------------------------


class GaussianConditional(DataConditional):
    """Base class of exact posteriors. Subclasses solve linear systems with C = K + sigma^2 I."""

    noise_variance: Array
    """The noise variance sigma^2: a scalar array, or [N, 1] if rows have different noise variances or weights."""

    @abstractmethod
    def solve(self, R: Array, /) -> Array:
        """Compute C^-1 R for R [N, k]."""

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        xp = backend_of(self.X).xp
        N, P = self.weights.shape

        def weights_of(values: Array, noise: Array) -> Array:
            # C^-1 (y - h - values - sigma noise)
            seen = xp.permute_dims(values + xp.sqrt(self.noise_variance) * noise, (1, 0, 2))
            known = xp.reshape(self.solve(xp.reshape(seen, (N, P * count))), (N, P, count))
            return xp.permute_dims(self.weights[:, :, None] - known, (1, 0, 2))

        return self._paths(weights_of, rng, count, features)


@tree.model
class ExactConditional(GaussianConditional):
    """An exact posterior that holds the Cholesky factor of C; predictions take N^2 operations per test input.

    Parameters
    ----------
    kernel, mean_function, noise_variance
        The model parts with these names.
    X
        The training inputs [N, D].
    L
        The Cholesky factor of C [N, N].
    residual
        L^-1 (y - h) [N, P].
    weights
        C^-1 (y - h) [N, P].
    """

    kernel: Kernel
    mean_function: Mean
    noise_variance: Array = tree.auxiliary()
    X: Array = tree.constant()
    L: Array = tree.auxiliary()
    residual: Array = tree.auxiliary()
    weights: Array = tree.auxiliary()

    @classmethod
    def of(cls, model: Any, /) -> Self:
        """Compute the posterior of a model that holds its data, in O(N^3) operations.

        A row of weight w has the noise variance sigma^2 / w.
        """
        noise, weights = model.likelihood.noise_variance, model._row_weights
        L = noisy_cholesky(model.kernel(model.X)[0], noise, weights)
        noise = noise if weights is None else (noise / weights)[:, None]
        residual = backend_of(L).solve_triangular(L, model.y - model.mean_function(model.X)[0])
        return cls(model.kernel, model.mean_function, noise, model.X, L, residual, _solve_transposed(L, residual))

    def contribution(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        Ksf, pull_kernel = self.kernel(self.X, X)
        A = backend_of(X).solve_triangular(self.L, Ksf)

        def pullback(mu_bar, explained_bar):
            Ksf_bar = self.weights @ mu_bar.mT + 2.0 * _solve_transposed(self.L, A * explained_bar.mT)
            return pull_kernel(Ksf_bar)[-1]

        return (Ksf.mT @ self.weights, xp.sum(A * A, axis=0)[:, None]), pullback

    def covariance(self, X: Array, /) -> Array:
        A = backend_of(X).solve_triangular(self.L, self.kernel(self.X, X)[0])
        return self._for_each(self.kernel(X)[0] - A.mT @ A)

    def solve(self, R: Array, /) -> Array:
        return _solve_transposed(self.L, backend_of(R).solve_triangular(self.L, R))

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> Self:
        # The new rows of L are [A^T, L2] with A = L^-1 k(X_old, X) and L2 L2^T = k(X, X) + sigma^2 I - A^T A: O(k N^2).
        B = backend_of(X)
        xp = B.xp
        y, noise, all_noise = self._with_noise(y, likelihood)
        A = B.solve_triangular(self.L, self.kernel(self.X, X)[0])
        L2 = cholesky(add_diagonal(self.kernel(X)[0] - A.mT @ A, noise))
        rest = B.solve_triangular(L2, y - self.mean_function(X)[0] - A.mT @ self.residual)
        above = xp.zeros((self.L.shape[0], X.shape[0]), **like(X))
        L = xp.concat([xp.concat([self.L, above], axis=1), xp.concat([A.mT, L2], axis=1)], axis=0)
        residual = xp.concat([self.residual, rest], axis=0)
        new = {"X": xp.concat([self.X, X], axis=0), "L": L, "residual": residual, "noise_variance": all_noise}
        return tree.with_leaves(self, new | {"weights": _solve_transposed(L, residual)})

    def _with_noise(self, y: Array, likelihood: Likelihood) -> tuple[Array, Array, Array]:
        """Return the values in y [k, K], their noise variances (0-d or [k]), and the noise variances of all data."""
        if isinstance(likelihood, Gaussian):
            values, noise = y, likelihood.noise_variance
        else:
            values, known = likelihood.observations(y), y[:, self.outputs :]
            if self.outputs > 1:
                msg = (
                    f"noise is given, but the {self.outputs} outputs of an exact model share one covariance; use a "
                    'variational model, such as SVGP.from_data(outputs="separate").'
                )
                raise ValueError(msg)
            noise = known[:, 0]
        if noise.ndim == 0 and self.noise_variance.ndim == 0:
            return values, noise, self.noise_variance
        xp = backend_of(y).xp
        old = xp.broadcast_to(self.noise_variance, (self.X.shape[0], 1))
        new = xp.broadcast_to(noise[..., None] if noise.ndim else noise, (y.shape[0], 1))
        return values, noise, xp.concat([old, new], axis=0)


@tree.model
class IterativeConditional(GaussianConditional):
    """An exact posterior that solves linear systems by conjugate gradients, without storing an N x N matrix.

    An iteration takes O(N^2) operations per test input. Linear systems that are solved together share kernel
    evaluations.

    Parameters
    ----------
    kernel, mean_function, noise_variance, X, weights
        See `ExactConditional`.
    root
        The factor U [N, r] of the preconditioner U U^T + sigma^2 I, or None for no preconditioner.
    block_rows
        The number of rows of C that are evaluated together.
    tolerance
        The relative residual at which a solve stops.
    max_iterations
        The maximum number of iterations of a solve.
    """

    kernel: Kernel
    mean_function: Mean
    noise_variance: Array = tree.auxiliary()
    X: Array = tree.constant()
    weights: Array = tree.auxiliary()
    root: Array | None = tree.constant(optional=True)
    block_rows: int = 1
    tolerance: float = 1e-6
    max_iterations: int = 512

    rows_share_work = True
    in_float64 = ("root",)

    @property
    def floats_per_row(self) -> int:
        # the covariances, and the vectors of the iteration in float64
        return self.X.shape[0] * (self.kernel.floats_per_entry + 20)

    def contribution(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        Ksf, pull_kernel = self.kernel(self.X, X)
        solution = self.solve(Ksf)

        def pullback(mu_bar, explained_bar):
            return pull_kernel(self.weights @ mu_bar.mT + 2.0 * solution * explained_bar.mT)[-1]

        return (Ksf.mT @ self.weights, xp.sum(Ksf * solution, axis=0)[:, None]), pullback

    def covariance(self, X: Array, /) -> Array:
        Ksf = self.kernel(self.X, X)[0]
        return self._for_each(self.kernel(X)[0] - Ksf.mT @ self.solve(Ksf))

    def solve(self, R: Array, /) -> Array:
        system = CovarianceSystem.at(
            self.kernel, self.noise_variance, self.X, self.block_rows, self.root, max_iterations=self.max_iterations
        )
        return backend_of(R).xp.astype(system.solve(as_widest_float(R), self.tolerance).x, R.dtype)

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> Self:  # noqa: ARG002
        refuse_data("CGGP with a matrix that does not fit in memory")


def _solve_transposed(L: Array, R: Array) -> Array:
    """Compute L^-T R."""
    return backend_of(L).solve_triangular(L, R, transpose=True)


# -- sites and actions ------------------------------------------------------------------------------------------------


@tree.model
class SiteConditional(DataConditional):
    """A posterior with a Gaussian site for each datum and output; predictions take N^2 P operations per test input.

    Parameters
    ----------
    kernel, mean_function, X
        The model parts with these names.
    site_shift, site_precision
        The parameters lam1 and lam2 [N, P] of the sites.
    root, weights
        The arrays [P, N, N] and [N, P] that `agp.posteriors.solve_sites` returns.
    """

    kernel: Kernel
    mean_function: Mean
    X: Array = tree.constant()
    site_shift: Array = tree.auxiliary()
    site_precision: Array = tree.auxiliary()
    root: Array = tree.auxiliary()
    weights: Array = tree.auxiliary()

    @classmethod
    def of(cls, kernel: Kernel, mean_function: Mean, X: Array, shift: Array, precision: Array, /) -> Self:
        """Compute the posterior for sites [N, P] at X [N, D], in O(P N^3) operations."""
        solved = solve_sites(kernel(X)[0], shift, precision)
        return cls(kernel, mean_function, X, shift, precision, solved.root, solved.weights)

    @property
    def floats_per_row(self) -> int:
        return self.X.shape[0] * (self.kernel.floats_per_entry + 2 + self.outputs)

    def contribution(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        Ksf, pull_kernel = self.kernel(self.X, X)
        D = self.root @ Ksf

        def pullback(mu_bar, explained_bar):
            through = xp.sum(self.root.mT @ (D * explained_bar.mT[:, None, :]), axis=0)
            return pull_kernel(self.weights @ mu_bar.mT + 2.0 * through)[-1]

        return (Ksf.mT @ self.weights, xp.sum(D * D, axis=-2).mT), pullback

    def covariance(self, X: Array, /) -> Array:
        D = self.root @ self.kernel(self.X, X)[0]
        return self.kernel(X)[0] - D.mT @ D

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        K = self.kernel(self.X)[0]

        def weights_of(values: Array, noise: Array) -> Array:
            return path_weights_of_sites(K, self.site_shift, self.site_precision, values, noise)

        return self._paths(weights_of, rng, count, features)

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> "SiteConditional":
        xp = backend_of(X).xp
        h = self.mean_function(X)[0]
        new = sites_of_new(self.mean(X), self.covariance(X), xp.zeros_like(X[:, :1]), y, likelihood)
        shift = xp.concat([self.site_shift, new.shift - new.precision * h], axis=0)
        precision = xp.concat([self.site_precision, new.precision], axis=0)
        both = xp.concat([self.X, X], axis=0)
        return SiteConditional.of(self.kernel, self.mean_function, both, shift, precision)


@tree.model
class ActionConditional(DataConditional):
    """The posterior of a computation-aware GP, from the projections of the data onto the actions S.

    Parameters
    ----------
    kernel, mean_function, noise_variance, X, actions
        The model parts with these names.
    tangent, inverse
        The approximations T and P [i, i] of (S^T C S)^-1 in `agp.posteriors.ProjectedInverse`, in float64.
    weights
        P S^T (y - h) [i, P], in float64.
    """

    kernel: Kernel
    mean_function: Mean
    actions: Actions
    noise_variance: Array = tree.auxiliary()
    X: Array = tree.constant()
    tangent: Array = tree.auxiliary()
    inverse: Array = tree.auxiliary()
    weights: Array = tree.auxiliary()

    in_float64 = ("tangent", "inverse", "weights")

    @property
    def floats_per_row(self) -> int:
        return self.X.shape[0] * (self.kernel.floats_per_entry + 3) + 6 * self.actions.count

    def _features(self, X: Array) -> tuple[Array, Pullback]:
        """Compute W = Kfs S [n, i] in float64, and its pullback ``bar -> X_bar``."""
        xp = backend_of(X).xp
        Kfs, pull_kernel = self.kernel(X, self.X)
        W, pull_actions = self.actions.times(Kfs)
        return as_widest_float(W), lambda bar: pull_kernel(pull_actions(xp.astype(bar, X.dtype))[1])[1]

    def mean(self, X: Array, /) -> Array:
        return self.mean_function(X)[0] + backend_of(X).xp.astype(self._features(X)[0] @ self.weights, X.dtype)

    def contribution(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        W, pull = self._features(X)
        WP = W @ self.inverse

        def pullback(mu_bar, explained_bar):
            return pull(as_widest_float(mu_bar) @ self.weights.mT + 2.0 * as_widest_float(explained_bar) * WP)

        return (xp.astype(W @ self.weights, X.dtype), xp.sum(WP * W, axis=1)[:, None]), pullback

    def covariance(self, X: Array, /) -> Array:
        W = self._features(X)[0]
        full = as_widest_float(self.kernel(X)[0]) - W @ self.inverse @ W.mT
        return self._for_each(backend_of(X).xp.astype(full, X.dtype))

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        # weights S (P b - T S^T (values + sigma noise)); P = 2 T - T G T gives the covariances of the posterior
        xp = backend_of(self.X).xp
        m, P = self.X.shape[0], self.outputs

        def weights_of(values: Array, noise: Array) -> Array:
            seen = values + xp.sqrt(self.noise_variance) * noise
            columns = xp.reshape(xp.permute_dims(seen, (1, 0, 2)), (m, P * count))
            projected, times_actions = self.actions.project(columns)
            change = xp.reshape(self.tangent @ as_widest_float(projected), (-1, P, count))
            known = self.weights[:, :, None] - change
            _, weights = times_actions(xp.astype(xp.reshape(known, projected.shape), self.X.dtype))
            return xp.permute_dims(xp.reshape(weights, (m, P, count)), (1, 0, 2))

        return self._paths(weights_of, rng, count, features)

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> Self:  # noqa: ARG002
        refuse_data("CaGP, which has no actions for new rows,")
