"""Exact search for nearest rows: by a k-d tree on the host, or by blocks of distances on any library.

Both find candidates, whose distances are then computed again from differences. Distances that agree in single
precision count as equal, and rows at equal distances are taken in the order of their numbers. So all libraries find the
same rows.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from agp.backend import Array, asarray_like, backend_of, row_numbers, to_numpy
from agp.chunking import rows_within
from agp.random import generator

TREE_COLUMNS = 8.0
"""A tree is used up to this effective number of columns. With more, it would visit most rows."""
LEAF = 32
"""The number of rows in a leaf of the tree. More rows than SciPy's default take less time for many neighbours."""
HALVED_ROWS = 100_000
"""From this number of rows on, the cells of a tree are halved instead of divided at medians, which takes a third of the
time, unless they would be halved very often because distances differ by many orders of magnitude."""
COUNTED_ROWS = 100_000
"""The number of rows from which on only some are used for the effective number of columns."""
PROBED_ROWS, PROBED_LEAF, DEEP = 1000, 4, 50
"""The numbers of rows and of rows in a leaf of a tree that tells this, and the number of its levels from which on cells
are divided at medians."""
SPARE = 8
"""The number of candidates beyond k, among which the order is decided by distances from differences."""
FIRST = 512
"""The earlier neighbours of this many first rows are found together."""
EARLIER = 3
"""A tree returns this many times k candidates, of which at least about half are earlier rows."""
NARROW = 2
"""In single precision, this many times k candidates are found, which hold the k nearest in spite of rounding errors."""
GROUP = 16
"""The number of columns whose minimum is computed first."""
FEW_INPUTS = 4
"""For at most this many inputs, all distances are computed in single precision if there are few rows."""
FEW_ROWS = 2**20
"""The largest number of rows, times the number of columns and one, for which that takes less time than a tree, whose
nodes are not in the caches."""
MOST_INDICATORS, LEAST_INDICATORS, INDICATORS = 32, 4, 512
"""Categories with more levels than the first number are represented by random signs in so many columns, which keeps the
distances of different levels up to a fifth or so, and those of equal levels exactly. Candidates are found by these
distances. With many categories, whose errors are averaged, each has fewer columns, at least the second number, so that
all have about the third number."""
MOST = 4096
"""The maximum number of inputs whose candidates are compared at the same time."""
LARGEST = 1e38
"""Squared distances above this value count as equal."""

Distances = Callable[[Array, Array], Array]
"""A function ``(Q [n, D], X [N, D]) -> squared distances [n, N]``, which maps stacks [n, 1, D], [n, C, D] to [n, C]."""


class NeighbourSearch:
    """The rows of X [N, D], prepared for finding those that are nearest to other inputs.

    Parameters
    ----------
    X
        The rows.
    factors
        Factors [E] of the coordinates; distances are those of the coordinates times the factors.
    distances
        Any other function of squared distances, if `factors` is None; see `Distances`.
    levels
        The numbers of levels of columns with codes of levels. Different levels are at the distance 1 times the factor.
    coordinates
        A function from inputs [n, D] to the coordinates [n, E] to which the factors refer, of which the first D belong
        to the columns; by default the inputs themselves.
    traced
        Whether the search is part of a compiled program, so that the host cannot read the rows.
    """

    def __init__(
        self,
        X: Array,
        factors: Array | None,
        distances: Distances | None = None,
        *,
        levels: Mapping[int, int] = MappingProxyType({}),
        coordinates: Callable[[Array], Array] | None = None,
        traced: bool = False,
    ) -> None:
        B = backend_of(X)
        X, factors = B.stop_gradient(X), None if factors is None else B.stop_gradient(factors)
        self._given, self._like = factors, X
        concrete = not traced and B.is_concrete(X) and B.is_concrete(X if factors is None else factors)
        self._levels = {d: max(count, 1 + int(B.xp.max(X[:, d]))) if concrete else count for d, count in levels.items()}
        self._on_host = factors is not None and concrete and B.device_memory(X) is None
        if factors is None:
            assert distances is not None
            self._distances, self._factors = distances, None
        else:
            self._distances = _squared_distances
            self._factors = to_numpy(factors).astype(np.float64) if self._on_host else factors
        self._coordinates = coordinates
        self._width = X.shape[1] if factors is None else factors.shape[0]
        self._rows = self._times_factors(X)
        self._tree = None
        if self._on_host and self._has_few_columns():
            self._tree = _tree_of(self._places(self._rows))
        few = self._rows.shape[0] * (self._rows.shape[1] + 1) <= FEW_ROWS
        narrowly = self._on_host and (few or self._tree is None)
        self._single = _SingleDistances(self._places(self._rows)) if narrowly else None
        self._takes_one = few

    def nearest(self, Q: Array, k: int, /, *, memory: float | None = None) -> Array:
        """Return the numbers [n, k] of the k rows that are nearest to each of the inputs Q [n, D], the nearest first.

        k is at most the number of rows.
        """
        B = backend_of(Q)
        Q = B.stop_gradient(Q)
        if self._on_host and not B.is_concrete(Q):
            options: Any = {"levels": self._levels, "coordinates": self._coordinates}
            traced = NeighbourSearch(self._like, self._given, **options, traced=True)
            return traced.nearest(Q, k, memory=memory)
        Q = self._times_factors(Q)
        if self._single is not None and self._takes_one and 0 < Q.shape[0] <= FEW_INPUTS:
            return self._join(np.concatenate([self._nearest_to_one(Q[i : i + 1, :], k) for i in range(Q.shape[0])]))
        return self._join(self._by_blocks(lambda Q: self._nearest(Q, self._rows, self._tree, k), memory, Q))

    def others(self, rows: Array, k: int, /, *, memory: float | None = None) -> Array:
        """Return the numbers [n, k] of the k rows nearest to each of the rows with given numbers [n], without itself.

        k is less than the number of rows.
        """
        B = backend_of(self._like)
        xp, found = B.xp, self.nearest(B.rows_at(self._like, rows), k + 1, memory=memory)
        # move the row itself to the end; if repeated inputs come before it, the last of them is left out instead
        last = xp.argsort(xp.astype(found == rows[:, None], xp.int64), axis=1, stable=True)
        return xp.take_along_axis(found, last, axis=1)[:, :k]

    def earlier(self, order: Array, k: int, /, *, start: int = 0, memory: float | None = None) -> Array:
        """Return the numbers [N - start, k] of the k nearest earlier rows of rows, or -1 where there are fewer.

        `order` [N] contains the numbers of the rows in their order. The result is for the rows from place `start` on,
        in this order.
        """
        B = backend_of(self._like)
        order = to_numpy(order) if self._on_host else order
        xp, N = backend_of(order).xp, self._rows.shape[0]
        rows = xp.take(self._rows, order, axis=0)
        parts = []
        while start < N:
            stop = min(N, max(FIRST, 2 * start))
            parts.append(self._earlier(rows[:stop, :], start, min(k, N), memory))
            start = stop
        found = xp.concat(parts, axis=0)
        numbers = xp.take(order, xp.reshape(xp.where(found < 0, 0, found), (-1,)))
        found = xp.where(found < 0, -1, xp.reshape(numbers, found.shape))
        return B.from_numpy(found, device=B.device_name(self._like) or None) if self._on_host else found

    # -- parts ------------------------------------------------------------------------------------------------------

    def _has_few_columns(self) -> bool:
        """Whether a tree visits few of the rows, which are on the host."""
        some = self._rows[:: max(1, len(self._rows) // COUNTED_ROWS), :]
        return effective_columns(self._places(some)) <= TREE_COLUMNS

    def _times_factors(self, X: Array) -> Array:
        X = X if self._coordinates is None else self._coordinates(X)
        X = np.asarray(to_numpy(X), dtype=np.float64) if self._on_host else X
        if self._factors is None:
            return X
        # candidates are taken from these rows, which is slow if a row is not in one place
        scaled = np.multiply(X, self._factors, order="C") if self._on_host else X * self._factors
        if not self._levels:
            return scaled
        xp = backend_of(X).xp
        numbers = [scaled[:, d : d + 1] for d in range(X.shape[1]) if d not in self._levels]
        codes = [xp.round(X[:, d : d + 1]) for d in self._levels]
        most = min(MOST_INDICATORS, max(LEAST_INDICATORS, INDICATORS // len(self._levels)))
        places = [_places_of(X[:, d], count, self._factors[d], most) for d, count in self._levels.items()]
        return xp.concat([*numbers, *codes, *places], axis=1)

    def _places(self, A: Array) -> Array:
        """Return the part of scaled inputs from which candidates are found: numbers, and points for the levels."""
        if not self._levels:
            return A
        numbers = self._width - len(self._levels)
        return backend_of(A).xp.concat([A[:, :numbers], A[:, self._width :]], axis=1)

    def _exact_distances(self, Q: Array, X: Array) -> Array:
        """Return squared distances [n, C] of scaled inputs [n, 1, D] and [n, C, D], of numbers and codes."""
        count = self._width - len(self._levels)
        sizes = self._distances(Q[..., :count], X[..., :count])
        xp = backend_of(X).xp
        for i, d in enumerate(self._levels, start=count):
            assert self._factors is not None  # levels come with factors
            sizes = sizes + self._factors[d] ** 2 * xp.astype(Q[..., i] != X[..., i], sizes.dtype)
        return sizes

    def _join(self, found: Array) -> Array:
        B = backend_of(self._like)
        return B.from_numpy(found, device=B.device_name(self._like) or None) if self._on_host else found

    def _by_blocks(self, f: Callable[..., Array], memory: float | None, Q: Array, *others: Array) -> Array:
        """Evaluate ``f(Q, *others)`` in blocks of inputs whose distances fit into the budget."""
        size = MOST if self._tree is not None else min(MOST, rows_within(memory, 3 * self._rows.shape[0], Q))
        rows = (Q, *others)
        return backend_of(Q).map_rows(lambda _, block: (f(*block), None), (), rows, size, add=lambda *_: None)[0]  # type: ignore[arg-type]

    def _nearest(self, Q: Array, rows: Array, tree: Any, k: int, own: Array | None = None, more: int = 0) -> Array:
        """Return the k nearest rows of scaled inputs; only rows before the numbers `own` [n] count, if given.

        Where there are fewer such rows, the numbers are -1. At least `more` candidates are compared.
        """
        xp, N = backend_of(Q).xp, rows.shape[0]
        count = min(N, max(more, k + SPARE))
        if more == 0 and count < N and tree is None and self._on_host and Q.shape[0] > 1:
            return self._nearest_narrowly(Q, rows, k, own)
        found, sizes = self._refine(Q, rows, self._candidates(Q, rows, tree, count, own), own)
        found = found[:, :k] if own is None else xp.where(xp.isinf(sizes), -1, found)[:, :k]
        tied = self._rows_with_ties(sizes, k) if count < N else ()
        if not len(tied):
            return found
        if len(tied) == Q.shape[0]:
            return self._nearest(Q, rows, tree, k, own, 4 * count)
        found[tied, :] = self._nearest(Q[tied, :], rows, tree, k, None if own is None else own[tied], 4 * count)
        return found

    def _nearest_narrowly(self, Q: Any, rows: Any, k: int, own: Any) -> Any:
        """Return the result of `_nearest` from distances in single precision, where these tell the nearest rows."""
        single = self._single if rows is self._rows else None
        single = single or _SingleDistances(self._places(rows))
        count = min(rows.shape[0], NARROW * k + SPARE)
        candidates, safe = single.candidates_of_each(self._places(Q), k, count, own)
        found, sizes = self._refine(Q, rows, np.sort(candidates, axis=1), own)
        found = found[:, :k] if own is None else np.where(np.isinf(sizes), -1, found)[:, :k]
        (rest,) = np.nonzero(~safe)
        if len(rest):
            found[rest, :] = self._nearest(Q[rest, :], rows, None, k, None if own is None else own[rest], k + SPARE)
        return found

    def _nearest_to_one(self, Q: Any, k: int) -> Any:
        """Return the k nearest rows [1, k] of one scaled input [1, D]."""
        assert self._single is not None
        found = self._single.candidates(self._places(Q)[0, :], k)
        if found is None:
            return self._nearest(Q, self._rows, self._tree, k)
        return self._refine(Q, self._rows, found[None, :])[0][:, :k]

    def _rows_with_ties(self, sizes: Array, k: int) -> Any:
        """Return the rows of the distances whose last candidate is as near as the k-th: others may be as near too.

        On a device, these are all rows or none. A compiled program cannot depend on them.
        """
        B = backend_of(sizes)
        tied = (sizes[:, -1] <= sizes[:, k - 1]) & B.xp.isfinite(sizes[:, -1])
        if self._on_host:
            return np.nonzero(tied)[0]
        return range(sizes.shape[0]) if B.is_concrete(sizes) and bool(B.xp.any(tied)) else ()

    def _candidates(self, Q: Array, rows: Array, tree: Any, count: int, own: Array | None = None) -> Array:
        """Return the numbers [n, count] of rows near scaled inputs, in the order of the rows."""
        B = backend_of(Q)
        xp, N = B.xp, rows.shape[0]
        if tree is not None:
            return np.sort(tree.query(self._places(Q), k=count)[1].reshape(len(Q), count), axis=1)
        if count == N:
            return xp.broadcast_to(row_numbers(N, Q), (Q.shape[0], N))
        sizes = self._distances(self._places(Q), self._places(rows))
        if own is not None:
            sizes = xp.where(row_numbers(N, Q)[None, :] >= own[:, None], xp.inf, sizes)
        return xp.sort(B.smallest(sizes, count), axis=1)

    def _refine(self, Q: Array, rows: Array, found: Array, own: Array | None = None) -> tuple[Array, Array]:
        """Sort candidates [n, c] by distance, and return them with the distances.

        Candidates from the row number `own` [n] on have the distance infinity.
        """
        B, width = backend_of(Q), self._width
        xp = B.xp
        near = xp.reshape(B.rows_at(rows, xp.reshape(found, (-1,))), (*found.shape, rows.shape[1]))
        exact = self._exact_distances(Q[:, None, :width], near[:, :, :width])
        sizes = xp.astype(xp.clip(exact, 0.0, LARGEST), xp.float32)
        sizes = sizes if own is None else xp.where(found >= own[:, None], xp.inf, sizes)
        order = xp.argsort(sizes, axis=1, stable=True)
        return xp.take_along_axis(found, order, axis=1), xp.take_along_axis(sizes, order, axis=1)

    def _earlier(self, rows: Array, start: int, k: int, memory: float | None) -> Array:
        """Return the earlier neighbours of the rows from `start` on, among ordered rows [stop, D]."""
        xp, stop = backend_of(rows).xp, rows.shape[0]
        own = row_numbers(stop - start, rows, start=start)
        tree = _tree_of(self._places(rows)) if self._tree is not None and start else None

        def of_block(Q: Array, numbers: Array) -> Array:
            if tree is None:
                return self._nearest(Q, rows, None, min(k, stop), numbers)
            return self._earlier_by_tree(Q, rows, tree, numbers, k)

        found = self._by_blocks(of_block, memory, rows[start:, :], own)
        if found.shape[1] == k:
            return found
        absent = xp.full_like(found[:, :1], -1)
        return xp.concat([found, xp.broadcast_to(absent, (stop - start, k - found.shape[1]))], axis=1)

    def _earlier_by_tree(self, Q: Any, rows: Any, tree: Any, own: Any, k: int) -> Any:
        """Take the earlier ones of more candidates, which are about half of them or more."""
        count = min(rows.shape[0], EARLIER * k + SPARE)
        found, sizes = self._refine(Q, rows, self._candidates(Q, rows, tree, count))
        last = sizes[:, -1]
        sizes = np.where(found >= own[:, None], np.inf, sizes)
        order = np.argsort(sizes, axis=1, kind="stable")[:, :k]
        found, sizes = np.take_along_axis(found, order, axis=1), np.take_along_axis(sizes, order, axis=1)
        found = np.where(np.isinf(sizes), -1, found)
        if count < rows.shape[0]:
            (few,) = np.nonzero(sizes[:, -1] >= last)  # too few are earlier, or there is a tie
            if len(few):
                found[few] = self._nearest(Q[few], rows, None, k, own[few])
        return found


class _SingleDistances:
    """Distances from one input to all rows [N, D] in single precision, with a bound on their rounding errors."""

    def __init__(self, rows: Any) -> None:
        with np.errstate(all="ignore"):
            self._centre = np.mean(rows, axis=0)
            x = rows - self._centre
            squares = np.sum(x * x, axis=1)
            self._table = np.ascontiguousarray(np.concatenate([x.T, squares[None, :]]), dtype=np.float32)  # [D + 1, N]
            self._largest = float(np.max(squares)) ** 0.5

    def candidates_of_each(self, Q: Any, k: int, count: int, own: Any) -> tuple[Any, Any]:
        """Return the numbers [n, count] of rows near inputs Q [n, D], and whether they include the k nearest [n].

        They do if the last candidate is farther than the k-th by more than rounding errors. If `own` [n] is given, only
        rows before these numbers count.
        """
        with np.errstate(all="ignore"):
            Q = Q - self._centre
            sizes = np.concatenate([-2.0 * Q, np.ones((len(Q), 1))], axis=1).astype(np.float32) @ self._table
            if own is not None:
                sizes[np.arange(sizes.shape[1])[None, :] >= own[:, None]] = np.inf
            found = _smallest_of_each(sizes, count)
            near = np.sort(np.take_along_axis(sizes, found, axis=1), axis=1)
            norms = np.sqrt(np.sum(Q * Q, axis=1))
            most = (self._largest + norms) ** 2
            bound = (Q.shape[1] + 8) * float(np.finfo(np.float32).eps) * most
            gap = near[:, -1].astype(np.float64) - near[:, k - 1]
            return found, ((gap > 2.0 * bound) | np.isposinf(near[:, -1])) & (most < LARGEST)

    def candidates(self, q: Any, k: int) -> Any:
        """Return the numbers of rows that include the k nearest and all at equal distances; None if they overflow."""
        with np.errstate(all="ignore"):
            q = q - self._centre
            sizes = np.append(-2.0 * q, 1.0).astype(np.float32) @ self._table  # |x|^2 - 2 q^T x
            last = float(np.partition(sizes, k - 1)[k - 1])
            bound = (q.size + 8) * float(np.finfo(np.float32).eps) * (self._largest + float(np.sqrt(q @ q))) ** 2
        return np.nonzero(sizes <= last + 2.0 * bound)[0] if np.isfinite(last) and bound < LARGEST else None


def _places_of(codes: Array, levels: int, factor: Array, most: int) -> Array:
    """Return points [N, m] for codes [N], m <= most, such that the distance between different levels is the factor.

    Codes that are none of a level have a point of their own.
    """
    xp = backend_of(codes).xp
    if levels < most:
        table = np.eye(levels + 1) / math.sqrt(2.0)
    else:
        signs = generator(levels, 34).integers(0, 2, (levels + 1, most)) - 0.5
        table = signs * math.sqrt(2.0 / most)
    places = xp.astype(xp.round(codes), xp.int64)
    places = xp.where((places < 0) | (places >= levels), levels, places)
    return factor * xp.take(asarray_like(table, codes), places, axis=0)


def _smallest_of_each(sizes: Any, count: int) -> Any:
    """Return the columns [n, count] of the smallest entries of each row of an array [n, N].

    They are in the `count` groups of columns with the smallest minima, because each of these has a smaller entry than
    any other group.
    """
    n, N = sizes.shape
    groups = N // GROUP
    if groups <= count:
        return np.argpartition(sizes, count - 1, axis=1)[:, :count]
    minima = np.min(sizes[:, : GROUP * groups].reshape(n, GROUP, groups), axis=1)
    best = np.argpartition(minima, count - 1, axis=1)[:, :count]
    of_groups = (best[:, None, :] + groups * np.arange(GROUP)[None, :, None]).reshape(n, -1)
    rest = np.broadcast_to(np.arange(GROUP * groups, N), (n, N - GROUP * groups))
    columns = np.concatenate([of_groups, rest], axis=1)
    order = np.argpartition(np.take_along_axis(sizes, columns, axis=1), count - 1, axis=1)[:, :count]
    return np.take_along_axis(columns, order, axis=1)


def effective_columns(X: Any, /) -> float:
    """Return the effective number of columns, (sum of their variances)^2 / (sum of squared variances)."""
    with np.errstate(all="ignore"):
        variances = np.var(X, axis=0)
        total, squares = float(np.sum(variances)), float(np.sum(variances * variances))
    return total * total / squares if squares > 0.0 else 1.0


def _tree_of(X: Any) -> Any:
    from scipy.spatial import cKDTree  # type: ignore[attr-defined] - `KDTree.tree` descends by recursion

    halved = len(X) >= HALVED_ROWS
    if halved:
        probe = cKDTree(X[:: len(X) // PROBED_ROWS], PROBED_LEAF, compact_nodes=False, balanced_tree=False)
        halved = _has_fewer_levels(probe.tree, DEEP)
    return cKDTree(X, LEAF, compact_nodes=not halved, balanced_tree=not halved)


def _has_fewer_levels(root: Any, count: int) -> bool:
    """Whether a tree has fewer levels of nodes."""
    level = [root]
    for _ in range(count - 1):
        level = [child for node in level for child in (node.lesser, node.greater) if child is not None]
    return not level


def _squared_distances(Q: Array, X: Array) -> Array:
    B = backend_of(Q)
    xp = B.xp
    if Q.ndim == 3:
        apart = X - Q
        return xp.sum(apart * apart, axis=-1)
    centre = xp.mean(X, axis=0)
    Q, X = Q - centre, X - centre
    return B.squared_distances(Q, X, xp.sum(Q * Q, axis=1), xp.sum(X * X, axis=1))
