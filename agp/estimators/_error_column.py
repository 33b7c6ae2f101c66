"""Standard deviations of measurement errors in a column of the table (`GPRegressor(error_column=...)`)."""

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


def split_errors(regressor: Any, X: Any, noise: Any = None, *, training: bool) -> tuple[Any, Any, str]:
    """Return the rows without the column `error_column`, the variances of the noise, and their name in messages.

    The variances are the squares of the column or, if there is no such column, `noise`.

    Raise ValueError if there are both, if a standard deviation is negative or, in `training`, if the rows lack the
    column. Rows that are predicted may lack it.
    """
    asked = regressor.error_column
    X = X if is_foreign(X) else load_rows("X", X)
    frame = None if is_foreign(X) else as_frame(X)
    if frame is None:
        rest, found = _split_array(regressor, X, asked, training=training)
    elif asked in frame.columns:
        rest, found = frame.drop(asked).to_native(), _variances(frame.get_column(asked).to_numpy(), asked)
    elif training:
        raise ValueError(f"error_column is {asked!r}, but there is no such column; {name_remedy(asked, frame.columns)}")
    else:
        rest, found = X, None
    if found is not None and noise is not None:
        raise ValueError(f"noise is given, but X has the column {asked!r} (error_column); leave one of them out.")
    return (rest, noise, "noise") if found is None else (rest, found, _name(asked))


def _name(column: Any) -> str:
    return f"the column {column!r} of X (error_column)"


def _split_array(regressor: Any, X: Any, asked: Any, *, training: bool) -> tuple[Any, Host | None]:
    """Return the other columns of an array [N, D], and the variances."""
    x = X if is_foreign(X) else np.asarray(X)
    if x.ndim != 2:
        return X, None  # the conversion of inputs raises the error
    count, known = x.shape[1], vars(regressor).get("n_features_in_")
    if not training and count == known:
        return X, None
    if isinstance(asked, bool) or not isinstance(asked, Integral) or not 0 <= int(asked) < count:
        raise ValueError(
            f"error_column is {asked!r}, but X has no names of columns; pass the number of a column, from 0 to "
            f"{count - 1}, or pass X as a data frame."
        )
    if count == 1:
        raise ValueError(f"error_column is {asked!r}, but X has {count_of(count, 'column')}; pass inputs as well.")
    rest = [i for i in range(count) if i != int(asked)]
    column = x[:, int(asked)]
    errors = to_numpy(backend_of(column).gather(column)) if is_foreign(X) else column
    others = backend_of(x).xp.stack([x[:, i] for i in rest], axis=1) if is_foreign(X) else x[:, rest]
    return others, _variances(errors, asked)


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
