"""R-SVGP where random probes are drawn for a step: its traces are estimated."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.constraints import POSITIVE
from agp.linalg import diagonal, lower_of, lower_times, lower_transposed_times, nonnegative, symmetric_from_lower
from agp.posteriors._relaxed_form import RelaxedForm
from agp.posteriors._site_form import Preconditioned

__all__ = ["ProbedFactor", "ProbedRelaxed"]


@tree.model
class ProbedFactor:
    """Kuu and Kt = Kuu + diag(s), both [M, M]."""

    Kuu: Array = tree.auxiliary()
    Kt: Array = tree.auxiliary()


@tree.model
class ProbedRelaxed(RelaxedForm):
    """`Relaxed` with its traces estimated by probes, for one evaluation of the bound and its gradient.

    With W = G Z and U = L^T diag(s) L Z for the probes Z [M, K], all by products of [M, M] with [M, K],

        -tr(PR Kuu) + tr(Kt T) - M ~ -M + sum_i s_i |L_i:|^2 + sum((Z + W - U) * W) / K

    which is unbiased, and exact at G = 0. There the estimate of the gradient keeps a noise of order 1 / sqrt(K). G is
    never formed: J x = 2 x - L^T (Kt (L x)).

    Parameters
    ----------
    mean, site, inverse_factor, preconditioned
        As for `Relaxed`.
    noise
        The probes Z [M, K], with entries +1 and -1.

    Source: Hutchinson's estimator as in Cortinovis et al., rearranged so that it estimates the residual alone.
    """

    mean: Array = tree.param()
    site: Array = tree.param(POSITIVE)
    inverse_factor: Array = tree.auxiliary()
    noise: Array = tree.constant()
    preconditioned: Preconditioned = True

    def factorise(self, Kuu: Array, /) -> tuple[Any, Pullback]:
        def pullback(factor_bar):
            return tree.cotangent(self, site=diagonal(factor_bar.Kt)), tree.add(factor_bar.Kt, factor_bar.Kuu)

        return ProbedFactor(Kuu, self.inverse_target(Kuu)), pullback

    def _inverse_times(self, X: Array) -> Array:
        # T X for X [M, P]
        return lower_times(self.inverse_factor, lower_transposed_times(self.inverse_factor, X))

    def _preconditioned_weights(self, factor: Any) -> tuple[Array, Pullback]:
        # mh = PR m = T (2 m - Kt T m), and mh_bar -> (mean_bar, Kt_bar)
        m = self.mean
        Tm = self._inverse_times(m)

        def pullback(mh_bar):
            Tb = self._inverse_times(mh_bar)
            outer = Tb @ Tm.mT
            return self._inverse_times(2.0 * mh_bar - factor.Kt @ Tb), -0.5 * (outer + outer.mT)

        return self._inverse_times(2.0 * m - factor.Kt @ Tm), pullback

    def project(self, factor: Any, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # var = kff - 2 colsum(E^2) + colsum(TK * (Kt TK)),  TK = L E
        xp = backend_of(Kuf).xp
        L = self.inverse_factor
        mh, pull_weights = self._weights(factor)
        E = lower_transposed_times(L, Kuf)
        TK = lower_times(L, E)
        KTK = factor.Kt @ TK
        residual, pull_residual = nonnegative(kff - xp.sum(2.0 * E * E - TK * KTK, axis=0))
        var = xp.broadcast_to(residual[:, None], (residual.shape[0], self.mean.shape[1]))

        def pullback(mu_bar, var_bar):
            kff_bar = pull_residual(xp.sum(var_bar, axis=1))
            mean_bar, Kt_bar = pull_weights(Kuf @ mu_bar)
            # -2 PR Kuf diag(v)
            Kuf_bar = mh @ mu_bar.mT + 2.0 * (self._inverse_times(KTK) - 2.0 * TK) * kff_bar
            factor_bar = ProbedFactor(None, tree.add(symmetric_from_lower(lower_of(TK * kff_bar, TK.mT)), Kt_bar))
            return tree.cotangent(self, mean=mean_bar), factor_bar, Kuf_bar, kff_bar

        return (Kuf.mT @ mh, var), pullback

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        xp = backend_of(factor.Kt).xp
        L, s, Z = self.inverse_factor, self.site, self.noise
        Kuu, Kt = factor.Kuu, factor.Kt
        M, P = self.mean.shape
        K = Z.shape[1]
        mh, pull_weights = self._weights(factor)
        Kuu_mh, rows = Kuu @ mh, xp.sum(L * L, axis=-1)
        LZ = lower_times(L, Z)
        W = lower_transposed_times(L, Kt @ LZ) - Z
        U = lower_transposed_times(L, s[:, None] * LZ)
        logs = 2.0 * xp.sum(xp.log(diagonal(L))) + xp.sum(xp.log(s))
        per_output = xp.sum(s * rows) + xp.sum((Z + W - U) * W) / K - logs - M
        kl = 0.5 * (xp.sum(mh * Kuu_mh) + P * per_output)

        def pullback(bar):
            mean_bar, mean_Kt_bar = pull_weights(bar * Kuu_mh)
            LW = lower_times(L, W)
            outer = (LZ + 2.0 * LW - lower_times(L, U)) @ LZ.mT
            Kt_bar = tree.add(0.25 * P / K * bar * (outer + outer.mT), mean_Kt_bar)
            site_bar = 0.5 * P * bar * (rows - xp.sum(LZ * LW, axis=-1) / K - 1.0 / s)
            return tree.cotangent(self, mean=mean_bar, site=site_bar), ProbedFactor(0.5 * bar * mh @ mh.mT, Kt_bar)

        return kl, pullback

    def project_covariance(self, factor: Any, Kuf: Array, Kff: Array, /) -> Array:
        E = lower_transposed_times(self.inverse_factor, Kuf)
        TK = lower_times(self.inverse_factor, E)
        covariance = Kff - 2.0 * E.mT @ E + TK.mT @ (factor.Kt @ TK)
        return backend_of(Kuf).xp.broadcast_to(covariance, (self.outputs, *covariance.shape))

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:  # noqa: ARG003
        msg = "the probes of ProbedRelaxed are drawn for one evaluation of a bound; start from Relaxed.from_prior."
        raise TypeError(msg)
