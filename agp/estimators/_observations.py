"""What an estimator is trained on: rows, targets, how often each row counts, and what its rate is multiplied with."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length

from agp.backend import Array, backend_of, placed, to_numpy
from agp.estimators._arrays import is_foreign, selected, unmasked
from agp.likelihoods import Exposed, Likelihood, Weighted

__all__ = ["Observations", "log_exposures", "plain", "row_numbers", "targets_for", "wrapped"]


class Observations(NamedTuple):
    """N observations."""

    X: Array
    """Inputs [N, D]."""
    y: Array
    """Targets [N, K]."""
    weights: Array | None = None
    """How often each row counts [N]; None is once."""
    exposure: Array | None = None
    """What the rates are multiplied with [N]; None is 1."""

    def where(self, rows: Array) -> "Observations":
        """Those rows where a Boolean array [N] is true."""
        return Observations(*(None if x is None else selected(x, rows) for x in self))

    def counted(self) -> "Observations":
        """Without rows of weight zero."""
        if self.weights is None or bool(backend_of(self.weights).xp.all(self.weights > 0.0)):
            return self
        return self.where(self.weights > 0.0)


def wrapped(likelihood: Likelihood, data: Observations, *, weighted: bool) -> Likelihood:
    """The likelihood of targets with a column of exposures beside, if there are any, and of weights, if `weighted`."""
    likelihood = likelihood if data.exposure is None else Exposed(likelihood)
    return Weighted(likelihood) if weighted and data.weights is not None else likelihood


def plain(likelihood: Likelihood) -> Likelihood:
    """The likelihood of the targets alone."""
    return plain(likelihood.likelihood) if isinstance(likelihood, Exposed | Weighted) else likelihood


def targets_for(likelihood: Likelihood, data: Observations) -> Array:
    """The targets with the further columns that the likelihood takes: ones where there is nothing else.

    Raises
    ------
    ValueError
        If it takes no exposures or weights, which there are.
    """
    columns = [data.y]
    for name, kind, numbers in (("exposure", Exposed, data.exposure), ("sample_weight", Weighted, data.weights)):
        if _has(likelihood, kind):
            ones = backend_of(data.y).xp.ones_like(data.y[:, 0])
            columns.append((ones if numbers is None else numbers)[:, None])
        elif numbers is not None:
            msg = f"{name} was not given at the beginning of the training; give it from the first rows on."
            raise ValueError(msg)
    return columns[0] if len(columns) == 1 else backend_of(data.y).xp.concat(columns, axis=1)


def _has(likelihood: Likelihood, kind: type) -> bool:
    inside = isinstance(likelihood, Exposed | Weighted) and _has(likelihood.likelihood, kind)
    return isinstance(likelihood, kind) or inside


def row_numbers(name: str, given: Any, X: Array, *, positive: bool = False) -> Array | None:
    """A number for each row [N], not negative, as an array like X; None where there is none.

    Raises
    ------
    ValueError
        If there are more or fewer, or some are negative (or zero, if they must be positive), or all are zero.
    """
    if given is None:
        return None
    if is_foreign(given):
        given = to_numpy(given)
    numbers: Any = check_array(unmasked(given), ensure_2d=False, dtype=np.float64, input_name=name)
    if numbers.ndim != 1:
        msg = f"{name} has shape {numbers.shape}, but must be 1D: a number for each row."
        raise ValueError(msg)
    check_consistent_length(X, numbers)
    if (numbers < 0.0).any() or (positive and (numbers == 0.0).any()):
        row = int(np.argmin(numbers))
        least = "positive" if positive else "zero or more"
        msg = f"{name} is {numbers[row]:g} in row {row}; each must be {least}."
        raise ValueError(msg)
    if not numbers.any():
        msg = f"{name} is zero in every row; at least one must be positive."
        raise ValueError(msg)
    return placed(numbers, X)


def log_exposures(exposure: Any, X: Array) -> Array:
    """The logarithms [N, 1] of the exposures of the rows of X."""
    numbers = row_numbers("exposure", exposure, X, positive=True)
    assert numbers is not None
    return backend_of(numbers).xp.log(numbers)[:, None]
