"""The base class of both estimators: method selection, training and the predictor."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from agp.backend import Array, asarray_like, backend_of
from agp.checks import check_whole
from agp.errors import count_of
from agp.estimators._arrays import is_foreign, resolve_seed
from agp.estimators._description import describe, learned_html
from agp.estimators._encoding import Encoder
from agp.estimators._error_column import NOISE, split_errors
from agp.estimators._inputs import convert_inputs, move_inputs
from agp.estimators._kernel_columns import number_columns
from agp.estimators._noise_groups import with_groups
from agp.estimators._observations import Observations
from agp.estimators._parameters import part_parameters, resolve_parameters
from agp.estimators._priors import given_priors
from agp.estimators._saturation import saturate
from agp.estimators._search import train_model
from agp.estimators._tags import set_tags
from agp.inducing import distinct_rows
from agp.inspection import column_names
from agp.kernels import count_levels, kernel_or_auto, kernel_text
from agp.likelihoods import Likelihood, Transform
from agp.methods import METHODS, Method, build, unknown_method_message
from agp.models import Model, ignore_moved, valid_data, warn_of_moved
from agp.predictors import Imputations, Predictor
from agp.selection import Candidate, select_kernel
from agp.tables import as_frame
from agp.training import (
    Round,
    has_optimal_posterior,
)
from agp.tree import first_leaf, place_host_arrays, replace, to_backend

F = TypeVar("F", bound=Callable[..., Any])

_PREDICTORS: WeakKeyDictionary[Any, Predictor] = WeakKeyDictionary()
"""The predictor of each model, stored outside the estimators because predictions must not change their state."""
SQUARE_ROOTS, MIN_INDUCING, MAX_INDUCING = 2.0, 128, 1000
"""The default number of inducing inputs is `SQUARE_ROOTS` sqrt(N), from `MIN_INDUCING` to `MAX_INDUCING`."""
ROWS_PER_INDUCING, MIN_OF_FEW_ROWS = 3, 32
"""With few rows, the default number of inducing inputs is a third of the number of rows, but at least 32."""
START_INDUCING = 64
"""The initial number of inducing inputs if the number is chosen during training."""
START_ROWS = 1000
"""The number of rows from which the kernel of an untrained model takes its lengthscales."""


def usual_inducing(rows: int) -> int:
    """Return the default number of inducing inputs, which `_inducing` limits to the number of rows."""
    usual = max(MIN_INDUCING, min(MAX_INDUCING, int(SQUARE_ROOTS * rows**0.5)))
    return max(MIN_OF_FEW_ROWS, min(usual, rows // ROWS_PER_INDUCING))


def all_or_nothing(train: F) -> F:
    """Decorate a training method so that the estimator stays unchanged if an error or an interrupt occurs.

    After an interrupt, the attribute `result` of `agp.errors.Interrupted` holds the result of the training so far.
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


class Learned:
    """The attributes that `fit` and `partial_fit` set. Some attributes exist only for certain values of the parameters.

    These attributes are not fields of `GPEstimator`, because scikit-learn treats every field as a parameter.
    """

    model_: Model
    method_: str
    bound_: float
    history_: dict[str, list[float]]
    converged_: bool
    ending_: str
    transform_: Transform | None
    learned_: bool
    n_iter_: int
    n_rows_seen_: int
    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]
    left_out_: list[str]
    columns_: Encoder
    growth_: dict[str, list[float]]
    growth_reason_: str
    kernel_: str
    candidates_: dict[str, list[Any]]
    noise_by_: dict[Any, float]
    classes_: Any
    order_: npt.NDArray[np.int64]


@dataclass(kw_only=True, eq=False, repr=False)
class GPEstimator(Learned, ABC, BaseEstimator):
    """Base class of `GPRegressor` and `GPClassifier`, with their common parameters and training code.

    Each field is a parameter. scikit-learn reads the parameters from the signature that the dataclass generates.
    """

    method: str = "auto"
    kernel: Any = "auto"
    num_inducing: int | str | None = None
    layers: int | None = None
    missing: str = "refuse"
    keep: Any = None
    backend: str | None = None
    device: str | None = None
    dtype: str | None = None
    tolerance: float = 1e-3
    max_steps: int | None = None
    max_seconds: float | None = None
    batch_size: int | None = None
    total_rows: int | None = None
    random_state: Any = None
    verbose: Any = False
    priors: Any = "auto"
    frozen: Any = ()

    def __sklearn_tags__(self) -> Any:
        return set_tags(self, super().__sklearn_tags__())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; with `deep`, also those of a kernel or likelihood, as ``kernel__variance``."""
        own = super().get_params(deep)
        return own | part_parameters(own) if deep else own

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, and return the estimator. Raise ValueError for a name that is no parameter.

        With the name of a parameter of the kernel or likelihood, such as ``kernel__lengthscale``, the estimator has a
        new kernel or likelihood; the given one is not changed.
        """
        return super().set_params(**resolve_parameters(self, params))

    # -- what was learned -------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """Describe the estimator, its labels, and how its training ended."""
        return describe(self)

    def _repr_html_inner(self) -> str:
        return super()._repr_html_inner() + learned_html(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)
        added = {"text/html": bundle["text/html"] + learned_html(self)} if "text/html" in bundle else {}
        return bundle | added

    # -- training ---------------------------------------------------------------------------------------------------

    def _method(self, data: Observations, *, parts: bool) -> str:
        known = self._methods()
        if self.method == "auto":
            return "wsvgp" if parts or backend_of(data.X).is_lazy else self._usual_method(data)
        if self.method not in METHODS:
            raise ValueError(unknown_method_message(self.method, ["auto", *known]))
        if self.method not in known:
            raise ValueError(
                f"the method {self.method} is only for regression; use auto, or one of {', '.join(known)}."
            )
        return self.method

    def _methods(self) -> dict[str, Method]:
        """Return the methods that support this task, by name."""
        return METHODS

    @property
    def _record(self) -> Method:
        """The record of the method that was selected."""
        return METHODS[self.method_]

    @abstractmethod
    def _usual_method(self, data: Observations) -> str:
        """Return the method that "auto" selects."""

    def _built(
        self, data: Observations, likelihood: Likelihood, *, parts: bool, variance: float | None = None, **settings: Any
    ) -> Model:
        """Build the untrained model. `variance` is that of the latent functions, by default computed from the data."""
        X = data.X
        self.method_ = self._method(data, parts=parts)
        self._seed = resolve_seed(self.random_state)
        settings |= {
            "kernel": self._kernel(data, likelihood),
            "num_inducing": self._inducing(X, likelihood, parts=parts),
            "seed": self._seed,
            "priors": given_priors(self),
        }
        if variance is not None:
            rows = backend_of(X).gather(X[: min(START_ROWS, X.shape[0]), :])
            settings["kernel"] = kernel_or_auto(settings["kernel"]).from_data(rows, variance)
        if "num_actions" in self._record.takes and self.num_inducing is not None:
            settings["num_actions"] = settings["num_inducing"]
        settings |= self._layers()
        with ignore_moved("kernel"):  # values of the kernel may be computed
            model = build(self.method_, X, data.y, likelihood=likelihood, **settings, **data.known)
        if not isinstance(given := self._given_kernel(X), str):
            warn_of_moved({"kernel": given}, settings["priors"], X)
        if backend_of(X).is_lazy and (self.backend, self.device) != (None, None):
            return to_backend(model, self.backend or "numpy", device=self.device)
        return model

    def _kernel(self, data: Observations, likelihood: Any) -> Any:
        """Return the given kernel or, for "auto", the kernel that best predicts a sample of the rows."""
        kernel = self._given_kernel(data.X)
        if not isinstance(kernel, str):
            return kernel
        if "layers" in self._record.takes:
            return "rbf"
        return select_kernel(data.X, data.y, likelihood, categories=self._categories, **data.known)

    def _given_kernel(self, X: Array) -> Any:
        """Return "auto", or the given kernel on columns of the inputs X, instead of named columns of the table."""
        kernel = kernel_or_auto(self.kernel)
        if isinstance(kernel, str):
            return kernel
        kernel = number_columns(kernel, vars(self).get("columns_"))
        return place_host_arrays(count_levels(kernel.with_categories(X.shape[1], self._categories), X), X)

    @property
    def _takes_codes(self) -> bool:
        """Whether models of the chosen method take codes of the levels of categories, which deep ones do not."""
        method = METHODS.get(self.method)
        return method is None or "layers" not in method.takes

    @property
    def _categories(self) -> tuple[int, ...]:
        """The columns of the model inputs that contain codes of levels."""
        return self.columns_.categories if "columns_" in vars(self) else ()

    def _layers(self) -> dict[str, int]:
        """Return the argument `layers` for `build`, if it is given."""
        if self.layers is None:
            return {}
        if "layers" not in self._record.takes:
            some = ", ".join(name for name, method in self._methods().items() if "layers" in method.takes)
            raise ValueError(
                f"layers is {self.layers!r}, but {self._method_in_words} has no layers; leave it out, or use {some}."
            )
        return {"layers": check_whole("layers", self.layers)}

    def _grows(self) -> bool:
        """Whether training chooses the number of inducing inputs."""
        return self.num_inducing == "auto" and self._record.can_grow

    def _check_grows(self) -> None:
        """Raise ValueError if num_inducing is "auto", but training cannot choose the number."""
        if not self._record.can_grow and not {"num_inducing", "num_actions"}.isdisjoint(self._record.takes):
            growing = ", ".join(name for name, method in METHODS.items() if method.can_grow)
            remedy = f"give a number, or use one of {growing}"
            raise ValueError(f"num_inducing is 'auto', but {self._method_in_words} cannot choose the number; {remedy}.")

    @property
    def _method_in_words(self) -> str:
        return f"the method {self.method_}{', which auto selects,' if self.method == 'auto' else ''}"

    def _inducing(self, X: Array, likelihood: Likelihood, *, parts: bool) -> int:
        """Return the initial number of inducing inputs (or actions) per group, which is at most the number of rows."""
        asked: Any = self.num_inducing
        rows = X.shape[0]
        if asked is None and not parts and rows <= self._record.all_rows and self._can_take_all(likelihood):
            return len(distinct_rows(X))
        if asked == "auto":
            self._check_grows()
            asked = START_INDUCING
        count = usual_inducing(rows) if asked is None else check_whole("num_inducing", asked)
        return max(1, min(count, rows // 2 if "num_orthogonal" in self._record.takes else rows))

    def _can_take_all(self, likelihood: Likelihood) -> bool:
        """Whether training with all rows as inducing inputs is fast, because q(u) is solved for in a few steps."""
        return has_optimal_posterior(likelihood)

    def _fit(self, model: Any, data: Observations, progress: Any) -> None:
        X, y = valid_data(data.X, data.y, missing=model.likelihood.missing)
        result = train_model(self, model, X, y, progress=progress, batch_size=self._batch(model, X), **data.known)
        self._keep(result, result.message)
        if self._grows():
            columns = zip(*result.rounds, strict=True)
            self.growth_ = {name: [*map(float, x)] for name, x in zip(Round._fields, columns, strict=True)}
            self.growth_reason_ = result.reason
        self.bound_ = float(result.model.bound(X, y, **data.known)[0])
        self.model_ = self.model_._drop_data()

    def _note_facts(self, data: Observations) -> None:
        """Note what is known of the training rows, for `agp.inspection.kernel_relevance`."""
        given = {"weights": data.weights, "exposures": data.exposure, "noise variances": data.noise}
        self._row_facts = [name for name, x in given.items() if x is not None]

    def _keep(self, result: Any, ending: str) -> None:
        """Store the result of training, and why it ended, and delete earlier results."""
        self._start(result.model)
        self.n_iter_, self.history_ = result.steps, result.trace
        self.converged_, self.learned_, self.ending_ = result.converged, result.learned, ending

    def _keep_search(self, result: Any, X: Array) -> None:
        """Store the result of a fit to inputs X that chose the kernel and the method."""
        self._keep(result, result.ending)
        self.method_, self.bound_ = result.method, result.bound
        self.candidates_ = {name: [one[i] for one in result.candidates] for i, name in enumerate(Candidate._fields)}
        given = self._given_kernel(X)
        if isinstance(given, str):
            self.kernel_ = result.kernel
            return
        by_number, by_name = kernel_text(given), kernel_text(given, self.model_sources())
        self.kernel_ = result.kernel.replace(by_number, by_name)
        self.candidates_["kernel"] = [name.replace(by_number, by_name) for name in self.candidates_["kernel"]]

    @property
    def _seconds_per_fit(self) -> float | None:
        """The maximum time of a fit."""
        return self.max_seconds

    def _batch(self, model: Any, X: Array) -> int | None:
        if self.batch_size is None or (self.method == "auto" and not model.stochastic):
            return None
        if not model.stochastic:
            raise ValueError(f"the method {self.method_} needs all rows at once; leave batch_size out.")
        return min(check_whole("batch_size", self.batch_size), X.shape[0])

    @property
    def _is_started(self) -> bool:
        return "model_" in vars(self)

    def _forget(self, *names: str) -> None:
        """Delete attributes that an earlier call may have set."""
        for name in names:
            vars(self).pop(name, None)

    def _start(self, model: Any) -> None:
        self.model_, self.n_iter_, self.n_rows_seen_, self.history_ = model, 0, 0, {}
        self._forget("growth_", "growth_reason_", "candidates_", "kernel_", "ending_", "_updates", "_states")

    # -- predictions ------------------------------------------------------------------------------------------------

    def _check_fitted(self) -> None:
        """Raise scikit-learn's error unless there is a model."""
        if not self._is_started:
            check_is_fitted(self, "model_")

    def _prepare_inputs(self, X: Any) -> tuple[Array, bool]:
        """Convert test inputs to model inputs. Also return whether to convert results to NumPy arrays."""
        self._check_fitted()
        X = self._split_rows(X)[0]
        A, host = convert_inputs(self, X, reset=False), not is_foreign(X)
        return move_inputs(self, A, self.predictor_.reference[1] if host else None), host

    def _split_rows(self, X: Any, noise: Any = None) -> tuple[Any, Any, Sequence[str]]:
        """Return test rows without the columns `error_column`, their noise variances, and the names of these."""
        if vars(self).get("error_column") is None:
            return X, noise, NOISE
        return split_errors(self, X, noise, training=False)

    @property
    def predictor_(self) -> Predictor:
        """The `agp.Predictor` of `model_`, computed on first use."""
        self._check_fitted()
        found = _PREDICTORS.get(self.model_)
        if found is None:
            found = self.model_.predictor()
            found = replace(found, {"likelihood": self._likelihood_of(found.likelihood)})
            found = dataclasses.replace(found, input_names=tuple(map(str, self.model_sources())))
            largest = vars(self).get("_largest")
            found = saturate(found, largest, first_leaf(self.model_))
            found = _PREDICTORS[self.model_] = with_groups(found, self)
        return found

    def _prepare_search(self) -> None:
        """Compute `predictor_` now if it searches for near rows, and not in the first prediction."""
        if self.model_._searches_rows:
            self.predictor_  # noqa: B018

    def _completed_inputs(self, X: Any) -> Array:
        """Convert rows to model inputs, with one of the imputations in each unknown cell, to average over rows."""
        A = self.model_inputs(X)
        if "columns_" not in vars(self):
            return A
        imputations = self.columns_.imputations()[0]
        rows = imputations[np.arange(A.shape[0]) % len(imputations)]
        xp = backend_of(A).xp
        return xp.where(xp.isnan(A), asarray_like(rows, A), A)

    def _imputing_predictor(self) -> Predictor:
        """Return `predictor_`, which also accepts model inputs with NaN if there are imputations for such cells."""
        return self._with_imputations(self.predictor_) if "columns_" in vars(self) else self.predictor_

    def _with_imputations(self, predictor: Predictor) -> Predictor:
        """Return a predictor that accepts NaN for unknown cells."""
        reference = first_leaf(self.model_)
        imputations = Imputations(*(asarray_like(x, reference) for x in self.columns_.imputations()))
        return dataclasses.replace(predictor, imputations=imputations)

    def _likelihood_of(self, trained: Likelihood) -> Likelihood:
        """Convert the trained likelihood to the likelihood of predicted observations."""
        return trained

    def name_columns(self, example: Any) -> Self:
        """Name the columns of the training array after those of a numeric data frame.

        The estimator then also accepts tables with these columns. Raise ValueError if the data frame and the training
        array have different numbers of columns.
        """
        check_is_fitted(self, "model_")
        frame = as_frame(example)
        if frame is None or len(frame.columns) != self.n_features_in_ or "columns_" in vars(self):
            columns = count_of(self.n_features_in_, "column")
            raise ValueError(f"{type(self).__name__} was trained on {columns}; give a data frame with {columns}.")
        self.columns_ = Encoder("refuse").fit(frame)
        self.feature_names_in_ = np.asarray(frame.columns, dtype=object)
        return self

    def model_inputs(self, X: Any) -> Array:
        """Convert rows of X to the inputs [N, D] of `model_`.

        In data frames, dates and times become days since 1970-01-01, and durations become days. A categorical column
        becomes a column with the codes of its values, which are 0, 1, ..., or -1 for a value unseen in training. For
        deep models, it becomes columns of 0 and 1, one for each value, and NaN for an unseen value. Missing numbers are
        imputed if `missing` is "impute". A missing number in a column that had none in training then becomes NaN.
        """
        return self._prepare_inputs(X)[0]

    def model_columns(self) -> list[str]:
        """Return the names of the columns of `model_inputs`.

        The name of a date column ends with its unit, as in ``"when [days since 1970-01-01]"``.
        """
        return self.columns_.names() if "columns_" in vars(self) else self._unnamed_columns()

    def model_sources(self) -> list[str]:
        """Return, for each column of `model_inputs`, the name of the table column from which it is computed."""
        return self.columns_.sources() if "columns_" in vars(self) else self._unnamed_columns()

    def model_levels(self) -> dict[str, list[Any]]:
        """Return, for each category, the values for which the codes 0, 1, ... in `model_inputs` stand, in this order.

        None stands for a missing cell, if training had one. The code of any other value is -1. The result is empty if
        the model inputs contain no codes, as those of arrays and of deep models.
        """
        check_is_fitted(self, "model_")
        columns: Encoder | None = vars(self).get("columns_")
        return {} if columns is None or columns.one_hot else {name: [*x] for name, x in columns.levels.items()}

    def _unnamed_columns(self) -> list[str]:
        check_is_fitted(self, "model_")
        return [*column_names(self.n_features_in_)]
