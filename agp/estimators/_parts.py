"""Training on rows that arrive in parts: `partial_fit`."""

from collections.abc import Callable
from functools import update_wrapper, wraps
from types import MethodType
from typing import Any

from agp.checks import check_results, check_whole
from agp.estimators._observations import Observations
from agp.methods import METHODS, updates_of
from agp.models import Ensemble, valid_data
from agp.repairs import public
from agp.training import FINAL_RATE_FRACTION, RATE, Batches, initial_state
from agp.tree import leaves

PART_STEPS = 1000
"""The number of steps over which learning rates decay in `partial_fit`. Inducing inputs are fixed in the first 5 %."""


def reason_against_parts(estimator: Any) -> str | None:
    """Return why an estimator cannot take further rows, and what to do, in one sentence; None if it can."""
    known = vars(estimator)
    if known.get("noise_by") is not None:
        return f"noise_by is {known['noise_by']!r}, which needs all rows at once; call fit instead."
    if known.get("class_weight") == "balanced":
        return "class_weight is 'balanced', which needs all rows at once; for partial_fit, give a dictionary."
    if estimator.num_inducing == "auto":
        return "num_inducing is 'auto', which needs all rows at once; for partial_fit, give a number or leave it out."
    if isinstance(known.get("model_"), Ensemble):
        return "the model averages posteriors, which further rows cannot update; start again, with method='wsvgp'."
    method = estimator.method_ if "model_" in known else estimator.method
    if method in METHODS and not METHODS[method].takes_parts:
        return f"the method {method} needs all rows at once; call fit, or use another method such as wsvgp."
    return None


class OfParts:
    """A method of estimators that exists unless there is a reason against taking rows in parts.

    It is scikit-learn's `available_if`, except that the AttributeError says what to do.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        update_wrapper(self, method)  # type: ignore[arg-type]

    def __get__(self, estimator: Any, owner: type | None = None) -> Any:
        if estimator is None:
            return self._unbound()
        _check_takes_parts(estimator)
        return MethodType(self.method, estimator)

    def _unbound(self) -> Callable[..., Any]:
        """Return the method as a function of the estimator, whose signature tools read from the class."""

        @wraps(self.method)
        def checked(estimator: Any, *args: Any, **kwargs: Any) -> Any:
            _check_takes_parts(estimator)
            return self.method(estimator, *args, **kwargs)

        return checked


def _check_takes_parts(estimator: Any) -> None:
    """Raise AttributeError if there is a reason against taking rows in parts."""
    if (reason := reason_against_parts(estimator)) is not None:
        raise AttributeError(reason, name="partial_fit", obj=None)


@public(context=False)
def fit_part(estimator: Any, data: Observations) -> None:
    """Take one training step of an estimator on more rows."""
    X, y = valid_data(data.X, data.y, missing=estimator.model_.likelihood.missing)
    batch = estimator.model_._batch(X, y, **data.known)
    estimator.model_._check(batch)
    rows = X.shape[0]
    seen = estimator.n_rows_seen_ + rows
    total = seen if estimator.total_rows is None else check_whole("total_rows", estimator.total_rows)
    if total < rows:
        raise ValueError(
            f"total_rows is {total}, but {rows} rows were passed at once; give the total number, or leave it out."
        )
    if "_updates" not in vars(estimator):
        # after `fit`, use the final rate, because the initial rate would undo part of the training
        rate, fall = (FINAL_RATE_FRACTION * RATE, 1.0) if estimator.n_iter_ else (RATE, FINAL_RATE_FRACTION)
        estimator.model_ = initial_state(estimator.model_)
        estimator._updates = updates_of(estimator.method_, estimator.model_, PART_STEPS, rate=rate, fall=fall)
        estimator._states = [update.init(estimator.model_) for update in estimator._updates]
    batch = Batches(X, batch.y, rows, estimator._seed, estimator.model_._draws, known=batch.known)[estimator.n_iter_]
    batch = batch._replace(scale=total / rows)
    model, states, logged = estimator.model_, [], {}
    for update, state in zip(estimator._updates, estimator._states, strict=True):
        model, state, info = update(model, batch, state)
        states.append(state)
        logged |= info
    check_results("after a step with these rows,", logged | leaves(model), "the estimator is left unchanged")
    estimator.model_, estimator._states = model, states
    estimator.n_rows_seen_, estimator.n_iter_ = seen, estimator.n_iter_ + 1
    numbers = {name: float(value) for name, value in logged.items()}
    estimator.history_ = {name: [*estimator.history_.get(name, []), number] for name, number in numbers.items()}
    estimator.bound_, estimator.converged_, estimator.learned_ = numbers["bound"], False, True
