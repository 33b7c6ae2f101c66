"""t-SVGP without factorisations: sites are sums of kernel columns, and matrix products update the inverses.

Let l [M, P] and L2_p [M, M] be the sites in kernel coordinates (``tied="kernel"``), and let R_p = Kuu + L2_p. Let L_0
and L_p be lower triangular with L_0 L_0^T ~ Kuu^-1 and L_p L_p^T ~ R_p^-1. With the residuals E_0 = I - L_0^T Kuu L_0
and E_p = I - L_p^T R_p L_p, define

    P_0 = L_0 (I + E_0) L_0^T,   P_p = L_p (I + E_p) L_p^T,   a_p = P_p l_p
    q(u_p) = N(Kuu a_p, Kuu - Kuu (P_0 - P_p) Kuu)

For T = L L^T ~ A^-1, the matrix P = 2 T - T A T is one Newton-Schulz step from T towards A^-1, and P <= A^-1. If
|E_0|_F < 1 and |E_p|_F < 1, q(u) is proper. Let tau(E) = |E|^2 / 2 + |E|^3 / (3 (1 - |E|)). This function bounds the
sum of all terms but the first in the series for log|I - E|. Then

    KL <= sum_p 1/2 [ -tr(P_0 Kuu) + tr(P_p Kuu) + a_p^T Kuu a_p + 2 sum log diag L_0 - 2 sum log diag L_p
                      + tr E_0 + tau(E_0) - tr E_p + tau(E_p) ]

This bound is tight if the inverses are exact. The gradient treats the factors as constants, and is exact if the
inverses are exact.
"""

from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, assume, backend_of
from agp.errors import NonFiniteError
from agp.linalg import (
    InverseFactor,
    cholesky,
    diagonal,
    each_outer,
    each_times,
    identity,
    inverse_factor,
    nonnegative,
    report_restarts,
)
from agp.posteriors._base import STALE_TOLERANCE, InverseFactored, SitePosterior
from agp.posteriors._growth import new_weights, transform_sites
from agp.posteriors._sites import GuardedSums, SiteGradients, SiteHolder, Sums, safeguarded_step, sums_with_fallback
from agp.repairs import report

MAX_RESIDUAL = 1.0
"""The bound exists only if all residuals |E|_F are below this value."""
ROOT_TERMS = 14
"""The number of terms in the series for (I + E)^(1/2). At `STALE_TOLERANCE`, the next is below float64 rounding."""
FITTED_TOLERANCE = 0.7
"""The target for |E|_F when factors are updated, in units of sqrt(eps); about 1e-8 in float64."""


@tree.model
class DualInverses:
    """The factor of `DualInverseFree`."""

    Kuu: Array = tree.auxiliary()
    E0: Array = tree.auxiliary()
    """I - L_0^T Kuu L_0 [M, M]."""
    E: Array = tree.auxiliary()
    """I - L_p^T R_p L_p [P, M, M]."""
    weights: Array | None = tree.constant(default=None, optional=True)
    """The weights [M, P] of means, after `Posterior.prepare_means`."""


@tree.model
class DualInverseFree(InverseFactored[DualInverses], SitePosterior[DualInverses], SiteHolder):
    """The dual parameterisation without factorisations: `Dual` with ``tied="kernel"`` and inverse factors.

    `agp.updates.SiteStep` updates the sites and the inverse factors. `agp.updates.InverseUpdate` updates the inverse
    factors after each step on the hyperparameters. Computing the bound raises an error if the residual |E|_F of a
    factor is 1 or more.

    Parameters
    ----------
    shift
        l [M, P]. Auxiliary.
    precision
        L2 [P, M, M], symmetric, positive semidefinite. Auxiliary.
    prior_factor
        L_0 [M, M], lower triangular with a positive diagonal. Auxiliary.
    site_factor
        L_p [P, M, M], lower triangular with a positive diagonal. Auxiliary.

    Source: the dual parameterisation of Adam, Chang, Khan & Solin, NeurIPS 2021; the inverse-free bound was derived for
    this library.
    """

    shift: Array = tree.auxiliary()
    precision: Array = tree.auxiliary()
    prior_factor: Array = tree.auxiliary()
    site_factor: Array = tree.auxiliary()

    inverse_factors: ClassVar[tuple[str, ...]] = ("prior_factor", "site_factor")
    target_leaves: ClassVar[tuple[str, ...]] = ("precision",)

    def factorise(self, Kuu: Array, /) -> tuple[DualInverses, Pullback]:
        L0, L = self.prior_factor, self.site_factor
        eye = identity(Kuu)
        E0 = eye - L0.mT @ Kuu @ L0
        E = eye - L.mT @ (Kuu + self.precision) @ L

        def pullback(factor_bar):
            xp = backend_of(Kuu).xp
            through = -(L0 @ factor_bar.E0 @ L0.mT) - xp.sum(L @ factor_bar.E @ L.mT, axis=0)
            return None, tree.add(through, factor_bar.Kuu)

        return DualInverses(Kuu, E0, E), pullback

    def _weights(self, factor: DualInverses) -> tuple[Array, Pullback]:
        # a_p = L_p (I + E_p) L_p^T l_p [M, P], and a_bar -> E_bar
        L = self.site_factor
        b = each_times(L.mT, self.shift)
        a = each_times(L, b + each_times(factor.E, b))
        return a, lambda a_bar: each_outer(each_times(L.mT, a_bar), b)

    def project(self, factor: DualInverses, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = Kuf^T a;  var_p = kff - colsum(V0 * (I + E0) V0) + colsum(V_p * (I + E_p) V_p), V = L^T Kuf
        xp = backend_of(Kuf).xp
        L0, L = self.prior_factor, self.site_factor
        a, pull_weights = self._weights(factor)
        V0, V = L0.mT @ Kuf, L.mT @ Kuf
        J0, J = V0 + factor.E0 @ V0, V + factor.E @ V
        residual, pull_residual = nonnegative(kff - xp.sum(V0 * J0, axis=0))
        var = residual[:, None] + xp.sum(V * J, axis=-2).mT

        def pullback(mu_bar, var_bar):
            kff_bar = pull_residual(xp.sum(var_bar, axis=1))
            rows = var_bar.mT[:, None, :]
            Kuf_bar = a @ mu_bar.mT - 2.0 * L0 @ (J0 * kff_bar) + 2.0 * xp.sum(L @ (J * rows), axis=0)
            E_bar = (V * rows) @ V.mT + pull_weights(Kuf @ mu_bar)
            return None, DualInverses(None, -((V0 * kff_bar) @ V0.mT), E_bar), Kuf_bar, kff_bar

        return (Kuf.mT @ a, var), pullback

    def kl_divergence(self, factor: DualInverses, /) -> tuple[Array, Pullback]:
        """Return the upper bound on the KL divergence (a scalar), and its pullback.

        Raises
        ------
        agp.errors.NonFiniteError
            If a residual is 1 or more. Inside a compiled function, the value is NaN instead.
        """
        Kuu, E0, E = factor.Kuu, factor.E0, factor.E
        xp = backend_of(Kuu).xp
        L0, L = self.prior_factor, self.site_factor
        M, P = self.shift.shape
        eye = identity(Kuu)
        self._check(factor)
        a, pull_weights = self._weights(factor)
        Kuu_a = Kuu @ a
        B0 = L.mT @ Kuu @ L
        (tail0, pull_tail0), (tail, pull_tail) = _tail(E0), _tail(E)
        # -tr(P_0 Kuu) = |E_0|^2 - M, tr(P_p Kuu) = tr((I + E_p) L_p^T Kuu L_p)
        prior = xp.sum(E0 * E0) - M + 2.0 * xp.sum(xp.log(diagonal(L0))) + xp.sum(E0 * eye) + tail0
        sites = xp.sum((E + eye) * B0) - 2.0 * xp.sum(xp.log(diagonal(L))) - xp.sum(E * eye) + xp.sum(tail)
        kl = 0.5 * (P * prior + sites + xp.sum(a * Kuu_a))

        def pullback(bar):
            half = 0.5 * bar
            E0_bar = P * half * (2.0 * E0 + eye + pull_tail0())
            E_bar = half * (B0 - eye + pull_tail()) + pull_weights(bar * Kuu_a)
            Kuu_bar = half * (xp.sum(L @ (E + eye) @ L.mT, axis=0) + a @ a.mT)
            return None, DualInverses(Kuu_bar, E0_bar, E_bar)

        return kl, pullback

    def _check(self, factor: DualInverses) -> None:
        worst = _largest(factor)
        if backend_of(worst).is_concrete(worst) and not assume(worst < MAX_RESIDUAL, likely=True):
            raise NonFiniteError(
                f"the residual of the inverse factors is {float(worst):.3g}, but must be below 1 for a valid bound; "
                "apply agp.updates.InverseUpdate after each change of the parameters, and increase max_steps or the "
                "jitter if necessary."
            )

    def weights_of_mean(self, factor: DualInverses, /) -> Array:
        return self._weights(factor)[0]

    def project_covariance(self, factor: DualInverses, Kuf: Array, Kff: Array, /) -> Array:
        V0, V = self.prior_factor.mT @ Kuf, self.site_factor.mT @ Kuf
        return Kff - V0.mT @ (V0 + factor.E0 @ V0) + V.mT @ (V + factor.E @ V)

    def path_weights(self, factor: DualInverses, values: Array, noise: Array, /) -> Array:
        # a - T_0 values + L_p (I + E_p)^(1/2) noise: the second term removes Kuf^T P_0 Kuf, the last one adds P_p
        L0, L = self.prior_factor, self.site_factor
        a = self._weights(factor)[0].mT[:, :, None]
        return a - L0 @ (L0.mT @ values) + L @ _times_root(factor.E, noise)

    # -- the inverse factors ----------------------------------------------------------------------------------------

    def inverse_target(self, Kuu: Array, name: str = "prior_factor", /) -> Array:
        """Return Kuu [M, M] for `prior_factor`, or R [P, M, M] for `site_factor`."""
        return Kuu if name == "prior_factor" else Kuu + self.precision

    def invert(self, Kuu: Array, name: str, /, **settings: Any) -> InverseFactor:
        if name == "prior_factor":
            return super().invert(Kuu, name, **settings)
        xp = backend_of(Kuu).xp
        targets = self.inverse_target(Kuu, name)
        found = [inverse_factor(targets[p, ...], self.site_factor[p, ...], **settings) for p in range(self.outputs)]
        all_of = InverseFactor(*(xp.stack(list(column), axis=0) for column in zip(*found, strict=True)))
        return all_of._replace(
            residual=xp.max(all_of.residual),
            steps=xp.sum(all_of.steps),
            restarts=xp.sum(all_of.restarts),
            vector=found[-1].vector,
            gap=xp.max(all_of.gap),
            fallbacks=xp.sum(all_of.fallbacks),
            rounding=xp.max(all_of.rounding),
        )

    def update_from_sites(self, Kuu: Array, /, *, had_sites: Array | None = None) -> tuple[Self, Array, Array]:
        """Update the inverse factors to working precision, given Kuu [M, M].

        Returns the posterior, and two scalars: the largest residual |E|_F and the number of steps. If the scalar
        `had_sites` is false, the posterior had no sites before, so restarts are not reported as repairs.
        """
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        tolerance = FITTED_TOLERANCE * float(xp.finfo(Kuu.dtype).eps) ** 0.5 / M**0.5
        settings = {"tolerance": tolerance, "patience": 2}  # up to the limit of the working precision
        found = {name: self.invert(Kuu, name, **settings) for name in self.inverse_factors}
        for name, one in found.items():
            report_restarts(one, name, among=had_sites)
        residual = M**0.5 * xp.max(xp.stack([one.residual for one in found.values()]))
        steps = xp.sum(xp.stack([one.steps for one in found.values()]))
        return tree.with_leaves(self, {name: one.factor for name, one in found.items()}), residual, steps

    def prepare_site_step(self, Kuu: Array, /) -> Self:
        return self.update_from_sites(Kuu)[0]

    def site_sums(self, factor: DualInverses, Kuf: Array, alpha: Array, beta: Array, mu: Array, /) -> GuardedSums:
        return sums_with_fallback(Kuf, alpha, beta, mu)

    def _site_step(
        self, found: SiteGradients, rate: Any, /, *, clip: bool, groups: Any = None, rows: Any = None
    ) -> tuple[Self, dict[str, Array]]:
        """Take a site step with negative betas replaced by zero, and update the inverse factors."""
        moved, info = safeguarded_step(rate, Sums(self.shift, self.precision), found.sums, None)
        sites = tree.with_leaves(self, moved._asdict())
        some = backend_of(self.precision).xp.any(self.precision != 0.0)
        followed, residual, steps = sites.update_from_sites(found.factor.Kuu, had_sites=some)
        return followed, info | {"site_residual": residual, "site_inverse_steps": steps}

    def recompute_factors(self, Kuu: Array, /) -> Self:
        B = backend_of(Kuu)
        Kuu = B.stop_gradient(Kuu)
        worst = _largest(self.factorise(Kuu)[0])
        present = {name: getattr(self, name) for name in self.inverse_factors}

        def better() -> dict[str, Array]:
            found, residual, _ = self.update_from_sites(Kuu)
            report(
                "the inverse factors were inaccurate (residual {0:.2g}) and were updated for predictions "
                "(residual {1:.2g}); train with InverseUpdate to keep them accurate.",
                worst,
                residual,
            )
            return {name: getattr(found, name) for name in present}

        new = B.cond(worst <= STALE_TOLERANCE, lambda: present, better, likely=True)
        return self if new is present else tree.with_leaves(self, new)

    def add_inducing(self, Kuu: Array, /, *, begun: bool = False) -> Self:
        J = new_weights(cholesky(Kuu), self.shift.shape[0])
        shift, precision = transform_sites(J, self.shift, self.precision)
        sites = tree.with_leaves(self.from_prior(Kuu, self.outputs), {"shift": shift, "precision": precision})
        return sites.update_from_sites(Kuu, had_sites=backend_of(Kuu).xp.any(shift != shift))[0]  # not a repair

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        L0 = inverse_factor(Kuu, tolerance=1e-8 / Kuu.shape[0] ** 0.5).factor
        shift, precision = cls._no_sites(Kuu, outputs)
        return cls(shift, precision, L0, L0 + precision)


def _times_root(E: Array, x: Array) -> Array:
    """Return (I + E)^(1/2) x [P, M, S] by the binomial series, accurate for |E| up to `STALE_TOLERANCE`."""
    total, power, coefficient = x, x, 1.0
    for k in range(1, ROOT_TERMS):
        coefficient *= (1.5 - k) / k
        power = E @ power
        total = total + coefficient * power
    return total


def _norm(E: Array) -> Array:
    """Return the Frobenius norm |E|_F [...] of E [..., M, M]. Its derivative at E = 0 is defined as zero."""
    xp = backend_of(E).xp
    square = xp.sum(E * E, axis=(-2, -1))
    positive = square > 0.0
    return xp.where(positive, xp.sqrt(xp.where(positive, square, xp.ones_like(square))), xp.zeros_like(square))


def _largest(factor: DualInverses) -> Array:
    xp = backend_of(factor.E0).xp
    return xp.maximum(_norm(factor.E0), xp.max(_norm(factor.E)))


def _tail(E: Array) -> tuple[Array, Pullback]:
    """Return tau(E) [...] for E [..., M, M], and a function that returns its gradient. Both are NaN if |E|_F >= 1."""
    xp = backend_of(E).xp
    n = _norm(E)
    safe = xp.where(n < MAX_RESIDUAL, n, xp.full_like(n, float("nan")))
    value = 0.5 * safe**2 + safe**3 / (3.0 * (1.0 - safe))

    def gradient():
        # E tau'(n) / n = E (1 + n (3 - 2 n) / (3 (1 - n)^2))
        return E * (1.0 + safe * (3.0 - 2.0 * safe) / (3.0 * (1.0 - safe) ** 2))[..., None, None]

    return value, gradient
