"""Kernels of inputs whose skewed columns are warped."""

from typing import Any, ClassVar, NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_like
from agp.chunking import column_spreads
from agp.kernels._base import Kernel
from agp.kernels._composites import evaluate
from agp.kernels._features import Blocks, Features, Term
from agp.kernels._linearisation import Linearisation
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

    def pull(self, X: Array, bar: Array | None, /) -> Array | None:
        """Return the cotangent of X for that of g(X): dg/dx = 1 / sqrt(scale^2 + (x - centre)^2)."""
        if bar is None:
            return None
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
class Warped(Kernel):
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

    kernel: Kernel
    centre: Array | None = tree.constant(default=None, optional=True)
    scale: Array | None = tree.constant(default=None, optional=True)
    takes_groups: ClassVar[bool] = True

    @property
    def warp(self) -> Warp:
        """The function g."""
        assert self.centre is not None
        assert self.scale is not None
        return Warp(self.centre, self.scale)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        inputs = (X,) if Z is None else (X, Z)
        others = None if Z is None else self.warp(Z)
        return self._after(inputs, *evaluate(self.kernel, self.warp(X), others))

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._after((X,), *self.kernel.diag(self.warp(X)))

    def _after(self, inputs: tuple[Array, ...], K: Array, pull: Pullback) -> tuple[Array, Pullback]:
        def pullback(bar):
            kernel_bar, *bars = pull(bar)
            warped = (self.warp.pull(x, x_bar) for x, x_bar in zip(inputs, bars, strict=True))
            return tree.cotangent(self, kernel=kernel_bar), *warped

        return K, pullback

    def linearise(self, X: Array, /) -> Linearisation | None:
        return self._linearise(self.kernel.linearise(self.warp(X)))

    def linearise_groups(self, X: Array, /) -> Linearisation | None:
        return self._linearise(self.kernel.linearise_groups(self.warp(X)))

    def _linearise(self, found: Linearisation | None) -> Linearisation | None:
        if found is None:
            return None
        return Linearisation(
            found.K,
            lambda K_bar: tree.cotangent(self, kernel=found.pull(K_bar)),
            lambda a, W=None: tree.cotangent(self, kernel=found.times(a, W)),
        )

    def metric_inputs(self, X: Array, /) -> Array:
        return self.kernel.metric_inputs(self.warp(X))

    def inverse_scales(self, width: int, /) -> Array | None:
        return self.kernel.inverse_scales(width)

    def category_levels(self, width: int, /) -> dict[int, int]:
        return self.kernel.category_levels(width)

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        inputs = (X,) if Z is None else (X, Z)
        K, pull = self.kernel.stacked_covariance(*map(self.warp, inputs))
        return K, lambda bar: tuple(self.warp.pull(x, x_bar) for x, x_bar in zip(inputs, pull(bar), strict=True))

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        variances, pull = self.kernel.stacked_variances(self.warp(X))
        return variances, lambda bar: self.warp.pull(X, pull(bar))

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        found = self.kernel.random_features(rng, count, width)
        return Features(tuple(Term(tuple(_OfWarped(one, *self.warp) for one in term.factors)) for term in found.terms))

    @property
    def floats_per_entry(self) -> int:  # type: ignore[override]
        return self.kernel.floats_per_entry

    def scale_by(self, factor: Array | float, /) -> Kernel:
        return type(self)(self.kernel.scale_by(factor), self.centre, self.scale)

    def from_data(self, X: Array, variance: float, /) -> Self:
        self = tree.place_leaves(self, X)
        usual = Warp.of(X)
        self = tree.with_defaults(self, centre=usual.centre, scale=usual.scale)
        for name in ("centre", "scale"):
            check_like(name, getattr(self, name), "X", X)
            check_per_column(self, name, X.shape[1])
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
        return value, lambda bar: warp.pull(X, pull(bar))
