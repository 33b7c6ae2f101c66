"""Stationary kernels k(x, z) = variance g(r2), with r2 = sum_d (x_d - z_d)^2 / lengthscale_d^2.

A kernel is its profile g and the slope g' = dg/dr2; everything else is shared.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.constraints import POSITIVE
from agp.kernels._base import Kernel
from agp.kernels._distance import squared_distances

__all__ = ["RBF", "Matern32", "Stationary"]

SQRT3 = math.sqrt(3.0)


class Stationary(Kernel):
    """What the stationary kernels share: distances, and the pullback through them."""

    variance: Array
    lengthscale: Array

    @abstractmethod
    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        """g(r2) and a function of no arguments that gives the slope dg/dr2."""

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        g, slope = self.profile(squared_distances(X, Z, self.lengthscale))

        def pullback(K_bar):
            xp = backend_of(X).xp
            W = K_bar * slope() * self.variance
            if Z is None:
                W = W + W.mT
            X_bar, Z_bar, lengthscale_bar = self._pull_distances(W, X, X if Z is None else Z)
            if Z is None:
                lengthscale_bar = 0.5 * lengthscale_bar
            bar = tree.cotangent(self, variance=xp.sum(K_bar * g), lengthscale=lengthscale_bar)
            return (bar, X_bar) if Z is None else (bar, X_bar, Z_bar)

        return self.variance * g, pullback

    def _pull_distances(self, W: Array, X: Array, Z: Array) -> tuple[Array, Array, Array]:
        # X_bar = 2/ell^2 (r Xc - W Zc), Z_bar = 2/ell^2 (q Zc - W^T Xc) with the row and column sums r, q of W;
        # Euler: k depends on x/ell, z/ell only and is shift invariant, so ell_d ell_bar_d = -sum(Xc X_bar + Zc Z_bar)
        xp = backend_of(X).xp
        centre = xp.mean(Z, axis=0)
        Xc, Zc = X - centre, Z - centre
        factor = 2.0 / (self.lengthscale * self.lengthscale)
        X_bar = factor * (xp.sum(W, axis=1)[:, None] * Xc - W @ Zc)
        Z_bar = factor * (xp.sum(W, axis=0)[:, None] * Zc - W.mT @ Xc)
        by_column = xp.sum(Xc * X_bar, axis=0) + xp.sum(Zc * Z_bar, axis=0)
        if self.lengthscale.ndim == 0:
            by_column = xp.sum(by_column)
        return X_bar, Z_bar, -by_column / self.lengthscale

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp

        def pullback(bar):
            return tree.cotangent(self, variance=xp.sum(bar)), None

        return xp.broadcast_to(self.variance, (X.shape[0],)), pullback

    def from_data(self, X: Array, variance: float, /) -> Self:
        xp = backend_of(X).xp
        # a constant column has no spread (but for rounding) to measure distances in; any scale serves
        spread = xp.std(X, axis=0)
        rounding = 10.0 * float(xp.finfo(X.dtype).eps) * xp.max(xp.abs(X), axis=0)
        usual = xp.where(spread > rounding, spread, xp.ones_like(spread))
        return tree.filled(self, variance=variance, lengthscale=usual)

    def check(self, width: int, /) -> None:
        if self.variance.ndim != 0:
            msg = f"{type(self).__name__} has a variance of shape {tuple(self.variance.shape)}, but needs one number."
            raise ValueError(msg)
        if self.lengthscale.ndim > 1 or (self.lengthscale.ndim == 1 and self.lengthscale.shape[0] != width):
            msg = (
                f"{type(self).__name__} has lengthscales of shape {tuple(self.lengthscale.shape)}, the inputs have "
                f"{width} columns; give one lengthscale, or one for each column."
            )
            raise ValueError(msg)


@tree.model
class RBF(Stationary):
    """The squared exponential kernel, g(r2) = exp(-r2 / 2): very smooth functions.

    Parameters
    ----------
    variance
        k(x, x), 0-d, in squared units of the targets.
    lengthscale
        In units of the inputs: 0-d, or one for each column [D]. None starts at the spread of each column.
    """

    variance: Array = tree.param(POSITIVE, default=None)
    lengthscale: Array = tree.param(POSITIVE, default=None)

    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        g = backend_of(r2).xp.exp(-0.5 * r2)
        return g, lambda: -0.5 * g


@tree.model
class Matern32(Stationary):
    """The Matern kernel of smoothness 3/2, g = (1 + sqrt(3) r) exp(-sqrt(3) r): once differentiable functions.

    Parameters
    ----------
    variance
        k(x, x), 0-d, in squared units of the targets.
    lengthscale
        In units of the inputs: 0-d, or one for each column [D]. None starts at the spread of each column.
    """

    variance: Array = tree.param(POSITIVE, default=None)
    lengthscale: Array = tree.param(POSITIVE, default=None)

    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        scaled = SQRT3 * safe_sqrt(r2)
        decay = backend_of(r2).xp.exp(-scaled)
        return (1.0 + scaled) * decay, lambda: -1.5 * decay


def safe_sqrt(x: Array) -> Array:
    """sqrt(x) whose derivative under automatic differentiation is 0, not NaN, at x = 0."""
    xp = backend_of(x).xp
    positive = x > 0.0
    return xp.where(positive, xp.sqrt(xp.where(positive, x, xp.ones_like(x))), xp.zeros_like(x))
