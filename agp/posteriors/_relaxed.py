"""R-SVGP: the inverse-free relaxation of q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu), Kt = Kuu + S.

With L L^T ~ Kt^-1 (an auxiliary array, improved by `agp.updates.InverseUpdate`) let B = L^T Kt L, G = B - I, J = I - G.
PR = L J L^T is one Newton-Schulz step from T = L L^T towards Kt^-1 and never exceeds it, so Kuu - Kuu PR Kuu is a valid
covariance for every L, and

    KL <= 1/2 [ sum(mh * (Kuu mh)) + P (-M + tr G + |G|^2 + tr U - sum(U * G) - 2 sum log diag L - log|S|) ]

with U = L^T S L is a bound for every L, tight where G = 0. Only matrix products occur. L is constant in the gradient.
`Relaxed` has S = diag(s), `FullSiteRelaxed` S = C C^T, whose log determinant is that of a triangle. Where random probes
are drawn for a step, `ProbedRelaxed` takes the place of `Relaxed`: the same posterior, in which the traces are
estimated and no product of two [M, M] matrices occurs.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_whole
from agp.constraints import LOWER, POSITIVE
from agp.linalg import (
    Gap,
    add_diagonal,
    congruence,
    diagonal,
    gram,
    lower_times,
    lower_transposed_times,
    nonnegative,
    symmetric_from_lower,
)
from agp.posteriors._base import Posterior
from agp.posteriors._relaxed_form import RelaxedForm
from agp.posteriors._relaxed_probed import ProbedRelaxed
from agp.posteriors._site_form import Preconditioned
from agp.posteriors._site_noise import FactoredNoise, SiteNoise

__all__ = ["FullSiteRelaxed", "Relaxed", "RelaxedFactor"]

EXACT_UP_TO = 2048
"""The largest M for which traces are exact unless the user says otherwise."""
PROBES = 256
"""Probes for larger M."""


@tree.model
class RelaxedFactor:
    """Kuu [M, M] and G = L^T (Kuu + S) L - I [M, M]."""

    Kuu: Array = tree.auxiliary()
    G: Array = tree.auxiliary()


class ExactRelaxed(RelaxedForm):
    """The relaxed parameterisation for either S, its traces exact."""

    def factorise(self, Kuu: Array, /) -> tuple[RelaxedFactor, Pullback]:
        L = self.inverse_factor
        G = add_diagonal(symmetric_from_lower(gram(self.inverse_target(Kuu), L)), -1.0)

        def pullback(factor_bar):
            Kt_bar = congruence(L, factor_bar.G)
            return self._bars(noise=self.site_noise.pulled(Kt_bar)), tree.add(Kt_bar, factor_bar.Kuu)

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

    def project(self, factor: RelaxedFactor, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # E = L^T Kuf;  mu = Kuf^T mh;  var = kff - colsum(E * (J E)), the same for every output
        xp = backend_of(Kuf).xp
        L, G = self.inverse_factor, factor.G
        mh, pull_weights = self._weights(factor)
        E = lower_transposed_times(L, Kuf)
        JE = E - G @ E
        residual, pull_residual = nonnegative(kff - xp.sum(E * JE, axis=0))
        var = xp.broadcast_to(residual[:, None], (residual.shape[0], self.mean.shape[1]))

        def pullback(mu_bar, var_bar):
            kff_bar = pull_residual(xp.sum(var_bar, axis=1))
            mean_bar, G_bar = pull_weights(Kuf @ mu_bar)
            Kuf_bar = mh @ mu_bar.mT - 2.0 * lower_times(L, JE * kff_bar)
            factor_bar = RelaxedFactor(None, tree.add((E * kff_bar) @ E.mT, G_bar))
            return self._bars(mean=mean_bar), factor_bar, Kuf_bar, kff_bar

        return (Kuf.mT @ mh, var), pullback

    def kl_divergence(self, factor: RelaxedFactor, /) -> tuple[Array, Pullback]:
        xp = backend_of(factor.G).xp
        L, Kuu, G = self.inverse_factor, factor.Kuu, factor.G
        M, P = self.mean.shape
        mh, pull_weights = self._weights(factor)
        Kuu_mh = Kuu @ mh
        trace, trace_bar, seen = self.site_noise.trace_relaxed(L, G)  # tr U - sum(U * G)
        log_noise, log_bar = self.site_noise.log_determinant()
        logs = 2.0 * xp.sum(xp.log(diagonal(L))) + log_noise
        kl = 0.5 * (xp.sum(mh * Kuu_mh) + P * (xp.sum(diagonal(G)) + xp.sum(G * G) + trace - logs - M))

        def pullback(bar):
            mean_bar, mean_G_bar = pull_weights(bar * Kuu_mh)
            G_bar = tree.add(0.5 * P * bar * add_diagonal(2.0 * G - seen(), 1.0), mean_G_bar)
            bars = self._bars(mean=mean_bar, noise=0.5 * P * bar * (trace_bar - log_bar))
            return bars, RelaxedFactor(0.5 * bar * mh @ mh.mT, G_bar)

        return kl, pullback

    def path_weights(self, factor: RelaxedFactor, values: Array, noise: Array, /) -> Array:
        # mh - T (values + S^(1/2) noise) with T = L L^T: since Kuf^T (2 T - T Kt T) Kuf = Kuf^T PR Kuf, the covariances
        # are those of q for every L, without a root of PR
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
        m [M, P]; the mean of u is Kuu mh with mh = PR m (preconditioned), mh = m, or mh = L^T m ("root").
    site
        s [M], positive: the variances of pseudo-observations of u, shared by the outputs.
    inverse_factor
        L [M, M], lower with positive diagonal, L L^T ~ (Kuu + diag s)^-1. Auxiliary.
    preconditioned
        Whether mh = PR m (the default; it trains much faster); "root" is mh = L^T m with a dimensionless m, for
        comparisons: the inversion moves that mean, which the gradient, at constant L, does not see.
    probes
        How many random vectors estimate the traces of the KL divergence in training; 0, or M and more, for exact
        traces. By default exact up to M = 2048, and 256 probes above. The estimates of value and gradient are unbiased;
        bounds evaluated outside of training are exact.

    Source: Cortinovis, Aitchison, Eleftheriadis & van der Wilk, "Inverse-free sparse variational Gaussian processes".
    """

    mean: Array = tree.param(unit="mean_unit")
    site: Array = tree.param(POSITIVE, unit="site_unit")
    inverse_factor: Array = tree.auxiliary()
    preconditioned: Preconditioned = True
    probes: int | None = None
    mean_unit: Array | None = tree.unit(default=None)
    site_unit: Array | None = tree.unit(default=None)

    bounds_variance_gap: ClassVar[bool] = True

    def variance_gap(self, Kuf: Array, /) -> Gap:
        # with T = L L^T, the variance of datum n exceeds the exact one by at most |(I - Kt T) k_un|^2 / min_i s_i
        xp = backend_of(Kuf).xp
        smallest = xp.min(self.site)

        def measured(A: Array, L: Array, _gram: Array) -> Array:
            missing = Kuf - A @ lower_times(L, lower_transposed_times(L, Kuf))
            return xp.sum(missing * missing) / smallest

        return measured

    def draws(self, rng: Any, /) -> dict[str, Any]:
        """Rademacher probes [M, K], or nothing where the traces are exact."""
        M = self.site.shape[0]
        usual = 0 if M <= EXACT_UP_TO else PROBES
        probes = usual if self.probes is None else check_whole("probes", self.probes, least=0)
        return {"probes": 2.0 * rng.integers(0, 2, size=(M, probes)) - 1.0} if 0 < probes < M else {}

    def drawn(self, draws: Mapping[str, Array], /) -> Posterior:
        if "probes" not in draws:
            return self
        return ProbedRelaxed(
            self.mean, self.site, self.inverse_factor, noise=draws["probes"], preconditioned=self.preconditioned
        )

    @classmethod
    def from_prior(
        cls, Kuu: Array, outputs: int, /, *, preconditioned: Preconditioned = True, probes: int | None = None
    ) -> Self:
        leaves = cls._prior_leaves(Kuu, outputs, preconditioned)
        return cls(**leaves, inverse_factor=None, probes=probes).inverted_anew(Kuu)


@tree.model
class FullSiteRelaxed(ExactRelaxed):
    """The relaxed parameterisation with correlated noise C C^T, without factorisations or solves.

    Parameters
    ----------
    mean, inverse_factor, preconditioned
        As for `Relaxed`, with L L^T ~ (Kuu + C C^T)^-1.
    site_scale
        C [M, M], lower triangular, with a diagonal of either sign but not zero: the covariance of pseudo-observations
        of u, shared by the outputs, is C C^T.
    """

    mean: Array = tree.param(unit="mean_unit")
    site_scale: Array = tree.param(LOWER, unit="site_scale_unit")
    inverse_factor: Array = tree.auxiliary()
    preconditioned: Preconditioned = True
    mean_unit: Array | None = tree.unit(default=None)
    site_scale_unit: Array | None = tree.unit(default=None)

    noise_kind: ClassVar[type[SiteNoise]] = FactoredNoise

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /, *, preconditioned: Preconditioned = True) -> Self:
        return cls(**cls._prior_leaves(Kuu, outputs, preconditioned), inverse_factor=None).inverted_anew(Kuu)
