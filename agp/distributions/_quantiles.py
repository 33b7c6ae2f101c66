"""Quantiles of mixtures p(y) = integral p(y | f) N(f; mu, var) df, computed with NumPy.

Tails are averaged over f by composite quadrature, with panels that depend on the distribution of f and on the places
where the tail bends. A single Gauss-Hermite rule would produce steps if the noise is small compared with f's spread.
"""

import math
import numbers
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

PANEL_GROWTH = 3.0
"""The factor by which panels widen with their distance from a bend."""
MIN_WIDTH = 1e-10
"""The minimum width of a bend, in standard deviations of f, which limits the accuracy of quantiles."""
STEPS = 200
"""The maximum number of steps in a search; about eight are typical."""
TOLERANCE = 1e-13
"""The tolerance of a search in its coordinate, which is of order 1."""
ROUNDING = 1e-14
"""The relative rounding error of counts computed from v, with a margin."""
MIN_PROBABILITY = 1e-300
"""The lower limit of probabilities and variances."""
VALUES_PER_CHUNK = 2**21
"""The maximum number of latent values held in memory at once."""
MAX_NODES = 370
"""Maximum number of nodes of Gauss-Hermite quadrature. With more, weights underflow or become NaN in float64."""
MAX_LOG = 708.0
"""The largest logarithm whose exponential is computed."""
UNLIMITED = 1e299
"""Ends of the range of y beyond this number are those of floating-point numbers, not of y."""
NO_EXCESS = -1.5e-154
"""Counts as zero, but has a sign. Its square is still a normal number."""


@cache
def gauss_hermite(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes t_i and weights w_i with sum_i w_i g(mu + sqrt(2 var) t_i) ~ E[g(f)], f ~ N(mu, var); sum w_i = 1.

    Raises
    ------
    ValueError
        For more than `MAX_NODES` nodes.
    """
    if not isinstance(points, numbers.Integral) or points < 1:
        raise ValueError(f"points is {points!r}, but must be a whole number of at least 1, such as 20.")
    if points > MAX_NODES:
        raise ValueError(
            f"points is {points}, but Gauss-Hermite weights are finite only up to {MAX_NODES} points; use about 20."
        )
    nodes, weights = np.polynomial.hermite.hermgauss(points)
    return tuple(map(float, nodes)), tuple(map(float, weights / np.sqrt(np.pi)))


@cache
def gauss_legendre(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes x_i in (-1, 1) and weights w_i with sum_i w_i g(x_i) ~ the integral of g from -1 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return tuple(map(float, nodes)), tuple(map(float, weights))


class _Rule(NamedTuple):
    """A quadrature rule over f."""

    reach: float
    """The number of standard deviations of f beyond which its probability is neglected."""
    panels: int
    """The number of panels of equal width."""
    nodes: int
    """The number of Gauss-Legendre nodes in each panel."""


FINE = _Rule(9.0, 9, 10)
"""A rule accurate to 1e-16, for levels down to 1e-11."""
COARSE = _Rule(6.0, 4, 5)
"""A rule accurate to 1e-6."""
_rule = ContextVar("rule", default=FINE)


@contextmanager
def coarse() -> Iterator[None]:
    """Context in which tails are averaged over f with fewer nodes, to an accuracy of about 1e-6."""
    before = _rule.set(COARSE)
    try:
        yield
    finally:
        _rule.reset(before)


class ObservationModel(NamedTuple):
    """The tails of p(y | f) for one latent function, where y = value(v) is a typical observation for f = v.

    All arrays are NumPy arrays of float64. The last axis of latent values is for quadrature nodes.
    """

    tail: Callable[[Numbers, Numbers, bool], Numbers]
    """P(y <= value(v) | f), or P(y > value(v) | f) if the last argument is true; continuous in v. Where `value` is
    constant, the tails of a continuous variable v of which y = value(v) is a function."""
    value: Callable[[Numbers], Numbers]
    """y as a function of v [..., K], for K columns, which never decreases; y has positive probability at its constants.
    """
    bends: Callable[[Numbers], tuple[tuple[Numbers, Numbers | float], ...]]
    """The places where the tails, as functions of f, bend, and the widths of these bends, for v [S, N, K]."""
    width: Numbers | float
    """The approximate spread of v given f."""
    ends: tuple[float, float] = (-1e300, 1e300)
    """The range of v that is searched for y. All y lie between the values at its ends."""
    place: Callable[[Numbers], Numbers] | None = None
    """The inverse of `value` if y is a whole number, otherwise None."""


class Mixture(NamedTuple):
    """The tails of p(y) for N rows and K columns."""

    tail: Callable[[Numbers, bool], Numbers]
    """P(y <= value(v)) [N, K], or P(y > value(v)), for v [N, K]."""
    value: Callable[[Numbers], Numbers]
    centre: Numbers
    """The approximate mean of v [N, K]."""
    spread: Numbers
    """The approximate spread of v [N, K]."""
    ends: tuple[float, float] = (-1e300, 1e300)
    place: Callable[[Numbers], Numbers] | None = None


def marginal_mixture(model: ObservationModel, mu: Numbers, var: Numbers, shares: Numbers | None = None) -> Mixture:
    """Return the mixture over f ~ N(mu, var) and over the S samples with weights [S], for marginals [S, N, K]."""

    def tail(v: Numbers, upper: bool) -> Numbers:
        parts = gaussian_expectation(lambda f: model.tail(v[..., None], f, upper), mu, var, model.bends(v + 0.0 * mu))
        return average(parts)

    def average(x: Numbers) -> Numbers:
        return np.mean(x, axis=0) if shares is None else np.tensordot(shares, x, axes=1)

    centre = average(mu)
    spread = np.sqrt(average(var + (mu - centre) ** 2) + model.width**2)
    return Mixture(tail, model.value, centre, spread, model.ends, model.place)


def gaussian_expectation(
    function: Callable[[Numbers], Numbers],
    mu: Numbers,
    var: Numbers,
    bends: tuple[tuple[Numbers, Numbers | float], ...],
) -> Numbers:
    """Compute E[function(f)] for f ~ N(mu, var) [...], if the function of arrays [..., I] bends at known places."""
    reach, panels, nodes = _rule.get()
    root = np.sqrt(np.maximum(var, MIN_PROBABILITY))
    edges = np.concatenate(
        [
            np.broadcast_to(np.linspace(-reach, reach, panels + 1), (*mu.shape, panels + 1)),
            *(_panel_ends((place - mu) / root, width / root, reach) for place, width in bends),
        ],
        axis=-1,
    )
    edges = np.sort(edges, axis=-1)
    middle, half = 0.5 * (edges[..., 1:] + edges[..., :-1]), 0.5 * np.diff(edges, axis=-1)
    x, weights = map(np.asarray, gauss_legendre(nodes))
    t = (middle[..., None] + half[..., None] * x).reshape(*mu.shape, -1)
    share = (half[..., None] * weights).reshape(t.shape) * np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
    return np.sum(share * function(mu[..., None] + root[..., None] * t), axis=-1)


def _panel_ends(centre: Numbers, width: Numbers, reach: float) -> Numbers:
    """Return the ends of panels on both sides of a bend, from -reach to reach. Panels farther from it are wider."""
    width = np.clip(width + 0.0 * centre, MIN_WIDTH, reach)
    count = math.ceil(math.log(PANEL_GROWTH / float(np.min(width, initial=1.0))) / math.log(PANEL_GROWTH))
    distance = width[..., None] * PANEL_GROWTH ** np.arange(count + 1.0)
    centre = centre[..., None]
    return np.clip(np.concatenate([centre - distance, centre, centre + distance], axis=-1), -reach, reach)


# -- the search -------------------------------------------------------------------------------------------------------


def mixture_quantiles(
    mixture: Callable[[Numbers, Numbers], Mixture], mu: Numbers, var: Numbers, levels: tuple[float, ...]
) -> Numbers:
    """Return the quantiles [Q, N, K] for marginals [S, N, P].

    A quantile is the smallest y with P(Y <= y) >= level, or NaN where the marginals are NaN. `mixture` maps the
    marginals for a block of rows to their mixture.
    """
    with np.errstate(all="ignore"):
        blocks = by_blocks(mixture, mu, var)
        parts = [np.stack([_quantile(block, level) for level in levels]) for _, block in blocks]
    return np.concatenate(parts, axis=1)


def by_blocks(
    mixture: Callable[[Numbers, Numbers], Mixture], mu: Numbers, var: Numbers
) -> Iterator[tuple[slice, Mixture]]:
    """Yield blocks of rows, with the mixture of each block, for marginals [S, N, P]."""
    count = max(1, VALUES_PER_CHUNK // (4 * FINE.panels * FINE.nodes * mu.shape[0] * mu.shape[2]))
    for start in range(0, mu.shape[1], count):
        rows = slice(start, start + count)
        yield rows, mixture(mu[:, rows], var[:, rows])


def _quantile(mixture: Mixture, level: float) -> Numbers:
    """Return the quantiles [N, K] at a level, by a search in the smaller tail, on the scale of a normal variable."""
    from scipy.special import ndtri

    upper = level > 0.5
    sign, goal = (-1.0, 1.0 - level) if upper else (1.0, level)
    score = float(ndtri(goal))
    place, first, last = coordinate(mixture)

    def excess(v: Numbers) -> Numbers:
        return sign * (ndtri(np.clip(mixture.tail(v, upper), MIN_PROBABILITY, 1.0 - 2.0**-53)) - score)

    start = np.clip(np.full_like(mixture.centre, math.asinh(sign * score)), first, last)
    bracket = _bracket(lambda x: excess(place(x)), start, first, last)
    beyond = bracket[0] == bracket[1]  # an end of the range, if the excess is not 0
    low, high, best = _root(lambda x: excess(place(x)), *bracket)
    if mixture.place is not None:
        quantiles = _whole(mixture, excess, place(low), place(high))
    else:
        quantiles = np.where(beyond & (bracket[2] > 0.0), range_of(mixture)[0], mixture.value(place(best)))
    return np.where(beyond & (bracket[2] < 0.0), range_of(mixture)[1], quantiles)


def range_of(mixture: Mixture) -> tuple[Numbers, Numbers]:
    """Return the smallest and the largest y [N, K], which are infinite unless `Mixture.ends` limits them."""
    low, high = (mixture.value(np.full_like(mixture.centre, end)) for end in mixture.ends)
    return np.where(low < -UNLIMITED, -np.inf, low), np.where(high > UNLIMITED, np.inf, high)


def coordinate_of(mixture: Mixture, y: Numbers) -> Numbers:
    """Return the largest x of `coordinate` with value(v(x)) <= y, for y [..., N, K], or the first x if there is none.

    The tail at this x therefore includes the probability of y itself, where `Mixture.value` is constant.
    """
    place, first, last = coordinate(mixture)
    if mixture.place is not None:
        return np.arcsinh((np.clip(mixture.place(y), *mixture.ends) - mixture.centre) / mixture.spread)

    def excess(x: Numbers) -> Numbers:
        above = mixture.value(place(x)) - y
        return np.where(above == 0.0, NO_EXCESS, above)

    return _root(excess, *_bracket(excess, np.clip(0.0 * y, first, last), first, last))[2]


def coordinate(mixture: Mixture) -> tuple[Callable[[Numbers], Numbers], Numbers, Numbers]:
    """Return the function v(x) = centre + spread sinh(x), and the ends of the range of x.

    Steps of equal size in x cross heavy tails quickly.
    """

    def place(x: Numbers) -> Numbers:
        return np.clip(mixture.centre + mixture.spread * np.sinh(x), *mixture.ends)

    first, last = (np.arcsinh((end - mixture.centre) / mixture.spread) for end in mixture.ends)
    return place, first, last


def _bracket(
    excess: Callable[[Numbers], Numbers], start: Numbers, first: Numbers, last: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return two points that bracket the root, and the excess at both. Both are an end if the root lies beyond it."""
    a, a_excess = start, excess(start)
    ahead = np.where(a_excess < 0.0, 1.0, -1.0)
    b, b_excess, step = a, a_excess, 0.25
    for _ in range(STEPS):
        open_ = (a_excess * b_excess > 0.0) & (np.where(ahead > 0.0, b < last, b > first))
        if not open_.any():
            break
        a, a_excess = np.where(open_, b, a), np.where(open_, b_excess, a_excess)
        b = np.where(open_, np.clip(b + ahead * step, first, last), b)
        b_excess = np.where(open_, excess(b), b_excess)
        step *= 2.0
    beyond = a_excess * b_excess > 0.0
    return np.where(beyond, b, a), b, np.where(beyond, b_excess, a_excess), b_excess


def _root(
    excess: Callable[[Numbers], Numbers], a: Numbers, b: Numbers, a_excess: Numbers, b_excess: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Narrow a bracket to the tolerance. Return both ends, and the end with the smaller absolute excess.

    Source: Chandrupatla, "A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function",
    Advances in Engineering Software 1997.
    """
    c, c_excess, t = a, a_excess, np.full_like(a, 0.5)
    done = a == b
    for _ in range(STEPS):
        best = np.where(np.abs(a_excess) < np.abs(b_excess), a, b)
        least = (TOLERANCE + 4.0 * np.finfo(np.float64).eps * np.abs(best)) / np.abs(b - a)
        done |= ~(least < 0.5) | (np.minimum(np.abs(a_excess), np.abs(b_excess)) == 0.0)
        if done.all():
            break
        x = np.where(done, a, a + np.clip(t, least, 1.0 - least) * (b - a))
        x_excess = np.where(done, a_excess, excess(x))
        same = (np.sign(x_excess) == np.sign(a_excess)) | done
        c, c_excess = np.where(same, a, b), np.where(same, a_excess, b_excess)
        b, b_excess = np.where(same, b, a), np.where(same, b_excess, a_excess)
        a, a_excess = x, x_excess
        t = _inverse_quadratic(a, b, c, a_excess, b_excess, c_excess)
    best = np.where(np.abs(a_excess) < np.abs(b_excess), a, b)
    exact = np.minimum(np.abs(a_excess), np.abs(b_excess)) == 0.0
    return np.where(exact, best, np.minimum(a, b)), np.where(exact, best, np.maximum(a, b)), best


def _inverse_quadratic(a: Numbers, b: Numbers, c: Numbers, fa: Numbers, fb: Numbers, fc: Numbers) -> Numbers:
    """Return the next step as a fraction of b - a, by inverse interpolation if this is safe, otherwise 1/2."""
    xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
    safe = (phi * phi < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
    t = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
    return np.where(safe, t, 0.5)


def _whole(mixture: Mixture, excess: Callable[[Numbers], Numbers], low: Numbers, high: Numbers) -> Numbers:
    """Return the smallest whole number that reaches the level, by bisection between two values."""
    assert mixture.place is not None
    below, above = mixture.value(low), mixture.value(high)
    below, above = np.floor(below - ROUNDING * (1.0 + below)), np.ceil(above + ROUNDING * (1.0 + above))
    for _ in range(STEPS):
        middle = np.floor(0.5 * below + 0.5 * above)
        open_ = (below < middle) & (middle < above) & (middle >= 0.0)
        if not open_.any():
            break
        reached = excess(mixture.place(np.where(open_, middle, above))) >= 0.0
        above = np.where(open_ & reached, middle, above)
        below = np.where(open_ & ~reached, middle, below)
    return above + 0.0  # not -0.0


# -- tails ------------------------------------------------------------------------------------------------------------


def normal_quantile(level: float) -> float:
    """Return the x with P(e <= x) = level, for a standard normal variable e."""
    from scipy.special import ndtri

    return -float(ndtri(1.0 - level)) if level > 0.5 else float(ndtri(level))


def normal_tail(x: Numbers, upper: bool) -> Numbers:
    """Return P(e <= x), or P(e > x) if `upper`, for a standard normal variable e."""
    from scipy.special import ndtr

    return ndtr(-x if upper else x)


def t_tail(degrees_of_freedom: float, x: Numbers, upper: bool) -> Numbers:
    """Return P(e <= x), or P(e > x) if `upper`, for a Student-t variable e."""
    from scipy.special import stdtr

    return stdtr(degrees_of_freedom, -x if upper else x)


def gamma_tail(shape: Numbers, log_x: Numbers, upper: bool) -> Numbers:
    """Return P(e <= x), or P(e > x) if `upper`, for a gamma variable e with scale 1, given log x."""
    from scipy.special import gammainc, gammaincc

    return (gammaincc if upper else gammainc)(shape, np.exp(np.minimum(log_x, MAX_LOG)))


def beta_tail(a: Numbers | float, b: Numbers, x: Numbers, rest: Numbers, upper: bool) -> Numbers:
    """Return P(e <= x), or P(e > x) if `upper`, for a beta variable e, given x and 1 - x.

    The smaller of x and 1 - x must be exact. For x close to 1, the result is 1 - P(1 - e < 1 - x), which is accurate to
    1e-16 and ten times as fast as SciPy's complement.
    """
    a, b, x, rest = np.broadcast_arrays(*((b, a, rest, x) if upper else (a, b, x, rest)))
    far, value = x < 0.99, np.empty(x.shape)
    value[far] = _beta_share(a[far], b[far], x[far])
    value[~far] = 1.0 - _beta_share(b[~far], a[~far], rest[~far])
    return value


def _beta_share(a: Numbers, b: Numbers, x: Numbers) -> Numbers:
    """Return P(e <= x) for a beta variable e. Where SciPy overflows (b > 1e200), b e is treated as a gamma variable."""
    from scipy.special import betainc, gammainc

    value = betainc(a, b, x)
    lost = np.isnan(value)
    value[lost] = gammainc(a[lost], b[lost] * x[lost])
    return value
