"""Covariances of functions and of their slopes along directions.

A *jet* of a pair of rows (x, v) and (z, w), with inputs x, z and directions v, w, consists of k(x, z), its derivative
along v in the first argument, its derivative along w in the second one, and its derivative along both. Jets are numbers
k + a e + b h + c e h with e^2 = h^2 = 0, so the jets of sums and products of kernels are sums and products of jets.
"""

import functools
import operator
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.kernels._distance import squared_distances, sums_by_column
from agp.kernels._parameters import per_column


class Jets(NamedTuple):
    """The jets of pairs of rows, or their cotangent: arrays [N, M], or [G, N, M] for groups of rows."""

    value: Array
    """k(x, z)."""
    by_x: Array
    """The derivative of k along v in the first argument."""
    by_z: Array
    """The derivative of k along w in the second argument."""
    by_both: Array
    """The derivative of k along v in the first and along w in the second argument."""

    def scale(self, factor: Array, /) -> "Jets":
        """Multiply all four arrays by a number (0-d)."""
        return Jets(*(factor * x for x in self))

    def plus(self, other: "Jets", /) -> "Jets":
        """Return the jets of the sum of two kernels."""
        return Jets(*map(operator.add, self, other))

    def times(self, other: "Jets", /) -> "Jets":
        """Return the jets of the product of two kernels."""
        (k, a, b, c), (K, A, B, C) = self, other
        return Jets(k * K, k * A + a * K, k * B + b * K, k * C + a * B + b * A + c * K)

    def pull_times(self, other: "Jets", /) -> "Jets":
        """Return the cotangent of one factor of a product with this cotangent, given the other factor."""
        (k, a, b, c), (K, A, B, C) = self, other
        return Jets(k * K + a * A + b * B + c * C, a * K + c * B, b * K + c * A, c * K)

    def dot(self, other: "Jets", /) -> Array:
        """Return the sum of the four products for each pair of rows, an array of the shape of `value`."""
        return functools.reduce(operator.add, map(operator.mul, self, other))

    def inner(self, other: "Jets", /) -> Array:
        """Return the sum of the products of all entries (0-d)."""
        return backend_of(self.value).xp.sum(self.dot(other))


def constant_jets(K: Array, pull: Pullback, V: Array, W: Array, /) -> tuple[Jets, Pullback]:
    """Return the jets of covariances K, with their pullback, of functions that are constant along the directions."""
    xp = backend_of(K).xp
    zero = xp.zeros_like(K)

    def pullback(bars: Jets) -> tuple[Any, ...]:
        kernel_bar, X_bar, Z_bar = pull(bars.value)
        return kernel_bar, X_bar, xp.zeros_like(V), Z_bar, xp.zeros_like(W)

    return Jets(K, zero, zero, zero), pullback


def distance_jets(kernel: Any, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
    """Return the jets of a stationary kernel s g(r2), and their pullback.

    With scaled rows, p = v.(x - z), q = w.(x - z) and t = v.w, the derivatives of r2 are 2p, -2q and -2t, so

        k = s g,    a = 2 s g' p,    b = -2 s g' q,    c = -2 s (g' t + 2 g'' p q).

    Parameters
    ----------
    kernel
        A `Stationary` kernel.
    X, V
        Inputs and directions [..., N, D].
    Z, W
        Inputs and directions [..., M, D].
    """
    B = backend_of(X)
    xp, scale = B.xp, kernel.lengthscale
    r2, pull_r2 = squared_distances(X, Z, scale, differences=kernel.differences_for_slopes)
    (g, _), (first, second, third), s = kernel.profile(r2), kernel.higher_slopes(r2), kernel.variance
    first, second = s * first, s * second
    centre = B.stop_gradient(xp.mean(Z, axis=-2, keepdims=True))
    rows = x, v, z, w = (X - centre) / scale, V / scale, (Z - centre) / scale, W / scale
    p = xp.sum(v * x, axis=-1)[..., :, None] - v @ z.mT
    q = x @ w.mT - xp.sum(w * z, axis=-1)[..., None, :]
    t = v @ w.mT

    def jets_of(g: Array, first: Array, second: Array) -> Jets:
        first = 2.0 * first
        return Jets(g, first * p, -first * q, -(first * t + 4.0 * second * p * q))

    jets = jets_of(s * g, first, second)

    def pullback(bars: Jets) -> tuple[Any, ...]:
        _, a, b, c = bars
        r2_bar = bars.dot(jets_of(first, second, s * third()))  # the derivatives by r2 are jets of g' instead of g
        p_bar = 2.0 * (first * a - 2.0 * second * q * c)
        q_bar = -2.0 * (first * b + 2.0 * second * p * c)
        bars_of_rows = _pull_products(xp, rows, p_bar, q_bar, -2.0 * first * c)
        X_bar, Z_bar, scale_bar = pull_r2(r2_bar)
        by_column = sum(sums_by_column(xp, row * bar) for row, bar in zip(rows, bars_of_rows, strict=True))
        shapes = kernel.higher_shape_slopes(r2)
        bar = tree.cotangent(
            kernel,
            variance=bars.inner(jets) / s,
            lengthscale=scale_bar - per_column(by_column / scale, scale),
            **{name: s * bars.inner(jets_of(*slopes)) for name, slopes in shapes.items()},
        )
        x_bar, V_bar, z_bar, W_bar = (one / scale for one in bars_of_rows)
        return bar, X_bar + x_bar, V_bar, Z_bar + z_bar, W_bar

    return jets, pullback


def _pull_products(xp: Any, rows: tuple[Array, ...], p_bar: Array, q_bar: Array, t_bar: Array) -> tuple[Array, ...]:
    """Return the cotangents of the scaled rows x, v, z, w, from those of p, q and t."""
    x, v, z, w = rows
    by_row, by_column = xp.sum(p_bar, axis=-1)[..., None], xp.sum(q_bar, axis=-2)[..., None]
    return (
        by_row * v + q_bar @ w,
        by_row * x - p_bar @ z + t_bar @ w,
        -(p_bar.mT @ v) - by_column * w,
        q_bar.mT @ x - by_column * z + t_bar.mT @ v,
    )
