"""q(v) in natural coordinates: q(v_p) = N(W_p^-1 t_p, W_p^-1), the whitened form of every dual parameterisation.

The prior N(0, I) times a Gaussian site exp(t^T v - 1/2 v^T (W - I) v). With log-concave likelihoods W >= I, so its
inverse is as well conditioned as W itself, whatever Kuu is.
"""

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import cholesky, diagonal, each_inverse, each_outer, each_times
from agp.posteriors._factored import WhiteState

__all__ = ["NaturalBars", "NaturalState", "natural_state"]


@tree.model
class NaturalBars:
    """The cotangent of a `NaturalState`."""

    mean: Array = tree.auxiliary()
    """That of the mean [M, P], at fixed W."""
    precision: Array = tree.auxiliary()
    """That of W [P, M, M], at a fixed mean; symmetric."""


@tree.model
class NaturalState(WhiteState):
    """q(v) with its precision factorised; made by `natural_state`. Its cotangents are `NaturalBars`.

    Parameters
    ----------
    mean
        W_p^-1 t_p [M, P].
    root
        The inverse of the Cholesky factor of W_p [P, M, M], lower.
    """

    mean: Array = tree.auxiliary()
    root: Array = tree.auxiliary()

    @property
    def white_mean(self) -> Array:
        return self.mean

    def white_moments(self, A: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = A^T m;  var_p = colsum(D_p^2) with D_p = root_p A
        xp = backend_of(A).xp
        D = self.root @ A

        def pullback(mu_bar, var_bar):
            # W^-1 A = root^T D;  d var = -2 colsum(W^-1 A * (dW W^-1 A)) / 2 + 2 colsum(W^-1 A * dA)
            E = self.root.mT @ D
            weighted = E * var_bar.mT[:, None, :]
            A_bar = self.mean @ mu_bar.mT + 2.0 * xp.sum(weighted, axis=0)
            return NaturalBars(A @ mu_bar, -(weighted @ E.mT)), A_bar

        return (A.mT @ self.mean, xp.sum(D * D, axis=-2).mT), pullback

    def white_covariance(self, A: Array, /) -> Array:
        D = self.root @ A
        return D.mT @ D

    def white_samples(self, noise: Array, /) -> Array:
        return self.mean.mT[:, :, None] + self.root.mT @ noise

    def white_kl(self) -> tuple[Array, Pullback]:
        # sum_p 1/2 (log|W_p| + tr W_p^-1 - M + |m_p|^2)
        xp = backend_of(self.mean).xp
        m, root = self.mean, self.root
        logs = xp.sum(xp.log(diagonal(root)))
        kl = 0.5 * (xp.sum(root * root) + xp.sum(m * m) - m.shape[0] * m.shape[1]) - logs

        def pullback(bar):
            covariance = root.mT @ root
            return NaturalBars(bar * m, 0.5 * bar * (covariance - covariance @ covariance))

        return kl, pullback


def natural_state(shift: Array, precision: Array, /) -> tuple[NaturalState, Pullback]:
    """The state for t [M, P] and W [P, M, M], and ``NaturalBars -> (shift_bar, precision_bar)``.

    Raises
    ------
    agp.errors.NotPositiveDefiniteError
        If a precision has no factor, even after the repairs of `agp.linalg.cholesky`.
    """
    root = each_inverse(cholesky(precision))
    state = NaturalState(each_times(root.mT, each_times(root, shift)), root)

    def pullback(state_bar):
        # dm = W^-1 (dt - dW m)
        shift_bar = each_times(root.mT, each_times(root, state_bar.mean))
        return shift_bar, state_bar.precision - each_outer(shift_bar, state.mean)

    return state, pullback
