"""Evaluation of predictions in chunks of rows, for sets of rows, and for several posteriors."""

import dataclasses
import math
from abc import ABC
from collections.abc import Callable, Iterator
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of, check_array_type
from agp.checks import check_by_row, check_finite, check_outputs, check_results, check_targets, check_test_inputs
from agp.chunking import cached_rows, repeat_rows, row_ranges, rows_within, tile_rows
from agp.likelihoods import Likelihood
from agp.predictors._imputed import Imputations
from agp.predictors._level_noise import LevelNoise
from agp.predictors._saturating import Saturation
from agp.processes import Process
from agp.random import Draws
from agp.repairs import speculate
from agp.tree import first_leaf

SEED = 0
"""Seed for the random draws of sampled processes."""


def with_common_draws(process: Process, X: Array, /) -> Process:
    """Return the process with the random draws for the rows X [n, D], which do not depend on other rows."""
    draws = process.common_draws(SEED, X.shape[0])
    if not draws.by_row:
        return process
    return process.with_draws(Draws(*({name: asarray_like(x, X) for name, x in part.items()} for part in draws)))


def latent_moments(predictor: Any, process: Process, factor: Any, X: Array, /) -> tuple[Array, Array]:
    """Compute the means and variances [S n, P] of the latent functions at X [n, D], for S samples of the process.

    If X requires gradients, but no leaf of the predictor does, torch or JAX uses the closed-form pullback.
    """
    B, process = backend_of(X), with_common_draws(process, X)
    if not B.asks_gradient(X) or any(B.asks_gradient(x) for x in tree.leaves(predictor).values()):
        return process.project(factor, X)[0]
    return _with_pullback(process, factor, X)


def latent_means(_: Any, process: Process, factor: Any, X: Array, /) -> Array:
    """Compute the means [S n, P] of the latent functions at X [n, D]."""
    return with_common_draws(process, X).project_mean(factor, X)


def latent_projection(_: Any, process: Process, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
    """Compute the means and variances [S n, P] of the latent functions, and their pullback to X."""
    moments, pull = with_common_draws(process, X).project(factor, X)
    return moments, lambda *bars: pull(*bars)[-1]


def moved_by(mean: Array, offset: Array | None, rows: int, /) -> Array:
    """Add an offset [n, 1 or P] to means [S n, P]."""
    return mean if offset is None else mean + repeat_rows(offset, mean.shape[0] // rows)


def _with_pullback(process: Process, factor: Any, X: Array) -> tuple[Array, Array]:
    P, B = process.outputs, backend_of(X)

    def closed_form(arrays: dict[str, Array]) -> tuple[Array, Callable]:
        x = arrays["X"]
        moments, pull = process.project(factor, x)

        def cotangents(bar: Array, names: tuple[str, ...]) -> dict[str, Array]:
            X_bar = pull(bar[:, :P], bar[:, P:])[-1]
            return dict.fromkeys(names, B.xp.zeros_like(x) if X_bar is None else X_bar)

        return B.xp.concat(list(moments), axis=1), cotangents

    both = B.with_pullback(closed_form, {"X": X})
    return both[:, :P], both[:, P:]


def refuse_nonfinite(**predicted: Array) -> None:
    """Raise NonFiniteError if a prediction is not finite."""
    remedy = "check the kernel's parameters, use standardised data or float64, or predict closer to the data"
    check_results("the predicted", predicted, remedy)


def split_sets(X: Array) -> list[Array]:
    """Split an array [..., N, .] into its sets [N, .]."""
    flat = backend_of(X).xp.reshape(X, (-1, *X.shape[-2:]))
    return [flat[i, :, :] for i in range(flat.shape[0])]


def concat_rows(parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Concatenate arrays for consecutive rows."""
    if len(parts) == 1:
        return tuple(parts[0])
    xp = backend_of(parts[0][0]).xp
    return tuple(xp.concat(list(column), axis=0) for column in zip(*parts, strict=True))


class ByRows(ABC):
    """Base class of predictors, with the evaluation of functions at rows of inputs."""

    processes: tuple[Process, ...]
    factors: tuple[Any, ...]
    likelihood: Likelihood
    lead: tuple[int, ...]
    saturation: Saturation | None
    imputations: Imputations | None
    level_noise: LevelNoise | None

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

    @property
    def floats_per_mean(self) -> int:
        """The number of floats in memory per row for which only the means of latent functions are computed."""
        copies = 1 if self.imputations is None else self.imputations.count
        return copies * self.processes[0].floats_per_mean

    # -- rows, sets, chunks -----------------------------------------------------------------------------------------

    def _in_chunks(
        self,
        f: Callable[..., Any],
        X: Array,
        memory: float | None,
        names: tuple[str, ...],
        *others: Array | None,
        of: Callable[..., Any] = latent_moments,
        averaged: str = "latent",
    ) -> tuple[Array, ...]:
        """Evaluate ``f(found, shares, X, *others)`` in chunks of rows; return arrays [..., N, .].

        ``found`` is what ``of(predictor, process, factor, X)`` returns for the rows, by default the moments of the
        latent functions [S n, P], averaged over the imputations of unknown cells. `shares` are the weights [S] of the
        samples, or None if they are equal. If `averaged` is "moments", f returns means, or means and variances [n, .],
        which are averaged over the imputations instead; if it is "logs", f returns logarithms of means [n, .]. `names`
        are the names of the first arrays that f returns. Raises NonFiniteError if one of these is not finite.
        """
        self._check(X)
        B = backend_of(X)
        if B.is_lazy:
            return self._lazily(f, X, memory, names, *others, of=of, averaged=averaged)
        if self.imputations is not None and not bool(B.xp.any(B.xp.isnan(X))):
            known: Any = dataclasses.replace(self, imputations=None)  # type: ignore[type-var]
            return known._in_chunks(f, X, memory, names, *others, of=of, averaged=averaged)
        batch = X.shape[:-1]
        rows = [x if x is None or x.ndim == 2 else B.xp.reshape(x, (-1, x.shape[-1])) for x in (X, *others)]

        def evaluated() -> list[tuple[Array, ...]]:
            found = []
            for process, factor in zip(self.processes, self.factors, strict=True):
                parts = []
                for chunk, *known in self._chunks(self._chunk_rows(process, memory, rows[0], of), *rows):
                    if self.imputations is None:
                        part = f(of(self, process, factor, chunk), process.shares, chunk, *known)
                    elif averaged != "latent":
                        at = lambda x, *known: f(of(self, process, factor, x), process.shares, x, *known)  # noqa: B023, E731
                        part = self.imputations.average(chunk, at, *known, of_logs=averaged == "logs")
                    else:
                        at = lambda x: of(self, process, factor, x)  # noqa: B023, E731
                        part = f(self.imputations.average(chunk, at), process.shares, chunk, *known)
                    parts.append(part)
                whole = concat_rows(parts)
                refuse_nonfinite(**dict(zip(names, whole, strict=False)))
                found.append(whole)
            return found

        found = speculate(evaluated, X)[0] if B.reading_waits(X) else evaluated()
        return tuple(self._reshape_batch(list(parts), batch) for parts in zip(*found, strict=True))

    def _lazily(
        self, f: Callable[..., Any], X: Array, memory: float | None, names: tuple[str, ...], *others: Any, **how: Any
    ) -> tuple[Array, ...]:
        """Evaluate `_in_chunks` for the rows of a lazy array, with arrays in memory for its chunks."""
        given = [x for x in others if x is not None]

        def gathered(X: Array, *rows: Array) -> tuple[Array, ...]:
            left = iter(rows)
            here = (None if x is None else self._gather(next(left)) for x in others)
            return self._in_chunks(f, self._gather(X), memory, names, *here, **how)

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

    def _one(self, process: Process, factor: Any) -> Any:
        """Return the predictor with one of the posteriors."""
        return dataclasses.replace(self, processes=(process,), factors=(factor,), lead=())  # type: ignore[type-var]

    def _covariance(self, process: Process, factor: Any, X: Array) -> Array:
        """Compute the joint covariances [L, n, n] of the independent functions at X [n, D]."""
        if self.imputations is None:
            return process.project_covariance(factor, X)
        if process.mixing is not None:
            raise TypeError(
                "joint predictions of mixed outputs need complete rows; fill in missing cells, or predict marginals."
            )
        return self.imputations.average_covariances(X, lambda x: process.project_covariance(factor, x))

    def _reshape_batch(self, parts: list[Array], batch: tuple[int, ...]) -> Array:
        """Combine the arrays [N, ...] of all posteriors into one array [*lead, *batch, ...]."""
        xp, one = backend_of(parts[0]).xp, parts[0]
        if not self.lead and len(batch) == 1:
            return one
        return xp.reshape(xp.stack(parts) if self.lead else one, (*self.lead, *batch, *one.shape[1:]))

    def _gather(self, X: Array) -> Array:
        """Load the rows into memory, as an array with the library and dtype of the leaves."""
        reference = first_leaf(self)
        x = backend_of(X).gather(X)
        return x if backend_of(x) is backend_of(reference) else asarray_like(x, reference)

    def _chunk_rows(self, process: Process, memory: float | None, X: Any, of: Callable[..., Any]) -> int:
        """Return the number of rows per chunk.

        Chunks for means alone are small enough for the caches of a CPU. For `Deep`, they would take many operations.
        """
        if process.rows_share_work:
            return rows_within(memory, self.floats_per_row, X)
        if of is latent_means and process.depth == 1:
            return min(rows_within(memory, self.floats_per_mean, X), cached_rows(self.floats_per_mean, X))
        return tile_rows(memory, self.floats_per_row, X)

    def _chunks(self, rows: int, X: Any, *others: Array | None) -> Iterator[tuple[Any, ...]]:
        """Yield chunks of rows of X and of the other arrays, which may be None."""
        for start, stop in row_ranges(X.shape[0], rows):
            chunk = X[start:stop, :]
            self._check_cells(chunk, first_row=start)
            yield chunk, *(None if x is None else x[start:stop, :] for x in others)

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check(self, X: Array) -> None:
        check_test_inputs(X, self.width, *self.reference)

    def _check_observed(self, noise: Array | None, *, observed: bool) -> None:
        """Raise ValueError if noise variances are given for latent functions."""
        if noise is not None and not observed:
            raise ValueError("noise is given, but latent functions have no noise; pass observed=True, or omit noise=.")

    def _check_cells(self, X: Array, first_row: int = 0) -> None:
        """Raise ValueError for infinite entries of X and, unless unknown cells are imputed, for NaN."""
        xp = backend_of(X).xp
        cells = X if self.imputations is None else xp.where(xp.isnan(X), xp.zeros_like(X), X)
        check_finite("X", cells, first_row=first_row)

    def _by_row_terms(
        self, X: Array, offset: Array | None, noise: Array | None, *weights: Array | None
    ) -> tuple[Array | None, ...]:
        """Check the offset, the noise and the weights of rows, and return them as [..., N, 1] or [..., N, P].

        The result includes the noise of the rows' levels.
        """
        if offset is None and noise is None and self.level_noise is None and not any(x is not None for x in weights):
            return (None, None, *weights)
        self._check(X)
        if noise is not None:
            self.likelihood.check_takes_noise()
        names = ("offset", "noise", "weights")
        sizes = (self.outputs, self.outputs, 1)
        given = zip(names, (offset, noise, *weights), sizes, strict=False)
        found = tuple(None if x is None else check_by_row(name, x, X, size) for name, x, size in given)
        self.likelihood.check_offset(found[0])
        return found[0], self.noise_at(X, found[1]), *found[2:]

    def noise_at(self, X: Array, noise: Array | None = None, /) -> Array | None:
        """Return the noise variances [..., N, 1 or P] of rows X [..., N, D]: known ones, and those of their levels."""
        if self.level_noise is None:
            return noise
        own = self.level_noise.at(X)
        return own if noise is None else own + noise

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
                raise ValueError(
                    f"X has shape {tuple(X.shape)}, but y has {tuple(y.shape)}; pass one target for each row of X."
                )
            xp, N = backend_of(X).xp, math.prod(X.shape[:-1])
            rows, columns = xp.reshape(X, (N, -1)), xp.reshape(y, (N, -1))
        columns = check_targets(rows, columns, missing=missing)
        check_outputs(self.likelihood, columns, self.outputs)
        return columns if X.ndim == 2 else backend_of(y).xp.reshape(columns, (*X.shape[:-1], columns.shape[1]))
