"""The targets of a table: numbers or labels."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.errors import ColumnWarning, quote
from agp.repairs import outside
from agp.tables._cells import NUMBER, Column, is_empty, kind_of, level_of, numbers_in, nw, plain_column
from agp.tables._columns import as_frame
from agp.tables._files import TableFile
from agp.tables._numbers import describe_numbers, suspicion_of

MAX_CLASSES = 50
MAX_WHOLE_CLASSES = 20
"""By default, whole numbers from 0 to C - 1 count as classes if C is at most this number."""
TRUTHS = {"true": 1, "false": 0}
USE_REGRESSION = "use --task regression"
"""The default advice if a target cannot be a label."""


def rows_with(table: TableFile, targets: list[str]) -> npt.NDArray[np.bool_]:
    """Return a mask [N] of the rows that have at least one target."""
    return np.any([~_missing(table.frame.get_column(name)) for name in targets], axis=0)


def _missing(series: Any) -> npt.NDArray[np.bool_]:
    """Return a mask [N] of the cells that are missing or blank."""
    if series.dtype in (nw.String, nw.Object):
        return Column(series).index < 0
    return np.asarray(series.is_null().to_list(), dtype=bool)


def task_of(table: TableFile, target: str, rows: Any) -> str:
    """Infer the task. Text, Booleans, whole numbers from 0 to C - 1, and two different whole numbers are classes."""
    column = table.frame.get_column(target).filter(rows.tolist())
    if not column.dtype.is_numeric():
        texts = plain_column(column)
        with table.places(np.flatnonzero(rows)):
            of_numbers = kind_of(texts) == NUMBER and not _truths(texts)
        style = texts.reading.style if of_numbers and texts.is_text else None
        two = style is not None and style.is_measure and len(texts.distinct) == 2  # such as "2WD" and "4WD"
        return "regression" if of_numbers and not two else "classification"
    values, counts = np.unique(numbers_in(Column(column)), return_counts=True)
    two = len(values) == 2 and bool((values == np.floor(values)).all())
    labels = two or (len(values) <= MAX_WHOLE_CLASSES and bool((values == np.arange(len(values))).all()))
    return "classification" if labels and len(values) > 1 and counts.min() > 1 else "regression"


def numbers_of(
    table: TableFile,
    targets: list[str],
    rows: Any,
    *,
    constant: bool = False,
    remedy: str = "use --task classification",
) -> npt.NDArray[np.float64]:
    """Return one target [N] or several targets [N, K] of the given rows as numbers, with NaN for missing values.

    Raise ValueError if a value is not a number. Unless `constant` is true, at least two values must differ.
    """
    columns = [_numbers(table, name, rows, remedy=remedy, kind="the target") for name in targets]
    for name, numbers in zip(targets, columns, strict=True):
        known = numbers[~np.isnan(numbers)]
        if not constant and not len(known):
            raise ValueError(f"{table.path}: the target {quote(name)} has no value; leave it out.")
        if not constant and (known == known[0]).all():
            raise ValueError(
                f"{table.path}: every value of the target {quote(name)} is {known[0]:g}; there is nothing to predict."
            )
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def warn_about_texts(table: TableFile, targets: list[str]) -> None:
    """Warn about targets whose numbers are text, and say how they are read."""
    for name in targets:
        column = plain_column(table.frame.get_column(name))
        if column.is_text and column.distinct and kind_of(column) == NUMBER:
            _warn(f"the target {quote(name)}", column)


def _warn(what: str, column: Column) -> None:
    warnings.warn(f"{what} {describe_numbers(column.distinct, column.reading)}.", ColumnWarning, stacklevel=outside())


def numbers_in_targets(y: Any) -> Any:
    """Convert texts of numbers in a list, an array, a series or the columns of a data frame, and warn about it.

    Return a NumPy array for a data frame, and anything else without texts of numbers unchanged. Raise ColumnError if
    most but not all of a target's texts are numbers, ValueError if they only look like numbers, and TypeError if a data
    frame is lazy.
    """
    if (frame := as_frame(y, "y")) is not None:
        found = {name: _numbers_in_column(plain_column(frame.get_column(name))) for name in frame.columns}
        if all(numbers is None for numbers in found.values()):
            return frame.to_numpy()
        return np.stack([frame.get_column(name).to_numpy() if x is None else x for name, x in found.items()], axis=1)
    series = nw.from_native(y, series_only=True, allow_series=True, pass_through=True)
    if isinstance(series, nw.Series):
        numbers = _numbers_in_column(plain_column(series))
        return y if numbers is None else numbers
    texts = np.asarray(y, dtype=object) if _has_texts(y) else None
    if texts is None or texts.ndim not in (1, 2):
        return y
    columns = [Column.of_cells(column.tolist(), None) for column in np.atleast_2d(texts.T)]
    read = [_numbers_in_column(column) for column in columns]
    if None in [x if x is None else 0 for x in read]:
        return y
    return read[0] if texts.ndim == 1 else np.stack(read, axis=1)  # type: ignore[arg-type]


def _has_texts(y: Any) -> bool:
    """Whether a list or a NumPy array holds texts, possibly among other cells."""
    if isinstance(y, np.ndarray):
        return y.dtype.kind == "U" or (y.dtype == object and any(isinstance(cell, str) for cell in y.ravel()))
    if not isinstance(y, (list, tuple)):
        return False
    cells = (cell for one in y for cell in (one if isinstance(one, (list, tuple)) else (one,)))
    return any(isinstance(cell, str) for cell in cells)


def _numbers_in_column(column: Column) -> npt.NDArray[np.float64] | None:
    """Return the numbers in a column of text, and warn about them; None if it holds something else."""
    if column.dtype not in (nw.String, nw.Object) or not column.is_text or not column.distinct or _truths(column):
        return None
    what = f"the target {quote(column.name)}" if column.name else "y"  # polars has "" instead of None
    if kind_of(column) != NUMBER:
        if suspicion := suspicion_of(column.distinct):
            raise ValueError(f"{what} holds {suspicion}.")
        return None
    _warn(what, column)
    return numbers_in(column)


def _numbers(table: TableFile, name: str, rows: Any, *, remedy: str, kind: str) -> npt.NDArray[np.float64]:
    with table.places():
        column = plain_column(table.frame.get_column(name))
        if is_empty(column):
            return np.full(int(rows.sum()), np.nan)
        if kind_of(column) != NUMBER:
            suspicion = suspicion_of(column.distinct) if column.is_text else None
            if suspicion:
                raise ValueError(f"{table.path}: {kind} {quote(name)} holds {suspicion}.")
            shown = quote(str(column.distinct[0])[:40])
            raise ValueError(f"{table.path}: {kind} {quote(name)} is text, such as {shown}; {remedy}.")
        numbers = numbers_in(column)
    if (infinite := np.isinf(numbers)).any():
        place = table.place(int(np.argmax(infinite)))
        raise ValueError(f"{table.path}: {place}, column {quote(name)} is infinite; correct it, or empty the cell.")
    return numbers[rows]


def factors_of(table: TableFile, name: str, rows: Any, *, what: str, positive: bool) -> npt.NDArray[np.float64]:
    """Return the exposures, weights or standard deviations [N] of the given rows.

    Raise ValueError if a value is missing or negative. Zero is also an error if `positive` is true.
    """
    numbers = _numbers(table, name, rows, remedy=f"{what} must be numbers", kind="column")
    least = "positive" if positive else "zero or more"
    for wrong, problem, rule in (
        (np.isnan(numbers), "is empty", "known in every row"),
        ((numbers <= 0.0) if positive else (numbers < 0.0), "is {:g}", least),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            place = table.place(int(np.flatnonzero(rows)[first]))
            found = problem.format(numbers[first])
            raise ValueError(f"{table.path}: {place}, column {quote(name)} {found}; {what} must be {rule}.")
    return numbers


def errors_of(table: TableFile, columns: list[str], rows: Any) -> npt.NDArray[np.float64]:
    """Return the standard deviations [N], or [N, K] for K columns, of the measurement errors in the given rows.

    They are 0 for columns that the table lacks. Raise ValueError if a value is missing or negative.
    """
    errors = [
        factors_of(table, name, rows, what="standard deviations", positive=False)
        if name in table.frame.columns
        else np.zeros(int(rows.sum()))
        for name in columns
    ]
    return errors[0] if len(errors) == 1 else np.stack(errors, axis=1)


# -- labels -----------------------------------------------------------------------------------------------------------


def labels_of(
    table: TableFile, target: str, rows: Any, *, least: int = 2, remedy: str = USE_REGRESSION
) -> npt.NDArray[Any]:
    """Return the labels [N] of the given rows: strings, Booleans or whole numbers.

    Raise ValueError for other numbers, or unless there are from `least` to `MAX_CLASSES` different labels.
    """
    column = table.frame.get_column(target).filter(rows.tolist())
    cells = plain_column(column)
    if column.dtype.is_float():
        numbers = column.to_numpy()
        if (broken := np.isinf(numbers) | (numbers != np.floor(numbers))).any():
            wrong = f"{quote(target)} has {numbers[broken][0]:g}"
            raise ValueError(f"{table.path}: labels must be text or whole numbers, but {wrong}; {remedy}.")
        labels = numbers.astype(np.int64)
    elif column.dtype.is_integer() or column.dtype == nw.Boolean:
        labels = column.to_numpy()
    elif _truths(cells):
        labels = numbers_in(cells) == 1.0
    else:
        labels = np.asarray([level_of(label) for label in column.to_list()])
    count = len(np.unique(labels))
    if count < least:
        only = quote(str(labels[0]))[1:-1]
        raise ValueError(f"{table.path}: every label in {quote(target)} is {only}; there is nothing to predict.")
    if count > MAX_CLASSES:
        excess = f"the target {quote(target)} has {count:,} different labels, but at most {MAX_CLASSES} are allowed"
        suspicion = suspicion_of(cells.distinct) if cells.is_text else None
        advice = "merge some of them" if remedy == USE_REGRESSION else remedy
        advice = f"it holds {suspicion}" if suspicion else advice
        raise ValueError(f"{table.path}: {excess}; {advice}.")
    return labels


def missing_rows(y: Any) -> list[int]:
    """Return the numbers of the rows in which a series, list or NumPy array of labels [N] has None, NaN or null."""
    series = nw.from_native(y, series_only=True, allow_series=True, pass_through=True)
    if isinstance(series, nw.Series):
        gone = series.is_null().to_list()
    else:
        values = np.asarray(y)
        gone = [label is None or label != label for label in values.tolist()] if values.dtype.kind in "Of" else []
    return [i for i, is_gone in enumerate(gone) if is_gone]


def category_order(y: Any) -> list[Any] | None:
    """Return the categories of an ordered categorical series in ascending order; return None for anything else."""
    series = nw.from_native(y, series_only=True, allow_series=True, pass_through=True)
    return [*series.cat.get_categories()] if isinstance(series, nw.Series) and series.dtype == nw.Enum else None


def _truths(column: Column) -> bool:
    """Whether all cells of a column that are not missing are Booleans, or "true" and "false" in any case."""
    return column.dtype == nw.Boolean or all(str(cell).lower() in TRUTHS for cell in column.distinct)


def check_label_order(table: TableFile, target: str, labels: Any) -> None:
    """Raise ValueError unless the labels are numbers, since text has no order."""
    if labels.dtype.kind not in "iub":
        raise ValueError(
            f"{table.path}: labels such as {quote(str(labels[0]))} in {quote(target)} have no order, but "
            "--likelihood ordinal requires one; replace them with whole numbers."
        )


def are_texts(classes: Any) -> bool:
    """Whether the classes [C] of an estimator are text, not whole numbers or Booleans."""
    return classes.dtype.kind not in "iub"


def positions_of(labels: Any, classes: Any) -> npt.NDArray[np.intp]:
    """Return the position of each label [N] in the classes [C], or -1 for unknown labels.

    Labels are converted to the type of the classes. The labels 1, 1.0, "1" and True match the class 1. The labels 1,
    1.0, "1" and "1.0" match the class "1".
    """
    convert = level_of if are_texts(classes) else _number
    at = {convert(label): k for k, label in enumerate(classes.tolist())}
    different, inverse = np.unique(labels, return_inverse=True)
    return np.asarray([at.get(convert(label), -1) for label in different.tolist()])[inverse]


def _number(label: Any) -> Any:
    """Convert a label to a number if it looks like one."""
    if not isinstance(label, str) or "_" in label:  # int("1_0") is 10
        return label
    for kind in (int, float):  # a float cannot hold all digits of a long whole number
        try:
            return kind(label)
        except ValueError:
            continue
    return TRUTHS.get(label.lower(), label)
