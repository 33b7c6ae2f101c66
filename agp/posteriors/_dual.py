"""t-SVGP: q(u) is the prior times Gaussian sites, which are stored and trained with natural gradients.

    q(u_p) ~ N(u_p; 0, Kuu) exp(l_p^T u_p - 1/2 u_p^T Lam_p u_p)

If the kernel or the inducing inputs change, the sites stay fixed and q(u) changes with the prior. The bound then stays
closer to its optimum over q(u) than it would if q(u) were fixed, so steps on the hyperparameters are more effective.
Sites can be stored in three coordinate systems. At fixed hyperparameters, all three systems describe the same q(u).
"""

from typing import Any, Literal, Self, get_args

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import add_diagonal, cholesky, each_cholesky, identity, lower_of, positive_definite, solve_each
from agp.posteriors._base import SitePosterior
from agp.posteriors._factored import WhiteFactor, WhitePosterior
from agp.posteriors._growth import append_diagonal_block, append_rows, new_weights, transform_sites
from agp.posteriors._marginal import Marginal
from agp.posteriors._natural_state import NaturalState, natural_state
from agp.posteriors._natural_steps import sites_of_moments
from agp.posteriors._sites import GuardedSums, SiteGradients, SiteHolder, Sums, safeguarded_step, sums_with_fallback
from agp.posteriors._whitened import Whitened

Tied = Literal["natural", "kernel", "white"]
"""The names of the coordinate systems in which sites can be stored."""


@tree.model
class Dual(WhitePosterior, SitePosterior[WhiteFactor], SiteHolder):
    """The dual parameterisation with tied sites, which are sums over the data rows.

    The sites consist of P (M + M^2) numbers, for any number of rows. `agp.updates.SiteStep` updates the sites, and Adam
    updates the other parameters. Let the site of row n be (lam1_n, lam2_n), a_n = Kuu^-1 k_un and Lu Lu^T = Kuu. The
    stored sums are

    - ``tied="natural"`` (A-tied): sum_n a_n lam1_n and sum_n lam2_n a_n a_n^T, natural parameters of u;
    - ``tied="kernel"`` (K-tied): the same sums with k_un instead of a_n;
    - ``tied="white"`` (W-tied): the same sums with Lu^-1 k_un, natural parameters of v = Lu^-1 u.

    Parameters
    ----------
    shift
        The linear part of the sites [M, P]; zero if there are no sites. Auxiliary.
    precision
        The quadratic part of the sites [P, M, M], symmetric; zero if there are no sites. Auxiliary. It is [1, M, M] if
        the outputs share the precisions of the rows (`Likelihood.shared_site_gradients`), so that one matrix is
        factorised for all of them.
    tied
        The coordinate system of `shift` and `precision`: "natural", "kernel" or "white".

    Source: Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes", NeurIPS 2021.
    """

    shift: Array = tree.auxiliary()
    precision: Array = tree.auxiliary()
    tied: Tied = "natural"

    def __post_init__(self) -> None:
        if self.tied not in get_args(Tied):
            raise ValueError(f"tied is {self.tied!r}, but must be one of {', '.join(map(repr, get_args(Tied)))}.")

    def whitened_state(self, Lu: Array, /) -> tuple[NaturalState, Pullback]:
        t, site = self.white_sites(Lu)
        state, pull_state = natural_state(t, add_diagonal(site, 1.0))

        def pullback(state_bar):
            t_bar, W_bar = pull_state(state_bar)
            xp = backend_of(Lu).xp
            if self.tied == "white":
                return None, None
            if self.tied == "natural":  # dt = dS^T t, dW = dS^T site + site dS
                return None, lower_of(t, t_bar.mT) + 2.0 * xp.tril(xp.sum(site @ W_bar, axis=0))
            # dt = -dS t, dW = -dS site - site dS^T
            return None, -lower_of(t_bar, t.mT) - 2.0 * xp.tril(xp.sum(W_bar @ site, axis=0))

        return state, pullback

    def white_sites(self, Lu: Array, /) -> tuple[Array, Array]:
        """Return the shift [M, P] and the precision [P, M, M] of the sites in the coordinates v = Lu^-1 u."""
        if self.tied == "white":
            return self.shift, self.precision
        if self.tied == "natural":
            return Lu.mT @ self.shift, Lu.mT @ self.precision @ Lu
        half = solve_each(Lu, self.precision)
        return backend_of(Lu).solve_triangular(Lu, self.shift), solve_each(Lu, half.mT)

    def site_features(self, Lu: Array, A: Array, /) -> Array:
        """Return F [M, N] such that the stored precision is sum_n lam2_n F_n F_n^T, given A = Lu^-1 Kuf [M, N]."""
        if self.tied == "white":
            return A
        return backend_of(A).solve_triangular(Lu, A, transpose=True) if self.tied == "natural" else Lu @ A

    # -- steps ------------------------------------------------------------------------------------------------------

    def white_site_sums(self, factor: WhiteFactor, A: Array, alpha: Array, beta: Array, mu: Array, /) -> GuardedSums:
        """Return the sums over rows in the coordinate system of the stored sites."""
        return sums_with_fallback(self.site_features(factor.Lu, A), alpha, beta, mu)

    def _site_step(
        self, found: SiteGradients, rate: Any, /, *, clip: bool, groups: Any = None, rows: Any = None
    ) -> tuple[Self, dict[str, Array]]:
        def proper(precision: Array) -> Array:
            site = type(self)(self.shift, precision, self.tied).white_sites(found.factor.Lu)[1]
            return positive_definite(add_diagonal(site, 1.0))

        moved, info = safeguarded_step(rate, Sums(self.shift, self.precision), found.sums, None if clip else proper)
        return type(self)(*moved, self.tied), info

    # -- conversions ------------------------------------------------------------------------------------------------

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        # w has no sites: append zeros in natural and white coordinates, and multiply by [I; J] in kernel coordinates
        M, new = self.shift.shape[0], Kuu.shape[0] - self.shift.shape[0]
        if self.tied == "kernel":
            shift, precision = transform_sites(new_weights(cholesky(Kuu), M), self.shift, self.precision)
        else:
            shift, precision = append_rows(self.shift, new), append_diagonal_block(self.precision, new)
        return tree.with_leaves(self, {"shift": shift, "precision": precision})

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /, *, tied: Tied = "natural", shared_precision: bool = False) -> Self:
        return cls(*cls._no_sites(Kuu, outputs, shared_precision=shared_precision), tied)

    @classmethod
    def from_white_sites(cls, shift: Array, precision: Array, Lu: Array, /, *, tied: Tied = "natural") -> Self:
        """Return the posterior with a shift [M, P] and a precision [P, M, M] in the coordinates v = Lu^-1 u.

        `tied` is the coordinate system in which the result stores the sites.
        """
        if tied == "white":
            return cls(shift, precision, tied)
        if tied == "kernel":
            return cls(Lu @ shift, Lu @ precision @ Lu.mT, tied)
        half = solve_each(Lu, precision, transpose=True)
        stored = backend_of(Lu).solve_triangular(Lu, shift, transpose=True)
        return cls(stored, solve_each(Lu, half.mT, transpose=True), tied)

    @classmethod
    def from_posterior(cls, posterior: WhitePosterior, Kuu: Array, /, *, tied: Tied = "natural") -> Self:
        """Convert a posterior such as `Whitened` or `Marginal` to a `Dual` with the same q(u), given Kuu [M, M]."""
        Lu = cholesky(Kuu)
        state = posterior.whitened_state(Lu)[0]
        sites = sites_of_moments(state.white_mean, each_cholesky(state.white_covariance(identity(Lu))))
        return cls.from_white_sites(*sites, Lu, tied=tied)

    @classmethod
    def from_moments(cls, mean: Array, covariance: Array, Kuu: Array, /, *, tied: Tied = "natural") -> Self:
        """Return the `Dual` with q(u_p) = N(mean[:, p], covariance[p]), given the prior covariance Kuu [M, M]."""
        return cls.from_posterior(Marginal(mean, each_cholesky(covariance)), Kuu, tied=tied)

    def moments(self, Kuu: Array, /) -> tuple[Array, Array]:
        """Return the mean [M, P] and the covariances [P, M, M] of u, given the prior covariance Kuu [M, M]."""
        Lu = cholesky(Kuu)
        state = self.whitened_state(Lu)[0]
        return Lu @ state.white_mean, state.white_covariance(Lu.mT)

    def convert_storage(self, tied: Tied, Kuu: Array, /) -> Self:
        """Return the same q(u) with sites stored in another coordinate system, given Kuu [M, M]."""
        Lu = cholesky(Kuu)
        return type(self).from_white_sites(*self.white_sites(Lu), Lu, tied=tied)

    def to_whitened(self, Kuu: Array, /) -> Whitened:
        """Convert to a `Whitened` with the same q(u), given Kuu [M, M]. A `Whitened` has no sites."""
        state = self.whitened_state(cholesky(Kuu))[0]
        return Whitened(state.white_mean, each_cholesky(state.white_covariance(identity(Kuu))))

    def to_marginal(self, Kuu: Array, /) -> Marginal:
        """Convert to a `Marginal` with the same q(u), given Kuu [M, M]."""
        mean, covariance = self.moments(Kuu)
        return Marginal(mean, each_cholesky(covariance))
