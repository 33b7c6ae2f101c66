"""Moments of observations that no floating-point number can hold: the nearest one stands for them, and it is said."""

import math

from agp.backend import Array, backend_of
from agp.linalg import report_repair

__all__ = ["exp_in_range", "log_range", "positive_variance", "report_cut"]


def log_range(x: Array) -> tuple[float, float]:
    """The logarithms between which exp(x) is a normal number of the dtype of x, with a margin for rounding."""
    info = backend_of(x).xp.finfo(x.dtype)
    margin = 1.0 - 4.0 * float(info.eps)
    return margin * math.log(float(info.smallest_normal)), margin * math.log(float(info.max))


def exp_in_range(*logs: Array) -> tuple[Array, ...]:
    """exp of each; what is larger than the largest float is that float, and likewise below the smallest normal one."""
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
    """The variances of observations, of which those below the smallest normal float are that float."""
    xp = backend_of(variance).xp
    smallest = xp.full_like(variance, float(xp.finfo(variance.dtype).smallest_normal))
    under = variance < smallest
    report_cut("predicted moments", under)
    return xp.where(under, smallest, variance)


def report_cut(what: str, *outside: Array) -> None:
    """Report how many numbers, marked by Booleans, were outside the range of their dtype, if any and if known now."""
    B = backend_of(outside[0])
    if all(B.is_concrete(x) for x in outside):
        count = sum(int(B.xp.count_nonzero(x)) for x in outside)
        if count:
            report_repair(
                f"{count} {what} of observations are too large or too small for their dtype; the nearest normal number "
                "stands for each. Look at the latent means and variances there."
            )
