"""Checking rows and copying them to the host, for all methods that choose inducing inputs."""

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.checks import check_inputs

ROWS = 20_000
"""The default number of rows drawn at random by methods whose run time grows with the number of rows."""

Rows = npt.NDArray[np.float64]
"""Rows [n, D] on the host."""


def check_count(X: Array, num_inducing: Any) -> int:
    """Return M as an int; raise an error unless X [N, D] is finite and M is a whole number from 1 to N."""
    check_inputs("X", X)
    real = isinstance(num_inducing, numbers.Real) and not isinstance(num_inducing, bool)
    count = float(num_inducing) if real else float("nan")
    if not 1 <= count <= X.shape[0] or not count.is_integer():
        rows = f"the number of rows, {X.shape[0]}"
        raise ValueError(f"num_inducing is {num_inducing!r}, but must be a whole number from 1 to {rows}.")
    return int(count)


def take_rows(X: Array, index: npt.NDArray[np.integer]) -> Rows:
    """Return the rows of X [N, D] at the given indices, on the host and in float64."""
    return to_numpy(backend_of(X).rows_at(X, asarray_like(index, X))).astype(np.float64)


def distinct(rows: Rows) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the sorted positions of the first row of each distinct value, and labels [n], equal for equal rows."""
    _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)  # -0.0 equals 0.0
    return np.sort(first), kind.reshape(-1)


def distinct_rows(X: Array, /) -> npt.NDArray[np.intp]:
    """Return the sorted positions of the first row of each distinct value among the rows of X [N, D]."""
    return distinct(to_numpy(X).astype(np.float64))[0]


def check_distinct(found: int, looked_at: int, num_inducing: int) -> None:
    """Raise ValueError if there are fewer distinct rows than inducing inputs."""
    if found < num_inducing:
        raise ValueError(
            f"num_inducing is {num_inducing}, but only {found} of the {looked_at} rows used are distinct; use at most "
            f"{found}, or inducing='kmeans', which allows equal inducing inputs."
        )
