"""Natural-gradient steps for sites: sums over the data rows, and steps that keep precisions positive definite.

Let mu and var be the marginal means and variances of f - h. Let alpha = d/dmu and beta = -2 d/dvar be the derivatives
of the expected log density of all rows. The site of row n is exp(lam1_n f - lam2_n f^2 / 2). A step moves lam1 towards
alpha + beta mu, and lam2 towards beta. In the coordinates of a posterior with mean m, row n has the features F_n [M]
with mu_n = F_n^T m.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from agp.backend import Array, backend_of, like
from agp.repairs import report

MAX_HALVINGS = 10
"""The maximum number of times a step is halved because the resulting precision is not positive definite."""


class Sums(NamedTuple):
    """Sites summed over the data rows, or a separate site for each row."""

    shift: Array
    """sum_n F_n lam1_n [M, P], or lam1 [N, P]."""
    precision: Array
    """sum_n lam2_n F_n F_n^T [P, M, M], or lam2 [N, P]. If outputs share precisions, there is one instead of P."""

    @property
    def shares_precision(self) -> bool:
        """Whether several outputs share the precisions."""
        outputs = self.precision.shape[1 if self.precision.ndim == 2 else 0]
        return outputs < self.shift.shape[1]


class GuardedSums(NamedTuple):
    """The sums, the sums with negative betas set to zero, and the number of negative betas for each output [P]."""

    raw: Sums
    clipped: Sums
    negative: Array


class SiteGradients(NamedTuple):
    """The input of a natural-gradient step: the posterior's factor, and the sums over the data rows."""

    factor: Any
    sums: Any


def sums_of(F: Array, alpha: Array, beta: Array, mu: Array, /) -> Sums:
    """Return the sums for features F [M, N] and alpha, beta, mu [N, P], or beta [N, 1] for a shared precision."""
    shift = F @ (alpha + beta * mu)
    if beta.shape[1] < alpha.shape[1]:  # never negative
        B = backend_of(F)
        return Sums(shift, B.times_own_transpose(F * B.xp.sqrt(beta[:, 0]))[None, ...])
    return Sums(shift, (F * beta.mT[:, None, :]) @ F.mT)


def sums_with_fallback(F: Array, alpha: Array, beta: Array, mu: Array, /) -> GuardedSums:
    """Return the sums from `sums_of`, once with each beta unchanged and once with negative betas set to zero."""
    B = backend_of(beta)
    xp = B.xp
    negative = xp.sum(xp.astype(beta < 0.0, beta.dtype), axis=0)
    raw = sums_of(F, alpha, beta, mu)

    def clipped() -> Sums:
        return sums_of(F, alpha, xp.maximum(beta, xp.zeros_like(beta)), mu)

    return GuardedSums(raw, B.cond(xp.any(negative > 0.0), clipped, lambda: raw, likely=False), negative)


class NaturalSteps(ABC):
    """A q(u) that can take natural-gradient steps."""

    @abstractmethod
    def natural_step(self, found: SiteGradients, rate: Any, coordinates: str, /) -> tuple[Self, Array]:
        """Return q(u) after a step of size `rate`, and the largest number of halvings over the outputs (a scalar)."""


class SiteHolder(ABC):
    """A posterior with Gaussian sites, or a model with a site for each row of data."""

    @property
    def _has_sites(self) -> bool:
        """Whether the object has sites to update."""
        return True

    _guards_steps: ClassVar[bool] = False
    """Whether steps are shortened where a bound falls, so that `SiteStep` need not compare the bounds of batches."""

    @abstractmethod
    def _site_step(
        self, found: Any, rate: Any, /, *, clip: bool, groups: tuple[int, ...] | None, rows: Array | None
    ) -> tuple[Self, dict[str, Array]]:
        """Move the sites towards their targets; return the new object and the values to log.

        `found` contains the sums over the data rows, or one site per row. `rate` is rho in (0, 1]. If `clip` is true,
        negative betas are set to zero without first trying smaller steps. `groups` are the groups of sites to update,
        or None for all groups. `rows` are the indices [B] of the rows in the batch, or None for all rows in order.
        """


class KeepsSums(ABC):
    """A model that keeps sums over all data rows from one site step to the next, for steps on minibatches."""

    @abstractmethod
    def _no_sums(self) -> dict[str, Any]:
        """Return the sums before the first step, as a dictionary of arrays, which may be nested."""

    @abstractmethod
    def _with_sums(self, kept: dict[str, Any], memory: float | None, /) -> Any:
        """Return the model with these sums, or with new sums if these are outdated.

        `memory` is the memory budget for working arrays, in MiB. A site step of the returned model also updates the
        sums. Afterwards, the method `_release_sums` returns the model and the sums.
        """


# -- the guards -------------------------------------------------------------------------------------------------------


def limit_sites(likelihood: Any, alpha: Array, beta: Array, var: Array) -> tuple[Array, Array]:
    """Return alpha and beta [N, P] of `Likelihood.site_gradients`, scaled down together where beta var is huge.

    `var` [N, P] is the part of the variance that the sites determine. It is at most 1 / beta when the steps have
    converged, so the limit eps^(-1/2) on beta var does not change the result. Before that, q(f) may be so wide, and an
    expectation of exp(f) so large, that rounding errors of var exceed 1 / beta. Likelihoods with `bounded_curvature`
    need no limit.
    """
    if likelihood.bounded_curvature:
        return alpha, beta
    B = backend_of(beta)
    alpha, beta = B.fused(_limit, alpha, beta, var, float(B.xp.finfo(beta.dtype).eps) ** 0.5)
    return alpha, beta


def _limit(B: Any, alpha: Array, beta: Array, var: Array, least: float) -> tuple[Array, Array]:
    steepness = B.xp.abs(beta) * var * least
    shrink = B.xp.maximum(steepness, B.xp.ones_like(steepness))
    return alpha / shrink, beta / shrink


def safeguarded_step(
    rate: Any, old: Sums, target: GuardedSums, proper: Callable[[Array], Array] | None
) -> tuple[Sums, dict[str, Array]]:
    """Move the sites towards the target; if necessary, halve the step or set negative betas to zero.

    `proper` takes a precision and returns whether it is valid for each output (Boolean [P]). If `proper` is None, all
    negative betas are set to zero. Returns the new sites and the values to log. Shared precisions are never negative.
    """
    B = backend_of(old.shift)
    xp = B.xp
    if old.shares_precision:
        moved = Sums(*(B.lerp(x, y, rate) for x, y in zip(old, target.raw, strict=True)))
        none = xp.zeros((), **like(old.shift))
        return moved, {"halvings": none, "clipped": none}
    full = rate + xp.zeros((old.shift.shape[1],), **like(old.shift))
    negative = target.negative > 0.0
    if proper is None:
        return interpolate_outputs(old, target.clipped, full), _step_info(xp.zeros_like(full), negative)

    def proper_at(rate: Array) -> Array:
        return proper(interpolate_outputs(old, target.raw, rate).precision)

    def unfinished(_rate: Array, good: Array, count: Array) -> Array:
        return xp.any(~good) & (xp.max(count) < MAX_HALVINGS)

    def halve(rate: Array, good: Array, count: Array) -> tuple[Array, Array, Array]:
        rate = xp.where(good, rate, 0.5 * rate)
        return rate, good | proper_at(rate), xp.where(good, count, count + 1.0)

    start = (full, ~negative | proper_at(full), xp.zeros_like(full))
    rate, good, count = B.cond(
        xp.all(start[1]), lambda: start, lambda: B.while_loop(unfinished, halve, start), likely=True
    )
    step, fallback = interpolate_outputs(old, target.raw, rate), interpolate_outputs(old, target.clipped, full)
    moved = Sums(*(xp.where(_along(good, x), x, y) for x, y in zip(step, fallback, strict=True)))
    halvings = xp.where(good, count, xp.zeros_like(count))
    lost = "the precision after a site step would not have been positive definite"
    report(
        f"{lost}, so the step was halved (at most {{0:.0f}} times); use a smaller rate.",
        xp.max(halvings),
        count=xp.count_nonzero(halvings),
    )
    clipped = xp.count_nonzero(~good)
    report(
        f"{lost} for any rate, so negative curvatures of the likelihood were set to zero for {{0:.0f}} outputs.",
        xp.astype(clipped, halvings.dtype),
        count=clipped,
    )
    return moved, _step_info(halvings, ~good)


def _step_info(halvings: Array, clipped: Array) -> dict[str, Array]:
    xp = backend_of(halvings).xp
    return {"halvings": xp.max(halvings), "clipped": xp.sum(xp.astype(clipped, halvings.dtype))}


def interpolate_outputs(old: Sums, new: Sums, rate: Array) -> Sums:
    """Return (1 - rate_p) old + rate_p new for each output p, given rates [P]."""
    B = backend_of(rate)
    return Sums(*(B.lerp(x, y, _along(rate, x)) for x, y in zip(old, new, strict=True)))


def _along(per_output: Array, x: Array) -> Array:
    """Reshape an array [P] so that it broadcasts along the outputs of x. The shape of x is [., P] or [P, M, M]."""
    return per_output if x.ndim == 2 else per_output[:, None, None]
