"""R-SVGP: the inverse-free relaxation of q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu) with Kt = Kuu + S.

Let L be an auxiliary array with L L^T ~ Kt^-1, and let B = L^T Kt L, G = B - I and J = I - G. The matrix PR = L J L^T
is one Newton-Schulz step from T = L L^T towards Kt^-1. Since PR <= Kt^-1 for every L, Kuu - Kuu PR Kuu is a valid
covariance, and

    KL <= 1/2 [ sum(mh * (Kuu mh)) + P (-M + tr G + |G|^2 + tr U - sum(U * G) - 2 sum log diag L - log|S|) ]

Here U = L^T S L. This bound holds for every L, is tight if G = 0, and requires only matrix products. The gradient
treats L as a constant; `agp.updates.InverseUpdate` updates L. S is diag(s) in `Relaxed` and C C^T in `FullSiteRelaxed`.
In training steps with random probes, `ProbedRelaxed` replaces `Relaxed`.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import check_whole
from agp.linalg import (
    Gap,
    add_diagonal,
    block_diagonal,
    congruence,
    diagonal,
    gram,
    lower_of,
    lower_times,
    lower_transposed_times,
    symmetric_from_lower,
)
from agp.posteriors._base import InverseFactored, Posterior
from agp.posteriors._site_form import GrowingSiteForm, PairFactor, Preconditioned
from agp.posteriors._site_noise import FactoredNoise, SiteNoise
from agp.tree import LOWER, POSITIVE

EXACT_UP_TO = 2048
"""The largest M for which traces are exact by default."""
PROBES = 256
"""The default number of probes for larger M."""


class RelaxedForm(InverseFactored[PairFactor], GrowingSiteForm[PairFactor]):
    """q(u) = N(Kuu mh, Kuu - Kuu PR Kuu), where PR is one Newton-Schulz step from L L^T towards (Kuu + S)^-1."""

    inverse_factor: Array

    target_leaves: ClassVar[tuple[str, ...]] = ("site",)
    mean_weights: ClassVar[tuple[Preconditioned, ...]] = (True, False, "root")

    def inverse_target(self, Kuu: Array, name: str = "inverse_factor", /) -> Array:
        """Return Kuu + S [M, M], the matrix whose inverse is approximated by L L^T."""
        return self.site_noise.add_to_covariance(Kuu)

    def _weights(self, factor: PairFactor) -> tuple[Array, Pullback]:
        L, m = self.inverse_factor, self.mean
        if self.preconditioned == "root":
            return lower_transposed_times(L, m), lambda mh_bar: (lower_times(L, mh_bar), None)
        if not self.preconditioned:
            return m, lambda mh_bar: (mh_bar, None)
        return self._preconditioned_weights(factor)

    def _extend_inverse_factors(self, Kuu: Array, new: int) -> Self:
        # start from diag(L, S^-1/2), the factor for large new variances
        M = self.mean.shape[0] - new
        deviations = self.site_noise.variances[M:] ** 0.5
        corner = backend_of(Kuu).xp.eye(new, **like(Kuu)) / deviations[:, None]
        start = block_diagonal([self.inverse_factor, corner], [M, new])
        return tree.with_leaves(self, {"inverse_factor": self._invert_from(Kuu, "inverse_factor", start)})

    @abstractmethod
    def _preconditioned_weights(self, factor: PairFactor) -> tuple[Array, Pullback]:
        """Return mh = PR m [M, P] and its pullback, as `_weights` does."""


@tree.model
class RelaxedFactor:
    """Kuu [M, M] and G = L^T (Kuu + S) L - I [M, M]."""

    Kuu: Array = tree.auxiliary()
    G: Array = tree.auxiliary()
    weights: Array | None = tree.constant(default=None, optional=True)
    """The weights [M, P] of means, after `Posterior.prepare_means`."""


class ExactRelaxed(RelaxedForm[RelaxedFactor]):
    """The relaxed parameterisation for a diagonal or a full S, with exact traces."""

    def factorise(self, Kuu: Array, /) -> tuple[RelaxedFactor, Pullback]:
        L = self.inverse_factor
        G = add_diagonal(symmetric_from_lower(gram(self.inverse_target(Kuu), L)), -1.0)

        def pullback(factor_bar):
            Kt_bar = congruence(L, factor_bar.G)
            return self._bars(noise=self.site_noise.pullback(Kt_bar)), tree.add(Kt_bar, factor_bar.Kuu)

        return RelaxedFactor(Kuu, G), pullback

    def _preconditioned_weights(self, factor: RelaxedFactor) -> tuple[Array, Pullback]:
        # mh = L J a with a = L^T m, and mh_bar -> (mean_bar, G_bar)
        L, G = self.inverse_factor, factor.G
        a = lower_transposed_times(L, self.mean)

        def pullback(mh_bar):
            b = lower_transposed_times(L, mh_bar)
            outer = b @ a.mT
            return lower_times(L, b - G @ b), -0.5 * (outer + outer.mT)

        return lower_times(L, a - G @ a), pullback

    def _variances(self, factor: RelaxedFactor, Kuf: Array, kff: Array) -> tuple[Array, Pullback]:
        # kff - colsum(E * (J E)) with E = L^T Kuf
        L = self.inverse_factor
        E = lower_transposed_times(L, Kuf)
        JE = E - factor.G @ E

        def pullback(bar):
            return -2.0 * lower_times(L, JE * bar), (E * bar) @ E.mT

        return kff - backend_of(Kuf).xp.sum(E * JE, axis=0), pullback

    def _covariance_kl(self, factor: RelaxedFactor) -> tuple[Array, Pullback]:
        # tr G + |G|^2 + tr U - sum(U * G) - 2 sum log diag L - log|S| - M
        xp = backend_of(factor.G).xp
        L, G, (M, P) = self.inverse_factor, factor.G, self.mean.shape
        trace, trace_bar, seen = self.site_noise.trace_relaxed(L, G)  # tr U - sum(U * G)
        log_noise, log_bar = self.site_noise.log_determinant()
        logs = 2.0 * xp.sum(xp.log(diagonal(L))) + log_noise

        def pullback(bar):
            return 0.5 * P * bar * (trace_bar - log_bar), 0.5 * P * bar * add_diagonal(2.0 * G - seen(), 1.0)

        return xp.sum(diagonal(G)) + xp.sum(G * G) + trace - logs - M, pullback

    def path_weights(self, factor: RelaxedFactor, values: Array, noise: Array, /) -> Array:
        # mh - T (values + S^(1/2) noise) with T = L L^T; since 2 T - T Kt T = PR, the covariances are those of q for
        # every L, without a root of PR
        L = self.inverse_factor
        observed = values + self.site_noise.root_times(noise)
        return self._weights(factor)[0].mT[:, :, None] - L @ (L.mT @ observed)

    def project_covariance(self, factor: RelaxedFactor, Kuf: Array, Kff: Array, /) -> Array:
        E = lower_transposed_times(self.inverse_factor, Kuf)
        covariance = Kff - E.mT @ (E - factor.G @ E)
        return backend_of(Kuf).xp.broadcast_to(covariance, (self.outputs, *covariance.shape))


@tree.model
class Relaxed(ExactRelaxed):
    """The relaxed parameterisation: training and prediction without factorisations or solves.

    Parameters
    ----------
    mean
        m [M, P]. The mean of u is Kuu mh.
    site
        s [M], positive: the noise variances for pseudo-observations of u, shared by the outputs.
    inverse_factor
        L [M, M], lower triangular with a positive diagonal, such that L L^T ~ (Kuu + diag s)^-1. Auxiliary.
    preconditioned
        If true (default), mh = PR m. If false, mh = m, and training is much slower. If "root", mh = L^T m with a
        dimensionless m. The value "root" is for comparisons only: updates of L then change the mean, and the gradient
        ignores this change.
    probes
        The number of random vectors for estimating the traces in the KL divergence during training. For exact traces,
        pass 0 or a number of at least M. By default, traces are exact up to M = 2048, and are estimated from 256 probes
        for larger M. The estimates of both the value and the gradient are unbiased. Outside training, traces are always
        exact.

    Source: Cortinovis, Aitchison, Eleftheriadis & van der Wilk, "Inverse-free sparse variational Gaussian processes".
    """

    site: Array = tree.param(POSITIVE, unit="site_unit")
    inverse_factor: Array = tree.auxiliary()
    preconditioned: Preconditioned = True
    probes: int | None = None
    site_unit: Array | None = tree.unit(default=None)

    bounds_variance_gap: ClassVar[bool] = True

    def variance_gap(self, Kuf: Array, /) -> Gap:
        # with T = L L^T, the variance of row n exceeds the exact variance by at most |(I - Kt T) k_un|^2 / min_i s_i
        xp = backend_of(Kuf).xp
        smallest = xp.min(self.site)

        def measured(A: Array, L: Array, _gram: Array) -> Array:
            missing = Kuf - A @ lower_times(L, lower_transposed_times(L, Kuf))
            return xp.sum(missing * missing) / smallest

        return measured

    def draws(self, rng: Any, /) -> dict[str, Any]:
        """Draw Rademacher probes [M, K], or nothing if the traces are exact."""
        M = self.site.shape[0]
        usual = 0 if M <= EXACT_UP_TO else PROBES
        probes = usual if self.probes is None else check_whole("probes", self.probes, least=0)
        return {"probes": 2.0 * rng.integers(0, 2, size=(M, probes)) - 1.0} if 0 < probes < M else {}

    def with_draws(self, draws: Mapping[str, Array], /) -> Posterior[Any]:
        if "probes" not in draws:
            return self
        return ProbedRelaxed(
            self.mean, self.site, self.inverse_factor, noise=draws["probes"], preconditioned=self.preconditioned
        )

    @classmethod
    def from_prior(
        cls, Kuu: Array, outputs: int, /, *, preconditioned: Preconditioned = True, probes: int | None = None
    ) -> Self:
        return dataclasses.replace(super().from_prior(Kuu, outputs, preconditioned=preconditioned), probes=probes)


@tree.model
class FullSiteRelaxed(ExactRelaxed):
    """The relaxed parameterisation with correlated noise in the pseudo-observations, without factorisations or solves.

    Parameters
    ----------
    mean, inverse_factor, preconditioned
        As for `Relaxed`, but with L L^T ~ (Kuu + C C^T)^-1.
    site_scale
        C [M, M], lower triangular. Pseudo-observations of u have noise with the covariance C C^T, shared by the
        outputs. Diagonal entries of C may be negative, but not zero.
    """

    site_scale: Array = tree.param(LOWER, unit="site_scale_unit")
    inverse_factor: Array = tree.auxiliary()
    preconditioned: Preconditioned = True
    site_scale_unit: Array | None = tree.unit(default=None)

    noise_kind: ClassVar[type[SiteNoise]] = FactoredNoise
    target_leaves: ClassVar[tuple[str, ...]] = ("site_scale",)


@tree.model
class ProbedFactor:
    """The matrices Kuu and Kt = Kuu + diag(s), both [M, M]."""

    Kuu: Array = tree.auxiliary()
    Kt: Array = tree.auxiliary()
    weights: Array | None = tree.constant(default=None, optional=True)
    """The weights [M, P] of means, after `Posterior.prepare_means`."""


@tree.model
class ProbedRelaxed(RelaxedForm[ProbedFactor]):
    """`Relaxed` with traces estimated from probes, for one evaluation of the bound and its gradient.

    Let Z [M, K] be the probes, W = G Z and U = L^T diag(s) L Z. Computing W and U takes only products of [M, M] and
    [M, K] matrices, and no product of two [M, M] matrices. The estimate is

        -tr(PR Kuu) + tr(Kt T) - M ~ -M + sum_i s_i |L_i:|^2 + sum((Z + W - U) * W) / K

    The estimate is unbiased. If G = 0, the value is exact, but the gradient still has noise of order 1 / sqrt(K). The
    matrix G is never computed, because J x = 2 x - L^T (Kt (L x)).

    Source: Hutchinson's estimator, as in Cortinovis et al. Here the terms are rearranged so that the probes estimate
    only the residual.
    """

    site: Array = tree.param(POSITIVE)
    inverse_factor: Array = tree.auxiliary()
    noise: Array = tree.constant()
    """The probes Z [M, K], with entries +1 and -1."""
    preconditioned: Preconditioned = True

    def factorise(self, Kuu: Array, /) -> tuple[ProbedFactor, Pullback]:
        def pullback(factor_bar):
            return tree.cotangent(self, site=diagonal(factor_bar.Kt)), tree.add(factor_bar.Kt, factor_bar.Kuu)

        return ProbedFactor(Kuu, self.inverse_target(Kuu)), pullback

    def _inverse_times(self, X: Array) -> Array:
        # T X for X [M, P]
        return lower_times(self.inverse_factor, lower_transposed_times(self.inverse_factor, X))

    def _preconditioned_weights(self, factor: ProbedFactor) -> tuple[Array, Pullback]:
        # mh = PR m = T (2 m - Kt T m), and mh_bar -> (mean_bar, Kt_bar)
        m = self.mean
        Tm = self._inverse_times(m)

        def pullback(mh_bar):
            Tb = self._inverse_times(mh_bar)
            outer = Tb @ Tm.mT
            return self._inverse_times(2.0 * mh_bar - factor.Kt @ Tb), -0.5 * (outer + outer.mT)

        return self._inverse_times(2.0 * m - factor.Kt @ Tm), pullback

    def _variances(self, factor: ProbedFactor, Kuf: Array, kff: Array) -> tuple[Array, Pullback]:
        # kff - 2 colsum(E^2) + colsum(TK * (Kt TK)) with E = L^T Kuf, TK = L E
        E = lower_transposed_times(self.inverse_factor, Kuf)
        TK = lower_times(self.inverse_factor, E)
        KTK = factor.Kt @ TK

        def pullback(bar):
            # -2 PR Kuf diag(bar)
            Kuf_bar = 2.0 * (self._inverse_times(KTK) - 2.0 * TK) * bar
            return Kuf_bar, symmetric_from_lower(lower_of(TK * bar, TK.mT))

        return kff - backend_of(Kuf).xp.sum(2.0 * E * E - TK * KTK, axis=0), pullback

    def _covariance_kl(self, factor: ProbedFactor) -> tuple[Array, Pullback]:
        xp = backend_of(factor.Kt).xp
        L, s, Z, Kt, (M, P) = self.inverse_factor, self.site, self.noise, factor.Kt, self.mean.shape
        K, rows = Z.shape[1], xp.sum(L * L, axis=-1)
        LZ = lower_times(L, Z)
        W = lower_transposed_times(L, Kt @ LZ) - Z
        U = lower_transposed_times(L, s[:, None] * LZ)
        logs = 2.0 * xp.sum(xp.log(diagonal(L))) + xp.sum(xp.log(s))

        def pullback(bar):
            LW = lower_times(L, W)
            outer = (LZ + 2.0 * LW - lower_times(L, U)) @ LZ.mT
            site_bar = 0.5 * P * bar * (rows - xp.sum(LZ * LW, axis=-1) / K - 1.0 / s)
            return site_bar, 0.25 * P / K * bar * (outer + outer.mT)

        return xp.sum(s * rows) + xp.sum((Z + W - U) * W) / K - logs - M, pullback

    def project_covariance(self, factor: ProbedFactor, Kuf: Array, Kff: Array, /) -> Array:
        E = lower_transposed_times(self.inverse_factor, Kuf)
        TK = lower_times(self.inverse_factor, E)
        covariance = Kff - 2.0 * E.mT @ E + TK.mT @ (factor.Kt @ TK)
        return backend_of(Kuf).xp.broadcast_to(covariance, (self.outputs, *covariance.shape))
