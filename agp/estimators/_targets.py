"""Conversion and validation of regression targets."""

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import r2_score
from sklearn.utils import check_array, get_tags

from agp.backend import Array, backend_of, to_numpy
from agp.chunking import column_spreads
from agp.errors import count_of
from agp.estimators._arrays import (
    asarray_in_range,
    floating,
    is_foreign,
    load_rows,
    on_host,
    refuse_cells,
    refuse_words,
)
from agp.estimators._inputs import move_array
from agp.estimators._observations import Observations, score_weights
from agp.estimators._validation import check_each_row, check_lengths, explain_refusals
from agp.inspection import fill_missing_objects
from agp.repairs import outside
from agp.tables import numbers_in_targets

LEAVE_OUT_HINT = "remove rows with missing targets, or set missing_targets='ignore'"
NO_TARGET = "y has no target: every entry is NaN."
MAX_SIZE_RATIO = 10.0
"""The maximum ratio between the targets' standard deviations, for methods with one noise variance for all targets."""


def read_targets(y: Any, estimator: Any) -> Any:
    """Convert targets of any type to a NumPy array [N] or [N, K], which may contain NaN."""
    y = load_rows("y", y)
    if y is not None:  # scikit-learn has its own message
        check_each_row("y", y)
    y = numbers_in_targets(y)
    settings: Any = {"ensure_2d": False, "ensure_all_finite": False, "input_name": "y", "estimator": estimator}
    any_type: Any = None
    with explain_refusals("y"):
        y = check_array(y, dtype=any_type, **settings)
    y = fill_missing_objects(y)
    refuse_words("y", y)
    with explain_refusals("y"):
        y = check_array(y, dtype="float64", **settings)
    refuse_cells("y", y, None)
    return y


def convert_targets(y: Any, A: Array, estimator: Any) -> Array:
    """Convert targets [N] or [N, K] to the library, device and dtype of the model inputs A."""
    if not is_foreign(y) or (backend_of(y).is_lazy and not backend_of(A).is_lazy):
        numbers = read_targets(on_host(y), estimator)
        check_lengths("y", numbers, A)
        return asarray_in_range("y", numbers, A)
    targets = move_array(estimator, floating(y), "y")
    B = backend_of(targets)
    if B is backend_of(A) and B.xp.isdtype(targets.dtype, "real floating"):
        targets = B.xp.astype(targets, A.dtype)
    return targets


def score_targets(known: Any, found: Any, weight: Any, *, missing: bool) -> float:
    """Compute the R^2 of targets [N, K], averaged over the columns.

    If targets may be missing, columns with fewer than two observations do not count.
    """
    check_lengths("y", known, found)
    if known.shape[1] != found.shape[1]:
        columns = count_of(found.shape[1], "column")
        raise ValueError(f"y has shape {known.shape}, but must have {columns}, as in training.")
    weight = score_weights(weight, found)
    if not missing:
        with explain_refusals("y"):
            return float(r2_score(known, found, sample_weight=weight))
    seen = ~np.isnan(known)
    if not seen.any():
        raise ValueError(NO_TARGET)
    enough = min(2, seen.sum(axis=0).max())  # with one observation, scikit-learn would return NaN and warn
    weight = np.ones(len(known)) if weight is None else np.asarray(weight)
    parts = [
        r2_score(targets[rows], means[rows], sample_weight=weight[rows])
        for targets, means, rows in zip(known.T, found.T, seen.T, strict=True)
        if rows.sum() >= enough
    ]
    return float(np.mean(parts))


def are_unlike(y: Array) -> bool:
    """Whether the columns of y [N, K] have standard deviations that differ by a factor above `MAX_SIZE_RATIO`."""
    y = to_numpy(y)
    y = y / (np.nanmax(np.abs(y)) or 1.0)  # squares of large targets would overflow
    observed = [column[~np.isnan(column), None] for column in y.T]
    spreads = [float(column_spreads(column)[0]) for column in observed if len(column)]
    return len(spreads) > 1 and max(spreads) > MAX_SIZE_RATIO * min(spreads)


def warn_if_unlike(y: Array, method: str, others: str) -> None:
    """Warn if the targets [N, K] have different sizes, for a method with one variance for all."""
    if are_unlike(y):
        text = (
            f"the targets differ in size by a factor of more than {MAX_SIZE_RATIO:g}, but the method {method} has one "
            f"variance for all; rescale them to similar sizes, or use auto, or one of {others}."
        )
        warnings.warn(text, UserWarning, stacklevel=outside())


def warn_of_column(regressor: Any, y: Array) -> None:
    """Warn, as other regressors do, if the targets are one column [N, 1] and the regressor takes only one target."""
    if tuple(y.shape[1:]) == (1,) and not get_tags(regressor).target_tags.multi_output:
        text = (
            "A column-vector y was passed when a 1d array was expected; for this model of one target, pass y[:, 0], or "
            "a column of a table instead of a table."
        )
        warnings.warn(text, DataConversionWarning, stacklevel=outside())


def are_missing(y: Array) -> bool:
    """Whether some targets are NaN."""
    xp = backend_of(y).xp
    return bool(xp.any(xp.isnan(y)))


def unused_targets(regressor: Any, y: Array, weights: Array | None) -> Any:
    """Return which targets [N, K] are left out, because they are missing or have no weight; None for lazy rows."""
    if backend_of(y).is_lazy:
        return None
    absent = np.isnan(to_numpy(y)) & (regressor.missing_targets == "ignore")
    return absent if weights is None else absent | (to_numpy(weights) == 0.0)[:, None]


def is_constant(y: Array) -> bool:
    """Whether all observed targets in each column of y [N, K] are equal."""
    xp = backend_of(y).xp
    absent, far = xp.isnan(y), xp.full_like(y, float("inf"))
    return bool(xp.all(xp.min(xp.where(absent, far, y), axis=0) >= xp.max(xp.where(absent, -far, y), axis=0)))


def rows_with_targets(data: Observations, *, ignore: bool, single: bool, whole: str | None) -> Observations:
    """Return the rows with a target. Raise ValueError for missing targets unless they are ignored.

    `single` tells whether the targets were one vector. `whole` is the name of a likelihood that needs all targets of a
    row; None if there is no such likelihood.
    """
    X, y = data.X, data.y
    if y.ndim != 2 or y.shape[0] != X.shape[0] or backend_of(y) is not backend_of(X) or not are_missing(y):
        return data  # the model raises errors for wrong shapes
    xp = backend_of(y).xp
    if not ignore:
        refuse_cells("y", to_numpy(y[:, 0] if single else y), LEAVE_OUT_HINT)
    rows = xp.any(~xp.isnan(y), axis=1)
    if not bool(xp.any(rows)):
        raise ValueError(NO_TARGET)
    data = data.where(rows)
    if whole is not None and are_missing(data.y):
        raise ValueError(
            f"y has rows with some targets missing, but likelihood={whole} needs all targets of a row; use 'gaussian'."
        )
    return data
