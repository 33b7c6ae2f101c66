"""The rows of each sparse action, and the initial values of its entries."""

from typing import Literal, TypeAlias

from agp.actions._blocks import BlockActions
from agp.backend import Array, asarray_like, backend_of
from agp.random import generator

Layout: TypeAlias = Literal["tree", "random"]
Init: TypeAlias = Literal["constant", "normal", "residual"]


def order_rows(X: Array, count: int, /) -> Array:
    """Return a permutation [m] of the rows of X [m, D] that puts neighbouring rows into the same block.

    The blocks are the leaves of a tree. Each split divides rows along the column with the widest range, in proportion
    to the number of blocks on each side. Scale the columns of X before the call.
    """
    xp = backend_of(X).xp
    every = xp.arange(X.shape[0], device=X.device)
    base, extra = divmod(X.shape[0], count)
    return xp.concat(_leaves(X, every, [base + 1] * extra + [base] * (count - extra)), axis=0)


def _leaves(X: Array, rows: Array, sizes: list[int]) -> list[Array]:
    if len(sizes) == 1:
        return [rows]
    B = backend_of(X)
    xp, here = B.xp, B.rows_at(X, rows)
    widest = xp.reshape(xp.argmax(xp.max(here, axis=0) - xp.min(here, axis=0)), (1,))  # stays on the device
    ordered = xp.take(rows, xp.argsort(xp.take(here, widest, axis=1)[:, 0], stable=True))
    half = len(sizes) // 2
    edge = sum(sizes[:half])
    return [*_leaves(X, ordered[:edge], sizes[:half]), *_leaves(X, ordered[edge:], sizes[half:])]


def column_spread(X: Array, /) -> Array:
    """Return the standard deviation [D] of each column of X [m, D], with 1 for constant columns."""
    xp = backend_of(X).xp
    spread = xp.std(X, axis=0)
    return xp.where(spread > 0.0, spread, xp.ones_like(spread))


def initialise_blocks(residual: Array, count: int, init: Init, seed: int, /) -> BlockActions:
    """Return `count` sparse actions of unit norm over the m rows of the residuals y - h [m, P]."""
    xp = backend_of(residual).xp
    m = residual.shape[0]
    ones = xp.ones_like(residual[:, 0])
    if init == "constant":
        return BlockActions(ones, count).normalise()
    if init == "normal":
        return BlockActions(asarray_like(generator(seed, 8).standard_normal(m), residual), count).normalise()
    values = xp.mean(residual, axis=1)
    # a block whose residuals are zero starts with constant entries
    return BlockActions(xp.where(BlockActions(values, count).empty(), ones, values), count).normalise()
