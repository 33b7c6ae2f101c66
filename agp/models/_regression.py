"""Models for regression with Gaussian noise that hold the training data."""

import dataclasses
import numbers
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch, RowNoise, evidence_upper_bound, targets_of
from agp.checks import as_columns, check_inputs, check_targets, check_weights, known_of_rows
from agp.chunking import budget, mebibytes, rows_within, tile_rows
from agp.errors import count_of
from agp.inducing import Points
from agp.kernels import Kernel, White
from agp.likelihoods import Gaussian, Likelihood
from agp.means import Mean, ZeroMean
from agp.models._base import Model, WithInducing
from agp.models._start import Observed, prepare_data
from agp.posteriors import Exact
from agp.priors import Priors
from agp.processes import Sparse
from agp.repairs import public


def prepare_regression(model_class: type, X: Array, y: Array, parts: Mapping[str, Any], /) -> Observed:
    """Call `prepare_data` for a model with one Gaussian noise variance.

    Raises TypeError if the likelihood is not Gaussian, and ValueError if it allows missing targets or has separate
    noise variances.
    """
    likelihood = parts["likelihood"]
    if isinstance(likelihood, Likelihood) and not isinstance(likelihood, Gaussian):
        name = type(likelihood).__name__
        raise TypeError(f"{model_class.__name__} needs the Gaussian likelihood, not {name}; use SVGP.")
    if isinstance(likelihood, Gaussian):
        check_same_for_outputs(model_class, likelihood)
    data = prepare_data(X, y, parts, by_output=False)
    check_one_noise(model_class, data.known["noise"])
    if data.known["weights"] is not None:
        check_weights(data.known["weights"], X)
    return data


def exact_process(model: "HoldsData", /) -> Sparse:
    """Return the exact posterior process of a model that holds its data."""
    residual = targets_of(model._data) - model.mean_function(model.X)[0]
    posterior = Exact(residual, model._noise_by_row)
    return Sparse(model.kernel, Points(model.X), posterior, model.mean_function, jitter=0.0)


def check_same_for_outputs(model_class: type, likelihood: Gaussian) -> None:
    """Raise ValueError for separate noise variances or missing targets, because outputs share one covariance matrix."""
    noise = likelihood.noise_variance
    if isinstance(noise, (list, tuple)) or (noise is not None and not isinstance(noise, numbers.Real) and noise.ndim):
        raise ValueError(
            f"{model_class.__name__} uses one noise_variance for all outputs; pass a number, or "
            "use SVGP, which supports one variance per output."
        )
    if likelihood.missing:
        raise ValueError(
            f"{model_class.__name__} does not support missing targets, but the likelihood has missing=True; use SVGP, "
            "or drop rows with missing targets and omit missing=."
        )


def check_without_white(model_class: type, kernel: Kernel, X: Array) -> None:
    """Raise ValueError if the kernel has white noise. Models that evaluate covariances in tiles do not support it."""
    x = backend_of(X).gather(X[:1, :])
    # compares k(x), which contains white noise, with k(x, x), which does not; this also works for users' kernels
    alone, pair = float(kernel(x)[0][0, 0]), float(kernel(x, x)[0][0, 0])
    if tree.nodes(kernel, White) or abs(alone - pair) > 1e-3 * abs(alone):
        name = model_class.__name__
        raise ValueError(
            f"kernel contains white noise, but {name} has noise in the likelihood; remove White from the kernel."
        )


class HoldsData(Model):
    """Base class of models with Gaussian noise that hold data: the constant leaves below, with a row for each datum."""

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    mean_function: Mean
    X: Array
    """Inputs [N, D]."""
    y: Array
    """Targets [N, P]."""
    weights: Array | None
    """The number of observations [N] that each row represents; None means 1."""
    offset: Array | None
    """Numbers [N, 1] or [N, P] that are added to the latent functions; None means 0."""
    noise: Array | None
    """Known noise variances [N, 1], which are added to the trained noise variance; None means 0."""

    _holds_data: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.y.shape[1]

    @property
    def _data(self) -> Batch:
        """Return all rows that the model holds."""
        return Batch(self.X, self.y, weights=self.weights, offset=self.offset, noise=self.noise)

    def _held_rows(self) -> dict[str, Array]:
        parts = {name: getattr(self, name) for name in ("X", "y", "weights", "offset", "noise")}
        return {name: x for name, x in parts.items() if x is not None}

    @property
    def _noise_by_row(self) -> Array:
        """Return the noise variance of the rows: 0-d, or [N] if rows have weights or known noise."""
        return RowNoise.of(self.likelihood.noise_variance, self._data).by_row

    def _batch(self, X: Array, y: Array, /, **known: Any) -> Batch:
        batch = super()._batch(X, y, **known)
        check_one_noise(type(self), batch.noise)
        if batch.weights is not None:
            check_weights(batch.weights, X, finite=False)
        return batch

    def _on_first_datum(self) -> Self:
        check_inputs("X", self.X, finite=False)
        check_targets(self.X, self.y, finite=False)
        if self.y.ndim != 2:
            raise ValueError(f"y has shape {tuple(self.y.shape)}, but must have shape [N, P].")
        known = known_of_rows(self.X, self.outputs, self.weights, self.offset, self.noise)
        rows = {"X": self.X, "y": self.y} | {name: x for name, x in known.items() if x is not None}
        return tree.with_leaves(self, {name: x[:1, ...] for name, x in rows.items()})

    def _check_parts(self) -> None:
        check_same_for_outputs(type(self), self.likelihood)
        self.mean_function.check_tags(tagged=self.kernel.reads_tags)


@tree.model
class WithData(HoldsData):
    """Base class of models with the fields of `HoldsData`, of which those after the likelihood are passed by name."""

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    _: KW_ONLY
    X: Array = tree.constant()
    y: Array = tree.constant()
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    weights: Array | None = tree.constant(default=None, optional=True)
    offset: Array | None = tree.constant(default=None, optional=True)
    noise: Array | None = tree.constant(default=None, optional=True)


def check_one_noise(model_class: type, noise: Array | None) -> None:
    """Raise ValueError if known noise variances [N, P] differ between outputs, which share one covariance matrix."""
    if noise is not None and noise.shape[1] > 1:
        raise ValueError(
            f"noise has {count_of(noise.shape[1], 'column')}, but the outputs of {model_class.__name__} share one "
            "covariance "
            "matrix; pass one noise variance for each row, or use SVGP."
        )


class Regression(HoldsData):
    """Base class of models with Gaussian noise that hold all training data.

    The bounds of these models are computed from all data at once.
    """

    posterior: ClassVar[None] = None
    stochastic: ClassVar[bool] = False

    def _batch(self, X: Array, y: Array, /, **known: Any) -> Batch:
        for name in ("weights", "offset", "noise"):  # by default, what was given to `from_data`
            if known.get(name) is None:
                known[name] = getattr(self, name)
        return super()._batch(X, y, **known)

    def _replace_data(self, batch: Batch, /) -> Self:
        weights, offset, noise = batch.known
        rows = {"X": batch.X, "y": as_columns(batch.y), "weights": weights, "offset": offset, "noise": noise}
        return dataclasses.replace(self, **rows)  # type: ignore[type-var]

    def _check_same_data(self, batch: Batch, /) -> None:
        B = backend_of(batch.X)
        for name, held in self._data._asdict().items():
            given = getattr(batch, name)
            if name in ("scale", "rows", "draws") or (given is None and held is None):
                continue
            if given is None or held is None or not B.same_rows(given, held):
                msg = (
                    f"{type(self).__name__} predicts from the data with which it was built; train it on the same data."
                    if name in ("X", "y")
                    else f"{name} differs from what {type(self).__name__} was built with; pass {name} to from_data."
                )
                raise ValueError(msg)

    def _reference(self) -> tuple[str, Array]:
        return "the training data", self.X


class SparseRegression(WithInducing, Regression):
    """Base class of regression with M inducing variables. The bound processes the data in blocks of rows."""

    def _check(self, batch: Batch, /) -> None:
        super()._check(batch)
        self.inducing.check(self.kernel)

    @public(ignore="underflow")
    def upper_bound(
        self,
        X: Array,
        y: Array,
        /,
        *,
        weights: Array | None = None,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Array:
        """Compute an upper bound on the log evidence of the exact GP, summed over the N rows and the outputs.

        At fixed hyperparameters, further inducing inputs can increase the bound by at most (upper_bound - bound) / N,
        in nats per row. See `bound` for the arguments and errors.
        """
        batch = self._batch(X, y, weights=weights, offset=offset, noise=noise)
        return evidence_upper_bound(self, batch, block_rows=self._block_rows(batch.X, memory))

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
