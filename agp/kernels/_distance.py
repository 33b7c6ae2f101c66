"""Squared distances of scaled inputs, without cancellation."""

from agp.backend import Array, backend_of, like

__all__ = ["squared_distances"]

FEW_COLUMNS = 4
"""Up to this width differences are formed column by column; they cost one pass over the result for each column."""
SMALL_ROUNDOFF = 1e-5
"""The expansion serves only while max |x|^2 times the unit roundoff stays below this."""


def squared_distances(X: Array, Z: Array | None, lengthscale: Array, *, differences: bool = False) -> Array:
    """r2[n, m] = sum_d (x_nd - z_md)^2 / lengthscale_d^2, for X [N, D] and Z [M, D], or Z = X with an exact diagonal.

    Sums of squared differences are exactly zero for equal rows and safe in float32; the expansion
    |x|^2 + |z|^2 - 2 x.z of centred inputs, one matrix product, is faster for many columns. Differences serve for at
    most four columns, where `differences` is asked for, and unless the centred scaled inputs are small.
    """
    B = backend_of(X)
    xp = B.xp
    other = X if Z is None else Z

    def by_differences() -> Array:
        return _by_differences(X, other, lengthscale)

    def by_expansion() -> Array:
        r2 = _by_expansion(xs, zs)
        return r2 * (1.0 - xp.eye(X.shape[0], **like(X))) if Z is None else r2

    if differences or X.shape[1] <= FEW_COLUMNS:
        return by_differences()
    centre = B.stop_gradient(xp.mean(other, axis=0))
    xs, zs = (X - centre) / lengthscale, (other - centre) / lengthscale
    roundoff = 0.5 * float(xp.finfo(X.dtype).eps)
    largest = xp.maximum(xp.max(xp.sum(xs * xs, axis=-1)), xp.max(xp.sum(zs * zs, axis=-1)))
    return B.cond(B.stop_gradient(largest) * roundoff < SMALL_ROUNDOFF, by_expansion, by_differences)


def _by_differences(X: Array, Z: Array, lengthscale: Array) -> Array:
    xp = backend_of(X).xp
    scale = xp.broadcast_to(lengthscale, (X.shape[1],))
    r2 = None
    for d in range(X.shape[1]):
        difference = (X[:, d, None] - Z[None, :, d]) / scale[d]
        r2 = difference * difference if r2 is None else r2 + difference * difference
    return r2


def _by_expansion(xs: Array, zs: Array) -> Array:
    xp = backend_of(xs).xp
    squares = xp.sum(xs * xs, axis=-1)[:, None] + xp.sum(zs * zs, axis=-1)[None, :]
    r2 = squares - 2.0 * (xs @ zs.mT)
    return xp.where(r2 > 0.0, r2, xp.zeros_like(r2))
