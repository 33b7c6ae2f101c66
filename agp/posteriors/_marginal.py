"""M-SVGP: q(u_p) = N(m_p, C_p C_p^T), the unwhitened parameterisation; the prior is m = 0, C = Lu."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import cholesky, diagonal, identity, lower_of, solve_each_lower, solve_lower
from agp.posteriors._base import MeanWithUnit
from agp.posteriors._factored import WhiteFactor, WhitePosterior
from agp.posteriors._growth import new_weights
from agp.posteriors._natural_steps import RootSteps, WhiteSteps, moments_of_sites, step_of_moments
from agp.posteriors._sites import SiteGradients, Sums, sums_of
from agp.posteriors._whitened import Whitened
from agp.tree import LOWER


@tree.model
class Marginal(WhitePosterior, MeanWithUnit[WhiteFactor], WhiteSteps, RootSteps):
    """The unwhitened parameterisation: the mean and the covariance of u itself (Hensman, Fusi & Lawrence, 2013).

    Computations use the whitened parameterisation at n = Lu^-1 m and E = Lu^-1 C. Gradients are therefore summed in
    whitened coordinates, before the ill-conditioned transformation to m and C.

    Parameters
    ----------
    mean
        m [M, P], in units of f.
    scale
        C [P, M, M], lower triangular, in units of f. Diagonal entries may be negative, but not zero.
    """

    scale: Array = tree.param(LOWER, unit="scale_unit")
    scale_unit: Array | None = tree.unit(default=None)

    def whitened_state(self, Lu: Array, /) -> tuple[Whitened, Pullback]:
        B = backend_of(Lu)
        n, E = B.solve_triangular(Lu, self.mean), solve_each_lower(Lu, self.scale)

        def pullback(state_bar):
            # dn = Lu^-1 dm - dS n, dE = Lu^-1 dC - dS E
            n_bar, E_bar = state_bar.mean, B.xp.tril(state_bar.scale)
            S_bar = -lower_of(n_bar, n.mT) - B.xp.sum(lower_of(E_bar, E.mT), axis=0)
            scale_bar = solve_each_lower(Lu, E_bar, transpose=True)
            mean_bar = B.solve_triangular(Lu, n_bar, transpose=True)
            return tree.cotangent(self, mean=mean_bar, scale=scale_bar), S_bar

        return Whitened(n, E), pullback

    def white_site_sums(self, factor: WhiteFactor, A: Array, alpha: Array, beta: Array, mu: Array, /) -> Sums:
        # F = Kuu^-1 Kuf
        return sums_of(backend_of(A).solve_triangular(factor.Lu, A, transpose=True), alpha, beta, mu)

    def natural_step(self, found: SiteGradients, rate: Any, coordinates: str, /) -> tuple[Self, Array]:
        root = solve_lower(found.factor.Lu, identity(found.factor.Lu))
        prior = root.mT @ root
        mean, scale, halvings = step_of_moments(self.mean, self.scale, prior, found.sums, rate, coordinates)
        return tree.with_leaves(self, {"mean": mean, "scale": scale}), halvings

    def white_sites(self, Lu: Array, /) -> Sums:
        return self.whitened_state(Lu)[0].white_sites(Lu)

    def with_white_sites(self, sites: Sums, Lu: Array, /) -> Self:
        mean, scale = moments_of_sites(sites)
        return tree.with_leaves(self, {"mean": Lu @ mean, "scale": Lu @ scale})

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        # w = J u + e with J = Kwu Kuu^-1, so that m = [m; J m] and C = [[C, 0], [J C, Lw]]
        xp = backend_of(Kuu).xp
        (P, M, _), Lu = self.scale.shape, cholesky(Kuu)
        J, new = new_weights(Lu, M), Kuu.shape[0] - M
        first = xp.concat([self.scale, xp.zeros((P, M, new), **like(Kuu))], axis=-1)
        rest = xp.concat([J @ self.scale, xp.broadcast_to(Lu[M:, M:], (P, new, new))], axis=-1)
        mean = xp.concat([self.mean, J @ self.mean], axis=0)
        return tree.with_leaves(self, {"mean": mean, "scale": xp.concat([first, rest], axis=-2)})

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        mean, scale = xp.zeros((M, outputs), **like(Kuu)), cholesky(Kuu) + xp.zeros((outputs, M, M), **like(Kuu))
        deviation = xp.mean(diagonal(Kuu)) ** 0.5
        return cls(mean, scale, mean_unit=deviation, scale_unit=deviation)
