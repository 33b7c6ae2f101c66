"""Tables of any type, with columns that can be read and replaced."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.backend import to_numpy
from agp.errors import require


class Table(ABC):
    """Rows with named columns."""

    names: tuple[str, ...]
    rows: int

    @abstractmethod
    def is_number(self, column: int) -> bool:
        """Whether the column contains numbers, not categories."""

    @abstractmethod
    def values(self, column: int) -> npt.NDArray[Any]:
        """Return the entries [N] of a column."""

    @abstractmethod
    def cartesian_product(self, column: int, values: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> Any:
        """Repeat the n given rows once for each of G values, and set the column to that value.

        Return the G n rows as a NumPy array, or as a data frame of the same library as the user's.
        """

    def position(self, column: str | int) -> int:
        """Return the number of a column, which is given by name or number. Raise ValueError if it does not exist."""
        if column in self.names:
            return self.names.index(str(column))
        if isinstance(column, int) and not isinstance(column, bool) and -len(self.names) <= column < len(self.names):
            return column % len(self.names)
        msg = f"column {column!r} does not exist; the columns are {', '.join(map(repr, self.names[:20]))}"
        raise ValueError(msg + (", ..." if len(self.names) > 20 else "."))


class ArrayTable(Table):
    """A table of numbers on the host."""

    def __init__(self, values: npt.NDArray[Any], names: tuple[str, ...]) -> None:
        self.array, self.names, self.rows = values, names, len(values)

    def is_number(self, column: int) -> bool:  # noqa: ARG002 - all columns hold numbers
        return True

    def values(self, column: int) -> npt.NDArray[Any]:
        return self.array[:, column]

    def cartesian_product(self, column: int, values: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> Any:
        found = self.array[np.tile(rows, len(values))].astype(np.result_type(self.array, values))
        found[:, column] = np.repeat(values, len(rows))
        return found


class FrameTable(Table):
    """A data frame of any library that narwhals supports."""

    def __init__(self, frame: Any) -> None:
        self.frame, self.names, self.rows = frame, tuple(frame.columns), len(frame)

    def is_number(self, column: int) -> bool:
        return self.frame.schema[self.names[column]].is_numeric()

    def values(self, column: int) -> npt.NDArray[Any]:
        import narwhals.stable.v2 as nw

        found = self.frame.get_column(self.names[column])
        if not self.is_number(column):
            return np.asarray(found.to_list(), dtype=object)
        return np.asarray(found.cast(nw.Float64).to_numpy(), dtype=np.float64)

    def cartesian_product(self, column: int, values: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> Any:
        import narwhals.stable.v2 as nw

        several, kind = self.frame[np.tile(rows, len(values)).tolist(), :], self.frame.implementation
        series = nw.new_series(self.names[column], np.repeat(values, len(rows)).tolist(), backend=kind)
        columns = {name: several.get_column(name) for name in self.names} | {series.name: series}
        return nw.from_dict(columns, backend=kind).to_native()


def as_table(X: Any, names: Sequence[str] | None = None) -> Table:
    """Wrap an array of any library, a list of lists, or a data frame. Data frames require the narwhals package.

    Raises
    ------
    TypeError, ValueError
        If X has another type, or has no rows or columns.
    """
    from array_api_compat import is_array_api_obj

    if isinstance(X, (list, tuple)):
        X = np.asarray(X)
    if is_array_api_obj(X):
        values = np.asarray(to_numpy(X))
        if values.ndim != 2 or 0 in values.shape:
            raise ValueError(f"X has shape {values.shape}, but must be a table [N, D] with rows and columns.")
        return ArrayTable(values, tuple(names) if names else column_names(values.shape[1]))
    nw = require("narwhals.stable.v2", f"X is a {type(X).__name__}; tables other than arrays need", "sklearn")
    try:
        frame = nw.from_native(X, eager_only=True)
    except TypeError:
        raise TypeError(f"X is a {type(X).__name__}, but must be an array, a list of lists, or a data frame.") from None
    if not len(frame):
        raise ValueError("X has no rows.")
    return FrameTable(frame)


def column_names(count: int) -> tuple[str, ...]:
    """Return default names for columns without names."""
    return ("input",) if count == 1 else tuple(f"input {i + 1}" for i in range(count))
