"""Finite features phi(X) [N, F] of kernels, with phi(x)^T phi(z) = k(x, z) exactly or on average over frequencies.

A stationary kernel is the average of cos(w^T (x - z)) over frequencies w from its spectral density (Rahimi & Recht,
"Random features for large-scale kernel machines", NeurIPS 2007). Each of H frequencies gives a block of two features,
cos(w^T x) and sin(w^T x). The inner product of the blocks at x and z is cos(w^T (x - z)). Kernels of finite rank have a
single block with all features. A sum of kernels has the blocks of all terms. A product of kernels has the outer
products of its factors' blocks; if one factor has a single block, this block is combined with each of the H blocks of
the other factor.
"""

import functools
import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of


def select_columns(X: Array, columns: tuple[Any, ...]) -> Array:
    """Return these columns of X [..., N, D], in this order."""
    if columns == tuple(range(columns[0], columns[0] + len(columns))):
        return X[..., columns[0] : columns[0] + len(columns)]
    return backend_of(X).xp.stack([X[..., column] for column in columns], axis=-1)


def scatter_columns(bar: Array | None, columns: tuple[Any, ...], width: int) -> Array | None:
    """Apply the adjoint of `select_columns`; the result [..., N, D] has zeros in the other columns."""
    if bar is None:
        return None
    xp = backend_of(bar).xp
    zero = xp.zeros_like(bar[..., 0])
    place = {column: i for i, column in enumerate(columns)}
    return xp.stack([bar[..., place[column]] if column in place else zero for column in range(width)], axis=-1)


def planes_of(entries: list[Array]) -> Array:
    """Stack arrays [N, H] as blocks [N, H, b] that are contiguous in each entry of b, for fast products of entries."""
    xp = backend_of(entries[0]).xp
    return xp.permute_dims(xp.stack(entries), (1, 2, 0))


class Blocks(ABC):
    """Features in H blocks of size b; the mean of the inner products of the blocks is the kernel."""

    @abstractmethod
    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return the blocks [N, H, b] at X [N, D], and the pullback ``bar -> X_bar``, None for constant blocks."""


@tree.model
class Waves(Blocks):
    """Blocks of a cos(w^T x) and a sin(w^T x) for frequencies w [H, D] and amplitudes a [H], which are 1 if missing."""

    frequencies: Array = tree.auxiliary()
    amplitudes: Array | None = tree.constant(default=None, optional=True)

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        angles = X @ self.frequencies.mT
        cos, sin = xp.cos(angles), xp.sin(angles)
        if self.amplitudes is not None:
            cos, sin = self.amplitudes * cos, self.amplitudes * sin

        def pullback(bar):
            return (cos * bar[:, :, 1] - sin * bar[:, :, 0]) @ self.frequencies

        return planes_of([cos, sin]), pullback


@tree.model
class Slopes(Blocks):
    """A single block with the features (x - centre) * scale. The centre [D] is optional; the scale is 0-d or [D]."""

    scale: Array = tree.auxiliary()
    centre: Array | None = tree.constant(default=None, optional=True)

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        X = X if self.centre is None else X - self.centre
        return (X * self.scale)[:, None, :], lambda bar: bar[:, 0, :] * self.scale


@tree.model
class Level(Blocks):
    """A single block with a constant feature, given as a 0-d array."""

    level: Array = tree.auxiliary()

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        return backend_of(X).xp.broadcast_to(self.level, (X.shape[0], 1, 1)), lambda _: None


@tree.model
class OnColumns(Blocks):
    """Blocks of selected columns of the inputs."""

    blocks: Blocks
    columns: tuple[int, ...]

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        value, pull = self.blocks(select_columns(X, self.columns))
        return value, lambda bar: scatter_columns(pull(bar), self.columns, X.shape[1])


@tree.model
class Term:
    """Outer products of several factors' blocks, joined along the feature axis."""

    factors: tuple[Blocks, ...]

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return the features [N, F] at X [N, D], and the pullback ``bar -> X_bar``."""
        found = [factor(X) for factor in self.factors]
        outer, xp = _OuterProducts([value for value, _ in found]), backend_of(X).xp
        product = outer.value
        share = 1.0 / math.sqrt(product.shape[1])

        def pullback(bar):
            bars = outer.pull(share * xp.reshape(bar, product.shape))
            parts = (pull(one) for (_, pull), one in zip(found, bars, strict=True))
            return functools.reduce(tree.add, parts, None)

        return share * xp.reshape(product, (X.shape[0], -1)), pullback

    def combine(self, X: Array, weights: Array, /) -> tuple[Array, Pullback, int]:
        """Return phi(X) @ weights[:F] [N, R] for weights [>= F, R], its pullback ``bar -> X_bar``, and the number F.

        The features are not formed. Let b [N, q] be the outer product of all single blocks, and z_c [N, H] the product
        of one entry of each of the other factors' blocks, for a choice c of the entries. The result is the sum over c
        and j of b_j (z_c W_cj) with weights W [H, R].
        """
        N = X.shape[0]
        found = [factor(X) for factor in self.factors]
        values = [value for value, _ in found]
        single = [i for i, value in enumerate(values) if value.shape[1] == 1]
        waves = [i for i in range(len(values)) if i not in single]
        if not waves:
            phi, pull = self(X)
            return phi @ weights[: phi.shape[1], :], lambda bar: pull(bar @ weights[: phi.shape[1], :].mT), phi.shape[1]
        products, W = (
            _EntryProducts([values[i] for i in waves]),
            self._weights_by_choice(values, single, waves, weights),
        )
        right = _OuterProducts([backend_of(X).xp.ones_like(values[0][:, :1, :1]), *(values[i] for i in single)])
        b, xp = right.value[:, 0, :, None], backend_of(X).xp  # [N, q, 1]
        total = functools.reduce(operator.add, (z @ own for z, own in zip(products.values, W, strict=True)))
        sums = xp.reshape(total, (N, b.shape[1], -1))

        def pullback(bar):
            spread = xp.reshape(b * bar[:, None, :], (N, -1))
            b_bar = xp.sum(sums * bar[:, None, :], axis=2)[:, None, :]
            bars = [*products.pull([spread @ own.mT for own in W]), *right.pull(b_bar)[1:]]
            parts = (found[i][1](one) for i, one in zip((*waves, *single), bars, strict=True))
            return functools.reduce(tree.add, parts, None)

        return xp.sum(b * sums, axis=1), pullback, W[0].shape[0] * math.prod(value.shape[2] for value in values)

    @staticmethod
    def _weights_by_choice(values: list[Array], single: list[int], waves: list[int], weights: Array) -> list[Array]:
        """Return the weights [H, q R] for each choice of entries, divided by sqrt(H)."""
        xp, sizes = backend_of(weights).xp, [value.shape[2] for value in values]
        H, R = values[waves[0]].shape[1], weights.shape[1]
        W = xp.reshape(weights[: H * math.prod(sizes), :] / math.sqrt(H), (H, *sizes, R))
        order = (*(i + 1 for i in waves), 0, *(i + 1 for i in single), len(sizes) + 1)
        W = xp.reshape(xp.permute_dims(W, order), (math.prod(sizes[i] for i in waves), H, -1))
        return [W[c, ...] for c in range(W.shape[0])]


class _EntryProducts:
    """The products z_c [N, H] of one entry of each of several blocks [N, H, p], for all choices c of the entries."""

    def __init__(self, blocks: list[Array]) -> None:
        self._entries = [[block[:, :, i] for i in range(block.shape[2])] for block in blocks]
        self._choices = list(itertools.product(*(range(len(own)) for own in self._entries)))
        self.values = [self._product(enumerate(choice)) for choice in self._choices]

    def _product(self, places: Iterable[tuple[int, int]]) -> Array:
        return functools.reduce(operator.mul, (self._entries[f][i] for f, i in places))

    def pull(self, bars: list[Array]) -> list[Array]:
        """Return the cotangents of all blocks."""
        found: list[list[Any]] = [[None] * len(own) for own in self._entries]
        for choice, bar in zip(self._choices, bars, strict=True):
            places = list(enumerate(choice))
            for f, i in places:
                others = [place for place in places if place[0] != f]
                found[f][i] = tree.add(found[f][i], bar * self._product(others) if others else bar)
        return [planes_of(own) for own in found]


class _OuterProducts:
    """Outer products [N, H, p q ...] of blocks [N, H, p], [N, H, q], ..., some of which may have H = 1."""

    def __init__(self, values: list[Array]) -> None:
        self._values, self._partial = values, list(itertools.accumulate(values, _outer))
        self.value = self._partial[-1]

    def pull(self, bar: Array) -> list[Array]:
        """Return the cotangents of all blocks."""
        bars = []
        for i in range(len(self._values) - 1, 0, -1):
            bar, own = _pull_outer(bar, self._partial[i - 1], self._values[i])
            bars.append(own)
        return [bar, *reversed(bars)]


def _outer(a: Array, b: Array) -> Array:
    """Return the outer products [N, H, p q] of a [N, H, p] and b [N, H, q]; a or b may have H = 1."""
    both = a[:, :, :, None] * b[:, :, None, :]
    return backend_of(a).xp.reshape(both, (*both.shape[:2], a.shape[2] * b.shape[2]))


def _pull_outer(bar: Array, a: Array, b: Array) -> tuple[Array, Array]:
    xp = backend_of(bar).xp
    bar = xp.reshape(bar, (*bar.shape[:2], a.shape[2], b.shape[2]))
    a_bar, b_bar = xp.sum(bar * b[:, :, None, :], axis=3), xp.sum(bar * a[:, :, :, None], axis=2)
    return _as_blocks_of(a, a_bar), _as_blocks_of(b, b_bar)


def _as_blocks_of(value: Array, bar: Array) -> Array:
    if value.shape[1] == bar.shape[1]:
        return bar
    return backend_of(bar).xp.sum(bar, axis=1, keepdims=True)


@tree.model
class Features:
    """Features phi of a kernel, from `Kernel.random_features`: phi(x)^T phi(z) equals or estimates k(x, z).

    For standard normal numbers g [F], phi(x)^T g is a function sample from the kernel's prior.
    """

    terms: tuple[Any, ...]
    """Maps with the signature of `Term`."""

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return phi(X) [N, F] for X [N, D], and the pullback ``bar -> X_bar``.

        X_bar is None if phi does not depend on X.
        """
        found = [term(X) for term in self.terms]
        if len(found) == 1:
            return found[0]

        def pullback(bar):
            X_bar, start = None, 0
            for value, pull in found:
                X_bar = tree.add(X_bar, pull(bar[:, start : start + value.shape[1]]))
                start += value.shape[1]
            return X_bar

        return backend_of(X).xp.concat([value for value, _ in found], axis=1), pullback

    def combine(self, X: Array, weights: Array, /) -> tuple[Array, Pullback, int]:
        """Return phi(X) @ weights[:F] [N, R], without phi where possible; see `Term.combine`."""
        found, start = [], 0
        for term in self.terms:
            found.append(combine_map(term, X, weights[start:, :]))
            start += found[-1][2]
        pulls = [pull for _, pull, _ in found]
        total = functools.reduce(operator.add, (value for value, _, _ in found))
        return total, lambda bar: functools.reduce(tree.add, (pull(bar) for pull in pulls), None), start

    def times(self, other: "Features", /) -> "Features":
        """Return the features of the product of two kernels."""
        return Features(tuple(Term(a.factors + b.factors) for a in self.terms for b in other.terms))

    def on(self, columns: tuple[Any, ...], /) -> "Features":
        """Return the features of the kernel on selected columns of the inputs."""
        terms = (tuple(OnColumns(blocks, columns) for blocks in term.factors) for term in self.terms)
        return Features(tuple(map(Term, terms)))

    @staticmethod
    def sum(several: "Iterable[Features]", /) -> "Features":
        """Return the features of a sum of kernels."""
        return Features(tuple(term for one in several for term in one.terms))

    @staticmethod
    def product(several: "Iterable[Features]", /) -> "Features":
        """Return the features of a product of kernels."""
        return functools.reduce(Features.times, several)


def combine_map(phi: Any, X: Array, weights: Array, /) -> tuple[Array, Pullback, int]:
    """Return phi(X) @ weights[:F] [N, R] for a map phi with F features, its pullback ``bar -> X_bar``, and F."""
    if isinstance(phi, Term | Features):
        return phi.combine(X, weights)
    value, pull = phi(X)
    own = weights[: value.shape[1], :]
    return value @ own, lambda bar: pull(bar @ own.mT), value.shape[1]


def features_of(variance: Any, blocks: Blocks | None = None, /) -> Features:
    """Return the features of the kernel that the blocks define, multiplied by `variance`.

    Without blocks, return the features of a constant kernel with this variance.
    """
    level = Level(backend_of(variance).xp.sqrt(variance))
    return Features((Term((level,) if blocks is None else (blocks, level)),))
