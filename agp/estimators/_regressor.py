"""Regression with the conventions of scikit-learn."""

from typing import Any

from sklearn.base import RegressorMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length

from agp.backend import Array, backend_of, placed
from agp.checks import as_columns
from agp.estimators._base import GPEstimator, answered, is_foreign
from agp.estimators._columns import as_frame
from agp.likelihoods import Gaussian
from agp.means import ConstantMean
from agp.methods import FULL_METHODS, METHODS

__all__ = ["GPRegressor"]

EXACT_ROWS = 1000
"""Up to so many rows the exact GP is the default."""
COLLAPSED_ROWS = 50_000
"""Up to so many, collapsed sparse regression; beyond, minibatches."""


def _takes_parts(estimator: Any) -> bool:
    return estimator.method == "auto" or estimator.method not in FULL_METHODS


class GPRegressor(RegressorMixin, GPEstimator):
    """Gaussian-process regression: means with error bars.

    Parameters
    ----------
    method
        "auto", or the short name of a method of `agp compare` for Gaussian noise: "gpr" (exact), "sgpr" (collapsed),
        "wsvgp", "rsvgp" (inverse-free) and so on. By default exact up to 1,000 rows, collapsed up to 50,000, and
        minibatches beyond.
    kernel
        An `agp.kernels.Kernel`, or text such as ``"matern32 + linear"``.
    num_inducing
        The number of inducing inputs; by default 8 square roots of N, from 100 to 1,000.
    missing
        What happens to missing cells of X: "refuse", or "impute" by the mean, with a further column that says where.
    backend, device, dtype
        Where, and how precisely, to compute: names as for `agp.to_backend`; by default as the inputs are.
    tolerance, max_steps, max_seconds, batch_size
        When training ends, and on how many rows a step looks: as `agp.fit`.
    random_state
        A seed, a NumPy generator of the old kind, or None; of inducing inputs and minibatches.
    verbose
        Show a progress bar.

    Attributes
    ----------
    model_
        The trained `agp.models.Model`.
    method_
        The method that "auto" stands for.
    bound_
        The bound on the log evidence of the training data.
    history_
        What each step logged, by name.
    n_iter_, converged_
        Steps taken, and whether training ended by its tolerance.
    n_features_in_, feature_names_in_
        As in every estimator of scikit-learn.
    """

    def fit(self, X: Any, y: Any) -> "GPRegressor":
        """Train on X, a table [N, D] of any kind, and targets y [N] or [N, K]."""
        X, y = self._data(X, y, reset=True)
        self._fit(self._model(X, y), X, y)
        return self

    @available_if(_takes_parts)
    def partial_fit(self, X: Any, y: Any) -> "GPRegressor":
        """A training step on some more rows; the first call also sets the model up, and should be representative."""
        first = "n_rows_seen_" not in vars(self)
        X, y = self._data(X, y, reset=first)
        if first:
            self._start_parts(self._model(X, y))
        self._fit_part(X, y)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Means [N] or [N, K] of new observations at X [N, D].

        With `return_std` their standard deviations, noise included, of the same shape; with `return_cov` instead their
        joint covariances [N, N] or [N, N, K].
        """
        if return_std and return_cov:
            msg = "at most one of return_std and return_cov can be asked for."
            raise ValueError(msg)
        A, host = self._fitted_inputs(X)
        mean, variance = self.model_.predict(A, observed=True)
        if return_cov:
            covariance = self.model_.predict_covariance(A)
            B = backend_of(covariance)
            noise = (variance - self.model_.predict(A).variance).mT
            covariance = covariance + noise[:, :, None] * B.xp.eye(covariance.shape[-1], dtype=covariance.dtype)
            stacked = B.xp.permute_dims(covariance, (1, 2, 0))
            return self._shaped(mean, host=host), self._shaped(stacked, host=host)
        if return_std:
            return self._shaped(mean, host=host), self._shaped(backend_of(variance).xp.sqrt(variance), host=host)
        return self._shaped(mean, host=host)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Joint samples of the function at X [N, D]: [N, n_samples] or [N, K, n_samples]."""
        A, host = self._fitted_inputs(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        samples = self.model_.sample(A, n_samples, seed=seed)
        samples = backend_of(samples).xp.permute_dims(samples, (1, 2, 0))
        return answered(samples[:, 0, :] if self._single else samples, host=host)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _methods(self) -> list[str]:
        return list(METHODS)

    def _usual_method(self, rows: int) -> str:
        return "gpr" if rows <= EXACT_ROWS else "sgpr" if rows <= COLLAPSED_ROWS else "wsvgp"

    def _model(self, X: Array, y: Array) -> Any:
        return self._built(X, y, Gaussian(), mean_function=ConstantMean())

    def _data(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        if y is None:
            msg = f"{type(self).__name__} requires y to be passed, but the target y is None."
            raise ValueError(msg)
        A = self._placed(self._inputs(X, reset=reset))
        frame = as_frame(y)
        if is_foreign(y):
            targets = self._placed(y)
        else:
            host = frame.to_numpy() if frame is not None else y
            host = check_array(host, dtype="float64", ensure_2d=False, input_name="y", estimator=self)
            host = column_or_1d(host, warn=True) if host.ndim == 2 and host.shape[1] == 1 and frame is None else host
            check_consistent_length(X, host)
            targets = placed(host, A)
        self._single = targets.ndim == 1
        return A, as_columns(targets)

    def _shaped(self, x: Array, *, host: bool) -> Any:
        """An answer [..., K], without its last axis where the targets were [N]."""
        return answered(x[..., 0] if self._single else x, host=host)
