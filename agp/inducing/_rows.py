"""Checks and host copies of rows, for all ways of choosing inducing inputs."""

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.backend import Array, backend_of, placed, to_numpy
from agp.checks import check_inputs

ROWS = 20_000
"""The default number of rows, drawn at random, for ways whose cost grows with it."""

Rows = npt.NDArray[np.float64]
"""Rows [n, D] on the host."""


def check_count(X: Array, num_inducing: Any) -> int:
    """M as an int; TypeError or ValueError unless X [N, D] is finite and M is a whole number from 1 to N."""
    check_inputs("X", X)
    real = isinstance(num_inducing, numbers.Real) and not isinstance(num_inducing, bool)
    count = float(num_inducing) if real else float("nan")
    if not 1 <= count <= X.shape[0] or not count.is_integer():
        rows = f"the number of rows, {X.shape[0]}"
        msg = f"num_inducing is {num_inducing!r}, but must be a whole number from 1 to {rows}."
        raise ValueError(msg)
    return int(count)


def taken(X: Array, index: npt.NDArray[np.integer]) -> Rows:
    """These rows of X [N, D] on the host, in float64."""
    return to_numpy(backend_of(X).rows_at(X, placed(index, X))).astype(np.float64)


def distinct(rows: Rows) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The positions of the first occurrence of each distinct row, ascending, and the index of each row among them."""
    # adding 0.0 makes -0.0 equal to 0.0
    _, first, kind = np.unique(rows + 0.0, axis=0, return_index=True, return_inverse=True)
    return np.sort(first), kind.reshape(-1)


def check_distinct(found: int, looked_at: int, num_inducing: int) -> None:
    """ValueError if fewer rows are distinct than inducing inputs are wanted."""
    if found < num_inducing:
        msg = (
            f"num_inducing is {num_inducing}, but only {found} of the {looked_at} rows used are distinct; use at most "
            f"{found}, or 'kmeans', whose inducing inputs may coincide."
        )
        raise ValueError(msg)
