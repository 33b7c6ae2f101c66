"""Moments of observations beyond the floating-point range: replaced by the nearest number, and reported."""

import math
from typing import Any

from agp.backend import Array, backend_of, placed
from agp.repairs import report


def log_range(x: Array) -> tuple[float, float]:
    """The logarithms between which exp(x) is a normal number of the dtype of x, with a margin for rounding."""
    info = backend_of(x).xp.finfo(x.dtype)
    margin = 1.0 - 4.0 * float(info.eps)
    return margin * math.log(float(info.smallest_normal)), margin * math.log(float(info.max))


def exp_in_range(*logs: Array) -> tuple[Array, ...]:
    """exp of each, clipped to the largest and the smallest normal float."""
    low, high = log_range(logs[0])
    xp = backend_of(logs[0]).xp
    info = xp.finfo(logs[0].dtype)
    values, outside = [], []
    for x in logs:
        over, under = x > high, x < low
        outside.append(over | under)
        ends = xp.where(over, xp.full_like(x, float(info.max)), xp.full_like(x, float(info.smallest_normal)))
        values.append(xp.where(outside[-1], ends, xp.exp(xp.where(outside[-1], xp.zeros_like(x), x))))
    report_cut("predicted moments", *outside)
    return tuple(values)


def positive_variance(variance: Array) -> Array:
    """The variances of observations, raised to the smallest normal float."""
    xp = backend_of(variance).xp
    smallest = xp.full_like(variance, float(xp.finfo(variance.dtype).smallest_normal))
    under = variance < smallest
    report_cut("predicted moments", under)
    return xp.where(under, smallest, variance)


def in_range(what: str, values: Any, beside: Array, support: tuple[float, float]) -> Array:
    """Host observations as an array like another, clipped to its range and to the support.

    Values beyond the range are reported; those clipped at 0 or 1 only differ by rounding.
    """
    info = backend_of(beside).xp.finfo(beside.dtype)
    low = float(info.smallest_normal) if support[0] == 0.0 else -float(info.max)
    high = 1.0 - 0.5 * float(info.eps) if support[1] == 1.0 else float(info.max)
    outside = ((values > high) & (high > 1.0)) | ((values < low) & (low < 0.0))
    report_cut(what, placed(1.0 * outside, beside) > 0.0)
    return placed(values.clip(low, high), beside)


def report_cut(what: str, *outside: Array) -> None:
    """Report how many numbers, marked by Booleans, were outside the range of their dtype, if any."""
    xp = backend_of(outside[0]).xp
    count = xp.astype(sum((xp.count_nonzero(x) for x in outside[1:]), start=xp.count_nonzero(outside[0])), xp.float32)
    report(
        f"{{0:.0f}} {what} of observations are too large or too small for their dtype and were replaced by the nearest "
        "normal number. Check the latent means and variances there.",
        count,
        count=count > 0.0,
    )
