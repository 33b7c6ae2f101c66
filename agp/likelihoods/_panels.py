"""Predictive densities by composite quadrature, with panels around the prior, the density of the datum and their peak.

The nodes of a Gauss-Hermite rule are spread over the prior. They miss the datum if the prior is wide, and the posterior
if the datum is far away.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of, constant
from agp.likelihoods._base import Likelihood
from agp.likelihoods._quadrature import log_sum_exp, root_and_slope
from agp.quadrature import gauss_legendre

REACH = 9.0
"""Standard deviations of the prior beyond which exp(-t^2 / 2) vanishes in float64."""
GROWING = 6
"""Panels on each side of a centre; their widths grow in equal ratios from that of the centre to the reach."""
NODES = 12
"""Nodes of the Gauss-Legendre rule in each panel."""
STEPS = 40
"""Steps towards the peak, Newton steps and bisections in turn."""
TOGETHER = 5
"""Panels evaluated at once."""
FLOATS = 6 * TOGETHER * NODES + 6 * GROWING + 12
"""Numbers held for each datum and latent function."""
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class Datum(NamedTuple):
    """log p(y | f) as a function of f, concave or with one peak, and the place where it bends; arrays are [N, P]."""

    log_density: Callable[[Array], Array]
    """Of latent values [N, P, I], up to a constant of the datum."""
    slopes: Callable[[Array], tuple[Array, Array]]
    """Its first derivative and minus its second, at f [N, P]."""
    bend: Array
    """Its peak, or the place where it falls off."""
    width: Array
    """The width of that place."""


class ByPanels(Likelihood):
    """A likelihood whose predictive densities are computed by `log_predictive_density`."""

    @abstractmethod
    def _datum(self, y: Array) -> Datum:
        """log p(y | f) of targets [N, P]."""

    def _log_constant(self, y: Array) -> Array | None:
        """The terms of log p(y | f) that `_datum` leaves out [N, P]; None if there are none."""
        return None

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        value, constant = log_predictive_density(self._datum(y), mu, var), self._log_constant(y)
        return backend_of(mu).xp.sum(value if constant is None else value + constant, axis=-1)

    @property
    def floats_per_row(self) -> int:
        return 8 + FLOATS


def log_predictive_density(datum: Datum, mu: Array, var: Array) -> Array:
    """Log of the integral of p(y | f) N(f; mu, var) df [N, P].

    In t = (f - mu) / sqrt(var) the integrand is exp(l(t) - t^2 / 2). Gauss-Legendre panels whose widths grow in equal
    ratios surround its peak, 0, and the bend of l, up to `REACH` beyond all three. If l is concave, the integrand falls
    from its peak at least as fast as exp(-t^2 / 2), so that nothing is left out. If l has one peak, the posterior lies
    between that peak and 0, apart from the tails of the prior. Panels are constants of differentiation, since the
    integral does not depend on them.
    """
    B = backend_of(mu)
    xp = B.xp
    root, _ = root_and_slope(var)
    edges = B.stop_gradient(_edges(datum, B.stop_gradient(mu), B.stop_gradient(root)))
    x, weights = gauss_legendre(NODES)
    x, log_weights = constant(x, mu), constant(tuple(math.log(w) for w in weights), mu)
    areas = []
    for start in range(0, edges.shape[-1] - 1, TOGETHER):
        ends = edges[..., start : min(start + TOGETHER + 1, edges.shape[-1])]
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
    """The ends of all panels [N, P, K] in ascending order; panels may be empty."""
    xp = backend_of(mu).xp
    bend, width = (datum.bend - mu) / root, datum.width / root
    peak = _peak(datum, mu, root, bend)
    curvature = root * root * xp.maximum(datum.slopes(mu + root * peak)[1], xp.zeros_like(peak))
    prior = xp.zeros_like(mu)
    low = xp.minimum(xp.minimum(peak, bend), prior) - REACH
    high = xp.maximum(xp.maximum(peak, bend), prior) + REACH
    centres = (
        _about(peak, 1.0 / xp.sqrt(1.0 + curvature)),
        _about(prior, xp.ones_like(mu)),
        _about(bend, width),
    )
    edges = xp.concat([low[..., None], *centres, high[..., None]], axis=-1)
    return xp.sort(xp.minimum(xp.maximum(edges, low[..., None]), high[..., None]), axis=-1)


def _about(centre: Array, width: Array) -> Array:
    """Ends of panels on both sides of a centre [..., K], at distances from its width to `REACH`."""
    xp = backend_of(centre).xp
    growth = xp.log(REACH / width) / GROWING
    distance = [width * xp.exp(j * growth) for j in range(GROWING + 1)]
    return xp.stack([centre, *(centre - d for d in distance), *(centre + d for d in distance)], axis=-1)


def _peak(datum: Datum, mu: Array, root: Array, bend: Array) -> Array:
    """The t [N, P] at which l(t) - t^2 / 2 is largest, by a fixed number of steps.

    If l is concave there is one peak, found within a bracket. Otherwise there may be two, and the higher one counts.
    """
    xp = backend_of(mu).xp

    def slopes(t: Array) -> tuple[Array, Array]:
        slope, curvature = datum.slopes(mu + root * t)
        return root * slope - t, 1.0 + root * root * xp.maximum(curvature, xp.zeros_like(curvature))

    def height(t: Array) -> Array:
        return datum.log_density((mu + root * t)[..., None])[..., 0] - 0.5 * t * t

    low, high = _bracket(slopes, bend)
    first = _bisected(slopes, low, high, xp.minimum(xp.maximum(bend, low), high))
    second = xp.minimum(xp.maximum(bend, low), high)
    for _ in range(STEPS // 2):
        slope, curvature = slopes(second)
        second = xp.minimum(xp.maximum(second + slope / curvature, low), high)
    return xp.where(height(second) > height(first), second, first)


def _bracket(slopes: Callable[[Array], tuple[Array, Array]], bend: Array) -> tuple[Array, Array]:
    """Two ends around the peak: 0 and the bend, or, if a concave l has its peak beyond both, up to l' from there."""
    xp = backend_of(bend).xp
    low, high = xp.minimum(bend, xp.zeros_like(bend)), xp.maximum(bend, xp.zeros_like(bend))
    beyond, before = slopes(high)[0], slopes(low)[0]
    right, left = beyond > 0.0, before < 0.0
    return (
        xp.where(right, high, xp.where(left, low + before, low)),
        xp.where(right, high + beyond, xp.where(left, low, high)),
    )


def _bisected(slopes: Callable[[Array], tuple[Array, Array]], low: Array, high: Array, t: Array) -> Array:
    """Newton steps and bisections in turn, between two ends."""
    xp = backend_of(t).xp
    for step in range(STEPS):
        slope, curvature = slopes(t)
        low, high = xp.where(slope > 0.0, t, low), xp.where(slope > 0.0, high, t)
        middle, newton = 0.5 * (low + high), t + slope / curvature
        inside = (newton > low) & (newton < high)
        t = middle if step % 2 else xp.where(inside, newton, middle)
    return t
