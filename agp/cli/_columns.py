"""Conversion of table columns to inputs for estimators: numbers, text, dates and durations."""

import re
import shlex
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from agp.data import TableFile, bad_number, identifies_rows, level_of, unknown_column_message

MANY_LEVELS = 100
"""The number of different values of a column above which a remark says that training takes long."""
DATE = re.compile(r"\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ]\d{1,2}:\d{2}.*)?|(1[6-9]|20)\d\d-(0[1-9]|1[0-2]))\s*")
"""Matches a date such as 2020-12-31, with or without a time, or a month such as 2020-12."""
ZONE = re.compile(r":\d{2}.*(?:Z|UTC|GMT|[-+]\d{2}(?::?\d{2})?)\s*$")
TIMES = ("date", "datetime", "datetime64")
"""pandas' names for date and time types."""
DURATIONS = ("timedelta", "timedelta64")
"""pandas' names for duration types."""
DAYS = "days since 1970-01-01"
"""The unit to which estimators convert dates."""
NUMBERS: Any = (Real, Decimal)
MAX_CELL_CHARS = 30
"""Maximum number of characters that a message quotes from a cell."""


class Kind(NamedTuple):
    """The type of a column ("number", "text", "date" or "duration"), and the values of a text column in training.

    The type "date in UTC" occurs in files written by agp 0.2.0, which treated times without a time zone as UTC.
    """

    name: str
    values: tuple[str, ...] = ()


def text_of(cell: Any) -> str:
    """Convert a cell to text. A float such as 3.0 becomes "3", because empty cells turn whole numbers into floats."""
    is_number = isinstance(cell, NUMBERS) and not isinstance(cell, bool)
    return str(int(cell)) if is_number and float(cell).is_integer() else str(cell)


def show_cell(texts: list[str]) -> str:
    """Quote the first three strings, and join them with commas."""
    return ", ".join(map(repr, texts[:3])) + (", ..." if len(texts) > 3 else "")


def kinds_of(estimator: Any) -> dict[str, Kind]:
    """Return the types of the columns on which an estimator was trained, by name."""
    learned = estimator.columns_
    kinds = {name: Kind("text", tuple(filter(None, values))) for name, values in learned.values.items()}
    kinds |= {name: Kind("duration" if unit == "days" else "date") for name, unit in learned.times.items()}
    names = [name for name in estimator.feature_names_in_ if name not in learned.left_out]
    return {name: kinds.get(name, Kind("number")) for name in names}


def inputs_of(
    table: TableFile, *, without: list[str], keep: list[str], dates: str, missing: str
) -> tuple[Any, list[str], list[str]]:
    """Return the columns for the estimator, the names of its inputs, and remarks on columns that were converted.

    The estimator leaves out columns that identify rows. Raise a ValueError if a column cannot be an input. The message
    names the first unsuitable cell and a remedy.
    """
    import pandas as pd

    columns, names, notes = {}, [], []
    for name in (name for name in table.frame.columns if name not in without):
        column = table.frame[name]
        if column.isna().all():
            notes.append(f"column {name!r} is empty and is left out")
            continue
        kind = _kind(table, name, dates)
        of_rows = kind == "text" and name not in keep and identifies_rows(column.dropna().map(level_of))
        columns[name] = _convert_column(table, name, kind, "impute" if of_rows else missing)
        names += [] if of_rows else [name]
        if kind == "text" and not of_rows and (count := columns[name].nunique()) > MANY_LEVELS:
            notes.append(
                f"column {name!r} has {count:,} different values, each of which becomes an input: this is slow"
            )
        if kind == "date":
            zone = " UTC" if isinstance(columns[name].dtype, pd.DatetimeTZDtype) else ""
            notes.append(f"column {name!r} holds dates, which become {DAYS}{zone}")
        elif kind == "duration":
            notes.append(f"column {name!r} holds durations, which become days")
    if not columns:
        msg = f"{table.path} has no input columns left; add one, or drop fewer columns."
        raise ValueError(msg)
    return pd.DataFrame(columns), names, notes


def read_inputs(table: TableFile, kinds: Mapping[str, Kind], *, missing: str, targets: list[str]) -> tuple[Any, Any]:
    """Read a model's input columns from a table. Also return remarks on other columns and on unknown text values."""
    import pandas as pd

    for name in kinds:
        if name not in table.frame.columns:
            said = unknown_column_message(table.path, name, table.frame.columns).removesuffix(".")
            msg = f"{said} The model needs {name!r}." if said.endswith("?") else f"{said}; the model needs it."
            raise ValueError(msg)
    notes = []
    if more := [name for name in table.frame.columns if name not in kinds and name not in targets]:
        notes.append(f"columns that the model does not use: {', '.join(more)[:200]}")
    frame = pd.DataFrame({name: _convert_column(table, name, kind.name, missing) for name, kind in kinds.items()})
    for name, kind in kinds.items():
        if kind.name == "text" and (new := sorted({*frame[name].dropna()} - {*kind.values})):
            notes.append(
                f"column {name!r} has {show_cell(new)}, unseen in training; predictions average over the known values"
            )
    return frame, notes


def place_of_first(table: TableFile, name: str, mask: Any) -> str:
    """Return the file, line and column of the first row where a mask is true."""
    return f"{table.path}: {table.place(int(np.argmax(mask)), name)}"


# -- what a column holds ----------------------------------------------------------------------------------------------


def infer_column_kind(column: Any) -> str:
    """Return pandas' name for the type of a column's non-missing values."""
    import pandas as pd

    return pd.api.types.infer_dtype(column, skipna=True)


def _kind(table: TableFile, name: str, dates: str) -> str:
    column, found = table.frame[name], infer_column_kind(table.frame[name])
    if found in ("integer", "floating", "boolean", "decimal", "mixed-integer-float"):
        return "number"
    texts = column.dropna().map(text_of)
    if found in TIMES or (found == "string" and all(map(DATE.fullmatch, texts))):
        if dates == "refuse":
            remedy = f"drop it with --drop {shlex.quote(name)}, or convert it to days with --dates auto"
            msg = f"{table.path}: column {name!r} holds dates; {remedy}."
            raise ValueError(msg)
        return "date"
    if found in DURATIONS:
        return "duration"
    if found not in ("string", "categorical"):
        remedy = f"drop it with --drop {shlex.quote(name)}, or convert it to numbers"
        msg = f"{table.path}: column {name!r} holds {found} values; {remedy}."
        raise ValueError(msg)
    if (row := bad_number(column)) is not None:
        raise ValueError(_no_number(table, name, row))
    return "text"


def _no_number(table: TableFile, name: str, row: int) -> str:
    cell = str(table.frame[name].iloc[row])[:MAX_CELL_CHARS]
    return f"{table.path}: {table.place(row, name)}: {cell!r} is not a number; correct it, or empty the cell."


# -- columns ----------------------------------------------------------------------------------------------------------


def _convert_column(table: TableFile, name: str, kind: str, missing: str) -> Any:
    """Convert a column to numbers, strings, times or durations. Empty cells become missing values."""
    import pandas as pd

    column = table.frame[name]
    empty = column.isna().to_numpy()
    if missing == "refuse" and empty.any():
        msg = (
            f"{place_of_first(table, name, empty)} is empty (empty cells in this column: {int(empty.sum())}); "
            f"fill it in, or train with --missing impute or --drop {shlex.quote(name)}."
        )
        raise ValueError(msg)
    if kind == "text":
        return pd.Series([None if gone else level_of(x) for x, gone in zip(column, empty, strict=True)], dtype=object)
    if kind.startswith("date"):
        times = column if infer_column_kind(column) in TIMES else _times(table, name)
        return times if kind == "date" else pd.to_datetime(times, utc=True).dt.tz_localize(None)
    if kind == "duration":
        found = pd.to_timedelta(column, errors="coerce")
        if (bad := (found.isna() & column.notna()).to_numpy()).any():
            msg = f"{place_of_first(table, name, bad)} is not a duration; write it as in '3 days 12:00:00'."
            raise ValueError(msg)
        return found
    numbers: Any = pd.to_numeric(column, errors="coerce")
    numbers = numbers.astype(float)
    if (bad := numbers.isna().to_numpy() & ~empty).any():
        raise ValueError(_no_number(table, name, int(np.argmax(bad))))
    if (infinite := np.isinf(numbers.to_numpy())).any():
        msg = f"{place_of_first(table, name, infinite)} is infinite; correct it, or empty the cell."
        raise ValueError(msg)
    return numbers


def _times(table: TableFile, name: str) -> Any:
    """Convert strings to times. Raise a ValueError if the order of day and month is ambiguous."""
    import pandas as pd

    column = table.frame[name]
    texts = column.map(str, na_action="ignore")
    known = texts.dropna()
    if not len(known):
        return pd.to_datetime(texts)
    orders = {first: _dates(texts, day_first=first) for first in (False, True)}
    shown = str(known.iloc[0])
    month_first, day_first = orders[False], orders[True]
    if day_first is None or shown[:4].isdigit():  # year first: the order is unambiguous
        chosen = month_first
    elif month_first is None or "." in shown or (month_first.dropna() == day_first.dropna()).all():
        chosen = day_first
    else:
        msg = f"{table.path}: column {name!r} has ambiguous dates such as {shown!r}; write them as in 2020-12-31."
        raise ValueError(msg)
    remedy = f"write them as in 2020-12-31, or use --drop {shlex.quote(name)}"
    if chosen is None:
        msg = f"{table.path}: column {name!r} has dates in several formats, such as {shown!r}; {remedy}."
        raise ValueError(msg)
    zoned = known.str.contains(ZONE)
    if zoned.any() and not zoned.all():
        where = place_of_first(table, name, ~zoned.reindex(texts.index, fill_value=True))
        msg = f"{where} has no time zone, but other cells have one; add a time zone to every cell."
        raise ValueError(msg)
    return chosen if zoned.all() else chosen.dt.tz_localize(None)


def _dates(texts: Any, *, day_first: bool) -> Any:
    """Convert strings to times. Return None if a string cannot be read with this order of day and month."""
    import warnings

    import pandas as pd

    years_first = str(texts.dropna().iloc[0])[:4].isdigit()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # pandas warns if it reads a date in the other order
            return pd.to_datetime(texts, utc=True, format="ISO8601" if years_first else None, dayfirst=day_first)
    except (UserWarning, ValueError, OverflowError):
        return None
