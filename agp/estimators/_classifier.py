"""Classification that follows scikit-learn's conventions."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from agp.backend import Array, asarray_like, backend_of, like, to_numpy
from agp.checks import check_choice
from agp.errors import MAX_NAMES, count_of, explain_arguments
from agp.estimators._arrays import as_output, is_foreign, load_rows, on_host, plain_labels, resolve_seed
from agp.estimators._base import all_or_nothing
from agp.estimators._distribution import At, Distribution
from agp.estimators._inputs import convert_training_inputs, move_array
from agp.estimators._observations import Observations, row_numbers, score_weights
from agp.estimators._parts import OfParts, fit_part
from agp.estimators._validation import check_each_row, check_lengths, explain_refusals
from agp.likelihoods import Bernoulli, Likelihood, Ordinal, Softmax
from agp.methods import Method
from agp.predictors import Predictor
from agp.repairs import outside, public
from agp.selection import fit_classification
from agp.tables import category_order, missing_rows

MANY_ROWS = 20
"""The number of rows above which nearly as many labels as rows cause a warning."""
FULL_ROWS = 128
"""The maximum number of rows for which the default method for ordered classes uses no inducing inputs."""


@explain_arguments
@dataclass(kw_only=True, eq=False, repr=False)
class GPClassifier(ClassifierMixin, Distribution):
    """Gaussian-process classification into two or more classes, with calibrated probabilities.

    By default, `agp.selection.fit_classification` chooses the kernels, and averages posteriors of all rows. For two
    classes, the likelihood is Bernoulli with the logit link; for more classes, it is a softmax with one latent function
    per class. With ``likelihood="ordinal"``, ordered classes share one latent function, and each class is a bin of its
    values (`agp.Ordinal`).

    Parameters
    ----------
    method
        "auto", or the short name (as in `agp compare`) of a method that supports any likelihood: "tvgp" (without
        inducing inputs), "wsvgp", "rsvgp" (inverse-free), "tsvgp", "deep-rsvgp" and so on. "auto" selects t-VGP for up
        to 2,000 rows, and t-SVGP or t-NNGP for more; for ordered classes, and with `num_inducing`, `layers` or
        `batch_size`, t-VGP for one latent function and up to 128 rows, and W-SVGP otherwise. With a method or these
        parameters, two classes have the probit link.
    likelihood
        "auto", or "ordinal" for ordered classes. Ordered classes must be numbers, or an ordered categorical series from
        pandas or polars; text without an order raises an error.
    class_weight
        Factors of the weights of the rows, by class: a dictionary from labels to numbers, "balanced" for factors with
        which all classes have the same total weight, or None. Only the ratios of the factors matter; the largest is 1.
        Probabilities then refer to the weighted classes.
    kernel, num_inducing, layers, missing, keep, backend, device, dtype
        As in `GPRegressor`.
    tolerance, max_steps, max_seconds, batch_size, total_rows, random_state, verbose
        As in `GPRegressor`. `fit_classification` does not use `tolerance`.
    priors, frozen
        As in `GPRegressor`. If `fit_classification` chooses the kernels, "auto" stands for its own priors.

    Attributes
    ----------
    classes_
        The sorted labels, as a NumPy array or as an array from the library of the training labels.
    order_
        The positions [C] of ordered classes in `classes_`, from the lowest class to the highest.
    model_, method_, bound_, history_, n_iter_, converged_, learned_, n_rows_seen_, n_features_in_, feature_names_in_
        As in `GPRegressor`.
    left_out_
        As in `GPRegressor`.
    kernel_, candidates_
        As in `GPRegressor`, if `fit_classification` chose the kernels. The model may average several kernels.

    Examples
    --------
    Labels may be text. Halfway between the classes, they are equally probable.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[1.0], [2.0], [3.0], [5.0], [6.0], [7.0]])
    >>> labels = ["cold", "cold", "cold", "warm", "warm", "warm"]
    >>> model = agp.GPClassifier().fit(X, labels)
    >>> print(model.predict([[1.5], [6.5]]))
    ['cold' 'warm']
    >>> print(model.predict_proba([[4.0]]).round(2))
    [[0.5 0.5]]
    """

    likelihood: str = "auto"
    class_weight: Any = None

    @public(repairs=False, ignore=None)
    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GPClassifier":
        """Train on a table X [N, D] of any kind and labels y [N] (text, numbers or Booleans).

        `sample_weight` [N] is the number of times that each row was observed. Rows with weight 0 are left out.
        """
        data = self._data(X, y, sample_weight, reset=True)
        self._note_facts(data)
        rows, data = data.X.shape[0], data.distinct(spread_learned=False)
        if self._chooses(data):
            self._fit_classification(data)
        else:
            self._fit(self._model(data, parts=False), data, self.verbose)
        self.n_rows_seen_ = rows
        return self

    @OfParts
    @public(repairs=False, ignore=None)
    @all_or_nothing
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "GPClassifier":
        """Take a training step on more rows; the first call also builds the model.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. Rows of calls without weights have weight 1.
        classes
            All labels. This argument is required in the first call if its rows do not contain all labels.
        """
        first = not self._is_started
        data = self._data(X, y, sample_weight, classes, reset=first)
        if first:
            self._note_facts(data)
            self._start(self._model(data, parts=True))
        fit_part(self, data)
        return self

    @public(repairs=False, ignore=None)
    def predict(self, X: Any) -> Any:
        """Return the most probable label [N] for each row of X [N, D], with the type of the training labels."""
        at = self._predictor_at(X)
        scores, host = self._scores(at), at.host
        classes = on_host(self.classes_) if host else self.classes_
        if not is_foreign(classes):
            return classes[np.argmax(to_numpy(scores), axis=1)]
        B, codes = backend_of(classes), backend_of(scores).xp.argmax(scores, axis=1)
        codes = codes if backend_of(codes) is B else asarray_like(to_numpy(codes), classes)
        return B.xp.take(classes, codes, axis=0)

    @public(repairs=False, ignore=None)
    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities [N, C] of the labels in `classes_`."""
        at = self._predictor_at(X)
        return as_output(self._probabilities(at), host=at.host)

    @public(repairs=False, ignore=None)
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of the probabilities [N, C], also of those that `predict_proba` rounds to 0."""
        at = self._predictor_at(X)
        return as_output(self._log_probabilities(at), host=at.host)

    @public(repairs=False, ignore=None)
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy: the fraction of rows with a correct label, weighted if weights are given."""
        found = on_host(self.predict(X))
        labels = on_host(self._labels(y, found))
        weights = score_weights(sample_weight, found)
        with explain_refusals("y"):
            return float(accuracy_score(labels, found, sample_weight=weights))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _methods(self) -> dict[str, Method]:
        return {name: method for name, method in super()._methods().items() if not method.gaussian_only}

    def _chooses(self, data: Observations) -> bool:
        """Whether `fit_classification` chooses the kernels and the posterior."""
        given = (self.method, self.num_inducing, self.layers, self.batch_size)
        return given == ("auto", None, None, None) and "order_" not in vars(self) and not backend_of(data.X).is_lazy

    def _fit_classification(self, data: Observations) -> None:
        self._seed = resolve_seed(self.random_state)
        count = self.classes_.shape[0]
        result = fit_classification(
            data.X,
            data.y,
            likelihood=Bernoulli(link="logit") if count == 2 else Softmax(count),
            categories=self._categories,
            kernel=self._given_kernel(data.X),
            priors=self.priors,
            frozen=self.frozen,
            weights=data.weights,
            max_seconds=self.max_seconds,
            seed=self._seed,
            max_steps=self.max_steps,
            progress=self.verbose,
        )
        self._keep_search(result, data.X)

    def _usual_method(self, data: Observations) -> str:
        return "tvgp" if data.X.shape[0] <= FULL_ROWS and self._likelihood().latents(1) == 1 else "wsvgp"

    def _model(self, data: Observations, *, parts: bool) -> Any:
        return self._built(data, self._likelihood(), parts=parts)

    def _prepare_targets(self, y: Any, A: Array) -> Array:
        return self._targets(self._labels(y, A), A)

    def _reshape_targets(self, x: Array, *, host: bool) -> Any:
        """Convert class numbers of the likelihood [N, 1, ...] to labels [N, ...]."""
        codes = self._order()[to_numpy(x[:, 0, ...]).astype(int)]
        classes = on_host(self.classes_) if host else self.classes_
        if not is_foreign(classes):
            return classes[codes]
        xp = backend_of(classes).xp
        return xp.reshape(xp.take(classes, asarray_like(codes.reshape(-1), classes), axis=0), codes.shape)

    def _check_takes_noise(self) -> None:
        raise ValueError("noise is given, but classification does not use it; leave it out.")

    def _without_noise(self, predictor: Predictor) -> Predictor:  # noqa: ARG002 - an override
        raise ValueError(
            "observed is False, but labels are predicted; for the function, use predictor_.predict(model_inputs(X))."
        )

    def _check_takes_exposure(self) -> None:
        raise ValueError("exposure is given, but classification does not use it; leave it out.")

    def _likelihood(self) -> Likelihood:
        count = self.classes_.shape[0]
        if "order_" in vars(self):
            return Ordinal(count)
        return Bernoulli() if count == 2 else Softmax(count)

    def _data(self, X: Any, y: Any, sample_weight: Any, classes: Any = None, *, reset: bool) -> Observations:
        A = convert_training_inputs(self, X, reset=reset)
        labels = self._labels(y, A)
        weights = row_numbers("sample_weight", sample_weight, A)
        if reset and classes is None:
            self._learn_classes(labels, y)
        elif reset:
            if isinstance(classes, str) or not isinstance(classes, Iterable):
                raise TypeError(f"classes is {classes!r}, but must be a list of all labels.")
            self._learn_classes(_beside(classes, labels), classes)
        data = Observations(A, self._targets(labels, A), weights)
        if self.class_weight is not None:
            data = data._replace(weights=self._class_weights(data))
        return data.drop_zero_weights()

    def _class_weights(self, data: Observations) -> Array:
        """Return the weights [N] of the rows times the factors of their classes."""
        codes = to_numpy(data.y)[:, 0].astype(int)
        weights = np.ones(len(codes)) if data.weights is None else to_numpy(data.weights)
        classes = on_host(self.classes_)[self._order()]
        factors = factors_of_classes(self.class_weight, classes, np.bincount(codes, weights, len(classes)))
        return asarray_like(weights * factors[codes], data.X)

    def _labels(self, y: Any, rows: Any) -> Any:
        """Check labels [N], one for each of the given rows, and return them as an array."""
        check_choice("likelihood", self.likelihood, ("auto", "ordinal"))
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        if is_foreign(y):
            return _check_labels(y)
        y = load_rows("y", y)
        check_each_row("y", y)
        with explain_refusals("y"):
            missing = missing_rows(y)
        if missing:
            raise ValueError(f"y has no label in row {missing[0]}; remove rows without a label.")
        with explain_refusals("y"):
            labels = column_or_1d(plain_labels(y), warn=True)
        check_lengths("y", labels, rows)
        with explain_refusals("y"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of scikit-learn, about many classes, and of casts of infinite labels
            check_classification_targets(labels)
        return labels

    def _learn_classes(self, labels: Any, given: Any) -> None:
        """Set `classes_`, in the library and on the device of the labels, and `order_` for ordered classes."""
        if is_foreign(labels):
            B = backend_of(labels)
            self.classes_ = B.gather(B.xp.unique_values(labels))
        else:
            with explain_refusals("y"):
                self.classes_ = LabelEncoder().fit(labels).classes_
        count = self.classes_.shape[0]
        rows = labels.shape[0]
        if MANY_ROWS < rows < 2 * count:
            text = f"y has {count} different labels in {count_of(rows, 'row')}; to predict numbers, use GPRegressor."
            warnings.warn(text, UserWarning, stacklevel=outside())
        if count < 2:
            raise ValueError(f"y has one class, {self.classes_.tolist()[0]!r}; a classifier needs two or more classes.")
        self._forget("order_")
        if self.likelihood == "ordinal":
            self.order_ = _order_of(to_numpy(self.classes_), category_order(given))

    def _order(self) -> Any:
        """Return the positions [C] in `classes_` of the likelihood's classes 0 to C - 1."""
        return self.order_ if "order_" in vars(self) else np.arange(self.classes_.shape[0])

    def _targets(self, labels: Any, X: Array) -> Array:
        """Convert labels [N] to class numbers [N, 1] of the likelihood."""
        if not is_foreign(labels):
            codes = _codes_of(labels, on_host(self.classes_))
            return asarray_like(np.argsort(self._order())[codes].astype(np.float64)[:, None], X)
        xp = backend_of(labels).xp
        found = labels[:, None] == _beside(self.classes_, labels)[None, :]
        if not bool(xp.all(xp.any(found, axis=1))):
            row = int(xp.argmin(xp.astype(xp.any(found, axis=1), xp.int64)))
            raise ValueError(_unknown_label_message(labels[row].tolist(), row, self.classes_))
        found = xp.stack([found[:, int(k)] for k in self._order()], axis=1)
        codes = xp.argmax(xp.astype(found, xp.int64), axis=1)[:, None]
        same = backend_of(labels) is backend_of(X)
        return move_array(self, xp.astype(codes, X.dtype if same else backend_of(labels).widest_float(codes)))

    def _scores(self, at: At) -> Array:
        """Return numbers [N, C], the largest of which belongs to the most probable label of each row."""
        predictor = at.predictor
        averages = predictor.imputations is not None or predictor.processes[0].samples > 1
        if averages or not predictor.likelihood.decided_by_sign:
            return self._probabilities(at)
        mean = predictor.predict_mean(at.X)
        return backend_of(mean).xp.concat([-mean, mean], axis=1)

    def _probabilities(self, at: At) -> Array:
        """Return the probabilities [N, C] of the labels."""
        if "order_" in vars(self):
            found = self._log_probabilities(at)
            return backend_of(found).xp.exp(found)
        mean = at.predictor.predict(at.X, observed=True).mean
        return backend_of(mean).xp.concat([1.0 - mean, mean], axis=1) if self.classes_.shape[0] == 2 else mean

    def _log_probabilities(self, at: At) -> Array:
        """Return the logarithms of the probabilities [N, C] of the labels."""
        found = at.predictor.log_probabilities(at.X, self.classes_.shape[0])
        columns = [found[:, int(k)] for k in np.argsort(self._order())]
        return backend_of(found).xp.stack(columns, axis=1)


def _codes_of(labels: Any, classes: Any) -> Any:
    """Return the positions [N] of the labels in the classes [C]. Raise ValueError if a label is not among them."""
    at = {label: k for k, label in enumerate(classes.tolist())}
    codes = [at.get(label, -1) for label in labels.tolist()]
    if -1 in codes:
        row = codes.index(-1)
        raise ValueError(_unknown_label_message(labels.tolist()[row], row, classes))
    return np.asarray(codes)


def _unknown_label_message(label: Any, row: int, classes: Any) -> str:
    known = classes.tolist()
    shown = f"{', '.join(map(repr, known[:MAX_NAMES]))}{', ...' if len(known) > MAX_NAMES else ''}"
    remedy = "correct it, or give all labels to the first call, in y or in classes"
    return f"y has the label {label!r} in row {row}, but the classes are {shown}; {remedy}."


def factors_of_classes(given: Any, classes: Any, totals: Any) -> Any:
    """Return the factors [C] of the weights of rows, given the argument `class_weight` and the total weights [C]."""
    if isinstance(given, str) and given == "balanced":
        present = totals > 0.0
        return np.where(present, totals[present].min() / np.where(present, totals, 1.0), 1.0)
    if not isinstance(given, Mapping):
        raise ValueError(
            f"class_weight is {given!r}, but must be None, 'balanced' or a dictionary from labels to numbers."
        )
    known = classes.tolist()
    unknown = [label for label in given if label not in known]
    if unknown and any(label not in given for label in known):  # else, rows of a label are only absent from a fold
        raise ValueError(f"class_weight has the label {unknown[0]!r}, which y does not have; the classes are {known}.")
    factors = np.asarray([float(given.get(label, 1.0)) for label in known])
    if not (np.isfinite(factors).all() and (factors >= 0.0).all() and (factors * totals).any()):
        raise ValueError(
            f"class_weight is {given!r}, but its numbers must be finite and zero or more, and not all zero."
        )
    # a row of weight 2 would count as two observations, as if its label were known twice
    return factors / factors.max()


def _order_of(classes: Any, values: list[Any] | None) -> Any:
    """Return the positions [C] of classes, from the lowest class to the highest.

    `values` are the labels in ascending order. If `values` is None, classes must be numbers.
    """
    if values is not None:
        return np.asarray([position for value in values for position in np.flatnonzero(classes == value)])
    if not all(isinstance(label, Real) for label in classes.tolist()):
        raise ValueError(
            f"y holds text, such as {classes.tolist()[0]!r}, whose order is unknown; convert it to whole numbers, or "
            "to an ordered categorical series."
        )
    return np.arange(len(classes))


def _check_labels(labels: Array) -> Array:
    """Check an array of labels [N] from a library other than NumPy, and return it."""
    xp = backend_of(labels).xp
    if labels.ndim != 1:
        raise ValueError(f"y has shape {tuple(labels.shape)}, but must be 1-dimensional.")
    if xp.isdtype(labels.dtype, "real floating") and not bool(xp.all(xp.floor(labels) == labels)):
        raise ValueError("y has numbers that are not whole, but labels must be whole; use GPRegressor for regression.")
    return labels


def _beside(classes: Any, labels: Any) -> Any:
    """Convert the classes to an array from the same library as the labels."""
    classes = on_host(classes)
    return backend_of(labels).xp.asarray(classes, **like(labels)) if is_foreign(labels) else np.asarray(classes)
