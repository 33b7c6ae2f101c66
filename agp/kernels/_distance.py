"""Squared distances of scaled inputs, without cancellation, and what else kernels compute from pairs of rows."""

import math
from functools import partial
from typing import Any

from agp import tree
from agp.backend import Array, backend_of, like
from agp.kernels._base import per_column

__all__ = [
    "centre_of",
    "inner_products",
    "least_root",
    "pull_squared_distances",
    "safe_sqrt",
    "squared_distances",
    "sums_by_column",
]

FEW_COLUMNS = 4
"""Up to this width differences are formed column by column; they cost one pass over the result for each column."""
SMALL_ROUNDOFF = 1e-5
"""The expansion serves only while max |x|^2 times the unit roundoff stays below this."""


def squared_distances(X: Array, Z: Array | None, lengthscale: Array, *, differences: bool = False) -> Array:
    """r2[n, m] = sum_d (x_nd - z_md)^2 / lengthscale_d^2, for X [N, D] and Z [M, D], or Z = X with an exact diagonal.

    Both, or one of them, may be stacks [G, ., D]; then so is r2 [G, N, M].
    Sums of squared differences are exactly zero for equal rows and safe in float32; the expansion
    |x|^2 + |z|^2 - 2 x.z of centred inputs, one matrix product, is faster for many columns. Differences serve for at
    most four columns, where `differences` is asked for, and unless the centred scaled inputs are small.
    """
    B = backend_of(X)
    xp = B.xp
    other = X if Z is None else Z

    if differences or X.shape[-1] <= FEW_COLUMNS:
        return _by_differences(X, other, lengthscale)
    centre = B.stop_gradient(centre_of(xp, other))
    xs, zs = (X - centre) / lengthscale, None if Z is None else (Z - centre) / lengthscale
    roundoff = 0.5 * float(xp.finfo(X.dtype).eps)
    x_squares = z_squares = xp.sum(xs * xs, axis=-1)
    largest = xp.max(x_squares)
    if zs is not None:
        z_squares = xp.sum(zs * zs, axis=-1)
        largest = xp.maximum(largest, xp.max(z_squares))
    by_expansion = partial(_by_expansion, xs, zs, x_squares, z_squares)
    by_differences = partial(_by_differences, X, other, lengthscale)
    return B.cond(largest * roundoff < SMALL_ROUNDOFF, by_expansion, by_differences, likely=True)


def centre_of(xp: Any, X: Array) -> Array:
    """The mean of all rows of X [..., N, D], [D]."""
    return xp.sum(X, axis=tuple(range(X.ndim - 1))) / math.prod(X.shape[:-1])


def _by_differences(X: Array, Z: Array, lengthscale: Array) -> Array:
    B = backend_of(X)
    xp = B.xp
    scale = xp.broadcast_to(lengthscale, (X.shape[-1],))
    if X.shape[-1] > FEW_COLUMNS and not B.is_concrete(X):  # one loop for a compiler, whatever the number of columns
        columns = xp.moveaxis(X, -1, 0), xp.moveaxis(Z, -1, 0), scale
        return B.fold(_one_difference, (), columns, 1, add=tree.add)[0]
    r2 = None
    for d in range(X.shape[-1]):
        difference = (X[..., :, d, None] - Z[..., None, :, d]) / scale[d]
        r2 = difference * difference if r2 is None else r2 + difference * difference
    return r2


def _one_difference(_: tuple, column: tuple[Array, Array, Array]) -> tuple[Array, Any]:
    (x,), (z,), (scale,) = column
    difference = (x[..., :, None] - z[..., None, :]) / scale
    return difference * difference, None


def _by_expansion(xs: Array, zs: Array | None, x_squares: Array, z_squares: Array) -> Array:
    # one product, of [-2 x, |x|^2, 1] with [z, 1, |z|^2]; what rounding has left below zero is zero
    # (by comparison with a row of zeros, for which NumPy has vector instructions: it has none for a single zero)
    B = backend_of(xs)
    xp, others = B.xp, xs if zs is None else zs
    x_squares, z_squares = x_squares[..., None], z_squares[..., None]
    left = xp.concat([-2.0 * xs, x_squares, xp.ones_like(x_squares)], axis=-1)
    right = xp.concat([others, xp.ones_like(z_squares), z_squares], axis=-1)
    r2 = xp.maximum(left @ right.mT, xp.zeros((others.shape[-2],), **B.like(xs)))
    if zs is not None:
        return r2
    r2 = B.symmetric_from_lower(r2)  # exactly
    return B.add_diagonal(r2, -B.diagonal(r2))


def pull_squared_distances(
    bar: Array,
    X: Array,
    Z: Array | None,
    lengthscale: Array,
    *,
    differences: bool = False,
    scales: tuple[Array, Array] | None = None,
) -> tuple[Array, Array | None, Array]:
    """The cotangents (X_bar, Z_bar, lengthscale_bar) for the cotangent [N, M] of r2; Z_bar is None where Z is.

    Two matrix products; or, where `differences` is asked for, one pass over [N, M] for each column, which does not
    cancel for close pairs of rows whose cotangents are large.

    With `scales` a [..., N], b [..., M], for products alone, the cotangent of r2 is diag(a) bar diag(b). The arrays may
    be stacks.
    """
    if differences:
        X_bar, Z_bar, by_column = _pull_differences(bar + bar.mT if Z is None else bar, X, Z, lengthscale)
    else:
        X_bar, Z_bar, by_column = _pull_products(bar, X, Z, lengthscale, *(scales or (None, None)))
    return X_bar, Z_bar, per_column(by_column, lengthscale)


def _pull_products(
    W: Array, X: Array, Z: Array | None, lengthscale: Array, a: Array | None, b: Array | None
) -> tuple[Array, Array | None, Array]:
    # X_bar = 2/ell^2 (r Xc - W Zc), Z_bar = 2/ell^2 (q Zc - W^T Xc) with the row and column sums r, q of W, which are
    # columns of the same products;
    # Euler: k depends on x/ell, z/ell only and is shift invariant, so ell_d ell_bar_d = -sum(Xc X_bar + Zc Z_bar)
    xp = backend_of(X).xp
    centre = centre_of(xp, X if Z is None else Z)
    Xc = X - centre
    Zc = Xc if Z is None else Z - centre
    factor = 2.0 / (lengthscale * lengthscale)
    X_bar = factor * _sums_less_products(xp, W, Xc, Zc, a, b)
    Z_bar = factor * _sums_less_products(xp, W.mT, Zc, Xc, b, a)
    lengthscale_bar = -(sums_by_column(xp, Xc * X_bar) + sums_by_column(xp, Zc * Z_bar)) / lengthscale
    return (X_bar + Z_bar, None, lengthscale_bar) if Z is None else (X_bar, Z_bar, lengthscale_bar)


def sums_by_column(xp: Any, x: Array) -> Array:
    """The sums [D] of all rows of x [..., N, D]."""
    return xp.sum(x, axis=tuple(range(x.ndim - 1)))


def _sums_less_products(xp: Any, W: Array, Xc: Array, Zc: Array, a: Array | None, b: Array | None) -> Array:
    """R Xc - W Zc, with the sums of the rows of W [N, M] in the diagonal matrix R, for diag(a) W diag(b).

    Of stacks, for each; and the sum of them where Xc is none.
    """
    right = [Zc, xp.ones_like(Zc[..., :1])] if b is None else [b[..., None] * Zc, b[..., None]]
    products = W @ xp.concat(right, axis=-1)
    if a is not None:
        products = a[..., None] * products
    if products.ndim > Xc.ndim:
        products = xp.sum(products, axis=0)
    return products[..., -1:] * Xc - products[..., :-1]


def _pull_differences(W: Array, X: Array, Z: Array | None, lengthscale: Array) -> tuple[Array, Array | None, Array]:
    # dr2/dx_d = 2 (x_d - z_d) / ell_d^2, dr2/dell_d = -2 (x_d - z_d)^2 / ell_d^3; a symmetric W counts pairs twice
    xp = backend_of(X).xp
    other = X if Z is None else Z
    scale = xp.broadcast_to(lengthscale, (X.shape[-1],))
    X_bars, Z_bars, totals = [], [], []
    for d in range(X.shape[-1]):
        difference = (X[..., :, d, None] - other[..., None, :, d]) / scale[d]
        weighted = W * difference
        X_bars.append(2.0 * xp.sum(weighted, axis=-1) / scale[d])
        Z_bars.append(-2.0 * xp.sum(weighted, axis=-2) / scale[d])
        totals.append((-1.0 if Z is None else -2.0) * xp.sum(weighted * difference) / scale[d])
    return xp.stack(X_bars, axis=-1), None if Z is None else xp.stack(Z_bars, axis=-1), xp.stack(totals)


def inner_products(X: Array, Z: Array | None) -> Array:
    """X Z^T [..., N, M] of X [..., N, D] and Z [..., M, D], or X X^T, exactly symmetric in any order of summation."""
    if Z is not None:
        return X @ Z.mT
    products = X @ X.mT
    return 0.5 * (products + products.mT)


def least_root(x: Array) -> float:
    """What `safe_sqrt` gives at zero: nothing beside the roundings of 1, and its square and its inverse are numbers."""
    return float(backend_of(x).xp.finfo(x.dtype).smallest_normal) ** 0.25


def safe_sqrt(x: Array) -> Array:
    """sqrt(x), and `least_root` at x = 0, where its derivative under automatic differentiation is 0, not NaN.

    Nothing is selected by x > 0: a compiler that forms x twice, rounded in two ways, would select in two ways.
    """
    xp = backend_of(x).xp
    return xp.sqrt(xp.maximum(x, xp.full((), least_root(x) ** 2, **like(x))))
