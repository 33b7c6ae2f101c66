"""Matern kernels, whose smoothness is 1/2, 3/2 or 5/2."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Backend, asarray_like, backend_of, like
from agp.kernels._distance import least_root, least_square, safe_sqrt
from agp.kernels._features import Features, Waves, features_of
from agp.kernels._stationary import Stationary

SQRT3, SQRT5 = math.sqrt(3.0), math.sqrt(5.0)
SPREADS = (1.0, 4.0, 1.0, 16.0)
"""Factors by which random frequencies of Matern kernels are spread."""


class Matern(Stationary):
    """The base class for Matern kernels."""

    degrees: ClassVar[int]
    """Twice the smoothness: the degrees of freedom of the spectral density, a Student-t."""
    floats_per_entry: ClassVar[int] = 4  # one more array for the square root

    def frequencies(self, rng: Any, count: int, width: int, /) -> Any:
        normals = rng.standard_normal((count, width))
        return normals * (self.degrees / rng.chisquare(self.degrees, (count, 1))) ** 0.5

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        """Draw features with importance sampling of the high frequencies.

        Rare high frequencies have most of the variance between rows without noise. Frequencies therefore come from a
        mixture of the spectral density p with wider ones, p(w / s) / s^D, and have the weights p / mixture.
        """
        drawn = self.frequencies(rng, count, width)
        order = rng.permutation(count)  # so that scales in the factors of a product are independent
        numbers = [len(order[i :: len(SPREADS)]) for i in range(len(SPREADS))]
        for i, scale in enumerate(SPREADS):
            drawn[order[i :: len(SPREADS)]] *= scale
        xp, square, power = backend_of(drawn).xp, (drawn**2).sum(axis=1) / self.degrees, 0.5 * (self.degrees + width)

        def density(s: float) -> Any:
            """Return p(w / s) / s^D relative to p(w)."""
            return xp.exp(power * xp.log((1.0 + square) / (1.0 + square / s**2)) - width * math.log(s))

        weights: Any = 1.0 / sum(number * density(s) for number, s in zip(numbers, SPREADS, strict=True))
        amplitudes = asarray_like((weights / weights.mean()) ** 0.5, self.lengthscale)
        return features_of(self.variance, Waves(asarray_like(drawn, self.lengthscale) / self.lengthscale, amplitudes))


@tree.model
class Matern12(Matern):
    """The Matern kernel of smoothness 1/2, g = exp(-r), also called exponential.

    Its functions are continuous, but rough. Distances are computed from differences for any number of columns, because
    the slope -exp(-r) / (2 r), set to 0 at r = 0, would amplify the rounding errors of the expansion
    |x|^2 + |z|^2 - 2 x.z for nearly equal rows.

    Parameters
    ----------
    variance, lengthscale
        As for `RBF`.

    Examples
    --------
    Given the value at 1, the values at 0 and 2 are independent, unlike with smoother kernels.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [1.0], [2.0]])
    >>> for kernel in (agp.Matern12(1.0, 1.0), agp.RBF(1.0, 1.0)):
    ...     K, _ = kernel(X)
    ...     covariance = K[0, 2] - K[0, 1] * K[1, 2] / K[1, 1]
    ...     print(round(abs(float(covariance)), 2))
    0.0
    0.23
    """

    short_name: ClassVar[str] = "matern12"
    differences = True
    degrees: ClassVar[int] = 1

    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        xp = backend_of(r2).xp
        r = safe_sqrt(r2)
        decay = xp.exp(-r)

        def slope() -> Array:
            positive = r > 2.0 * least_root(r)
            inverse = 1.0 / xp.where(positive, r, xp.ones((), **like(r)))
            return xp.where(positive, -0.5 * decay * inverse, xp.zeros((), **like(r)))

        return decay, slope

    def log_profile(self, r2: Array, /) -> Array:
        return -safe_sqrt(r2)


@tree.model
class Matern32(Matern):
    """The Matern kernel of smoothness 3/2, g = (1 + sqrt(3) r) exp(-sqrt(3) r), for functions with one derivative.

    Parameters
    ----------
    variance, lengthscale
        As for `RBF`.

    Examples
    --------
    Over short distances, the changes of a differentiable function are proportional to the distance. With `Matern12`,
    four times the distance only doubles them.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [0.001], [0.004]])
    >>> for kernel in (agp.Matern12(1.0, 1.0), agp.Matern32(1.0, 1.0)):
    ...     K, _ = kernel(X)
    ...     changes = np.sqrt(2.0 - 2.0 * K[0, 1:])
    ...     print(round(float(changes[1] / changes[0]), 1))
    2.0
    4.0
    """

    short_name: ClassVar[str] = "matern32"
    differences_for_slopes: ClassVar[bool] = True
    degrees: ClassVar[int] = 3

    def log_profile(self, r2: Array, /) -> Array:
        t = SQRT3 * safe_sqrt(r2)
        return backend_of(r2).xp.log1p(t) - t

    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        g, decay = backend_of(r2).fused(_matern32, r2, least_square(r2))
        return g, lambda: -1.5 * decay

    def higher_slopes(self, r2: Array, /) -> tuple[Array, Array, Callable[[], Array]]:
        decay, inverse = _decay_and_inverse(SQRT3, r2)
        second = 2.25 * inverse * decay
        return -1.5 * decay, second, lambda: -1.5 * second * inverse * (1.0 + inverse)


def _matern32(B: Backend, r2: Array, least: Array) -> tuple[Array, Array]:
    minus = -SQRT3 * B.xp.sqrt(B.xp.maximum(r2, least))  # as `safe_sqrt`; few passes over the entries
    decay = B.xp.exp(minus)
    return (1.0 - minus) * decay, decay


@tree.model
class Matern52(Matern):
    """The Matern kernel of smoothness 5/2, g = (1 + s + s^2 / 3) exp(-s), s = sqrt(5) r.

    Its functions have two derivatives.

    Parameters
    ----------
    variance, lengthscale
        As for `RBF`.

    Examples
    --------
    By default, each column has a lengthscale. Training makes that of an irrelevant column long.

    >>> import numpy as np
    >>> import agp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0.0, 6.0, (40, 2))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(40)
    >>> model = agp.GPR.from_data(X, y, kernel=agp.Matern52())
    >>> first, second = agp.fit(model, X, y).model.kernel.lengthscale
    >>> bool(second > 3.0 * first)
    True
    """

    short_name: ClassVar[str] = "matern52"
    degrees: ClassVar[int] = 5

    def log_profile(self, r2: Array, /) -> Array:
        t = SQRT5 * safe_sqrt(r2)
        return backend_of(r2).xp.log1p(t + t * t / 3.0) - t

    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        g, linear, decay = backend_of(r2).fused(_matern52, r2, least_square(r2))
        return g, lambda: (-5.0 / 6.0) * (linear * decay)

    def higher_slopes(self, r2: Array, /) -> tuple[Array, Array, Callable[[], Array]]:
        decay, inverse = _decay_and_inverse(SQRT5, r2)
        second = (25.0 / 12.0) * decay
        first = (-5.0 / 6.0) * (1.0 + SQRT5 * safe_sqrt(r2)) * decay
        return first, second, lambda: -2.5 * inverse * second


def _matern52(B: Backend, r2: Array, least: Array) -> tuple[Array, Array, Array]:
    minus = -SQRT5 * B.xp.sqrt(B.xp.maximum(r2, least))  # as `safe_sqrt`; few passes over the entries
    decay = B.xp.exp(minus)
    linear = 1.0 - minus
    del minus
    return (linear + (5.0 / 3.0) * r2) * decay, linear, decay


def _decay_and_inverse(root: float, r2: Array) -> tuple[Array, Array]:
    """Return exp(-s) and 1 / s for s = root r; the latter is 0 at r = 0, where multiples of it are singular."""
    B = backend_of(r2)
    r = safe_sqrt(r2)
    positive = r > 2.0 * least_root(r)
    one = B.xp.ones((), **like(r))
    inverse = B.xp.where(positive, one / (root * B.xp.where(positive, r, one)), 0.0 * one)
    return B.xp.exp(-root * r), inverse
