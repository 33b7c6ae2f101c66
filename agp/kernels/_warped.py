"""Kernels of inputs whose skewed columns are warped."""

from typing import Any, NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_like
from agp.chunking import column_spreads
from agp.kernels._features import Blocks, Features, Term
from agp.kernels._of_inputs import OfInputs, pull_unless_zero
from agp.kernels._parameters import check_per_column

WIDTH = 0.5
"""The scale of a warp in interquartile ranges of the column."""


class Warp(NamedTuple):
    """The function g of `Warped`, with the centres and scales [D] of the columns."""

    centre: Array
    scale: Array

    def __call__(self, X: Array, /) -> Array:
        """Return g(X) [..., N, D]."""
        scale, is_warped = self._scales(X)
        xp = backend_of(X).xp
        return xp.where(is_warped, xp.asinh((X - self.centre) / scale), X)

    def pull(self, X: Array, bar: Array, /) -> Array:
        """Return the cotangent of X for that of g(X): dg/dx = 1 / sqrt(scale^2 + (x - centre)^2)."""
        scale, is_warped = self._scales(X)
        xp = backend_of(X).xp
        u = (X - self.centre) / scale
        return xp.where(is_warped, bar / (scale * xp.sqrt(1.0 + u * u)), bar)

    def _scales(self, X: Array) -> tuple[Array, Array]:
        """Return the scales, or 1 for columns that are used as they are, and whether columns are warped."""
        xp = backend_of(X).xp
        return xp.where(self.scale > 0.0, self.scale, xp.ones_like(self.scale)), self.scale > 0.0

    @classmethod
    def of(cls, X: Array, /) -> Self:
        """Return the usual warp of all columns of X [N, D]; see `Warped`."""
        xp, rows, quartiles = backend_of(X).xp, X.shape[0], (0.0, 0.25, 0.5, 0.75)
        least, low, middle, high = (xp.sort(X, axis=0)[round(share * (rows - 1)), :] for share in quartiles)
        spread = xp.where(high > low, high - low, column_spreads(X))
        is_positive = (least >= 0.0) & (low > 0.0)
        centre = xp.where(is_positive, xp.zeros_like(middle), middle)
        return cls(centre, xp.where(is_positive, low, WIDTH * spread))


@tree.model
class Warped(OfInputs):
    """A kernel of warped inputs, k(g(x), g(z)) with g(x)_d = arsinh((x_d - centre_d) / scale_d).

    The warp is linear within about one scale of the centre, and logarithmic further away. For columns that are skewed
    or have heavy tails, such as prices or areas, a stationary kernel then varies as fast at small values as at large
    ones, and rows far away do not determine its lengthscale.

    Parameters
    ----------
    kernel
        Any kernel. Its parameters refer to the warped columns, which have no unit.
    centre, scale
        The centre and the scale [D] of each column, in its unit. A column with the scale 0 is used as it is. If None,
        all columns are warped. The centre of a column without negative numbers is then 0, and its scale is the lower
        quartile. For other columns, and if the lower quartile is 0, they are the median and half the interquartile
        range (or the standard deviation, if this range is 0).

    Examples
    --------
    With the warp, the lengthscale suits both the small and the large values.

    >>> import numpy as np
    >>> import agp
    >>> x = np.exp(np.linspace(0.0, 8.0, 60))
    >>> y = np.sin(2.0 * np.log(x))
    >>> plain, warped = (
    ...     agp.fit(agp.GPR.from_data(x[:, None], y, kernel=kernel), x[:, None], y).model
    ...     for kernel in (agp.RBF(), agp.Warped(agp.RBF()))
    ... )
    >>> print(plain.leave_one_out().mean() < warped.leave_one_out().mean() - 1.0)
    True
    """

    centre: Array | None = tree.constant(default=None, optional=True)
    scale: Array | None = tree.constant(default=None, optional=True)

    @property
    def warp(self) -> Warp:
        """The function g."""
        assert self.centre is not None
        assert self.scale is not None
        return Warp(self.centre, self.scale)

    def change_inputs(self, X: Array, /) -> tuple[Array, Pullback]:
        warp = self.warp
        return warp(X), lambda bar: warp.pull(X, bar)

    def metric_inputs(self, X: Array, /) -> Array:
        return self.kernel.metric_inputs(self.warp(X))

    def inverse_scales(self, width: int, /) -> Array | None:
        return self.kernel.inverse_scales(width)

    def category_levels(self, width: int, /) -> dict[int, int]:
        return self.kernel.category_levels(width)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        found = self.kernel.random_features(rng, count, width)
        return Features(tuple(Term(tuple(_OfWarped(one, *self.warp) for one in term.factors)) for term in found.terms))

    def from_data(self, X: Array, variance: float, /) -> Self:
        self = tree.place_leaves(self, X)
        usual = Warp.of(X)
        self = tree.with_defaults(self, centre=usual.centre, scale=usual.scale)
        for name in ("centre", "scale"):
            check_like(name, getattr(self, name), "X", X)
            check_per_column(self, name, X.shape[1])
        if float(backend_of(X).xp.min(self.warp.scale)) < 0.0:
            raise ValueError("Warped has a negative scale; pass positive scales, and 0 for columns to use as they are.")
        return type(self)(self.kernel.from_data(self.warp(X), variance), self.centre, self.scale)

    def check(self, width: int, /) -> None:
        for name in ("centre", "scale"):
            if name in tree.leaves(self):
                check_per_column(self, name, width)
        self.kernel.check(width)


@tree.model
class _OfWarped(Blocks):
    """Blocks of warped inputs."""

    blocks: Blocks
    centre: Array = tree.constant()
    scale: Array = tree.constant()

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        warp = Warp(self.centre, self.scale)
        value, pull = self.blocks(warp(X))
        return value, lambda bar: pull_unless_zero(lambda x_bar: warp.pull(X, x_bar), pull(bar))
