"""M-SVGP: q(u_p) = N(m_p, C_p C_p^T), the unwhitened parameterisation; the prior is m = 0, C = Lu."""

from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.constraints import LOWER
from agp.linalg import cholesky, cholesky_pullback, identity, lower_of, lower_times, lower_transposed_times
from agp.posteriors._base import Posterior

__all__ = ["Marginal"]


@tree.model
class Marginal(Posterior):
    """Mean and covariance of u themselves (Hensman, Fusi & Lawrence, 2013).

    The factor is Lu, the Cholesky factor of Kuu; its cotangent is that of the relative change dS = Lu^-1 dLu, so that
    d(Lu^-1) = -dS Lu^-1.

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

    def factorise(self, Kuu: Array, /) -> tuple[Array, Pullback]:
        Lu = cholesky(Kuu)
        return Lu, lambda S_bar: (None, cholesky_pullback(Lu, S_bar))

    def project(self, factor: Array, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # A = Lu^-1 Kuf;  Q = Lu^-T A;  mu = Q^T m;  var_p = kff - colsum(A^2) + colsum((C_p^T Q)^2)
        B = backend_of(Kuf)
        xp = B.xp
        A = B.solve_triangular(factor, Kuf)
        Q = B.solve_triangular(factor, A, transpose=True)
        D = lower_transposed_times(self.scale, Q)
        conditional = kff - xp.sum(A * A, axis=0)
        positive = conditional > 0.0
        residual = xp.where(positive, conditional, xp.zeros_like(conditional))
        var = residual[:, None] + xp.sum(D * D, axis=-2).mT

        def pullback(mu_bar, var_bar):
            kff_bar = xp.where(positive, xp.sum(var_bar, axis=1), xp.zeros_like(conditional))
            rows = var_bar.mT[:, None, :]
            Q_bar = self.mean @ mu_bar.mT + 2.0 * xp.sum(lower_times(self.scale, D * rows), axis=0)
            white = B.solve_triangular(factor, Q_bar)
            A_bar = white - 2.0 * A * kff_bar
            bar = tree.cotangent(self, mean=Q @ mu_bar, scale=2.0 * lower_of(Q * rows, D.mT))
            S_bar = -(lower_of(A_bar, A.mT) + lower_of(A, white.mT))
            return bar, S_bar, B.solve_triangular(factor, A_bar, transpose=True), kff_bar

        return (Q.mT @ self.mean, var), pullback

    def kl_divergence(self, factor: Array, /) -> tuple[Array, Pullback]:
        # sum_p 1/2 (|Lu^-1 m_p|^2 + |Lu^-1 C_p|^2 - M + 2 sum log diag Lu - 2 sum log|diag C_p|)
        B = backend_of(factor)
        xp = B.xp
        m, C = self.mean, self.scale
        M, P = m.shape
        eye = xp.eye(M, **like(m))
        n = B.solve_triangular(factor, m)
        columns = xp.reshape(xp.permute_dims(C, (1, 0, 2)), (M, P * M))
        E = B.solve_triangular(factor, columns)
        diagonal = xp.sum(C * eye, axis=-1)
        log_ratio = P * xp.sum(xp.log(xp.sum(factor * eye, axis=-1))) - xp.sum(xp.log(xp.abs(diagonal)))
        kl = 0.5 * (xp.sum(n * n) + xp.sum(E * E) - M * P) + log_ratio

        def pullback(bar):
            back = xp.reshape(B.solve_triangular(factor, E, transpose=True), (M, P, M))
            scale_bar = xp.tril(xp.permute_dims(back, (1, 0, 2))) - eye / diagonal[..., None]
            mean_bar = B.solve_triangular(factor, n, transpose=True)
            S_bar = bar * (P * eye - lower_of(n, n.mT) - lower_of(E, E.mT))
            return tree.cotangent(self, mean=bar * mean_bar, scale=bar * scale_bar), S_bar

        return kl, pullback

    def _weights(self, factor: Array) -> Array:
        B = backend_of(factor)
        return B.solve_triangular(factor, B.solve_triangular(factor, self.mean), transpose=True)

    def project_mean(self, factor: Array, Kuf: Array, /) -> Array:
        return Kuf.mT @ self._weights(factor)

    def project_covariance(self, factor: Array, Kuf: Array, Kff: Array, /) -> Array:
        B = backend_of(Kuf)
        A = B.solve_triangular(factor, Kuf)
        D = lower_transposed_times(self.scale, B.solve_triangular(factor, A, transpose=True))
        return Kff - A.mT @ A + D.mT @ D

    def natural_features(self, factor: Array, Kuf: Array, /) -> tuple[Array, Array]:
        """Q = Kuu^-1 Kuf [M, N], with df/dm = Q^T, and the prior precision Kuu^-1 [M, M], for natural gradients."""
        B = backend_of(Kuf)
        root = B.solve_triangular(factor, identity(factor))
        return root.mT @ (root @ Kuf), root.mT @ root

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        mean = xp.zeros((M, outputs), **like(Kuu))
        return cls(mean=mean, scale=cholesky(Kuu) + xp.zeros((outputs, M, M), **like(Kuu)))
