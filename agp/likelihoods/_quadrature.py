"""Expectations under one-dimensional Gaussians by Gauss-Hermite quadrature."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from agp.backend import Array, Backend, Pullback, backend_of, constant, has_pullback
from agp.checks import check_whole
from agp.distributions import gauss_hermite
from agp.likelihoods._base import Drawn, Likelihood
from agp.repairs import value_of

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)

LogDensity = Callable[[Array, Array], Array | tuple[Array, Pullback | None]]


def check_points(points: int) -> None:
    """Raise ValueError unless agp has a quadrature rule with this number of nodes."""
    gauss_hermite(check_whole("points", points))


class ByQuadrature(Likelihood):
    """Base class for likelihoods that compute expected log densities by Gauss-Hermite quadrature."""

    points: int
    """The number of nodes."""

    @abstractmethod
    def _log_density(self, f: Array, y: Array) -> tuple[Array, Pullback]:
        """Compute log p(y | f) and its pullback, with the shapes that `expectation` requires."""

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        return expectation(self._log_density, mu, var, y, self.points)

    @property
    def floats_per_row(self) -> int:
        return 8 * self.points

    def check_parameters(self) -> None:
        check_points(self.points)


def root_and_slope(var: Array, floor: float | None = None) -> tuple[Array, Array]:
    """Compute sqrt(var) and its derivative with respect to var, which is infinite at 0.

    Variances below `floor` are replaced by `floor`. By default it is the square root of the smallest normal float.
    """
    B = backend_of(var)
    return B.fused(_root_and_slope, var, _tiny(B, var) if floor is None else floor)


def _tiny(B: Backend, var: Array) -> float:
    return math.sqrt(float(B.xp.finfo(var.dtype).smallest_normal))


def _root_and_slope(B: Backend, var: Array, floor: float) -> tuple[Array, Array]:
    xp, allowed = B.xp, var > floor
    root = xp.sqrt(xp.where(allowed, var, xp.full_like(var, floor)))
    return root, xp.where(allowed, 0.5 / root, xp.zeros_like(root))


def _at_nodes(B: Backend, mu: Array, var: Array, t: Array, floor: float) -> tuple[Array, Array]:
    root, slope = _root_and_slope(B, var, floor)
    return mu + root * t, slope * t


def nodes_and_weights(mu: Array, var: Array, points: int, floor: float | None = None) -> tuple[Array, Array, Array]:
    """Return Gauss-Hermite nodes f = mu + sqrt(2 var) t [..., I], df/dvar [..., I] and weights [I] for mu, var [...].

    Variances below `floor` are replaced by `floor`. The default is the square root of the smallest normal float.
    """
    nodes, weights = gauss_hermite(points)
    t = constant(tuple(math.sqrt(2.0) * node for node in nodes), mu)
    B = backend_of(mu)
    floor = _tiny(B, var) if floor is None else floor
    return *B.fused(_at_nodes, mu[..., None], var[..., None], t, floor), constant(weights, mu)


def expectation(log_density: LogDensity, mu: Array, var: Array, y: Array, points: int) -> tuple[Array, Any]:
    """Compute sum_p E[g(f_np)] [N] by Gauss-Hermite quadrature, and its pullback.

    Here f_np ~ N(mu_np, var_np) and g(f) = log_density(f, y). `log_density` takes latent values [N, P, I] for I nodes
    and targets [N, P, 1]. `log_density` returns values [N, P, I] with the pullback
    ``bar [N, P, I] -> (likelihood_bar, f_bar [N, P, I])``. For mu, var and y [N, P], the pullback of the expectation is
    ``bar [N] -> (likelihood_bar, mu_bar, var_bar)``, as for `Likelihood.expected_log_density`. This pullback is the
    derivative of the weighted sum over the nodes, so it agrees with automatic differentiation.

    `log_density` may return the values alone, or None as the pullback; the pullback of the expectation is then None.
    An `expected_log_density` that returns such a pair, or its value alone, is differentiated by the array library, as
    far as the library has automatic differentiation.
    """
    xp = backend_of(mu).xp
    f, slope, weights = nodes_and_weights(mu, var, points)
    result = log_density(f, y[..., None])
    g = value_of(result)
    if not has_pullback(result):
        return xp.sum(g * weights, axis=(-2, -1)), None
    pull: Any = result[1]

    def pullback(bar):
        likelihood_bar, f_bar = pull(xp.broadcast_to(bar[:, None, None] * weights, g.shape))
        return likelihood_bar, xp.sum(f_bar, axis=-1), xp.sum(f_bar * slope, axis=-1)

    return xp.sum(g * weights, axis=(-2, -1)), pullback


def log_expectation(log_density: LogDensity, mu: Array, var: Array, y: Array, points: int) -> Array:
    """Compute log E[exp g(f_np)] [N, P] for g(f) = log_density(f, y), with the arguments of `expectation`."""
    f, _, _ = nodes_and_weights(mu, var, points)
    # the logarithms of weights that underflow in float32 are finite
    log_weights = tuple(math.log(max(weight, 1e-300)) for weight in gauss_hermite(points)[1])
    return log_sum_exp(value_of(log_density(f, y[..., None])) + constant(log_weights, mu), axis=-1)


def log_sum_exp(x: Array, *, axis: int) -> Array:
    """Compute the log of the sum of exp(x) along an axis, without overflow."""
    B = backend_of(x)
    top = B.stop_gradient(B.xp.max(x, axis=axis, keepdims=True))
    return B.xp.log(B.xp.sum(B.xp.exp(x - top), axis=axis)) + B.xp.squeeze(top, axis=axis)
