"""The targets of a table: numbers or labels."""

from typing import Any

import numpy as np

from agp.cli._columns import infer_column_kind, place_of_first, text_of
from agp.data import TableFile, bad_number, unknown_column_message

TASKS = ("auto", "regression", "classification")
MAX_CLASSES = 50
MAX_WHOLE_CLASSES = 20
"""By default, whole numbers from 0 to C - 1 count as classes if C is at most this number."""
TRUTHS = {"true": 1, "false": 0}


def check_columns(table: TableFile, names: list[str]) -> None:
    """Raise a ValueError if a column is missing or named twice, or if no other column is left."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        msg = f"--target names {twice[0]!r} twice; name each column once."
        raise ValueError(msg)
    for name in names:
        if name not in table.frame.columns:
            raise ValueError(unknown_column_message(table.path, name, table.frame.columns))
    if len(table.frame.columns) <= len(names):
        what = "the target column" if len(names) == 1 else "target columns"
        msg = f"{table.path} has only {what}, but at least one input column is needed; check the column separator."
        raise ValueError(msg)


def quote_names(names: list[str]) -> str:
    """Quote names, and join them with commas."""
    return ", ".join(map(repr, names))


def rows_with(table: TableFile, targets: list[str]) -> Any:
    """Return a mask [N] of the rows that have at least one target."""
    return table.frame[targets].notna().any(axis=1).to_numpy()


def task_of(table: TableFile, target: str, rows: Any) -> str:
    """Infer the task. Text, Booleans, whole numbers from 0 to C - 1, and targets with only two values are classes."""
    column = table.frame[target][rows]
    if column.dtype.kind not in "iuf":
        return "regression" if bad_number(column) is not None else "classification"
    found, counts = np.unique(column.to_numpy(dtype=float), return_counts=True)
    whole = len(found) == 2 or (len(found) <= MAX_WHOLE_CLASSES and bool((found == np.arange(len(found))).all()))
    return "classification" if whole and len(found) > 1 and counts.min() > 1 else "regression"


def numbers_of(
    table: TableFile,
    targets: list[str],
    rows: Any,
    *,
    constant: bool = False,
    remedy: str = "use --task classification",
) -> Any:
    """Return one target [N] or several targets [N, K] of the given rows as numbers, with NaN for missing values.

    Raise a ValueError if a value is not a number. Unless `constant` is true, at least two values must differ.
    """
    columns = [_numbers(table, target, rows, constant=constant, remedy=remedy) for target in targets]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _numbers(table: TableFile, target: str, rows: Any, *, constant: bool, remedy: str, kind: str = "the target") -> Any:
    column = _truths(table.frame[target], float)
    if column.dtype.kind not in "iufb":
        row = bad_number(column)
        if row is not None:
            msg = f"{table.path}: {table.place(row, target)}: {column.iloc[row]!r} is not a number; correct it."
        elif column.isna().all():
            msg = f"{table.path}: {kind} {target!r} has no value; leave it out."
        else:
            shown = f"{column.dropna().iloc[0]!r:.40}"
            msg = f"{table.path}: {kind} {target!r} is text, such as {shown}; {remedy}."
        raise ValueError(msg)
    numbers = column.to_numpy(dtype=float)
    infinite = np.isinf(numbers)
    if infinite.any():
        msg = f"{place_of_first(table, target, infinite)} is infinite; correct it, or empty the cell."
        raise ValueError(msg)
    known = numbers[rows & ~np.isnan(numbers)]
    if not constant and not len(known):
        msg = f"{table.path}: the target {target!r} has no value; leave it out."
        raise ValueError(msg)
    if not constant and (known == known[0]).all():
        msg = f"{table.path}: every value of the target {target!r} is {known[0]:g}; there is nothing to predict."
        raise ValueError(msg)
    return numbers[rows]


def factors_of(table: TableFile, column: str, rows: Any, *, what: str, positive: bool) -> Any:
    """Return the exposures, weights or standard deviations [N] of the given rows.

    Raise a ValueError if a value is missing or negative. Zero is also an error if `positive` is true.
    """
    numbers = _numbers(table, column, rows, constant=True, remedy=f"{what} must be numbers", kind="column")
    empty = rows & table.frame[column].isna().to_numpy()
    if empty.any():
        msg = f"{place_of_first(table, column, empty)} is empty; {what} must be known in every row."
        raise ValueError(msg)
    small = np.zeros(len(rows), dtype=bool)
    small[rows] = (numbers <= 0.0) if positive else (numbers < 0.0)
    if small.any():
        found = f"{table.frame[column].to_numpy()[small][0]:g}"
        least = "positive" if positive else "zero or more"
        msg = f"{place_of_first(table, column, small)} is {found}; {what} must be {least}."
        raise ValueError(msg)
    return numbers


def errors_of(table: TableFile, columns: list[str], rows: Any) -> Any:
    """Return the standard deviations [N], or [N, K] for K columns, of the measurement errors in the given rows.

    They are 0 for columns that the table lacks. Raise a ValueError if a value is missing or negative.
    """
    found = [
        factors_of(table, name, rows, what="standard deviations", positive=False)
        if name in table.frame.columns
        else np.zeros(int(rows.sum()))
        for name in columns
    ]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def _truths(column: Any, dtype: type) -> Any:
    """Convert a column of Python objects to `dtype` if all of its cells are Booleans or missing."""
    return column.astype(dtype) if column.dtype.kind == "O" and infer_column_kind(column) == "boolean" else column


def check_label_order(table: TableFile, target: str, labels: Any) -> None:
    """Raise a ValueError unless the labels are numbers, since text has no order."""
    if labels.dtype.kind not in "iub":
        msg = (
            f"{table.path}: labels such as {str(labels[0])!r} in {target!r} have no order, but --likelihood ordinal "
            "requires one; replace them with whole numbers."
        )
        raise ValueError(msg)


def labels_of(
    table: TableFile, target: str, rows: Any, *, least: int = 2, remedy: str = "use --task regression"
) -> Any:
    """Return the labels [N] of the given rows: strings, Booleans or whole numbers.

    Raise a ValueError for other numbers, or unless there are from `least` to `MAX_CLASSES` different labels.
    """
    column = _truths(table.frame[target][rows], bool)
    if column.dtype.kind == "f":
        numbers = column.to_numpy(dtype=float)
        if (broken := np.isinf(numbers) | (numbers != np.floor(numbers))).any():
            found = f"{target!r} has {numbers[broken][0]:g}"
            msg = f"{table.path}: labels must be text or whole numbers, but {found}; {remedy}."
            raise ValueError(msg)
        labels = numbers.astype(np.int64)
    elif column.dtype.kind in "iub":
        labels = column.to_numpy()
    else:
        labels = np.asarray([text_of(label) for label in column])
    count = len(np.unique(labels))
    if count < least:
        msg = f"{table.path}: every label in {target!r} is {labels[0]!s}; there is nothing to predict."
        raise ValueError(msg)
    if count > MAX_CLASSES:
        found = f"the target {target!r} has {count:,} different labels"
        msg = f"{table.path}: {found}, but at most {MAX_CLASSES} are allowed; merge some of them."
        raise ValueError(msg)
    return labels


def are_texts(classes: Any) -> bool:
    """Return True if the classes [C] of an estimator are text, False if they are whole numbers or Booleans."""
    return classes.dtype.kind not in "iub"


def positions_of(labels: Any, classes: Any) -> Any:
    """Return the position of each label [N] in the classes [C], or -1 for unknown labels.

    Labels are converted to the type of the classes. The labels 1, 1.0, "1" and True match the class 1. The labels 1,
    1.0 and "1" match the class "1".
    """
    convert = text_of if are_texts(classes) else _number
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
