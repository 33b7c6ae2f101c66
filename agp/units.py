"""What is usual in data: the units in which the parameters of a model that is built from them are trained."""

import numbers
from typing import Any

from agp.backend import Array, backend_of

__all__ = ["column_spreads", "unit_by_column"]


def column_spreads(X: Array) -> Array:
    """The standard deviation of each column of X [N, D], as [D], to measure distances in.

    A constant column has none (but for rounding); any scale serves, and it gets 1.
    """
    xp = backend_of(X).xp
    spread = xp.std(X, axis=0)
    rounding = 10.0 * float(xp.finfo(X.dtype).eps) * xp.max(xp.abs(X), axis=0)
    return xp.where(spread > rounding, spread, xp.ones_like(spread))


def unit_by_column(value: Any, usual: Array) -> Array:
    """The unit of a leaf by column, usual sizes [D]; for one number, which serves all columns, their geometric mean."""
    xp = backend_of(usual).xp
    if value is None or isinstance(value, (list, tuple)) or (not isinstance(value, numbers.Real) and value.ndim):
        return usual
    return xp.exp(xp.mean(xp.log(usual)))
