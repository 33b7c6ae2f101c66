"""Replacement of predictions outside the floating-point range by the nearest float in the range, with a warning."""

import math
from typing import Any

from agp.backend import Array, asarray_like, backend_of
from agp.repairs import report


def log_range(x: Array) -> tuple[float, float]:
    """Return the range of the logarithms of normal floats, for the dtype of x, with a margin for rounding."""
    info = backend_of(x).xp.finfo(x.dtype)
    margin = 1.0 - 4.0 * float(info.eps)
    return margin * math.log(float(info.smallest_normal)), margin * math.log(float(info.max))


def exp_in_range(*logs: Array) -> tuple[Array, ...]:
    """Return the exponential of each array, clipped to the range of normal floats."""
    low, high = log_range(logs[0])
    xp = backend_of(logs[0]).xp
    info = xp.finfo(logs[0].dtype)
    values, outside = [], []
    for x in logs:
        over, under = x > high, x < low
        outside.append(over | under)
        ends = xp.where(over, xp.full_like(x, float(info.max)), xp.full_like(x, float(info.smallest_normal)))
        values.append(xp.where(outside[-1], ends, xp.exp(xp.where(outside[-1], xp.zeros_like(x), x))))
    report_clipping("predicted moments", *outside)
    return tuple(values)


def positive_variance(variance: Array) -> Array:
    """Replace observation variances below the smallest normal float by that float."""
    xp = backend_of(variance).xp
    smallest = xp.full_like(variance, float(xp.finfo(variance.dtype).smallest_normal))
    under = variance < smallest
    report_clipping("predicted moments", under)
    return xp.where(under, smallest, variance)


def in_range(
    what: str, values: Any, beside: Array, support: tuple[float, float], *, whole_numbers: bool = False
) -> Array:
    """Move NumPy values to the library, dtype and device of `beside`, clipped to the dtype's range and to the support.

    The bounds of the support are excluded, except for whole numbers. A warning states how many values lie outside the
    range of the dtype. Values clipped to the bounds 0 and 1 of the support cause no warning, because values reach these
    bounds only through rounding.
    """
    info = backend_of(beside).xp.finfo(beside.dtype)
    least, gap = (0.0, 0.0) if whole_numbers else (float(info.smallest_normal), 0.5 * float(info.eps))
    low = least if support[0] == 0.0 else -float(info.max)
    high = 1.0 - gap if support[1] == 1.0 else float(info.max)
    outside = ((values > high) & (high > 1.0)) | ((values < low) & (low < 0.0))
    report_clipping(what, asarray_like(1.0 * outside, beside) > 0.0)
    return asarray_like(values.clip(low, high), beside)


def report_clipping(what: str, *outside: Array) -> None:
    """Warn about numbers outside the range of their dtype, which the Boolean arrays `outside` mark."""
    xp = backend_of(outside[0]).xp
    count = xp.astype(sum((xp.count_nonzero(x) for x in outside[1:]), start=xp.count_nonzero(outside[0])), xp.float32)
    report(
        f"{{0:.0f}} {what} of observations are too large or too small for their dtype and were replaced by the nearest "
        "normal number; check the latent means and variances.",
        count,
        count=count > 0.0,
    )
