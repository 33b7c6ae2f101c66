"""W-SVGP: q(u_p) = N(Lu m_p, Lu C_p C_p^T Lu^T) with Lu Lu^T = Kuu; the prior has m = 0 and C = I."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import identity, lower_of, lower_times, lower_transposed_times
from agp.posteriors._base import MeanPosterior
from agp.posteriors._factored import WhiteFactor, WhiteItself
from agp.posteriors._growth import append_diagonal_block, append_rows
from agp.posteriors._natural_steps import RootSteps, WhiteSteps, moments_of_sites, sites_of_moments, step_of_moments
from agp.posteriors._sites import SiteGradients, Sums, sums_of
from agp.tree import LOWER


@tree.model
class Whitened(WhiteItself, MeanPosterior[WhiteFactor], WhiteSteps, RootSteps):
    """The whitened parameterisation of sparse variational GPs (Hensman, Matthews & Ghahramani, 2015).

    Parameters
    ----------
    mean
        m [M, P], dimensionless.
    scale
        C [P, M, M], lower triangular. Diagonal entries may be negative, but not zero.
    """

    mean: Array = tree.param()
    scale: Array = tree.param(LOWER)

    def white_moments(self, A: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = A^T m;  var_p = colsum(D_p^2) with D_p = C_p^T A
        xp = backend_of(A).xp
        D = lower_transposed_times(self.scale, A)

        def pullback(mu_bar, var_bar):
            D_bar = D * (2.0 * var_bar.mT[:, None, :])
            A_bar = self.mean @ mu_bar.mT + xp.sum(lower_times(self.scale, D_bar), axis=0)
            return tree.cotangent(self, mean=A @ mu_bar, scale=lower_of(A, D_bar.mT)), A_bar

        return (A.mT @ self.mean, xp.sum(D * D, axis=-2).mT), pullback

    def white_covariance(self, A: Array, /) -> Array:
        D = lower_transposed_times(self.scale, A)
        return D.mT @ D

    def white_samples(self, noise: Array, /) -> Array:
        return self.mean.mT[:, :, None] + lower_times(self.scale, noise)

    def white_spread(self, G: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(G).xp
        C = self.scale
        GC = G @ C

        def pullback(bar):
            return tree.cotangent(self, scale=2.0 * bar * xp.tril(GC)), bar * xp.sum(C @ C.mT, axis=0)

        return xp.sum(C * GC), pullback

    def white_kl(self) -> tuple[Array, Pullback]:
        # sum_p 1/2 (|m_p|^2 + |C_p|^2 - M - 2 sum log|diag C_p|)
        m, C, B = self.mean, self.scale, backend_of(self.mean)
        xp, entries = B.xp, B.diagonal(C)
        logs = xp.sum(xp.log(xp.abs(entries)))
        kl = 0.5 * (xp.sum(m * m) + B.inner(C, C) - m.shape[0] * m.shape[1]) - logs

        def pullback(bar):
            return tree.cotangent(self, mean=bar * m, scale=B.add_diagonal(bar * C, -bar / entries))

        return kl, pullback

    def white_site_sums(self, factor: WhiteFactor, A: Array, alpha: Array, beta: Array, mu: Array, /) -> Sums:
        return sums_of(A, alpha, beta, mu)

    def natural_step(self, found: SiteGradients, rate: Any, coordinates: str, /) -> tuple[Self, Array]:
        prior = identity(found.factor.Lu)
        mean, scale, halvings = step_of_moments(self.mean, self.scale, prior, found.sums, rate, coordinates)
        return type(self)(mean, scale), halvings

    def white_sites(self, Lu: Array, /) -> Sums:
        return sites_of_moments(self.mean, self.scale)

    def with_white_sites(self, sites: Sums, Lu: Array, /) -> Self:
        return type(self)(*moments_of_sites(sites))

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        # the leading block of the joint Lu is the Lu of u, so m = [m; 0] and C = diag(C, I)
        new = Kuu.shape[0] - self.mean.shape[0]
        leaves = {"mean": append_rows(self.mean, new), "scale": append_diagonal_block(self.scale, new, 1.0)}
        return tree.with_leaves(self, leaves)

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        scale = identity(Kuu) + xp.zeros((outputs, M, M), **like(Kuu))
        return cls(mean=xp.zeros((M, outputs), **like(Kuu)), scale=scale)
