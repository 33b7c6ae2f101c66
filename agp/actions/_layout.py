"""Which rows share a sparse action, and where its entries start."""

from typing import Literal, TypeAlias

from agp.actions._blocks import BlockActions
from agp.backend import Array, backend_of, placed
from agp.random import generator

__all__ = ["Init", "Layout", "arranged", "column_spread", "started_blocks"]

Layout: TypeAlias = Literal["tree", "random"]
Init: TypeAlias = Literal["constant", "normal", "residual"]


def _block_sizes(support: int, count: int) -> list[int]:
    """The rows of each of `count` blocks over so many rows: as even as possible, the larger ones first."""
    base, extra = divmod(support, count)
    return [base + 1] * extra + [base] * (count - extra)


def arranged(X: Array, count: int, /) -> Array:
    """An order [m] of the rows of X [m, D], whole numbers, in which the rows of each block lie close together.

    The leaves of a tree: the rows are split across the column with the widest spread, in proportion to the blocks on
    either side, until each part is one block. Scale the columns first.
    """
    xp = backend_of(X).xp
    every = xp.arange(X.shape[0], device=X.device)
    return xp.concat(_leaves(X, every, _block_sizes(X.shape[0], count)), axis=0)


def _leaves(X: Array, rows: Array, sizes: list[int]) -> list[Array]:
    if len(sizes) == 1:
        return [rows]
    B = backend_of(X)
    xp, here = B.xp, B.rows_at(X, rows)
    widest = xp.reshape(xp.argmax(xp.max(here, axis=0) - xp.min(here, axis=0)), (1,))  # not looked at by the host
    ordered = xp.take(rows, xp.argsort(xp.take(here, widest, axis=1)[:, 0], stable=True))
    half = len(sizes) // 2
    edge = sum(sizes[:half])
    return [*_leaves(X, ordered[:edge], sizes[:half]), *_leaves(X, ordered[edge:], sizes[half:])]


def column_spread(X: Array, /) -> Array:
    """The standard deviation [D] of each column of X [m, D], one where it is constant."""
    xp = backend_of(X).xp
    spread = xp.std(X, axis=0)
    return xp.where(spread > 0.0, spread, xp.ones_like(spread))


def started_blocks(residual: Array, count: int, init: Init, seed: int, /) -> BlockActions:
    """Sparse actions of unit norm over the rows of the residuals y - h [m, P]."""
    xp = backend_of(residual).xp
    m = residual.shape[0]
    ones = xp.ones_like(residual[:, 0])
    if init == "constant":
        return BlockActions(ones, count).normalised()
    if init == "normal":
        return BlockActions(placed(generator(seed, 8).standard_normal(m), residual), count).normalised()
    values = xp.mean(residual, axis=1)
    # a block without residuals starts constant
    return BlockActions(xp.where(BlockActions(values, count).empty(), ones, values), count).normalised()
