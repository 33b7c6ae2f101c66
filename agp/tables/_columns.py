"""The columns of a training table: which are inputs, what they hold, and how they become numbers and levels."""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp.errors import ColumnWarning
from agp.repairs import outside
from agp.tables._cells import (
    CATEGORY,
    DAYS,
    DAYS_UTC,
    KINDS,
    NUMBER,
    TIMES,
    TRUTHS,
    ColumnError,
    cells_of,
    days_in,
    identifies_rows,
    is_empty,
    kind_of,
    levels_in,
    mostly_numbers,
    numbers_in,
    numbers_rows,
    nw,
    plain_column,
)

MISSING = ("refuse", "impute")
UNSEEN = -1
"""The code of cells about which training says nothing: levels that did not occur, and missing cells beside them."""
NAMELESS = ("", "__index_level_0__")
"""The names of columns that programs write before the first named column, in addition to "Unnamed: 0"."""
FILL_IN = "fill it in, or set missing='impute'"


def as_frame(X: Any, name: str = "X") -> Any:
    """Convert a data frame of pandas, polars, pyarrow or another library to narwhals; return None for anything else.

    Raise ValueError if two columns have the same name, and TypeError if the data frame is lazy.
    """
    if isinstance(X, np.ndarray):
        return None
    try:
        frame = nw.from_native(X, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        names = X.column_names if nw.dependencies.is_pyarrow_table(X) else X.columns
        twice = next(column for column, count in Counter(names).items() if count > 1)
        raise ValueError(f"{name} has two columns named {twice!r}; rename one of them.") from error
    if isinstance(frame, nw.LazyFrame):
        how = "compute" if frame.implementation.is_dask() else "collect"
        raise TypeError(f"{name} is a lazy data frame, whose rows are not known yet; pass {name}.{how}().")
    return frame if isinstance(frame, nw.DataFrame) else None


class Cells(NamedTuple):
    """The cells of N rows."""

    numbers: npt.NDArray[np.float64]
    """Numbers, and times in days [N, D], with NaN for missing cells."""
    codes: npt.NDArray[np.int64]
    """The positions [N, C] of categories among the levels of their columns, or `UNSEEN`."""


class Columns:
    """The columns of a training table.

    Numbers, Booleans and their texts are numbers. Dates and times become days since 1970-01-01 (in UTC if they have a
    time zone), and durations become days. Other text and categories become codes of levels (`level_of`). A data frame
    of any library and a file with the same cells give the same columns.

    Left out, with a warning, are columns without any cell, a first column of row numbers without a name, and columns of
    text or categories that only identify rows (`identifies_rows`), unless `keep` names them.

    Attributes
    ----------
    table
        The names of all columns of the training table.
    kinds
        The kind of each input, by name: "number", "category" or the unit of times.
    levels
        The sorted levels of each category; None stands for a missing cell.
    left_out
        The names of columns that are not used.
    """

    def __init__(self, missing: str = "refuse", keep: Sequence[str] = ()) -> None:
        self.missing, self.keep = missing, keep
        self.table: list[str] = []
        self.kinds: dict[str, str] = {}
        self.levels: dict[str, list[str | None]] = {}
        self.left_out: list[str] = []

    @property
    def numbers(self) -> list[str]:
        """The names of the columns of numbers and times."""
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
        if unknown := [name for name in self.keep if name not in frame.columns]:
            names = ", ".join(map(str, frame.columns))[:200]
            raise ValueError(f"keep names the column {unknown[0]!r}, but the columns are {names}.")
        self.table = [*frame.columns]
        remark_on = {name: self._learn_column(name, frame.get_column(name)) for name in self.table}
        remarks = [f"column {name!r} {remark}." for name, remark in remark_on.items() if remark]
        if not self.kinds:
            raise ValueError(f"no column is left for inputs: {remarks[0]}")
        cells = self.read(frame)
        for text in [*remarks, *self._remarks_on_row_numbers(cells.numbers)]:
            warnings.warn(text, ColumnWarning, stacklevel=outside())
        return cells

    def _learn_column(self, name: str, column: Any) -> str | None:
        """Learn the kind and the levels of a column. Return a remark if it is left out, or its kind is doubtful."""
        column, kept, remark = plain_column(column), name in self.keep, None
        if not kept and (reason := self._why_left_out(name, column)):
            self.left_out.append(name)
            return f"is left out, because {reason}"
        kind = kind_of(column)
        if kind == CATEGORY:
            levels = levels_in(column)
            if not kept and identifies_rows(levels):
                self.left_out.append(name)
                shown = next(str(level) for level in levels if level is not None)[:30]
                reason = f"most rows have a value that no other row has, such as {shown!r}"
                return f"is left out, because {reason}; to use it as an input, name it in keep"
            self.levels[name] = sorted({*levels}, key=lambda level: (level is None, level or ""))
            if column.dtype == nw.String and mostly_numbers(levels):
                remark = "holds numbers and other text, which are used as categories; correct cells that are errors"
        elif kind == NUMBER and column.dtype == nw.String and _first_text(column).lower() not in TRUTHS:
            advice = "convert the column to a categorical type if they are names of categories"
            remark = f"holds numbers as text, which are used as numbers; {advice}"
        self.kinds[name] = kind
        return remark

    def _why_left_out(self, name: str, column: Any) -> str | None:
        """Return why a column is no input whatever it holds, or None."""
        if is_empty(column):
            return "it is empty"
        nameless = str(name) in NAMELESS or str(name).startswith("Unnamed: ")
        if not nameless or name != self.table[0] or len(self.table) < 2 or not column.dtype.is_integer():
            return None
        return "it has no name, and contains row numbers" if column.n_unique() == len(column) else None

    def _remarks_on_row_numbers(self, numbers: npt.NDArray[np.float64]) -> list[str]:
        remarks = []
        for name, column in zip(self.numbers, numbers.T, strict=True):
            meant = name in self.keep or self.kinds[name] != NUMBER or len(self.kinds) == 1
            if not meant and numbers_rows(column):
                span = f"holds row numbers from {column.min():.0f} to {column.max():.0f}"
                remarks.append(f"column {name!r} {span}; leave it out if they mean nothing, or name it in keep.")
        return remarks

    def read(self, frame: Any) -> Cells:
        """Convert the inputs of a narwhals data frame with the same columns. Raise ColumnError for unsuitable cells."""
        numbers = [self._numbers(name, frame) for name in self.numbers]
        codes = [self._codes(name, frame) for name in self.levels]
        none = np.zeros((len(frame), 0))
        return Cells(
            np.stack(numbers, axis=1) if numbers else none,
            np.stack(codes, axis=1) if codes else none.astype(np.int64),
        )

    def _numbers(self, name: str, frame: Any) -> npt.NDArray[np.float64]:
        column, kind = plain_column(frame.get_column(name)), self.kinds[name]
        if is_empty(column):
            numbers = np.full(len(column), np.nan)
        elif kind == NUMBER and column.dtype == nw.String and mostly_numbers(cells_of(column)):
            numbers = numbers_in(column)  # names the first cell that is no number
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

    def _codes(self, name: str, frame: Any) -> npt.NDArray[np.int64]:
        levels = levels_in(plain_column(frame.get_column(name)))
        if self.missing == "refuse" and None in levels:
            raise ColumnError(name, "has a missing cell", FILL_IN, levels.index(None))
        code_of = {level: code for code, level in enumerate(self.levels[name])}
        codes = np.asarray([code_of.get(level, UNSEEN) for level in levels], dtype=np.int64)
        if len(code_of) == 1 and (codes == UNSEEN).any():
            row = int(np.argmax(codes == UNSEEN))
            why = f"but {self.levels[name][0]!r} in all training rows, so its effect is unknown"
            remedy = "fit to rows with several values, or without this column"
            raise ColumnError(name, f"has {levels[row]!r}", remedy, row, why)
        return codes

    def unseen(self, frame: Any) -> dict[str, list[str]]:
        """Return the sorted levels of a data frame that did not occur in training, by column."""
        found = {}
        for name, known in self.levels.items():
            if new := {*levels_in(plain_column(frame.get_column(name)))} - {*known, None}:
                found[name] = sorted(map(str, new))
        return found


def _first_text(column: Any) -> str:
    """Return the first text of a series of text."""
    return next(cell for cell in column.drop_nulls().to_list() if cell.strip()).strip()
