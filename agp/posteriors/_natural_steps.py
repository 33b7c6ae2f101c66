"""Natural-gradient steps of q(u) = N(m, C C^T), in natural coordinates or in root coordinates (m, C)."""

from abc import abstractmethod
from typing import Any, Self

from agp.backend import Array, backend_of
from agp.linalg import (
    add_diagonal,
    each_inverse,
    each_times,
    identity,
    largest_eigenvalue,
    lower_of,
    lower_transposed_product,
    natural_step,
    phi,
    solve_lower,
    starting_vector,
    symmetric_from_lower,
)
from agp.posteriors._sites import MAX_HALVINGS, NaturalSteps, Sums
from agp.repairs import report

POWER_STEPS = 6
"""The number of power iterations that estimate the largest eigenvalue of the curvature."""


class WhiteSteps(NaturalSteps):
    """A q(u) that can be converted to and from Gaussian sites of v = Lu^-1 u.

    With the prior v ~ N(0, I), sites with a shift t [M, P] and precisions S [P, M, M] describe q(v_p) = N(W_p^-1 t_p,
    W_p^-1) for W_p = I + S_p.
    """

    @abstractmethod
    def white_sites(self, Lu: Array, /) -> Sums:
        """Return the sites of q(u), given Lu [M, M]."""

    @abstractmethod
    def with_white_sites(self, sites: Sums, Lu: Array, /) -> Self:
        """Return the q(u) with these sites, which must make every W_p positive definite, given Lu [M, M]."""


def sites_of_moments(mean: Array, scale: Array) -> Sums:
    """Return the sites of N(m_p, C_p C_p^T), for m [M, P] and lower triangular C [P, M, M]."""
    roots = each_inverse(scale)
    W = roots.mT @ roots
    return Sums(each_times(W, mean), add_diagonal(W, -1.0))


def moments_of_sites(sites: Sums) -> tuple[Array, Array]:
    """Return m [M, P] and C [P, M, M] of sites, by a Cholesky factorisation from the last row to the first."""
    B = backend_of(sites.shift)
    W = B.xp.flip(add_diagonal(sites.precision, 1.0), axis=(-2, -1))
    scale = B.xp.flip(each_inverse(B.cholesky(W)), axis=(-2, -1)).mT  # C C^T = W^-1
    return each_times(scale, each_times(scale.mT, sites.shift)), scale


class RootSteps:
    """A q(u) that is N(m_p, C_p C_p^T) in some coordinates, with leaves `mean` m [M, P] and `scale` C [P, M, M].

    Natural gradients are computed from ordinary gradients by matrix products alone, in any coordinates.
    """

    mean: Array
    scale: Array

    @staticmethod
    def root_step(
        mean: Array, scale: Array, mean_bar: Array, scale_bar: Array, rate: Any, reach: float, /
    ) -> tuple[Array, Array]:
        """Return m and C after a step of size rho along the natural gradient, given the gradients m_bar and C_bar.

            m <- m + rho C C^T m_bar,    C <- C + rho C Phi(I - H),    H = C^T (site precision + prior precision) C

        The lower triangle of I - H equals that of C^T C_bar. If the largest eigenvalue of H exceeds 1, rho is divided
        by 1 - rho + rho lambda_max(H), so that the step does not overshoot in any direction. The step of the mean is
        shortened if |C^-1 (change of m)| exceeds `reach`.

        Source: the root coordinates of Salimbeni, Eleftheriadis & Hensman, "Natural gradients in practice", 2018.
        """
        xp = backend_of(mean).xp
        means, scales = [], []
        for p in range(mean.shape[1]):
            column, C = slice(p, p + 1), scale[p, ...]
            H = identity(C) - lower_transposed_product(C, scale_bar[p, ...])  # its lower triangle
            curvature, _ = largest_eigenvalue(H, starting_vector(C), iterations=POWER_STEPS)
            one = xp.ones_like(curvature)
            rho = rate / xp.maximum(1.0 - rate + rate * curvature, one)
            pull = rho * (C.mT @ mean_bar[:, column])
            length = xp.sqrt(xp.sum(pull * pull))
            means.append(mean[:, column] + C @ (pull / xp.maximum(length / reach, one)))
            scales.append(natural_step(C, H, rho)[None, ...])
        return (means[0], scales[0]) if len(means) == 1 else (xp.concat(means, axis=1), xp.concat(scales, axis=0))


def step_of_moments(
    mean: Array, scale: Array, prior: Array, sums: Sums, rate: Any, coordinates: str
) -> tuple[Array, Array, Array]:
    """Return the new m [M, P] and C [P, M, M] after a step of size rho, and the largest number of halvings (a scalar).

        S_new^-1       = (1 - rho) S^-1 + rho (prior precision + sum_n lam2_n F_n F_n^T)
        S_new^-1 m_new = (1 - rho) S^-1 m + rho sum_n F_n lam1_n

    These formulas apply to natural coordinates. In root coordinates (m, C), the step is the first-order step in the
    same direction, which does not require the inverse of S.
    """
    xp = backend_of(mean).xp
    means, scales, halvings = [], [], []
    for p in range(mean.shape[1]):
        m, C, pull = mean[:, p : p + 1], scale[p, ...], sums.shift[:, p : p + 1]
        site = sums.precision[p, ...] + prior
        if coordinates == "natural":
            m, C, tried = _natural_step(m, C, site, pull, rate)
        else:
            # the gradient sum_n F_n alpha_n - prior m, from lam1 = alpha + beta F^T m, and C^T G_S C =
            # 1/2 (I - C^T site C), since C^T S^-1 C = I
            inner = identity(C) - symmetric_from_lower(lower_of(C.mT @ site, C))
            m, C = m + rate * (C @ (C.mT @ (pull - site @ m))), C + rate * (C @ phi(inner))
            tried = xp.zeros_like(mean[0, 0])
        means.append(m)
        scales.append(C)
        halvings.append(tried)
    tried = xp.stack(halvings)
    report(
        "the precision after a natural-gradient step would not have been positive definite, so the step was halved "
        f"(at most {{0:.0f}} times; {MAX_HALVINGS} are allowed); use a smaller rate.",
        xp.max(tried),
        count=xp.count_nonzero(tried),
    )
    return xp.concat(means, axis=1), xp.stack(scales, axis=0), xp.max(tried)


def _natural_step(m: Array, C: Array, site: Array, pull: Array, rho: Any) -> tuple[Array, Array, Array]:
    B = backend_of(m)
    eye = identity(C)
    root = solve_lower(C, eye)
    precision = root.mT @ root  # S^-1 = C^-T C^-1
    shift = precision @ m

    def attempt(rho: Any, halvings: int) -> tuple[Array, Array, Array]:
        L = B.cholesky((1.0 - rho) * precision + rho * site)
        inverse = solve_lower(L, eye)
        new_C = B.cholesky(inverse.mT @ inverse)
        new_m = inverse.mT @ (inverse @ ((1.0 - rho) * shift + rho * pull))
        good = B.xp.all(B.xp.isfinite(new_C)) & B.xp.all(B.xp.isfinite(new_m))
        count = B.xp.full_like(m[0, 0], float(halvings))
        if halvings == MAX_HALVINGS:
            return B.xp.where(good, new_m, m), B.xp.where(good, new_C, C), count
        return B.cond(good, lambda: (new_m, new_C, count), lambda: attempt(0.5 * rho, halvings + 1), likely=True)

    return attempt(rho, 0)
