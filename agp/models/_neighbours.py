"""What models with neighbours share: the sets of neighbours of the training rows, and means along lines."""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar, Self

from agp.backend import Array, backend_of, row_numbers
from agp.bounds import Batch
from agp.checks import check_whole
from agp.chunking import cached_rows, check_memory, rows_within
from agp.kernels import Kernel
from agp.models._base import Model
from agp.models._regression import check_without_white
from agp.processes import near_search
from agp.repairs import public

NEIGHBOURS = 50
"""The default number of neighbours."""


class WithNeighbours(Model):
    """Base class of models that hold rows, each of which depends on near rows."""

    kernel: Kernel
    X: Array
    """The training inputs [N, D]."""
    sets: Array | None
    """The numbers [N, k] of the neighbours of the rows, or None if they are found whenever the bound is computed."""
    neighbours: int
    """The number k of neighbours."""

    _searches_rows: ClassVar[bool] = True

    def _check(self, batch: Batch, /) -> None:
        super()._check(batch)
        self._check_neighbours()

    def _check_neighbours(self) -> None:
        """Raise ValueError if there is no neighbour, or if the kernel has white noise."""
        check_whole("neighbours", self.neighbours)
        check_without_white(type(self), self.kernel, self.X)

    @abstractmethod
    def _find_sets(self, rows: Array | None = None, *, memory: float | None = None) -> Array:
        """Return the numbers [n, k] of the neighbours of some rows, or of all."""

    def renew_neighbours(self, *, memory: float | None = None) -> Self:
        """Return the model with neighbours in the metric of its present kernel.

        The neighbours of the training rows are those at the time of `from_data`, or of the last call of this method.
        They are constants of the bound, so that it is a smooth function of the hyperparameters.

        Parameters
        ----------
        memory
            Memory budget for working arrays, in MiB.
        """
        return dataclasses.replace(self, sets=self._find_sets(memory=memory))  # type: ignore[type-var]

    @public(ignore="underflow")
    def predict_mean_along(self, X: Array, /, *, memory: float | None = None) -> Array:
        """Predict means [L, n, P] along L lines, or any other L groups of inputs, without jumps in a group.

        All inputs of a group are given the union of their neighbours, or of fewer nearest rows of each so that there
        are about 1,000. `predict_mean` gives each input only its own neighbours, so its means jump where the neighbours
        change. A group takes O(U^2 (U + D + M)) operations for U rows.

        Parameters
        ----------
        X
            The inputs [L, n, D].
        memory
            Memory budget for the search, in MiB.

        Raises
        ------
        ValueError
            If X is not three-dimensional, or has unknown cells, or if the budget is not positive.

        Source: for one group, the posterior of an exact GP given the rows of the union (docs/methods/neighbours.md).
        """
        check_memory(memory)
        predictor = self._predictor_at(X, memory)
        if X.ndim != 3:
            raise ValueError(f"X has shape {tuple(X.shape)}, but must be [L, n, D]: n inputs of each of L lines.")

        def means(process: Any, factor: Any, x: Array) -> Array:
            return process.project_mean_along(factor, x)

        return predictor._map_sets(means, X)

    def _sets_of(self, rows: Array | None, memory: float | None) -> tuple[Array, Array]:
        """Return the numbers [n] of the rows of a batch, and those [n, k] of their neighbours."""
        xp = backend_of(self.X).xp
        if rows is None:
            sets = self._find_sets(memory=memory) if self.sets is None else self.sets
            return xp.astype(row_numbers(self.X.shape[0], self.X), sets.dtype), sets
        return rows, self._find_sets(rows, memory=memory) if self.sets is None else xp.take(self.sets, rows, axis=0)

    def _check_rows(self, batch: Batch) -> None:
        if batch.rows is None and batch.X.shape[0] != self.X.shape[0]:
            remedy = ", or train on minibatches with agp.train" if self.stochastic else ""
            raise ValueError(
                f"the bound of {type(self).__name__} is for all {self.X.shape[0]} rows that the model holds, but X has "
                f"{batch.X.shape[0]}; pass all rows{remedy}."
            )

    def _block_rows(self, memory: float | None, features: int = 0) -> int:
        floats = self._floats_per_group(features)
        return min(rows_within(memory, floats, self.X), cached_rows(floats, self.X))

    def _floats_per_group(self, features: int = 0) -> int:
        k = min(self.neighbours, self.X.shape[0]) if self.sets is None else self.sets.shape[1]
        C = k + 1
        return C * C * (self.kernel.floats_per_entry + 4) + C * (4 * self.X.shape[1] + 3 * features)

    def _find_others(self, chosen: Array | None, memory: float | None) -> tuple[Array, Array]:
        """Return the numbers [n] of chosen rows, or of all, and those [n, k] of the nearest other rows."""
        xp, N = backend_of(self.X).xp, self.X.shape[0]
        rows = row_numbers(N, self.X) if chosen is None else chosen
        k = min(self.neighbours, N - 1)
        if not k:
            return rows, xp.full_like(rows[:, None], -1)
        return rows, near_search(self.kernel, self.X).others(rows, k, memory=memory)
