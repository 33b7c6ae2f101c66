"""What the cells of a column mean: numbers, times, or levels of a category."""

import datetime as dt
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.errors import join_words, quote, require
from agp.tables._column_error import ColumnError
from agp.tables._numbers import ABOUT, LIMIT, Reading, Style, read_numbers

nw: Any = require("narwhals.stable.v2", "tables need", "sklearn")

NUMBER, CATEGORY, ORDERED = "number", "category", "ordered"
DAYS, DAYS_UTC, DURATION = "days since 1970-01-01", "days since 1970-01-01 UTC", "days"
KINDS = {
    NUMBER: "numbers",
    CATEGORY: "text",
    ORDERED: "ordered categories",
    DAYS: "dates",
    DAYS_UTC: "times with a time zone",
    DURATION: "durations",
}
"""The kinds of columns, and what messages call them. The kinds of times are the units to which they are converted."""
TIMES = (DAYS, DAYS_UTC, DURATION)
NUMBERS: Any = (Real, Decimal)  # in Python, Decimal is not a subclass of Real
DAY = dt.timedelta(days=1)
WHOLE_NUMBER = re.compile(r"([-+]?\d+)\.0*")
"""Matches text such as "10.0" or "10."."""
# the shapes of dates and durations; cells are checked when they are converted
DATE = re.compile(r"(\d{1,4})[-/.](\d{1,2})[-/.](\d{1,4})(?:[T ]\s*(\d{1,2}:\d{2}.*))?")
MONTH = re.compile(r"((?:1[6-9]|20)\d\d)-(0[1-9]|1[0-2])")
ZONE = re.compile(r":\d{2}.*(?:Z|UTC|GMT|[-+]\d{2}(?::?\d{2})?)\s*$")
SPAN = re.compile(r"(?=.)(?:([-+]?\d+) days?)?(?:(^|, ?| )([-+]?)(\d+):(\d{2}):(\d{2}(?:\.\d+)?))?")
"""Matches text of durations, such as "3 days", "26:30:00", "3 days, 12:00:00" or "-1 days +12:00:00.5"."""
ALMOST_ALL = 0.9
"""If this share of the cells of a column are numbers, the other cells are taken for errors."""
PADDED = re.compile(r"0\d")
"""Matches texts with leading zeros, such as "039000838X", which are identifiers or codes."""
MAX_MIXED = 10
"""Up to this many different texts, some of which are numbers, are categories, such as "4", "6" and "rotary"."""
MAX_CELL_CHARS = 30
"""Maximum number of characters that a message quotes from a cell."""


class Column:
    """A column of a table. What its cells say is computed once, and for equal cells together.

    Attributes
    ----------
    series, name, dtype
        The narwhals series, its name and its type.
    """

    def __init__(self, series: Any) -> None:
        self.series, self.name, self.dtype = series, series.name, series.dtype

    @classmethod
    def of_cells(cls, cells: list[Any], name: Any) -> "Column":
        """Return a column of Python objects, which has no series; None is missing."""
        column = cls.__new__(cls)
        column.series, column.name, column.dtype = None, name, nw.Object
        column._cells = cells, np.asarray([cell is None or cell != cell for cell in cells], dtype=bool)
        return column

    def __len__(self) -> int:
        return len(self._cells[0]) if self.series is None else len(self.series)

    @cached_property
    def _cells(self) -> tuple[list[Any], npt.NDArray[np.bool_]]:
        return self.series.to_list(), np.asarray(self.series.is_null().to_list(), dtype=bool)

    @cached_property
    def _distinct(self) -> tuple[list[Any], npt.NDArray[np.int64]]:
        found: dict[Any, int] = {}
        cells, gone = self._cells
        try:
            index = np.fromiter((found.setdefault(cell, len(found)) for cell in cells), np.int64, len(cells))
        except TypeError:  # lists and other cells without a hash
            odd = next(cell for cell in cells if type(cell).__hash__ is None)
            raise _mixed_error(self.name, [type(odd).__name__]) from None
        used = np.zeros(len(found), dtype=bool)
        used[index[~gone]] = True
        distinct: dict[Any, int] = {}
        places = np.full(len(found) + 1, -1)
        for place, cell in enumerate(found):
            cell = cell.strip() if isinstance(cell, str) else cell
            if used[place] and cell != "":
                places[place] = distinct.setdefault(cell, len(distinct))
        return [*distinct], places[np.where(gone, -1, index)]

    @property
    def distinct(self) -> list[Any]:
        """The different cells that are not missing, as Python objects; texts are without surrounding blanks."""
        return self._distinct[0]

    @property
    def index(self) -> npt.NDArray[np.int64]:
        """The position [N] of each cell in `distinct`, or -1 for missing cells and blanks."""
        return self._distinct[1]

    @cached_property
    def numbers(self) -> npt.NDArray[np.float64]:
        """The cells [N] of a column of numbers or Booleans, with NaN for missing cells."""
        if self.dtype == nw.Float64 or (self.dtype.is_integer() and self.series.implementation.is_pyarrow()):
            return self.series.to_numpy().astype(np.float64, copy=False)  # pyarrow does not cast large whole numbers
        return self.series.cast(nw.Float64).to_numpy()

    @property
    def is_text(self) -> bool:
        """Whether all cells that are not missing are text, and not those of a categorical type."""
        return self.dtype == nw.String or (
            self.dtype == nw.Object and all(isinstance(cell, str) for cell in self.distinct)
        )

    @cached_property
    def reading(self) -> Reading:
        """The numbers in the `distinct` texts, in the style that fits most of them."""
        return read_numbers(self.distinct)

    def reading_in(self, style: Style) -> Reading:
        """Return the numbers in the `distinct` texts in a given style."""
        known = vars(self).get("reading")
        return known if known is not None and known.style == style else read_numbers(self.distinct, style)

    @cached_property
    def levels(self) -> list[str]:
        """The level of each of the `distinct` cells."""
        return [level_of(cell) for cell in self.distinct]

    @cached_property
    def order(self) -> list[str] | None:
        """The levels of an ordered categorical type from the lowest to the highest; None for all other types."""
        if self.dtype == nw.Enum:
            declared = self.series.cat.get_categories().to_list()
        elif self.dtype == nw.Categorical and self.series.implementation.is_pyarrow():
            native = self.series.to_native()
            declared = self.series.cat.get_categories().to_list() if native.type.ordered else []
        else:
            return None
        return _different_levels(declared)

    @cached_property
    def declared_levels(self) -> list[str] | None:
        """The levels that an unordered categorical type of pandas declares, in this order; None for other types."""
        if self.dtype != nw.Categorical or not self.series.implementation.is_pandas_like():
            return None
        return _different_levels(self.series.cat.get_categories().to_list())

    def spread(self, values: Iterable[Any], missing: Any, kind: Any = np.float64) -> npt.NDArray[Any]:
        """Return the value [N] of each cell, from those of the `distinct` cells and that of missing cells."""
        return np.asarray([*values, missing], dtype=kind)[self.index]

    def first_row(self, wrong: Iterable[bool]) -> int:
        """Return the number of the first row whose cell is among the `distinct` cells that are wrong."""
        return int(np.argmax(self.spread(wrong, missing=False, kind=bool)))


def _different_levels(cells: list[Any]) -> list[str] | None:
    """Return the levels of cells; None if there are none, or if some are equal."""
    levels = [level_of(cell) for cell in cells]
    return levels if levels and len({*levels}) == len(levels) else None


def level_of(cell: Any, /) -> str:
    """Return the text that identifies the level in a cell.

    The numbers 10 and 10.0 and the texts "10" and "10.0" are one level, since a column of whole numbers turns into
    floats if one of its cells is missing. Dates without a time are levels such as "2020-12-31". Blanks around a text do
    not matter.
    """
    if isinstance(cell, Integral) and not isinstance(cell, bool):
        return str(int(cell))
    if isinstance(cell, NUMBERS) and float(cell).is_integer() and not isinstance(cell, bool):
        return f"{cell + 0:.0f}"  # without the sign of zero
    if isinstance(cell, dt.datetime) and cell.tzinfo is None and cell.time() == dt.time():
        return str(cell.date())
    text = str(cell).strip()
    whole = WHOLE_NUMBER.fullmatch(text)
    return whole[1] if whole else text


# To understand another format of text, edit `_kind_of_texts` and the function that converts its kind. `Columns`,
# estimators and the shell follow.

# -- kinds ------------------------------------------------------------------------------------------------------------


def plain_column(series: Any) -> Column:
    """Return a narwhals series as a column whose type narwhals knows.

    Times with a zone are converted to UTC if need be, periods of pandas become their starts, and sparse columns become
    dense. Raise ColumnError for types that are neither numbers nor text nor times, such as complex numbers.
    """
    if series.dtype == nw.Categorical and series.implementation.is_pyarrow():
        import pyarrow as pa

        levels = series.to_native().type.value_type
        if isinstance(levels, pa.BaseExtensionType):  # such as intervals, which pyarrow cannot compare
            raise _unusable(series.name, f"category of {levels}")
    if series.dtype != nw.Unknown:
        return Column(series)
    native = series.to_native()
    if series.implementation.is_pandas_like():
        if native.dtype.kind == "M":  # narwhals does not understand the names of all time zones
            return Column(nw.from_native(native.dt.tz_convert("UTC"), series_only=True))
        if str(native.dtype).startswith("period["):
            return Column(nw.from_native(native.dt.to_timestamp(), series_only=True))
        if str(native.dtype).startswith("Sparse"):
            return plain_column(nw.from_native(native.sparse.to_dense(), series_only=True))
    if series.is_null().all():  # a type of its own in pyarrow and polars
        return Column(nw.new_series(series.name, [None] * len(series), nw.Float64, backend=series.implementation))
    raise _unusable(series.name, str(native.type if series.implementation.is_pyarrow() else native.dtype))


def kind_of(column: Column) -> str:
    """Return what a column holds: one of `KINDS`.

    Text counts as numbers if all cells are numbers of one style (`read_numbers`), or "true" and "false" in any case,
    and as times if all cells are dates, or all are durations. Missing cells and cells of blanks do not matter; a column
    of them counts as numbers.

    Raise ColumnError for mixed or unknown types, if most but not all of more than `MAX_MIXED` texts are numbers, and if
    dates are ambiguous.
    """
    dtype = column.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        return NUMBER
    if dtype in (nw.Categorical, nw.Enum):
        return CATEGORY if column.order is None else ORDERED
    if dtype == nw.Date or isinstance(dtype, nw.Datetime):
        return DAYS if dtype == nw.Date or dtype.time_zone is None else DAYS_UTC
    if isinstance(dtype, nw.Duration):
        return DURATION
    if dtype not in (nw.String, nw.Object):
        raise _unusable(column.name, str(dtype))
    return _kind_of_texts(column) if column.is_text else _kind_of_objects(column.name, column.distinct)


def _unusable(name: Any, what: str) -> ColumnError:
    return ColumnError(name, f"holds cells of type {what}", "convert them to float, dates or text, or leave it out")


def _mixed_error(name: Any, types: list[str]) -> ColumnError:
    held = f"holds {join_words(types)} values"
    return ColumnError(name, held, "convert all of them to one type: float, dates or text; or leave it out")


def _kind_of_objects(name: Any, cells: list[Any]) -> str:
    if all(isinstance(cell, (*NUMBERS, np.bool_)) for cell in cells):
        return NUMBER
    kinds = {_kind_of_time(cell) for cell in cells}
    if None not in kinds and len(kinds) == 1:
        return kinds.pop() or ""
    if all(isinstance(cell, (str, bool, np.bool_)) for cell in cells):
        return CATEGORY
    if None not in kinds:
        held = " and ".join(what for kind, what in KINDS.items() if kind in kinds)
        raise ColumnError(name, f"holds {held}", "convert all of them to one kind, or leave it out")
    raise _mixed_error(name, sorted({type(cell).__name__ for cell in cells})[:3])


def _kind_of_time(cell: Any) -> str | None:
    if isinstance(cell, dt.datetime):
        return DAYS if cell.tzinfo is None else DAYS_UTC
    if isinstance(cell, dt.date):
        return DAYS
    return DURATION if isinstance(cell, dt.timedelta) else None


def _kind_of_texts(column: Column) -> str:
    texts, reading = column.distinct, column.reading
    if reading.is_complete and reading.style is None:
        return NUMBER
    if all(DATE.fullmatch(text) or MONTH.fullmatch(text) for text in texts):
        return _kind_of_dates(column)
    if all(SPAN.fullmatch(text) for text in texts):
        return DURATION
    if reading.is_complete:
        return NUMBER
    if len(texts) > MAX_MIXED and mostly_numbers(column, least=ALMOST_ALL) and not any(map(PADDED.match, texts)):
        raise _no_number(column, reading)
    return CATEGORY


def mostly_numbers(column: Column, reading: Reading | None = None, *, least: float = 0.5) -> bool:
    """Whether at least this share of the cells that are not missing are numbers, by the given reading."""
    wrong = column.spread([x is None for x in (reading or column.reading).numbers], missing=False, kind=bool)
    return bool(wrong.sum() <= (1.0 - least) * (column.index >= 0).sum())


def _no_number(column: Column, reading: Reading) -> ColumnError:
    row = column.first_row(x is None for x in reading.numbers)
    text = column.distinct[column.index[row]]
    what, remedy = "a number" if reading.style is None else reading.style.noun, "correct it, or empty the cell"
    why = f"which is not {what}"
    if LIMIT.fullmatch(text):
        why, remedy = f"which is a limit, not {what}", "write a number, such as half of the limit, or empty the cell"
    if ABOUT.match(text):
        why, remedy = f"which is an approximate number, not {what}", "write it as a number, or empty the cell"
    return ColumnError(column.name, f"has {text[:MAX_CELL_CHARS]!r}", remedy, row, why)


# -- numbers and levels -----------------------------------------------------------------------------------------------


def numbers_in(column: Column, reading: Reading | None = None) -> npt.NDArray[np.float64]:
    """Convert a column of numbers, Booleans or their texts to numbers [N], with NaN for missing cells.

    The default reading of texts is in the style that fits most of them. Raise ColumnError for cells that contain
    something else.
    """
    if column.dtype.is_numeric() or column.dtype == nw.Boolean:
        return column.numbers
    if not column.is_text:
        return column.spread(map(float, column.distinct), np.nan)
    reading = reading or column.reading
    if not reading.is_complete:
        raise _no_number(column, reading)
    return column.spread(reading.numbers, np.nan)


def _by_cell(column: Column, convert: Callable[[Any], float | None], why: str, remedy: str) -> Any:
    """Apply a function to the cells of a column of objects or text; missing cells become NaN.

    Raise ColumnError for the first cell for which the function returns None.
    """
    numbers = [convert(cell) for cell in column.distinct]
    if None in numbers:
        row = column.first_row(number is None for number in numbers)
        shown = str(column.distinct[column.index[row]])[:MAX_CELL_CHARS]
        raise ColumnError(column.name, f"has {shown!r}", remedy, row, why)
    return column.spread(numbers, np.nan)


def is_empty(column: Column) -> bool:
    """Whether all cells of a column are missing, blank or NaN."""
    if column.dtype.is_numeric() or column.dtype == nw.Boolean:
        return bool(np.isnan(column.numbers).all())
    return bool(column.series.is_null().all()) or (column.dtype == nw.String and not column.distinct)


def levels_in(column: Column) -> list[str | None]:
    """Return the level in each cell of a categorical column, with None for missing cells."""
    return column.spread(column.levels, None, object).tolist()


# -- times ------------------------------------------------------------------------------------------------------------


def days_in(column: Column, kind: str) -> npt.NDArray[np.float64]:
    """Convert a column of the given kind of times, or their texts, to days [N], with NaN for missing cells."""
    if column.dtype == nw.Date or isinstance(column.dtype, nw.Datetime):
        return column.series.dt.timestamp("us").cast(nw.Float64).to_numpy() / (DAY / dt.timedelta(microseconds=1))
    if isinstance(column.dtype, nw.Duration) and (found := column.series.to_numpy()).dtype.kind == "m":
        return _days_of_numpy(found)
    if not column.is_text:
        return column.spread(map(_days, column.distinct), np.nan)
    if kind == DURATION:
        return _by_cell(column, _span_in_days, "which is not a duration", "write durations as in '3 days 12:00:00'")
    texts = column.distinct
    try:  # fast for dates without a time zone in the form 2020-12-31
        if not any(ZONE.search(text) for text in texts):
            return column.spread(_days_of_numpy(np.asarray(texts, dtype="datetime64[us]")), np.nan)
    except ValueError:
        pass
    day_first = _days_come_first(column.name, texts)
    remedy = "write dates as in 2020-12-31"
    return _by_cell(column, lambda cell: _days_of_text(cell, day_first=day_first), "which is not a date", remedy)


def _days_of_numpy(times: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Convert NumPy's times or durations to days, in whole microseconds."""
    microseconds = times.astype(f"{times.dtype.kind}8[us]").astype(np.int64)
    return np.where(np.isnat(times), np.nan, microseconds / (DAY / dt.timedelta(microseconds=1)))


def _days(cell: Any) -> float:
    if isinstance(cell, dt.datetime):
        return (cell - dt.datetime(1970, 1, 1, tzinfo=cell.tzinfo and dt.UTC)) / DAY
    return (cell - dt.date(1970, 1, 1) if isinstance(cell, dt.date) else cell) / DAY


def _days_of_text(text: str, *, day_first: bool) -> float | None:
    time = time_in(text, day_first=day_first)
    return None if time is None else _days(time)


def _span_in_days(text: str) -> float | None:
    """Return the days of a duration as text, in whole microseconds; None if the text is no duration, or ambiguous.

    After a negative number of days, the clock adds to them if it has a sign or follows a comma, as in pandas and
    Python. Programs read "-1 days 12:00:00" differently.
    """
    parts = SPAN.fullmatch(text)
    if parts is None:
        return None
    days, gap, sign, hours, minutes, seconds = (group or "" for group in parts.groups())
    ambiguous = days.startswith("-") and gap == " " and not sign
    if ambiguous or int(minutes or 0) > 59 or float(seconds or 0.0) >= 60.0:
        return None
    try:
        clock = dt.timedelta(hours=int(hours or 0), minutes=int(minutes or 0), seconds=float(seconds or 0.0))
        return (dt.timedelta(days=int(days or 0)) + (-clock if sign == "-" else clock)) / DAY
    except OverflowError:
        return None


def time_in(text: str, *, day_first: bool) -> dt.datetime | None:
    """Return the time that a text describes, such as "2020-12-31", "31.12.2020 14:30" or "2020-12"; None otherwise.

    Texts that begin with a year are read as year, month and day, whatever `day_first` is.
    """
    parts: Any = MONTH.fullmatch(text) or DATE.fullmatch(text)
    if parts is None:
        return None
    groups: Any = (*parts.groups(), "1", None)
    first, second, third, clock = groups[:4]
    year, month, day = (first, second, third) if len(first) == 4 else (third, first, second)
    if len(first) != 4 and day_first:
        month, day = day, month
    try:
        return dt.datetime.combine(dt.date(int(year), int(month), int(day)), _clock(clock)) if len(year) == 4 else None
    except ValueError:
        return None


def _clock(text: str | None) -> dt.time:
    """Return a time of day, such as "14:30", "2:30:05.25 PM" or "14:30 UTC". Raise ValueError if it is none."""
    if text is None:
        return dt.time()
    if half := re.fullmatch(r"(.*?)\s*([AaPp])\.?[Mm]\.?", text):
        time = _clock(half[1])
        return time.replace(hour=time.hour % 12 + 12 * (half[2] in "pP"))
    text = re.sub(r"\s*(?:UTC|GMT)$", "Z", text.strip())
    return dt.time.fromisoformat(re.sub(r"\s+(?=[-+])", "", text if text[1:2] != ":" else f"0{text}"))


def _days_come_first(name: Any, texts: list[str]) -> bool:
    """Whether days come before months in dates that do not begin with a year.

    Raise ColumnError if the order is ambiguous, or the dates have different formats.
    """
    texts = [text for text in texts if not text[:4].isdecimal()]
    if not texts:
        return False
    dates = {first: [time_in(text, day_first=first) for text in texts] for first in (False, True)}
    possible = {first: None not in times for first, times in dates.items()}
    if not any(possible.values()):
        remedy = "write them as in 2020-12-31, or leave it out"
        raise ColumnError(name, f"has dates in several formats, such as {quote(texts[0])}", remedy)
    if all(possible.values()) and dates[False] != dates[True] and "." not in texts[0]:
        raise ColumnError(name, f"has ambiguous dates such as {quote(texts[0])}", "write them as in 2020-12-31")
    return possible[True]


def _kind_of_dates(column: Column) -> str:
    """Return the kind of a column of dates as text. Raise ColumnError if only some have a time zone."""
    _days_come_first(column.name, column.distinct)
    without = [ZONE.search(text) is None for text in column.distinct]
    if all(without):
        return DAYS
    if any(without):
        problem, why = "has a time without a time zone", "but other cells have one"
        raise ColumnError(column.name, problem, "add a time zone to every cell", column.first_row(without), why)
    return DAYS_UTC
