"""Mean-field q(u): a diagonal covariance in whitened coordinates, or in the coordinates of u.

q(u_p) = N(Lu m_p, Lu diag(s_p^2) Lu^T)   with Lu Lu^T = Kuu, or   q(u_p) = N(m_p, diag(s_p^2))
"""

from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import cholesky, diagonal, identity, lower_of, solve_each, solve_lower
from agp.posteriors._base import MeanPosterior, MeanWithUnit
from agp.posteriors._factored import WhiteFactor, WhiteItself, WhitePosterior, WhiteState
from agp.posteriors._growth import append_rows
from agp.tree import POSITIVE


@tree.model
class DiagonalWhitened(WhiteItself, MeanPosterior[WhiteFactor]):
    """`Whitened` with a diagonal covariance (mean field).

    `DiagonalWhitened` stores O(M P) numbers and takes O(M N P) operations, whereas `Whitened` stores O(M^2 P) numbers
    and takes O(M^2 N P) operations.

    Parameters
    ----------
    mean
        m [M, P], dimensionless.
    deviation
        s [M, P], positive: the standard deviations of the whitened variables, dimensionless.
    """

    mean: Array = tree.param()
    deviation: Array = tree.param(POSITIVE)

    def white_moments(self, A: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = A^T m;  var = (A * A)^T s^2
        m, s = self.mean, self.deviation

        def pullback(mu_bar, var_bar):
            A_bar = m @ mu_bar.mT + 2.0 * A * ((s * s) @ var_bar.mT)
            return tree.cotangent(self, mean=A @ mu_bar, deviation=2.0 * s * ((A * A) @ var_bar)), A_bar

        return (A.mT @ m, (A * A).mT @ (s * s)), pullback

    def white_covariance(self, A: Array, /) -> Array:
        return _covariances(A, self.deviation)

    def white_samples(self, noise: Array, /) -> Array:
        return self.mean.mT[:, :, None] + self.deviation.mT[:, :, None] * noise

    def white_spread(self, G: Array, /) -> tuple[Array, Pullback]:
        # sum_ip s_ip^2 G_ii
        xp = backend_of(G).xp
        s, entries = self.deviation, diagonal(G)
        squares = xp.sum(s * s, axis=1)

        def pullback(bar):
            return tree.cotangent(self, deviation=2.0 * bar * s * entries[:, None]), bar * squares * identity(G)

        return xp.sum(squares * entries), pullback

    def white_kl(self) -> tuple[Array, Pullback]:
        # 1/2 (|m|^2 + |s|^2 - M P) - sum log s
        xp = backend_of(self.mean).xp
        m, s = self.mean, self.deviation
        kl = 0.5 * (xp.sum(m * m) + xp.sum(s * s) - m.shape[0] * m.shape[1]) - xp.sum(xp.log(s))
        return kl, lambda bar: tree.cotangent(self, mean=bar * m, deviation=bar * (s - 1.0 / s))

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        new = Kuu.shape[0] - self.mean.shape[0]
        leaves = {"mean": append_rows(self.mean, new), "deviation": append_rows(self.deviation, new, 1.0)}
        return tree.with_leaves(self, leaves)

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        mean = xp.zeros((Kuu.shape[0], outputs), **like(Kuu))
        return cls(mean, xp.ones_like(mean))


@tree.model
class DiagonalState(WhiteState):
    """q(v_p) = N(n_p, Lu^-1 diag(s_p^2) Lu^-T), for which u = Lu v has a diagonal covariance.

    In cotangents, the field `Lu` contains the cotangent of Lu^-1 dLu.
    """

    mean: Array = tree.auxiliary()
    deviation: Array = tree.auxiliary()
    Lu: Array = tree.auxiliary()

    def _features(self, A: Array) -> Array:
        # Q = Lu^-T A, with A^T v = Q^T u
        return backend_of(A).solve_triangular(self.Lu, A, transpose=True)

    def white_moments(self, A: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = A^T n;  var = (Q * Q)^T s^2
        B = backend_of(A)
        n, s, Q = self.mean, self.deviation, self._features(A)

        def pullback(mu_bar, var_bar):
            # dQ = Lu^-T (dA - dS^T A) with dS = Lu^-1 dLu
            through = B.solve_triangular(self.Lu, 2.0 * Q * ((s * s) @ var_bar.mT))
            bars = DiagonalState(A @ mu_bar, 2.0 * s * ((Q * Q) @ var_bar), -lower_of(A, through.mT))
            return bars, n @ mu_bar.mT + through

        return (A.mT @ n, (Q * Q).mT @ (s * s)), pullback

    def white_covariance(self, A: Array, /) -> Array:
        return _covariances(self._features(A), self.deviation)

    def white_samples(self, noise: Array, /) -> Array:
        return self.mean.mT[:, :, None] + solve_each(self.Lu, self.deviation.mT[:, :, None] * noise)

    def white_kl(self) -> tuple[Array, Pullback]:
        # 1/2 (|n|^2 + sum_ip s_ip^2 [Kuu^-1]_ii - M P) + P sum log diag Lu - sum log s
        B = backend_of(self.Lu)
        xp = B.xp
        n, s, Lu = self.mean, self.deviation, self.Lu
        M, P = n.shape
        eye = identity(Lu)
        root = solve_lower(Lu, eye)
        precisions = _precisions(root)
        squares = xp.sum(s * s, axis=1)
        logs = P * xp.sum(xp.log(diagonal(Lu))) - xp.sum(xp.log(s))
        kl = 0.5 * (xp.sum(n * n) + xp.sum(squares * precisions) - M * P) + logs

        def pullback(bar):
            # dLu^-1 = -dS Lu^-1
            relative = bar * (P * eye - lower_of(root * squares, root.mT))
            return DiagonalState(bar * n, bar * (s * precisions[:, None] - 1.0 / s), relative)

        return kl, pullback


@tree.model
class DiagonalMarginal(WhitePosterior, MeanWithUnit[WhiteFactor]):
    """`Marginal` with a diagonal covariance (mean field), which stores O(M P) numbers.

    `DiagonalMarginal` cannot represent the prior, in which the inducing variables are correlated, but
    `DiagonalWhitened` can. In an untrained model, q(u) has mean zero and variances 1 / [Kuu^-1]_ii. These variances
    minimise KL[q || p], and are smaller than the prior variances.

    Parameters
    ----------
    mean
        m [M, P], in units of f.
    deviation
        s [M, P], positive: the standard deviations of the inducing variables, in units of f.
    """

    deviation: Array = tree.param(POSITIVE, unit="deviation_unit")
    deviation_unit: Array | None = tree.unit(default=None)

    def whitened_state(self, Lu: Array, /) -> tuple[DiagonalState, Pullback]:
        B = backend_of(Lu)
        n = B.solve_triangular(Lu, self.mean)

        def pullback(state_bar):
            # dn = Lu^-1 dm - dS n
            mean_bar = B.solve_triangular(Lu, state_bar.mean, transpose=True)
            own = tree.cotangent(self, mean=mean_bar, deviation=state_bar.deviation)
            return own, state_bar.Lu - lower_of(state_bar.mean, n.mT)

        return DiagonalState(n, self.deviation, Lu), pullback

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        B = backend_of(Kuu)
        xp = B.xp
        usual = xp.mean(diagonal(Kuu)) ** 0.5
        mean = xp.zeros((Kuu.shape[0], outputs), **like(Kuu))
        nearest = 1.0 / xp.sqrt(_precisions(solve_lower(cholesky(Kuu), identity(Kuu))))
        return cls(mean, mean + nearest[:, None], mean_unit=usual, deviation_unit=usual)


def _covariances(features: Array, deviation: Array) -> Array:
    """Return F^T diag(s_p^2) F [P, N, N], given F [M, N] and s [M, P]."""
    scaled = deviation.mT[:, :, None] * features
    return scaled.mT @ scaled


def _precisions(root: Array) -> Array:
    """Return diag(Kuu^-1) [M], given Lu^-1 [M, M]."""
    return backend_of(root).xp.sum(root * root, axis=0)
