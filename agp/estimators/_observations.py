"""The training data of an estimator: rows, targets, and what is known of the rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_array

from agp.backend import Array, backend_of
from agp.estimators._arrays import asarray_in_range, load_rows, on_host, take_rows
from agp.estimators._validation import check_each_row, check_lengths, explain_refusals

MIN_REPEATS = 1.5
"""Repeated rows without weights are merged if each distinct row occurs at least this often on average."""
MAX_COMPARED = 4000
"""The maximum number of rows without weights that are compared with each other."""


class Observations(NamedTuple):
    """N rows with their targets, weights, exposures and noise variances."""

    X: Array
    """Inputs [N, D]."""
    y: Array
    """Targets [N, K]."""
    weights: Array | None = None
    """The number of times [N] that each row counts; None means once."""
    exposure: Array | None = None
    """The factors that multiply the rates [N]; None means 1."""
    noise: Array | None = None
    """Known noise variances [N, 1 or K]; None means 0."""

    @property
    def known(self) -> dict[str, Any]:
        """The weights, the offsets and the noise of the rows, as arguments of `agp.fit`."""
        offset = None if self.exposure is None else backend_of(self.exposure).xp.log(self.exposure)
        return {"weights": self.weights, "offset": offset, "noise": self.noise}

    def rates(self) -> Array:
        """Return the targets [N, K], divided by the exposures; rates beyond the range of the dtype are infinite."""
        with np.errstate(over="ignore"):
            return self.y if self.exposure is None else self.y / self.exposure[:, None]

    def where(self, rows: Array) -> "Observations":
        """Return the rows where a Boolean array [N] is true."""
        return Observations(*(None if x is None else take_rows(x, rows) for x in self))

    def drop_zero_weights(self) -> "Observations":
        """Return the rows with positive weight."""
        if self.weights is None or bool(backend_of(self.weights).xp.all(self.weights > 0.0)):
            return self
        return self.where(self.weights > 0.0)

    def distinct(self, *, spread_learned: bool) -> "Observations":
        """Merge repeated rows into one row with a weight, for methods that support weights.

        Copies of a row carry no information about the noise, so weights are scaled to mean 1 if the likelihood has a
        trained noise parameter (`spread_learned`). They are not scaled if at least half of the total weight is that of
        replicated rows, which are rows whose inputs also occur with another target.
        """
        B = backend_of(self.X)
        compared = B.name == "numpy" and (self.weights is not None or self.X.shape[0] <= MAX_COMPARED)
        data, replicated = self._distinct() if compared else (self, 0.0)
        if data.weights is None or not spread_learned or replicated >= 0.5:
            return data
        return data._replace(weights=data.weights / B.xp.mean(data.weights))

    def _distinct(self) -> tuple["Observations", float]:
        """Return the distinct rows, and the fraction of the total weight in replicated rows."""
        columns = [self.X, self.y, *([] if self.exposure is None else [self.exposure[:, None]])]
        columns += [] if self.noise is None else [self.noise]
        _, first, inverse = np.unique(np.concatenate(columns, axis=1), axis=0, return_index=True, return_inverse=True)
        if self.weights is None and len(first) * MIN_REPEATS > len(self.X):
            return self, 0.0
        weights = np.bincount(inverse.reshape(-1), self.weights)
        X = self.X[first, :]
        _, at, count = np.unique(X, axis=0, return_inverse=True, return_counts=True)
        replicated = float(np.sum(weights * (count > 1)[at.reshape(-1)]) / np.sum(weights))
        exposure, noise = (None if x is None else x[first, ...] for x in (self.exposure, self.noise))
        return Observations(X, self.y[first, :], weights.astype(X.dtype), exposure, noise), replicated


def row_numbers(name: str, given: Any, X: Array, *, positive: bool = False) -> Array | None:
    """Convert weights or exposures [N] to the library, device and dtype of X; return None if none are given.

    Raise ValueError if the array has a wrong shape, a number is negative, or all numbers are 0. If `positive` is true,
    a single 0 is also an error.
    """
    if given is None:
        return None
    numbers = _host_numbers(name, given, X)
    if numbers.ndim != 1:
        raise ValueError(f"{name} has shape {numbers.shape}, but must be 1D, with one number for each row.")
    if (numbers < 0.0).any() or (positive and (numbers == 0.0).any()):
        row = int(np.argmin(numbers))
        least = "positive" if positive else "zero or more"
        raise ValueError(f"{name} is {numbers[row]:g} in row {row}; every entry must be {least}.")
    if not numbers.any():
        raise ValueError(f"{name} is zero in every row; at least one entry must be positive.")
    return asarray_in_range(name, numbers, X, positive=positive)


def score_weights(given: Any, X: Any) -> Any:
    """Return the weights [N] of a score of the rows X as a NumPy array, or None. Raise an error if they do not fit."""
    if given is None:
        return None
    numbers = _host_numbers("sample_weight", given, X)
    if numbers.ndim != 1:
        raise ValueError(f"sample_weight has shape {numbers.shape}, but must be 1D, with one number for each row.")
    return numbers


def noise_variances(
    given: Any, X: Array, targets: int, *, unused: Any = None, names: Sequence[str] = ("noise",)
) -> Array | None:
    """Convert noise variances [N] or [N, K] to columns with the library and dtype of X; return None if none are given.

    Those of `unused` targets [N, K] may be NaN. Messages use `names`: one for all variances, or one for each of K
    columns. Raise ValueError if the array has a wrong shape, or another number is negative or not finite.
    """
    if given is None:
        return None
    if len(names) == 1:
        numbers = _host_numbers(names[0], given, X, unused=unused)
    else:
        unused_of = [None if unused is None else unused[:, [k]] for k in range(len(names))]
        columns = [_host_numbers(name, given[:, k], X, unused=unused_of[k]) for k, name in enumerate(names)]
        numbers = np.stack(columns, axis=1)
    if numbers.ndim > 2 or (numbers.ndim == 2 and numbers.shape[1] not in (1, targets)):
        shapes = "[N]" if targets == 1 else f"[N] or [N, {targets}]"
        raise ValueError(
            f"noise has shape {numbers.shape}, but must have shape {shapes}, with one variance for each row."
        )
    if (numbers < 0.0).any():
        msg = f"noise is {numbers.min():g} in row {int(np.argmin(numbers) // (numbers.size // len(numbers)))}; every "
        raise ValueError(msg + "noise variance must be zero or more.")
    columns = numbers[:, None] if numbers.ndim == 1 else numbers
    return asarray_in_range("noise", columns, X, positive=False)


def _host_numbers(name: str, given: Any, X: Array, *, unused: Any = None) -> Any:
    """Convert numbers that are known of the rows of X to a NumPy array, without missing numbers.

    Numbers of `unused` targets [N, K] that are NaN become 0.
    """
    given = load_rows(name, given)
    check_each_row(name, given)
    with explain_refusals(name):
        numbers: Any = check_array(
            on_host(given), ensure_2d=False, dtype="float64", ensure_all_finite=False, input_name=name
        )
    check_lengths(name, numbers, X)
    if unused is not None and unused.any():
        skipped = unused if numbers.shape == unused.shape else unused.all(axis=1).reshape(-1, *[1] * (numbers.ndim - 1))
        numbers = np.where(np.isnan(numbers) & skipped, 0.0, numbers)
    if not (finite := np.isfinite(numbers)).all():
        row = int(np.argmin(finite.reshape(len(numbers), -1).all(axis=1)))
        found = "NaN" if np.isnan(numbers[row]).any() else "infinity"
        raise ValueError(f"{name} contains {found} in row {row}; correct these entries, or remove their rows.")
    return numbers
