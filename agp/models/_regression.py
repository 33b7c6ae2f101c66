"""Regression with Gaussian noise by models that hold their data."""

import numbers
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
from agp.models._base import Model
from agp.models._parts import WithoutPosterior
from agp.processes import SparsePrior

__all__ = [
    "Regression",
    "SparseRegression",
    "check_without_white",
    "first_datum",
    "gaussian_only",
]


def gaussian_only(model_class: type, likelihood: Any) -> Any:
    """The likelihood. TypeError if it is one, but not Gaussian; ValueError if its targets may be missing."""
    if isinstance(likelihood, Likelihood) and not isinstance(likelihood, Gaussian):
        name = type(likelihood).__name__
        msg = f"{model_class.__name__} needs the Gaussian likelihood, not {name}; use SVGP."
        raise TypeError(msg)
    if isinstance(likelihood, Gaussian):
        check_same_for_outputs(model_class, likelihood)
    return likelihood


def check_same_for_outputs(model_class: type, likelihood: Gaussian) -> None:
    """ValueError for noise by output, or targets that may be missing: rows are taken as a whole, by one covariance."""
    noise = likelihood.noise_variance
    if isinstance(noise, (list, tuple)) or (noise is not None and not isinstance(noise, numbers.Real) and noise.ndim):
        msg = (
            f"{model_class.__name__} has one covariance for all outputs, so one noise_variance; give one number, or "
            "use SVGP, which takes one for each."
        )
        raise ValueError(msg)
    if likelihood.missing:
        msg = (
            f"{model_class.__name__} cannot leave out single targets, which Gaussian(missing=True) asks for; use SVGP, "
            "or drop such rows."
        )
        raise ValueError(msg)


def check_without_white(model_class: type, kernel: Kernel, X: Array) -> None:
    """ValueError for a kernel with white noise, for models that evaluate its covariance matrix in tiles of X [N, D]."""
    x = backend_of(X).gathered(X[:1, :])
    # one argument sees white noise, two do not: so that of a user's own kernel is seen, too
    alone, pair = float(kernel(x)[0][0, 0]), float(kernel(x, x)[0][0, 0])
    if tree.nodes(kernel, White) or abs(alone - pair) > 1e-3 * abs(alone):
        msg = f"{model_class.__name__} takes white noise as its likelihood's noise; leave White out of the kernel."
        raise ValueError(msg)


def first_datum(X: Array, y: Array) -> dict[str, Array]:
    """The first rows of data that a model holds, as the leaves X [1, D] and y [1, P], all shapes checked."""
    check_inputs("X", X, finite=False)
    check_targets(X, y, finite=False)
    if y.ndim != 2:
        msg = f"y has shape {tuple(y.shape)}, but a model holds it as [N, P]."
        raise ValueError(msg)
    return {"X": X[:1, :], "y": y[:1, :]}


class Regression(Model, WithoutPosterior):
    """A model of Gaussian noise that predicts from the data [N, D] and [N, P] it holds; its bound takes them all.

    Leaves of every such model: `X` and `y`, constant.
    """

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    mean_function: Mean
    X: Array
    y: Array

    stochastic: ClassVar[bool] = False

    @property
    def outputs(self) -> int:
        return self.y.shape[1]

    def _batch(self, X: Array, y: Array, /, *, scale: float = 1.0) -> Batch:
        if self._row_weights is not None:
            check_weights(self._row_weights, X, finite=False)
        return super()._batch(X, y, scale=scale)

    def _check(self, X: Array, y: Array, /) -> None:
        super()._check(X, y)
        B = backend_of(X)
        if not (B.same_rows(X, self.X) and B.same_rows(y, self.y)):
            msg = f"{type(self).__name__} predicts from the data that it was built with; train it on the same data."
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


class SparseRegression(Regression, SparsePrior):
    """Such a model with M inducing variables, whose bound takes the data in blocks of rows."""

    def _check(self, X: Array, y: Array, /) -> None:
        super()._check(X, y)
        self.inducing.check(self.kernel)

    @public(ignore="underflow")
    def upper_bound(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """An upper bound on the log evidence of the exact GP, 0-d, a total over the N data and the outputs.

        The exact log evidence lies between `bound` and this; (upper_bound - bound) / N, in nats per datum, says how
        much more inducing inputs could gain at these hyperparameters. Arguments and errors as `bound`.
        """
        batch = self._batch(X, y)
        return evidence_upper_bound(self, batch.X, batch.y, block_rows=self._block_rows(batch.X, memory))

    def _evidence_interval(self, X: Array, y: Array, /) -> tuple[Array, Array] | None:
        return self.bound(X, y)[0], self.upper_bound(X, y)

    def _inverted_matrices(self) -> tuple[Array, ...]:
        """Kuu."""
        return (self._inducing_covariance()[0],)

    def _block_rows(self, X: Array, memory: float | None) -> int | None:
        # each block adds to sums of M x M numbers, which shall cost less than the block itself
        within = rows_within(memory, self._floats_per_row, X)
        rows = max(tile_rows(memory, self._floats_per_row, X), min(within, self.inducing.count))
        return rows if rows < X.shape[0] or backend_of(X).is_lazy else None

    def _kept_rows(self, X: Array, memory: float | None) -> int:
        """Rows whose Kuf, its unscaled form and A may be kept for the pullback, beside the block at work."""
        left = budget(memory, X) - mebibytes(self._floats_per_row * (self._block_rows(X, memory) or 0), X)
        floats = 3 * self.inducing.count
        return rows_within(left, floats, X) if left > mebibytes(floats, X) else 0

    @property
    def _floats_per_row(self) -> int:
        # the kernel's own arrays, Kuf, A, their cotangents and temporaries
        return self.inducing.floats_per_row(self.kernel) + 4 * self.inducing.count + self.outputs

    @property
    def _width(self) -> int:
        return self.inducing.width

    def _reference(self) -> tuple[str, Array]:
        return self.inducing.reference
