"""Evaluation of predictions in chunks of rows, for sets of rows, and for several posteriors."""

import math
from abc import ABC
from collections.abc import Callable, Iterator
from typing import Any

from agp.backend import Array, asarray_like, backend_of, check_array_type
from agp.checks import check_by_row, check_finite, check_targets
from agp.chunking import row_ranges, rows_within, tile_rows
from agp.likelihoods import Likelihood
from agp.predictors._checks import check_outputs, check_test_inputs
from agp.predictors._evaluation import concat_rows, latent_moments, refuse_nonfinite, split_sets
from agp.predictors._imputed import Imputations
from agp.predictors._saturating import Saturation
from agp.processes import Process
from agp.speculation import speculate
from agp.tree import first_leaf


class ByRows(ABC):
    """Base class of predictors, with the evaluation of functions at rows of inputs."""

    processes: tuple[Process, ...]
    factors: tuple[Any, ...]
    likelihood: Likelihood
    lead: tuple[int, ...]
    saturation: Saturation | None
    imputations: Imputations | None

    @property
    def outputs(self) -> int:
        """The number of latent functions P."""
        return self.processes[0].outputs

    @property
    def width(self) -> int:
        """The number of columns D of the inputs."""
        return self.processes[0].width

    @property
    def reference(self) -> tuple[str, Array]:
        """The name and value of an array with the library, dtype and device of valid inputs."""
        return self.processes[0].reference

    @property
    def floats_per_row(self) -> int:
        """The number of floats in memory per predicted row, for memory budgets."""
        copies = 1 if self.imputations is None else self.imputations.count
        return copies * self.processes[0].floats_per_row + self.likelihood.floats_per_row * self.outputs

    # -- moments ----------------------------------------------------------------------------------------------------

    def _complete(self, evaluate: Callable[..., tuple[Array, ...]], X: Array, *known: Array | None) -> Any:
        """Evaluate ``evaluate(X, *known)``, averaged over possible values of unknown cells."""
        return evaluate(X, *known) if self.imputations is None else self.imputations.average(X, evaluate, *known)

    def _moments(self, process: Process, factor: Any, X: Array, offset: Array | None = None) -> tuple[Array, Array]:
        """Compute the means and variances [S n, P] of the latent functions at X [n, D]."""

        def moments(X: Array, offset: Array | None) -> tuple[Array, Array]:
            return latent_moments(self, process, factor, X, offset)

        return self._complete(moments, X, offset)

    def _variance(self, process: Process, factor: Any, X: Array) -> Array:
        parts = [self._moments(process, factor, chunk) for (chunk,) in self._chunks(process, X, None)]
        return concat_rows(parts)[1]

    def _covariance(self, process: Process, factor: Any, X: Array) -> Array:
        """Compute the joint covariances [L, n, n] of the independent functions at X [n, D]."""
        if self.imputations is None:
            return process.project_covariance(factor, X)
        if process.mixing is not None:
            msg = "joint predictions of mixed outputs need complete rows; fill in missing cells, or predict marginals."
            raise TypeError(msg)
        return self.imputations.average_covariances(X, lambda x: process.project_covariance(factor, x))

    # -- rows, sets, chunks -----------------------------------------------------------------------------------------

    def _in_chunks(
        self, f: Callable[..., Any], X: Array, memory: float | None, names: tuple[str, ...], *others: Array | None
    ) -> tuple[Array, ...]:
        """Evaluate ``f(process, factor, X, *others)`` in chunks of rows; return arrays [..., N, .].

        `names` are the names of the first arrays that `f` returns. Raises NonFiniteError if one of these arrays is not
        finite.
        """

        def evaluated(process: Process, factor: Any, X: Array, *others: Array | None) -> tuple[Array, ...]:
            found = concat_rows([f(process, factor, *rows) for rows in self._chunks(process, X, memory, *others)])
            refuse_nonfinite(**dict(zip(names, found, strict=False)))
            return found

        return self._by_row(evaluated, X, *others)

    def _by_row(self, f: Callable[..., Any], X: Array, *others: Array | None) -> tuple[Array, ...]:
        """Evaluate ``f(process, factor, X, *others)`` with leading axes flattened to rows; return [..., N, .]."""
        self._check(X)
        B = backend_of(X)
        pairs = list(zip(self.processes, self.factors, strict=True))
        if B.is_lazy:
            return self._lazily(f, X, others)
        batch = X.shape[:-1]
        rows = [x if x is None or x.ndim == 2 else B.xp.reshape(x, (-1, x.shape[-1])) for x in (X, *others)]
        found, _ = speculate(lambda: [f(*pair, *rows) for pair in pairs], X)
        return tuple(self._reshape_batch(list(parts), batch) for parts in zip(*found, strict=True))

    def _lazily(self, f: Callable[..., Any], X: Array, others: tuple[Array | None, ...]) -> tuple[Array, ...]:
        """Evaluate `_by_row` for the rows of a lazy array, with arrays in memory for its chunks."""
        given = [x for x in others if x is not None]

        def gathered(X: Array, *rows: Array) -> tuple[Array, ...]:
            left = iter(rows)
            others_here = (None if x is None else self._gather(next(left)) for x in others)
            return f(self.processes[0], self.factors[0], self._gather(X), *others_here)

        example = gathered(*(x[:1, :] for x in (X, *given)))
        return backend_of(X).map_chunks(gathered, (X, *given), example)

    def _map_sets(self, f: Callable[[Process, Any, Array], Array], X: Array) -> Array:
        """Evaluate ``f(process, factor, X)`` for each set [N, D] of inputs; return an array with X's leading axes."""
        self._check(X)
        self._check_cells(X)
        sets = split_sets(self._gather(X))
        pairs = zip(self.processes, self.factors, strict=True)
        found = [backend_of(sets[0]).xp.stack([f(process, factor, x) for x in sets]) for process, factor in pairs]
        return self._reshape_batch(found, X.shape[:-2])

    def _reshape_batch(self, parts: list[Array], batch: tuple[int, ...]) -> Array:
        """Combine the arrays [N, ...] of all posteriors into one array [*lead, *batch, ...]."""
        xp, one = backend_of(parts[0]).xp, parts[0]
        return xp.reshape(xp.stack(parts) if self.lead else one, (*self.lead, *batch, *one.shape[1:]))

    def _gather(self, X: Array) -> Array:
        """Load the rows into memory, as an array with the library and dtype of the leaves."""
        reference = first_leaf(self)
        x = backend_of(X).gather(X)
        return x if backend_of(x) is backend_of(reference) else asarray_like(x, reference)

    def _chunks(
        self, process: Process, X: Array, memory: float | None, *others: Array | None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield chunks of rows of X and of the other arrays, which may be None."""
        rows_of = rows_within if process.rows_share_work else tile_rows
        for start, stop in row_ranges(X.shape[0], rows_of(memory, self.floats_per_row, X)):
            chunk = X[start:stop, :]
            self._check_cells(chunk, first_row=start)
            yield chunk, *(None if x is None else x[start:stop, :] for x in others)

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check(self, X: Array) -> None:
        check_test_inputs(X, self.width, *self.reference)

    def _check_cells(self, X: Array, first_row: int = 0) -> None:
        """Raise ValueError for infinite entries of X and, unless unknown cells are imputed, for NaN."""
        xp = backend_of(X).xp
        cells = X if self.imputations is None else xp.where(xp.isnan(X), xp.zeros_like(X), X)
        check_finite("X", cells, first_row=first_row)

    def _by_row_terms(
        self, X: Array, offset: Array | None, noise: Array | None, *weights: Array | None
    ) -> tuple[Array | None, ...]:
        """Check the offset, the noise and the weights of rows, and return them as [..., N, 1] or [..., N, P]."""
        if offset is None and noise is None and not any(x is not None for x in weights):
            return (None, None, *weights)
        self._check(X)
        if noise is not None:
            self.likelihood.check_takes_noise()
        names = ("offset", "noise", "weights")
        sizes = (self.outputs, self.outputs, 1)
        found = zip(names, (offset, noise, *weights), sizes, strict=False)
        return tuple(None if x is None else check_by_row(name, x, X, size) for name, x, size in found)

    def _targets(self, X: Array, y: Array) -> Array:
        """Check targets, and return them as [..., N, K]."""
        y = self._thresholds(X, y, missing=self.likelihood.missing)
        columns = y if y.ndim == 2 else backend_of(y).xp.reshape(y, (-1, y.shape[-1]))
        if backend_of(columns).is_concrete(columns):
            self.likelihood.check_targets(columns)
        return y

    def _check_targets(self, X: Array, y: Array) -> Array:
        """Check targets that are not NaN, and return all targets as [..., N, K]."""
        y = self._thresholds(X, y)
        B = backend_of(y)
        if B.is_concrete(y) and not B.is_lazy:
            columns = B.xp.reshape(y, (-1, y.shape[-1]))
            (seen,) = B.xp.nonzero(~B.xp.any(B.xp.isnan(columns), axis=1))
            known = B.xp.take(columns, seen, axis=0)
            if known.shape[0]:
                self.likelihood.check_targets(known)
        return y

    def _thresholds(self, X: Array, y: Array, *, missing: bool = True) -> Array:
        """Check that y fits the rows and the outputs, and return it as [..., N, K].

        y may contain NaN if `missing` is True.
        """
        self._check(X)
        check_array_type("y", y)
        rows, columns = X, y
        if X.ndim > 2:
            if tuple(y.shape[: X.ndim - 1]) != tuple(X.shape[:-1]):
                msg = f"X has shape {tuple(X.shape)}, but y has {tuple(y.shape)}; pass one target for each row of X."
                raise ValueError(msg)
            xp, N = backend_of(X).xp, math.prod(X.shape[:-1])
            rows, columns = xp.reshape(X, (N, -1)), xp.reshape(y, (N, -1))
        columns = check_targets(rows, columns, missing=missing)
        check_outputs(self.likelihood, columns, self.outputs)
        return columns if X.ndim == 2 else backend_of(y).xp.reshape(columns, (*X.shape[:-1], columns.shape[1]))
