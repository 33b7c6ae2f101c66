"""Updates of posteriors by sites: sums over the data, and steps that keep precisions positive definite.

At the marginals of f - h with means mu, let alpha = d/dmu and beta = -2 d/dvar of the expected log density of all data.
The site of datum n is exp(lam1_n f - lam2_n f^2 / 2); its target has lam1 = alpha + beta mu and lam2 = beta. In the
coordinates of a posterior the features of the datum are the column F_n [M] with mu_n = F_n^T m.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from agp.backend import Array, backend_of, like
from agp.repairs import report

HALVINGS = 10
"""The largest number of halvings of a step whose precision is not positive definite."""


class Sums(NamedTuple):
    """The sum of the sites of all data, or the sites themselves."""

    shift: Array
    """sum_n F_n lam1_n [M, P]; or the sites themselves [N, P]."""
    precision: Array
    """sum_n lam2_n F_n F_n^T [P, M, M]; or the sites themselves [N, P]."""


class GuardedSums(NamedTuple):
    """The sums, the same with beta clipped at zero, and the number of negative beta [P]."""

    raw: Sums
    clipped: Sums
    negative: Array


class SiteGradients(NamedTuple):
    """The input of a step: the factor of the posterior, and its sums over the data."""

    factor: Any
    sums: Any


def sums_of(F: Array, alpha: Array, beta: Array, mu: Array, /) -> Sums:
    """The sums for features F [M, N] and alpha, beta, mu [N, P]."""
    return Sums(F @ (alpha + beta * mu), (F * beta.mT[:, None, :]) @ F.mT)


def guarded_sums(F: Array, alpha: Array, beta: Array, mu: Array, /) -> GuardedSums:
    """The sums with and without negative beta; arguments as `sums_of`."""
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
        """The q(u) after a step of size `rate`, and the largest number of halvings over the outputs, 0-d."""


class SiteHolder(ABC):
    """A posterior with Gaussian sites, or a model with a site for each datum."""

    @property
    def _has_sites(self) -> bool:
        """Whether there are sites to move."""
        return True

    @abstractmethod
    def _site_step(
        self, found: Any, rate: Any, /, *, clip: bool, groups: tuple[int, ...] | None, rows: Array | None
    ) -> tuple[Self, dict[str, Array]]:
        """The holder after a step of its sites towards their targets, and numbers to log.

        Parameters
        ----------
        found
            The sums over the data that the holder needs.
        rate
            rho in (0, 1].
        clip
            Clip negative beta at once.
        groups
            The groups of sites to move; None for all.
        rows
            The positions [B] of the batch among the data; None for all data in order.
        """


class KeepsSums(ABC):
    """A model whose site steps on minibatches continue from the sums over all data of the previous step."""

    @abstractmethod
    def _no_sums(self) -> dict[str, Any]:
        """The state of an update before its first step: arrays, in dictionaries that may be nested."""

    @abstractmethod
    def _with_sums(self, kept: dict[str, Any], memory: float | None, /) -> "HoldsSums":
        """The model with these sums, or with new ones if they are outdated, within a budget in MiB."""


class HoldsSums(ABC):
    """Such a model during a step, with sums that are updated with the sites."""

    @abstractmethod
    def _released(self) -> tuple[Any, dict[str, Any]]:
        """The model without its sums, and the sums."""


# -- the guard --------------------------------------------------------------------------------------------------------


def guarded_step(
    rate: Any, old: Sums, target: GuardedSums, proper: Callable[[Array], Array] | None
) -> tuple[Sums, dict[str, Array]]:
    """A step from the old sites towards the target, halved or clipped if necessary, and numbers to log.

    `proper` returns whether the precision of each output is valid, Boolean [P]. None clips all negative beta.
    """
    B = backend_of(old.shift)
    xp = B.xp
    full = rate + xp.zeros((old.shift.shape[1],), **like(old.shift))
    negative = target.negative > 0.0
    if proper is None:
        return mixed(old, target.clipped, full), _logged(xp.zeros_like(full), negative)

    def unfinished(_rate: Array, good: Array, count: Array) -> Array:
        return xp.any(~good) & (xp.max(count) < HALVINGS)

    def halve(rate: Array, good: Array, count: Array) -> tuple[Array, Array, Array]:
        rate = xp.where(good, rate, 0.5 * rate)
        return rate, good | proper(mixed(old, target.raw, rate).precision), xp.where(good, count, count + 1.0)

    start = (full, ~negative | proper(mixed(old, target.raw, full).precision), xp.zeros_like(full))
    rate, good, count = B.cond(
        xp.all(start[1]), lambda: start, lambda: B.while_loop(unfinished, halve, start), likely=True
    )
    step, fallback = mixed(old, target.raw, rate), mixed(old, target.clipped, full)
    moved = Sums(*(xp.where(_along(good, x), x, y) for x, y in zip(step, fallback, strict=True)))
    halvings = xp.where(good, count, xp.zeros_like(count))
    _report(halvings, good)
    return moved, _logged(halvings, ~good)


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


def _logged(halvings: Array, clipped: Array) -> dict[str, Array]:
    xp = backend_of(halvings).xp
    return {"halvings": xp.max(halvings), "clipped": xp.sum(xp.astype(clipped, halvings.dtype))}


def mixed(old: Sums, new: Sums, rate: Array) -> Sums:
    """(1 - rate_p) old + rate_p new for each output p, with rates [P]."""
    B = backend_of(rate)
    return Sums(*(B.interpolated(x, y, _along(rate, x)) for x, y in zip(old, new, strict=True)))


def _along(per_output: Array, x: Array) -> Array:
    """Numbers [P] along the outputs of x: [., P], or [P, M, M]."""
    return per_output if x.ndim == 2 else per_output[:, None, None]
