"""What every way of choosing shares: the checks, and the rows that are looked at, on the host."""

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.backend import Array, backend_of, placed, to_numpy
from agp.checks import check_inputs

__all__ = ["ROWS", "Rows", "check_count", "check_distinct", "distinct", "taken"]

ROWS = 20_000
"""Rows, drawn at random, that are looked at by default where the cost grows with their number."""

Rows = npt.NDArray[np.float64]
"""Rows [n, D] on the host."""


def check_count(X: Array, num_inducing: Any) -> int:
    """M as an int, once X [N, D] is known to be finite inputs.

    Raises
    ------
    TypeError, ValueError
        If X is no floating-point array [N, D], has entries that are not finite, or M is not a whole number from 1 to N.
    """
    check_inputs("X", X)
    real = isinstance(num_inducing, numbers.Real) and not isinstance(num_inducing, bool)
    count = float(num_inducing) if real else float("nan")
    if not 1 <= count <= X.shape[0] or not count.is_integer():
        rows = f"the number of rows, {X.shape[0]}"
        msg = f"num_inducing is {num_inducing!r}, but must be a whole number from 1 to {rows}."
        raise ValueError(msg)
    return int(count)


def taken(X: Array, index: npt.NDArray[np.integer]) -> Rows:
    """Those rows of X [N, D] on the host, in float64; the others stay where they are."""
    return to_numpy(backend_of(X).rows_at(X, placed(index, X))).astype(np.float64)


def distinct(rows: Rows) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The positions of the first of each distinct row, in their order, and for every row the number of its kind."""
    # 0.0 added: -0.0 and 0.0 are one number
    _, first, kind = np.unique(rows + 0.0, axis=0, return_index=True, return_inverse=True)
    return np.sort(first), kind.reshape(-1)


def check_distinct(found: int, looked_at: int, num_inducing: int) -> None:
    """ValueError if fewer rows are distinct than inducing inputs are wanted."""
    if found < num_inducing:
        msg = (
            f"num_inducing is {num_inducing}, but only {found} of the {looked_at} rows looked at are distinct; "
            f"ask for at most {found}, or use 'kmeans', whose inducing inputs may coincide."
        )
        raise ValueError(msg)
