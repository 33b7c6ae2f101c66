"""Updates of posteriors through their sites: sums over the data, and steps that keep precisions positive definite.

Let mu be the means of the marginals of f - h, and let alpha = d/dmu and beta = -2 d/dvar of the expected log density of
all data. The site of datum n is exp(lam1_n f - lam2_n f^2 / 2), and its target has lam1 = alpha + beta mu and lam2 =
beta. In the coordinates of a posterior, the features of the datum are the column F_n [M] with mu_n = F_n^T m.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from agp.backend import Array, backend_of, like
from agp.repairs import report

MAX_HALVINGS = 10
"""The largest number of times that a step is halved when its precision is not positive definite."""


class Sums(NamedTuple):
    """The sum of the sites of all data, or the sites themselves."""

    shift: Array
    """sum_n F_n lam1_n [M, P]; or the sites themselves [N, P]."""
    precision: Array
    """sum_n lam2_n F_n F_n^T [P, M, M]; or the sites themselves [N, P]."""


class GuardedSums(NamedTuple):
    """The sums, the sums with beta clipped at zero, and the number of negative beta [P]."""

    raw: Sums
    clipped: Sums
    negative: Array


class SiteGradients(NamedTuple):
    """The input to a step: the factor of the posterior, and its sums over the data."""

    factor: Any
    sums: Any


def sums_of(F: Array, alpha: Array, beta: Array, mu: Array, /) -> Sums:
    """Return the sums for features F [M, N] and alpha, beta, mu [N, P]."""
    return Sums(F @ (alpha + beta * mu), (F * beta.mT[:, None, :]) @ F.mT)


def sums_with_fallback(F: Array, alpha: Array, beta: Array, mu: Array, /) -> GuardedSums:
    """Return the sums with and without negative beta. The arguments are those of `sums_of`."""
    B = backend_of(beta)
    xp = B.xp
    negative = xp.sum(xp.astype(beta < 0.0, beta.dtype), axis=0)
    raw = sums_of(F, alpha, beta, mu)

    def clipped() -> Sums:
        return sums_of(F, alpha, xp.maximum(beta, xp.zeros_like(beta)), mu)

    return GuardedSums(raw, B.cond(xp.any(negative > 0.0), clipped, lambda: raw, likely=False), negative)


class NaturalSteps(ABC):
    """A q(u) with steps along natural gradients."""

    @abstractmethod
    def natural_step(self, found: SiteGradients, rate: Any, coordinates: str, /) -> tuple[Self, Array]:
        """Return q(u) after a step of size `rate`, and the largest number of halvings over the outputs (a scalar)."""


class SiteHolder(ABC):
    """A posterior with Gaussian sites, or a model with a site for each datum."""

    @property
    def _has_sites(self) -> bool:
        """Whether there are sites to update."""
        return True

    @abstractmethod
    def _site_step(
        self, found: Any, rate: Any, /, *, clip: bool, groups: tuple[int, ...] | None, rows: Array | None
    ) -> tuple[Self, dict[str, Array]]:
        """Move the sites towards their targets; return the new holder and numbers to log.

        Parameters
        ----------
        found
            The sums over the data that the object needs.
        rate
            rho in (0, 1].
        clip
            Whether to clip negative beta without trying smaller steps first.
        groups
            The groups of sites to update, or None for all groups.
        rows
            The positions [B] of the batch among the data, or None for all data in order.
        """


class KeepsSums(ABC):
    """A model that keeps the sums over all data, so that site steps on minibatches continue from the previous step."""

    @abstractmethod
    def _no_sums(self) -> dict[str, Any]:
        """Return the state of an update before its first step: arrays in dictionaries, which may be nested."""

    @abstractmethod
    def _with_sums(self, kept: dict[str, Any], memory: float | None, /) -> "HoldsSums":
        """Return the model with these sums, or with new sums if they are outdated, within a memory budget in MiB."""


class HoldsSums(ABC):
    """A `KeepsSums` model during a step, with sums that are updated together with the sites."""

    @abstractmethod
    def _release_sums(self) -> tuple[Any, dict[str, Any]]:
        """Return the model without its sums, and the sums."""


# -- the guard --------------------------------------------------------------------------------------------------------


def safeguarded_step(
    rate: Any, old: Sums, target: GuardedSums, proper: Callable[[Array], Array] | None
) -> tuple[Sums, dict[str, Array]]:
    """Step from the old sites towards the target, with halving or clipping if necessary; also return numbers to log.

    `proper` returns, for each output, whether its precision is valid (Boolean [P]). If it is None, all negative beta
    are clipped.
    """
    B = backend_of(old.shift)
    xp = B.xp
    full = rate + xp.zeros((old.shift.shape[1],), **like(old.shift))
    negative = target.negative > 0.0
    if proper is None:
        return interpolate_outputs(old, target.clipped, full), _step_info(xp.zeros_like(full), negative)

    def unfinished(_rate: Array, good: Array, count: Array) -> Array:
        return xp.any(~good) & (xp.max(count) < MAX_HALVINGS)

    def halve(rate: Array, good: Array, count: Array) -> tuple[Array, Array, Array]:
        rate = xp.where(good, rate, 0.5 * rate)
        return (
            rate,
            good | proper(interpolate_outputs(old, target.raw, rate).precision),
            xp.where(good, count, count + 1.0),
        )

    start = (full, ~negative | proper(interpolate_outputs(old, target.raw, full).precision), xp.zeros_like(full))
    rate, good, count = B.cond(
        xp.all(start[1]), lambda: start, lambda: B.while_loop(unfinished, halve, start), likely=True
    )
    step, fallback = interpolate_outputs(old, target.raw, rate), interpolate_outputs(old, target.clipped, full)
    moved = Sums(*(xp.where(_along(good, x), x, y) for x, y in zip(step, fallback, strict=True)))
    halvings = xp.where(good, count, xp.zeros_like(count))
    _report(halvings, good)
    return moved, _step_info(halvings, ~good)


def _report(halvings: Array, good: Array) -> None:
    xp = backend_of(good).xp
    lost = "a step of the sites would have left no positive definite precision"
    report(
        f"{lost}; its rate was halved (at most {{0:.0f}} times). Try a smaller rate.",
        xp.max(halvings),
        count=xp.count_nonzero(halvings),
    )
    clipped = xp.count_nonzero(~good)
    report(
        f"{lost} at any rate; in {{0:.0f}} outputs the negative curvatures of the likelihood were clipped to zero.",
        xp.astype(clipped, halvings.dtype),
        count=clipped,
    )


def _step_info(halvings: Array, clipped: Array) -> dict[str, Array]:
    xp = backend_of(halvings).xp
    return {"halvings": xp.max(halvings), "clipped": xp.sum(xp.astype(clipped, halvings.dtype))}


def interpolate_outputs(old: Sums, new: Sums, rate: Array) -> Sums:
    """Return (1 - rate_p) old + rate_p new for each output p, given the rates [P]."""
    B = backend_of(rate)
    return Sums(*(B.lerp(x, y, _along(rate, x)) for x, y in zip(old, new, strict=True)))


def _along(per_output: Array, x: Array) -> Array:
    """Reshape numbers [P] so that they broadcast along the outputs of x, which is [., P] or [P, M, M]."""
    return per_output if x.ndim == 2 else per_output[:, None, None]
