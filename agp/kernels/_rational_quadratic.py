"""The rational quadratic kernel, a stationary kernel whose profile has a parameter of its own."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, backend_of, to_numpy
from agp.kernels._parameters import check_number
from agp.kernels._stationary import Stationary
from agp.tree import POSITIVE


@tree.model
class RationalQuadratic(Stationary):
    """The rational quadratic kernel, g(r2) = (1 + r2 / (2 alpha))^-alpha, a mixture of RBF kernels.

    Parameters
    ----------
    variance, lengthscale
        As for `RBF`.
    alpha
        A dimensionless scalar (0-d). The smaller alpha is, the more the lengthscales of the mixture vary. For large
        alpha, the kernel approaches RBF. If alpha is None, it starts at 1.

    Examples
    --------
    With a small alpha, distant rows keep some covariance. With a large alpha, the kernel is `RBF`.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [1.0], [4.0]])
    >>> for alpha in (0.5, 1e6):
    ...     K, _ = agp.RationalQuadratic(1.0, 1.0, alpha)(X)
    ...     print(K[0, :].round(3))
    [1.    0.707 0.243]
    [1.    0.607 0.   ]
    >>> K, _ = agp.RBF(1.0, 1.0)(X)
    >>> print(K[0, :].round(3))
    [1.    0.607 0.   ]
    """

    short_name: ClassVar[str] = "rq"
    alpha: Array = tree.param(POSITIVE, default=None)

    floats_per_entry: ClassVar[int] = 5  # one more array for the distances, which are used in the cotangent of alpha

    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        # u = 1 + r2 / (2 alpha), g = u^-alpha, g' = -u^(-alpha - 1) / 2
        xp = backend_of(r2).xp
        g = xp.exp(-self.alpha * xp.log1p(0.5 * r2 / self.alpha))
        return g, lambda: -0.5 * g / (1.0 + 0.5 * r2 / self.alpha)

    def log_profile(self, r2: Array, /) -> Array:
        return -self.alpha * backend_of(r2).xp.log1p(0.5 * r2 / self.alpha)

    def frequencies(self, rng: Any, count: int, width: int, /) -> Any:
        # a mixture of RBF kernels exp(-t r2 / 2), where t is gamma distributed with shape and rate alpha
        alpha = float(to_numpy(self.alpha))
        normals = rng.standard_normal((count, width))
        return normals * (rng.standard_gamma(alpha, (count, 1)) / alpha) ** 0.5

    def shape_slopes(self, r2: Array, /) -> dict[str, Array]:
        # dg/dalpha = g (t / (1 + t) - log(1 + t)), t = r2 / (2 alpha), log g = -alpha log(1 + t)
        xp = backend_of(r2).xp
        t = 0.5 * r2 / self.alpha
        log1p = xp.log1p(t)
        return {"alpha": (t / (1.0 + t) - log1p) * xp.exp(-self.alpha * log1p)}

    def higher_slopes(self, r2: Array, /) -> tuple[Array, Array, Callable[[], Array]]:
        (g, _), u, alpha = self.profile(r2), 1.0 + 0.5 * r2 / self.alpha, self.alpha
        second = 0.25 * (1.0 + 1.0 / alpha) * g / (u * u)
        return -0.5 * g / u, second, lambda: -0.5 * (1.0 + 2.0 / alpha) * second / u

    def higher_shape_slopes(self, r2: Array, /) -> dict[str, tuple[Array, Array, Array]]:
        # log |g'| = -(alpha + 1) log u + ..., log g'' = log(1 + 1 / alpha) - (alpha + 2) log u + ..., u = 1 + t
        t = 0.5 * r2 / self.alpha
        by_alpha, share = self.shape_slopes(r2)["alpha"], t / (1.0 + t) / self.alpha
        first, second, _ = self.higher_slopes(r2)
        relative = by_alpha / self.profile(r2)[0] + share  # dlog |g'| / dalpha
        change = share - 1.0 / (self.alpha * (self.alpha + 1.0))
        return {"alpha": (by_alpha, first * relative, second * (relative + change))}

    def from_data(self, X: Array, variance: float, /) -> Self:
        return tree.with_defaults(super().from_data(X, variance), alpha=1.0)

    def check(self, width: int, /) -> None:
        super().check(width)
        check_number(self, "alpha")
