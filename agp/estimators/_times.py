"""Columns of dates, times and durations as days."""

import datetime as dt
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import numpy.typing as npt

__all__ = ["DAYS", "KINDS", "days_of", "unit_of"]

DAYS, DAYS_UTC, DURATION = "days since 1970-01-01", "days since 1970-01-01 UTC", "days"
KINDS = {DAYS: "dates", DAYS_UTC: "times with a time zone", DURATION: "durations"}
"""What a column holds, by its unit; dates may be times without a time zone."""
DAY = dt.timedelta(days=1)


def unit_of(name: str, column: Any) -> str | None:
    """The unit of a narwhals series of dates, times or durations; None of anything else.

    ValueError where some cells of a column of Python objects have another unit than others.
    """
    dtype = column.dtype
    if dtype == nw.Date:
        return DAYS
    if isinstance(dtype, nw.Datetime):
        return DAYS if dtype.time_zone is None else DAYS_UTC
    if isinstance(dtype, nw.Duration):
        return DURATION
    units = {_unit(cell) for cell in column.drop_nulls().to_list()} if dtype == nw.Object else set()
    if len(units) > 1 and None not in units:
        kinds = " and ".join(kind for unit, kind in KINDS.items() if unit in units)
        msg = f"column {name!r} holds {kinds}; make all of them one kind, or leave it out."
        raise ValueError(msg)
    return units.pop() if len(units) == 1 else None


def days_of(column: Any) -> npt.NDArray[np.float64]:
    """The days [N] of a column that has a unit, NaN where a cell is missing."""
    if column.dtype == nw.Date or isinstance(column.dtype, nw.Datetime):
        return column.dt.timestamp("us").cast(nw.Float64).to_numpy() / (DAY / dt.timedelta(microseconds=1))
    cells = zip(column.to_list(), column.is_null().to_list(), strict=True)
    return np.asarray([np.nan if is_missing else _days(cell) for cell, is_missing in cells])


def _unit(cell: Any) -> str | None:
    if isinstance(cell, dt.datetime):
        return DAYS if cell.tzinfo is None else DAYS_UTC
    if isinstance(cell, dt.date):
        return DAYS
    return DURATION if isinstance(cell, dt.timedelta) else None


def _days(cell: Any) -> float:
    if isinstance(cell, dt.datetime):
        return (cell - dt.datetime(1970, 1, 1, tzinfo=cell.tzinfo and dt.UTC)) / DAY
    return (cell - dt.date(1970, 1, 1) if isinstance(cell, dt.date) else cell) / DAY
