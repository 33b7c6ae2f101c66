"""Conversion of tables to numbers: categories become one-hot columns, and dates become days."""

import datetime as dt
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import numpy.typing as npt
from narwhals.exceptions import DuplicateError
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from agp.data import identifies_rows, level_of, numbers_rows
from agp.errors import ColumnWarning
from agp.inspection import column_names
from agp.random import generator
from agp.repairs import outside

MISSING = ("refuse", "impute")
NUMBER_TYPES = (Real, Decimal)  # in Python, Decimal is not a subclass of Real
TEXT_TYPES = (str, bool, np.bool_)
"""The cell types that make a column of Python objects numeric or categorical, respectively."""
DAYS, DAYS_UTC, DURATION = "days since 1970-01-01", "days since 1970-01-01 UTC", "days"
UNITS = {DAYS: "dates", DAYS_UTC: "times with a time zone", DURATION: "durations"}
"""The units of dates (or times without a time zone), times and durations, and what messages call these kinds."""
DAY = dt.timedelta(days=1)
IMPUTATIONS = 60
"""The number of values that replace a cell about which nothing is known, to average predictions over them."""
MAX_ENCODED = 2**28
"""The maximum number of cells of a table after encoding, which take 2 GiB."""
ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}.*)?)?")


def as_frame(X: Any, name: str = "X") -> Any:
    """Convert a data frame of pandas, polars or another library to narwhals; return None for anything else.

    Raise ValueError if two columns have the same name.
    """
    if isinstance(X, np.ndarray):
        return None
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
    except DuplicateError as error:
        names = X.column_names if nw.dependencies.is_pyarrow_table(X) else X.columns
        twice = next(column for column, count in Counter(names).items() if count > 1)
        msg = f"{name} has two columns named {twice!r}; rename one of them."
        raise ValueError(msg) from error
    return frame if isinstance(frame, nw.DataFrame) else None


def missing_rows(y: Any) -> list[int]:
    """Return the numbers of the rows in which a series, list or NumPy array of labels [N] has None, NaN or null."""
    series = nw.from_native(y, series_only=True, allow_series=True, pass_through=True)
    if isinstance(series, nw.Series):
        gone = series.is_null().to_list()
    else:
        values = np.asarray(y)
        gone = [one is None or one != one for one in values.tolist()] if values.dtype.kind in "Of" else []
    return [i for i, is_gone in enumerate(gone) if is_gone]


def category_order(y: Any) -> list[Any] | None:
    """Return the categories of an ordered categorical series in ascending order; return None for anything else."""
    series = nw.from_native(y, series_only=True, allow_series=True, pass_through=True)
    return [*series.cat.get_categories()] if isinstance(series, nw.Series) and series.dtype == nw.Enum else None


class Columns:
    """A transformer that is fitted to training rows and converts tables to numeric arrays.

    Numbers and Booleans keep their values; Python decimals become floats. Dates and times become days since 1970-01-01
    (in UTC if they have a time zone), and durations become days. A column of text, categories or enumerations is
    replaced by columns of 0 and 1, one for each of its levels (`agp.data.level_of`). If `missing` is "refuse", missing
    cells raise an error. If it is "impute", missing numbers and dates are replaced by the mean and marked in an
    additional column, and missing cells in a categorical column form an additional level.

    Nothing is known about a level unseen in training, or a missing cell in a column without missing cells in training.
    Such cells become NaN, and predictors average over the `imputations`.

    Parameters
    ----------
    missing
        "refuse" or "impute".
    keep
        The names of columns that are inputs even if they only identify rows. Other categorical columns of this kind
        (`agp.data.identifies_rows`) are left out, with a warning.
    """

    def __init__(self, missing: str, keep: Sequence[str] = ()) -> None:
        self.missing, self.keep = missing, keep
        self.named = True
        self.numbers: list[str] = []
        self.times: dict[str, str] = {}
        self.categories: list[str] = []
        self.left_out: list[str] = []
        self.table: list[str] = []
        self.quantiles = np.zeros((IMPUTATIONS, 0))

    def fit(self, frame: Any) -> "Columns":
        """Learn the column kinds, levels and distributions of a narwhals data frame. Error messages name the column."""
        if unknown := [name for name in self.keep if name not in frame.columns]:
            msg = (
                f"keep names the column {unknown[0]!r}, but the columns are {', '.join(map(str, frame.columns))[:200]}."
            )
            raise ValueError(msg)
        self.table = [*frame.columns]
        for name, dtype in frame.schema.items():
            column = frame.get_column(name)
            if dtype.is_numeric() or dtype == nw.Boolean or _holds_numbers(column):
                self.numbers.append(name)
            elif unit := _unit_of(name, column):
                self.numbers.append(name)
                self.times[name] = unit
            elif dtype in (nw.String, nw.Categorical, nw.Enum) or _holds_words(name, column):
                of_rows = name not in self.keep and identifies_rows(_levels(column))
                (self.left_out if of_rows else self.categories).append(name)
            else:
                msg = f"column {name!r} holds {dtype}; convert it to numbers, dates or text, or leave it out."
                raise ValueError(msg)
        if not self.numbers and not self.categories:
            msg = f"no column is left, because {self.left_out[0]!r} identifies rows; add columns, or name it in keep."
            raise ValueError(msg)
        self.imputer, self.encoder = new_imputer(), new_encoder()
        numbers = self._numbers(frame)
        self.imputer.fit(numbers if numbers.shape[1] else np.zeros((len(frame), 1)))
        self.quantiles = _quantiles_of(numbers)
        if self.categories:
            self.encoder.fit(self._texts(frame))
            self._check_size(len(frame))
        self._warn(frame, numbers)
        return self

    def fit_array(self, X: npt.NDArray[Any]) -> "Columns":
        """Learn the means and quantiles of an array [N, D], whose columns have no names."""
        self.named, self.numbers = False, [*column_names(X.shape[1])]
        self.imputer, self.quantiles = new_imputer().fit(X), _quantiles_of(X)
        return self

    def transform(self, frame: Any) -> npt.NDArray[np.float64]:
        """Convert a data frame with the same columns to numbers [N, D], with NaN in cells that need `imputations`."""
        parts = []
        if self.numbers:
            parts.append(self._impute(self._numbers(frame)))
        if self.categories:
            parts.append(self._encode(self._texts(frame)))
        return np.concatenate(parts, axis=1)

    def transform_array(self, X: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert an array whose columns are in the order of the training columns.

        Raise ValueError if a training column held text.
        """
        if texts := [*self.categories, *self.left_out]:
            msg = (
                f"X is an array, but the training table has text in column {texts[0]!r}; pass a table with the same "
                "columns."
            )
            raise ValueError(msg)
        return self._impute(X)

    def imputations(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the values [S, D] that replace NaN in the columns of `transform`, and factors [D].

        The values of a number are its quantiles in training, and those of a categorical column are its levels. Their
        orders are random, so that different columns are combined at random. If L levels are a sample from a normal
        distribution of effects, the variance of the effect of another level is (L + 1) / (L - 1) times the variance
        of these L effects about their mean. The factor of numbers is 1.
        """
        marks = np.zeros((IMPUTATIONS, len(self._mark_missing)))
        values, factors = [self.quantiles, marks], [np.ones(self.quantiles.shape[1] + marks.shape[1])]
        for i, levels in enumerate(self.values.values()):
            count = len(levels)
            order = generator(0, 31, i).permutation(max(count, IMPUTATIONS))[:IMPUTATIONS]
            values.append(np.eye(count)[order % count])
            factors.append(np.full(count, (count + 1.0) / max(count - 1.0, 1.0)))
        return np.concatenate(values, axis=1), np.concatenate(factors)

    def names(self) -> list[str]:
        """Return the names of the columns that `transform` returns; names of dates and durations end with the unit."""
        numbers = [f"{name} [{self.times[name]}]" if name in self.times else name for name in self.numbers]
        found = [*numbers, *(f"{name} is missing" for name in self._mark_missing)]
        return found + [f"{name} = {value}" for name, values in self.values.items() for value in values]

    def sources(self) -> list[str]:
        """Return, for each column that `transform` returns, the table column from which it is computed."""
        return [*self.numbers, *self._mark_missing, *(name for name, values in self.values.items() for _ in values)]

    @property
    def values(self) -> dict[str, list[Any]]:
        """The sorted values of each categorical column in the training rows; None stands for a missing cell."""
        found = self.encoder.categories_ if self.categories else []
        return {name: known.tolist() for name, known in zip(self.categories, found, strict=True)}

    @property
    def _mark_missing(self) -> list[str]:
        """The numeric columns that have an additional column to mark their missing cells."""
        if self.missing == "refuse" or not self.numbers:
            return []
        indicator: Any = self.imputer.indicator_
        return [self.numbers[i] for i in indicator.features_]

    def _impute(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Replace missing numbers by means in the columns that mark them; leave NaN in the other columns."""
        if self.missing == "refuse" or not self.numbers:
            return numbers
        indicator: Any = self.imputer.indicator_
        marked = np.isin(np.arange(numbers.shape[1]), indicator.features_)
        found = self.imputer.transform(numbers)
        if np.isnan(self.quantiles).any() and np.isnan(numbers[:, ~marked]).any():
            name = self.numbers[int(np.argmax(np.isnan(numbers).any(axis=0) & ~marked))]
            msg = (
                f"column {name!r} has missing cells, but had none in training, and the model comes from a version of "
                "agp that did not store how the values of a column are distributed; fit again."
            )
            raise ValueError(msg)
        found[:, : numbers.shape[1]] = np.where(marked, found[:, : numbers.shape[1]], numbers)
        return found

    def _encode(self, texts: npt.NDArray[np.object_]) -> npt.NDArray[np.float64]:
        """Replace levels [N, C] by columns of 0 and 1, or of NaN for levels unseen in training."""
        found, start = self.encoder.transform(texts), 0
        for (name, levels), column in zip(self.values.items(), texts.T, strict=True):
            block = found[:, start : start + len(levels)]
            start += len(levels)
            unseen = block.sum(axis=1) == 0.0
            if len(levels) == 1 and unseen.any():
                row = int(np.argmax(unseen))
                msg = (
                    f"column {name!r} has {column[row]!r} in row {row}, but {levels[0]!r} in all training rows, so its "
                    "effect is unknown; fit to rows with several values, or without this column."
                )
                raise ValueError(msg)
            block[unseen] = np.nan
        return found

    def _check_size(self, rows: int) -> None:
        """Raise ValueError if the encoded table would not fit into memory."""
        values = self.values
        name = max(values, key=lambda name: len(values[name]))
        width = len(self.numbers) + sum(map(len, values.values()))
        if rows * width > MAX_ENCODED:
            msg = (
                f"column {name!r} has {len(values[name]):,} different values, each of which becomes an input of "
                f"{rows:,} rows: {8e-9 * rows * width:.1f} GB in all; merge rare values, or leave the column out."
            )
            raise ValueError(msg)

    def _warn(self, frame: Any, numbers: npt.NDArray[np.float64]) -> None:
        """Warn of columns that are left out, hold dates as text or, beside other columns, hold row numbers."""
        for name in frame.columns:
            if name in self.left_out or name in self.categories:
                _warn_of_text(name, frame.get_column(name), left_out=name in self.left_out)
        for name, column in zip(self.numbers, numbers.T, strict=True):
            meant = name in self.keep or name in self.times or len(self.numbers) + len(self.categories) == 1
            if not meant and numbers_rows(column):
                text = (
                    f"column {name!r} holds row numbers from {column.min():.0f} to {column.max():.0f}; leave it out if "
                    "they mean nothing, or name it in keep."
                )
                warnings.warn(text, ColumnWarning, stacklevel=outside())

    def _numbers(self, frame: Any) -> npt.NDArray[np.float64]:
        columns = [_as_numbers(name, frame.get_column(name), self.times.get(name)) for name in self.numbers]
        found = np.stack(columns, axis=1).astype(np.float64) if columns else np.zeros((len(frame), 0))
        for name, column in zip(self.numbers, found.T, strict=True):
            if np.isinf(column).any():
                msg = f"column {name!r} has an infinite number in row {int(np.argmax(np.isinf(column)))}."
                raise ValueError(msg)
            if self.missing == "refuse" and np.isnan(column).any():
                raise ValueError(_missing(name, int(np.argmax(np.isnan(column)))))
        return found

    def _texts(self, frame: Any) -> npt.NDArray[np.object_]:
        columns = []
        for name in self.categories:
            column = frame.get_column(name)
            levels = _levels(column)
            if self.missing == "refuse" and None in levels:
                raise ValueError(_missing(name, levels.index(None)))
            columns.append(levels)
        return np.asarray(columns, dtype=object).T


def new_imputer() -> Any:
    """Return a transformer that replaces missing cells by column means and marks them in additional columns."""
    return SimpleImputer(add_indicator=True, keep_empty_features=True)


def new_encoder() -> Any:
    """Return a transformer that computes a column of 0 and 1 for each value of a categorical column."""
    return OneHotEncoder(handle_unknown="ignore", sparse_output=False)


def _levels(column: Any) -> list[str | None]:
    """Return the level in each cell of a categorical column, with None for missing cells."""
    cells = zip(column.to_list(), column.is_null().to_list(), strict=True)
    return [None if is_missing else level_of(cell) for cell, is_missing in cells]


def _quantiles_of(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return `IMPUTATIONS` quantiles of each column [N, D] in random order; 0 for columns without any number."""
    shares, found = (np.arange(IMPUTATIONS) + 0.5) / IMPUTATIONS, np.zeros((IMPUTATIONS, numbers.shape[1]))
    for i, column in enumerate(numbers.T):
        if (known := column[~np.isnan(column)]).size:
            values = np.quantile(known, shares, method="inverted_cdf")  # values of the column, not between them
            found[:, i] = generator(0, 30, i).permutation(values)
    return found


def _missing(name: str, row: int) -> str:
    return f"column {name!r} has a missing cell in row {row}; fill it in, or set missing='impute'."


def _holds_numbers(column: Any) -> bool:
    """Whether a column of Python objects holds only numbers and missing cells, as some pandas columns do."""
    if column.dtype != nw.Object:
        return False
    known = column.drop_nulls().to_list()
    return bool(known) and all(isinstance(one, NUMBER_TYPES) for one in known)


def _holds_words(name: str, column: Any) -> bool:
    """Whether a column of Python objects holds text or Booleans. Raise ValueError if the column holds other objects."""
    if column.dtype != nw.Object:
        return False
    known = column.drop_nulls().to_list()
    if all(isinstance(one, TEXT_TYPES) for one in known):
        return True
    kinds = " and ".join(sorted({type(one).__name__ for one in known})[:3])
    msg = f"column {name!r} holds objects of {kinds}; convert all of them to numbers or to text, or leave it out."
    raise ValueError(msg)


def _warn_of_text(name: str, column: Any, *, left_out: bool) -> None:
    """Warn if a categorical column is left out, or if its text holds dates."""
    known = column.drop_nulls().unique().to_list() if column.dtype in (nw.String, nw.Object) else []
    dates = bool(known) and all(isinstance(one, str) and ISO_DATE.fullmatch(one) for one in known)
    if dates:
        fate = "is left out" if left_out else "each becomes a category"
        text = (
            f"column {name!r} holds dates as text, such as {known[0]!r}, and {fate}; convert them to dates, for "
            "example with pandas.to_datetime."
        )
        warnings.warn(text, ColumnWarning, stacklevel=outside())
    elif left_out:
        text = (
            f"column {name!r} is left out, because most rows have a value that no other row has, such as "
            f"{str(column.drop_nulls().to_list()[0])[:30]!r}; to use it as an input, name it in keep."
        )
        warnings.warn(text, ColumnWarning, stacklevel=outside())


def _as_numbers(name: str, column: Any, unit: str | None) -> npt.NDArray[Any]:
    """Convert a column to numbers [N]. `unit` is the unit in training; None means numbers without a unit."""
    dtype = column.dtype  # slow to compute
    if unit is None and dtype.is_numeric():
        return (column if dtype == nw.Float64 else column.cast(nw.Float64)).to_numpy()
    if dtype in (nw.String, nw.Object) and column.is_null().all():  # all cells are missing
        return np.full(len(column), np.nan)
    found = _unit_of(name, column)
    if found != unit:
        now, before = UNITS[found] if found else dtype, UNITS[unit] if unit else "numbers"
        msg = f"column {name!r} holds {now}, but held {before} in training."
        raise ValueError(msg)
    if unit is not None:
        return _days_of(column)
    if _holds_numbers(column):
        values = zip(column.to_list(), column.is_null().to_list(), strict=True)
        return np.asarray([np.nan if is_missing else float(value) for value, is_missing in values])
    if dtype != nw.Boolean:
        msg = f"column {name!r} holds {dtype}, but held numbers in training."
        raise ValueError(msg)
    return column.cast(nw.Float64).to_numpy()


# -- dates, times and durations ----------------------------------------------------------------------------------------


def _unit_of(name: str, column: Any) -> str | None:
    """Return the unit of a narwhals series of dates, times or durations, or None for anything else.

    Raise ValueError if the cells of a column of Python objects have different units.
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
        kinds = " and ".join(kind for unit, kind in UNITS.items() if unit in units)
        msg = f"column {name!r} holds {kinds}; convert all of them to one kind, or leave it out."
        raise ValueError(msg)
    return units.pop() if len(units) == 1 else None


def _days_of(column: Any) -> npt.NDArray[np.float64]:
    """Convert a column with a unit to days [N], with NaN for missing cells."""
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
