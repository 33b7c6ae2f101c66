"""Predictive densities by composite quadrature, with panels around the prior, around p(y | f) and around their product.

A Gauss-Hermite rule would spread its nodes over the prior N(f; mu, var). If the prior is wide, such nodes would miss a
narrow p(y | f). If y is improbable under the prior, such nodes would miss the peak of the product.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of, constant
from agp.distributions import gauss_legendre
from agp.likelihoods._base import Likelihood
from agp.likelihoods._quadrature import LOG_SQRT_2PI, log_sum_exp, root_and_slope

REACH = 9.0
"""The number of standard deviations beyond which the prior density is negligible in float64."""
GROWING = 6
"""The number of panels on each side of a centre. Their widths grow geometrically up to `REACH`."""
NODES = 12
"""The number of Gauss-Legendre nodes in each panel."""
STEPS = 40
"""The number of steps towards the peak; Newton steps and bisections alternate."""
PANELS_AT_ONCE, FEW_ROWS = 5, 64
"""The number of panels that are evaluated together, which limits the memory use for more than `FEW_ROWS` rows."""
FLOATS = 6 * PANELS_AT_ONCE * NODES + 6 * GROWING + 12
"""The number of floats in memory per row and latent function."""


class Datum(NamedTuple):
    """The function log p(y | f) of f for given targets, as arrays [N, P]; it is concave or has one peak."""

    log_density: Callable[[Array], Array]
    """log p(y | f) at I values of each f [N, P, I], up to a constant for each target."""
    slopes: Callable[[Array], tuple[Array, Array]]
    """The first derivative and the negative second derivative at f [N, P]."""
    bend: Array
    """The value of f at the peak, or where a monotonic log p(y | f) bends."""
    width: Array
    """The width of the peak or bend."""
    steps: int = STEPS
    """The number of steps towards the peak of the integrand, which is only needed to within its width."""
    concave: bool = False
    """Whether log p(y | f) is known to be concave, so that the integrand has one peak."""


class ByPanels(Likelihood):
    """Base class for likelihoods whose predictive densities are computed by `log_predictive_density`."""

    @abstractmethod
    def _datum(self, y: Array) -> Datum:
        """Return log p(y | f) of targets y [N, P] as a function of f."""

    def _log_constant(self, y: Array) -> Array | None:
        """Return the terms [N, P] of log p(y | f) that `_datum` omits; None if `_datum` omits no terms."""
        return None

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        value, constant = log_predictive_density(self._datum(y), mu, var), self._log_constant(y)
        return backend_of(mu).xp.sum(value if constant is None else value + constant, axis=-1)

    @property
    def floats_per_row(self) -> int:
        return super().floats_per_row + FLOATS


def log_predictive_density(datum: Datum, mu: Array, var: Array) -> Array:
    """Compute the log of the integral of p(y | f) N(f; mu, var) df [N, P].

    As a function of t = (f - mu) / sqrt(var), the integrand is exp(l(t) - t^2 / 2). Gauss-Legendre panels with
    geometrically growing widths surround three centres: the peak of the integrand, 0, and the bend of l. The panels
    extend to `REACH` beyond the outer centres. If l is concave, the integrand decreases from its peak at least as fast
    as exp(-t^2 / 2), so its integral beyond the panels is negligible. If l is not concave but has one peak, the
    posterior lies between this peak and 0, up to the tails of the prior. Derivatives treat the panels as constants,
    because the integral does not depend on them.
    """
    B = backend_of(mu)
    xp = B.xp
    root, _ = root_and_slope(var)
    edges = B.stop_gradient(_edges(datum, B.stop_gradient(mu), B.stop_gradient(root)))
    x, weights = gauss_legendre(NODES)
    x, log_weights = constant(x, mu), constant(tuple(math.log(w) for w in weights), mu)
    areas = []
    together = PANELS_AT_ONCE if mu.shape[0] > FEW_ROWS else edges.shape[-1]
    for start in range(0, edges.shape[-1] - 1, together):
        ends = edges[..., start : min(start + together + 1, edges.shape[-1])]
        middle, half = 0.5 * (ends[..., 1:] + ends[..., :-1]), 0.5 * (ends[..., 1:] - ends[..., :-1])
        empty = ~(half > 0.0)
        t = middle[..., None] + half[..., None] * x
        flat = xp.reshape(t, (*mu.shape, -1))
        value = datum.log_density(mu[..., None] + root[..., None] * flat) - 0.5 * flat * flat
        area = log_sum_exp(xp.reshape(value, t.shape) + log_weights, axis=-1)
        area = area + xp.log(xp.where(empty, xp.ones_like(half), half))
        areas.append(xp.where(empty, xp.full_like(area, -0.5 * float(xp.finfo(area.dtype).max)), area))
    return log_sum_exp(xp.concat(areas, axis=-1), axis=-1) - LOG_SQRT_2PI


def _edges(datum: Datum, mu: Array, root: Array) -> Array:
    """Return the ends of all panels [N, P, K] in ascending order; panels may be empty."""
    xp = backend_of(mu).xp
    bend, width = (datum.bend - mu) / root, datum.width / root
    peak = _peak(datum, mu, root, bend)
    curvature = root * root * xp.maximum(datum.slopes(mu + root * peak)[1], xp.zeros_like(peak))
    prior = xp.zeros_like(mu)
    low = xp.minimum(xp.minimum(peak, bend), prior) - REACH
    high = xp.maximum(xp.maximum(peak, bend), prior) + REACH
    centres = (
        _panel_ends(peak, 1.0 / xp.sqrt(1.0 + curvature)),
        _panel_ends(prior, xp.ones_like(mu)),
        _panel_ends(bend, width),
    )
    edges = xp.concat([low[..., None], *centres, high[..., None]], axis=-1)
    return xp.sort(xp.minimum(xp.maximum(edges, low[..., None]), high[..., None]), axis=-1)


def _panel_ends(centre: Array, width: Array) -> Array:
    """Return the ends of panels on both sides of a centre [..., K], at distances from `width` to `REACH`."""
    xp = backend_of(centre).xp
    growth = xp.log(REACH / width) / GROWING
    distance = [width * xp.exp(j * growth) for j in range(GROWING + 1)]
    return xp.stack([centre, *(centre - d for d in distance), *(centre + d for d in distance)], axis=-1)


def _peak(datum: Datum, mu: Array, root: Array, bend: Array) -> Array:
    """Compute the t [N, P] that maximises l(t) - t^2 / 2, in a fixed number of steps.

    If l is concave, there is one peak. Otherwise there may be two: one near the prior, where the bracketed search
    begins, and one near the bend of l, where Newton steps begin. The higher of the two is returned.
    """
    xp = backend_of(mu).xp

    def slopes(t: Array) -> tuple[Array, Array]:
        slope, curvature = datum.slopes(mu + root * t)
        return root * slope - t, 1.0 + root * root * xp.maximum(curvature, xp.zeros_like(curvature))

    def height(t: Array) -> Array:
        return datum.log_density((mu + root * t)[..., None])[..., 0] - 0.5 * t * t

    low, high = _bracket(slopes, bend)
    start = xp.minimum(xp.maximum(xp.zeros_like(bend), low), high)
    first = _find_root(slopes, low, high, start, datum.steps)
    if datum.concave:
        return first
    second = xp.minimum(xp.maximum(bend, low), high)
    for _ in range(datum.steps // 2):
        slope, curvature = slopes(second)
        second = xp.minimum(xp.maximum(second + slope / curvature, low), high)
    return xp.where(height(second) > height(first), second, first)


def _bracket(slopes: Callable[[Array], tuple[Array, Array]], bend: Array) -> tuple[Array, Array]:
    """Return the two ends of a bracket that contains the peak: 0 and the bend of l.

    If l is concave and the peak lies beyond both, the ends are the nearer point, and this point plus the slope there.
    The peak lies in between, because the slope decreases at a rate of at least 1.
    """
    xp = backend_of(bend).xp
    low, high = xp.minimum(bend, xp.zeros_like(bend)), xp.maximum(bend, xp.zeros_like(bend))
    beyond, before = slopes(high)[0], slopes(low)[0]
    right, left = beyond > 0.0, before < 0.0
    return (
        xp.where(right, high, xp.where(left, low + before, low)),
        xp.where(right, high + beyond, xp.where(left, low, high)),
    )


def _find_root(slopes: Callable[[Array], tuple[Array, Array]], low: Array, high: Array, t: Array, steps: int) -> Array:
    """Find the root of the first derivative between two ends, by alternating Newton steps and bisections."""
    xp = backend_of(t).xp
    for step in range(steps):
        slope, curvature = slopes(t)
        low, high = xp.where(slope > 0.0, t, low), xp.where(slope > 0.0, high, t)
        middle, newton = 0.5 * (low + high), t + slope / curvature
        inside = (newton > low) & (newton < high)
        t = middle if step % 2 else xp.where(inside, newton, middle)
    return t
