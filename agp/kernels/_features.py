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

        return xp.stack([cos, sin], axis=-1), pullback


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
        values = [value for value, _ in found]
        partial = list(itertools.accumulate(values, _outer))
        product, xp = partial[-1], backend_of(X).xp
        share = 1.0 / math.sqrt(product.shape[1])

        def pullback(bar):
            bar, X_bar = share * xp.reshape(bar, product.shape), None
            for i in range(len(values) - 1, 0, -1):
                bar, factor_bar = _pull_outer(bar, partial[i - 1], values[i])
                X_bar = tree.add(X_bar, found[i][1](factor_bar))
            return tree.add(X_bar, found[0][1](bar))

        return share * xp.reshape(product, (X.shape[0], -1)), pullback


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


def features_of(variance: Any, blocks: Blocks | None = None, /) -> Features:
    """Return the features of the kernel that the blocks define, multiplied by `variance`.

    Without blocks, return the features of a constant kernel with this variance.
    """
    level = Level(backend_of(variance).xp.sqrt(variance))
    return Features((Term((level,) if blocks is None else (blocks, level)),))
