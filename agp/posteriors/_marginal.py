"""M-SVGP: q(u_p) = N(m_p, C_p C_p^T), the unwhitened parameterisation; the prior is m = 0, C = Lu."""

from typing import NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.constraints import LOWER
from agp.linalg import cholesky, cholesky_pullback, identity, lower_of
from agp.posteriors._base import Posterior
from agp.posteriors._whitened import Whitened

__all__ = ["Marginal", "MarginalFactor"]


class MarginalFactor(NamedTuple):
    """Lu [M, M], whose cotangent is that of dS = Lu^-1 dLu, and the same q(u) whitened by it."""

    Lu: Array
    white: Whitened


@tree.model
class Marginal(Posterior):
    """Mean and covariance of u themselves (Hensman, Fusi & Lawrence, 2013).

    Once Kuu is factorised this is W-SVGP at n = Lu^-1 m and E = Lu^-1 C, and is computed so: contributions to a
    gradient are added up in whitened coordinates, before the ill-conditioned way back to m and C.

    Parameters
    ----------
    mean
        m [M, P], in units of f.
    scale
        C [P, M, M], lower triangular, with a diagonal of either sign but not zero.
    """

    mean: Array = tree.param()
    scale: Array = tree.param(LOWER)

    @property
    def outputs(self) -> int:
        return self.mean.shape[1]

    def factorise(self, Kuu: Array, /) -> tuple[MarginalFactor, Pullback]:
        B = backend_of(Kuu)
        Lu = cholesky(Kuu)
        n, E = B.solve_triangular(Lu, self.mean), self._columnwise(Lu, self.scale)

        def pullback(factor_bar):
            # dn = Lu^-1 dm - dS n, dE = Lu^-1 dC - dS E
            n_bar, E_bar = factor_bar.white.mean, B.xp.tril(factor_bar.white.scale)
            S_bar = -lower_of(n_bar, n.mT) - B.xp.sum(lower_of(E_bar, E.mT), axis=0)
            scale_bar = B.xp.tril(self._columnwise(Lu, E_bar, transpose=True))
            mean_bar = B.solve_triangular(Lu, n_bar, transpose=True)
            bar = tree.cotangent(self, mean=mean_bar, scale=scale_bar)
            return bar, cholesky_pullback(Lu, tree.add(S_bar, factor_bar.Lu))

        return MarginalFactor(Lu, Whitened(n, B.xp.tril(E))), pullback

    @staticmethod
    def _columnwise(Lu: Array, C: Array, *, transpose: bool = False) -> Array:
        """Lu^-1 C_p, or Lu^-T C_p, for C [P, M, M], by one solve with P M columns."""
        B = backend_of(C)
        P, M, _ = C.shape
        columns = B.xp.reshape(B.xp.permute_dims(C, (1, 0, 2)), (M, P * M))
        solved = B.solve_triangular(Lu, columns, transpose=transpose)
        return B.xp.permute_dims(B.xp.reshape(solved, (M, P, M)), (1, 0, 2))

    def project(self, factor: MarginalFactor, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        moments, pull = factor.white.project(factor.Lu, Kuf, kff)

        def pullback(mu_bar, var_bar):
            white_bar, S_bar, Kuf_bar, kff_bar = pull(mu_bar, var_bar)
            return None, MarginalFactor(S_bar, white_bar), Kuf_bar, kff_bar

        return moments, pullback

    def kl_divergence(self, factor: MarginalFactor, /) -> tuple[Array, Pullback]:
        kl, pull = factor.white.kl_divergence(factor.Lu)
        return kl, lambda bar: (None, MarginalFactor(None, pull(bar)[0]))

    def project_mean(self, factor: MarginalFactor, Kuf: Array, /) -> Array:
        return factor.white.project_mean(factor.Lu, Kuf)

    def project_covariance(self, factor: MarginalFactor, Kuf: Array, Kff: Array, /) -> Array:
        return factor.white.project_covariance(factor.Lu, Kuf, Kff)

    def natural_features(self, factor: MarginalFactor, Kuf: Array, /) -> tuple[Array, Array]:
        """Q = Kuu^-1 Kuf [M, N], with df/dm = Q^T, and the prior precision Kuu^-1 [M, M], for natural gradients."""
        root = backend_of(Kuf).solve_triangular(factor.Lu, identity(factor.Lu))
        return root.mT @ (root @ Kuf), root.mT @ root

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        mean = xp.zeros((M, outputs), **like(Kuu))
        return cls(mean=mean, scale=cholesky(Kuu) + xp.zeros((outputs, M, M), **like(Kuu)))
