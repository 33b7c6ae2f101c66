"""Standard deviations of measurement errors in columns of the table (`GPRegressor(error_column=...)`)."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array

from agp.backend import backend_of, to_numpy
from agp.errors import count_of, name_remedy
from agp.estimators._arrays import is_foreign, load_rows
from agp.estimators._validation import explain_refusals
from agp.tables import as_frame

Host = npt.NDArray[np.float64]


NOISE = ("noise",)
"""The name in messages of noise variances that are passed as such."""


def split_errors(regressor: Any, X: Any, noise: Any = None, *, training: bool) -> tuple[Any, Any, Sequence[str]]:
    """Return the rows without the columns `error_column`, the variances of the noise, and their names in messages.

    The variances are the squares of the columns, [N], or [N, K] for K different columns or, if there are no such
    columns, `noise`.

    Raise ValueError if there are both, if a standard deviation is negative or, in `training`, if the rows lack a
    column. Rows that are predicted may lack columns, whose errors are then 0.
    """
    X = X if is_foreign(X) else load_rows("X", X)
    frame = None if is_foreign(X) else as_frame(X)
    asked = _columns_asked(regressor.error_column, () if frame is None else frame.columns)
    if frame is None:
        rest, errors = _split_array(regressor, X, asked, training=training)
    else:
        rest, errors = _split_frame(X, frame, asked, training=training)
    if not errors:
        return rest, noise, NOISE
    if noise is not None:
        raise ValueError(
            f"noise is given, but X has the column {next(iter(errors))!r} (error_column); leave one of them out."
        )
    variances = {name: _variances(column, name) for name, column in errors.items()}
    if len({*asked.values()}) == 1:  # one variance in each row, as exact models of several targets need
        ((name, variance),) = variances.items()
        return rest, variance, [_name(name)]
    zero = np.zeros(len(next(iter(variances.values()))))
    columns = [variances.get(name, zero) for name in asked.values()]
    return rest, np.stack(columns, axis=1), [_name(name) for name in asked.values()]


def check_columns_of_targets(error_column: Any, count: int) -> None:
    """Raise ValueError unless `error_column` names one column for each of the `count` targets."""
    targets = f"y has {count_of(count, 'column')}"
    if not isinstance(error_column, (list, tuple)):
        if count > 1:
            example = f"[{', '.join([repr(error_column)] * count)}]"
            raise ValueError(
                f"error_column is {error_column!r}, but {targets}, which may have different units; pass a list with "
                f"the column of each, such as {example}."
            )
    elif len(error_column) != count:
        named = count_of(len(error_column), "column")
        raise ValueError(f"error_column names {named}, but {targets}; name one for each of them, in order.")


def _columns_asked(error_column: Any, there: Sequence[Any]) -> dict[str, Any]:
    """Return the columns that `error_column` names, by what messages call the name."""
    if isinstance(error_column, list) or (isinstance(error_column, tuple) and error_column not in there):
        if not error_column:
            raise ValueError(
                f"error_column is {error_column!r}, but must be the name of a column, or a list of them with one for "
                "each target."
            )
        return {f"error_column[{k}]": name for k, name in enumerate(error_column)}
    return {"error_column": error_column}


def _name(column: Any) -> str:
    return f"the column {column!r} of X (error_column)"


def _split_frame(X: Any, frame: Any, asked: dict[str, Any], *, training: bool) -> tuple[Any, dict[Any, Any]]:
    """Return the other columns of a data frame, and the standard deviations by column."""
    for what, name in asked.items():
        if training and name not in frame.columns:
            remedy = name_remedy(name, frame.columns)
            raise ValueError(f"{what} is {name!r}, but there is no such column; {remedy}")
    there = {name: frame.get_column(name).to_numpy() for name in asked.values() if name in frame.columns}
    return (frame.drop(*there).to_native() if there else X), there


def _split_array(regressor: Any, X: Any, asked: dict[str, Any], *, training: bool) -> tuple[Any, dict[Any, Any]]:
    """Return the other columns of an array [N, D], and the standard deviations by column."""
    x = X if is_foreign(X) else np.asarray(X)
    if x.ndim != 2:
        return X, {}  # the conversion of inputs raises the error
    count, known = x.shape[1], vars(regressor).get("n_features_in_")
    if not training and count == known:
        return X, {}
    for what, number in asked.items():
        if isinstance(number, bool) or not isinstance(number, Integral) or not 0 <= int(number) < count:
            raise ValueError(
                f"{what} is {number!r}, but X has no names of columns; pass the number of a column, from 0 to "
                f"{count - 1}, or pass X as a data frame."
            )
    numbers = dict.fromkeys(int(number) for number in asked.values())
    rest = [i for i in range(count) if i not in numbers]
    if not rest:
        columns = count_of(count, "column")
        raise ValueError(f"error_column is {regressor.error_column!r}, but X has {columns}; pass inputs as well.")
    if not is_foreign(X):
        return x[:, rest], {i: x[:, i] for i in numbers}
    B = backend_of(x)
    return B.xp.stack([x[:, i] for i in rest], axis=1), {i: to_numpy(B.gather(x[:, i])) for i in numbers}


def _variances(errors: Any, name: Any) -> Host:
    """Return the squares [N] of standard deviations, which may be NaN. Raise ValueError if one is negative."""
    with explain_refusals(_name(name)):
        found: Any = check_array(errors, ensure_2d=False, dtype="float64", ensure_all_finite=False)
    if (found < 0.0).any():
        row = int(np.argmax(found < 0.0))
        raise ValueError(
            f"{_name(name)} is {found[row]:g} in row {row}; standard deviations must be zero or more, in the unit of "
            "the targets, so do not scale this column."
        )
    return found**2
