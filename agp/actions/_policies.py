"""Policies that choose actions for the current hyperparameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from agp.actions._base import whole_numbers
from agp.actions._dense import FixedActions
from agp.backend import Array, backend_of, like, placed
from agp.checks import check_whole
from agp.chunking import mebibytes, row_ranges, rows_within, tile_rows
from agp.linalg import nonnegative
from agp.random import generator

BUDGET = 256.0
"""The default budget for covariances, in MiB."""


@runtime_checkable
class Policy(Protocol):
    """A frozen object with settings only, called with a model: its kernel, likelihood, mean function, X and y.

    Bound and gradient hold the returned actions fixed, although they depend on the hyperparameters. Compiled training
    compiles the policy too, which must then return a fixed number of actions without branching on values.
    """

    def __call__(self, model: Any, /) -> FixedActions:
        """Actions over the rows of model.X [m, D]."""
        ...


def check_count(count: int, rows: int) -> int:
    """The number of actions; ValueError unless it is from one to the number of rows."""
    count = check_whole("count", count)
    if count > rows:
        msg = f"count is {count}, but there are {rows} rows; use at most as many actions as rows."
        raise ValueError(msg)
    return count


def check_budget(memory: float, floats: float, what: str, x: Array) -> None:
    """ValueError if this count of numbers with the dtype of x exceeds a budget in MiB."""
    needed = mebibytes(floats, x)
    if not memory >= needed:
        msg = f"memory is {memory!r} MiB, but {what} takes {needed:.3g} MiB; raise it, or use another policy."
        raise ValueError(msg)


def covariance_product(model: Any, memory: float) -> Callable[[Array], Array]:
    """A function ``V [m, k] -> k(X, X) V``, with the whole matrix if it fits a budget in MiB, otherwise by tiles."""
    X = model.X
    m = X.shape[0]
    floats = m * (model.kernel.floats_per_entry + 2)
    check_budget(memory, floats, f"one row of covariances with {m} rows", X)
    if rows_within(memory, floats, X) == m:
        K = model.kernel(X)[0]
        return lambda V: K @ V
    blocks = row_ranges(m, tile_rows(memory, floats, X))
    xp = backend_of(X).xp
    return lambda V: xp.concat([model.kernel(X[a:b, :], X)[0] @ V for a, b in blocks], axis=0)


@dataclass(frozen=True)
class UnitVectors:
    """Single rows: the posterior is that of the exact GP on these rows.

    Parameters
    ----------
    count
        The number of actions; not needed with `rows`.
    rows
        The rows, each once.
    pivots
        Without `rows`: "greedy", each time the row whose observation has the largest variance given the earlier ones,
        O(m i^2); or "random".
    seed
        The seed of random rows.
    """

    count: int | None = None
    rows: Sequence[int] | None = None
    pivots: Literal["greedy", "random"] = "greedy"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pivots not in ("greedy", "random"):
            msg = f"pivots is {self.pivots!r}, but must be 'greedy' or 'random'."
            raise ValueError(msg)
        if (self.count is None) == (self.rows is None):
            msg = "give either the count of the actions or their rows."
            raise ValueError(msg)

    def __call__(self, model: Any, /) -> FixedActions:
        """Columns of the identity [m, i].

        Raises
        ------
        ValueError
            If rows are out of range or repeated, or for more actions than rows.
        """
        m = model.X.shape[0]
        if self.rows is not None:
            return self._units(model.X, _checked_rows(self.rows, m))
        assert self.count is not None
        count = check_count(self.count, m)
        if self.pivots == "greedy":
            return FixedActions(_greedy_units(model, count))
        return self._units(model.X, generator(self.seed, 9).permutation(m)[:count].tolist())

    def _units(self, X: Array, rows: list[int]) -> FixedActions:
        xp = backend_of(X).xp
        every = whole_numbers(X.shape[0], X)
        at = placed(rows, X)
        return FixedActions(xp.astype(every[:, None] == at[None, :], X.dtype))


def _checked_rows(rows: Sequence[int], m: int) -> list[int]:
    found = [check_whole("a row", row, least=0) for row in rows]
    if beyond := [row for row in found if row >= m]:
        msg = f"rows {beyond} are beyond the {m} rows that there are."
        raise ValueError(msg)
    if twice := sorted({row for row in found if found.count(row) > 1}):
        msg = f"rows {twice} are given more than once, which repeats an action; give each row once."
        raise ValueError(msg)
    return found


def _greedy_units(model: Any, count: int) -> Array:
    """Pivoted Cholesky of K + sigma^2 I by its columns C, with the remaining variances kff + sigma^2 - |c|^2."""
    B = backend_of(model.X)
    xp, X = B.xp, model.X
    every, column = whole_numbers(X.shape[0], X), whole_numbers(count, X)
    noise = model.likelihood.noise_variance
    blank = xp.zeros((X.shape[0], count), **like(X))

    def body(step, left, C, S):
        chosen = xp.sum(S, axis=1) > 0.0
        row = xp.reshape(xp.argmax(xp.where(chosen, -xp.ones_like(left), left)), (1,))
        unit = xp.astype(every == row, X.dtype)
        k = model.kernel(X, backend_of(X).rows_at(X, row))[0][:, 0] + noise * unit
        c = (k - C @ xp.take(C, row, axis=0)[0, :]) / xp.sqrt(xp.take(left, row))
        here = xp.astype(column == step, X.dtype)[None, :]
        return step + 1, nonnegative(left - c * c)[0], C + c[:, None] * here, S + unit[:, None] * here

    start = (xp.zeros_like(column[0]), model.kernel.diag(X)[0] + noise, blank, blank)
    return B.while_loop(lambda step, *_: step < count, body, start, at_least=count, at_most=count)[3]


@dataclass(frozen=True)
class RandomDirections:
    """Random directions, orthonormal: a baseline.

    Parameters
    ----------
    count
        The number of actions.
    kind
        "normal" or "rademacher" entries, before orthonormalisation.
    seed
        The seed of the directions, which are the same in every call.
    """

    count: int
    kind: Literal["normal", "rademacher"] = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("normal", "rademacher"):
            msg = f"kind is {self.kind!r}, but must be 'normal' or 'rademacher'."
            raise ValueError(msg)

    def __call__(self, model: Any, /) -> FixedActions:
        """Orthonormal columns [m, i]. ValueError for more actions than rows."""
        X = model.X
        shape = X.shape[0], check_count(self.count, X.shape[0])
        rng = generator(self.seed, 10)
        draws = rng.standard_normal(shape) if self.kind == "normal" else 2.0 * rng.integers(0, 2, shape) - 1.0
        return FixedActions.spanning(placed(draws, X))


@dataclass(frozen=True)
class KernelEigenvectors:
    """The leading eigenvectors of k(X, X), which minimise the entropy of the posterior.

    Takes O(m^3) operations and O(m^2) memory.

    Parameters
    ----------
    count
        The number of actions.
    memory
        The budget for the covariances and their eigenvectors, in MiB.
    """

    count: int
    memory: float = 4.0 * BUDGET

    def __call__(self, model: Any, /) -> FixedActions:
        """Orthonormal columns [m, i]. ValueError for more actions than rows, or more memory than allowed."""
        X = model.X
        m = X.shape[0]
        count = check_count(self.count, m)
        check_budget(self.memory, m * m * (model.kernel.floats_per_entry + 2), f"the eigenvectors of {m} rows", X)
        vectors = backend_of(X).xp.linalg.eigh(model.kernel(X)[0])[1]
        return FixedActions(vectors[:, m - count :])


@dataclass(frozen=True)
class KernelColumns:
    """The span of k(X, Z), which gives the exact posterior if the rank of the kernel is that of k(Z, Z).

    For other kernels it is a conservative alternative to SGPR on Z.

    Parameters
    ----------
    count
        The number of inducing inputs, rows of X drawn at random; not needed with Z.
    Z
        Inducing inputs [i, D].
    seed
        The seed of the random rows.
    """

    count: int | None = None
    Z: Array | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.count is None) == (self.Z is None):
            msg = "give either the count of the inducing inputs or Z."
            raise ValueError(msg)

    def __call__(self, model: Any, /) -> FixedActions:
        """Orthonormal columns [m, i] or fewer. ValueError for more actions than rows."""
        X = model.X
        Z = self.Z
        if Z is None:
            assert self.count is not None
            rows = generator(self.seed, 9).permutation(X.shape[0])[: check_count(self.count, X.shape[0])]
            Z = backend_of(X).rows_at(X, placed(rows, X))
        check_count(Z.shape[0], X.shape[0])
        return FixedActions.spanning(model.kernel(X, Z)[0])
