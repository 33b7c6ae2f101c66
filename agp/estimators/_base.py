"""What regressor and classifier share: inputs of every kind, a method by its name, training until it is done."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from agp._context import public
from agp.backend import Array, backend_of, placed, to_numpy
from agp.checks import check_inputs, check_results, check_whole
from agp.estimators._arrays import floating, is_foreign, refuse_cells, refuse_words, seed_of, unmasked
from agp.estimators._columns import Columns, as_frame, check_missing, indicated, indicator_sources, new_imputer
from agp.estimators._html import learned_html
from agp.estimators._learned import Learned
from agp.estimators._observations import Observations, plain, targets_for, wrapped
from agp.inspection import column_names
from agp.likelihoods import Likelihood
from agp.markup import guarded
from agp.methods import (
    ACTION_METHODS,
    DEEP_METHODS,
    DENSE_METHODS,
    GAUSSIAN_METHODS,
    GROUP_METHODS,
    GROWING_METHODS,
    METHODS,
    OWN_UPDATES,
    PART_METHODS,
    build,
    kernel_or_auto,
    updates_of,
)
from agp.models import Model, valid_data
from agp.predictors import Predictor
from agp.selection import select_kernel
from agp.training import FALL, RATE, Batches, Round, begun, fit, fit_growing
from agp.tree import leaves, replaced, to_backend

__all__ = [
    "GPEstimator",
    "all_or_nothing",
    "takes_parts",
    "usual_inducing",
]

F = TypeVar("F", bound=Callable[..., Any])

_PREDICTORS: WeakKeyDictionary[Any, Predictor] = WeakKeyDictionary()
"""Of the models of estimators that have predicted; no part of these, whose state predictions do not change."""
PART_STEPS = 1000
"""The length of the training that rates of `partial_fit` are made for: inducing inputs wait for a twentieth of it."""

SQUARE_ROOTS, LEAST, MOST = 2.0, 128, 1000
"""The default number of inducing inputs: so many square roots of N, within limits."""
SHARE, FEWEST = 3, 32
"""Of few rows it is a third, and no fewer than so many."""


START = 64
"""Where growth begins."""


def _check_grows(method: str, asked: str, *, parts: bool) -> None:
    """ValueError unless the number of inducing inputs can be found in training; methods without any do not mind."""
    if parts:
        msg = "num_inducing is 'auto', which takes all rows at once; for partial_fit give a number, or leave it out."
        raise ValueError(msg)
    if method not in (*GROWING_METHODS, *DENSE_METHODS, "cggp"):
        known = ", ".join(GROWING_METHODS)
        name = f"{method}{', which auto stands for,' if asked == 'auto' else ''}"
        msg = f"num_inducing is 'auto', but the method {name} does not grow; give a number, or use one of {known}."
        raise ValueError(msg)


def usual_inducing(rows: int) -> int:
    """The default number of inducing inputs for so many rows."""
    usual = max(LEAST, min(MOST, int(SQUARE_ROOTS * rows**0.5)))
    return min(rows, max(FEWEST, min(usual, rows // SHARE)))


def takes_parts(estimator: Any) -> bool:
    """Whether an estimator has `partial_fit`."""
    return estimator.method == "auto" or estimator.method in PART_METHODS


def all_or_nothing(train: F) -> F:
    """A method that trains. Where it raises, or is interrupted, the estimator stays what it was before.

    What an interrupted training had reached is the `result` of `agp.errors.Interrupted`.
    """

    @wraps(train)
    def trained(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            return train(self, *args, **kwargs)
        except BaseException:
            self.__dict__ = before
            raise

    return trained  # type: ignore[return-value]


@dataclass(kw_only=True, eq=False, repr=False)
class GPEstimator(Learned, ABC, BaseEstimator):
    """The parameters and the training of `GPRegressor` and `GPClassifier`.

    Each field is a parameter, once: scikit-learn reads the signature that is made of them.
    """

    method: str = "auto"
    kernel: Any = "auto"
    num_inducing: int | str | None = None
    layers: int | None = None
    missing: str = "refuse"
    backend: str | None = None
    device: str | None = None
    dtype: str | None = None
    tolerance: float = 1e-3
    max_steps: int | None = None
    max_seconds: float | None = None
    batch_size: int | None = None
    total_rows: int | None = None
    random_state: Any = None
    verbose: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.array_api_support = True
        return tags

    # -- what was learned -------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """What the estimator is, its labels, and how its training ended, in words: for people."""
        check_is_fitted(self, "model_")
        here = vars(self)
        kind = f"{type(self).__name__}, method {self.method_}, missing cells: {self.missing}"
        likelihood = here["likelihood"]
        name = likelihood if isinstance(likelihood, str) else type(likelihood).__name__
        transform = f", transform: {here['target_transform']}" if here.get("target_transform") else ""
        found = {"estimator": f"{kind}, likelihood: {name}{transform}"}
        if "order_" in here:
            found["labels"] = " < ".join(str(here["classes_"][k]) for k in here["order_"])
        elif "classes_" in here:
            found["labels"] = ", ".join(map(str, here["classes_"]))
        if "bound_" in here:
            ending = "converged" if self.converged_ else "not converged"
            found["training"] = f"{ending} after {self.n_iter_:,} steps, bound {self.bound_:.6g}"
        return found

    def _repr_html_inner(self) -> str:
        return super()._repr_html_inner() + self._learned_html()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)
        added = {"text/html": bundle["text/html"] + self._learned_html()} if "text/html" in bundle else {}
        return bundle | added

    def _learned_html(self) -> str:
        """What stands below scikit-learn's diagram: nothing before training."""
        return guarded(lambda: learned_html(self), self) if self._is_started else ""

    # -- inputs -----------------------------------------------------------------------------------------------------

    def _inputs(self, X: Any, *, reset: bool) -> Array:
        """Rows of any kind as an array [N, D]: of NumPy, unless they are of another library."""
        if is_foreign(X):
            return self._foreign_inputs(X, reset=reset)
        X = unmasked(X)
        check_missing(self.missing)
        if reset:
            vars(self).pop("columns_", None)
        frame = as_frame(X)
        if frame is not None and (reset or isinstance(vars(self).get("columns_"), Columns)):
            return self._table_inputs(X, frame, reset=reset)
        X = validate_data(self, X, dtype=None, ensure_all_finite=False, reset=reset)
        refuse_words("X", X)
        kinds: Any = [np.float64, np.float32]
        X = check_array(X, dtype=kinds, ensure_all_finite=False, estimator=self, input_name="X")
        if reset and self.missing == "impute":
            self.columns_ = new_imputer().fit(X)
        columns: Any = vars(self).get("columns_")
        refuse_cells("X", X, self._remedy(columns))
        if columns is None:
            return X
        return columns.transform_array(X) if isinstance(columns, Columns) else columns.transform(X)

    def _remedy(self, columns: Any) -> str | None:
        """What to do about missing cells of an array; None if what was learned of the columns fills them in."""
        if self.missing == "refuse":
            return "fill it in, or ask for missing='impute'"
        if columns is None or (isinstance(columns, Columns) and columns.missing == "refuse"):
            return "fill it in, or fit again: training did not learn what to impute"
        return None

    def _table_inputs(self, X: Any, frame: Any, *, reset: bool) -> Array:
        if 0 in frame.shape:
            msg = f"X has shape {frame.shape}: it is empty."
            raise ValueError(msg)
        validate_data(self, X, skip_check_array=True, reset=reset)
        if reset:
            self.columns_ = Columns(self.missing).fit(frame)  # type: ignore[arg-type]
        return self.columns_.transform(frame)

    def _foreign_inputs(self, X: Array, *, reset: bool) -> Array:
        X = floating(X)
        B = backend_of(X)
        if self.missing == "impute" and bool(B.xp.any(B.xp.isnan(X))):
            msg = f"X is a {B.name} array with missing cells, which are imputed in NumPy arrays and tables only."
            raise ValueError(msg)
        check_inputs("X", X)
        if reset:
            self.n_features_in_ = X.shape[1]
            for name in ("feature_names_in_", "columns_"):  # of a training before
                vars(self).pop(name, None)
        elif X.shape[1] != self.n_features_in_:
            name = type(self).__name__
            msg = f"X has {X.shape[1]} features, but {name} is expecting {self.n_features_in_} features as input."
            raise ValueError(msg)
        elif "columns_" in vars(self):
            columns, host = self.columns_, to_numpy(X)
            return placed((columns.transform_array if isinstance(columns, Columns) else columns.transform)(host), X)
        return X

    def _placed(self, X: Any) -> Array:
        """An array of the library, device and precision that were asked for."""
        if self.backend is None and self.device is None and self.dtype is None:
            return X
        B = backend_of(X)
        if B.is_lazy:  # the model decides in which library they are evaluated
            if self.dtype is None:
                return X
            return B.xp.astype(X, to_backend(np.zeros(1), "numpy", dtype=self.dtype).dtype)  # checked, by any name
        library = self.backend or B.name
        return to_backend(X, library, device=self.device, dtype=self.dtype)

    # -- training ---------------------------------------------------------------------------------------------------

    def _method(self, rows: int, *, parts: bool) -> str:
        known = self._methods()
        if self.method == "auto":
            return "wsvgp" if parts else self._usual_method(rows)
        if self.method not in METHODS:
            msg = f"unknown method {self.method!r}; known are auto, {', '.join(known)}."
            raise ValueError(msg)
        if self.method not in known:
            msg = f"the method {self.method} is for regression alone; use auto, or one of {', '.join(known)}."
            raise ValueError(msg)
        return self.method

    def _methods(self) -> list[str]:
        """The methods for this task."""
        return list(METHODS)

    @abstractmethod
    def _usual_method(self, rows: int) -> str:
        """The method for so many rows."""

    def _built(self, data: Observations, likelihood: Likelihood, *, parts: bool, **settings: Any) -> Model:
        X = data.X
        self.method_ = self._method(X.shape[0], parts=parts or backend_of(X).is_lazy)
        self._seed = seed_of(self.random_state)
        by_noise = self.method_ in GAUSSIAN_METHODS
        likelihood = wrapped(likelihood, data, weighted=not by_noise)
        y = self._training_targets(likelihood, data)
        settings |= {
            "kernel": self._kernel(X, y, likelihood),
            "num_inducing": self._inducing(X.shape[0], parts=parts),
            "seed": self._seed,
        }
        if self.method_ in ACTION_METHODS and self.num_inducing is not None:
            settings["num_actions"] = settings["num_inducing"]
        if by_noise and data.weights is not None:
            settings["weights"] = data.weights
        settings |= self._layers()
        model = build(self.method_, X, y, likelihood=likelihood, **settings)
        if backend_of(X).is_lazy and (self.backend, self.device) != (None, None):
            return to_backend(model, self.backend or "numpy", device=self.device)
        return model

    def _training_targets(self, likelihood: Likelihood, data: Observations) -> Array:
        """The targets with the columns that the likelihood takes; models of Gaussian methods hold the weights."""
        return targets_for(likelihood, data._replace(weights=None) if self.method_ in GAUSSIAN_METHODS else data)

    def _kernel(self, X: Array, y: Array, likelihood: Any) -> Any:
        """The kernel that was asked for, or the one that suits a sample of the rows."""
        kernel = kernel_or_auto(self.kernel)
        if not isinstance(kernel, str):
            return kernel
        return "rbf" if self.method_ in DEEP_METHODS else select_kernel(X, y, likelihood)

    def _layers(self) -> dict[str, int]:
        """The argument of `build` for the layers, where they are told."""
        if self.layers is None:
            return {}
        if self.method_ not in DEEP_METHODS:
            some = ", ".join(name for name in self._methods() if name in DEEP_METHODS)
            method = f"the method {self.method_}{', which auto stands for,' if self.method == 'auto' else ''}"
            msg = f"layers is {self.layers!r}, but {method} has none; leave it out, or use {some}."
            raise ValueError(msg)
        return {"layers": check_whole("layers", self.layers)}

    def _grows(self) -> bool:
        """Whether the number of inducing inputs is found in training."""
        return self.num_inducing == "auto" and self.method_ in GROWING_METHODS

    def _check_grows(self, *, parts: bool) -> None:
        """ValueError unless the number of inducing inputs can be found in training, for one that is "auto"."""
        _check_grows(self.method_, self.method, parts=parts)

    def _inducing(self, rows: int, *, parts: bool) -> int:
        """How many inducing inputs, or actions, to begin with: no more than there are rows for each group."""
        asked: Any = self.num_inducing
        if asked == "auto":
            self._check_grows(parts=parts)
        if asked == "auto" or self._grows():
            asked = START
        count = usual_inducing(rows) if asked is None else check_whole("num_inducing", asked)
        return max(1, min(count, rows // 2 if self.method_ in GROUP_METHODS else rows))

    def _fit(self, model: Any, data: Observations) -> None:
        X, y = valid_data(data.X, self._training_targets(model.likelihood, data), missing=model.likelihood.missing)
        grows = self._grows()
        training: Any = fit_growing if grows else fit
        result = training(
            model,
            X,
            y,
            **{"fit_tolerance" if grows else "tolerance": self.tolerance},
            max_steps=self.max_steps,
            max_seconds=self.max_seconds,
            batch_size=self._batch(model, X),
            updates=OWN_UPDATES.get(self.method_),
            seed=self._seed,
            progress=bool(self.verbose),
        )
        self.model_ = result.model
        self.n_iter_ = result.steps
        self.n_rows_seen_ = X.shape[0]
        self.history_ = result.trace
        self.converged_, self.learned_ = result.converged, result.learned
        self._forget_growth()
        if grows:
            columns = zip(*result.rounds, strict=True)
            self.growth_ = {name: [*map(float, x)] for name, x in zip(Round._fields, columns, strict=True)}
            self.growth_reason_ = result.reason
        self.bound_ = float(result.model.bound(X, y)[0])
        self.model_ = self.model_._without_rows()
        self._forget_updates()

    def _keep_untrained(self, model: Any, data: Observations) -> None:
        self._start_parts(model)
        X, y = data.X, self._training_targets(model.likelihood, data)
        self.n_rows_seen_, self.converged_, self.bound_ = X.shape[0], True, float(model.bound(X, y)[0])
        self.learned_ = False

    def _batch(self, model: Any, X: Array) -> int | None:
        if self.batch_size is None or (self.method == "auto" and not model.stochastic):
            return None
        if not model.stochastic:
            msg = f"the method {self.method_} needs all rows at once; leave batch_size out."
            raise ValueError(msg)
        return min(check_whole("batch_size", self.batch_size), X.shape[0])

    @property
    def _is_started(self) -> bool:
        return "model_" in vars(self)

    def _forget_growth(self) -> None:
        for name in ("growth_", "growth_reason_", "candidates_", "kernel_"):
            vars(self).pop(name, None)

    def _forget_updates(self) -> None:
        for name in ("_updates", "_states"):
            vars(self).pop(name, None)

    def _start_parts(self, model: Any) -> None:
        self.model_, self.n_iter_, self.n_rows_seen_, self.history_ = model, 0, 0, {}
        self._forget_growth()
        self._forget_updates()

    @public(context=False)
    def _fit_part(self, data: Observations) -> None:
        """One step of the recipe on some more rows."""
        if self.method_ not in PART_METHODS:
            msg = f"the method {self.method_} needs all rows at once; use fit, or another method, such as wsvgp."
            raise ValueError(msg)
        likelihood = self.model_.likelihood
        X, y = valid_data(data.X, self._training_targets(likelihood, data), missing=likelihood.missing)
        self.model_._check(X, y)
        seen = self.n_rows_seen_ + X.shape[0]
        total = seen if self.total_rows is None else self._total(X.shape[0])
        if "_updates" not in vars(self):
            # after a training, at the rate where trainings end: that of their beginning would undo some of it
            rate, fall = (FALL * RATE, 1.0) if self.n_iter_ else (RATE, FALL)
            self.model_ = begun(self.model_)
            self._updates = updates_of(self.method_, self.model_, PART_STEPS, rate=rate, fall=fall)
            self._states = [update.init(self.model_) for update in self._updates]
        batch = Batches(X, y, X.shape[0], self._seed, self.model_._draws)[self.n_iter_]
        batch = batch._replace(scale=total / X.shape[0])
        model, states, logged = self.model_, [], {}
        for update, state in zip(self._updates, self._states, strict=True):
            model, state, info = update(model, batch, state)
            states.append(state)
            logged |= info
        check_results("after these rows", logged | leaves(model), "they were not learned from")
        self.model_, self._states, self.n_rows_seen_, self.n_iter_ = model, states, seen, self.n_iter_ + 1
        numbers = {name: float(value) for name, value in logged.items()}
        self.history_ = {name: [*self.history_.get(name, []), number] for name, number in numbers.items()}
        self.bound_, self.converged_, self.learned_ = numbers["bound"], False, True

    def _total(self, rows: int) -> int:
        """How many rows there are in all. ValueError if so many as came at once are more."""
        total = check_whole("total_rows", self.total_rows)
        if total < rows:
            msg = f"total_rows is {total}, but {rows} rows came at once; count all rows, or leave it out."
            raise ValueError(msg)
        return total

    # -- predictions ------------------------------------------------------------------------------------------------

    def _fitted_inputs(self, X: Any) -> tuple[Array, bool]:
        """Test inputs as the model takes them, and whether answers go back as host arrays."""
        check_is_fitted(self, "model_")
        A, host = self._inputs(X, reset=False), not is_foreign(X)
        return placed(A, next(iter(leaves(self.model_).values()))) if host else self._placed(A), host

    @property
    def predictor_(self) -> Predictor:
        """The `agp.Predictor` of `model_`: computed when it is first needed, and kept."""
        check_is_fitted(self, "model_")
        found = _PREDICTORS.get(self.model_)
        if found is None:
            found = self.model_.predictor()
            found = _PREDICTORS[self.model_] = replaced(found, {"likelihood": self._likelihood_of(found.likelihood)})
        return found

    def _likelihood_of(self, trained: Likelihood) -> Likelihood:
        """The likelihood of observations, for one that was trained."""
        return plain(trained)

    def name_columns(self, example: Any) -> Self:
        """Say what the columns are called of an array that the estimator was trained on, by a data frame of numbers.

        Tables with such columns are then understood. ValueError if the frame has other columns than the array had.
        """
        check_is_fitted(self, "model_")
        frame = as_frame(example)
        if frame is None or len(frame.columns) != self.n_features_in_ or "columns_" in vars(self):
            msg = f"{type(self).__name__} was trained on {self.n_features_in_} columns; give a data frame with as many."
            raise ValueError(msg)
        self.columns_ = Columns("refuse").fit(frame)
        self.feature_names_in_ = np.asarray(frame.columns, dtype=object)
        return self

    def model_inputs(self, X: Any) -> Array:
        """Rows of X as the numbers [N, D] that `model_` takes.

        Dates and times of data frames are days since 1970-01-01, durations are days, categories 0 and 1 for each value,
        and missing cells are imputed.
        """
        return self._fitted_inputs(X)[0]

    def model_columns(self) -> list[str]:
        """The names of the columns of `model_inputs`, such as ``"when [days since 1970-01-01]"`` of dates."""
        names, columns = self._table_columns(), vars(self).get("columns_")
        if columns is None:
            return names
        return columns.names() if isinstance(columns, Columns) else [*names, *indicated(columns, names)]

    def model_sources(self) -> list[str]:
        """The column of the table that each column of `model_inputs` was made of, by its name."""
        names, columns = self._table_columns(), vars(self).get("columns_")
        if columns is None:
            return names
        return columns.sources() if isinstance(columns, Columns) else [*names, *indicator_sources(columns, names)]

    def _table_columns(self) -> list[str]:
        check_is_fitted(self, "model_")
        named = vars(self).get("feature_names_in_")
        return [*column_names(self.n_features_in_)] if named is None else [str(name) for name in named]
