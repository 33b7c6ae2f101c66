"""Covariances of stationary kernels minus a number near them, without the rounding errors of this number."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.kernels._base import ConstantVariance
from agp.kernels._distance import squared_distances
from agp.kernels._stacks import spread_scalars, stacked_distances


class Shiftable(ConstantVariance):
    """Base class for kernels variance g(r2), which may know log g."""

    lengthscale: Array
    differences: bool

    def log_profile(self, _r2: Array, /) -> Array | None:
        """Return log g(r2), without rounding errors of 1 at small distances; by default, it is not known."""
        return None

    def shift_of(self, points: Array, /, *, stacked: bool) -> Array | None:
        # the least log g of the first point and another, which is near zero if all covariances are nearly equal
        xp, one = backend_of(points).xp, points[:1, :]
        if stacked:
            found = self._spread_shapes().log_profile(stacked_distances(one, points, self.lengthscale)[0])
        else:
            found = self.log_profile(squared_distances(one, points, self.lengthscale, differences=True)[0])
        if found is None:
            return None
        least = xp.min(found, axis=(-2, -1))
        bound = xp.full_like(least, math.log(float(xp.finfo(least.dtype).eps)))
        return xp.where(least > bound, least, bound)

    def less_shift(self, X: Array, Z: Array | None, shift: Array | None, /) -> tuple[Array, Pullback]:
        if shift is None:
            return super().less_shift(X, Z, shift)
        xp = backend_of(X).xp
        r2, pull = squared_distances(X, Z, self.lengthscale, differences=self.differences)
        logarithm: Any = self.log_profile(r2)

        def pullback(K_bar):
            (g, slope), pull_shape = self.profile(r2), self.pull_shape(r2)
            X_bar, Z_bar, lengthscale_bar = pull(K_bar * slope(), self.variance)
            variance_bar = backend_of(g).inner(K_bar, g)
            bar = tree.cotangent(self, variance=variance_bar, lengthscale=lengthscale_bar, **pull_shape(K_bar))
            return (bar, X_bar) if Z is None else (bar, X_bar, Z_bar)

        return self.variance * xp.exp(shift) * xp.expm1(logarithm - shift), pullback

    def stacked_less_shift(self, X: Array, Z: Array | None, shift: Array | None, /) -> tuple[Array, Pullback]:
        if shift is None:
            return super().stacked_less_shift(X, Z, shift)
        xp, spread = backend_of(X).xp, self._spread_shapes()
        r2, pull = stacked_distances(X, Z, self.lengthscale)
        variance, shift = spread_scalars(self.variance), spread_scalars(shift)
        logarithm: Any = spread.log_profile(r2)
        pullback = lambda K_bar: pull(K_bar * spread.profile(r2)[1]() * variance)  # noqa: E731
        return variance * xp.exp(shift) * xp.expm1(logarithm - shift), pullback

    @abstractmethod
    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        """Return g(r2), and a function without arguments that returns the slope dg/dr2."""

    @abstractmethod
    def pull_shape(self, r2: Array, /) -> Callable[[Array], dict[str, Array]]:
        """Return a function that maps the cotangent of K to those of the profile's own parameters, by name."""

    @abstractmethod
    def _spread_shapes(self) -> Self:
        """Return the stack with the profile's own parameters as [S, 1, 1]."""
