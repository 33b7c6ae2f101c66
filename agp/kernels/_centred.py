"""Kernels of functions whose average over the data is zero, with which the terms of additive functions are unique."""

import dataclasses
from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any, NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of
from agp.checks import check_instance, check_like
from agp.errors import count_of
from agp.kernels._active_dims import ActiveDims
from agp.kernels._averages import Averages, clip_rounding, combine_averages, invert_above_rounding, spread_over
from agp.kernels._base import Kernel
from agp.kernels._composites import OfSameInputs
from agp.kernels._constant import Constant, White
from agp.kernels._features import Blocks, Features, Term
from agp.kernels._linearisation import Linearisation, times_vectors
from agp.kernels._periodic import Winding

POINTS = 200
"""The maximum number of points that are chosen from data."""


@tree.model
class Centred(OfSameInputs):
    """A kernel of functions whose weighted average over given points is zero.

    If f has the kernel k, Centred(k) is the kernel of f given that sum_j w_j f(s_j) = 0,

        k(x, z) - m(x) m(z) / v,    m(x) = sum_j w_j k(x, s_j),    v = sum_ij w_i w_j k(s_i, s_j).

    In a sum of functions of single columns, a constant can be moved from one function to another. If all functions are
    centred and the constant is a term of its own, each term has one meaning: the effect of its column, relative to the
    average over the points. `additive` writes such a sum.

    A season is better centred over its period, with `Seasonal(centred=True)`, in closed form and whatever the rows are.
    In a product with another kernel, centre the season alone: ``Seasonal(period=1.0, centred=True) * RBF()``. The
    functions of ``Centred(Seasonal(period=1.0) * RBF())`` average to zero over all rows together, but not over each
    year, so they still contain a trend.

    Models of nearest rows, such as `agp.NNGP`, condition each prediction on other rows, so the components of their
    predictions average to zero only roughly: up to a tenth of the standard deviation of the targets in tests.

    Parameters
    ----------
    kernel
        Any kernel. White noise in it is not centred.
    points
        The points [J, D], constants in the unit of the inputs. If None, they are the rows of the data. Of more than 200
        rows, those at 200 equally spaced ranks of the column are used or, for several columns, every so many rows.
    weights
        The weights w [J] of the points, which are not negative. Their sum does not matter. If None, they are equal.

    Examples
    --------
    The functions have the average zero over the points.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 3.0, 7)[:, None]
    >>> kernel = agp.kernels.Centred(agp.RBF(1.0, 1.0)).from_data(X, 1.0)
    >>> bool(np.max(np.abs(np.mean(kernel(X)[0], axis=0))) < 1e-15)
    True

    Source: Lu, Boukouvalas & Hensman, "Additive Gaussian processes revisited", ICML 2022.
    """

    kernel: Kernel
    points: Array | None = tree.constant(default=None, optional=True)
    weights: Array | None = tree.constant(default=None, optional=True)

    def __post_init__(self) -> None:
        check_instance("kernel", self.kernel, Kernel)

    def averages(self, *, stacked: bool = False) -> Averages:
        """Return the averages of the kernel, or of each setting of a stack, over the points."""
        points, weights = self.points, self.weights
        assert points is not None
        xp = backend_of(points).xp
        equal = xp.full_like(points[:, 0], 1.0 / points.shape[0])
        share = equal if weights is None else weights / xp.sum(weights)
        return Averages(self, self.kernel, points, share, stacked, None).with_shift()

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        averages, inputs = self.averages(), (X,) if Z is None else (X, Z)
        s, (D, pull) = averages.s, averages.covariances(*inputs)
        found, (b, inverse, pull_inverse) = [averages.at(x) for x in inputs], averages.total()
        left, right = found[0][0][..., :, None], found[-1][0][..., None, :]
        xp = backend_of(D).xp

        def pullback(bar):
            m, n = left + s, right + s
            kernel_bar, *input_bars = pull(bar)
            outer = [-inverse * xp.sum(bar * n, axis=-1), -inverse * xp.sum(bar * m, axis=-2)]
            means_bar = [outer[0] + outer[1]] if Z is None else outer
            bars = [pull_at(one) for (_, pull_at), one in zip(found, means_bar, strict=True)]
            kernel_bars = [kernel_bar, pull_inverse(-xp.sum(bar * m * n)), *(one for one, _ in bars)]
            inputs = (tree.add(a, b) for a, (_, b) in zip(input_bars, bars, strict=True))
            return tree.cotangent(self, kernel=reduce(tree.add, kernel_bars)), *inputs

        return combine_averages(D, s, left, right, b, inverse), pullback

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        averages = self.averages()
        s, (D, pull) = averages.s, averages.variances(X)
        (a, pull_means), (b, inverse, pull_inverse) = averages.at(X), averages.total()

        def pullback(bar):
            m = a + s
            kernel_bar, X_bar = pull(bar)
            means_bar, more_X_bar = pull_means(-2.0 * inverse * bar * m)
            inverse_bar = pull_inverse(-backend_of(m).xp.sum(bar * m * m))
            kernel_bar = reduce(tree.add, (kernel_bar, means_bar, inverse_bar))
            return tree.cotangent(self, kernel=kernel_bar), tree.add(X_bar, more_X_bar)

        return _variances(D, s, a, b, inverse), pullback

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        averages, inputs = self.averages(stacked=True), (X,) if Z is None else (X, Z)
        xp = backend_of(X).xp
        s, (D, pull) = averages.s, averages.covariances(*inputs)
        found, (b, inverse, _) = [averages.at(x) for x in inputs], averages.total()
        left, right = found[0][0][:, :, None], found[-1][0][:, None, :]

        def pullback(bar):
            of_v, of_s = spread_over(inverse, D), spread_over(s, D)
            outer = [-xp.sum(of_v * bar * (right + of_s), axis=-1), -xp.sum(of_v * bar * (left + of_s), axis=-2)]
            means_bar = [outer[0] + outer[1]] if Z is None else outer
            bars = (pull_at(one) for (_, pull_at), one in zip(found, means_bar, strict=True))
            return tuple(tree.add(a, b) for a, b in zip(pull(bar), bars, strict=True))

        return combine_averages(D, s, left, right, b, inverse), pullback

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        averages = self.averages(stacked=True)
        s, (D, pull) = averages.s, averages.variances(X)
        (a, pull_means), (b, inverse, _) = averages.at(X), averages.total()

        def pullback(bar):
            m = a + spread_over(s, a)
            return tree.add(pull(bar), pull_means(-2.0 * spread_over(inverse, a) * bar * m))

        return _variances(D, s, a, b, inverse), pullback

    def linearise(self, X: Array, /) -> Linearisation | None:
        """Return k(X, X) to first order, from that of the kernel at the rows and the points; None with white noise."""
        B, (_, _, points, w, *_) = backend_of(X), self.averages()
        found = self.kernel.linearise(B.xp.concat([X, points], axis=0))
        if found is None or tree.nodes(self.kernel, White):
            return None
        N = X.shape[0]
        v = B.symmetric_inner(found.K[N:, N:], w[:, None] * w[None, :])
        inverse = invert_above_rounding(v, B.xp.sum(w * w) * B.xp.max(B.diagonal(found.K)))
        sums = _CentredSums(self, found, (w[None, :] @ found.K[N:, :N])[0, :], w, inverse)
        K = found.K[:N, :N] - inverse * sums.m[:, None] * sums.m[None, :]
        return Linearisation(K, sums.pull, sums.times)

    @property
    def floats_per_entry(self) -> int:  # type: ignore[override]
        return self.kernel.floats_per_entry + 2

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:
        return type(self)(self.kernel.with_categories(width, columns), self.points, self.weights)

    def _without_columns(self, width: int, columns: tuple[int, ...]) -> Kernel:
        return type(self)(self.kernel._without_columns(width, columns), self.points, self.weights)

    def scale_by(self, factor: Array | float, /) -> Self:
        return type(self)(self.kernel.scale_by(factor), self.points, self.weights)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        terms, (_, kernel, points, weights, *_) = self.kernel.random_features(rng, count, width).terms, self.averages()
        return Features(tuple(Term((_CentredBlocks(term, kernel, points, weights),)) for term in terms))

    def from_data(self, X: Array, variance: float, /) -> Self:
        self = tree.place_leaves(self, X)
        if self.points is None:
            if self.weights is not None:
                raise ValueError("Centred has weights, but no points; pass points=, one for each weight.")
            self = tree.with_defaults(self, **_points_of(X))
        for name, x in tree.leaves(self, "constant").items():
            if name in ("points", "weights"):
                check_like(name, x, "X", X)
        self._check_points(X.shape[1])
        if self.weights is not None and not float(backend_of(X).xp.min(self.weights)) >= 0.0:
            raise ValueError("Centred has a negative weight; pass weights that are zero or positive.")
        return type(self)(self.kernel.from_data(X, variance), self.points, self.weights)

    def check(self, width: int, /) -> None:
        if "points" in tree.leaves(self):
            self._check_points(width)
        self.kernel.check(width)

    def _check_points(self, width: int) -> None:
        shape = tuple(self.points.shape)  # type: ignore[union-attr]
        if len(shape) != 2 or shape[1] != width or not shape[0]:
            raise ValueError(
                f"Centred has points of shape {shape}, but the inputs have {count_of(width, 'column')}; pass points "
                f"[J, {width}]."
            )
        if self.weights is not None and tuple(self.weights.shape) != shape[:1]:
            raise ValueError(
                f"Centred has {count_of(shape[0], 'point')}, but weights of shape {tuple(self.weights.shape)}; pass "
                "one weight for each point."
            )


class _CentredSums(NamedTuple):
    """The derivatives of K - m m^T / v, from those of the covariances of N rows and J points."""

    kernel: Centred
    joint: Linearisation
    m: Array
    w: Array
    inverse: Array
    """1 / v."""

    def pull(self, K_bar: Array) -> Any:
        B, m, w = backend_of(K_bar), self.m, self.w
        along = -self.inverse * B.symmetric_product(K_bar, m[:, None])[:, 0]
        rows_bar, points_bar = (
            w[:, None] * along[None, :],
            -self.inverse * B.xp.sum(m * along) * w[:, None] * w[None, :],
        )
        joint_bar = B.join_blocks(K_bar, B.xp.zeros_like(rows_bar.mT), rows_bar, points_bar)
        return tree.cotangent(self.kernel, kernel=self.joint.pull(joint_bar))

    def times(self, a: Array, W: Array | None = None) -> Any:
        # (W * dK) a - (dm (W m a) + m (W dm a)) / v + dv m (W m a) / v^2
        B, m, w = backend_of(a), self.m, self.w
        xp, (N, P), J = B.xp, a.shape, self.w.shape[0]
        zeros = xp.zeros((J, P), **B.like(a))
        both = B.join_blocks(a, xp.zeros_like(m)[:, None], zeros, w[:, None])
        products = self.joint.times(both, None)
        weighted: dict[str, Any] = {}
        if W is not None:
            corner = xp.zeros((J, J), **B.like(a))
            wide = B.join_blocks(W, xp.zeros((N, J), **B.like(a)), xp.zeros((J, N), **B.like(a)), corner)
            weighted = tree.leaves(self.joint.times(xp.concat([a, zeros], axis=0), wide))
        ma = m[:, None] * a
        Wma = xp.sum(ma, axis=0, keepdims=True) if W is None else B.symmetric_product(W, ma)
        found = {}
        for name, leaf in tree.leaves(products).items():
            if leaf is None:
                continue
            x = xp.reshape(leaf, (N + J, P + 1, -1))
            dm, dv = x[:N, P, :], w[None, :] @ x[N:, P, :]
            if W is None:
                first, Wdma = x[:N, :P, :], xp.tensordot(w, x[N:, :P, :], axes=1)[None, :, :]
            else:
                first, Wdma = xp.reshape(weighted[name][:N, ...], (N, P, -1)), times_vectors(W, a, dm)
            change = dm[:, None, :] * Wma[:, :, None] + m[:, None, None] * Wdma
            change = change - self.inverse * dv[:, None, :] * (m[:, None] * Wma)[:, :, None]
            found[name] = xp.reshape(first - self.inverse * change, (N, P, *leaf.shape[2:]))
        return tree.cotangent(self.kernel, kernel=tree.with_leaves(products, found))


def _variances(D: Array, s: Any, a: Array, b: Array, inverse: Array) -> Array:
    """Return the variances, of which those that are zero up to rounding are not negative."""
    xp = backend_of(a).xp
    found = combine_averages(D, s, a, a, b, inverse)
    return clip_rounding(found, xp.abs(D) + xp.abs(D - found) + xp.abs(a) + xp.abs(spread_over(b, a)))


def centre(kernel: Kernel, /) -> Kernel:
    """Return the kernel of functions whose average is zero: over the period of a season, or over the rows of the data.

    A kernel on some columns stays one.
    """
    if isinstance(kernel, ActiveDims):
        return dataclasses.replace(kernel, kernel=centre(kernel.kernel))
    if isinstance(kernel, Winding) and not kernel.centred:
        return dataclasses.replace(kernel, centred=True)
    return Centred(kernel)


def additive(kernel: Kernel, columns: Iterable[int | str], /) -> Kernel:
    """Return the kernel of a constant plus one centred function for each column.

    Parameters
    ----------
    kernel
        The kernel of each function, whose parameters are trained for each column on their own.
    columns
        The columns, as for `Kernel.on`.

    Returns
    -------
    kernel
        ``Constant() + Centred(kernel).on(first) + Centred(kernel).on(second) + ...``; see `Centred`. Seasons are
        centred over their period: ``Seasonal(..., centred=True).on(first)``.

    Examples
    --------
    Each component of the posterior is the effect of a column.

    >>> import numpy as np
    >>> import agp
    >>> X = np.random.default_rng(0).uniform(0.0, 3.0, (60, 2))
    >>> y = 5.0 + np.sin(2.0 * X[:, 0]) + X[:, 1]
    >>> model = agp.GPR.from_data(X, y, kernel=agp.kernels.additive(agp.RBF(), (0, 1)))
    >>> components = agp.fit(model, X, y).model.predictor().components(X)
    >>> components.names[:3]
    ('constant', 'centred(rbf).on(0)', 'centred(rbf).on(1)')
    >>> truth = X[:, 1] - np.mean(X[:, 1])
    >>> print(round(float(np.max(np.abs(components.mean[:, 0, 2] - truth))), 1))
    0.0
    """
    blank = dict.fromkeys(tree.missing(kernel))

    def own() -> Kernel:  # a copy, because equal objects would be tied
        return tree.with_leaves(kernel, {**blank, **tree.leaves(kernel)})

    terms = [centre(own()).on(column) for column in columns]
    if not terms:
        raise ValueError("additive has no columns; pass one or more.")
    return reduce(add, terms, Constant())


def _points_of(X: Array) -> dict[str, Array | None]:
    """Return at most `POINTS` rows of X [N, D] as points and, if equal rows are counted, their weights."""
    xp, N = backend_of(X).xp, X.shape[0]
    if X.shape[1] == 1:
        found = xp.unique_counts(X[:, 0])
        if found.values.shape[0] <= POINTS:
            return {"points": found.values[:, None], "weights": xp.astype(found.counts, X.dtype) / N}
        X = xp.sort(X, axis=0)
    count = min(N, POINTS)
    rows = asarray_like([int((i + 0.5) * N / count) for i in range(count)], X)
    return {"points": xp.take(X, rows, axis=0), "weights": None}


@tree.model
class _CentredBlocks(Blocks):
    """The blocks of a term of the features of a kernel, minus m(x) / v times their averages over the points.

    The features of all terms have the inner product k(x, z) - m(x) m(z) / v on average.
    """

    term: Term
    kernel: Kernel
    points: Array = tree.constant()
    weights: Array = tree.constant()

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        averages = Averages(self, self.kernel, self.points, self.weights, stacked=False, shift=None)
        (phi, pull), (m, pull_means), (_, inverse, _) = self.term(X), averages.at(X), averages.total()
        xp, (N, F) = backend_of(X).xp, phi.shape
        centre = inverse * (self.weights[None, :] @ self.term(self.points)[0])
        H = max(factor(self.points[:1, :])[0].shape[1] for factor in self.term.factors)
        root = H**0.5  # a term divides the blocks by it

        def pullback(bar):
            bar = root * xp.reshape(bar, (N, F))
            return tree.add(pull(bar), pull_means(-(bar @ centre.mT)[:, 0])[1])

        return root * xp.reshape(phi - m[:, None] * centre, (N, H, F // H)), pullback
