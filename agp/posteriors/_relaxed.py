"""R-SVGP: the inverse-free relaxation of q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu), Kt = Kuu + diag(s).

With L L^T ~ Kt^-1 (an auxiliary array, improved by `agp.updates.InverseUpdate`) let B = L^T Kt L, G = B - I, J = I - G.
PR = L J L^T is one Newton-Schulz step from T = L L^T towards Kt^-1 and never exceeds it, so S = Kuu - Kuu PR Kuu is a
valid covariance for every L, and

    KL <= 1/2 [ sum(mh * (Kuu mh)) + P (-M + tr G + |G|^2 + tr U - sum(U * G) - 2 sum log diag L - sum log s) ]

with U = L^T diag(s) L is a bound for every L, tight where G = 0. Only matrix products occur. L is constant in the
gradient. Where random probes are drawn for a step, `ProbedRelaxed` takes the place of `Relaxed`: the same posterior, in
which the traces are estimated and no product of two [M, M] matrices occurs.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import check_whole
from agp.constraints import POSITIVE
from agp.linalg import (
    congruence,
    diagonal,
    gram,
    identity,
    lower_times,
    lower_times_lower,
    lower_transposed_product,
    lower_transposed_times,
    nonnegative,
    phi,
    symmetric_from_lower,
)
from agp.posteriors._base import Posterior
from agp.posteriors._relaxed_form import RelaxedForm
from agp.posteriors._relaxed_probed import ProbedRelaxed
from agp.posteriors._site_form import prior_leaves

__all__ = ["Relaxed", "RelaxedFactor"]

EXACT_UP_TO = 2048
"""The largest M for which traces are exact unless the user says otherwise."""
PROBES = 256
"""Probes for larger M."""


class RelaxedFactor(NamedTuple):
    """Kuu [M, M] and G = L^T (Kuu + diag s) L - I [M, M]."""

    Kuu: Array
    G: Array


@tree.model
class Relaxed(RelaxedForm):
    """The relaxed parameterisation: training and prediction without factorisations or solves.

    Parameters
    ----------
    mean
        m [M, P]; the mean of u is Kuu mh with mh = PR m (preconditioned) or mh = m.
    site
        s [M], positive: the variances of pseudo-observations of u, shared by the outputs.
    inverse_factor
        L [M, M], lower with positive diagonal, L L^T ~ (Kuu + diag s)^-1. Auxiliary.
    preconditioned
        Whether mh = PR m (the default; it trains much faster).
    probes
        How many random vectors estimate the traces of the KL divergence in training; 0, or M and more, for exact
        traces. By default exact up to M = 2048, and 256 probes above. The estimates of value and gradient are unbiased;
        bounds evaluated outside of training are exact.

    Source: Cortinovis, Aitchison, Eleftheriadis & van der Wilk, "Inverse-free sparse variational Gaussian processes".
    """

    mean: Array = tree.param(unit="mean_unit")
    site: Array = tree.param(POSITIVE, unit="site_unit")
    inverse_factor: Array = tree.auxiliary()
    preconditioned: bool = True
    probes: int | None = None
    mean_unit: Array | None = tree.unit(default=None)
    site_unit: Array | None = tree.unit(default=None)

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

    def factorise(self, Kuu: Array, /) -> tuple[RelaxedFactor, Pullback]:
        L, eye = self.inverse_factor, identity(Kuu)
        G = symmetric_from_lower(gram(self.inverse_target(Kuu), L)) - eye

        def pullback(factor_bar):
            Kt_bar = congruence(L, factor_bar.G)
            return tree.cotangent(self, site=diagonal(Kt_bar)), tree.add(Kt_bar, factor_bar.Kuu)

        return RelaxedFactor(Kuu, G), pullback

    def _weights(self, factor: RelaxedFactor) -> tuple[Array, Pullback]:
        # mh [M, P], and mh_bar -> (mean_bar, G_bar)
        L, G, m = self.inverse_factor, factor.G, self.mean
        if not self.preconditioned:
            return m, lambda mh_bar: (mh_bar, None)
        a = lower_transposed_times(L, m)

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
            return tree.cotangent(self, mean=mean_bar), factor_bar, Kuf_bar, kff_bar

        return (Kuf.mT @ mh, var), pullback

    def kl_divergence(self, factor: RelaxedFactor, /) -> tuple[Array, Pullback]:
        xp = backend_of(factor.G).xp
        L, s, (Kuu, G) = self.inverse_factor, self.site, factor
        M, P = self.mean.shape
        eye = xp.eye(M, **like(G))
        mh, pull_weights = self._weights(factor)
        Kuu_mh = Kuu @ mh
        # diag(L J L^T), where diag(L G L^T) = 2 rowsum(L * (L Phi(G))); then tr U - sum(U * G) = sum_i s_i of it
        relaxed_diag = xp.sum(L * (L - 2.0 * lower_times_lower(L, phi(G))), axis=-1)
        logs = 2.0 * xp.sum(xp.log(xp.sum(L * eye, axis=-1))) + xp.sum(xp.log(s))
        per_output = xp.sum(G * eye) + xp.sum(G * G) + xp.sum(s * relaxed_diag) - logs - M
        kl = 0.5 * (xp.sum(mh * Kuu_mh) + P * per_output)

        def pullback(bar):
            mean_bar, mean_G_bar = pull_weights(bar * Kuu_mh)
            U = symmetric_from_lower(lower_transposed_product(L, s[:, None] * L))
            G_bar = tree.add(0.5 * P * bar * (eye + 2.0 * G - U), mean_G_bar)
            site_bar = 0.5 * P * bar * (relaxed_diag - 1.0 / s)
            return tree.cotangent(self, mean=mean_bar, site=site_bar), RelaxedFactor(0.5 * bar * mh @ mh.mT, G_bar)

        return kl, pullback

    def path_weights(self, factor: RelaxedFactor, values: Array, noise: Array, /) -> Array:
        # mh - T (values + sqrt(s) noise) with T = L L^T: since Kuf^T (2 T - T Kt T) Kuf = Kuf^T PR Kuf, the covariances
        # are those of q for every L, without a root of PR
        L = self.inverse_factor
        observed = values + backend_of(noise).xp.sqrt(self.site)[:, None] * noise
        return self._weights(factor)[0].mT[:, :, None] - L @ (L.mT @ observed)

    def project_covariance(self, factor: RelaxedFactor, Kuf: Array, Kff: Array, /) -> Array:
        E = lower_transposed_times(self.inverse_factor, Kuf)
        covariance = Kff - E.mT @ (E - factor.G @ E)
        return backend_of(Kuf).xp.broadcast_to(covariance, (self.outputs, *covariance.shape))

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /, *, preconditioned: bool = True, probes: int | None = None) -> Self:
        leaves = prior_leaves(Kuu, outputs, preconditioned=preconditioned)
        return cls(**leaves, inverse_factor=None, probes=probes).inverted_anew(Kuu)
