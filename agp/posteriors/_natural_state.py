"""q(v) in natural coordinates: q(v_p) = N(W_p^-1 t_p, W_p^-1), the whitened form of dual parameterisations.

This q(v) is the prior N(0, I) times a Gaussian site exp(t^T v - 1/2 v^T (W - I) v). For log-concave likelihoods, W >=
I. Therefore W^-1 <= I, even if Kuu is badly conditioned.
"""

from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import add_diagonal, cholesky, diagonal, each_inverse, each_outer, each_times, lower_times
from agp.posteriors._base import SitePosterior
from agp.posteriors._factored import WhiteFactor, WhitePosterior, WhiteState


@tree.model
class NaturalState(WhiteState):
    """A q(v) with a factorised precision, computed by `natural_state`.

    In cotangents, the field `root` contains the symmetric cotangent of W at a fixed mean.
    """

    mean: Array = tree.auxiliary()
    """W_p^-1 t_p [M, P]."""
    root: Array = tree.auxiliary()
    """The inverse of the Cholesky factor of W_p [P, M, M], lower triangular, or of one W [1, M, M] for all outputs."""

    @property
    def _copies(self) -> int:
        """The number of outputs for each W."""
        return self.mean.shape[1] // self.root.shape[0]

    def white_moments(self, A: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = A^T m;  var_p = colsum(D_p^2) with D_p = root_p A
        xp = backend_of(A).xp
        one = self.root.shape[0] == 1
        D = lower_times(self.root[0, ...], A)[None, ...] if one else self.root @ A
        mu = A.mT @ self.mean

        def pullback(mu_bar, var_bar):
            # W^-1 A = root^T D;  d var = -2 colsum(W^-1 A * (dW W^-1 A)) / 2 + 2 colsum(W^-1 A * dA)
            E = self.root.mT @ D
            bar = xp.sum(var_bar, axis=1, keepdims=True) if one else var_bar
            weighted = E * bar.mT[:, None, :]
            A_bar = self.mean @ mu_bar.mT + 2.0 * xp.sum(weighted, axis=0)
            return NaturalState(A @ mu_bar, -(weighted @ E.mT)), A_bar

        return (mu, xp.broadcast_to(xp.sum(D * D, axis=-2).mT, mu.shape)), pullback

    def white_covariance(self, A: Array, /) -> Array:
        D = self.root @ A
        covariance = D.mT @ D
        return backend_of(A).xp.broadcast_to(covariance, (self.mean.shape[1], *covariance.shape[1:]))

    def white_samples(self, noise: Array, /) -> Array:
        return self.mean.mT[:, :, None] + self.root.mT @ noise

    def white_kl(self) -> tuple[Array, Pullback]:
        # sum_p 1/2 (log|W_p| + tr W_p^-1 - M + |m_p|^2)
        xp = backend_of(self.mean).xp
        m, root = self.mean, self.root
        copies = self._copies
        logs = copies * xp.sum(xp.log(diagonal(root)))
        kl = 0.5 * (copies * xp.sum(root * root) + xp.sum(m * m) - m.shape[0] * m.shape[1]) - logs

        def pullback(bar):
            covariance = root.mT @ root
            return NaturalState(bar * m, 0.5 * copies * bar * (covariance - covariance @ covariance))

        return kl, pullback


def natural_state(shift: Array, precision: Array, /) -> tuple[NaturalState, Pullback]:
    """Return q(v_p) = N(W_p^-1 t_p, W_p^-1), given t [M, P] and W [P, M, M], or one W [1, M, M] for all outputs.

    The pullback is ``state_bar -> (shift_bar, precision_bar)``. Raise NotPositiveDefiniteError if a precision has no
    Cholesky factor, even after the repairs made by `agp.linalg.cholesky`.
    """
    root = each_inverse(cholesky(precision))
    state = NaturalState(_solve(root, shift), root)

    def pullback(state_bar):
        # dm = W^-1 (dt - dW m)
        shift_bar = _solve(root, state_bar.mean)
        if state._copies == 1:
            return shift_bar, state_bar.root - each_outer(shift_bar, state.mean)
        outer = shift_bar @ state.mean.mT
        return shift_bar, state_bar.root - 0.5 * (outer + outer.mT)

    return state, pullback


def _solve(root: Array, x: Array) -> Array:
    """Return W_p^-1 x_p [M, P], given the roots [P, M, M], or one root [1, M, M] for all outputs."""
    if root.shape[0] == 1:
        return root[0, ...].mT @ (root[0, ...] @ x)
    return each_times(root.mT, each_times(root, x))


@tree.model
class WhiteSites(WhitePosterior, SitePosterior[WhiteFactor]):
    """q(v_p) ~ N(0, I) exp(t_p^T v_p - 1/2 v_p^T S_p v_p), for models that compute the sites t and S.

    Gradients pass through the sites. `Dual` with ``tied="white"`` represents the same q(u), but treats the sites as
    constants.
    """

    shift: Array = tree.param()
    """t [M, P]."""
    precision: Array = tree.param()
    """S [P, M, M], symmetric, with I + S_p positive definite."""

    def whitened_state(self, Lu: Array, /) -> tuple[NaturalState, Pullback]:
        state, pull = natural_state(self.shift, add_diagonal(self.precision, 1.0))

        def pullback(state_bar):
            shift_bar, precision_bar = pull(state_bar)
            return tree.cotangent(self, shift=shift_bar, precision=precision_bar), None

        return state, pullback

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        return cls(*cls._no_sites(Kuu, outputs))
