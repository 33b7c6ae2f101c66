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
from agp.kernels._base import Kernel
from agp.kernels._composites import OfSameInputs, evaluate
from agp.kernels._constant import Constant, White
from agp.kernels._features import Blocks, Features, Term
from agp.kernels._linearisation import Linearisation, times_vectors
from agp.kernels._periodic import Winding

POINTS = 200
"""The maximum number of points that are chosen from data."""


class Averages(NamedTuple):
    """The averages m(x) = sum_j w_j k(x, s_j) and v = sum_ij w_i w_j k(s_i, s_j) of a kernel over J points."""

    kernel: Kernel
    points: Array
    weights: Array

    def at(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return m(X) [...] for X [..., D], and the pullback ``bar -> (kernel_bar, X_bar)``."""
        xp, w = backend_of(X).xp, self.weights
        K, pull = self.kernel(xp.reshape(X, (-1, X.shape[-1])), self.points)

        def pullback(bar):
            kernel_bar, X_bar, _ = pull(xp.reshape(bar, (-1, 1)) * w)
            return kernel_bar, xp.reshape(X_bar, X.shape)

        return xp.reshape(K @ w[:, None], X.shape[:-1]), pullback

    def inverse(self) -> tuple[Array, Pullback]:
        """Return 1 / v (0-d), and its pullback ``bar -> kernel_bar``; 0 if v is zero up to rounding."""
        xp, w = backend_of(self.points).xp, self.weights
        K, pull = self.kernel(self.points, self.points)
        inverse = _inverse(xp.sum(w * (K @ w[:, None])[:, 0]), xp.sum(w * w) * xp.max(xp.abs(K)))

        def pullback(bar):
            return pull(-bar * inverse * inverse * w[:, None] * w[None, :])[0]

        return inverse, pullback


def _inverse(v: Array, size: Array) -> Array:
    """Return 1 / v, or 0 if v is a rounding error of a number of this size."""
    xp = backend_of(v).xp
    positive = v > 10.0 * float(xp.finfo(v.dtype).eps) * size
    return xp.where(positive, 1.0 / xp.where(positive, v, xp.ones_like(v)), xp.zeros_like(v))


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

    @property
    def averages(self) -> Averages:
        """The averages of the kernel over the points."""
        points, weights = self.points, self.weights
        assert points is not None
        if weights is None:
            weights = backend_of(points).xp.full_like(points[:, 0], 1.0 / points.shape[0])
        return Averages(self.kernel, points, weights)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        K, pull = evaluate(self.kernel, X, Z)
        found = [self.averages.at(x) for x in ((X,) if Z is None else (X, Z))]
        inverse, pull_inverse = self.averages.inverse()
        left, right = found[0][0][..., :, None], found[-1][0][..., None, :]
        product = left * right
        xp = backend_of(K).xp

        def pullback(bar):
            kernel_bar, *input_bars = pull(bar)
            outer = [-inverse * xp.sum(bar * right, axis=-1), -inverse * xp.sum(bar * left, axis=-2)]
            means_bar = [outer[0] + outer[1]] if Z is None else outer
            bars = [pull_at(one) for (_, pull_at), one in zip(found, means_bar, strict=True)]
            kernel_bars = [kernel_bar, pull_inverse(-xp.sum(bar * product)), *(one for one, _ in bars)]
            inputs = (tree.add(a, b) for a, (_, b) in zip(input_bars, bars, strict=True))
            return tree.cotangent(self, kernel=reduce(tree.add, kernel_bars)), *inputs

        return K - product * inverse, pullback

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        variances, pull = self.kernel.diag(X)
        m, pull_means = self.averages.at(X)
        inverse, pull_inverse = self.averages.inverse()

        def pullback(bar):
            kernel_bar, X_bar = pull(bar)
            means_bar, more_X_bar = pull_means(-2.0 * inverse * bar * m)
            inverse_bar = pull_inverse(-backend_of(m).xp.sum(bar * m * m))
            kernel_bar = reduce(tree.add, (kernel_bar, means_bar, inverse_bar))
            return tree.cotangent(self, kernel=kernel_bar), tree.add(X_bar, more_X_bar)

        return variances - m * m * inverse, pullback

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        inputs = (X,) if Z is None else (X, Z)
        xp = backend_of(X).xp
        K, pull = self.kernel.stacked_covariance(*inputs)
        found, inverse = [self._stacked_means(x) for x in inputs], self._stacked_inverse()[:, None, None]
        left, right = found[0][0][:, :, None], found[-1][0][:, None, :]

        def pullback(bar):
            outer = [-xp.sum(inverse * bar * right, axis=-1), -xp.sum(inverse * bar * left, axis=-2)]
            means_bar = [outer[0] + outer[1]] if Z is None else outer
            bars = (pull_at(one) for (_, pull_at), one in zip(found, means_bar, strict=True))
            return tuple(tree.add(a, b) for a, b in zip(pull(bar), bars, strict=True))

        return K - inverse * left * right, pullback

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        variances, pull = self.kernel.stacked_variances(X)
        (m, pull_means), inverse = self._stacked_means(X), self._stacked_inverse()[:, None]
        return variances - inverse * m * m, lambda bar: tree.add(pull(bar), pull_means(-2.0 * inverse * bar * m))

    def _stacked_means(self, X: Array) -> tuple[Array, Pullback]:
        """Return m(X) [S, N] of each setting of a stack, and the pullback ``bar -> X_bar``."""
        _, points, w = self.averages
        K, pull = self.kernel.stacked_covariance(X, points)
        return (K @ w[:, None])[..., 0], lambda bar: pull(bar[..., None] * w)[0]

    def _stacked_inverse(self) -> Array:
        """Return 1 / v [S] of each setting of a stack."""
        _, points, w = self.averages
        xp, K = backend_of(w).xp, self.kernel.stacked_covariance(points, points)[0]
        return _inverse(xp.sum(w * (K @ w[:, None])[..., 0], axis=-1), xp.sum(w * w) * xp.max(xp.abs(K), axis=(-2, -1)))

    def linearise(self, X: Array, /) -> Linearisation | None:
        """Return k(X, X) to first order, from that of the kernel at the rows and the points; None with white noise."""
        B, (_, points, w) = backend_of(X), self.averages
        found = self.kernel.linearise(B.xp.concat([X, points], axis=0))
        if found is None or tree.nodes(self.kernel, White):
            return None
        N = X.shape[0]
        v = B.symmetric_inner(found.K[N:, N:], w[:, None] * w[None, :])
        inverse = _inverse(v, B.xp.sum(w * w) * B.xp.max(B.diagonal(found.K)))
        sums = _CentredSums(self, found, (w[None, :] @ found.K[N:, :N])[0, :], w, inverse)
        K = found.K[:N, :N] - inverse * sums.m[:, None] * sums.m[None, :]
        return Linearisation(K, sums.pull, sums.times)

    @property
    def floats_per_entry(self) -> int:  # type: ignore[override]
        return self.kernel.floats_per_entry + 2

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:
        return type(self)(self.kernel.with_categories(width, columns), self.points, self.weights)

    def scale_by(self, factor: Array | float, /) -> Self:
        return type(self)(self.kernel.scale_by(factor), self.points, self.weights)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        terms = self.kernel.random_features(rng, count, width).terms
        return Features(tuple(Term((_CentredBlocks(term, *self.averages),)) for term in terms))

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
        averages = Averages(self.kernel, self.points, self.weights)
        (phi, pull), (m, pull_means) = self.term(X), averages.at(X)
        xp, (N, F) = backend_of(X).xp, phi.shape
        centre = averages.inverse()[0] * (self.weights[None, :] @ self.term(self.points)[0])
        H = max(factor(self.points[:1, :])[0].shape[1] for factor in self.term.factors)
        root = H**0.5  # a term divides the blocks by it

        def pullback(bar):
            bar = root * xp.reshape(bar, (N, F))
            return tree.add(pull(bar), pull_means(-(bar @ centre.mT)[:, 0])[1])

        return root * xp.reshape(phi - m[:, None] * centre, (N, H, F // H)), pullback
