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


def split_errors(regressor: Any, X: Any, *, training: bool) -> tuple[Any, Host | None]:
    """Return the rows without the column `error_column`, and the variances [N], or None if there is no such column.

    Raise ValueError if a standard deviation is negative or, in `training`, if the rows lack the column. Rows that are
    predicted may lack it.
    """
    asked = vars(regressor).get("error_column")
    if asked is None:
        return X, None
    X = X if is_foreign(X) else load_rows("X", X)
    frame = None if is_foreign(X) else as_frame(X)
    if frame is None:
        return _split_array(regressor, X, asked, training=training)
    if asked not in frame.columns:
        if training:
            raise ValueError(
                f"error_column is {asked!r}, but there is no such column; {name_remedy(asked, frame.columns)}"
            )
        return X, None
    return frame.drop(asked).to_native(), _variances(frame.get_column(asked).to_numpy(), asked)


def noise_of(regressor: Any, errors: Host | None, noise: Any) -> Any:
    """Return the known noise variances: those of the column of errors, or the given ones.

    Raise ValueError if there are both.
    """
    if errors is not None and noise is not None:
        raise ValueError(
            f"noise is given, but X has the column {regressor.error_column!r} (error_column); leave one of them out."
        )
    return noise if errors is None else errors


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
    with explain_refusals(f"the column {name!r} of X (error_column)"):
        found: Any = check_array(errors, ensure_2d=False, dtype="float64", ensure_all_finite=False)
    if (found < 0.0).any():
        row = int(np.argmax(found < 0.0))
        raise ValueError(
            f"the column {name!r} of X (error_column) is {found[row]:g} in row {row}; standard deviations must be zero "
            "or more, in the unit of the targets, so do not scale this column."
        )
    return found**2
