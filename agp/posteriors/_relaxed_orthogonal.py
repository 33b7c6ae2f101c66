"""SOLVE-GP without factorisations: R-SVGP with two groups of inducing variables, in two versions.

In SOLVE-GP, the second group has the covariance Kvv - Kvu Kuu^-1 Kuv. An approximation of Kuu^-1 would invalidate the
bound. However, u and w = v - J u are valid inducing variables for any matrix J. With G = [[I, 0], [-J, I]], the
covariance of (u, w) is G K G^T, and the covariance of (u, w) with f is G Kuf.

`RelaxedOrthogonal` uses the inducing variables (u, w), with J close to Kvu Kuu^-1, and a block-diagonal factor.
`RelaxedUnion` uses (u, v), and composes its inverse factor from the factors of the two groups.
"""

from abc import abstractmethod
from typing import ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import (
    add_diagonal,
    block_diagonal,
    lower_times,
    symmetric_from_blocks,
    symmetric_from_lower,
    times_lower,
)
from agp.posteriors._base import GroupPosterior, InverseFactored
from agp.posteriors._relaxed import Relaxed, RelaxedFactor
from agp.posteriors._site_form import Preconditioned, SiteForm
from agp.tree import POSITIVE


@tree.model
class RelaxedGroupsFactor:
    """J [M2, M], the `Relaxed` posterior of the transformed inducing variables, and this posterior's factor."""

    J: Array = tree.auxiliary()
    inner: Relaxed
    factor: RelaxedFactor
    weights: Array | None = tree.constant(default=None, optional=True)
    """The weights [M, P] of means, after `Posterior.prepare_means`."""


class RelaxedGroups(
    InverseFactored[RelaxedGroupsFactor], SiteForm[RelaxedGroupsFactor], GroupPosterior[RelaxedGroupsFactor]
):
    """A q(u) for two groups, built on a `Relaxed` posterior of transformed variables. Its bound is always valid."""

    sizes: tuple[int, int]

    target_leaves: ClassVar[tuple[str, ...]] = ("site",)

    @abstractmethod
    def _features(self, J: Array, Kuf: Array) -> tuple[Array, Pullback]:
        """Return the covariances [M + M2, N] of the transformed inducing variables with f.

        The pullback is ``bar -> (J_bar, Kuf_bar)``.
        """

    def project(self, factor: RelaxedGroupsFactor, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        features, pull_features = self._features(factor.J, Kuf)
        moments, pull = factor.inner.project(factor.factor, features, kff)

        def pullback(mu_bar, var_bar):
            inner_bar, factor_bar, features_bar, kff_bar = pull(mu_bar, var_bar)
            J_bar, Kuf_bar = pull_features(features_bar)
            return None, RelaxedGroupsFactor(J_bar, inner_bar, factor_bar), Kuf_bar, kff_bar

        return moments, pullback

    def kl_divergence(self, factor: RelaxedGroupsFactor, /) -> tuple[Array, Pullback]:
        kl, pull = factor.inner.kl_divergence(factor.factor)
        return kl, lambda bar: (None, RelaxedGroupsFactor(None, *pull(bar)))

    def weights_of_mean(self, factor: RelaxedGroupsFactor, /) -> Array:
        # with the covariances G Kuf of the transformed inducing variables, w = G^T w'
        inner = factor.inner.weights_of_mean(factor.factor)
        return self._features(factor.J, backend_of(inner).xp.zeros_like(inner))[1](inner)[1]

    def project_covariance(self, factor: RelaxedGroupsFactor, Kuf: Array, Kff: Array, /) -> Array:
        return factor.inner.project_covariance(factor.factor, self._features(factor.J, Kuf)[0], Kff)

    def path_weights(self, factor: RelaxedGroupsFactor, values: Array, noise: Array, /) -> Array:
        # the transformed inducing variables are G u, with covariances G Kuu G^T and G Kuf, so w = G^T w'
        xp = backend_of(values).xp
        P, _, S = values.shape
        columns = xp.reshape(xp.permute_dims(values, (1, 0, 2)), (-1, P * S))
        changed, pull = self._features(factor.J, columns)
        changed = xp.permute_dims(xp.reshape(changed, (-1, P, S)), (1, 0, 2))
        weights = factor.inner.path_weights(factor.factor, changed, noise)
        _, back = pull(xp.reshape(xp.permute_dims(weights, (1, 0, 2)), (-1, P * S)))
        return xp.permute_dims(xp.reshape(back, (-1, P, S)), (1, 0, 2))

    @classmethod
    def from_prior(
        cls, Kuu: Array, outputs: int, /, *, sizes: tuple[int, ...] = (), preconditioned: Preconditioned = True
    ) -> Self:
        """Return the untrained posterior for Kuu [M + M2, M + M2], with two groups.

        `sizes` are the group sizes, by default two halves.

        Raises
        ------
        ValueError
            If there are not two groups, or their sizes do not add up to M + M2.
        """
        M = Kuu.shape[0]
        sizes = sizes or (M - M // 2, M // 2)
        if len(sizes) != 2 or min(sizes) < 1 or sum(sizes) != M:
            raise ValueError(
                f"the group sizes are {sizes}, but {cls.__name__} needs 2 groups whose sizes add up to {M}, the number "
                "of inducing inputs; for one group, use Relaxed."
            )
        leaves = cls._prior_leaves(Kuu, outputs, preconditioned) | {"sizes": tuple(sizes)}
        return cls(**leaves, **dict.fromkeys(cls.inverse_factors)).invert_from_scratch(Kuu)

    def _blocks(self, Kuu: Array) -> tuple[Array, Array, Array]:
        """Return the blocks Kuu [M, M], Kvu [M2, M] and Kvv [M2, M2] of the joint covariance of u and v."""
        M = self.sizes[0]
        return Kuu[:M, :M], Kuu[M:, :M], Kuu[M:, M:]


@tree.model
class RelaxedOrthogonal(RelaxedGroups):
    """SOLVE-GP by matrix products alone, with diagonal noise for u and for w = v - J u.

    The bound is a lower bound on the log evidence for all values of the leaves. If the inverse factors are exact, the
    bound and its gradients equal those of SOLVE-GP with q(u) = N(Kuu a, Kuu - Kuu (Kuu + diag s)^-1 Kuu) and a q(w) of
    the same form. If the inverse factors are not exact, the bound may be larger or smaller than that of SOLVE-GP,
    because J is then a further variational parameter.

    Parameters
    ----------
    mean
        m [M + M2, P]. The mean of (u, w) is K' mh, where K' is the covariance of (u, w).
    site
        s [M + M2], positive: the noise variances for pseudo-observations of u and w, shared by the outputs.
    prior_inverse
        L0 [M, M], lower triangular with a positive diagonal, such that L0 L0^T ~ Kuu^-1. Auxiliary. The accuracy of L0
        depends on the conditioning of Kuu. With T0 = L0 L0^T, J is Kvu (2 T0 - T0 Kuu T0). The error of J is of second
        order in the error of T0. The gradient passes through J, but treats T0 as a constant.
    first_inverse, second_inverse
        The inverse factors Lu [M, M] and Lw [M2, M2] for the covariances of u and w, including the noise s. Auxiliary.
    sizes
        (M, M2).
    preconditioned
        If true (default), mh = PR m. If false, mh = m, and training is much slower.
    """

    site: Array = tree.param(POSITIVE, unit="site_unit")
    prior_inverse: Array = tree.auxiliary()
    first_inverse: Array = tree.auxiliary()
    second_inverse: Array = tree.auxiliary()
    sizes: tuple[int, int] = (0, 0)
    preconditioned: bool = True
    site_unit: Array | None = tree.unit(default=None)

    inverse_factors: ClassVar[tuple[str, ...]] = ("prior_inverse", "first_inverse", "second_inverse")

    def inverse_target(self, Kuu: Array, name: str = "prior_inverse", /) -> Array:
        if name == "prior_inverse":
            return self._blocks(Kuu)[0]
        M = self.sizes[0]
        if name == "first_inverse":
            return add_diagonal(self._blocks(Kuu)[0], self.site[:M])
        return add_diagonal(self._conditional_blocks(Kuu, self._regression(Kuu)[0])[1], self.site[M:])

    def _regression(self, Kuu: Array) -> tuple[Array, Pullback]:
        # J = Kvu P0, P0 = 2 T0 - T0 Kuu T0, and J_bar -> (Kvu_bar, Kuu_bar), the latter symmetric
        K, Kvu, _ = self._blocks(Kuu)
        V = self._prior_inverse_times(Kvu)

        def polished(XT: Array) -> Array:
            # X P0 from X T0
            return 2.0 * XT - self._prior_inverse_times(XT @ K)

        def pullback(J_bar):
            J_bar_T = self._prior_inverse_times(J_bar)
            outer = V.mT @ J_bar_T
            return polished(J_bar_T), -0.5 * (outer + outer.mT)

        return polished(V), pullback

    def _prior_inverse_times(self, X: Array) -> Array:
        # X T0 for X [M2, M]
        return lower_times(self.prior_inverse, times_lower(X, self.prior_inverse).mT).mT

    def _conditional_blocks(self, Kuu: Array, J: Array) -> tuple[Array, Array]:
        """Return the covariance [M2, M] of w with u, which is zero if J is exact, and the covariance [M2, M2] of w."""
        K, Kvu, Kvv = self._blocks(Kuu)
        Kwu = Kvu - J @ K
        return Kwu, symmetric_from_lower(Kvv - J @ Kvu.mT - Kwu @ J.mT)

    def factorise(self, Kuu: Array, /) -> tuple[RelaxedGroupsFactor, Pullback]:
        M = self.sizes[0]
        K = self._blocks(Kuu)[0]
        J, pull_J = self._regression(Kuu)
        Kwu, Kww = self._conditional_blocks(Kuu, J)
        joint = symmetric_from_blocks(K, Kwu.mT, Kww)
        L = block_diagonal([self.first_inverse, self.second_inverse], self.sizes)
        assert L is not None
        inner = Relaxed(self.mean, self.site, L, self.preconditioned)
        factor, pull_factor = inner.factorise(joint)

        def pullback(bar):
            inner_bar, joint_bar = pull_factor(bar.factor)
            inner_bar = tree.add(inner_bar, bar.inner)
            # dKwu = dKvu - dJ Kuu - J dKuu; dKww = dKvv - sym-parts of 2 (J dKuv + Kwu dJ^T) + J dKuu J^T
            Kvv_bar = joint_bar[M:, M:]
            Kwu_bar = 2.0 * joint_bar[M:, :M]
            twice = 2.0 * Kvv_bar
            J_bar = tree.add(bar.J, -(twice @ Kwu + Kwu_bar @ K))
            Kvu_bar, K_bar = pull_J(J_bar)
            cross = J.mT @ Kwu_bar
            K_bar = K_bar + joint_bar[:M, :M] + J.mT @ Kvv_bar @ J - 0.5 * (cross + cross.mT)
            Kvu_bar = Kvu_bar + Kwu_bar - twice @ J
            own = tree.cotangent(self, mean=inner_bar.mean, site=inner_bar.site)
            return own, symmetric_from_blocks(K_bar, 0.5 * Kvu_bar.mT, Kvv_bar)

        return RelaxedGroupsFactor(J, inner, factor), pullback

    def _features(self, J: Array, Kuf: Array) -> tuple[Array, Pullback]:
        xp = backend_of(Kuf).xp
        M = self.sizes[0]
        first = Kuf[:M, :]

        def pullback(bar):
            second_bar = bar[M:, :]
            return -second_bar @ first.mT, xp.concat([bar[:M, :] - J.mT @ second_bar, second_bar], axis=0)

        return xp.concat([first, Kuf[M:, :] - J @ first], axis=0), pullback


@tree.model
class RelaxedUnion(RelaxedGroups):
    """R-SVGP with two groups of inducing inputs. The inverse factor is built from one factor for each group.

    Let T_u = Lu Lu^T ~ (Kuu + diag s_u)^-1 and J = Kvu T_u. Let T_w = Lw Lw^T approximate the inverse of the covariance
    of v - J u, where u and v include the noise s. With G = [[I, 0], [-J, I]], the matrix G^T blkdiag(T_u, T_w) G
    approximates the inverse of K + diag(s). The bound is a lower bound on the log evidence for all values of the
    leaves. If the factors are exact, it equals the bound of L-SVGP with all M + M2 inducing inputs. With other factors,
    it does not exceed this value if ``preconditioned=False``. If ``preconditioned=True``, the factors also change the
    mean of q(u, v), so the bound may be above or below. This q(u, v) differs from that of SOLVE-GP. The inversion is as
    cheap as for SOLVE-GP, and it is well conditioned, because each inverted matrix includes the noise s.

    Parameters
    ----------
    mean, site, first_inverse, second_inverse, sizes, preconditioned
        As for `RelaxedOrthogonal`, but for (u, v) instead of (u, w).
    """

    site: Array = tree.param(POSITIVE, unit="site_unit")
    first_inverse: Array = tree.auxiliary()
    second_inverse: Array = tree.auxiliary()
    sizes: tuple[int, int] = (0, 0)
    preconditioned: bool = True
    site_unit: Array | None = tree.unit(default=None)

    inverse_factors: ClassVar[tuple[str, ...]] = ("first_inverse", "second_inverse")

    def inverse_target(self, Kuu: Array, name: str = "first_inverse", /) -> Array:
        M = self.sizes[0]
        K, Kvu, Kvv = self._blocks(Kuu)
        Kt = add_diagonal(K, self.site[:M])
        if name == "first_inverse":
            return Kt
        # the covariance of v - J u, where u and v include the noise
        J = self._regression(Kvu)
        Ct = add_diagonal(Kvv, self.site[M:]) - J @ Kvu.mT - (Kvu - J @ Kt) @ J.mT
        return symmetric_from_lower(Ct)

    def _regression(self, Kvu: Array) -> Array:
        # J = Kvu Lu Lu^T, a constant because Lu is a constant
        J = lower_times(self.first_inverse, times_lower(Kvu, self.first_inverse).mT).mT
        return backend_of(J).stop_gradient(J)

    def factorise(self, Kuu: Array, /) -> tuple[RelaxedGroupsFactor, Pullback]:
        # with v before u the factor G^T blkdiag(Lu, Lw) is lower triangular: [[Lw, 0], [-J^T Lw, Lu]]
        B = backend_of(Kuu)
        K, Kvu, Kvv = self._blocks(Kuu)
        Lu, Lw = self.first_inverse, self.second_inverse
        J = self._regression(Kvu)
        L = B.join_blocks(Lw, B.xp.zeros_like(Kvu), -times_lower(J.mT, Lw), Lu)
        inner = Relaxed(self._swap_groups(self.mean), self._swap_groups(self.site), L, self.preconditioned)
        factor, pull_factor = inner.factorise(symmetric_from_blocks(Kvv, Kvu, K))

        def pullback(bar):
            inner_bar, K_bar = pull_factor(bar.factor)
            inner_bar = tree.add(inner_bar, bar.inner)
            own = {"mean": self._unswap_groups(inner_bar.mean), "site": self._unswap_groups(inner_bar.site)}
            rows = self._unswap_groups(K_bar)
            return tree.cotangent(self, **own), self._unswap_groups(rows.mT).mT

        return RelaxedGroupsFactor(J, inner, factor), pullback

    def _swap_groups(self, x: Array) -> Array:
        """Reorder the rows of x [M + M2, ...] so that the second group comes first."""
        M = self.sizes[0]
        return backend_of(x).xp.concat([x[M:, ...], x[:M, ...]], axis=0)

    def _unswap_groups(self, x: Array) -> Array:
        M2 = self.sizes[1]
        return backend_of(x).xp.concat([x[M2:, ...], x[:M2, ...]], axis=0)

    def _features(self, J: Array, Kuf: Array) -> tuple[Array, Pullback]:
        return self._swap_groups(Kuf), lambda bar: (None, self._unswap_groups(bar))
