"""Models for regression with Gaussian noise that hold the training data."""

import numbers
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp._context import public
from agp.backend import Array, backend_of
from agp.batch import Batch
from agp.bounds import evidence_upper_bound
from agp.checks import check_inputs, check_targets, check_weights
from agp.chunking import budget, mebibytes, rows_within, tile_rows
from agp.kernels import Kernel, White
from agp.likelihoods import Gaussian, Likelihood
from agp.means import Mean
from agp.models._base import Model, WithInducing
from agp.models._start import Observed, prepare_data


def prepare_regression(
    model_class: type, X: Array, y: Array, parts: Mapping[str, Any], /, *, weights: Array | None = None
) -> Observed:
    """Call `prepare_data` for a model with one Gaussian noise variance.

    Raises TypeError if the likelihood is not Gaussian, and ValueError if it allows missing targets or has separate
    noise variances.
    """
    likelihood = parts["likelihood"]
    if isinstance(likelihood, Likelihood) and not isinstance(likelihood, Gaussian):
        name = type(likelihood).__name__
        msg = f"{model_class.__name__} needs the Gaussian likelihood, not {name}; use SVGP."
        raise TypeError(msg)
    if isinstance(likelihood, Gaussian):
        check_same_for_outputs(model_class, likelihood)
    return prepare_data(X, y, parts, by_output=False, weights=weights)


def check_same_for_outputs(model_class: type, likelihood: Gaussian) -> None:
    """Raise ValueError for separate noise variances or missing targets, because outputs share one covariance matrix."""
    noise = likelihood.noise_variance
    if isinstance(noise, (list, tuple)) or (noise is not None and not isinstance(noise, numbers.Real) and noise.ndim):
        msg = (
            f"{model_class.__name__} uses one noise_variance for all outputs; pass a number, or "
            "use SVGP, which supports one variance per output."
        )
        raise ValueError(msg)
    if likelihood.missing:
        msg = (
            f"{model_class.__name__} does not support missing targets, but the likelihood has missing=True; use SVGP, "
            "or drop rows with missing targets and omit missing=."
        )
        raise ValueError(msg)


def check_without_white(model_class: type, kernel: Kernel, X: Array) -> None:
    """Raise ValueError if the kernel has white noise. Models that evaluate covariances in tiles do not support it."""
    x = backend_of(X).gather(X[:1, :])
    # compares k(x), which contains white noise, with k(x, x), which does not; this also works for users' kernels
    alone, pair = float(kernel(x)[0][0, 0]), float(kernel(x, x)[0][0, 0])
    if tree.nodes(kernel, White) or abs(alone - pair) > 1e-3 * abs(alone):
        name = model_class.__name__
        msg = f"kernel contains white noise, but {name} has noise in the likelihood; remove White from the kernel."
        raise ValueError(msg)


def first_datum(X: Array, y: Array) -> dict[str, Array]:
    """Check the shapes of a model's data, and return the first row as leaves X [1, D] and y [1, P]."""
    check_inputs("X", X, finite=False)
    check_targets(X, y, finite=False)
    if y.ndim != 2:
        msg = f"y has shape {tuple(y.shape)}, but must have shape [N, P]."
        raise ValueError(msg)
    return {"X": X[:1, :], "y": y[:1, :]}


class Regression(Model):
    """Base class of models with Gaussian noise that hold the training data.

    The bounds of these models are computed from all data at once. Subclasses have the constant leaves `X` [N, D] and
    `y` [N, P].
    """

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    mean_function: Mean
    X: Array
    y: Array

    posterior: ClassVar[None] = None
    stochastic: ClassVar[bool] = False
    _holds_data: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.y.shape[1]

    def _batch(self, X: Array, y: Array, /, *, scale: float = 1.0) -> Batch:
        if self._row_weights is not None:
            check_weights(self._row_weights, X, finite=False)
        return super()._batch(X, y, scale=scale)

    def _check_same_data(self, X: Array, y: Array, /) -> None:
        B = backend_of(X)
        if not (B.same_rows(X, self.X) and B.same_rows(y, self.y)):
            msg = f"{type(self).__name__} predicts from the data with which it was built; train it on the same data."
            raise ValueError(msg)

    def _on_first_datum(self) -> Self:
        first = first_datum(self.X, self.y)
        if self._row_weights is not None:
            first["weights"] = check_weights(self._row_weights, self.X, finite=False)[:1]
        return tree.with_leaves(self, first)

    def _check_parts(self) -> None:
        check_same_for_outputs(type(self), self.likelihood)

    def _reference(self) -> tuple[str, Array]:
        return "the training data", self.X


class SparseRegression(WithInducing, Regression):
    """Base class of regression with M inducing variables. The bound processes the data in blocks of rows."""

    def _check(self, X: Array, y: Array, /) -> None:
        super()._check(X, y)
        self.inducing.check(self.kernel)

    @public(ignore="underflow")
    def upper_bound(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """Compute an upper bound on the log evidence of the exact GP, summed over the N rows and the outputs.

        At fixed hyperparameters, further inducing inputs can increase the bound by at most (upper_bound - bound) / N,
        in nats per row. See `bound` for the arguments and errors.
        """
        batch = self._batch(X, y)
        return evidence_upper_bound(self, batch.X, batch.y, block_rows=self._block_rows(batch.X, memory))

    def _evidence_interval(self, X: Array, y: Array, /) -> tuple[Array, Array] | None:
        return self.bound(X, y)[0], self.upper_bound(X, y)

    def _block_rows(self, X: Array, memory: float | None) -> int | None:
        # blocks have at least M rows: with fewer, adding to the M x M sums would take longer than computing the block
        within = rows_within(memory, self._floats_per_row, X)
        rows = max(tile_rows(memory, self._floats_per_row, X), min(within, self.inducing.count))
        return rows if rows < X.shape[0] or backend_of(X).is_lazy else None

    def _num_cached_rows(self, X: Array, memory: float | None) -> int:
        """Return the number of rows for which Kuf, its unscaled form and A fit in memory together with one block."""
        left = budget(memory, X) - mebibytes(self._floats_per_row * (self._block_rows(X, memory) or 0), X)
        floats = 3 * self.inducing.count
        return rows_within(left, floats, X) if left > mebibytes(floats, X) else 0

    @property
    def _floats_per_row(self) -> int:
        # counts the kernel's arrays, Kuf, A, their cotangents and temporary arrays
        return self.inducing.floats_per_row(self.kernel) + 4 * self.inducing.count + self.outputs
