"""Regression with Gaussian noise by models that hold their data."""

import numbers
from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import evidence_upper_bound
from agp.checks import check_inputs, check_targets
from agp.entrances import entrance
from agp.host import underflow_is_zero
from agp.inducing import Points
from agp.kernels import Kernel, White
from agp.likelihoods import Gaussian, Likelihood
from agp.linalg import add_diagonal, cholesky, nonnegative
from agp.means import Mean
from agp.models._base import Conditioned, Model
from agp.processes import Paths, SparsePrior, conditioned_paths
from agp.repairs import counted
from agp.rows import MEMORY, mebibytes, rows_within, tile_rows

__all__ = [
    "Regression",
    "SparseRegression",
    "check_without_white",
    "data_paths",
    "exact_paths",
    "exact_posterior",
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


class Regression(Model):
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

    def check(self, X: Array, y: Array, /) -> None:
        super().check(X, y)
        B = backend_of(X)
        if not (B.same_rows(X, self.X) and B.same_rows(y, self.y)):
            msg = f"{type(self).__name__} predicts from the data that it was built with; train it on the same data."
            raise ValueError(msg)

    def on_first_datum(self) -> Self:
        return tree.with_leaves(self, first_datum(self.X, self.y))

    def _check_parts(self) -> None:
        check_same_for_outputs(type(self), self.likelihood)

    def _reference(self) -> tuple[str, Array]:
        return "the training data", self.X


def exact_posterior(model: Regression) -> Conditioned:
    """The exact posterior, by the Cholesky factor of K + sigma^2 I: N^3 operations once, N^2 for each test input."""
    B = backend_of(model.X)
    xp = B.xp
    K = model.kernel(model.X)[0]
    L = cholesky(add_diagonal(K, model.likelihood.noise_variance))
    residual = model.y - model.mean_function(model.X)[0]
    weights = B.solve_triangular(L, B.solve_triangular(L, residual), transpose=True)
    N, P = model.y.shape

    def mean(X: Array) -> Array:
        return model.mean_function(X)[0] + model.kernel(X, model.X)[0] @ weights

    def moments(X: Array) -> tuple[Array, Array]:
        Kfs = model.kernel(model.X, X)[0]
        A = B.solve_triangular(L, Kfs)
        var = nonnegative(model.kernel.diag(X)[0] - xp.sum(A * A, axis=0))[0]
        return model.mean_function(X)[0] + Kfs.mT @ weights, xp.broadcast_to(var[:, None], (X.shape[0], P))

    def covariance(X: Array) -> Array:
        A = B.solve_triangular(L, model.kernel(model.X, X)[0])
        full = model.kernel(X)[0] - A.mT @ A
        return xp.broadcast_to(full, (P, *full.shape))

    return Conditioned(mean, moments, covariance, floats_per_row=N * (model.kernel.floats_per_entry + 2))


def data_paths(model: Regression, solve: Callable[[Array], Array], rng: Any, /, *, count: int, features: int) -> Paths:
    """Samples of the exact posterior as functions, with ``solve``: R [N, K] -> (K + sigma^2 I)^-1 R."""
    xp = backend_of(model.X).xp
    N, P = model.y.shape
    residual = (model.y - model.mean_function(model.X)[0]).mT[:, :, None]

    def weights_of(values: Array, noise: Array) -> Array:
        missing = residual - values - xp.sqrt(model.likelihood.noise_variance) * noise
        solution = solve(xp.reshape(xp.permute_dims(missing, (1, 0, 2)), (N, P * count)))
        return xp.permute_dims(xp.reshape(solution, (N, P, count)), (1, 0, 2))

    choice = {"outputs": P, "count": count, "features": features}
    return conditioned_paths(model, Points(model.X), weights_of, rng, **choice)


def exact_paths(model: Regression, rng: Any, /, *, count: int, features: int) -> Paths:
    """`data_paths` by the Cholesky factor of K + sigma^2 I."""
    B = backend_of(model.X)
    K = model.kernel(model.X)[0]
    L = cholesky(add_diagonal(K, model.likelihood.noise_variance))

    def solve(R: Array) -> Array:
        return B.solve_triangular(L, B.solve_triangular(L, R), transpose=True)

    return data_paths(model, solve, rng, count=count, features=features)


class SparseRegression(Regression, SparsePrior):
    """Such a model with M inducing variables, whose bound takes the data in blocks of rows."""

    def check(self, X: Array, y: Array, /) -> None:
        super().check(X, y)
        self.inducing.check(self.kernel)

    @counted
    @entrance
    @underflow_is_zero
    def upper_bound(self, X: Array, y: Array, /, *, memory: float = MEMORY) -> Array:
        """An upper bound on the log evidence of the exact GP, 0-d, a total over the N data and the outputs.

        The exact log evidence lies between `bound` and this; (upper_bound - bound) / N, in nats per datum, says how
        much more inducing inputs could gain at these hyperparameters. Arguments and errors as `bound`.
        """
        batch = self.batch(X, y)
        return evidence_upper_bound(self, batch.X, batch.y, block_rows=self._block_rows(batch.X, memory))

    def evidence_interval(self, X: Array, y: Array, /) -> tuple[Array, Array] | None:
        return self.bound(X, y)[0], self.upper_bound(X, y)

    def inverted_matrices(self) -> tuple[Array, ...]:
        """Kuu."""
        return (self.inducing_covariance()[0],)

    def _block_rows(self, X: Array, memory: float) -> int | None:
        rows = tile_rows(memory, self._floats_per_row, X)
        return rows if rows < X.shape[0] or backend_of(X).rows_elsewhere else None

    def _kept_rows(self, X: Array, memory: float) -> int:
        """Rows whose Kuf, its unscaled form and A may be kept for the pullback, beside the block at work."""
        left = memory - mebibytes(self._floats_per_row * (self._block_rows(X, memory) or 0), X)
        floats = 3 * self.inducing.count
        return rows_within(left, floats, X) if left > mebibytes(floats, X) else 0

    @property
    def _floats_per_row(self) -> int:
        # the kernel's own arrays, Kuf, A, their cotangents and temporaries
        return self.inducing.floats_per_row(self.kernel) + 4 * self.inducing.count + self.outputs

    @property
    def width(self) -> int:
        return self.inducing.width

    def _reference(self) -> tuple[str, Array]:
        return self.inducing.reference
