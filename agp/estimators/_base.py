"""What regressor and classifier share: inputs of every kind, a method by its name, training until it is done."""

from abc import ABC, abstractmethod
from typing import Any

import array_api_compat
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.impute import SimpleImputer
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from agp.backend import Array, backend_of, placed, to_numpy
from agp.checks import check_inputs
from agp.estimators._columns import Columns, as_frame, check_missing, indicated
from agp.inspection import column_names
from agp.methods import METHODS, build
from agp.models import Model
from agp.training import fit, recipe
from agp.tree import leaves, to_backend

__all__ = ["GPEstimator", "answered", "is_foreign", "usual_inducing"]

SQUARE_ROOTS, LEAST, MOST = 8.0, 100, 1000
"""The default number of inducing inputs: so many square roots of N, within limits."""


def usual_inducing(rows: int) -> int:
    """The default number of inducing inputs for so many rows."""
    return min(rows, max(LEAST, min(MOST, int(SQUARE_ROOTS * rows**0.5))))


class GPEstimator(ABC, BaseEstimator):
    """The parameters and the training of `GPRegressor` and `GPClassifier`."""

    model_: Any

    def __init__(
        self,
        *,
        method: str = "auto",
        kernel: Any = "rbf",
        num_inducing: int | None = None,
        missing: str = "refuse",
        backend: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        tolerance: float = 1e-3,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        batch_size: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.missing = missing
        self.backend = backend
        self.device = device
        self.dtype = dtype
        self.tolerance = tolerance
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.array_api_support = True
        return tags

    # -- inputs -----------------------------------------------------------------------------------------------------

    def _inputs(self, X: Any, *, reset: bool) -> Array:
        """Rows of any kind as an array [N, D]: of NumPy, unless they are of another library."""
        if is_foreign(X):
            return self._foreign_inputs(X, reset=reset)
        check_missing(self.missing)
        frame = as_frame(X)
        if frame is not None:
            validate_data(self, X, skip_check_array=True, reset=reset)
            if reset:
                self.columns_ = Columns(self.missing).fit(frame)  # type: ignore[arg-type]
            return self.columns_.transform(frame)
        nan = "allow-nan" if self.missing == "impute" else True
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_all_finite=nan, reset=reset)
        if self.missing == "impute":
            if reset:
                self.columns_ = SimpleImputer(add_indicator=True, keep_empty_features=True).fit(X)
            X = self.columns_.transform(X)
        return X

    def _foreign_inputs(self, X: Array, *, reset: bool) -> Array:
        check_inputs("X", X)
        if reset:
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            name = type(self).__name__
            msg = f"X has {X.shape[1]} features, but {name} is expecting {self.n_features_in_} features as input."
            raise ValueError(msg)
        return X

    def _placed(self, X: Any) -> Array:
        """An array of the library, device and precision that were asked for."""
        if self.backend is None and self.device is None and self.dtype is None:
            return X
        library = self.backend or backend_of(X).name
        return to_backend(X, library, device=self.device, dtype=self.dtype)

    # -- training ---------------------------------------------------------------------------------------------------

    def _method(self, rows: int) -> str:
        known = self._methods()
        if self.method == "auto":
            return self._usual_method(rows)
        if self.method not in METHODS:
            msg = f"unknown method {self.method!r}; known are auto, {', '.join(known)}."
            raise ValueError(msg)
        if self.method not in known:
            msg = f"the method {self.method} is not for {type(self).__name__}; use one of {', '.join(known)}."
            raise ValueError(msg)
        return self.method

    @abstractmethod
    def _methods(self) -> list[str]:
        """The methods for this task."""

    @abstractmethod
    def _usual_method(self, rows: int) -> str:
        """The method for so many rows."""

    def _built(self, X: Array, y: Array, likelihood: Any, **parts: Any) -> Model:
        rows = X.shape[0]
        self.method_ = self._method(rows)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        count = usual_inducing(rows) if self.num_inducing is None else min(self.num_inducing, rows)
        settings = {"kernel": self.kernel, "num_inducing": count, "seed": self._seed, **parts}
        return build(self.method_, X, y, likelihood=likelihood, **settings)

    def _fit(self, model: Any, X: Array, y: Array) -> None:
        settings = {"tolerance": self.tolerance, "max_steps": self.max_steps, "max_seconds": self.max_seconds}
        size = None if self.batch_size is None or not model.stochastic else min(self.batch_size, X.shape[0])
        result = fit(model, X, y, batch_size=size, seed=self._seed, progress=bool(self.verbose), **settings)
        self.model_ = result.model
        self.n_iter_ = result.steps
        self.history_ = result.trace
        self.converged_ = result.converged
        self.bound_ = float(result.model.bound(X, y)[0])

    def _fit_part(self, X: Array, y: Array) -> None:
        """One step of the recipe on some more rows."""
        self.n_rows_seen_ += X.shape[0]
        batch = self.model_.batch(X, y, scale=self.n_rows_seen_ / X.shape[0])
        for i, update in enumerate(self._updates):
            self.model_, self._states[i], _ = update(self.model_, batch, self._states[i])
        self.n_iter_ += 1

    def _start_parts(self, model: Any) -> None:
        if not model.stochastic:
            msg = f"the method {self.method_} needs all rows at once; use fit, or a method with minibatches (wsvgp)."
            raise ValueError(msg)
        self.model_, self.n_iter_, self.n_rows_seen_ = model, 0, 0
        self._updates = recipe(model, 1000)
        self._states = [update.init(model) for update in self._updates]

    # -- predictions ------------------------------------------------------------------------------------------------

    def _fitted_inputs(self, X: Any) -> tuple[Array, bool]:
        """Test inputs as the model takes them, and whether answers go back as host arrays."""
        check_is_fitted(self, "model_")
        A, host = self._inputs(X, reset=False), not is_foreign(X)
        return placed(A, next(iter(leaves(self.model_).values()))) if host else self._placed(A), host

    def model_inputs(self, X: Any) -> Array:
        """Rows of X as the numbers [N, D] that `model_` takes: categories as 0 and 1, missing cells imputed."""
        return self._fitted_inputs(X)[0]

    def model_columns(self) -> list[str]:
        """The names of the columns of `model_inputs`."""
        check_is_fitted(self, "model_")
        named = vars(self).get("feature_names_in_")
        names = [*column_names(self.n_features_in_)] if named is None else [str(name) for name in named]
        columns = vars(self).get("columns_")
        if columns is None:
            return names
        return columns.names() if isinstance(columns, Columns) else [*names, *indicated(columns, names)]


def is_foreign(X: Any) -> bool:
    """Whether X is an array of a library other than NumPy, which stays where it is."""
    return array_api_compat.is_array_api_obj(X) and not array_api_compat.is_numpy_array(X)


def answered(x: Array, *, host: bool) -> Any:
    """An answer as a NumPy array, or as it is."""
    return to_numpy(x) if host else x
