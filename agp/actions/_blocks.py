"""Sparse actions: each row of the data belongs to one action."""

from typing import ClassVar, Literal, Self, TypeAlias

from agp import tree
from agp.actions._base import Actions
from agp.backend import Array, Pullback, as_widest_float, asarray_like, backend_of, like, row_numbers, to_numpy
from agp.random import generator

Layout: TypeAlias = Literal["tree", "random"]
Init: TypeAlias = Literal["constant", "normal", "residual"]


@tree.model
class BlockActions(Actions):
    """Actions on i consecutive blocks of the m rows; action j is zero outside block j.

    The first m mod i blocks have one more row than the others. No m x i array is stored, and S^T S is diagonal. The
    posterior and the bound do not depend on the norms of the actions.

    Parameters
    ----------
    values
        The entries [m] of S inside the blocks, in row order.
    count
        The number of actions i.

    Source: Wenger et al., "Computation-aware Gaussian processes: model selection and linear-time inference", NeurIPS
    2024.
    """

    values: Array = tree.param()
    count: int = 1  # type: ignore[assignment]

    is_scale_invariant: ClassVar[bool] = True

    @property
    def support(self) -> int:
        return self.values.shape[0]

    @property
    def _parts(self) -> list[tuple[int, int, int]]:
        """Group the actions by block size; return the first row, number of actions and block size of each group."""
        base, extra = divmod(self.support, self.count)
        parts = (0, extra, base + 1), (extra * (base + 1), self.count - extra, base)
        return [(start, actions, rows) for start, actions, rows in parts if actions]

    def _sum_parts(self, x: Array) -> Array:
        # [..., m] -> [..., i], the sum over each block
        xp, outer = backend_of(x).xp, x.shape[:-1]
        sums = [
            xp.sum(xp.reshape(x[..., start : start + actions * rows], (*outer, actions, rows)), axis=-1)
            for start, actions, rows in self._parts
        ]
        return xp.concat(sums, axis=-1)

    def _spread(self, x: Array) -> Array:
        # [..., i] -> [..., m], the adjoint of _sum_parts
        xp, outer = backend_of(x).xp, x.shape[:-1]
        spread, first = [], 0
        for _, actions, rows in self._parts:
            piece = xp.broadcast_to(x[..., first : first + actions, None], (*outer, actions, rows))
            spread.append(xp.reshape(piece, (*outer, actions * rows)))
            first += actions
        return xp.concat(spread, axis=-1)

    def times(self, K: Array, /) -> tuple[Array, Pullback]:
        def pullback(bar):
            spread = self._spread(bar)
            values_bar = backend_of(K).xp.sum(K * spread, axis=0)
            return tree.cotangent(self, values=values_bar), spread * self.values

        return self._sum_parts(K * self.values), pullback

    def project(self, r: Array, /) -> tuple[Array, Pullback]:
        def pullback(bar):
            spread = self._spread(bar.mT).mT
            values_bar = backend_of(r).xp.sum(r * spread, axis=1)
            return tree.cotangent(self, values=values_bar), spread * self.values[:, None]

        return self._sum_parts(r.mT * self.values).mT, pullback

    def rows(self, at: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(self.values).xp
        every = row_numbers(self.count, self.values)
        base, extra = divmod(self.support, self.count)
        edge = extra * (base + 1)
        owner = xp.where(at < edge, at // (base + 1), extra + (at - edge) // base)
        owned = xp.astype(owner[:, None] == every[None, :], self.values.dtype)

        def pullback(bar):
            own = xp.sum(bar * owned, axis=1)
            rows = row_numbers(self.support, self.values)
            hit = xp.astype(rows[:, None] == at[None, :], own.dtype)
            return tree.cotangent(self, values=hit @ own)

        return owned * xp.take(self.values, at)[:, None], pullback

    def gram(self, weights: Array | None = None, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(self.values).xp
        s = as_widest_float(self.values)
        ws = s if weights is None else weights * s
        squares = self._sum_parts(s * ws)
        eye = xp.eye(self.count, **like(s))

        def pullback(gram_bar, log_det_bar):
            squares_bar = self._spread(xp.sum(gram_bar * eye, axis=1) + log_det_bar / squares)
            own = tree.cotangent(self, values=xp.astype(2.0 * ws * squares_bar, self.values.dtype))
            return own, None if weights is None else s * s * squares_bar

        return (squares * eye, xp.sum(xp.log(squares))), pullback

    def dependent_columns(self) -> list[int]:
        squares = self._sum_parts(self.values * self.values)
        return [j for j, fine in enumerate(to_numpy(squares > 0.0)) if not fine]

    def empty(self) -> Array:
        """Return a Boolean array [m] that is True for rows whose action is zero."""
        return self._spread(self._sum_parts(self.values * self.values)) == 0.0

    def normalise(self) -> Self:
        """Return the actions scaled to unit norm."""
        norms = backend_of(self.values).xp.sqrt(self._sum_parts(self.values * self.values))
        return tree.with_leaves(self, {"values": self.values / self._spread(norms)})


def order_rows(X: Array, count: int, /) -> Array:
    """Return a permutation [m] of the rows of X [m, D] that puts neighbouring rows into the same block.

    The blocks are the leaves of a tree. Each split divides rows along the column with the widest range, in proportion
    to the number of blocks on each side. Scale the columns of X before the call.
    """
    base, extra = divmod(X.shape[0], count)
    sizes = [base + 1] * extra + [base] * (count - extra)
    return backend_of(X).xp.concat(_leaves(X, row_numbers(X.shape[0], X), sizes), axis=0)


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


def initialise_blocks(residual: Array, count: int, init: Init, seed: int, /) -> BlockActions:
    """Return `count` sparse actions of unit norm over the m rows of the residuals y - h [m, P]."""
    xp = backend_of(residual).xp
    values = xp.ones_like(residual[:, 0])
    if init == "normal":
        values = asarray_like(generator(seed, 8).standard_normal(residual.shape[0]), residual)
    elif init == "residual":
        means = xp.mean(residual, axis=1)
        # a block whose residuals are zero starts with constant entries
        values = xp.where(BlockActions(means, count).empty(), values, means)
    return BlockActions(values, count).normalise()
