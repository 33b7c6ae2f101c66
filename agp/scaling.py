"""Scales of data columns. They are the units of parameters whose initial values are computed from data."""

import numbers
from typing import Any

from agp.backend import Array, backend_of


def column_spreads(X: Array) -> Array:
    """Return the standard deviation [D] of each column of X [N, D].

    For a column that is constant up to rounding, return its absolute value, or 1 if the column is zero.
    """
    xp = backend_of(X).xp
    size = xp.max(xp.abs(X), axis=0)
    varies = xp.max(X, axis=0) - xp.min(X, axis=0) > 10.0 * float(xp.finfo(X.dtype).eps) * size
    return xp.where(varies, xp.std(X, axis=0), xp.where(size > 0.0, size, xp.ones_like(size)))


def unit_by_column(value: Any, scales: Array) -> Array:
    """Return the scales [D] as the unit of a parameter with one entry per column, else their geometric mean."""
    xp = backend_of(scales).xp
    if value is None or isinstance(value, (list, tuple)) or (not isinstance(value, numbers.Real) and value.ndim):
        return scales
    return xp.exp(xp.mean(xp.log(scales)))
