"""What the cells of a column mean: numbers, times, or levels of a category."""

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.errors import require

nw: Any = require("narwhals.stable.v2", "tables need", "sklearn")

NUMBER, CATEGORY = "number", "category"
DAYS, DAYS_UTC, DURATION = "days since 1970-01-01", "days since 1970-01-01 UTC", "days"
KINDS = {NUMBER: "numbers", CATEGORY: "text", DAYS: "dates", DAYS_UTC: "times with a time zone", DURATION: "durations"}
"""The kinds of columns, and what messages call them. The kinds of times are the units to which they are converted."""
TIMES = (DAYS, DAYS_UTC, DURATION)
NUMBERS: Any = (Real, Decimal)  # in Python, Decimal is not a subclass of Real
DAY = dt.timedelta(days=1)
PLAIN_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
TRUTHS = {"true": 1.0, "false": 0.0}
WHOLE_NUMBER = re.compile(r"([-+]?\d+)\.0*")
"""Matches text such as "10.0" or "10."."""
# the shapes of dates and durations; cells are checked when they are converted
DATE = re.compile(r"(\d{1,4})[-/.](\d{1,2})[-/.](\d{1,4})(?:[T ]\s*(\d{1,2}:\d{2}.*))?")
MONTH = re.compile(r"((?:1[6-9]|20)\d\d)-(0[1-9]|1[0-2])")
ZONE = re.compile(r":\d{2}.*(?:Z|UTC|GMT|[-+]\d{2}(?::?\d{2})?)\s*$")
SPAN = re.compile(r"(?=.)(?:([-+]?\d+) days?)?(?:(^|, ?| )([-+]?)(\d+):(\d{2}):(\d{2}(?:\.\d+)?))?")
"""Matches text of durations, such as "3 days", "26:30:00", "3 days, 12:00:00" or "-1 days +12:00:00.5"."""
MAX_MIXED = 10
"""Up to this many different texts, some of which are numbers, are categories, such as "4", "6" and "rotary"."""
MIN_COUNTED = 20
"""Minimum number of rows of a column of row numbers. In shorter tables, other columns may look the same by chance."""
MAX_CELL_CHARS = 30
"""Maximum number of characters that a message quotes from a cell."""


class ColumnError(ValueError):
    """A column, or a cell of it, that cannot be used.

    Parameters
    ----------
    column
        The name of the column.
    problem
        What is wrong, such as "has a missing cell".
    remedy
        What to do about it.
    row
        The number of the row of the cell, counted from 0; None if all cells are concerned.
    why
        Why this is a problem, such as "which is not a number".
    """

    def __init__(self, column: Any, problem: str, remedy: str, row: int | None = None, why: str = "") -> None:
        self.column, self.problem, self.remedy, self.row, self.why = column, problem, remedy, row, why
        where = "" if row is None else f" in row {row}"
        super().__init__(f"column {column!r} {problem}{where}{self._ending}")

    @property
    def _ending(self) -> str:
        return f"{', ' if self.why else ''}{self.why}; {self.remedy}."

    def at(self, place: str) -> str:
        """Return the message with another description of the row, such as "line 3"."""
        return f"{place}, column {self.column!r} {self.problem}{self._ending}"


def level_of(cell: Any, /) -> str:
    """Return the text that identifies the level in a cell.

    The numbers 10 and 10.0 and the texts "10" and "10.0" are one level, since a column of whole numbers turns into
    floats if one of its cells is missing. Blanks around a text do not matter.
    """
    if isinstance(cell, Integral) and not isinstance(cell, bool):
        return str(int(cell))
    if isinstance(cell, NUMBERS) and float(cell).is_integer() and not isinstance(cell, bool):
        return f"{cell + 0:.0f}"  # without the sign of zero
    text = str(cell).strip()
    whole = WHOLE_NUMBER.fullmatch(text)
    return whole[1] if whole else text


def identifies_rows(levels: Iterable[str | None], /) -> bool:
    """Whether more than half of the cells that are not missing hold a level of their own, as names of rows do.

    The fraction of such cells estimates the probability that a new row has a level unseen in training (Good & Turing),
    in which case the column does not help to predict the row.

    Source: Good, "The population frequencies of species and the estimation of population parameters", Biometrika 1953.
    """
    counts = Counter(level for level in levels if level is not None)
    return 2 * sum(count == 1 for count in counts.values()) > counts.total()


def numbers_rows(values: npt.NDArray[Any], /) -> bool:
    """Whether values [N] are different whole numbers that fill at least half of the range from 0, as row numbers do."""
    N = len(values)
    if N < MIN_COUNTED or not np.isfinite(values).all():
        return False
    whole = (values >= 0.0).all() and (values < 2 * N).all() and (values == np.floor(values)).all()
    return bool(whole) and len(np.unique(values)) == N


# To understand another format of text, edit `_kind_of_texts` and the function that converts its kind. `Columns`,
# estimators and the shell follow.

# -- kinds ------------------------------------------------------------------------------------------------------------


def plain_column(column: Any) -> Any:
    """Return a narwhals series with a type that narwhals knows: times with a zone are converted to UTC if need be.

    Raise ColumnError for types that are neither numbers nor text nor times, such as periods and complex numbers.
    """
    if column.dtype != nw.Unknown:
        return column
    native = column.to_native()
    if column.implementation.is_pandas_like() and native.dtype.kind == "M":
        # narwhals does not understand the names of all time zones
        return nw.from_native(native.dt.tz_convert("UTC"), series_only=True)
    if column.is_null().all():  # a type of its own in pyarrow and polars
        return column.cast(nw.Float64)
    raise _unusable(column.name, str(native.type if column.implementation.is_pyarrow() else native.dtype))


def kind_of(column: Any) -> str:
    """Return what a narwhals series holds: one of `KINDS`.

    Text counts as numbers if all cells are plain numbers, or "true" and "false" in any case, and as times if all cells
    are dates, or all are durations. Missing cells and cells of blanks do not matter; a column of them counts as
    numbers.

    Raise ColumnError for mixed or unknown types, if most but not all of more than `MAX_MIXED` texts are numbers, and if
    dates are ambiguous.
    """
    dtype = column.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        return NUMBER
    if dtype in (nw.Categorical, nw.Enum):
        return CATEGORY
    if dtype == nw.Date or isinstance(dtype, nw.Datetime):
        return DAYS if dtype == nw.Date or dtype.time_zone is None else DAYS_UTC
    if isinstance(dtype, nw.Duration):
        return DURATION
    if dtype not in (nw.String, nw.Object):
        raise _unusable(column.name, str(dtype))
    cells = column.drop_nulls()
    return _kind_of_objects(column.name, (cells.unique() if dtype == nw.String else cells).to_list(), column)


def _unusable(name: Any, what: str) -> ColumnError:
    return ColumnError(name, f"holds {what}", "convert it to numbers, dates or text, or leave it out")


def _kind_of_objects(name: Any, cells: list[Any], column: Any) -> str:
    if all(isinstance(cell, str) for cell in cells):
        texts = {cell.strip() for cell in cells} - {""}
        return _kind_of_texts(texts, column)
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
    types = " and ".join(sorted({type(cell).__name__ for cell in cells})[:3])
    raise ColumnError(name, f"holds {types} values", "convert all of them to numbers or to text, or leave it out")


def _kind_of_time(cell: Any) -> str | None:
    if isinstance(cell, dt.datetime):
        return DAYS if cell.tzinfo is None else DAYS_UTC
    if isinstance(cell, dt.date):
        return DAYS
    return DURATION if isinstance(cell, dt.timedelta) else None


def _kind_of_texts(texts: set[str], column: Any) -> str:
    plain = {text for text in texts if _number_in(text) is not None}
    if plain == texts:
        return NUMBER
    if all(DATE.fullmatch(text) or MONTH.fullmatch(text) for text in texts):
        return _kind_of_dates(column)
    if all(SPAN.fullmatch(text) for text in texts):
        return DURATION
    if plain and len(texts) > MAX_MIXED:
        cells = cells_of(column)
        if mostly_numbers(cells):
            raise _no_number(column.name, cells, next(i for i, cell in enumerate(cells) if cell and cell not in plain))
    return CATEGORY


def mostly_numbers(cells: list[Any]) -> bool:
    """Whether at least half of the cells that are not missing are numbers as text."""
    given = [cell for cell in cells if cell is not None]
    return 2 * sum(_number_in(str(cell)) is not None for cell in given) >= len(given)


def _no_number(name: Any, cells: Any, row: int) -> ColumnError:
    problem = f"has {str(cells[row])[:MAX_CELL_CHARS]!r}"
    return ColumnError(name, problem, "correct it, or empty the cell", row, "which is not a number")


# -- numbers and levels -----------------------------------------------------------------------------------------------


def _number_in(text: str) -> float | None:
    """Return the number that a text without surrounding blanks contains; None if it contains something else."""
    return float(text) if PLAIN_NUMBER.fullmatch(text) else TRUTHS.get(text.lower())


def numbers_in(column: Any) -> npt.NDArray[np.float64]:
    """Convert a series of numbers, Booleans or their texts to numbers [N], with NaN for missing cells.

    Raise ColumnError for cells that contain something else.
    """
    if column.dtype.is_numeric() or column.dtype == nw.Boolean:
        return column.cast(nw.Float64).to_numpy() if column.dtype != nw.Float64 else column.to_numpy()
    return _by_cell(column, _cell_as_number, "which is not a number", "correct it, or empty the cell")


def _cell_as_number(cell: Any) -> float | None:
    return _number_in(cell) if isinstance(cell, str) else float(cell)


def _by_cell(column: Any, convert: Callable[[Any], float | None], why: str, remedy: str) -> Any:
    """Apply a function to the cells of a series of objects or text; missing cells become NaN.

    Raise ColumnError for the first cell for which the function returns None.
    """
    cells, numbers = cells_of(column), {None: np.nan}
    for row, cell in enumerate(cells):
        if cell not in numbers:
            number = convert(cell)
            if number is None:
                raise ColumnError(column.name, f"has {str(cell)[:MAX_CELL_CHARS]!r}", remedy, row, why)
            numbers[cell] = number
    return np.asarray([numbers[cell] for cell in cells], dtype=np.float64)


def cells_of(column: Any) -> list[Any]:
    """Return the cells of a series: texts without surrounding blanks, and None for missing cells and blanks."""
    cells = zip(column.to_list(), column.is_null().to_list(), strict=True)
    return [None if gone else (cell.strip() or None if isinstance(cell, str) else cell) for cell, gone in cells]


def is_empty(column: Any) -> bool:
    """Whether all cells of a series are missing, blank or NaN."""
    if column.dtype.is_float():
        return bool((column.is_null() | column.is_nan()).all())
    return bool(column.is_null().all()) or (
        column.dtype == nw.String and not any(cell.strip() for cell in column.drop_nulls().unique().to_list())
    )


def levels_in(column: Any) -> list[str | None]:
    """Return the level in each cell of a categorical column, with None for missing cells."""
    return [None if cell is None else level_of(cell) for cell in cells_of(column)]


# -- times ------------------------------------------------------------------------------------------------------------


def days_in(column: Any, kind: str) -> npt.NDArray[np.float64]:
    """Convert a series of the given kind of times, or their texts, to days [N], with NaN for missing cells."""
    if column.dtype == nw.Date or isinstance(column.dtype, nw.Datetime):
        return column.dt.timestamp("us").cast(nw.Float64).to_numpy() / (DAY / dt.timedelta(microseconds=1))
    if isinstance(column.dtype, nw.Duration) and (found := column.to_numpy()).dtype.kind == "m":
        return _days_of_numpy(found)
    cells = cells_of(column)
    if not any(isinstance(cell, str) for cell in cells):
        return np.asarray([np.nan if cell is None else _days(cell) for cell in cells])
    if kind == DURATION:
        return _by_cell(column, _span_in_days, "which is not a duration", "write durations as in '3 days 12:00:00'")
    try:  # fast for dates without a time zone in the form 2020-12-31
        if not any(cell and ZONE.search(cell) for cell in cells):
            return _days_of_numpy(np.asarray([cell or "NaT" for cell in cells], dtype="datetime64[us]"))
    except ValueError:
        pass
    day_first = _days_come_first(column.name, cells)
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


def _days_come_first(name: Any, cells: list[str | None]) -> bool:
    """Whether days come before months in dates that do not begin with a year.

    Raise ColumnError if the order is ambiguous, or the dates have different formats.
    """
    texts = [text for text in dict.fromkeys(cells) if text is not None and not text[:4].isdecimal()]
    if not texts:
        return False
    dates = {first: [time_in(text, day_first=first) for text in texts] for first in (False, True)}
    possible = {first: None not in times for first, times in dates.items()}
    if not any(possible.values()):
        remedy = "write them as in 2020-12-31, or leave it out"
        raise ColumnError(name, f"has dates in several formats, such as {texts[0]!r}", remedy)
    if all(possible.values()) and dates[False] != dates[True] and "." not in texts[0]:
        raise ColumnError(name, f"has ambiguous dates such as {texts[0]!r}", "write them as in 2020-12-31")
    return possible[True]


def _kind_of_dates(column: Any) -> str:
    """Return the kind of a series of dates as text. Raise ColumnError if only some have a time zone."""
    cells = cells_of(column)
    _days_come_first(column.name, cells)
    without = [row for row, cell in enumerate(cells) if cell is not None and not ZONE.search(cell)]
    if len(without) == sum(cell is not None for cell in cells):
        return DAYS
    if without:
        problem, why = "has a time without a time zone", "but other cells have one"
        raise ColumnError(column.name, problem, "add a time zone to every cell", without[0], why)
    return DAYS_UTC
