"""Conversion of rows of any type to model inputs.

The functions read the parameters of an estimator. With `reset`, they also set the attributes of its columns.
"""

from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.checks import check_choice, check_inputs
from agp.errors import quote
from agp.estimators._arrays import (
    asarray_in_range,
    clear_subnormals,
    floating,
    is_foreign,
    load_rows,
    refuse_cells,
    refuse_out_of_range,
    refuse_words,
)
from agp.estimators._encoding import Encoder
from agp.estimators._levels_of_kernels import match_levels
from agp.estimators._validation import check_names, check_rows, explain_names, explain_refusals
from agp.inspection import fill_missing_objects
from agp.kernels import Kernel, kernel_or_auto
from agp.tables import FILL_IN, MISSING, as_frame
from agp.tree import to_backend


def convert_inputs(estimator: Any, X: Any, *, reset: bool) -> Array:
    """Convert rows to an array [N, D]: arrays keep their library, and all other rows become NumPy arrays."""
    if is_foreign(X):
        return _convert_foreign(estimator, X, reset=reset)
    return clear_subnormals(_convert_host(estimator, X, reset=reset))


def _convert_host(estimator: Any, X: Any, *, reset: bool) -> Array:
    """Convert rows that are no array of another library to a NumPy array [N, D]."""
    check_choice("missing", estimator.missing, MISSING)
    if not reset and _is_like_training(estimator, X):
        return _convert_array(estimator, X)
    X = load_rows("X", X)
    if reset:
        vars(estimator).pop("columns_", None)
        estimator.left_out_ = []
    learned = not reset and "columns_" in vars(estimator) and estimator.columns_.columns is not None
    try:
        frame = as_frame(X)
    except TypeError:
        if learned:
            check_names([*X.columns], estimator.columns_.sources())
        raise
    if frame is None:
        check_rows(X)
    if frame is not None and (reset or learned):
        return _convert_table(estimator, X, frame, reset=reset)
    kinds: Any = [np.float64, np.float32]
    with explain_refusals("X"):
        X = validate_data(estimator, X, dtype=None, ensure_all_finite=False, reset=reset)
    X = fill_missing_objects(X)
    refuse_words("X", X)
    with explain_refusals("X"):
        X = check_array(X, dtype=kinds, ensure_all_finite=False, estimator=estimator, input_name="X")
    if reset and estimator.missing == "impute":
        estimator.columns_ = Encoder("impute").fit_array(X)
    return _convert_array(estimator, X)


def _is_like_training(estimator: Any, X: Any) -> bool:
    """Whether X is an array of floats with the columns of training, for which scikit-learn has nothing to check."""
    known = vars(estimator)
    if type(X) is not np.ndarray or X.ndim != 2 or not X.shape[0] or "feature_names_in_" in known:
        return False
    return X.dtype in (np.float64, np.float32) and X.shape[1] == known.get("n_features_in_")


def _convert_array(estimator: Any, X: Any) -> Any:
    """Check the cells of an array of floats, and impute missing cells."""
    columns: Encoder | None = vars(estimator).get("columns_")
    refuse_cells("X", X, _remedy(estimator, columns))
    return X if columns is None else columns.transform_array(X)


def _remedy(estimator: Any, columns: Encoder | None) -> str | None:
    """Return advice on missing cells in an array, or None if they are imputed."""
    if estimator.missing == "refuse":
        return FILL_IN
    if columns is None or columns.missing == "refuse":
        return "fill it in, or fit again to a NumPy array or a table with missing='impute'"
    return None


def _convert_table(estimator: Any, X: Any, frame: Any, *, reset: bool) -> Array:
    if 0 in frame.shape:
        raise ValueError(f"X has shape {frame.shape}, but must not be empty; pass at least one row and column.")
    if reset or not _lacks_only_left_out(estimator, frame):
        expected = [*vars(estimator).get("feature_names_in_", ())]
        with explain_names(frame.columns, expected) if expected and not reset else explain_refusals("X"):
            validate_data(estimator, X, skip_check_array=True, reset=reset)
    if not reset:
        check_names(frame.columns, estimator.columns_.sources())
    if not reset:
        return estimator.columns_.transform(frame)
    encoder = Encoder(estimator.missing, _kept_columns(estimator, frame), one_hot=not estimator._takes_codes)
    inputs = encoder.fit_transform(frame)
    kernel = kernel_or_auto(estimator.kernel) if estimator._takes_codes else None
    if isinstance(kernel, Kernel):
        match_levels(kernel, encoder, frame, inputs)
    estimator.columns_, estimator.left_out_ = encoder, encoder.left_out
    return inputs


def _lacks_only_left_out(estimator: Any, frame: Any) -> bool:
    """Whether a data frame has the columns of the training table, except for some that were left out."""
    if "feature_names_in_" not in vars(estimator):
        return False
    given = {*frame.columns}
    expected = [name for name in estimator.feature_names_in_ if name in given or name not in estimator.left_out_]
    return frame.columns == expected


def _kept_columns(estimator: Any, frame: Any) -> tuple[Any, ...]:
    """Return the names in `keep`. Raise TypeError unless it is a name or a sequence of names."""
    keep: Any = estimator.keep
    if keep is None or isinstance(keep, str):
        return () if keep is None else (keep,)
    with suppress(TypeError):  # lists are not hashable
        if keep in {*frame.columns}:  # a tuple may be the name of a column
            return (keep,)
    try:
        return tuple(keep)
    except TypeError as error:
        example = quote(frame.columns[0])
        raise TypeError(f"keep is {quote(keep)}, but must be a list of column names, such as [{example}].") from error


def _convert_foreign(estimator: Any, X: Array, *, reset: bool) -> Array:
    X = floating(X)
    B = backend_of(X)
    if estimator.missing == "impute" and bool(B.xp.any(B.xp.isnan(X))):
        raise ValueError(f"X is a {B.name} array with missing cells; to impute them, pass a NumPy array or a table.")
    check_inputs("X", X)
    if reset:
        estimator.n_features_in_, estimator.left_out_ = X.shape[1], []
        for name in ("feature_names_in_", "columns_"):
            vars(estimator).pop(name, None)
    elif X.shape[1] != estimator.n_features_in_:
        name = type(estimator).__name__
        raise ValueError(
            f"X has {X.shape[1]} features, but {name} is expecting {estimator.n_features_in_} features as input; "
            "pass the columns that fit was given."
        )
    elif "columns_" in vars(estimator):
        return asarray_like(estimator.columns_.transform_array(to_numpy(X)), X)
    return X


def convert_training_inputs(estimator: Any, X: Any, *, reset: bool) -> Array:
    """Convert training rows to model inputs. Raise ValueError for cells about which the first rows say nothing."""
    A = convert_inputs(estimator, X, reset=reset)
    if not reset and isinstance(A, np.ndarray) and (unknown := _unknown_cells(estimator, A)).any():
        row, column = np.argwhere(unknown)[0].tolist()
        name = estimator.columns_.sources()[column]
        raise ValueError(
            f"column {name!r} has a cell in row {row} that is missing or has a value unseen in the first rows; "
            "pass all values, and a missing cell, in the first call of partial_fit."
        )
    return move_inputs(estimator, A)


def _unknown_cells(estimator: Any, A: Any) -> Any:
    """Return which inputs [N, D] are NaN, or the code of an unseen level."""
    categories = [*estimator._categories]
    unknown = np.isnan(A)
    unknown[:, categories] |= A[:, categories] < 0.0
    return unknown


def move_inputs(estimator: Any, X: Any, beside: Array | None = None) -> Array:
    """Convert inputs as `move_array` does, or to be like the array `beside`. Raise ValueError on overflow."""
    columns: Encoder | None = vars(estimator).get("columns_")
    names = None if columns is None or columns.columns is None else columns.sources()
    if beside is None:
        return move_array(estimator, X, names=names)
    return asarray_in_range("X", X, beside, names=names)


def move_array(estimator: Any, x: Any, name: str = "X", *, names: list[str] | None = None) -> Array:
    """Convert an array to the library, device and precision of the parameters. Raise ValueError on overflow.

    Messages use the name of the array, or those of its columns.
    """
    if estimator.backend is None and estimator.device is None and estimator.dtype is None:
        return x
    B = backend_of(x)
    if B.is_lazy:  # the model decides which library evaluates the rows
        if estimator.dtype is None:
            return x
        return B.xp.astype(x, to_backend(np.zeros(1), "numpy", dtype=estimator.dtype).dtype)  # also checks the name
    library = estimator.backend or B.name
    with np.errstate(over="ignore"):
        moved = to_backend(x, library, device=estimator.device, dtype=estimator.dtype)
    there = backend_of(moved)
    if there.dtype_name(moved) != B.dtype_name(x) and not bool(there.xp.all(there.xp.isfinite(moved))):
        refuse_out_of_range(name, to_numpy(x), moved, names=names)
    return moved
