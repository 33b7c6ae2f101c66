"""W-SVGP: q(u_p) = N(Lu m_p, Lu C_p C_p^T Lu^T) with Lu Lu^T = Kuu; the prior is m = 0, C = I."""

from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.constraints import LOWER
from agp.linalg import cholesky, cholesky_pullback, identity, lower_of, lower_times, lower_transposed_times
from agp.posteriors._base import Posterior

__all__ = ["Whitened"]


@tree.model
class Whitened(Posterior):
    """The whitened parameterisation of sparse variational GPs (Hensman, Matthews & Ghahramani, 2015).

    The factor is Lu, the Cholesky factor of Kuu; its cotangent is that of the relative change Lu^-1 dLu.

    Parameters
    ----------
    mean
        m [M, P], dimensionless.
    scale
        C [P, M, M], lower triangular, with a diagonal of either sign but not zero.
    """

    mean: Array = tree.param()
    scale: Array = tree.param(LOWER)

    @property
    def outputs(self) -> int:
        return self.mean.shape[1]

    def factorise(self, Kuu: Array, /) -> tuple[Array, Pullback]:
        Lu = cholesky(Kuu)
        return Lu, lambda S_bar: (None, cholesky_pullback(Lu, S_bar))

    def project(self, factor: Array, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # A = Lu^-1 Kuf;  mu = A^T m;  var_p = kff - colsum(A^2) + colsum((C_p^T A)^2)
        B = backend_of(Kuf)
        xp = B.xp
        A = B.solve_triangular(factor, Kuf)
        D = lower_transposed_times(self.scale, A)
        conditional = kff - xp.sum(A * A, axis=0)
        positive = conditional > 0.0
        residual = xp.where(positive, conditional, xp.zeros_like(conditional))
        var = residual[:, None] + xp.sum(D * D, axis=-2).mT

        def pullback(mu_bar, var_bar):
            kff_bar = xp.where(positive, xp.sum(var_bar, axis=1), xp.zeros_like(conditional))
            rows = var_bar.mT[:, None, :]
            A_bar = self.mean @ mu_bar.mT - 2.0 * A * kff_bar + 2.0 * xp.sum(lower_times(self.scale, D * rows), axis=0)
            bar = tree.cotangent(self, mean=A @ mu_bar, scale=2.0 * lower_of(A * rows, D.mT))
            # dA = Lu^-1 dKuf - (Lu^-1 dLu) A
            return bar, -lower_of(A_bar, A.mT), B.solve_triangular(factor, A_bar, transpose=True), kff_bar

        return (A.mT @ self.mean, var), pullback

    def kl_divergence(self, factor: Array, /) -> tuple[Array, Pullback]:
        # sum_p 1/2 (|m_p|^2 + |C_p|^2 - M - 2 sum log|diag C_p|)
        xp = backend_of(self.mean).xp
        m, C = self.mean, self.scale
        eye = xp.eye(m.shape[0], **like(m))
        diagonal = xp.sum(C * eye, axis=-1)
        logs = xp.sum(xp.log(xp.abs(diagonal)))
        kl = 0.5 * (xp.sum(m * m) + xp.sum(C * C) - m.shape[0] * m.shape[1]) - logs

        def pullback(bar):
            return tree.cotangent(self, mean=bar * m, scale=bar * (C - eye / diagonal[..., None])), None

        return kl, pullback

    def project_mean(self, factor: Array, Kuf: Array, /) -> Array:
        return Kuf.mT @ backend_of(Kuf).solve_triangular(factor, self.mean, transpose=True)

    def project_covariance(self, factor: Array, Kuf: Array, Kff: Array, /) -> Array:
        A = backend_of(Kuf).solve_triangular(factor, Kuf)
        D = lower_transposed_times(self.scale, A)
        return Kff - A.mT @ A + D.mT @ D

    def natural_features(self, factor: Array, Kuf: Array, /) -> tuple[Array, Array]:
        """Q = Lu^-1 Kuf [M, N], with df/dm = Q^T, and the prior precision I [M, M], for natural gradients."""
        return backend_of(Kuf).solve_triangular(factor, Kuf), identity(factor)

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        scale = identity(Kuu) + xp.zeros((outputs, M, M), **like(Kuu))
        return cls(mean=xp.zeros((M, outputs), **like(Kuu)), scale=scale)
