"""The targets of a table: numbers or labels."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.errors import ColumnWarning
from agp.repairs import outside
from agp.tables._cells import NUMBER, Column, is_empty, kind_of, level_of, numbers_in, nw, plain_column
from agp.tables._columns import as_frame
from agp.tables._files import TableFile
from agp.tables._numbers import describe_numbers

MAX_CLASSES = 50
MAX_WHOLE_CLASSES = 20
"""By default, whole numbers from 0 to C - 1 count as classes if C is at most this number."""
TRUTHS = {"true": 1, "false": 0}


def rows_with(table: TableFile, targets: list[str]) -> npt.NDArray[np.bool_]:
    """Return a mask [N] of the rows that have at least one target."""
    return np.any([~_missing(table.frame.get_column(name)) for name in targets], axis=0)


def _missing(series: Any) -> npt.NDArray[np.bool_]:
    """Return a mask [N] of the cells that are missing or blank."""
    if series.dtype in (nw.String, nw.Object):
        return Column(series).index < 0
    return np.asarray(series.is_null().to_list(), dtype=bool)


def task_of(table: TableFile, target: str, rows: Any) -> str:
    """Infer the task. Text, Booleans, whole numbers from 0 to C - 1, and targets with only two values are classes."""
    column = table.frame.get_column(target).filter(rows.tolist())
    if not column.dtype.is_numeric():
        with table.places(np.flatnonzero(rows)):
            of_numbers = kind_of(plain_column(column)) == NUMBER and not _truths(column)
        return "regression" if of_numbers else "classification"
    values, counts = np.unique(numbers_in(Column(column)), return_counts=True)
    whole = len(values) == 2 or (len(values) <= MAX_WHOLE_CLASSES and bool((values == np.arange(len(values))).all()))
    return "classification" if whole and len(values) > 1 and counts.min() > 1 else "regression"


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
            raise ValueError(f"{table.path}: the target {name!r} has no value; leave it out.")
        if not constant and (known == known[0]).all():
            raise ValueError(
                f"{table.path}: every value of the target {name!r} is {known[0]:g}; there is nothing to predict."
            )
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def warn_about_texts(table: TableFile, targets: list[str]) -> None:
    """Warn about targets whose numbers are text, and say how they are read."""
    for name in targets:
        column = plain_column(table.frame.get_column(name))
        if column.is_text and column.distinct and kind_of(column) == NUMBER:
            _warn(f"the target {name!r}", column)


def _warn(what: str, column: Column) -> None:
    warnings.warn(f"{what} {describe_numbers(column.distinct, column.reading)}.", ColumnWarning, stacklevel=outside())


def numbers_in_targets(y: Any) -> Any:
    """Convert texts of numbers in a series, or in the columns of a data frame, to numbers, and warn about it.

    Return a NumPy array for a data frame, and anything else without texts of numbers unchanged. Raise ColumnError if
    most but not all of a target's texts are numbers, and TypeError if a data frame is lazy.
    """
    if (frame := as_frame(y, "y")) is not None:
        found = {name: _numbers_in_series(frame.get_column(name)) for name in frame.columns}
        if all(numbers is None for numbers in found.values()):
            return frame.to_numpy()
        return np.stack([frame.get_column(name).to_numpy() if x is None else x for name, x in found.items()], axis=1)
    series = nw.from_native(y, series_only=True, allow_series=True, pass_through=True)
    numbers = _numbers_in_series(series) if isinstance(series, nw.Series) else None
    return y if numbers is None else numbers


def _numbers_in_series(series: Any) -> npt.NDArray[np.float64] | None:
    """Return the numbers in a series of text, and warn about them; None if it holds something else."""
    if series.dtype not in (nw.String, nw.Object):
        return None
    column = Column(series)
    if not column.is_text or not column.distinct or kind_of(column) != NUMBER or _truths(series):
        return None
    _warn(f"the target {series.name!r}" if series.name else "y", column)  # polars has "" instead of None
    return numbers_in(column)


def _numbers(table: TableFile, name: str, rows: Any, *, remedy: str, kind: str) -> npt.NDArray[np.float64]:
    with table.places():
        column = plain_column(table.frame.get_column(name))
        if is_empty(column):
            return np.full(int(rows.sum()), np.nan)
        if kind_of(column) != NUMBER:
            shown = repr(next(iter(column.series.drop_nulls().to_list())))
            raise ValueError(f"{table.path}: {kind} {name!r} is text, such as {shown:.40}; {remedy}.")
        numbers = numbers_in(column)
    if (infinite := np.isinf(numbers)).any():
        place = table.place(int(np.argmax(infinite)))
        raise ValueError(f"{table.path}: {place}, column {name!r} is infinite; correct it, or empty the cell.")
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
            raise ValueError(f"{table.path}: {place}, column {name!r} {found}; {what} must be {rule}.")
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
    table: TableFile, target: str, rows: Any, *, least: int = 2, remedy: str = "use --task regression"
) -> npt.NDArray[Any]:
    """Return the labels [N] of the given rows: strings, Booleans or whole numbers.

    Raise ValueError for other numbers, or unless there are from `least` to `MAX_CLASSES` different labels.
    """
    column = table.frame.get_column(target).filter(rows.tolist())
    if column.dtype.is_float():
        numbers = column.to_numpy()
        if (broken := np.isinf(numbers) | (numbers != np.floor(numbers))).any():
            wrong = f"{target!r} has {numbers[broken][0]:g}"
            raise ValueError(f"{table.path}: labels must be text or whole numbers, but {wrong}; {remedy}.")
        labels = numbers.astype(np.int64)
    elif column.dtype.is_integer() or column.dtype == nw.Boolean:
        labels = column.to_numpy()
    elif _truths(column):
        labels = numbers_in(Column(column)) == 1.0
    else:
        labels = np.asarray([level_of(label) for label in column.to_list()])
    count = len(np.unique(labels))
    if count < least:
        raise ValueError(f"{table.path}: every label in {target!r} is {labels[0]!s}; there is nothing to predict.")
    if count > MAX_CLASSES:
        excess = f"the target {target!r} has {count:,} different labels"
        raise ValueError(f"{table.path}: {excess}, but at most {MAX_CLASSES} are allowed; merge some of them.")
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


def _truths(column: Any) -> bool:
    """Whether all cells of a series that are not missing are Booleans, or "true" and "false" in any case."""
    return column.dtype == nw.Boolean or all(str(cell).lower() in TRUTHS for cell in plain_column(column).distinct)


def check_label_order(table: TableFile, target: str, labels: Any) -> None:
    """Raise ValueError unless the labels are numbers, since text has no order."""
    if labels.dtype.kind not in "iub":
        raise ValueError(
            f"{table.path}: labels such as {str(labels[0])!r} in {target!r} have no order, but --likelihood ordinal "
            "requires one; replace them with whole numbers."
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
