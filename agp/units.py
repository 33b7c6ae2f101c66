"""What is usual in data: the units in which the parameters of a model that is built from them are trained."""

import numbers
from typing import Any

from agp.backend import Array, backend_of


def column_spreads(X: Array) -> Array:
    """The standard deviation of each column of X [N, D], as [D], to measure distances in.

    A constant column has none (but for rounding): it gets its absolute value, or 1 where it is zero.
    """
    xp = backend_of(X).xp
    size = xp.max(xp.abs(X), axis=0)
    varies = xp.max(X, axis=0) - xp.min(X, axis=0) > 10.0 * float(xp.finfo(X.dtype).eps) * size
    return xp.where(varies, xp.std(X, axis=0), xp.where(size > 0.0, size, xp.ones_like(size)))


def unit_by_column(value: Any, usual: Array) -> Array:
    """The unit of a leaf by column, usual sizes [D]; for one number, which serves all columns, their geometric mean."""
    xp = backend_of(usual).xp
    if value is None or isinstance(value, (list, tuple)) or (not isinstance(value, numbers.Real) and value.ndim):
        return usual
    return xp.exp(xp.mean(xp.log(usual)))
