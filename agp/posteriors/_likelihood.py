"""L-SVGP: q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu) with Kt = Kuu + S, the likelihood parameterisation.

This q(u) is the posterior of u given pseudo-observations of u with the noise covariance S. As the inverse factor of
R-SVGP becomes exact, R-SVGP converges to L-SVGP. S is diag(s) in `LikelihoodForm` and C C^T in
`FullSiteLikelihoodForm`.
"""

from typing import ClassVar

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import cholesky, diagonal, identity, lower_of, relative_cholesky_pullback, solve_each, solve_lower
from agp.posteriors._site_form import GrowingSiteForm
from agp.posteriors._site_noise import FactoredNoise, SiteNoise
from agp.tree import LOWER, POSITIVE


@tree.model
class LikelihoodFactor:
    """Kuu [M, M] and the Cholesky factor Lt [M, M] of Kt. In cotangents, `Lt` contains the cotangent of Lt^-1 dLt."""

    Kuu: Array = tree.auxiliary()
    Lt: Array = tree.auxiliary()
    weights: Array | None = tree.constant(default=None, optional=True)
    """The weights [M, P] of means, after `Posterior.prepare_means`."""


class CholeskySiteForm(GrowingSiteForm[LikelihoodFactor]):
    """The likelihood parameterisation for a diagonal or a full S, with a Cholesky factorisation of Kuu + S."""

    def factorise(self, Kuu: Array, /) -> tuple[LikelihoodFactor, Pullback]:
        noise = self.site_noise
        Lt = cholesky(noise.add_to_covariance(Kuu))

        def pullback(factor_bar):
            Kt_bar = relative_cholesky_pullback(Lt, factor_bar.Lt)
            return self._bars(noise=noise.pullback(Kt_bar)), tree.add(Kt_bar, factor_bar.Kuu)

        return LikelihoodFactor(Kuu, Lt), pullback

    def _weights(self, factor: LikelihoodFactor) -> tuple[Array, Pullback]:
        # mh = Lt^-T n with n = Lt^-1 m, and mh_bar -> (mean_bar, S_bar)
        if not self.preconditioned:
            return self.mean, lambda mh_bar: (mh_bar, None)
        B, Lt = backend_of(factor.Lt), factor.Lt
        n = B.solve_triangular(Lt, self.mean)

        def pullback(mh_bar):
            n_bar = B.solve_triangular(Lt, mh_bar)
            S_bar = -(lower_of(n_bar, n.mT) + lower_of(n, n_bar.mT))
            return B.solve_triangular(Lt, n_bar, transpose=True), S_bar

        return B.solve_triangular(Lt, n, transpose=True), pullback

    def _variances(self, factor: LikelihoodFactor, Kuf: Array, kff: Array) -> tuple[Array, Pullback]:
        # kff - colsum(A^2) with A = Lt^-1 Kuf
        B = backend_of(Kuf)
        A = B.solve_triangular(factor.Lt, Kuf)

        def pullback(bar):
            A_bar = -2.0 * A * bar
            return B.solve_triangular(factor.Lt, A_bar, transpose=True), -lower_of(A_bar, A.mT)

        return kff - B.xp.sum(A * A, axis=0), pullback

    def _covariance_kl(self, factor: LikelihoodFactor) -> tuple[Array, Pullback]:
        # tr(Kt^-1 S) + log|Kt| - log|S| - M
        B = backend_of(factor.Lt)
        xp, Lt, eye, (M, P) = B.xp, factor.Lt, identity(factor.Lt), self.mean.shape
        trace, trace_bar, seen = self.site_noise.trace_with_gram(solve_lower(Lt, eye))
        log_noise, log_bar = self.site_noise.log_determinant()
        logs = 2.0 * xp.sum(xp.log(diagonal(Lt))) - log_noise

        def pullback(bar):
            return 0.5 * P * bar * (trace_bar - log_bar), P * bar * (eye - seen())

        return trace + logs - M, pullback

    def project_covariance(self, factor: LikelihoodFactor, Kuf: Array, Kff: Array, /) -> Array:
        A = backend_of(Kuf).solve_triangular(factor.Lt, Kuf)
        covariance = Kff - A.mT @ A
        return backend_of(Kuf).xp.broadcast_to(covariance, (self.outputs, *covariance.shape))

    def path_weights(self, factor: LikelihoodFactor, values: Array, noise: Array, /) -> Array:
        # mh - Kt^-1 (values + S^(1/2) noise), by pseudo-observations of u
        half = solve_each(factor.Lt, values + self.site_noise.root_times(noise))
        return self._weights(factor)[0].mT[:, :, None] - solve_each(factor.Lt, half, transpose=True)


@tree.model
class LikelihoodForm(CholeskySiteForm):
    """The likelihood parameterisation, with a Cholesky factorisation of Kuu + diag(s).

    Parameters
    ----------
    mean
        m [M, P]. The mean of u is Kuu mh.
    site
        s [M], positive: the noise variances for pseudo-observations of u, shared by the outputs.
    preconditioned
        If true (default), mh = Kt^-1 m. If false, mh = m, and training is much slower.

    Source: Cortinovis, Aitchison, Eleftheriadis & van der Wilk, "Inverse-free sparse variational Gaussian processes".
    """

    site: Array = tree.param(POSITIVE, unit="site_unit")
    preconditioned: bool = True
    site_unit: Array | None = tree.unit(default=None)


@tree.model
class FullSiteLikelihoodForm(CholeskySiteForm):
    """The likelihood parameterisation with correlated noise in the pseudo-observations.

    `FullSiteLikelihoodForm` can represent every covariance of q(u) that is smaller than the prior covariance, whereas
    the covariance in `LikelihoodForm` has only M parameters. Computations use a Cholesky factorisation of Kuu + C C^T.

    Parameters
    ----------
    mean, preconditioned
        As for `LikelihoodForm`.
    site_scale
        C [M, M], lower triangular. Pseudo-observations of u have noise with the covariance C C^T, shared by the
        outputs. Diagonal entries of C may be negative, but not zero.
    """

    site_scale: Array = tree.param(LOWER, unit="site_scale_unit")
    preconditioned: bool = True
    site_scale_unit: Array | None = tree.unit(default=None)

    noise_kind: ClassVar[type[SiteNoise]] = FactoredNoise
