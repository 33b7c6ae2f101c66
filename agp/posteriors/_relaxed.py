"""R-SVGP: the inverse-free relaxation of q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu), Kt = Kuu + diag(s).

With L L^T ~ Kt^-1 (an auxiliary array, improved by `agp.updates.InverseUpdate`) let B = L^T Kt L, G = B - I, J = I - G.
PR = L J L^T is one Newton-Schulz step from T = L L^T towards Kt^-1 and never exceeds it, so S = Kuu - Kuu PR Kuu is a
valid covariance for every L, and

    KL <= 1/2 [ sum(mh * (Kuu mh)) + P (-M + tr G + |G|^2 + tr U - sum(U * G) - 2 sum log diag L - sum log s) ]

with U = L^T diag(s) L is a bound for every L, tight where G = 0. Only matrix products occur. L is constant in the
gradient. Where random probes are drawn for a step, `ProbedRelaxed` takes the place of `Relaxed`: the same posterior, in
which the traces are estimated and no product of two [M, M] matrices occurs.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import check_whole
from agp.constraints import POSITIVE
from agp.linalg import (
    Gap,
    congruence,
    diagonal,
    gram,
    identity,
    inverse_factor,
    lower_of,
    lower_times,
    lower_times_lower,
    lower_transposed_product,
    lower_transposed_times,
    nonnegative,
    phi,
    symmetric_from_lower,
)
from agp.posteriors._base import InverseFactored, Posterior

__all__ = ["ProbedFactor", "ProbedRelaxed", "Relaxed", "RelaxedFactor"]

INITIAL_SITE = 1e-4
"""The starting value of s, relative to the mean diagonal of Kuu."""
EXACT_UP_TO = 2048
"""The largest M for which traces are exact unless the user says otherwise."""
PROBES = 256
"""Probes for larger M."""


class RelaxedFactor(NamedTuple):
    """Kuu [M, M] and G = L^T (Kuu + diag s) L - I [M, M]."""

    Kuu: Array
    G: Array


class RelaxedForm(InverseFactored):
    """What both evaluations of the relaxed q(u) share: its parameters, and what depends on no factor of Kuu."""

    mean: Array
    site: Array
    inverse_factor: Array
    preconditioned: bool
    probes: int | None

    bounds_variance_gap: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.mean.shape[1]

    @property
    def unit_powers(self) -> Mapping[str, int]:
        return {"mean": 1 if self.preconditioned else -1}

    def inverse_target(self, Kuu: Array, name: str = "inverse_factor", /) -> Array:
        """The matrix [M, M] whose inverse L L^T approximates: Kuu + diag(s)."""
        return Kuu + self.site * identity(Kuu)

    def variance_gap(self, Kuf: Array, /) -> Gap:
        # with T = L L^T, the variance of datum n exceeds the exact one by at most |(I - Kt T) k_un|^2 / min_i s_i
        xp = backend_of(Kuf).xp
        smallest = xp.min(self.site)

        def measured(A: Array, L: Array, _gram: Array) -> Array:
            missing = Kuf - A @ lower_times(L, lower_transposed_times(L, Kuf))
            return xp.sum(missing * missing) / smallest

        return measured

    @abstractmethod
    def _weights(self, factor: Any) -> tuple[Array, Pullback]:
        """mh [M, P], and its pullback to the mean and to what the factor holds of the inverse."""

    def project_mean(self, factor: Any, Kuf: Array, /) -> Array:
        return Kuf.mT @ self._weights(factor)[0]

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /, *, preconditioned: bool = True, probes: int | None = None) -> Self:
        site = initial_site(Kuu)
        mean = backend_of(Kuu).xp.zeros((Kuu.shape[0], outputs), **like(Kuu))
        factor = inverse_factor(Kuu + site * identity(Kuu)).factor
        settings = {"preconditioned": preconditioned, "probes": probes}
        return cls(**{"mean": mean, "site": site, "inverse_factor": factor}, **settings)


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

    mean: Array = tree.param()
    site: Array = tree.param(POSITIVE)
    inverse_factor: Array = tree.auxiliary()
    preconditioned: bool = True
    probes: int | None = None

    def draws(self, rng: Any, /) -> dict[str, Any]:
        """Rademacher probes [M, K], or nothing where the traces are exact."""
        M = self.site.shape[0]
        usual = 0 if M <= EXACT_UP_TO else PROBES
        probes = usual if self.probes is None else check_whole("probes", self.probes, least=0)
        return {"probes": 2.0 * rng.integers(0, 2, size=(M, probes)) - 1.0} if 0 < probes < M else {}

    def drawn(self, draws: Mapping[str, Array], /) -> Posterior:
        if "probes" not in draws:
            return self
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ProbedRelaxed(**values, noise=draws["probes"])

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

    def project_covariance(self, factor: RelaxedFactor, Kuf: Array, Kff: Array, /) -> Array:
        E = lower_transposed_times(self.inverse_factor, Kuf)
        covariance = Kff - E.mT @ (E - factor.G @ E)
        return backend_of(Kuf).xp.broadcast_to(covariance, (self.outputs, *covariance.shape))


class ProbedFactor(NamedTuple):
    """Kuu and Kt = Kuu + diag(s), both [M, M]."""

    Kuu: Array
    Kt: Array


@tree.model
class ProbedRelaxed(RelaxedForm):
    """`Relaxed` with its traces estimated by probes z, for one evaluation of the bound and its gradient.

    With W = G Z and U = L^T diag(s) L Z for the probes Z [M, K], all by products of [M, M] with [M, K],

        -tr(PR Kuu) + tr(Kt T) - M ~ -M + sum_i s_i |L_i:|^2 + sum((Z + W - U) * W) / K

    which is unbiased, and exact at G = 0. There the estimate of the gradient keeps a noise of order 1 / sqrt(K). G is
    never formed: J x = 2 x - L^T (Kt (L x)).

    Parameters
    ----------
    mean, site, inverse_factor, preconditioned, probes
        Those of the `Relaxed` that drew the probes.
    noise
        The probes Z [M, K], with entries +1 and -1.

    Source: Hutchinson's estimator as in Cortinovis et al., rearranged so that it estimates the residual alone.
    """

    mean: Array = tree.param()
    site: Array = tree.param(POSITIVE)
    inverse_factor: Array = tree.auxiliary()
    preconditioned: bool = True
    probes: int | None = None
    noise: Array = tree.constant(default=None)

    def factorise(self, Kuu: Array, /) -> tuple[Any, Pullback]:
        def pullback(factor_bar):
            return tree.cotangent(self, site=diagonal(factor_bar.Kt)), tree.add(factor_bar.Kt, factor_bar.Kuu)

        return ProbedFactor(Kuu, self.inverse_target(Kuu)), pullback

    def _inverse_times(self, X: Array) -> Array:
        # T X for X [M, P]
        return lower_times(self.inverse_factor, lower_transposed_times(self.inverse_factor, X))

    def _weights(self, factor: Any) -> tuple[Array, Pullback]:
        # mh = PR m = T (2 m - Kt T m), and mh_bar -> (mean_bar, Kt_bar)
        m = self.mean
        if not self.preconditioned:
            return m, lambda mh_bar: (mh_bar, None)
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
        L, s, Z, (Kuu, Kt) = self.inverse_factor, self.site, self.noise, factor
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


def initial_site(Kuu: Array) -> Array:
    """The starting values of s [M]: the same small share of the mean diagonal of Kuu [M, M]."""
    xp = backend_of(Kuu).xp
    return INITIAL_SITE * xp.mean(diagonal(Kuu)) * xp.ones((Kuu.shape[0],), **like(Kuu))
