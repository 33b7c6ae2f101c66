"""The columns of a training table: which are inputs, what they hold, and how they become numbers and levels."""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp.errors import ColumnWarning, name_remedy, quote
from agp.repairs import outside
from agp.tables._cells import (
    CATEGORY,
    DAYS,
    DAYS_UTC,
    KINDS,
    NUMBER,
    ORDERED,
    TIMES,
    Column,
    ColumnError,
    days_in,
    is_empty,
    kind_of,
    levels_in,
    mostly_numbers,
    numbers_in,
    nw,
    plain_column,
)
from agp.tables._numbers import TRUTHS, Reading, Style, describe_numbers, read_numbers, suspicion_of

MISSING = ("refuse", "impute")
UNSEEN = -1
"""The code of cells about which training says nothing: levels that did not occur, and missing cells beside them."""
NAMELESS = ("", "__index_level_0__")
"""The names of columns that programs write before the first named column, in addition to "Unnamed: 0"."""
DATES = (DAYS, DAYS_UTC)
MAX_SHOWN = 6
"""Maximum number of levels that a message lists."""
MIN_COUNTED = 20
"""Minimum number of rows of a column of row numbers. In shorter tables, other columns may look the same by chance."""
WIDE = 1000
"""In tables with at least so many columns, those of floats are read at once."""
MAX_REMARKS = 20
"""Maximum number of remarks on the columns of a table."""
COLLECTING = {
    "dask": "compute()",
    "duckdb": "df()",
    "ibis": "to_pandas()",
    "pyspark": "toPandas()",
    "pyspark[connect]": "toPandas()",
    "sqlframe": "toPandas()",
}
"""The calls that load lazy data frames into memory, by library as narwhals names it."""
FILL_IN = "fill it in, or set missing='impute' before fit"


def as_frame(X: Any, name: str = "X") -> Any:
    """Convert a data frame of pandas, polars, pyarrow or another library to narwhals; return None for anything else.

    Raise ValueError if two columns have the same name, and TypeError if the data frame is lazy, a column has no
    name, or names are of several types. Lazy frames of polars are computed.
    """
    if isinstance(X, np.ndarray):
        return None
    try:
        frame = nw.from_native(collect_frame(X, name), pass_through=True)
    except nw.exceptions.DuplicateError as error:
        names = X.column_names if nw.dependencies.is_pyarrow_table(X) else X.columns
        twice = next(column for column, count in Counter(names).items() if count > 1)
        raise ValueError(f"{name} has two columns named {quote(twice)}; rename one of them.") from error
    if not isinstance(frame, nw.DataFrame):
        return None
    _check_names(name, frame.columns)
    return frame


def collect_frame(X: Any, name: str = "X") -> Any:
    """Compute a lazy data frame of polars; return anything else unchanged.

    Raise TypeError for lazy data frames of other libraries, whose rows may not fit into memory.
    """
    native = nw.to_native(X, pass_through=True)
    library = "dask" if nw.dependencies.is_dask_dataframe(native) else None  # for which narwhals would warn
    with suppress(nw.exceptions.DuplicateError):
        frame: Any = None if library else nw.from_native(native, pass_through=True)
        if isinstance(frame, nw.LazyFrame) and frame.implementation.is_polars():
            return frame.to_native().collect()
        if isinstance(frame, nw.LazyFrame):
            library = frame.implementation.value
    if library is not None:
        how = COLLECTING.get(library, "collect()")
        raise TypeError(f"{name} is a lazy data frame, whose rows are not known yet; pass {name}.{how}.")
    return X


def _check_names(name: str, columns: list[Any]) -> None:
    """Raise TypeError if a column has no name, or if some names are text and others are not."""
    for column in columns:
        if column is None or (isinstance(column, float) and column != column):
            raise TypeError(f"{name} has a column without a name ({column!r}); name all columns of the data frame.")
    texts = [column for column in columns if isinstance(column, str)]
    if texts and len(texts) < len(columns):
        other = next(column for column in columns if not isinstance(column, str))
        remedy = f"write {name}.columns = {name}.columns.astype(str)"
        raise TypeError(f"{name} has columns named {texts[0]!r} and {other!r}, of different types; {remedy}.")


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


def shorten_remarks(remarks: Sequence[str]) -> list[str]:
    """Return remarks on columns, but only the first ones if there are many, and how many more there are."""
    if len(remarks) <= MAX_REMARKS:
        return [*remarks]
    return [*remarks[:MAX_REMARKS], f"there are {len(remarks) - MAX_REMARKS:,} more such remarks on other columns."]


class Cells(NamedTuple):
    """The cells of N rows."""

    numbers: npt.NDArray[np.float64]
    """Numbers, times in days and positions of ordered levels [N, D], with NaN for missing cells."""
    codes: npt.NDArray[np.int64]
    """The positions [N, C] of categories among the levels of their columns, or `UNSEEN`."""


class Columns:
    """The columns of a training table.

    Numbers, Booleans and their texts are numbers, also percentages, amounts of money, and numbers with decimal commas
    or separators of thousands, if all cells of a column are of one style. Dates and times become days since 1970-01-01
    (in UTC if they have a time zone), and durations become days. The levels of ordered categorical types become their
    positions 0, 1 and so on. Other text and categories become codes of levels (`level_of`). A data frame of any library
    and a file with the same cells give the same columns.

    Left out, with a warning, are columns without any cell, a first column of row numbers without a name, and columns of
    text or categories that only identify rows (`identifies_rows`), unless `keep` names them.

    Attributes
    ----------
    table
        The names of all columns of the training table.
    kinds
        The kind of each input, by name: "number", "category", "ordered" or the unit of times.
    levels
        The levels of each category, in the order of their codes; None stands for a missing cell. `learn` sorts them.
    orders
        The levels of each ordered category, from the lowest to the highest, including those that did not occur.
    styles
        How numbers are written, by column, unless they are plain. New texts are read in the same style.
    ranges
        The first and the last day of each column of dates.
    truths
        The words for false and true, by column of Booleans.
    left_out
        The names of columns that are not used.
    """

    def __init__(self, missing: str = "refuse", keep: Sequence[str] = ()) -> None:
        self.missing, self.keep = missing, keep
        self.table: list[str] = []
        self.kinds: dict[str, str] = {}
        self.levels: dict[str, list[str | None]] = {}
        self.orders: dict[str, list[str]] = {}
        self.styles: dict[str, Style] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.truths: dict[str, list[str]] = {}
        self.left_out: list[str] = []

    @property
    def numbers(self) -> list[str]:
        """The names of the columns of numbers, times and ordered categories."""
        return [name for name, kind in self.kinds.items() if kind != CATEGORY]

    @property
    def categories(self) -> list[str]:
        """The names of the categories."""
        return [*self.levels]

    @property
    def times(self) -> dict[str, str]:
        """The units of columns of times, by name."""
        return {name: kind for name, kind in self.kinds.items() if kind in TIMES}

    @property
    def dates(self) -> tuple[int, ...]:
        """The positions of columns of dates, which are in days, among `numbers`."""
        return tuple(i for i, name in enumerate(self.numbers) if self.kinds[name] in (DAYS, DAYS_UTC))

    def learn(self, frame: Any) -> Cells:
        """Learn the kinds and levels of a narwhals data frame, and return its cells.

        Raise ColumnError for columns and cells that cannot be used, and ValueError if no column is left.
        """
        if unknown := sorted({*self.keep} - {*frame.columns}, key=str):
            remedy = name_remedy(unknown[0], frame.columns, "the columns are")
            raise ValueError(f"keep names the column {quote(unknown[0])}, which the table does not have; {remedy}")
        self.table = [*frame.columns]
        columns = {name: plain_column(frame.get_column(name)) for name in self.table}
        remark_on = {name: self._learn_column(name, column) for name, column in columns.items()}
        remarks = [f"column {quote(name)} {remark}." for name, remark in remark_on.items() if remark]
        if not self.kinds:
            raise ValueError(f"no column is left for inputs: {remarks[0]}")
        cells = self._read(columns, len(frame))
        self._learn_ranges(cells.numbers)
        for text in shorten_remarks([*remarks, *self._remarks_on_row_numbers(cells.numbers)]):
            warnings.warn(text, ColumnWarning, stacklevel=outside())
        return cells

    def _learn_column(self, name: str, column: Column) -> str | None:
        """Learn the kind and the levels of a column. Return a remark if it is left out, or its kind is doubtful."""
        kept, remark = name in self.keep, None
        if not kept and (reason := self._why_left_out(name, column)):
            self.left_out.append(name)
            return f"is left out, because {reason}"
        kind = kind_of(column)
        if kind == CATEGORY:
            levels = levels_in(column)
            if not kept and identifies_rows(levels):
                self.left_out.append(name)
                shown, suspicion = column.levels[0][:30], self._suspicion(column)
                reason = f"most rows have a value that no other row has, such as {shown!r}"
                advice = f"it holds {suspicion}" if suspicion else "to use it as an input, name it in keep"
                return f"is left out, because {reason}; {advice}"
            self.levels[name] = sorted({*levels}, key=lambda level: (level is None, level or ""))
            if suspicion := self._suspicion(column):
                what, _, remedy = suspicion.partition("; ")
                remark = f"holds {what}, which are used as categories; {remedy}"
            elif column.dtype == nw.String and mostly_numbers(column):
                remark = "holds numbers and other text, which are used as categories; correct cells that are errors"
        elif kind == ORDERED:
            self.orders[name] = column.order or []
        elif kind == NUMBER and column.is_text and column.distinct and column.distinct[0].lower() not in TRUTHS:
            if column.reading.style is not None:
                self.styles[name] = column.reading.style
            advice = "numbers or to a categorical type if this is wrong"
            if column.reading.style is None:
                advice = "a categorical type if they are codes"
            remark = f"{describe_numbers(column.distinct, column.reading)}; convert the column to {advice}"
        if kind == NUMBER and (words := _truth_words(column)):
            self.truths[name] = words
        self.kinds[name] = kind
        return remark

    @staticmethod
    def _suspicion(column: Column) -> str | None:
        return suspicion_of(column.distinct) if column.is_text else None

    def label_of(self, name: str, number: float) -> Any:
        """Return how the table shows a number of a column: a date, a Boolean, or a whole number as such."""
        if name in self.truths and number in (0.0, 1.0):
            word = self.truths[name][int(number)]
            return {"False": False, "True": True}.get(word, word)
        if self.kinds.get(name) in DATES:
            moment = np.datetime64(round(86_400.0 * number), "s")
            return str(moment.astype("M8[D]") if number.is_integer() else moment)
        return int(number) if number.is_integer() else number

    def _learn_ranges(self, numbers: npt.NDArray[np.float64]) -> None:
        for name, days in zip(self.numbers, numbers.T, strict=True):
            if self.kinds[name] in DATES and (known := days[~np.isnan(days)]).size:
                self.ranges[name] = float(known.min()), float(known.max())

    def _why_left_out(self, name: str, column: Column) -> str | None:
        """Return why a column is no input whatever it holds, or None."""
        if is_empty(column):
            return "all its cells are empty"
        nameless = str(name) in NAMELESS or str(name).startswith("Unnamed: ")
        if not nameless or name != self.table[0] or len(self.table) < 2 or not column.dtype.is_integer():
            return None
        return "it has no name, and contains row numbers" if column.series.n_unique() == len(column) else None

    def _remarks_on_row_numbers(self, numbers: npt.NDArray[np.float64]) -> list[str]:
        remarks = []
        for name, column in zip(self.numbers, numbers.T, strict=True):
            meant = name in self.keep or self.kinds[name] != NUMBER or len(self.kinds) == 1
            if not meant and numbers_rows(column):
                span = f"holds row numbers from {column.min():.0f} to {column.max():.0f}"
                remarks.append(f"column {quote(name)} {span}; leave it out if they mean nothing, or name it in keep.")
        return remarks

    def read(self, frame: Any) -> Cells:
        """Convert the inputs of a narwhals data frame with the same columns. Raise ColumnError for unsuitable cells."""
        found = self._floats(frame)
        columns = {name: plain_column(frame.get_column(name)) for name in self.kinds if name not in found}
        return self._read(columns, len(frame), found)

    def _floats(self, frame: Any) -> dict[str, npt.NDArray[np.float64]]:
        """Return the columns of a wide table that are floats without missing and infinite cells, read at once."""
        if len(self.kinds) < WIDE:
            return {}
        schema = frame.schema
        names = [name for name, kind in self.kinds.items() if kind == NUMBER and schema[name] == nw.Float64]
        block = frame.select(names).to_numpy() if names else np.zeros((0, 0))
        if block.dtype != np.float64 or not np.isfinite(block).all():
            return {}
        return dict(zip(names, block.T, strict=True))

    def _read(self, columns: dict[str, Column], rows: int, found: Any = None) -> Cells:
        found = found or {}
        numbers = [found[name] if name in found else self._numbers(name, columns[name]) for name in self.numbers]
        codes = [self._codes(name, columns[name]) for name in self.levels]
        none = np.zeros((rows, 0))
        return Cells(
            np.stack(numbers, axis=1) if numbers else none,
            np.stack(codes, axis=1) if codes else none.astype(np.int64),
        )

    def _numbers(self, name: str, column: Column) -> npt.NDArray[np.float64]:
        kind = self.kinds[name]
        if is_empty(column):
            numbers = np.full(len(column), np.nan)
        elif kind == ORDERED:
            numbers = self._positions(name, column)
        elif kind == NUMBER and (reading := self._reading(name, column)) is not None:
            numbers = numbers_in(column, reading)  # names the first cell that is no number
        elif (now := kind_of(column)) == kind:
            numbers = numbers_in(column) if kind == NUMBER else days_in(column, kind)
        else:
            problem = f"holds {KINDS[now]}, but held {KINDS[kind]} in training"
            raise ColumnError(name, problem, "correct the column, or train again")
        if np.isinf(numbers).any():
            row = int(np.argmax(np.isinf(numbers)))
            raise ColumnError(name, "has an infinite number", "correct it, or empty the cell", row)
        if self.missing == "refuse" and np.isnan(numbers).any():
            raise ColumnError(name, "has a missing cell", FILL_IN, int(np.argmax(np.isnan(numbers))))
        return numbers

    def _reading(self, name: str, column: Column) -> Reading | None:
        """Read new texts as numbers in the style of training; return None for no text, or mostly other texts.

        Without a style in training, it is the one that fits most of the new texts. Raise ColumnError if their commas
        may be decimal marks.
        """
        if not column.is_text:
            return None
        if (style := self.styles.get(name)) is not None:
            reading = column.reading_in(style)
            if mostly_numbers(column, reading):
                return reading
            if (other := column.reading).is_complete and other.style is not None and other.style.unit != style.unit:
                problem = f"holds {other.style.plural}, but held {style.plural} in training"
                raise ColumnError(name, problem, "convert them to the unit of training, or train again")
            return None
        reading = column.reading
        if reading.is_ambiguous:
            row = column.first_row("," in text for text in column.distinct)
            text, number = column.distinct[column.index[row]], reading.numbers[column.index[row]]
            other = read_numbers([text], Style(",", "" if reading.style is None else reading.style.unit)).numbers[0]
            why = f"which may mean {number:.15g} or {other:.15g}"
            raise ColumnError(name, f"has {quote(text)}", "write numbers without commas", row, why)
        if reading.is_complete and reading.style is not None and reading.style.unit and not reading.style.is_money:
            signs = "units" if reading.style.is_measure else "percent signs"
            problem = f"holds {reading.style.plural}, but held plain numbers in training"
            raise ColumnError(name, problem, f"remove the {signs}, or train again")
        return reading if mostly_numbers(column, reading) else None

    def _positions(self, name: str, column: Column) -> npt.NDArray[np.float64]:
        """Return the positions [N] of ordered levels. Raise ColumnError for a level that is not one of them."""
        order = self.orders[name]
        place = {level: float(position) for position, level in enumerate(order)}
        unknown = [level not in place for level in column.levels]
        if any(unknown):
            row = column.first_row(unknown)
            shown = f"{', '.join(map(quote, order[:MAX_SHOWN]))}{', ...' if len(order) > MAX_SHOWN else ''}"
            why = f"which is not one of the ordered levels {shown}"
            problem = f"has {column.levels[column.index[row]][:30]!r}"
            raise ColumnError(name, problem, "correct it, or train again with this level in the order", row, why)
        return column.spread([place[level] for level in column.levels], np.nan)

    def _codes(self, name: str, column: Column) -> npt.NDArray[np.int64]:
        if self.missing == "refuse" and (column.index < 0).any():
            raise ColumnError(name, "has a missing cell", FILL_IN, int(np.argmax(column.index < 0)))
        code_of = {level: code for code, level in enumerate(self.levels[name])}
        found = [code_of.get(level, UNSEEN) for level in column.levels]
        codes = column.spread(found, code_of.get(None, UNSEEN), np.int64)
        if len(code_of) == 1 and (codes == UNSEEN).any():
            row = int(np.argmax(codes == UNSEEN))
            level = None if column.index[row] < 0 else column.levels[column.index[row]]
            why = f"but {quote(self.levels[name][0])} in all training rows, so its effect is unknown"
            remedy = "fit to rows with several values, or without this column"
            raise ColumnError(name, f"has {quote(level)}", remedy, row, why)
        return codes

    def unseen(self, frame: Any) -> dict[str, list[str]]:
        """Return the sorted levels of a data frame that did not occur in training, by column."""
        found = {}
        for name, known in self.levels.items():
            if new := {*plain_column(frame.get_column(name)).levels} - {*known}:
                found[name] = sorted(new)
        return found


def _truth_words(column: Column) -> list[str]:
    """Return the words for false and true if a column holds Booleans, or an empty list."""
    words = ["False", "True"]
    if column.dtype == nw.Boolean or column.dtype not in (nw.String, nw.Object):
        return words if column.dtype == nw.Boolean else []
    cells = column.distinct  # takes long for millions of cells
    if column.dtype == nw.Object and cells and all(type(x) is bool for x in cells):
        return words
    if not column.is_text or not cells or not {x.lower() for x in cells} <= TRUTHS.keys():
        return []
    written = {x.lower(): x for x in cells}
    return [written.get(word.lower(), word) for word in words]
