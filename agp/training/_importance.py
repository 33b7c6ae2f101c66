"""Adaptive importance sampling with fixed random numbers, for integrals over a few dozen parameters.

All results are continuous functions of the log density, because nothing is accepted, rejected or drawn again: the
uniform numbers are a fixed sequence, the proposals are Student-t distributions, first at the modes and then with the
mean and the covariance of all points so far, and the weights of all points refer to the mixture of all proposals.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

DEGREES = 5.0
"""The degrees of freedom of proposals."""
WIDER = 1.15
"""The factor by which proposals at modes are wider than the curvature says."""
LEAST_CURVATURE = 0.15
"""The minimum curvature in any direction at a mode, in nats per squared unit of a logarithm."""
LEAST_VARIANCE = 1e-6
"""The variance that is added to each coordinate of a proposal, and the least variance by which moments are scaled."""
EDGE = 1e-10
"""The smallest distance of uniform numbers from 0 and 1."""
TILT_STEPS, TILT_PENALTY, TILT_LENGTH = 20, 1e-3, 0.5
"""The number of Newton steps that match moments, the penalty for large tilts, and the largest change of a
coefficient in a step."""


class Proposal(NamedTuple):
    """A Student-t distribution in m dimensions, with the number of points that are drawn from it."""

    centre: Numbers
    root: Numbers
    """R [m, m]; the points are centre + R t."""
    points: int

    def log_density(self, points: Numbers) -> Numbers:
        """Return the log densities [S] of points [S, m], up to a constant that all proposals share."""
        z = np.linalg.solve(self.root, (points - self.centre).T)
        size = len(self.centre)
        log_volume = np.linalg.slogdet(self.root)[1]
        return -0.5 * (DEGREES + size) * np.log1p(np.sum(z * z, axis=0) / DEGREES) - log_volume


class Weighted(NamedTuple):
    """Weighted points: averages over them approximate expectations."""

    points: Numbers
    """[S, m]."""
    weights: Numbers
    """[S], with the sum 1."""
    log_total: float
    """An estimate of the logarithm of the integral of the density."""
    effective: float
    """The effective number of points, before weights are truncated."""


def sample_density(
    log_density: Callable[[Numbers], Numbers],
    modes: Sequence[tuple[Numbers, Numbers]],
    sizes: Sequence[int],
    count: int,
) -> Weighted:
    """Return `count` weighted points of an unnormalised density.

    Parameters
    ----------
    log_density
        A function of points [S, m]; values that are not finite count as minus infinity.
    modes
        Pairs of a mode [m] and the curvature [m, m] of minus the log density.
    sizes
        The number of points of each adaptation, the first of which come from the modes.
    count
        The number of points that are returned, those of the last adaptation. Their weights are tilted so that their
        means and variances are those of all points.

    Raises
    ------
    FloatingPointError
        If the density is not finite at any point.

    Sources: Cornuet et al., "Adaptive multiple importance sampling", Scandinavian Journal of Statistics 2012; Ionides,
    "Truncated importance sampling", JCGS 2008; Owen & Zhou, "Safe and effective importance sampling", JASA 2000.
    """
    size = len(modes[0][0])
    first = sizes[0] // len(modes)
    new = [Proposal(centre, _root_of_inverse(curvature), first) for centre, curvature in modes]
    draws, used = _student_t(first * len(modes) + sum(sizes[1:]) + count, size), 0
    points, values, proposals = np.empty((0, size)), np.empty(0), []
    later = [*sizes[1:], count]
    while True:
        for one in new:
            added = one.centre + draws[used : used + one.points] @ one.root.T
            found = log_density(added)
            used += one.points
            points = np.concatenate([points, added])
            values = np.concatenate([values, np.where(np.isfinite(found), found, -np.inf)])
            proposals.append(one)
        weights, log_total = _weights(points, values, proposals)
        if not later:
            break
        new = [_match_proposal(points, truncate(weights), later.pop(0))]
    last = values[-count:] - proposals[-1].log_density(points[-count:])
    own = truncate(_normalise(last))
    tilted = match_moments(points[-count:], own, points, truncate(weights))
    return Weighted(points[-count:], tilted, log_total, 1.0 / float(np.sum(weights * weights)))


def _normalise(logs: Numbers) -> Numbers:
    largest = np.max(logs)
    if not np.isfinite(largest):
        raise FloatingPointError("the density is not finite at any point")
    weights = np.exp(logs - largest)
    return weights / np.sum(weights)


def _weights(points: Numbers, values: Numbers, proposals: list[Proposal]) -> tuple[Numbers, float]:
    """Return the weights of all points under the mixture of all proposals, and the log of the integral."""
    logs = np.stack([np.log(one.points) + one.log_density(points) for one in proposals])
    ratios = values - np.logaddexp.reduce(logs, axis=0)  # proposals are weighted by their numbers of points
    weights = _normalise(ratios)
    return weights, float(np.logaddexp.reduce(ratios)) - _log_constant(points.shape[1])


def _log_constant(size: int) -> float:
    from scipy.special import gammaln

    half = 0.5 * DEGREES
    return float(gammaln(half + 0.5 * size) - gammaln(half) - 0.5 * size * np.log(DEGREES * np.pi))


def truncate(weights: Numbers) -> Numbers:
    """Return the weights, none of which exceeds 1 / sqrt(S) before they are divided by their sum."""
    kept = np.minimum(weights, len(weights) ** -0.5)
    return kept / np.sum(kept)


def _match_proposal(points: Numbers, weights: Numbers, count: int) -> Proposal:
    """Return the proposal with the mean and the covariance of weighted points."""
    mean = weights @ points
    apart = points - mean
    covariance: Any = apart.T @ (apart * weights[:, None])
    return Proposal(mean, np.linalg.cholesky(covariance + LEAST_VARIANCE * np.eye(len(mean))), count)


def _root_of_inverse(curvature: Numbers) -> Any:
    values, vectors = np.linalg.eigh(curvature)
    # the symmetric root does not depend on the signs and the order of the eigenvectors
    return WIDER * (vectors / np.sqrt(np.maximum(values, LEAST_CURVATURE))) @ vectors.T


@cache
def _student_t(count: int, size: int) -> Numbers:
    """Return fixed Student-t vectors [count, size] from a scrambled Sobol sequence."""
    from scipy.special import gammaincinv, ndtri
    from scipy.stats import qmc

    power = int(np.ceil(np.log2(count)))
    uniform = qmc.Sobol(size + 1, rng=np.random.default_rng(1)).random_base2(power)[:count]
    uniform = np.clip(uniform, EDGE, 1.0 - EDGE)
    chi_square = 2.0 * gammaincinv(0.5 * DEGREES, uniform[:, size])
    return ndtri(uniform[:, :size]) * np.sqrt(DEGREES / chi_square)[:, None]


def match_moments(points: Numbers, weights: Numbers, others: Numbers, theirs: Numbers) -> Numbers:
    """Return weights of points [S, m], tilted so that means and mean squares are those of other weighted points.

    The weights are proportional to w_s exp(a^T phi_s), where phi_s are the coordinates and their squares. A small
    penalty keeps a finite if the moments cannot be matched.
    """
    mean = theirs @ others
    spread = np.sqrt(np.maximum(theirs @ (others - mean) ** 2, LEAST_VARIANCE))
    features, goal = _moments(points, mean, spread), theirs @ _moments(others, mean, spread)
    logs = np.log(np.maximum(weights, 1e-300))
    a, tilted = np.zeros(features.shape[1]), weights
    for _ in range(TILT_STEPS):
        now = tilted @ features
        apart = features - now
        curvature = apart.T @ (apart * tilted[:, None]) + TILT_PENALTY * np.eye(len(a))
        step = np.linalg.solve(curvature, goal - now - TILT_PENALTY * a)
        a = a + step * min(1.0, TILT_LENGTH / max(float(np.max(np.abs(step))), 1e-300))
        tilted = _normalise(logs + features @ a)
    return tilted


def _moments(points: Numbers, mean: Numbers, spread: Numbers) -> Numbers:
    z = (points - mean) / spread
    return np.concatenate([z, z * z], axis=1)
