"""A-SVGP: the whitened parameterisation without inverses, with a lower triangular R such that R R^T ~ Kuu^-1.

Let A = R^T Kuu R, F = A - I, V = R^T Kuf and S_p = C_p C_p^T. Then

    q(u_p) = N(Kuu R m_p, Kuu + Kuu R (A - 2I + S_p) R^T Kuu)
    KL <= sum_p 1/2 [ m_p^T A m_p + tr(S_p A) - log|S_p| - M + (1 + c)|F|^2 - tr F ]

for every R. Here c = max(1/2, log s - 1), and s is an upper bound on the eigenvalues of all S_p. If A = I, q(u) and the
KL divergence equal those of W-SVGP with u whitened by R^-T. The mean and the covariance depend on R, so the gradient
must not treat R as a constant. The gradient uses the derivative of R = chol(Kuu^-1), dR = -R Phi(R^T dKuu R), which
requires only matrix products.
"""

from typing import ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import (
    add_diagonal,
    congruence,
    diagonal,
    gram,
    identity,
    inverse_factor,
    lower_of,
    lower_times,
    lower_times_lower,
    lower_transposed_times,
    nonnegative,
    phi,
    symmetric_from_lower,
)
from agp.posteriors._base import InverseFactored, MeanPosterior
from agp.posteriors._growth import append_diagonal_block, append_rows
from agp.posteriors._natural_steps import RootSteps
from agp.tree import LOWER


@tree.model
class InverseFreeFactor:
    """R and A = R^T Kuu R, both [M, M]. In cotangents, the field `R` contains the cotangent of S, where dR = -R dS."""

    R: Array = tree.auxiliary()
    A: Array = tree.auxiliary()
    weights: Array | None = tree.constant(default=None, optional=True)
    """The weights [M, P] of means, after `Posterior.prepare_means`."""


@tree.model
class InverseFree(InverseFactored[InverseFreeFactor], MeanPosterior[InverseFreeFactor], RootSteps):
    """The whitened parameterisation without factorisations, with a full covariance for each output.

    Parameters
    ----------
    mean
        m [M, P], dimensionless.
    scale
        C [P, M, M], lower triangular. Diagonal entries may be negative, but not zero.
    inverse_factor
        R [M, M], lower triangular with a positive diagonal, such that R R^T ~ Kuu^-1. Auxiliary.

    Source: the form of q is taken from Cortinovis, Aitchison, Eleftheriadis & van der Wilk, "Inverse-free sparse
    variational Gaussian processes"; the bound without log|Kuu| is derived in `docs/methods/svgp.md`.
    """

    mean: Array = tree.param()
    scale: Array = tree.param(LOWER)
    inverse_factor: Array = tree.auxiliary()

    def inverse_target(self, Kuu: Array, name: str = "inverse_factor", /) -> Array:
        """Return Kuu [M, M], because R R^T approximates its inverse."""
        return Kuu

    def factorise(self, Kuu: Array, /) -> tuple[InverseFreeFactor, Pullback]:
        R = _following(self.inverse_factor, Kuu)
        A = symmetric_from_lower(gram(Kuu, R))

        def pullback(factor_bar):
            # dA = R^T dK R - dS^T A - A dS with dS = Phi(R^T dK R)
            S_bar = tree.add(factor_bar.R, -2.0 * A @ factor_bar.A)
            half = phi(S_bar)
            return None, congruence(self.inverse_factor, factor_bar.A + 0.5 * (half + half.mT))

        return InverseFreeFactor(R, A), pullback

    def project(self, factor: InverseFreeFactor, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = V^T m;  var_p = kff + colsum(V * (A V - 2 V)) + colsum((C_p^T V)^2)
        xp = backend_of(Kuf).xp
        R, A = factor.R, factor.A
        V = lower_transposed_times(R, Kuf)
        AV = A @ V
        D = lower_transposed_times(self.scale, V)
        residual, pull_residual = nonnegative(kff + xp.sum(V * (AV - 2.0 * V), axis=0))
        var = residual[:, None] + xp.sum(D * D, axis=-2).mT

        def pullback(mu_bar, var_bar):
            kff_bar = pull_residual(xp.sum(var_bar, axis=1))
            rows = var_bar.mT[:, None, :]
            V_bar = self.mean @ mu_bar.mT + 2.0 * (AV - 2.0 * V) * kff_bar
            V_bar = V_bar + 2.0 * xp.sum(lower_times(self.scale, D * rows), axis=0)
            bar = tree.cotangent(self, mean=V @ mu_bar, scale=2.0 * lower_of(V * rows, D.mT))
            factor_bar = InverseFreeFactor(-lower_of(V, V_bar.mT), (V * kff_bar) @ V.mT)
            return bar, factor_bar, lower_times(R, V_bar), kff_bar

        return (V.mT @ self.mean, var), pullback

    def kl_divergence(self, factor: InverseFreeFactor, /) -> tuple[Array, Pullback]:
        xp = backend_of(factor.A).xp
        m, C, A = self.mean, self.scale, factor.A
        M, P = m.shape
        F = add_diagonal(A, -1.0)
        c = self._slack()
        Am = A @ m
        AC = A @ C
        entries = diagonal(C)
        logs = 2.0 * xp.sum(xp.log(xp.abs(entries)))
        shared = (1.0 + c) * xp.sum(F * F) - xp.sum(diagonal(F)) - M
        kl = 0.5 * (xp.sum(m * Am) + xp.sum(C * AC) - logs + P * shared)

        def pullback(bar):
            S = xp.sum(C @ C.mT, axis=0)
            A_bar = 0.5 * bar * add_diagonal(m @ m.mT + S + (2.0 * P * (1.0 + c)) * F, -float(P))
            scale_bar = bar * add_diagonal(xp.tril(AC), -1.0 / entries)
            return tree.cotangent(self, mean=bar * Am, scale=scale_bar), InverseFreeFactor(None, A_bar)

        return kl, pullback

    def _slack(self) -> Array:
        """Return the constant c, which keeps the bound valid for large S. Gradients treat c as a constant.

        The smaller of |C|_1 |C|_inf and |C|_F^2 bounds the eigenvalues of C C^T. An underestimate of the largest
        eigenvalue would invalidate the bound. An overestimate has little effect, because F is small.
        """
        B = backend_of(self.scale)
        xp = B.xp
        C = B.stop_gradient(self.scale)
        size = xp.abs(C)
        norms = xp.max(xp.sum(size, axis=-2), axis=-1) * xp.max(xp.sum(size, axis=-1), axis=-1)
        largest = xp.max(xp.minimum(norms, xp.sum(C * C, axis=(-2, -1))))
        return xp.maximum(xp.log(largest) - 1.0, xp.full_like(largest, 0.5))

    def weights_of_mean(self, factor: InverseFreeFactor, /) -> Array:
        return lower_times(factor.R, self.mean)

    def project_covariance(self, factor: InverseFreeFactor, Kuf: Array, Kff: Array, /) -> Array:
        V = lower_transposed_times(factor.R, Kuf)
        D = lower_transposed_times(self.scale, V)
        return Kff + V.mT @ (factor.A @ V - 2.0 * V) + D.mT @ D

    def path_weights(self, factor: InverseFreeFactor, values: Array, noise: Array, /) -> Array:
        # R (m + C noise - R^T values): the covariances are those of q for every R
        R = factor.R
        return R @ (self.mean.mT[:, :, None] + lower_times(self.scale, noise) - R.mT @ values)

    grows_in_front: ClassVar[bool] = True

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        # R^-T is upper triangular, so the last block of R is a factor of the inverse of the last block of Kuu
        new = Kuu.shape[0] - self.mean.shape[0]
        corner = backend_of(Kuu).xp.mean(diagonal(Kuu)) ** -0.5
        start = append_diagonal_block(self.inverse_factor, new, corner, front=True)
        leaves = {
            "mean": append_rows(self.mean, new, front=True),
            "scale": append_diagonal_block(self.scale, new, 1.0, front=True),
            "inverse_factor": self._invert_from(Kuu, "inverse_factor", start),
        }
        return tree.with_leaves(self, leaves)

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        scale = identity(Kuu) + xp.zeros((outputs, M, M), **like(Kuu))
        factor = inverse_factor(Kuu, tolerance=1e-3).factor
        return cls(mean=xp.zeros((M, outputs), **like(Kuu)), scale=scale, inverse_factor=factor)


def _following(R: Array, Kuu: Array) -> Array:
    """Return R - R Phi(R^T (Kuu - constant Kuu) R), whose automatic derivative is that of chol(Kuu^-1)."""
    B = backend_of(Kuu)
    if "autodiff" not in B.gradients:
        return R
    change = gram(Kuu - B.stop_gradient(Kuu), R)
    return R - lower_times_lower(R, phi(change))
