"""Distribution functions and CRPS for mixtures p(y) = integral p(y | f) N(f; mu, var) df, computed on the host."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agp.distributions._quantiles import (
    MIN_PROBABILITY,
    UNLIMITED,
    Mixture,
    by_blocks,
    coarse,
    coordinate,
    coordinate_of,
    gauss_legendre,
    normal_tail,
    range_of,
)

Numbers = npt.NDArray[np.float64]

REACH = 4.5
"""The reach of the knots on the scale of a normal variable; 3e-6 of the probability lies beyond it on each side."""
FIRST, ROUNDS, TARGETS = 9, 3, 9
"""The number of initial knots, the number of rounds that locate quantiles, and the number of knots per round."""
REACH_MARGIN = 0.5
"""An outer knot within this distance from `REACH`, on the scale of a normal variable, counts as the end."""
MAX_RISE = 1.0
"""The maximum increase between two knots, on the scale of a normal variable, that interpolation resolves."""
MIN_SPLITS, MAX_SPLITS = 2, 16
"""The minimum and maximum number of rounds that split intervals between knots."""
SPLIT_TOLERANCE = 1e-3
"""The tolerance of the interpolation error before the last round of splits, relative to the integral of F (1 - F).
The last round reduces the error further."""
WHOLE_MARGIN = 1e-9
"""The relative error of knots at whole numbers."""
NODES = 4
"""The number of Gauss-Legendre nodes between two knots."""
MAX_SUMMED_COUNTS = 128
"""The maximum number of terms in a sum over whole numbers; an integral approximates the remaining terms."""


def mixture_cdf(mixture: Callable[[Numbers, Numbers], Mixture], mu: Numbers, var: Numbers, y: Numbers) -> Numbers:
    """Return P(Y <= y) [N, K] for marginals [S, N, P] and numbers y [N, K]; NaN where y is NaN."""
    return _by_rows(_cdf, mixture, mu, var, y)


def mixture_crps(mixture: Callable[[Numbers, Numbers], Mixture], mu: Numbers, var: Numbers, y: Numbers) -> Numbers:
    """Return the CRPS [N, K], the integral of (P(Y <= x) - [y <= x])^2 over x.

    The arguments are those of `mixture_cdf`. The error is about 1e-4 of the integral of F (1 - F), where F is the
    distribution function. F is evaluated up to four times as often for distributions with steps. A step inside a wide
    distribution may cause an error of 2e-3.
    """
    with coarse():
        return _by_rows(_crps, mixture, mu, var, y)


def _by_rows(
    score: Callable[[Mixture, Numbers], Numbers], mixture: Callable, mu: Numbers, var: Numbers, y: Numbers
) -> Numbers:
    known = np.where(np.isnan(y), 0.5, y)
    with np.errstate(all="ignore"):
        parts = [score(block, known[rows]) for rows, block in by_blocks(mixture, mu, var)]
    return np.where(np.isnan(y), np.nan, np.concatenate(parts))


def _cdf(mixture: Mixture, y: Numbers) -> Numbers:
    whole = mixture.place is not None
    known = np.clip(np.floor(y) if whole else y, -UNLIMITED, UNLIMITED)
    F = mixture.tail(coordinate(mixture)[0](coordinate_of(mixture, known)), False)
    low, high = (0.0, np.inf) if whole else range_of(mixture)
    return np.where(y < low, 0.0, np.where(y >= high, 1.0, np.clip(F, 0.0, 1.0)))


# -- CRPS -------------------------------------------------------------------------------------------------------------


def _crps(mixture: Mixture, y: Numbers) -> Numbers:
    knots = _Knots.of(mixture)
    if mixture.place is None:
        x = coordinate_of(mixture, y)
        score = knots.with_more(mixture, x).integral(mixture, knots.x[0], x, y)
        return np.maximum(score, 0.0)  # rounding at the ends of the support may give negative scores
    # sum over whole numbers, then integrate over the unit interval around each remaining number
    first = np.floor(np.maximum(mixture.value(coordinate(mixture)[0](knots.of_score(-REACH))), 0.0))
    last = mixture.value(coordinate(mixture)[0](knots.x[-1]))
    count = min(MAX_SUMMED_COUNTS, int(np.nanmax(last - first, initial=0.0)) + 2)
    k = first + np.arange(float(count))[:, None, None]
    some = np.sum((knots.share(coordinate_of(mixture, k)) - (k >= y)) ** 2, axis=0)
    end = first + count - 0.5
    middle = np.maximum(y - 0.5, end)
    start, x = coordinate_of(mixture, end), coordinate_of(mixture, middle)
    rest = knots.with_more(mixture, start).with_more(mixture, x).integral(mixture, start, x, middle)
    return np.maximum(first - y, 0.0) + some + rest


class _Knots(NamedTuple):
    """A distribution function F = Phi(z(x)), where z is given at ascending knots and a monotone cubic between them."""

    x: Numbers
    """Coordinates of v [T, N, K]."""
    z: Numbers
    """Values of z at the knots [T, N, K]."""

    @classmethod
    def of(cls, mixture: Mixture) -> "_Knots":
        """Find knots at z from -REACH to REACH by inverse interpolation between known knots."""
        _, first, last = coordinate(mixture)
        reach = np.sinh(np.linspace(-3.0, 3.0, FIRST))[:, None, None]
        knots = cls(reach[:0] + 0.0 * first, reach[:0] + 0.0 * first).with_more(mixture, np.clip(reach, first, last))
        for i in range(ROUNDS):
            shift = (i + 0.5) / ROUNDS - 0.5
            targets = np.linspace(-REACH, REACH, TARGETS) + shift * 2.0 * REACH / (TARGETS - 1)
            knots = knots.with_more(mixture, np.stack([knots.of_score(z) for z in targets]))
        knots = knots.with_more(mixture, np.stack([knots.of_score(z) for z in (-REACH, REACH)])).between_ends()
        for i in range(MAX_SPLITS):
            x, width = knots._to_split(mixture)
            before, knots = knots, knots.with_more(mixture, x)
            if i + 1 >= MIN_SPLITS:
                # the change, plus a bound on the error where z increases too much for interpolation
                unresolved = np.where(np.diff(knots.z, axis=0) > MAX_RISE, knots._limits(mixture), 0.0)
                error = np.sum(width * np.abs(knots.share(x) - before.share(x)), axis=0) + np.sum(unresolved, axis=0)
                share = normal_tail(knots.z, False) * normal_tail(knots.z, True)
                size = np.sum(knots._lengths(mixture) * np.maximum(share[:-1], share[1:]), axis=0)
                if not np.any(error > SPLIT_TOLERANCE * size):
                    break
        return knots

    def between_ends(self) -> "_Knots":
        """Move outer knots inwards, to the innermost knot on each side that counts as the end (see `REACH_MARGIN`).

        An interpolated end is not a bound, because it may lie on the wrong side of a step of F.
        """
        below, above = self.z <= REACH_MARGIN - REACH, self.z >= REACH - REACH_MARGIN
        low = np.max(np.where(below, self.x, self.x[0]), axis=0)
        high = np.min(np.where(above, self.x, self.x[-1]), axis=0)
        z = [np.max(np.where(self.x <= end, self.z, -np.inf), axis=0) for end in (low, high)]
        return _Knots(np.clip(self.x, low, high), np.clip(self.z, *z))

    def _limits(self, mixture: Mixture) -> Numbers:
        """Return each interval's length times the increase in F over the interval, which bounds the integration error.

        For counts, the bound is 0 if no whole number lies between the ends of the interval.
        """
        lengths = self._lengths(mixture)
        if mixture.place is not None:
            y = mixture.value(coordinate(mixture)[0](self.x))
            margin = WHOLE_MARGIN * (1.0 + y)
            some = np.ceil((y - margin)[1:]) - np.floor((y + margin)[:-1]) > 1.0
            lengths = np.where(some, lengths, 0.0)
        lower, upper = np.diff(normal_tail(self.z, False), axis=0), -np.diff(normal_tail(self.z, True), axis=0)
        return lengths * np.where(self.z[1:] > 0.0, upper, lower)

    def _lengths(self, mixture: Mixture) -> Numbers:
        """Return the lengths of the intervals between knots in the unit of y."""
        lengths = np.diff(mixture.value(coordinate(mixture)[0](self.x)), axis=0)
        return np.where(np.isfinite(lengths), lengths, 0.0)

    def _to_split(self, mixture: Mixture) -> tuple[Numbers, Numbers]:
        """Return `TARGETS` points between knots, and the length in the unit of y that each of them represents.

        One by one, points are assigned to the interval whose equal pieces have the largest error bound. This bound
        counts four times in unresolved intervals. An interval may have several points, so that steps of F are located
        in few rounds. For counts, points are rounded.
        """
        lengths = self._lengths(mixture)
        limit = self._limits(mixture) * np.where(np.diff(self.z, axis=0) > MAX_RISE, 4.0, 1.0)
        pieces = np.ones(lengths.shape)
        chosen = []
        for _ in range(TARGETS):
            largest = np.argmax(limit / pieces, axis=0)[None]
            chosen.append(largest)
            np.put_along_axis(pieces, largest, np.take_along_axis(pieces, largest, axis=0) + 1.0, axis=0)
        index = np.sort(np.concatenate(chosen), axis=0)
        order = np.stack([np.sum(index[:j] == index[j], axis=0) for j in range(TARGETS)]) + 1.0
        count = np.take_along_axis(pieces, index, axis=0)
        x0, x1 = (np.take_along_axis(x, index, axis=0) for x in (self.x[:-1], self.x[1:]))
        x = x0 + order / count * (x1 - x0)
        width = np.take_along_axis(lengths, index, axis=0) / count
        if mixture.place is None:
            return x, width
        whole = coordinate_of(mixture, np.rint(mixture.value(coordinate(mixture)[0](x))))
        return np.clip(whole, self.x[0], self.x[-1]), width

    def with_more(self, mixture: Mixture, x: Numbers) -> "_Knots":
        from scipy.special import ndtri

        x = x.reshape(-1, *mixture.centre.shape)
        place = coordinate(mixture)[0]
        F = np.stack([mixture.tail(place(one), False) for one in x])
        z = ndtri(np.clip(F, MIN_PROBABILITY, 1.0 - 2.0**-53))
        x, z = np.concatenate([self.x, x]), np.concatenate([self.z, z])
        order = np.argsort(x, axis=0, kind="stable")
        x, z = (np.take_along_axis(one, order, axis=0) for one in (x, z))
        return _Knots(x, np.fmax.accumulate(z, axis=0))  # NaN becomes the previous value

    def of_score(self, z: float) -> Numbers:
        """Return the x with z(x) = z by linear interpolation, or the first or last knot if no such x exists."""
        i = np.clip(np.sum(self.z < z, axis=0) - 1, 0, len(self.z) - 2)[None]
        (x0, z0), (x1, z1) = ([np.take_along_axis(one, j, axis=0)[0] for one in self] for j in (i, i + 1))
        share = np.clip((z - z0) / (z1 - z0), 0.0, 1.0)
        return x0 + np.where(np.isnan(share), 0.0, share) * (x1 - x0)

    def slopes(self) -> Numbers:
        """Return the slopes of z at the knots, from parabolas.

        Slopes are limited to three times the slopes of the adjacent line segments, so that z increases.

        Source: Fritsch & Carlson, "Monotone piecewise cubic interpolation", SIAM J. Numerical Analysis 1980.
        """
        h = np.diff(self.x, axis=0)
        slope = np.where(h > 0.0, np.diff(self.z, axis=0) / h, 0.0)
        h, slope = (np.concatenate([one[:1], one, one[-1:]]) for one in (h, slope))
        (h0, h1), (s0, s1) = (h[:-1], h[1:]), (slope[:-1], slope[1:])
        s0, s1 = np.where(h0 > 0.0, s0, s1), np.where(h1 > 0.0, s1, s0)  # knots that coincide
        found = np.where(h0 + h1 > 0.0, (h1 * s0 + h0 * s1) / (h0 + h1), 0.0)
        return np.minimum(found, 3.0 * np.minimum(s0, s1))

    def share(self, x: Numbers) -> Numbers:
        """Return F at x [J, N, K]."""
        i = np.zeros(x.shape, dtype=int)
        for one in self.x[1:-1]:
            i += one <= x
        x0, x1, z0, z1, s0, s1 = (
            np.take_along_axis(one, j, axis=0) for one in (self.x, self.z, self.slopes()) for j in (i, i + 1)
        )
        h = x1 - x0
        t = np.where(h > 0.0, np.clip((x - x0) / h, 0.0, 1.0), 0.0)
        return normal_tail(_hermite(t, z0, z1, h * s0, h * s1)[0], False)

    def integral(self, mixture: Mixture, start: Numbers, at_y: Numbers, y: Numbers) -> Numbers:
        """Integrate (F(x) - [y <= x])^2 over x from the knot `start` on; y is at the knot `at_y`.

        Integration by parts gives
        (y - a) F(a)^2 + 2 integral_a^b ([y < x] - F(x)) (x - y) dF(x) + (b - y) (1 - F(b))^2.
        Between two knots at c and d, x - y is split into c - y, which is integrated exactly, and x - c. Therefore the
        error is at most of order (d - c) (F(d) - F(c)), even where F has a step.
        """
        place, slopes = coordinate(mixture)[0], self.slopes()
        h, values = np.diff(self.x, axis=0), mixture.value(place(self.x[:-1]))
        inside, above = (self.x[:-1] >= start) & (h > 0.0), self.x[:-1] >= at_y
        lower, upper = normal_tail(self.z, False), normal_tail(self.z, True)
        F = np.where(above, -upper[:-1], lower[:-1]), np.where(above, -upper[1:], lower[1:])
        total = np.sum(np.where(inside, (F[0] ** 2 - F[1] ** 2) * (values - y), 0.0), axis=0)
        for node, weight in zip(*gauss_legendre(NODES), strict=True):
            t = 0.5 * (1.0 + node)
            z, slope = _hermite(t, self.z[:-1], self.z[1:], h * slopes[:-1], h * slopes[1:])
            density = np.exp(-0.5 * z * z) * slope / math.sqrt(2.0 * math.pi)
            apart = mixture.value(place(self.x[:-1] + t * h)) - values
            total += weight * np.sum(np.where(inside, density * (above - normal_tail(z, False)) * apart, 0.0), axis=0)
        a, b = mixture.value(place(start)), mixture.value(place(self.x[-1]))
        F = np.max(np.where(self.x <= start, lower, 0.0), axis=0)
        return total + np.maximum(y - a, 0.0) * F**2 + np.maximum(b - y, 0.0) * upper[-1] ** 2


def _hermite(t: Numbers | float, z0: Numbers, z1: Numbers, s0: Numbers, s1: Numbers) -> tuple[Numbers, Numbers]:
    """Return the value and the slope at t of the cubic with these values and slopes at t = 0 and t = 1."""
    rise = z1 - z0
    b, c = 3.0 * rise - 2.0 * s0 - s1, s0 + s1 - 2.0 * rise
    return z0 + t * (s0 + t * (b + t * c)), s0 + t * (2.0 * b + 3.0 * t * c)
