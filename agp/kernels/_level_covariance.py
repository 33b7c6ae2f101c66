"""The kernel of categories with a covariance for each pair of levels, as in models of coregionalisation."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like, row_numbers
from agp.errors import count_of
from agp.kernels._active_dims import input_columns
from agp.kernels._base import Kernel
from agp.kernels._categories import OfLevels, Overlap, RandomEffects
from agp.kernels._codes import OfPlaces, places_of
from agp.kernels._features import Features, Term
from agp.kernels._linearisation import Linearisation, times_vectors
from agp.tree import POSITIVE, REAL

SECOND = 0.1
"""The standard deviation of the second and further weights at the start, relative to that of the kernel. If they were
zero, they would stay so."""

OWN = 0.1
"""The unit of the variances v, relative to the variance of the kernel. With few rows, it is their median under the weak
prior of `agp.integrate`, under which levels are correlated if the rows do not tell."""


@tree.model
class LevelCovariance(OfLevels):
    """Learned covariances of the levels of a category, k(a, b) = (W W^T + diag(v))_ab.

    Each level is a sum of common functions, with weights of its own, and of a function that no other level has. The
    correlation of two levels may be any number between -1 and 1, while it is the same for all pairs in `Overlap`. The
    kernel acts on one column, which contains the codes of levels. A level that training did not see, such as -1, is
    independent of all others, and has the average variance of the levels. All codes that are no code of a level are
    this one level.

    Multiply a kernel of numbers by it to learn how the functions of the levels are correlated: ``k(x, z) k(a, b)`` is
    the intrinsic coregionalisation model, with one output for each level. For each level, there are `rank` + 1
    parameters, so there should be several rows per level. As a term of a sum, the kernel describes one number for each
    level, which tells little about their covariances; prefer `RandomEffects`.

    Parameters
    ----------
    weights
        The weights W [L, R] of the L levels, in units of the targets. If None, all levels start with the correlation
        1/2. If the kernel is a factor after another one with a variance, as in ``RBF() * LevelCovariance().on(1)``,
        its average variance starts at 1.
    variance
        The variances v of the levels' own functions, in squared units of the targets: one for each level [L], or a
        scalar (0-d) for all.
    rank
        The number R of columns of W that start from None; at most L. With rank 1, all levels share one function, with
        weights of either sign. Compare the evidence of several ranks: with more columns than the data need, training
        takes many more steps.
    levels
        The least number L of levels that start from None. `from_data` increases it to that of the data.

    Raises
    ------
    ValueError
        By `from_data`, if the data have more levels than W; by `check`, unless there is one column.

    Examples
    --------
    Machines 0 and 1 behave alike, and machine 2 does the opposite of what they do.

    >>> import numpy as np
    >>> import agp
    >>> from agp.kernels import LevelCovariance
    >>> rng = np.random.default_rng(0)
    >>> machine, x = rng.integers(0, 3, 90), rng.uniform(0.0, 6.0, 90)
    >>> y = np.asarray([1.0, 1.0, -1.0])[machine] * np.sin(x) + 0.1 * rng.standard_normal(90)
    >>> kernel = agp.RBF().on(0) * LevelCovariance().on(1)
    >>> X = np.stack([x, machine], axis=1)
    >>> model = agp.fit(agp.GPR.from_data(X, y, kernel=kernel), X, y).model
    >>> (found,) = agp.inspection.level_correlations(model)
    >>> print(found.correlations.round(1) + 0.0)
    [[ 1.  1. -1.]
     [ 1.  1. -1.]
     [-1. -1.  1.]]

    References
    ----------
    Bonilla, Chai & Williams, "Multi-task Gaussian process prediction", NIPS 2007.
    """

    short_name: ClassVar[str] = "levelcovariance"
    weights: Array = tree.param(REAL, default=None, unit="weights_unit")
    weights_unit: Array | None = tree.unit(default=None)
    variance: Array = tree.param(POSITIVE, default=None, unit="variance_unit")
    variance_unit: Array | None = tree.unit(default=None)
    rank: int = 1
    levels: int = 0

    floats_per_entry: ClassVar[int] = 3

    # -- covariances of levels [L + 1, L + 1], of which the last is unknown --------------------------------------------

    def _own(self) -> Array:
        """Return the variances v [..., L]."""
        v, W = self.variance, self.weights
        return backend_of(W).xp.broadcast_to(v if v.ndim == W.ndim - 1 else v[..., None], W.shape[:-1])

    def _variances(self) -> Array:
        """Return the variances [..., L + 1] of the levels and of an unknown one."""
        xp = backend_of(self.weights).xp
        known = xp.sum(self.weights * self.weights, axis=-1) + self._own()
        return xp.concat([known, xp.mean(known, axis=-1, keepdims=True)], axis=-1)

    def _of_levels(self) -> Array:
        """Return the covariances [..., L + 1, L + 1]."""
        xp, W = backend_of(self.weights).xp, self.weights
        W = xp.concat([W, xp.zeros_like(W[..., :1, :])], axis=-2)
        products = W @ W.mT
        eye = xp.eye(W.shape[-2], **like(W))
        # exactly symmetric
        return 0.5 * (products + products.mT) * (1.0 - eye) + eye * self._variances()[..., None, :]

    def _pull_variances(self, bar: Array) -> tuple[Array, Array]:
        """Return the cotangents of W [..., L, R] and v [..., L] from that of the variances [..., L + 1]."""
        by_level = bar[..., :-1] + bar[..., -1:] / self.weights.shape[0]
        return 2.0 * by_level[..., None] * self.weights, by_level

    def _bar(self, weights: Array, by_level: Array) -> Self:
        """Return the cotangent, or products [..., L, R] and [..., L] with derivatives as one."""
        xp = backend_of(by_level).xp
        return tree.cotangent(
            self, weights=weights, variance=by_level if self.variance.ndim else xp.sum(by_level, axis=-1)
        )

    def _pull_levels(self, bar: Array) -> Self:
        """Return the cotangent of the kernel from that of the covariances [L + 1, L + 1]."""
        B = backend_of(bar)
        diagonal = B.diagonal(bar)
        of_weights, by_level = self._pull_variances(diagonal)
        rest = (bar * (1.0 - B.xp.eye(bar.shape[0], **like(bar))))[:-1, :-1]
        return self._bar(of_weights + (rest + rest.mT) @ self.weights, by_level)

    def _indicators(self, X: Array) -> Array:
        """Return the indicators [..., N, L + 1] of the levels of rows [..., N, 1]."""
        count = self.weights.shape[-2]
        places = places_of(X[..., 0], count)
        numbers = backend_of(X).xp.astype(row_numbers(count + 1, X), places.dtype)
        return backend_of(X).xp.astype(places[..., None] == numbers, X.dtype)

    # -- covariances of rows ------------------------------------------------------------------------------------------

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        x = self._indicators(X)
        z = x if Z is None else self._indicators(Z)

        def pullback(K_bar):
            by_level = x.mT @ K_bar @ z
            if by_level.ndim == 3:
                by_level = backend_of(X).xp.sum(by_level, axis=0)
            return self._pull_levels(by_level), *self._zeros(X, Z)

        return x @ self._of_levels() @ z.mT, pullback

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        x = self._indicators(X)

        def pullback(bar):
            return self._bar(*self._pull_variances((bar[None, :] @ x)[0, :])), None

        return (x @ self._variances()[:, None])[:, 0], pullback

    def linearise(self, X: Array, /) -> Linearisation:
        B, x = backend_of(X), self._indicators(X)

        def times(a, W=None):
            sums = (a.mT @ x)[None, :, :] if W is None else times_vectors(W, a, x)  # of the columns of K by levels
            return self._products(x[:, None, :], B.xp.broadcast_to(sums, (*a.shape, x.shape[1])))

        return Linearisation(
            x @ self._of_levels() @ x.mT, lambda K_bar: self._pull_levels(x.mT @ B.symmetric_product(K_bar, x)), times
        )

    def linearise_groups(self, X: Array, /) -> Linearisation:
        xp, x = backend_of(X).xp, self._indicators(X)

        def times(a, W=None):
            a = a[:, :, None] * x
            sums = xp.broadcast_to(xp.sum(a, axis=1, keepdims=True), a.shape) if W is None else W @ a
            return self._products(x, sums)

        return Linearisation(x @ self._of_levels() @ x.mT, None, times)

    def _products(self, x: Array, sums: Array) -> Self:
        """Return the products [..., L, R] and [..., L] for indicators x and sums [..., L + 1] over levels.

        The covariance of rows of the levels i and j is C_ij, and the product is sum_j sums_j dC_ij / dtheta.
        """
        xp, W = backend_of(x).xp, self.weights
        same, x, sums = x * sums, x[..., :-1], sums[..., :-1]
        # dC_ij / dW_lr = [i = l] W_jr + [j = l] W_ir, also for i = j
        of_weights = x[..., None] * (sums @ W)[..., None, :] + sums[..., None] * (x @ W)[..., None, :]
        of_weights_of_unknown, _ = self._pull_variances(xp.concat([xp.zeros_like(sums), same[..., -1:]], axis=-1))
        return self._bar(of_weights + of_weights_of_unknown, self._pull_variances(same)[1])

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        x = self._indicators(X)
        z = x if Z is None else self._indicators(Z)
        return x @ self._of_levels() @ z.mT, lambda _: self._zeros(X, Z)

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._variances() @ self._indicators(X).mT, lambda _: None

    def inverse_scales(self, width: int, /) -> Array | None:  # noqa: ARG002
        """Return the factors of the codes, and of the coordinates of levels that `metric_inputs` adds."""
        # squared distances are 2 (1 - correlation), to which different levels contribute v_a / C_aa + v_b / C_bb
        xp, R = backend_of(self.weights).xp, self.weights.shape[1]
        shares = self._own() / self._variances()[:-1]
        return xp.concat([xp.sqrt(2.0 * xp.mean(shares, keepdims=True)), xp.ones((R,), **like(shares))])

    def metric_inputs(self, X: Array, /) -> Array:
        """Return the codes and, after them, the weights of the levels divided by their standard deviations."""
        xp, W = backend_of(X).xp, self.weights
        coordinates = W / xp.sqrt(self._variances()[:-1, None])
        return xp.concat([X, self._indicators(X)[..., :-1] @ coordinates], axis=-1)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        xp, W = backend_of(self.weights).xp, self.weights
        own = xp.concat([self._own(), self._variances()[-1:]])
        table = xp.concat([W, xp.zeros_like(W[:1, :])], axis=0)
        return Features(
            (Term((OfPlaces(xp.concat([table, xp.eye(own.shape[0], **like(W)) * xp.sqrt(own)], axis=1)),)),)
        )

    def category_levels(self, width: int, /) -> dict[int, int]:
        return dict.fromkeys(range(width), self._count)

    @property
    def _count(self) -> int:
        """The number of levels."""
        W = self.weights
        return self.levels if W is None else len(W) if isinstance(W, list | tuple) else W.shape[0]

    def scale_by(self, factor: Array | float, /) -> Kernel:
        if missing := tree.missing(self):
            raise ValueError(
                f"LevelCovariance has no {missing[0]} to scale; pass {missing[0]}=, or call from_data(X, variance)."
            )
        return tree.with_leaves(self, {"weights": factor**0.5 * self.weights, "variance": factor * self.variance})

    def from_data(self, X: Array, variance: float, /) -> Self:
        xp = backend_of(X).xp
        found = 1 + int(xp.max(xp.round(X[:, 0]))) if X.shape[0] else 0
        count = max(self._count, found, 1)
        if self.weights is not None and found > self._count:
            raise ValueError(
                f"LevelCovariance has weights of {count_of(self._count, 'level')}, but the data have the code "
                f"{found - 1}; pass weights with a row for each level, or leave them out."
            )
        steps = math.pi / count * (0.5 + xp.astype(row_numbers(count, X), X.dtype))
        more = range(1, min(self.rank, count))
        size = SECOND / max(len(more), 1) ** 0.5
        shapes = [xp.ones((count,), **like(X)), *(size * xp.cos(r * steps) for r in more)]
        weights = (0.5 * variance) ** 0.5 * xp.stack(shapes, axis=1)
        starts = {"weights": weights, "variance": variance - xp.sum(weights * weights, axis=1)}
        units = {"weights_unit": variance**0.5, "variance_unit": OWN * variance}
        return tree.with_defaults(dataclasses.replace(self, levels=count), **starts, **units)

    def check(self, width: int, /) -> None:
        if width != 1:
            raise ValueError(
                f"LevelCovariance acts on {count_of(width, 'column')}, but needs one, which contains codes of levels; "
                "select it, as in on(0)."
            )
        W, v = self.weights, self.variance
        if W.ndim != 2 or not W.shape[0] or tuple(v.shape) not in ((), (W.shape[0],)):
            raise ValueError(
                f"LevelCovariance has weights of shape {tuple(W.shape)} and variances of shape {tuple(v.shape)}; pass "
                "weights [L, R], and variances [L] or one number, for L levels."
            )


def count_levels(kernel: Kernel, X: Array, /) -> Kernel:
    """Return the kernel with at least the numbers of levels of inputs X [N, D], of which later data are a sample.

    Rows that are not in memory are not read.
    """
    B = backend_of(X)
    if B.is_lazy or not X.shape[0]:
        return kernel
    found: dict[str, Kernel] = {}
    for path, part in tree.nodes(kernel, LevelCovariance).items():
        try:
            columns = input_columns(kernel, path, X.shape[1])
        except (IndexError, TypeError):  # columns that do not exist, which `check` explains
            return kernel
        if part.weights is None and len(columns) == 1:
            levels = 1 + int(B.xp.max(B.xp.round(X[:, columns[0]])))
            found[path] = dataclasses.replace(part, levels=max(part.levels, levels))
    return found[""] if "" in found else tree.replace(kernel, found) if found else kernel


class EntriesOfLevels(NamedTuple):
    """A part of a kernel whose entries belong to the levels of a column."""

    column: int
    levels: int
    """The number of levels for which the part has entries."""
    name: str
    """The class of the part."""
    may_exceed: bool
    """Whether the column may have fewer levels, because the entries do not have values yet."""

    def fits(self, levels: int, /) -> bool:
        """Whether the entries fit a column with so many levels."""
        return levels <= self.levels if self.may_exceed else levels == self.levels


def entries_of_levels(kernel: Kernel, width: int, /) -> list[EntriesOfLevels]:
    """Return the parts whose entries belong to levels, for inputs with `width` columns.

    These are the parts that know the number of levels of a column (`category_levels`), except for `Overlap` and
    `RandomEffects`, which treat all levels alike.
    """
    whole, found = kernel.category_levels(width), {}
    inner_first = sorted(tree.nodes(kernel, Kernel).items(), key=lambda item: -len(item[0]))
    for path, part in inner_first:
        if part.reads_tags:
            continue
        try:
            columns = input_columns(kernel, path, width)
        except (IndexError, TypeError):  # columns that do not exist, which `check` explains
            return []
        alike = isinstance(part, (Overlap, RandomEffects))
        may_exceed = isinstance(part, LevelCovariance) and part.weights is None
        for d, count in part.category_levels(len(columns)).items():
            if count and 0 <= d < len(columns) and columns[d] in whole:
                entry = None if alike else EntriesOfLevels(columns[d], count, type(part).__name__, may_exceed)
                found.setdefault((columns[d], count), entry)  # not once more for sums and products of the part
    return [entry for entry in found.values() if entry is not None]
