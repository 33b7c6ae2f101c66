"""q(v) in natural coordinates: q(v_p) = N(W_p^-1 t_p, W_p^-1), the whitened form of every dual parameterisation.

The prior N(0, I) times a Gaussian site exp(t^T v - 1/2 v^T (W - I) v). With log-concave likelihoods W >= I, so its
inverse is as well conditioned as W itself, whatever Kuu is.
"""

from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import cholesky, diagonal, each_inverse, each_outer, each_times, identity
from agp.posteriors._factored import WhitePosterior, WhiteState

__all__ = ["NaturalState", "natural_state"]


@tree.model
class NaturalState(WhitePosterior, WhiteState):
    """q(v) with its precision factorised; made by `natural_state`.

    Parameters
    ----------
    mean
        W_p^-1 t_p [M, P].
    root
        The inverse of the Cholesky factor of W_p [P, M, M], lower. In a gradient this place holds the cotangent of W_p,
        where the mean is held fixed.
    """

    mean: Array = tree.param()
    root: Array = tree.param()

    @property
    def outputs(self) -> int:
        return self.mean.shape[1]

    def whitened(self, Lu: Array, /) -> tuple["NaturalState", Pullback]:
        return self, lambda state_bar: (state_bar, None)

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
            return tree.cotangent(self, mean=A @ mu_bar, root=-(weighted @ E.mT)), A_bar

        return (A.mT @ self.mean, xp.sum(D * D, axis=-2).mT), pullback

    def white_covariance(self, A: Array, /) -> Array:
        D = self.root @ A
        return D.mT @ D

    def white_kl(self) -> tuple[Array, Pullback]:
        # sum_p 1/2 (log|W_p| + tr W_p^-1 - M + |m_p|^2)
        xp = backend_of(self.mean).xp
        m, root = self.mean, self.root
        logs = xp.sum(xp.log(diagonal(root)))
        kl = 0.5 * (xp.sum(root * root) + xp.sum(m * m) - m.shape[0] * m.shape[1]) - logs

        def pullback(bar):
            covariance = root.mT @ root
            return tree.cotangent(self, mean=bar * m, root=0.5 * bar * (covariance - covariance @ covariance))

        return kl, pullback

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        return cls(xp.zeros((M, outputs), **like(Kuu)), identity(Kuu) + xp.zeros((outputs, M, M), **like(Kuu)))


def natural_state(shift: Array, precision: Array, /) -> tuple[NaturalState, Pullback]:
    """The state for t [M, P] and W [P, M, M], and ``state_bar -> (shift_bar, precision_bar)``.

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
        return shift_bar, state_bar.root - each_outer(shift_bar, state.mean)

    return state, pullback
