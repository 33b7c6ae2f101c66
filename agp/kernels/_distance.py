"""Squared distances between scaled inputs, computed without cancellation."""

from collections.abc import Callable
from functools import partial
from typing import Any

from agp import tree
from agp.backend import Array, backend_of, like
from agp.kernels._parameters import per_column

FEW_COLUMNS = 4
"""Up to this number of columns, differences are computed column by column, with one pass over the result per column."""
SMALL_ROUNDOFF = 1e-5
"""The expansion is used only if max |x|^2 times the unit roundoff is below this value."""


def squared_distances(
    X: Array, Z: Array | None, lengthscale: Array, *, differences: bool = False
) -> tuple[Array, Callable[..., tuple[Array, Array | None, Array]]]:
    """Return the squared distances r2[n, m] = sum_d (x_nd - z_md)^2 / lengthscale_d^2 of X [N, D] and Z [M, D].

    Without Z, the distances are those between the rows of X, and the diagonal is exactly zero. If X or Z is a stack
    [G, ., D], r2 is a stack [G, N, M]. Sums of squared differences are exactly zero for equal rows and safe in float32.
    The expansion |x|^2 + |z|^2 - 2 x.z of centred inputs takes one matrix product and is faster for many columns. The
    function uses differences if there are at most four columns, if `differences` is True, or if the centred scaled
    inputs are large.

    Returns
    -------
    r2
    pullback
        A function ``(bar, size=1.0, scales=None) -> (X_bar, Z_bar, lengthscale_bar)`` for the cotangent size * bar of
        r2, with a scalar (0-d) size and bar [N, M]. Z_bar is None if Z is None. The pullback takes two matrix products.
        With `differences`, it instead makes one pass over [N, M] for each column, which avoids cancellation for close
        rows with large cotangents. With `scales` = (a [..., N], b [..., M]), stacks are allowed, but not
        `differences` or Z = None, and the cotangent is size * diag(a) bar diag(b).
    """
    B = backend_of(X)
    xp = B.xp
    other = X if Z is None else Z
    by_differences = partial(_by_differences, X, other, lengthscale)
    if differences:
        return by_differences(), partial(_pull_differences, X, Z, lengthscale)
    single = Z is not None and Z.shape[-2] == 1
    scaled = None if single or X.shape[-1] <= FEW_COLUMNS else _centre(B, X, Z, lengthscale)
    pullback = partial(_pull_products, B, X, Z, lengthscale, scaled)
    if single:
        apart = (X - Z) / lengthscale
        return xp.sum(apart * apart, axis=-1, keepdims=True), pullback
    if scaled is None:
        return by_differences(), pullback
    xs, zs = scaled
    x_squares = xp.sum(xs * xs, axis=-1)
    largest = xp.max(x_squares)
    if zs is None:
        by_expansion = partial(_by_own_expansion, B, xs, x_squares)
    else:
        z_squares = xp.sum(zs * zs, axis=-1)
        largest = xp.maximum(largest, xp.max(z_squares))
        by_expansion = partial(B.squared_distances, xs, zs, x_squares, z_squares)
    roundoff = 0.5 * float(xp.finfo(X.dtype).eps)
    return B.cond(largest < SMALL_ROUNDOFF / roundoff, by_expansion, by_differences, likely=True), pullback


def own_distances(
    X: Array, lengthscale: Array, *, differences: bool = False
) -> tuple[Array, Callable[[int, int], Array]]:
    """Return scaled centred inputs [N, D], and a function ``(start, stop) -> r2`` for tiles of their squared distances.

    The tile contains the distances between the rows from `start` to `stop` and all rows before `stop`. As in
    `squared_distances`, distances are computed from differences if there are at most four columns, if `differences` is
    True, or if the inputs are large.
    """
    B = backend_of(X)
    scaled, _ = _centre(B, X, None, lengthscale)

    def by_differences(start: int, stop: int) -> Array:
        return _by_differences(X[start:stop, :], X[:stop, :], lengthscale)

    if differences or X.shape[1] <= FEW_COLUMNS:
        return scaled, by_differences
    squares = B.xp.sum(scaled * scaled, axis=-1)
    roundoff = 0.5 * float(B.xp.finfo(X.dtype).eps)
    small = B.xp.max(squares) < SMALL_ROUNDOFF / roundoff

    def tile(start: int, stop: int) -> Array:
        def by_expansion() -> Array:
            rows = scaled[start:stop, :], scaled[:stop, :], squares[start:stop], squares[:stop]
            return B.hollow_tile(B.squared_distances(*rows), start)

        return B.cond(small, by_expansion, partial(by_differences, start, stop), likely=True)

    return scaled, tile


def group_distances(X: Array, lengthscale: Array, *, differences: bool = False) -> tuple[Array, Array]:
    """Return scaled inputs [G, N, D], centred in each group, and the squared distances [G, N, N] within the groups."""
    B = backend_of(X)
    x = _centre(B, X, None, lengthscale)[0]
    if differences or X.shape[-1] <= FEW_COLUMNS:
        return x, B.squared_differences(x, x, B.xp.ones((), **B.like(x)))
    squares = B.xp.sum(x * x, axis=-1)
    return x, B.squared_distances(x, x, squares, squares)


def _centre(B: Any, X: Array, Z: Array | None, lengthscale: Array) -> tuple[Array, Array | None]:
    """Subtract the mean row of Z, or of X if Z is None, from X and Z; divide both by the lengthscales.

    If both are stacks, the mean is that of each group, since distances within a small group would lose digits
    otherwise.
    """
    other = X if Z is None else Z
    each = X.ndim == other.ndim == 3
    centre = B.stop_gradient(B.xp.mean(other, axis=-2, keepdims=True) if each else centre_of(B.xp, other))
    return (X - centre) / lengthscale, None if Z is None else (Z - centre) / lengthscale


def centre_of(xp: Any, X: Array) -> Array:
    """Return the mean [D] of all rows of X [..., N, D]."""
    return xp.mean(X, axis=tuple(range(X.ndim - 1)))


def sums_by_column(xp: Any, x: Array) -> Array:
    """Return the sum [D] of all rows of x [..., N, D]."""
    return xp.sum(x, axis=tuple(range(x.ndim - 1)))


def _by_differences(X: Array, Z: Array, lengthscale: Array) -> Array:
    B = backend_of(X)
    xp = B.xp
    if X.shape[-1] > FEW_COLUMNS and B.loops_on_device and not B.is_concrete(X):  # a single loop in compiled programs
        scale = xp.broadcast_to(lengthscale, (X.shape[-1],))
        columns = xp.moveaxis(X, -1, 0), xp.moveaxis(Z, -1, 0), scale
        return B.fold(_one_difference, (), columns, 1, add=tree.add)[0]
    return B.squared_differences(X, Z, lengthscale)


def _one_difference(_: tuple, column: tuple[Array, Array, Array]) -> tuple[Array, Any]:
    (x,), (z,), (scale,) = column
    difference = (x[..., :, None] - z[..., None, :]) / scale
    return difference * difference, None


def _by_own_expansion(B: Any, xs: Array, x_squares: Array) -> Array:
    return B.hollow_from_lower(B.squared_distances(xs, xs, x_squares, x_squares))  # exactly symmetric


def _pull_products(
    B: Any,
    X: Array,
    Z: Array | None,
    lengthscale: Array,
    scaled: tuple[Array, Array | None] | None,
    W: Array,
    size: Array | float = 1.0,
    scales: tuple[Array | None, Array | None] = (None, None),
) -> tuple[Array, Array | None, Array]:
    # for scaled inputs xs, zs: X_bar = 2/ell (r xs - W zs), Z_bar = 2/ell (q zs - W^T xs), where the row and column
    # sums r, q of W are columns of the same products. Since k depends on x/ell, z/ell only and is shift invariant,
    # ell_bar_d = -sum(xs X_bar + zs Z_bar)
    xp, factor = B.xp, (2.0 * size) / lengthscale
    xs, zs = _centre(B, X, Z, lengthscale) if scaled is None else scaled
    a, b = scales
    if zs is None:
        right = xp.concat([xs, xp.ones_like(xs[..., :1])], axis=-1)
        products = W @ right + W.mT @ right
        X_bar = factor * (products[..., -1:] * xs - products[..., :-1])
        return X_bar, None, -per_column(B.inner_by_column(xs, X_bar), lengthscale)
    X_bar = factor * _sums_less_products(xp, W, xs, zs, a, b)
    Z_bar = factor * _sums_less_products(xp, W.mT, zs, xs, b, a)
    by_column = B.inner_by_column(xs, X_bar) + B.inner_by_column(zs, Z_bar)
    return X_bar, Z_bar, -per_column(by_column, lengthscale)


def _sums_less_products(xp: Any, W: Array, Xc: Array, Zc: Array, a: Array | None, b: Array | None) -> Array:
    """Return R Xc - V Zc with V = diag(a) W diag(b), where the diagonal matrix R contains the row sums of V.

    For stacks, return a stack. If W is a stack and Xc is not, return the sum over the stack.
    """
    right = [Zc, xp.ones_like(Zc[..., :1])] if b is None else [b[..., None] * Zc, b[..., None]]
    products = W @ xp.concat(right, axis=-1)
    if a is not None:
        products = a[..., None] * products
    if products.ndim > Xc.ndim:
        products = xp.sum(products, axis=0)
    return products[..., -1:] * Xc - products[..., :-1]


def _pull_differences(
    X: Array, Z: Array | None, lengthscale: Array, W: Array, size: Array | float = 1.0
) -> tuple[Array, Array | None, Array]:
    # dr2/dx_d = 2 (x_d - z_d) / ell_d^2, dr2/dell_d = -2 (x_d - z_d)^2 / ell_d^3; a symmetric W counts pairs twice
    xp = backend_of(X).xp
    other, W = (X, W + W.mT) if Z is None else (Z, W)
    scale = xp.broadcast_to(lengthscale, (X.shape[-1],))
    X_bars, Z_bars, totals = [], [], []
    for d in range(X.shape[-1]):
        difference, factor = (X[..., :, d, None] - other[..., None, :, d]) / scale[d], size / scale[d]
        weighted = W * difference
        X_bars.append(2.0 * xp.sum(weighted, axis=-1) * factor)
        Z_bars.append(-2.0 * xp.sum(weighted, axis=-2) * factor)
        totals.append((-1.0 if Z is None else -2.0) * xp.sum(weighted * difference) * factor)
    by_column = per_column(xp.stack(totals), lengthscale)
    return xp.stack(X_bars, axis=-1), None if Z is None else xp.stack(Z_bars, axis=-1), by_column


def least_root(x: Array) -> float:
    """Return the value of `safe_sqrt` at zero: negligible compared to 1, with a representable square and inverse."""
    return float(backend_of(x).xp.finfo(x.dtype).smallest_normal) ** 0.25


def safe_sqrt(x: Array) -> Array:
    """Return sqrt(x), but `least_root` at x = 0, so that automatic differentiation returns 0 there, not NaN.

    The function takes a maximum instead of testing x > 0, because a compiler may evaluate x twice with different
    rounding.
    """
    xp = backend_of(x).xp
    return xp.sqrt(xp.maximum(x, least_square(x)))


def least_square(x: Array) -> Array:
    """Return the square of `least_root` (0-d)."""
    return backend_of(x).xp.full((), least_root(x) ** 2, **like(x))
