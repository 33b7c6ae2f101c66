"""A guard on what steps of q(u) do to the bound, where the curvature of the likelihood knows no limit."""

from collections.abc import Callable
from typing import Any

from agp.backend import Array, backend_of
from agp.batch import Batch
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.repairs import collect_reports, reported
from agp.tree import zero_like
from agp.updates._base import Info

__all__ = ["guarded_by_bound"]

SHORTENED = 40
"""How often a step is halved before it is left out."""
ROUNDING = 1e3
"""Units of rounding by which the bound may fall."""


def guarded_by_bound(
    step: Callable[[Any], tuple[Any, Info]], model: Any, batch: Batch, rate: Any, memory: float | None
) -> tuple[Any, Info]:
    """The model after ``step(rate)``, the rate halved until the bound of the batch does not fall, and what to log.

    A Newton step on exp(f) from below overshoots by as much as counts are large, and no later step leads back. Where
    the curvature of the log density is bounded (`Likelihood.bounded_curvature`) the step is taken as it is; elsewhere
    it costs two evaluations of the bound, and one more for each halving ("shortened"). A step that does not help at
    any size is left out.
    """
    if model.likelihood.bounded_curvature:
        return step(rate)
    before = _bound(model, batch, memory)
    B = backend_of(before)
    xp = B.xp
    least = before - ROUNDING * float(xp.finfo(before.dtype).eps) * xp.abs(before)
    none = xp.zeros_like(before)

    def helps(value: Array) -> Array:
        return xp.isfinite(value) & ((value >= least) | ~xp.isfinite(before))

    def attempt(rate: Any) -> tuple[tuple[Any, Info], Array]:
        moved = step(rate)
        return moved, helps(_bound(moved[0], batch, memory))

    with collect_reports() as seen:
        first, good = attempt(rate + none)

    def taken() -> tuple[Any, Info]:
        reported(seen)
        moved, info = first
        return moved, info | {"shortened": none}

    def search() -> tuple[Any, Info]:
        def shorten(rate: Array, _good: Array, count: Array) -> tuple[Array, Array, Array]:
            return 0.5 * rate, attempt(0.5 * rate)[1], count + 1.0

        start = rate + none, good, none
        with collect_reports():  # of what is tried, the last is done again
            found, helped, count = B.while_loop(lambda _r, good, n: ~good & (n < SHORTENED), shorten, start)
        moved, info = step(xp.where(helped, found, none))
        return moved, info | {"shortened": count}

    return B.cond(good, taken, search, likely=True)


def _bound(model: Any, batch: Batch, memory: float | None) -> Array:
    """The bound of a batch, 0-d; NaN where there is none."""
    try:
        with collect_reports():  # the optimiser evaluates it, too
            return model._objective(batch, memory=memory)[0]
    except (NonFiniteError, NotPositiveDefiniteError):
        return zero_like(model) + float("nan")
