"""Base classes for L-SVGP and R-SVGP, in which q(u) is the posterior of u given noisy pseudo-observations of u."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import diagonal, nonnegative
from agp.posteriors._base import Factor, MeanWithUnit
from agp.posteriors._growth import append_rows
from agp.posteriors._site_noise import DiagonalNoise, SiteNoise

Preconditioned = bool | Literal["root"]
"""The ways to compute mh [M, P] from m, where the mean of u is Kuu mh; see `SiteForm`."""

PRIOR_SITE = 100.0
"""The noise variance s of an untrained model, relative to the largest row sum of |Kuu|, an upper bound on its
eigenvalues.

For s = c lambda_max, k_u(x)^T (Kuu + s I)^-1 k_u(x) <= k(x, x) / (1 + c) at any x. With c = 100, variances differ from
the prior variances by less than 1 %.
"""

FORGOTTEN_SITE = 1e8
"""The noise variance for inducing variables added without changing q(f), relative to the largest row sum of |Kuu|."""

FLAT_SITE_VARIANCE = 0.1
"""The noise variance s at the start of training, for likelihoods that are flat far from functions that fit the data.
The value is relative to mean(diag(Kuu)). With smaller variances, the gradient for some classes would be zero.
"""


LARGEST_RATIO = 30.0
"""The largest factor of a variance in a step of `GrowingSiteForm.match_noise`."""


class SiteForm(MeanWithUnit[Factor]):
    """q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu) with Kt = Kuu + S, and mh = Kt^-1 m (preconditioned) or mh = m."""

    preconditioned: Any

    mean_weights: ClassVar[tuple[Preconditioned, ...]] = (True, False)
    """The valid values of `preconditioned`."""
    noise_kind: ClassVar[type[SiteNoise]] = DiagonalNoise
    """The class of S, which defines the name of its leaf."""

    def __post_init__(self) -> None:
        if self.preconditioned not in self.mean_weights:
            known = " or ".join(map(repr, self.mean_weights))
            raise ValueError(
                f"preconditioned is {self.preconditioned!r}, but must be {known} for {type(self).__name__}."
            )

    @property
    def site_noise(self) -> SiteNoise:
        """The noise covariance S of the pseudo-observations."""
        return self.noise_kind(getattr(self, self.noise_kind.name))

    def _bars(self, *, mean: Array | None = None, noise: Array | None = None) -> Self:
        """Return the cotangent of the posterior, given the cotangents of m and of the leaf of S."""
        return tree.cotangent(self, mean=mean, **{self.noise_kind.name: noise})

    def begun(self, Kuu: Array, /, *, wide: bool = False) -> Self:
        xp = backend_of(Kuu).xp
        noise = self.site_noise
        if bool(xp.any(self.mean != 0.0)) or bool(xp.any(noise.variances < 0.5 * _prior_site(Kuu))):
            return self
        share = FLAT_SITE_VARIANCE if wide else noise.start
        variances = share * xp.mean(diagonal(Kuu)) * xp.ones_like(noise.variances)
        return tree.with_leaves(self, {noise.name: noise.independent(variances).leaf}).invert_from_scratch(Kuu)

    def invert_from_scratch(self, _Kuu: Array, /) -> Self:
        """Return a copy with inverse factors computed from scratch, or the posterior itself if it has none."""
        return self

    @classmethod
    def _prior_leaves(cls, Kuu: Array, outputs: int, preconditioned: Preconditioned) -> dict[str, Any]:
        """Return the fields of an untrained posterior with P outputs, given Kuu [M, M].

        By default, m has the unit of f. If mh = m, it has the inverse of this unit. If mh = L^T m, it is dimensionless.
        """
        xp = backend_of(Kuu).xp
        M, usual, noise = Kuu.shape[0], xp.mean(diagonal(Kuu)), cls.noise_kind
        return {
            "mean": xp.zeros((M, outputs), **like(Kuu)),
            noise.name: noise.independent(_prior_site(Kuu) * xp.ones((M,), **like(Kuu))).leaf,
            "mean_unit": usual ** (0.0 if preconditioned == "root" else 0.5 if preconditioned else -0.5),
            f"{noise.name}_unit": noise.unit(usual),
            "preconditioned": preconditioned,
        }

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /, *, preconditioned: Preconditioned = True) -> Self:
        leaves = cls._prior_leaves(Kuu, outputs, preconditioned) | dict.fromkeys(cls.inverse_factors)
        return cls(**leaves).invert_from_scratch(Kuu)


def _prior_site(Kuu: Array) -> Array:
    xp = backend_of(Kuu).xp
    return PRIOR_SITE * xp.max(xp.sum(xp.abs(Kuu), axis=-1))


class KuuFactor(Protocol):
    """Kuu [M, M], and a second matrix [M, M], from which the weights mh and the variances are computed."""

    def __init__(self, Kuu: Array, second: Array, /) -> None: ...

    @property
    def Kuu(self) -> Array: ...  # noqa: N802


PairFactor = TypeVar("PairFactor", bound=KuuFactor)


class GrowingSiteForm(SiteForm[PairFactor]):
    """A `SiteForm` to which inducing variables can be added.

    The factor is a `KuuFactor`. In pullbacks, `second_bar` is the cotangent of its second matrix.
    """

    @abstractmethod
    def _weights(self, factor: PairFactor) -> tuple[Array, Pullback]:
        """Return mh [M, P] and its pullback ``mh_bar -> (mean_bar, second_bar)``."""

    @abstractmethod
    def _variances(self, factor: PairFactor, Kuf: Array, kff: Array) -> tuple[Array, Pullback]:
        """Return the variances [N] of f, which are equal for all outputs, and their pullback.

        The pullback is ``bar -> (Kuf_bar, second_bar)``, for Kuf [M, N]. The cotangent of kff [N] is `bar` itself.
        """

    @abstractmethod
    def _covariance_kl(self, factor: PairFactor) -> tuple[Array, Pullback]:
        """Return twice the KL divergence of one output, without the terms that depend on the mean (a scalar).

        The pullback ``bar -> (noise_bar, second_bar)`` multiplies bar by P / 2.
        """

    def reinvert(self, _Kuu: Array, /) -> Self:
        """Return a copy with updated inverse factors, or the posterior itself if it has none."""
        return self

    @property
    def can_match(self) -> bool:
        """Whether `match_noise`, `with_weights` and `precondition` apply to this q(u)."""
        return self.preconditioned is True and self.noise_kind is DiagonalNoise

    def match_noise(self, factor: PairFactor, Kuf: Array, beta: Array, rate: Array | float = 1.0, /) -> Self:
        """Return the posterior after a step of the variances s towards an optimum of the bound at fixed mh.

        Kuf [M, N] are prior covariances, and `beta` [N, P] are the site gradients of the likelihood at the marginals of
        f. At fixed mh, the derivative of the bound with respect to the precision d_i = 1 / s_i is (a_i - b_i) / 2. With
        the covariances C of q(u), b_i = P sum_j d_j C_ij^2 is what the pseudo-observations tell about u_i, and
        a_i = sum_np beta_np Cov(u_i, f_n)^2 is what the data tell about it. A step of rate 1 multiplies d_i by
        a_i / b_i, as for nonnegative least squares. m does not change; see `with_weights`. Only products are needed.

        Source of the step: Lee & Seung, "Algorithms for non-negative matrix factorization", NIPS 2000.
        """
        Kuu, s = factor.Kuu, self.site_noise.variances
        xp = backend_of(Kuu).xp
        C, V = self._subtract_explained(factor, Kuu), self._subtract_explained(factor, Kuf)
        b = self.outputs * (C * C) @ (1.0 / s)
        a = xp.clip((V * V) @ xp.sum(beta, axis=1), b / LARGEST_RATIO, LARGEST_RATIO * b)
        new = xp.minimum(s * (b / a) ** rate, FORGOTTEN_SITE * xp.max(xp.sum(xp.abs(Kuu), axis=-1)))
        return tree.with_leaves(self, {self.site_noise.name: new})

    def with_weights(self, factor: PairFactor, mh: Array, /) -> Self:
        """Return the posterior with the weights mh [M, P] of the mean, m = (Kuu + S) mh."""
        return tree.with_leaves(self, {"mean": factor.Kuu @ mh + self.site_noise.variances[:, None] * mh})

    def precondition(self, factor: PairFactor, gradient: Array, /) -> Array:
        """Return nearly a Newton step of mh [M, P], given the derivatives of the bound with respect to mh.

        The step is PR S PR times the derivatives, if the inverse factor has converged. Where the data determine u,
        PR S PR is nearly the inverse of the negative Hessian Kuu + Kuf diag(beta) Kuf^T, and it is smaller elsewhere.
        """
        return self._times_inverse(factor, self._subtract_explained(factor, gradient))

    def _times_inverse(self, factor: PairFactor, K: Array) -> Array:
        """Return PR K for K [M, N]."""
        return tree.with_leaves(self, {"mean": K})._weights(factor)[0]

    def _subtract_explained(self, factor: PairFactor, K: Array) -> Array:
        """Return (I - Kuu PR) K for K [M, N]."""
        return K - factor.Kuu @ self._times_inverse(factor, K)

    def project(self, factor: PairFactor, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = Kuf^T mh, and the same variances for every output
        xp = backend_of(Kuf).xp
        mh, pull_weights = self._weights(factor)
        raw, pull_variances = self._variances(factor, Kuf, kff)
        residual, pull_residual = nonnegative(raw)
        var = xp.broadcast_to(residual[:, None], (residual.shape[0], self.outputs))

        def pullback(mu_bar, var_bar):
            kff_bar = pull_residual(xp.sum(var_bar, axis=1))
            mean_bar, second_bar = pull_weights(Kuf @ mu_bar)
            Kuf_bar, variance_bar = pull_variances(kff_bar)
            factor_bar = type(factor)(None, tree.add(variance_bar, second_bar))
            return self._bars(mean=mean_bar), factor_bar, mh @ mu_bar.mT + Kuf_bar, kff_bar

        return (Kuf.mT @ mh, var), pullback

    def kl_divergence(self, factor: PairFactor, /) -> tuple[Array, Pullback]:
        xp = backend_of(factor.Kuu).xp
        mh, pull_weights = self._weights(factor)
        Kuu_mh = factor.Kuu @ mh
        per_output, pull_covariance = self._covariance_kl(factor)
        kl = 0.5 * (xp.sum(mh * Kuu_mh) + self.outputs * per_output)

        def pullback(bar):
            mean_bar, mean_second_bar = pull_weights(bar * Kuu_mh)
            noise_bar, second_bar = pull_covariance(bar)
            factor_bar = type(factor)(0.5 * bar * mh @ mh.mT, tree.add(second_bar, mean_second_bar))
            return self._bars(mean=mean_bar, noise=noise_bar), factor_bar

        return kl, pullback

    def weights_of_mean(self, factor: PairFactor, /) -> Array:
        return self._weights(factor)[0]

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        # the pseudo-observations of w equal its mean under q(u), so that mh = [mh; 0] for any variance; large variances
        # do not change q(f)
        xp, noise, M = backend_of(Kuu).xp, self.site_noise, self.mean.shape[0]
        new = Kuu.shape[0] - M
        level = noise.start * xp.mean(diagonal(Kuu)) if begun else FORGOTTEN_SITE / PRIOR_SITE * _prior_site(Kuu)
        variances = level * xp.ones((new,), **like(Kuu))
        if self.preconditioned is True:
            weights = self._weights(self.factorise(Kuu[:M, :M])[0])[0]
            mean = xp.concat([self.mean, Kuu[M:, :M] @ weights], axis=0)
        else:
            mean = append_rows(self.mean, new)
        leaves = {"mean": mean, noise.name: noise.append_variances(variances).leaf}
        return tree.with_leaves(self, leaves)._extend_inverse_factors(Kuu, new)

    def _extend_inverse_factors(self, _Kuu: Array, _new: int) -> Self:
        """Return a copy whose inverse factors include the new variables, or the posterior itself if it has none."""
        return self
