"""Codes of levels: which entries of two rows are equal, sums over such pairs, and features."""

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add
from typing import NamedTuple

from agp import tree
from agp.backend import Array, Backend, Pullback, backend_of, like, row_numbers
from agp.kernels._features import Blocks, planes_of

MOST_INDICATORS = 32
"""The largest number of levels for which sums over equal levels are products with indicators of the levels."""
BITS = 12
"""The number of columns whose patterns of differences have a common table, of 2^12 entries."""
MOST_SMALL = 2**15 - 1
"""The largest code for which comparisons take less time, with 16 bits."""


def codes_of(X: Array, levels: tuple[int, ...]) -> Array:
    """Return the codes [D, ..., N] of X [..., N, D] as whole numbers, without the rounding errors of other units.

    `levels` are the numbers of levels of the columns; 0 if they are unknown. If all are small, so are the numbers, and
    larger codes, which are those of no level, become equal.
    """
    xp = backend_of(X).xp
    codes = xp.round(xp.stack([X[..., d] for d in range(X.shape[-1])]))
    if not 0 < min(levels) <= max(levels) < MOST_SMALL:
        return xp.astype(codes, xp.int32)
    return xp.astype(xp.clip(codes, -1, MOST_SMALL), xp.int16)


def differ(x: Array, z: Array, d: int) -> Array:
    """Whether the levels of column d differ [..., N, M], for codes x [D, ..., N] and z [D, ..., M]."""
    return x[d, ..., :, None] != z[d, ..., None, :]


def sum_where(B: Backend, x: Array, z: Array, weights: Array, *, equal: bool) -> Array:
    """Return the sums [..., N, M] of the weights [D] of the columns whose levels are equal, or differ."""
    return reduce(add, of_patterns(B, x, z, weights, lambda sums: sums, equal=equal))


def of_patterns(
    B: Backend, x: Array, z: Array, weights: Array, f: Callable[[Array], Array], *, equal: bool
) -> Iterator[Array]:
    """Yield f of the sums of `sum_where` for up to `BITS` columns at a time.

    The bits of a small number tell in which columns the levels differ. Its values have a table, so that there are few
    passes over floats.
    """
    xp, D = B.xp, x.shape[0]
    for first in range(0, D, BITS):
        some = range(first, min(first + BITS, D))
        kind = xp.uint8 if len(some) <= 8 else xp.int16
        pattern, table = None, xp.zeros((1,), **like(weights))
        for d in reversed(some):  # the last bit is that of the first column
            bit = xp.astype(differ(x, z, d), kind)
            pattern = bit if pattern is None else pattern + pattern + bit
        for d in some:
            weight = weights[d : d + 1]
            table = xp.concat([table + weight, table] if equal else [table, table + weight])
        yield B.look_up(f(table), pattern)


class CodedRows(NamedTuple):
    """Rows of codes, which are compared with each other or with other rows."""

    x: Array
    """[D, ..., N]."""
    z: Array
    """[D, ..., M]."""
    levels: tuple[int, ...]
    """The numbers of levels of the columns; 0 if they are unknown."""
    equal: bool
    """Whether pairs of rows with equal levels count, or those with different levels."""
    symmetric: bool = False
    """Whether the rows are compared with each other, and matrices are given by their lower triangles."""

    def times(self, B: Backend, W: Array, a: Array) -> Array:
        """Return sum_m W_nm a_mp [..., N, P, D] over the pairs that count, for W [..., N, M] and a [..., M, P]."""
        few = [d for d, count in enumerate(self.levels) if 0 < count <= MOST_INDICATORS]
        found = dict(zip(few, self._by_indicators(B, W, a, few), strict=True)) if few else {}
        rest = (d for d in range(len(self.levels)) if d not in found)
        found |= {d: self._product(B, self._mask(B, W, d), a) for d in rest}
        return B.xp.stack([found[d] for d in range(len(found))], axis=-1)

    def total(self, B: Backend, W: Array) -> Array:
        """Return the sums [D] of the entries of W [..., N, M] for the pairs that count."""
        ones = B.xp.ones((*self.z.shape[1:], 1), **like(W))
        sums = self.times(B, W, ones)
        return B.xp.sum(B.xp.reshape(sums, (-1, sums.shape[-1])), axis=0)

    def _product(self, B: Backend, W: Array, a: Array) -> Array:
        return B.symmetric_product(W, a) if self.symmetric else W @ a

    def _by_indicators(self, B: Backend, W: Array, a: Array, few: list[int]) -> list[Array]:
        """Return the sums [..., N, P] for some columns from the products of W with a times indicators of the levels."""
        xp, P = B.xp, a.shape[-1]
        of_z = [self._indicators(B, self.z, d, a)[..., :, None, :] for d in few]
        of_x = of_z if self.x is self.z else [self._indicators(B, self.x, d, a)[..., :, None, :] for d in few]
        blocks = [a[..., :, None] * indicators for indicators in of_z]
        flat = (xp.reshape(block, (*block.shape[:-2], -1)) for block in blocks)
        products = self._product(B, W, xp.concat([a, *flat], axis=-1))
        every, start, found = products[..., :P], P, []
        for block, indicators in zip(blocks, of_x, strict=True):
            stop = start + P * block.shape[-1]
            by_level = xp.reshape(products[..., start:stop], (*products.shape[:-1], P, block.shape[-1]))
            equal = xp.sum(by_level * indicators, axis=-1)
            found.append(equal if self.equal else every - equal)
            start = stop
        return found

    def _indicators(self, B: Backend, codes: Array, d: int, a: Array) -> Array:
        """Return the indicators [..., N, L + 1] of the levels of a column; the last one is that of other codes."""
        places = places_of(codes[d, ...], self.levels[d])
        numbers = B.xp.astype(row_numbers(self.levels[d] + 1, a), places.dtype)
        return B.xp.astype(places[..., None] == numbers, a.dtype)

    def _mask(self, B: Backend, W: Array, d: int) -> Array:
        """Return W with zeros for the pairs that do not count."""
        zero = B.xp.zeros((), **like(W))

        def masked(W: Array, differs: Array) -> Array:
            return B.xp.where(differs, zero, W) if self.equal else B.xp.where(differs, W, zero)

        if not self.symmetric:
            return masked(W, differ(self.x, self.z, d))
        x = self.x
        (found,) = B.lower_tiles(lambda i, j: (masked(W[i:j, :j], differ(x[:, i:j], x[:, :j], d)),), x.shape[1])
        return found


@tree.model
class Angles(Blocks):
    """Blocks of cos(a) and sin(a), where an angle a is the sum of those of the levels of a row.

    Codes without angles have the last one.
    """

    angles: Array = tree.auxiliary()
    """[D, L + 1, H]."""

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        total = None
        for d in range(X.shape[1]):
            total = tree.add(total, xp.take(self.angles[d, ...], places_of(X[:, d], self.angles.shape[1] - 1), axis=0))
        return planes_of([xp.cos(total), xp.sin(total)]), lambda _: None


@tree.model
class Indicators(Blocks):
    """A single block with a feature for each level of each column, which is the column's scale [D] at this level."""

    scale: Array = tree.auxiliary()
    levels: tuple[int, ...]

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        parts = [
            self.scale[d] * xp.take(xp.eye(count + 1, **like(X)), places_of(X[:, d], count), axis=0)
            for d, count in enumerate(self.levels)
        ]
        return xp.concat(parts, axis=1)[:, None, :], lambda _: None


@tree.model
class OfPlaces(Blocks):
    """A single block with the features of the levels of a column, the rows of a table [L + 1, F].

    Codes of no level have those of the last row.
    """

    table: Array = tree.auxiliary()

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        places = places_of(X[:, 0], self.table.shape[0] - 1)
        return backend_of(X).xp.take(self.table, places, axis=0)[:, None, :], lambda _: None


def places_of(codes: Array, levels: int) -> Array:
    """Return codes as whole numbers; those that are no code of a level become `levels`."""
    xp = backend_of(codes).xp
    places = xp.astype(xp.round(codes), xp.int64)
    return xp.where((places < 0) | (places >= levels), levels, places)
