"""Averages of a kernel over points, and covariances given that the average of the function is zero.

With weights w that sum to 1, m(x) = sum_j w_j k(x, s_j) and v = sum_ij w_i w_j k(s_i, s_j), the covariances are

    c(x, z) = k(x, z) - m(x) m(z) / v.

If the lengthscale is long, all of these numbers are nearly equal. They are therefore computed from D = k - s, a = m - s
and b = v - s, with a number s near them (`Kernel.shift_of`): c(x, z) = D - (s (a(x) + a(z) - b) + a(x) a(z)) / v.
"""

from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.kernels._base import Kernel

KEPT = 2
"""The number of sets of rows of which a kernel keeps the averages: training rows, and a chunk of others."""


class _Known:
    """The averages that a kernel object has computed; they are no part of it."""

    def __init__(self) -> None:
        self.shift: tuple[Array | None] | None = None
        self.total: tuple[Array, Array] | None = None
        self.rows: tuple[tuple[Array, Array], ...] = ()


_KNOWN: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


class Averages(NamedTuple):
    """The averages of a kernel, or of each setting of a stack, over J points with weights that sum to 1."""

    owner: Any
    """The `Centred` kernel, an object with which known averages are kept."""
    kernel: Kernel
    points: Array
    weights: Array
    stacked: bool

    shift: Array | None
    """log(s / variance), or None for s = 0."""

    def with_shift(self) -> Self:
        """Return these averages with the shift that suits the kernel."""
        known = self._memory(self.points)
        if known is not None and known.shift is not None:
            return self._replace(shift=known.shift[0])
        shift = self.kernel.shift_of(self.points, stacked=self.stacked)
        if known is not None:
            known.shift = (shift,)
        return self._replace(shift=shift)

    @property
    def s(self) -> Any:
        """The number s (0-d), or [S] for a stack."""
        if self.shift is None:
            return 0.0
        return self.kernel.variance * backend_of(self.shift).xp.exp(self.shift)  # type: ignore[attr-defined]

    def covariances(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        """Return k(X, Z) - s, and the pullback of k(X, Z)."""
        less_shift = self.kernel.stacked_less_shift if self.stacked else self.kernel.less_shift
        return less_shift(X, Z, self.shift)

    def variances(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return k(x, x) - s [N] or [S, N], and the pullback of k(x, x)."""
        found, pull = self.kernel.stacked_variances(X) if self.stacked else self.kernel.diag(X)
        if self.shift is not None:  # the variance is the same everywhere
            change = -self.kernel.variance * backend_of(X).xp.expm1(self.shift)  # type: ignore[attr-defined]
            found = 0.0 * found + (change[:, None] if self.stacked else change)
        return found, pull

    def at(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return a(X) = m(X) - s [S, ..., N], and the pullback of m(X) [S, ..., N]: ``bar -> (kernel_bar, X_bar)``.

        For a stack, the pullback is ``bar -> X_bar``.
        """
        xp = backend_of(X).xp
        flat = xp.reshape(X, (-1, X.shape[-1]))
        known, found, pull = self._memory(X), None, None
        if known is not None:
            found = next((a for rows, a in known.rows if rows.shape == flat.shape and bool(xp.all(rows == flat))), None)
        if found is None:
            D, pull = self.covariances(flat, self.points)
            found = (D @ self.weights[:, None])[..., 0]
        if known is not None:
            others = (one for one in known.rows if one[1] is not found)
            known.rows = ((xp.asarray(flat, copy=True), found), *others)[:KEPT]

        def pullback(bar):
            own = self.covariances(flat, self.points)[1] if pull is None else pull
            return self._pull(own, bar, X)

        return found if self.stacked else xp.reshape(found, X.shape[:-1]), pullback

    def _pull(self, pull: Pullback, bar: Array, X: Array) -> Any:
        xp = backend_of(X).xp
        if self.stacked:
            return pull(bar[..., None] * self.weights)[0]
        kernel_bar, X_bar, _ = pull(xp.reshape(bar, (-1, 1)) * self.weights)
        return kernel_bar, xp.reshape(X_bar, X.shape)

    def total(self) -> tuple[Array, Array, Pullback]:
        """Return b = v - s, 1 / v (or 0 if v is zero up to rounding), and the pullback of 1 / v.

        The pullback is ``bar -> kernel_bar``; a stack has none.
        """
        w, known = self.weights, self._memory(self.points)
        xp = backend_of(w).xp
        pull = None
        if known is not None and known.total is not None:
            b, inverse = known.total
        else:
            s, (D, pull) = self.s, self.covariances(self.points, self.points)
            b = xp.sum(w * (D @ w[:, None])[..., 0], axis=-1)
            size = xp.sum(w * w) * (xp.max(xp.abs(D), axis=(-2, -1)) + s)
            inverse = invert_above_rounding(s + b, size)
            if known is not None:
                known.total = b, inverse

        def pullback(bar):
            own = self.covariances(self.points, self.points)[1] if pull is None else pull
            return own(-bar * inverse * inverse * w[:, None] * w[None, :])[0]

        return b, inverse, pullback

    def _memory(self, X: Array) -> _Known | None:
        """Return what is known, or None if the host cannot read the numbers or a gradient may be asked for."""
        B = backend_of(X)
        leaves = (X, *tree.leaves(self.owner).values())
        if B.is_lazy or B.reading_waits(X) or not all(B.is_concrete(x) and not B.asks_gradient(x) for x in leaves):
            return None
        return _KNOWN.setdefault(self.owner, _Known())


def combine_averages(D: Array, s: Any, left: Array, right: Array, b: Array, inverse: Array, /) -> Array:
    """Return the covariances c, given D, s, the averages a of both rows, b and 1 / v."""
    s, b, inverse = (spread_over(x, D) for x in (s, b, inverse))
    return D - inverse * (s * (left + right - b) + left * right)


def spread_over(x: Any, D: Array, /) -> Any:
    """Return numbers [S] of settings with as many axes as D [S, ...]; others are unchanged."""
    if isinstance(x, float) or not x.ndim:
        return x
    return backend_of(D).xp.reshape(x, (-1, *(1 for _ in D.shape[1:])))


def clip_rounding(variances: Array, terms: Array, /) -> Array:
    """Return variances in which rounding errors below zero, of sums of terms with this size, are zero."""
    xp = backend_of(variances).xp
    bound = -16.0 * float(xp.finfo(variances.dtype).eps) * terms
    return xp.where((variances < 0.0) & (variances > bound), xp.zeros_like(variances), variances)


def invert_above_rounding(v: Array, size: Array, /) -> Array:
    """Return 1 / v, or 0 if v is a rounding error of a number of this size."""
    xp = backend_of(v).xp
    positive = v > 10.0 * float(xp.finfo(v.dtype).eps) * size
    return xp.where(positive, 1.0 / xp.where(positive, v, xp.ones_like(v)), xp.zeros_like(v))
