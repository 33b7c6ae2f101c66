"""Tables of any type, with columns that can be read and replaced."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.backend import to_numpy
from agp.errors import name_remedy, require

TRUTHS = {"true", "false"}
DAY = 86_400_000_000
"""The number of microseconds in a day."""


class Table(ABC):
    """Rows with named columns."""

    names: tuple[str, ...]
    rows: int

    @abstractmethod
    def is_number(self, column: int) -> bool:
        """Whether the column contains numbers or times, not categories."""

    @abstractmethod
    def values(self, column: int) -> npt.NDArray[Any]:
        """Return the entries [N] of a column: numbers, NumPy dates (in UTC) or durations, or categories as objects."""

    def order(self, column: int) -> list[str] | None:  # noqa: ARG002 - overridden
        """Return the levels of a column of ordered categories, from the lowest to the highest; None for others."""
        return None

    @abstractmethod
    def rows_at(self, rows: npt.NDArray[np.intp]) -> Any:
        """Return rows as a NumPy array, or as a data frame of the same library as the user's."""

    @abstractmethod
    def cartesian_product(self, column: int, values: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> Any:
        """Repeat the n given rows once for each of G values, and set the column to that value.

        Return the G n rows as a NumPy array, or as a data frame of the same library as the user's.
        """

    def position(self, column: str | int) -> int:
        """Return the number of a column, which is given by name or number. Raise ValueError if it does not exist."""
        if column in self.names:
            return self.names.index(column)
        if isinstance(column, int) and not isinstance(column, bool) and -len(self.names) <= column < len(self.names):
            return column % len(self.names)
        raise ValueError(f"column {column!r} does not exist; {name_remedy(column, self.names, 'the columns are')}")


class ArrayTable(Table):
    """A table of numbers on the host."""

    def __init__(self, values: npt.NDArray[Any], names: tuple[str, ...]) -> None:
        self.array, self.names, self.rows = values, names, len(values)

    def is_number(self, column: int) -> bool:  # noqa: ARG002 - all columns hold numbers
        return True

    def values(self, column: int) -> npt.NDArray[Any]:
        return self.array[:, column]

    def rows_at(self, rows: npt.NDArray[np.intp]) -> Any:
        return self.array[rows]

    def cartesian_product(self, column: int, values: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> Any:
        found = self.array[np.tile(rows, len(values))].astype(np.result_type(self.array, values))
        found[:, column] = np.repeat(values, len(rows))
        return found


class FrameTable(Table):
    """A data frame of any library that narwhals supports."""

    def __init__(self, frame: Any) -> None:
        self.frame, self.names, self.rows = frame, tuple(frame.columns), len(frame)

    def _column(self, column: int) -> tuple[Any, str]:
        """Return a column and its kind, which is that of `agp.tables`, except that Booleans are categories."""
        from agp.tables import CATEGORY, NUMBER, kind_of, plain_column

        found = plain_column(self.frame.get_column(self.names[column]))
        kind = kind_of(found)
        if kind == NUMBER and not found.dtype.is_numeric() and {str(x).lower() for x in found.distinct} <= TRUTHS:
            return found, CATEGORY
        return found, kind

    def is_number(self, column: int) -> bool:
        from agp.tables import CATEGORY, ORDERED

        return self._column(column)[1] not in (CATEGORY, ORDERED)

    def order(self, column: int) -> list[str] | None:
        return self._column(column)[0].order

    def values(self, column: int) -> npt.NDArray[Any]:
        from agp.tables import CATEGORY, DURATION, NUMBER, ORDERED, days_in, numbers_in

        found, kind = self._column(column)
        if kind == NUMBER:
            return np.asarray(numbers_in(found), dtype=np.float64)
        if kind == CATEGORY:
            return np.asarray(found.series.to_list(), dtype=object)
        if kind == ORDERED:
            return found.spread(found.levels, None, object)
        return _times(days_in(found, kind), "m8[us]" if kind == DURATION else "M8[us]")

    def rows_at(self, rows: npt.NDArray[np.intp]) -> Any:
        return self.frame[rows.tolist(), :].to_native()

    def cartesian_product(self, column: int, values: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> Any:
        import narwhals.stable.v2 as nw

        from agp.tables import DAYS_UTC

        several, library = self.frame[np.tile(rows, len(values)).tolist(), :], self.frame.implementation
        cells, dtype = np.repeat(values, len(rows)).tolist(), nw.Datetime("us") if values.dtype.kind == "M" else None
        series = nw.new_series(self.names[column], cells, dtype, backend=library)
        if values.dtype.kind == "M" and self._column(column)[1] == DAYS_UTC:
            series = series.dt.replace_time_zone("UTC")
        return several.with_columns(series).to_native()


def in_days(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Convert NumPy dates to days since 1970-01-01, and durations to days; return numbers as float64."""
    if values.dtype.kind not in "mM":
        return values.astype(np.float64)
    return np.where(np.isnat(values), np.nan, values.astype(f"{values.dtype.kind}8[us]").astype(np.int64) / DAY)


def like_values(days: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert days to dates or durations if `values` are such; return numbers unchanged."""
    return _times(days, values.dtype.str) if values.dtype.kind in "mM" else days


def _times(days: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    known = ~np.isnan(days)
    found = np.full(days.shape, "NaT", dtype=dtype)
    found[known] = np.rint(days[known] * DAY).astype(np.int64).astype(dtype)
    return found


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
        values = fill_missing_objects(np.asarray(to_numpy(X)))
        if values.ndim != 2 or 0 in values.shape:
            raise ValueError(f"X has shape {values.shape}, but must be a table [N, D] with rows and columns.")
        return ArrayTable(values, tuple(names) if names else column_names(values.shape[1]))
    nw = require("narwhals.stable.v2", f"X is a {type(X).__name__}; tables other than arrays need", "sklearn")
    try:
        frame = nw.from_native(X, eager_only=True)
    except TypeError:
        raise TypeError(f"X is a {type(X).__name__}, but must be an array, a list of lists, or a data frame.") from None
    if not len(frame):
        raise ValueError("X has no rows; pass at least one row.")
    return FrameTable(frame)


def fill_missing_objects(x: Any, /) -> Any:
    """Replace pandas' marks of missing cells, NA and NaT, by None in a NumPy array of objects."""
    if x.dtype.kind != "O":
        return x
    gone = np.reshape([type(cell).__name__ in ("NAType", "NaTType") for cell in x.ravel()], x.shape)
    return np.where(gone, None, x) if gone.any() else x


def column_names(count: int) -> tuple[str, ...]:
    """Return default names for columns without names."""
    return ("input",) if count == 1 else tuple(f"input {i + 1}" for i in range(count))
