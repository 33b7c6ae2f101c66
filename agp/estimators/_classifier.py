"""Classification with the conventions of scikit-learn."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from agp.backend import Array, backend_of, placed, to_numpy
from agp.estimators._base import GPEstimator, answered, is_foreign
from agp.likelihoods import Bernoulli, Softmax
from agp.methods import FULL_METHODS, GAUSSIAN_METHODS, METHODS

__all__ = ["GPClassifier"]

FULL_ROWS = 300
"""Up to so many rows there are no inducing inputs by default."""


def _takes_parts(estimator: Any) -> bool:
    return estimator.method == "auto" or estimator.method not in FULL_METHODS


class GPClassifier(ClassifierMixin, GPEstimator):
    """Gaussian-process classification of two or more classes: calibrated probabilities.

    Two classes have a Bernoulli likelihood with the probit link, more a softmax with one latent function each.

    Parameters
    ----------
    method
        "auto", or the short name of a method of `agp compare` for any likelihood: "tvgp" (without inducing inputs),
        "wsvgp", "rsvgp" (inverse-free), "tsvgp" and so on. By default t-VGP for two classes and up to 300 rows, else
        W-SVGP.
    kernel, num_inducing, missing, backend, device, dtype
        As `GPRegressor`.
    tolerance, max_steps, max_seconds, batch_size, random_state, verbose
        As `GPRegressor`.

    Attributes
    ----------
    classes_
        The labels, sorted.
    model_, method_, bound_, history_, n_iter_, converged_, n_features_in_, feature_names_in_
        As `GPRegressor`.
    """

    classes_: Any

    def fit(self, X: Any, y: Any) -> "GPClassifier":
        """Train on X, a table [N, D] of any kind, and labels y [N]: text, numbers or Booleans."""
        A = self._placed(self._inputs(X, reset=True))
        labels = self._labels(X, y)
        self._learn_classes(labels)
        targets = self._targets(labels, A)
        self._fit(self._model(A, targets), A, targets)
        return self

    @available_if(_takes_parts)
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "GPClassifier":
        """A training step on some more rows; the first call also sets the model up.

        Parameters
        ----------
        X, y
            As `fit`.
        classes
            All labels there will be, needed in the first call if its rows do not have them all.
        """
        first = "n_rows_seen_" not in vars(self)
        A = self._placed(self._inputs(X, reset=first))
        labels = self._labels(X, y)
        if first:
            self._learn_classes(labels if classes is None else np.asarray(classes))
        targets = self._targets(labels, A)
        if first:
            self._start_parts(self._model(A, targets))
        self._fit_part(A, targets)
        return self

    def predict(self, X: Any) -> Any:
        """The most probable label [N] at each row of X [N, D]."""
        probabilities = to_numpy(self._probabilities(X)[0])
        return self.classes_[np.argmax(probabilities, axis=1)]

    def predict_proba(self, X: Any) -> Any:
        """The probabilities [N, C] of the labels `classes_`."""
        probabilities, host = self._probabilities(X)
        return answered(probabilities, host=host)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _methods(self) -> list[str]:
        return [name for name in METHODS if name not in GAUSSIAN_METHODS and name != "solve-collapsed"]

    def _usual_method(self, rows: int) -> str:
        return "tvgp" if rows <= FULL_ROWS and len(self.classes_) == 2 else "wsvgp"

    def _model(self, X: Array, y: Array) -> Any:
        return self._built(X, y, Bernoulli() if len(self.classes_) == 2 else Softmax(len(self.classes_)))

    def _labels(self, X: Any, y: Any) -> Any:
        if y is None:
            msg = f"{type(self).__name__} requires y to be passed, but the target y is None."
            raise ValueError(msg)
        labels = column_or_1d(to_numpy(y) if is_foreign(y) else y, warn=True)
        check_consistent_length(X, labels)
        check_classification_targets(labels)
        return labels

    def _learn_classes(self, labels: Any) -> None:
        self._encoder: Any = LabelEncoder().fit(labels)
        self.classes_ = self._encoder.classes_
        if len(self.classes_) < 2:
            msg = f"y has one class, {self.classes_.tolist()[0]!r}; a classifier needs two or more classes."
            raise ValueError(msg)

    def _targets(self, labels: Any, X: Array) -> Array:
        return placed(self._encoder.transform(labels).astype(np.float64)[:, None], X)

    def _probabilities(self, X: Any) -> tuple[Array, bool]:
        A, host = self._fitted_inputs(X)
        mean = self.model_.predict(A, observed=True).mean
        xp = backend_of(mean).xp
        return (xp.concat([1.0 - mean, mean], axis=1) if len(self.classes_) == 2 else mean), host
