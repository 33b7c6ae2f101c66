"""Policies, which choose actions for the current hyperparameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from agp.actions._dense import FixedActions
from agp.backend import Array, asarray_like, backend_of, like, row_numbers
from agp.checks import check_choice, check_whole
from agp.chunking import mebibytes, row_ranges, rows_within, tile_rows
from agp.errors import there_are
from agp.linalg import nonnegative
from agp.random import generator

BUDGET = 256.0
"""The default budget for covariances, in MiB."""


@runtime_checkable
class Policy(Protocol):
    """An immutable callable that chooses actions from the kernel, likelihood, mean function, X and y of a model.

    The bound and its gradient treat the returned actions as constants, although they depend on the hyperparameters.
    Compiled training also compiles the policy, so a policy must return a fixed number of actions and must not branch on
    values.
    """

    def __call__(self, model: Any, /) -> FixedActions:
        """Return actions over the rows of model.X [m, D]."""
        ...


def check_count(count: int, rows: int) -> int:
    """Return the number of actions; raise ValueError unless it is from 1 to the number of rows."""
    count = check_whole("count", count)
    if count > rows:
        raise ValueError(f"count is {count}, but {there_are(rows, 'row')}; use at most as many actions as rows.")
    return count


def check_budget(memory: float, floats: float, what: str, x: Array) -> None:
    """Raise ValueError if an array of size `floats` with the dtype of x exceeds the budget `memory`, in MiB."""
    needed = mebibytes(floats, x)
    if not memory >= needed:
        raise ValueError(
            f"memory is {memory!r} MiB, but {what} takes {needed:.3g} MiB; raise memory, or use another policy."
        )


def covariance_product(model: Any, memory: float) -> Callable[[Array], Array]:
    """Return a function ``V [m, k] -> k(X, X) V``.

    k(X, X) is stored if it fits the budget in MiB, and computed in tiles otherwise.
    """
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
    """Actions that each select one row. The posterior is that of the exact GP on these rows.

    Parameters
    ----------
    count
        The number of actions. Omit `count` if you pass `rows`.
    rows
        The row numbers, without repetitions.
    pivots
        How to choose rows if `rows` is omitted: "greedy" or "random". Each greedy choice is the row whose observation
        has the largest variance given the earlier rows. All greedy choices together take O(m i^2) operations.
    seed
        The seed for choosing rows at random.
    """

    count: int | None = None
    rows: Sequence[int] | None = None
    pivots: Literal["greedy", "random"] = "greedy"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("pivots", self.pivots, ("greedy", "random"))
        if (self.count is None) == (self.rows is None):
            raise ValueError(
                "exactly one of count and rows is required; pass either the number of actions or their rows."
            )

    def __call__(self, model: Any, /) -> FixedActions:
        """Return columns of the identity [m, i].

        Raises
        ------
        ValueError
            If row numbers are out of range or repeated, or if there are more actions than rows.
        """
        X, m = model.X, model.X.shape[0]
        if self.rows is not None:
            rows = _check_rows(self.rows, m)
        else:
            assert self.count is not None
            count = check_count(self.count, m)
            if self.pivots == "greedy":
                return FixedActions(_greedy_units(model, count))
            rows = generator(self.seed, 9).permutation(m)[:count].tolist()
        chosen = row_numbers(m, X)[:, None] == asarray_like(rows, X)[None, :]
        return FixedActions(backend_of(X).xp.astype(chosen, X.dtype))


def _check_rows(rows: Sequence[int], m: int) -> list[int]:
    found = [check_whole("a row", row, least=0) for row in rows]
    if beyond := [row for row in found if row >= m]:
        raise ValueError(f"rows {beyond} are out of range for data with {m} rows; count rows from 0.")
    if twice := sorted({row for row in found if found.count(row) > 1}):
        raise ValueError(f"rows {twice} appear more than once; pass each row once.")
    return found


def _greedy_units(model: Any, count: int) -> Array:
    """Choose rows by the pivoted Cholesky factorisation of K + sigma^2 I."""
    B = backend_of(model.X)
    xp, X = B.xp, model.X
    every, column = row_numbers(X.shape[0], X), row_numbers(count, X)
    noise = model._noise_by_row
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
    """Random orthonormal directions, as a baseline.

    Parameters
    ----------
    count
        The number of actions.
    kind
        The distribution of the entries before orthonormalisation: "normal" or "rademacher".
    seed
        The seed for drawing the directions, which are the same in every call.
    """

    count: int
    kind: Literal["normal", "rademacher"] = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("normal", "rademacher"))

    def __call__(self, model: Any, /) -> FixedActions:
        """Return orthonormal columns [m, i]; raise ValueError if there are more actions than rows."""
        X = model.X
        shape = X.shape[0], check_count(self.count, X.shape[0])
        rng = generator(self.seed, 10)
        draws = rng.standard_normal(shape) if self.kind == "normal" else 2.0 * rng.integers(0, 2, shape) - 1.0
        return FixedActions.spanning(asarray_like(draws, X))


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
        """Return orthonormal columns [m, i]; raise ValueError if there are too many actions or too little memory."""
        X = model.X
        m = X.shape[0]
        count = check_count(self.count, m)
        check_budget(self.memory, m * m * (model.kernel.floats_per_entry + 2), f"the eigenvectors of {m} rows", X)
        vectors = backend_of(X).xp.linalg.eigh(model.kernel(X)[0])[1]
        return FixedActions(vectors[:, m - count :])


@dataclass(frozen=True)
class KernelColumns:
    """Actions that span the columns of k(X, Z), for inducing inputs Z.

    The posterior is exact if k(X, X) and k(Z, Z) have the same rank. Otherwise, these actions are a conservative
    alternative to SGPR with the same inducing inputs.

    Parameters
    ----------
    count
        The number of inducing inputs, which are rows of X drawn at random. Omit `count` if you pass `Z`.
    Z
        Inducing inputs [i, D].
    seed
        The seed for drawing the rows.
    """

    count: int | None = None
    Z: Array | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.count is None) == (self.Z is None):
            raise ValueError(
                "exactly one of count and Z is required; pass either the number of inducing inputs or the inputs Z."
            )

    def __call__(self, model: Any, /) -> FixedActions:
        """Return at most i orthonormal columns [m, i]; raise ValueError if there are more actions than rows."""
        X = model.X
        Z = self.Z
        if Z is None:
            assert self.count is not None
            rows = generator(self.seed, 9).permutation(X.shape[0])[: check_count(self.count, X.shape[0])]
            Z = backend_of(X).rows_at(X, asarray_like(rows, X))
        check_count(Z.shape[0], X.shape[0])
        return FixedActions.spanning(model.kernel(X, Z)[0])
