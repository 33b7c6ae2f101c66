"""Gaussian-process regression in which each row depends on few neighbours."""

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Self, Unpack

from agp import tree
from agp.backend import Array, Pullback, backend_of, row_numbers
from agp.bounds import Batch, Expansion, NearRows, expand_near, near_densities, near_evidence, targets_of
from agp.checks import check_choice, check_whole
from agp.chunking import cached_rows, row_ranges, tile_rows
from agp.inducing import Inducing, Points
from agp.linalg import cholesky, lower_of, relative_cholesky_pullback
from agp.models._base import WithInducing
from agp.models._neighbours import NEIGHBOURS, WithNeighbours
from agp.models._parts import ExactParts, SparseParts
from agp.models._regression import Regression, WithData, prepare_regression
from agp.models._start import Observed, exact_parts, held_in_memory, initialise_model, sparse_parts
from agp.processes import NearestNeighbours, Process, near_search, ordered_rows
from agp.repairs import public


@tree.model
class NearRegression(WithNeighbours, WithData, Regression):
    """Base class of regression with neighbours."""

    _: KW_ONLY
    squares: Array | None = tree.constant(default=None, optional=True)
    sets: Array | None = tree.constant(default=None, optional=True)
    neighbours: int = NEIGHBOURS
    seed: int = 0

    @property
    def _left_out(self) -> bool:
        """Whether each row is predicted from all other rows."""
        return False

    @property
    def _near_data(self) -> NearRows:
        known = None if self.noise is None else self.noise[:, 0]
        return NearRows(self.X, targets_of(self._data), self.weights, known, self.squares)

    def _find_sets(self, rows: Array | None = None, *, memory: float | None = None) -> Array:
        """Return the numbers [n, k] of the neighbours of some rows, or of all."""
        search, N = near_search(self.kernel, self.X), self.X.shape[0]
        order = ordered_rows(N, self.seed, self.X)
        xp = backend_of(order).xp
        found = search.earlier(order, min(self.neighbours, N), memory=memory)
        found = xp.take(found, xp.argsort(order), axis=0)
        return found if rows is None else xp.take(found, rows, axis=0)

    def _process(self, memory: float | None, **inducing: Any) -> NearestNeighbours:
        xp = backend_of(self.X).xp
        noise = xp.broadcast_to(self._noise_by_row, (self.X.shape[0],))
        parts = {"neighbours": self.neighbours, "seed": self.seed, "memory": memory}
        y = targets_of(self._data)
        return NearestNeighbours(self.kernel, self.mean_function, self.X, y, noise, **parts, **inducing)

    def _replace_data(self, batch: Batch, /) -> Self:
        return dataclasses.replace(super()._replace_data(batch), sets=None, squares=None)

    def _on_first_datum(self) -> Self:
        one = super()._on_first_datum()
        squares = None if self.squares is None else self.squares[:1]
        return dataclasses.replace(one, sets=None, squares=squares)  # type: ignore[type-var]


@tree.model
class NNGP(NearRegression):
    """Regression with a nearest-neighbour Gaussian process: each function value depends on k near rows.

    Predictions are those of exact GPs on the k nearest rows, in O(k^3) time per row plus the search. The bound is the
    log evidence of the model in which each row depends on its nearest rows among those before it in a random order
    (Vecchia's approximation). It is the evidence of a proper Gaussian model, exact if k = N - 1, but not a bound on
    that of the GP. Since it is a sum over rows, minibatches are unbiased. Predicted means and variances jump where the
    set of neighbours changes; see docs/methods/neighbours.md.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise. White noise belongs in the likelihood.
    X, y
        The training inputs [N, D] and targets [N, P], which are also used for prediction.
    mean_function, priors
        See `SVGP`.
    weights, offset, noise
        What is known of the rows; see `GPR`.
    squares
        For rows that stand for several observations with the mean y: the sums [N] of squared deviations of these
        observations from their mean, over all outputs. None means 0.
    sets
        The numbers [N, k] of the neighbours of the training rows, with -1 where there are fewer than k. None means that
        they are found whenever the bound is computed.
    neighbours
        The number of neighbours k.
    among
        "earlier": the bound is the evidence. "others": the bound is the sum of the log densities of rows given the
        nearest other rows, which trains what predictions use.
    seed
        The seed of the random order.

    Source: Datta, Banerjee, Finley & Gelfand, "Hierarchical nearest-neighbor Gaussian process models for large
    geostatistical datasets", JASA 2016; for predictions, Allison, Stephenson & Pyzer-Knapp, "Leveraging locality and
    robustness to achieve massively scalable Gaussian process regression", NeurIPS 2023.

    Examples
    --------
    With more neighbours, the bound approaches the log evidence of the exact GP.

    >>> import numpy as np
    >>> import agp
    >>> X = np.random.default_rng(0).uniform(0.0, 10.0, (60, 2))
    >>> y = np.sin(X[:, 0]) + np.cos(X[:, 1])
    >>> parts = {"kernel": agp.RBF(1.0, 2.0), "likelihood": agp.Gaussian(0.01)}
    >>> for k in (5, 20, 59):
    ...     model = agp.NNGP.from_data(X, y, neighbours=k, **parts)
    ...     print(k, round(float(model.bound(X, y)[0]), 1))
    5 -22.9
    20 -6.1
    59 -5.6
    >>> round(float(agp.GPR.from_data(X, y, **parts).bound(X, y)[0]), 1)
    -5.6
    """

    _: KW_ONLY
    among: str = "earlier"

    inducing: ClassVar[None] = None
    stochastic: ClassVar[bool] = True

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        neighbours: int = NEIGHBOURS,
        among: str = "earlier",
        seed: int = 0,
        **parts: Unpack[ExactParts],
    ) -> Self:
        """Build a model that is ready for training.

        Parameters
        ----------
        neighbours
            The number of neighbours k.
        among
            "earlier" or "others"; see `NNGP`.
        seed
            The seed of the random order of the rows.

        Raises
        ------
        TypeError
            If the likelihood is not Gaussian.
        ValueError
            If the kernel has a `White` part, or `neighbours` is not positive.
        """
        data = prepare_regression(cls, X, y, parts)
        own = {"neighbours": check_whole("neighbours", neighbours), "among": among, "seed": seed}
        model = cls(**exact_parts(data), **held_in_memory(cls, X, y, data), **own)
        model._check_neighbours()
        return initialise_model(model.renew_neighbours(), data)

    def _check_neighbours(self) -> None:
        super()._check_neighbours()
        check_choice("among", self.among, ("earlier", "others"))

    @property
    def _left_out(self) -> bool:
        return self.among == "others"

    def _find_sets(self, rows: Array | None = None, *, memory: float | None = None) -> Array:
        return self._others(rows, memory) if self._left_out else super()._find_sets(rows, memory=memory)

    def _others(self, chosen: Array | None, memory: float | None) -> Array:
        """Return the nearest other rows, after the row itself if rows have weights."""
        rows, sets = self._find_others(chosen, memory)
        return sets if self.weights is None else backend_of(sets).xp.concat([rows[:, None], sets], axis=1)

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        self._check_rows(batch)
        rows, sets = self._sets_of(batch.rows, memory)
        choice: Any = {"left_out": self._left_out, "block_rows": self._block_rows(memory)}
        value, pull = near_evidence(self, self._near_data, rows, sets, **choice)
        return batch.scale * value, lambda bar=1.0: (pull(bar * batch.scale), None)

    def _expand(self, batch: Batch, scales: Mapping[str, Array], /) -> Expansion | None:
        rows, sets = self._sets_of(batch.rows, None)
        size = cached_rows(self._floats_per_group(), self.X)
        return expand_near(self, self._near_data, rows, sets, scales, left_out=self._left_out, block_rows=size)

    @public(ignore="underflow")
    def leave_one_out(self, *, memory: float | None = None) -> Array:
        """Compute the log densities log p(y_n | k nearest other rows) [N], summed over outputs.

        Of a row that stands for several observations, one is left out, and the result is the average over them. The
        computation takes O(N k^3) operations.

        Parameters
        ----------
        memory
            Memory budget for working arrays, in MiB.
        """
        xp, N = backend_of(self.X).xp, self.X.shape[0]
        rows, sets = row_numbers(N, self.X), self._others(None, memory)
        blocks = row_ranges(N, self._block_rows(memory))
        return xp.concat([near_densities(self, self._near_data, rows[i:j], sets[i:j, :]) for i, j in blocks])

    def _posterior_process(self, *, memory: float | None = None) -> Process:
        return self._process(memory)


@tree.model
class VIF(WithInducing, NearRegression):
    """Regression with inducing inputs, and with neighbours for what the inducing inputs leave.

    The function is f = A(x)^T v + g(x), where v are M whitened inducing variables and g depends on k near rows only. As
    in SOLVE-GP, the two parts are independent in the prior. The bound is the log evidence of this Gaussian model, in
    which g at each row depends on the nearest rows before it in a random order. It is exact if k = N - 1, and FITC
    without neighbours; it is not a bound on the evidence of the GP. Training takes O(N k^2 (k + M)) operations per
    evaluation, a prediction O(k^2 (k + M)). The features A of all rows, N M numbers, are held in memory.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise. White noise belongs in the likelihood.
    inducing
        The inducing variables, such as `agp.inducing.Points`.
    X, y
        The training inputs [N, D] and targets [N, P], which are also used for prediction.
    jitter
        The number added to the diagonal of Kuu; see `SGPR`.
    mean_function, priors
        See `SVGP`.
    weights, offset, noise
        What is known of the rows; see `GPR`.
    squares, sets, neighbours, seed
        See `NNGP`.
    posterior_rows
        The number of random rows from which predictions compute the posterior of the inducing variables; None means
        all. With fewer rows, predictions are prepared sooner, and their error bars are wider where the inducing inputs
        matter. All rows can be neighbours in any case.

    Source: Gyger, Furrer & Sigrist, "Vecchia-inducing-points full-scale approximations for Gaussian processes", 2025.

    Examples
    --------
    With the same few neighbours, inducing inputs bring the bound closer to the log evidence of the exact GP.

    >>> import numpy as np
    >>> import agp
    >>> X = np.random.default_rng(0).uniform(0.0, 10.0, (60, 2))
    >>> y = np.sin(X[:, 0]) + np.cos(X[:, 1])
    >>> parts = {"kernel": agp.RBF(1.0, 2.0), "likelihood": agp.Gaussian(0.01)}
    >>> near = agp.NNGP.from_data(X, y, neighbours=5, **parts)
    >>> both = agp.VIF.from_data(X, y, neighbours=5, Z=X[:20, :], **parts)
    >>> exact = agp.GPR.from_data(X, y, **parts)
    >>> [round(float(model.bound(X, y)[0]), 1) for model in (near, both, exact)]
    [-22.9, -7.6, -5.6]
    """

    inducing: Inducing
    _: KW_ONLY
    jitter: float | None = None
    posterior_rows: int | None = None

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        neighbours: int = NEIGHBOURS,
        posterior_rows: int | None = None,
        **parts: Unpack[SparseParts],
    ) -> Self:
        """Build a model that is ready for training.

        Parameters
        ----------
        neighbours
            The number of neighbours k.
        posterior_rows
            The number of random rows from which predictions compute the posterior of the inducing variables.

        Raises
        ------
        TypeError
            If the likelihood is not Gaussian, or the inducing variables are not `agp.inducing.Points`.
        ValueError
            If the kernel has a `White` part, or `neighbours` is not positive.
        """
        data: Observed = prepare_regression(cls, X, y, parts)
        if isinstance(given := data.options["inducing"], Inducing) and not isinstance(given, Points):
            raise TypeError(
                f"inducing is {type(given).__name__}, but {cls.__name__} evaluates its kernel between rows, and needs "
                f"Points; use SVGP for {type(given).__name__}."
            )
        some = None if posterior_rows is None else check_whole("posterior_rows", posterior_rows)
        k: Any = check_whole("neighbours", neighbours)
        own = {"neighbours": k, "posterior_rows": some, "seed": parts.get("seed", 0)}
        model = cls(**sparse_parts(data), **held_in_memory(cls, X, y, data), **own)
        model._check_neighbours()
        return initialise_model(model.renew_neighbours(), data)

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        self._check_rows(batch)
        rows, sets = self._sets_of(None, memory)
        block = self._block_rows(memory, self.inducing.count)
        features = self._whitened_features(memory)
        value, pull = near_evidence(self, self._near_data, rows, sets, features=features, block_rows=block)
        return value, lambda bar=1.0: (pull(bar), None)

    def _whitened_features(self, memory: float | None) -> tuple[Array, Pullback]:
        """Return the features A [N, M] of all rows, and their pullback ``A_bar -> model_bar``."""
        B = backend_of(self.X)
        Kuu, pull_Kuu = self._inducing_covariance()
        Lz = cholesky(Kuu)
        rows = tile_rows(memory, self.inducing.floats_per_row(self.kernel) + 3 * self.inducing.count, self.X)
        A, pull = B.map_rows(_features_of_block, (self, Lz), self.X, rows, add=tree.add)

        def pullback(A_bar):
            (model_bar, change_bar), _ = pull(A_bar)
            return tree.add(model_bar, pull_Kuu(relative_cholesky_pullback(Lz, change_bar)))

        return A, pullback

    def _posterior_process(self, *, memory: float | None = None) -> Process:
        parts = {"inducing": self.inducing, "jitter": self.jitter, "posterior_rows": self.posterior_rows}
        return self._process(memory, sets=self.sets, **parts)


def _features_of_block(params: tuple[VIF, Array], X: Array) -> tuple[Array, Pullback]:
    """Return the features [n, M] of rows X [n, D], and the pullback ``bar -> ((model_bar, Lz^-1 dLz_bar), X_bar)``."""
    model, Lz = params
    B = backend_of(X)
    Kuf, pull = model.inducing.cross(model.kernel, X)
    A = B.solve_triangular(Lz, Kuf)

    def pullback(bar):
        inducing_bar, kernel_bar, X_bar = pull(B.solve_triangular(Lz, bar.mT, transpose=True))
        model_bar = tree.cotangent(model, kernel=kernel_bar, inducing=inducing_bar)
        return (model_bar, -lower_of(bar.mT, A.mT)), X_bar

    return A.mT, pullback
