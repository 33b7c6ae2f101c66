"""Kernels of categories, which are given by whole numbers, the codes of their levels."""

import dataclasses
import operator
from functools import reduce
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Backend, Pullback, asarray_like, backend_of, like
from agp.chunking import unit_by_column
from agp.kernels._base import Kernel
from agp.kernels._codes import Angles, CodedRows, Indicators, codes_of, differ, of_patterns, sum_where
from agp.kernels._constant import Constant
from agp.kernels._features import Features, Term, select_columns
from agp.kernels._jets import Jets, constant_jets
from agp.kernels._linearisation import Linearisation, apply_weights
from agp.kernels._parameters import check_per_column, per_column
from agp.kernels._stacks import weighted_columns
from agp.tree import POSITIVE


class OfLevels(Kernel):
    """Base class for kernels that depend on which entries of two rows are equal. The cotangents of inputs are zero."""

    levels: Any
    takes_groups: ClassVar[bool] = True
    takes_codes: ClassVar[bool] = True

    def category_levels(self, width: int, /) -> dict[int, int]:
        return dict(enumerate(self._levels(width)))

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        return constant_jets(*self(X, Z), V, W)

    def _levels(self, width: int) -> tuple[int, ...]:
        """Return the number of levels of each column, 0 if it is unknown."""
        return (self.levels,) * width if isinstance(self.levels, int) else self.levels

    def _codes(self, X: Array) -> Array:
        return codes_of(X, self._levels(X.shape[-1]))

    def _zeros(self, X: Array, Z: Array | None) -> tuple[Array, ...]:
        xp = backend_of(X).xp
        return (xp.zeros_like(X),) if Z is None else (xp.zeros_like(X), xp.zeros_like(Z))

    def _count_levels(self, X: Array) -> tuple[int, ...]:
        """Return the number of levels of each column, which is at least one, and at least that of the codes of X."""
        xp, known = backend_of(X).xp, self._levels(X.shape[1])
        return tuple(max(count, 1, 1 + int(xp.max(X[:, d]))) for d, count in enumerate(known)) if X.shape[0] else known

    def _known_levels(self, width: int) -> tuple[int, ...]:
        levels = self._levels(width)
        if 0 in levels:
            raise TypeError(
                f"{type(self).__name__} has no number of levels; pass levels=, or call from_data(X, variance) instead."
            )
        return levels


def times_overlap(kernel: Kernel, width: int, columns: tuple[int, ...], /) -> Kernel:
    """Return a kernel on the columns of numbers, times `Overlap` on the other columns. See `Kernel.with_categories`."""
    lengthscale = _split_columns(kernel, "lengthscale", (), columns, width)[0]
    return on_others(kernel, width, columns) * Overlap(lengthscale).on(columns)


def on_others(kernel: Kernel, width: int, columns: tuple[int, ...], /) -> Kernel:
    """Return a kernel on the columns of numbers alone, which is constant if there are none."""
    numbers = tuple(d for d in range(width) if d not in columns)
    if numbers:
        return _split_columns(kernel, "", numbers, columns, width)[1].on(numbers)
    variance = tree.leaves(kernel).get("variance")
    return Constant(None if _length(variance) is not None else variance)


def plus_effects(kernel: Kernel, width: int, columns: tuple[int, ...], /) -> Kernel:
    """Return a kernel on the columns of numbers, plus `RandomEffects` on the other columns."""
    numbers = tuple(d for d in range(width) if d not in columns)
    variance, rest = _split_columns(kernel, "variance", numbers, columns, width)
    effects = RandomEffects(variance).on(columns)
    return rest.on(numbers) + effects if numbers else effects


def _split_columns(
    kernel: Kernel, name: str, numbers: tuple[int, ...], columns: tuple[int, ...], width: int
) -> tuple[Any, Kernel]:
    """Return the entries of a leaf for the columns of codes, and the kernel with the entries for those of numbers.

    The entries are None if the leaf is absent or one number. Leaves with one entry per column are those with `width`
    entries.
    """
    leaves = {key: x for key, x in tree.leaves(kernel).items() if _length(x) == width}
    of_codes = _entries(leaves[name], columns) if name in leaves else None
    if not numbers:
        return of_codes, kernel
    return of_codes, tree.with_leaves(kernel, {key: _entries(x, numbers) for key, x in leaves.items()})


def _length(x: Any) -> int | None:
    """Return the number of entries of a vector or a list, or None."""
    if isinstance(x, list | tuple):
        return len(x)
    return None if x is None or isinstance(x, int | float) or x.ndim != 1 else x.shape[0]


def _entries(x: Any, places: tuple[int, ...]) -> Any:
    return [x[i] for i in places] if isinstance(x, list | tuple) else select_columns(x[None, :], places)[0, :]


@tree.model
class Overlap(OfLevels):
    """The correlation of categories, k(x, z) = prod_d exp(-[x_d != z_d] / (2 lengthscale_d^2)).

    The columns contain the codes of levels, which are whole numbers. All pairs of different levels are at the distance
    1, and so is a level that was never seen, such as -1. The kernel has no variance. Multiply a kernel of numbers by it
    to let the function differ between levels: the correlation between the functions of two levels of column d is
    exp(-1 / (2 lengthscale_d^2)). A column with a long lengthscale does not matter.

    Parameters
    ----------
    lengthscale
        The dimensionless lengthscale: scalar (0-d), or one for each column [D].
    levels
        The number of levels, or one for each column, from which random features and fast derivatives follow.
        `from_data` increases it to that of the data. If it is known, all codes below zero are one level.

    Examples
    --------
    What is seen at one level says something about the others.

    >>> import numpy as np
    >>> import agp
    >>> kernel = agp.RBF(1.0, 1.0).on(0) * agp.Overlap(1.0).on(1)
    >>> K, _ = kernel(np.asarray([[0.0, 0.0], [0.0, 2.0], [1.0, 2.0]]))
    >>> print(K.round(2))
    [[1.   0.61 0.37]
     [0.61 1.   0.61]
     [0.37 0.61 1.  ]]
    """

    short_name: ClassVar[str] = "overlap"
    lengthscale: Array = tree.param(POSITIVE, default=None, unit="lengthscale_unit")
    lengthscale_unit: Array | None = tree.unit(default=None)
    levels: int | tuple[int, ...] = 0

    floats_per_entry: ClassVar[int] = 3

    def _weights(self, width: int) -> Array:
        half = 0.5 / (self.lengthscale * self.lengthscale)
        return backend_of(half).xp.broadcast_to(half, (width,))

    @staticmethod
    def _correlations(B: Backend, x: Array, z: Array, weights: Array) -> Array:
        return reduce(operator.mul, of_patterns(B, x, z, weights, lambda sums: B.xp.exp(-sums), equal=False))

    def _slopes(self, width: int) -> Array:
        """Return dk/dlengthscale / k [D] where the levels differ."""
        return 2.0 * self._weights(width) / self.lengthscale

    def _bar(self, by_column: Array) -> "Overlap":
        return tree.cotangent(self, lengthscale=per_column(by_column, self.lengthscale))

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        B, width = backend_of(X), X.shape[-1]
        x, z = self._codes(X), self._codes(X if Z is None else Z)
        K = self._correlations(B, x, z, self._weights(width))

        def pullback(K_bar):
            sums = CodedRows(x, z, self._levels(width), equal=False).total(B, K_bar * K)
            return self._bar(self._slopes(width) * sums), *self._zeros(X, Z)

        return K, pullback

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        zero = backend_of(X).xp.zeros_like(self.lengthscale)
        ones = backend_of(X).xp.ones((X.shape[0],), **like(X)) + 0.0 * backend_of(X).xp.sum(self.lengthscale)
        return ones, lambda _: (tree.cotangent(self, lengthscale=zero), None)

    def linearise(self, X: Array, /) -> Linearisation:
        B, width, x = backend_of(X), X.shape[1], self._codes(X)
        weights = self._weights(width)

        def tile(i: int, j: int) -> tuple[Array]:
            return (self._correlations(B, x[:, i:j], x[:, :j], weights),)

        (K,) = B.lower_tiles(tile, X.shape[0])
        rows = CodedRows(x, x, self._levels(width), equal=False, symmetric=True)
        slopes = self._slopes(width)
        return Linearisation(
            K,
            lambda K_bar: self._bar(slopes * rows.total(B, K_bar * K)),
            lambda a, W=None: self._products(slopes * rows.times(B, apply_weights(W, K), a)),
        )

    def linearise_groups(self, X: Array, /) -> Linearisation:
        B, width, x = backend_of(X), X.shape[-1], self._codes(X)
        K = self._correlations(B, x, x, self._weights(width))

        rows = CodedRows(x, x, self._levels(width), equal=False)

        def times(a, W=None):
            sums = rows.times(B, apply_weights(W, K), a[:, :, None])[:, :, 0, :]
            return self._products(self._slopes(width) * sums)

        return Linearisation(K, None, times)

    def _products(self, by_column: Array) -> "Overlap":
        xp = backend_of(by_column).xp
        return tree.cotangent(self, lengthscale=by_column if self.lengthscale.ndim else xp.sum(by_column, axis=-1))

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        xp, x, z = backend_of(X).xp, self._codes(X), self._codes(X if Z is None else Z)
        differs = xp.stack([xp.astype(differ(x, z, d), X.dtype) for d in range(X.shape[1])], axis=-1)
        exponents, _ = weighted_columns(differs, 0.5 / (self.lengthscale * self.lengthscale))
        return xp.exp(-exponents), lambda _: self._zeros(X, Z)

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        return backend_of(X).xp.ones((self.lengthscale.shape[0], X.shape[0]), **like(X)), lambda _: None

    def inverse_scales(self, width: int, /) -> Array:
        return backend_of(self.lengthscale).xp.broadcast_to(1.0 / self.lengthscale, (width,))

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        # angles a ~ N(0, w) of each level: E cos(a - a') = exp(-w) for two levels, w = 1 / (2 lengthscale^2)
        normals = asarray_like(
            rng.standard_normal((width, max(self._known_levels(width)) + 1, count)), self.lengthscale
        )
        deviations = backend_of(self.lengthscale).xp.sqrt(self._weights(width))
        return Features((Term((Angles(deviations[:, None, None] * normals),)),))

    def from_data(self, X: Array, variance: float, /) -> Self:  # noqa: ARG002
        # for two random rows, the sum of the squared scaled distances is then about 2, as for stationary kernels
        spreads = _level_spreads(X) * X.shape[1] ** 0.5
        found = dataclasses.replace(self, levels=self._count_levels(X))
        units = {"lengthscale_unit": unit_by_column(self.lengthscale, spreads)}
        return tree.with_defaults(found, lengthscale=spreads, **units)

    def check(self, width: int, /) -> None:
        check_per_column(self, "lengthscale", width)


@tree.model
class RandomEffects(OfLevels):
    """Independent effects of the levels of categories, k(x, z) = sum_d variance_d [x_d = z_d].

    The columns contain the codes of levels, which are whole numbers. The functions are sums of one number for each
    column, which depends on its level: random intercepts, as in linear mixed models.

    Parameters
    ----------
    variance
        The variance of the effects, in squared units of the targets: scalar (0-d), or one for each column [D]. If None,
        each column starts with an equal share of the variance of the targets.
    levels
        As for `Overlap`.

    Examples
    --------
    With few observations of a level, its mean is shrunk towards that of all levels. A new level has the mean
    of all rows, and the spread of the levels as its error bar.

    >>> import numpy as np
    >>> import agp
    >>> X = np.repeat([[0.0], [1.0], [2.0]], [20, 20, 1], axis=0)
    >>> y = np.repeat([1.0, 3.0, 5.0], [20, 20, 1])
    >>> model = agp.GPR.from_data(X, y, kernel=agp.RandomEffects(4.0), likelihood=agp.Gaussian(1.0))
    >>> mean, variance = model.predict(np.asarray([[0.0], [1.0], [2.0], [-1.0]]))
    >>> print(mean[:, 0].round(1), np.sqrt(variance[:, 0]).round(1))
    [1.  3.  4.4 2.1] [0.2 0.2 0.9 2. ]
    """

    short_name: ClassVar[str] = "effects"
    variance: Array = tree.param(POSITIVE, default=None, unit="variance_unit")
    variance_unit: Array | None = tree.unit(default=None)
    levels: int | tuple[int, ...] = 0

    floats_per_entry: ClassVar[int] = 3
    slopes: ClassVar[tuple[str, ...]] = ("variance",)

    def _by_column(self, width: int) -> Array:
        return backend_of(self.variance).xp.broadcast_to(self.variance, (width,))

    def _bar(self, by_column: Array) -> "RandomEffects":
        return tree.cotangent(self, variance=per_column(by_column, self.variance))

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        B = backend_of(X)
        x, z = self._codes(X), self._codes(X if Z is None else Z)

        def pullback(K_bar):
            rows = CodedRows(x, z, self._levels(X.shape[-1]), equal=True)
            return self._bar(rows.total(B, K_bar)), *self._zeros(X, Z)

        return sum_where(B, x, z, self._by_column(X.shape[-1]), equal=True), pullback

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        B, width = backend_of(X), X.shape[1]

        def pullback(bar):
            return self._bar(B.xp.broadcast_to(B.xp.sum(bar), (width,))), None

        return B.xp.zeros((X.shape[0],), **like(X)) + B.xp.sum(self._by_column(width)), pullback

    def linearise(self, X: Array, /) -> Linearisation:
        B, width, x = backend_of(X), X.shape[1], self._codes(X)
        variances = self._by_column(width)

        def tile(i: int, j: int) -> tuple[Array]:
            return (sum_where(B, x[:, i:j], x[:, :j], variances, equal=True),)

        (K,) = B.lower_tiles(tile, X.shape[0])
        rows = CodedRows(x, x, self._levels(width), equal=True, symmetric=True)

        def times(a, W=None):
            return self._products(rows.times(B, B.xp.ones_like(K) if W is None else W, a))

        return Linearisation(K, lambda K_bar: self._bar(rows.total(B, K_bar)), times)

    def linearise_groups(self, X: Array, /) -> Linearisation:
        B, x = backend_of(X), self._codes(X)
        K = sum_where(B, x, x, self._by_column(X.shape[-1]), equal=True)
        rows = CodedRows(x, x, self._levels(X.shape[-1]), equal=True)

        def times(a, W=None):
            W = B.xp.ones_like(K) if W is None else W
            return self._products(rows.times(B, W, a[:, :, None])[:, :, 0, :])

        return Linearisation(K, None, times)

    def _products(self, by_column: Array) -> "RandomEffects":
        xp = backend_of(by_column).xp
        return tree.cotangent(self, variance=by_column if self.variance.ndim else xp.sum(by_column, axis=-1))

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        xp, x, z = backend_of(X).xp, self._codes(X), self._codes(X if Z is None else Z)
        equal = xp.stack([xp.astype(~differ(x, z, d), X.dtype) for d in range(X.shape[1])], axis=-1)
        K, _ = weighted_columns(equal, self.variance)
        return K, lambda _: self._zeros(X, Z)

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        xp, v = backend_of(X).xp, self.variance
        totals = xp.sum(v, axis=1) if v.ndim == 2 else X.shape[1] * v
        return xp.broadcast_to(totals[:, None], (v.shape[0], X.shape[0])), lambda _: None

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        scale = backend_of(self.variance).xp.sqrt(self._by_column(width))
        return Features((Term((Indicators(scale, self._known_levels(width)),)),))

    def from_data(self, X: Array, variance: float, /) -> Self:
        xp = backend_of(X).xp
        found = dataclasses.replace(self, levels=self._count_levels(X))
        shares = xp.full((X.shape[1],), variance, **like(X))
        unit = unit_by_column(self.variance, shares)
        return tree.with_defaults(found, variance=shares / X.shape[1], variance_unit=unit)

    def check(self, width: int, /) -> None:
        check_per_column(self, "variance", width)


def _level_spreads(X: Array) -> Array:
    """Return (P / 2)^1/2 [D], where P is the probability that two rows have different levels, or 1 if P is zero.

    For numbers, half of the mean squared difference is the variance.
    """
    xp, x = backend_of(X).xp, codes_of(X, (0,))
    # sorted, so that labels of levels do not change rounding errors
    shares = [xp.sort(xp.unique_counts(x[d, :]).counts) / X.shape[0] for d in range(X.shape[1])]
    differ = xp.asarray([1.0 - float(xp.sum(one * one)) for one in shares], **like(X))
    return xp.where(differ > 0.0, xp.sqrt(0.5 * differ), xp.ones_like(differ))
