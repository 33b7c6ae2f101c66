"""Weak priors on the hyperparameters of exact GPs, as a normal distribution of logarithms.

The offsets phi [m] are logarithms of ratios between hyperparameters and their medians under the prior. The vector of
`agp.training.Coordinates` is base + T phi, where T ties entries that share an offset. Points z [m] are the offsets, or
coordinates of `Intervals` where hyperparameters have limits. The priors are truncated to the limits.
"""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import backend_of, to_numpy
from agp.kernels import Kernel
from agp.priors import assign_priors, entry_log_density
from agp.summaries import columns_by_kernel
from agp.training._intervals import Intervals
from agp.training._newton import Coordinates, expand_priors
from agp.tree import REAL

Numbers = npt.NDArray[np.float64]

MEDIANS = {"noise_variance": 0.05, "slopes": 0.1}
"""The medians of some hyperparameters, in their units; the others have the median 1, that is, their unit."""
DEVIATIONS = {"noise_variance": 1.5, "slopes": 1.5}
"""The standard deviations of some logarithms; the others have the standard deviation 1."""
MANY_COLUMNS = 20
"""Up to this number of columns, each has a lengthscale of its own."""
SCALE = 10.0
"""The standard deviation of the logarithm of a common factor of all variances."""
FARTHEST, FACTORS = 12.0, 8001
"""The largest logarithm of the common factor, in its standard deviations, and the number of values, for the probability
of limits."""
MARGIN, POINTS = 24.0, 8001
"""The largest coordinate beyond 0 and limits, and the number of points, for the probability that a prior gives to an
interval."""


NONE = np.empty(0, dtype=np.intp)


class HyperPrior(NamedTuple):
    """A prior on the coordinates of an exact GP."""

    coordinates: Coordinates
    base: Numbers
    """The vector [n] at phi = 0."""
    tie: Numbers
    """T [n, m]."""
    covariance: Numbers
    """The covariance [m, m] of the offsets without a prior of the user; the others have zeros."""
    precision: Numbers
    """Its inverse [m, m], zero for offsets with a prior of the user."""
    given: tuple[tuple[tree.Leaf, Any, npt.NDArray[np.intp]], ...]
    """Leaves with a prior of the user, their priors, and their places in the vector."""
    intervals: Intervals
    """The limits of the offsets."""
    log_inside: float = 0.0
    """The logarithm of the probability that the priors give to the limits."""

    @property
    def size(self) -> int:
        """The number m of coordinates."""
        return self.tie.shape[1]

    def vectors(self, points: Numbers) -> Numbers:
        """Return the vectors [S, n] of points [S, m]."""
        return self.base + self.intervals.points(points) @ self.tie.T

    def slopes_at(self, point: Numbers) -> Numbers:
        """Return the derivatives [n, m] of the vector at a point [m]."""
        return self.tie * self.intervals.slopes(point)

    def log_density(self, points: Numbers) -> Numbers:
        """Return the log densities [S] of points [S, m]."""
        offsets = self.intervals.points(points)
        weak = np.diagonal(self.covariance) > 0.0
        block = self.covariance[np.ix_(weak, weak)]
        constant = np.linalg.slogdet(block)[1] + len(block) * math.log(2.0 * math.pi)
        value = -0.5 * (np.sum((offsets @ self.precision) * offsets, axis=1) + constant)
        value += np.sum(self.intervals.log_slopes(points), axis=1) - self.log_inside
        for s in range(len(points)) if self.given else ():
            value[s] += sum(density for density, *_ in self._given_at(points[s]))
        return value

    def expand(self, point: Numbers) -> tuple[float, Numbers, Numbers]:
        """Return the log density at a point, its gradient [m] and the positive part of its curvature [m, m]."""
        slope, curvature = -self.precision @ self.intervals.points(point), self.precision.copy()
        for (_, first, second), (_, _, places) in zip(self._given_at(point), self.given, strict=True):
            tie = self.tie[places]
            slope += tie.T @ first
            curvature += (tie.T * np.maximum(second, 0.0)) @ tie
        chain, (first, second) = self.intervals.slopes(point), self.intervals.log_slope_terms(point)
        curvature = chain[:, None] * curvature * chain + np.diag(second)
        return float(self.log_density(point[None])[0]), chain * slope + first, curvature

    def _given_at(self, point: Numbers) -> list[tuple[float, Numbers, Numbers]]:
        """Return log densities of logarithms, with their derivatives, for leaves with a prior of the user."""
        if not self.given:
            return []
        model = self.coordinates.model_at(self.vectors(point[None])[0])
        found = []
        for here, density, first, second in expand_priors(model, (pair[:2] for pair in self.given)):
            first, second = (self.coordinates.take(here.name, x) for x in (first, second))
            if here.constraint is not REAL:  # the density of the logarithm
                density += float(np.sum(np.log(self.coordinates.take(here.name, to_numpy(here.value)))))
                first = first + 1.0
            found.append((density, first, second))
        return found


def hyper_prior(model: Any, names: list[str], /) -> HyperPrior:
    """Return the prior on these parameters of a `GPR`; parameters without a prior of the model have weak priors.

    In units from the data, lengthscales have the median 1, which is the spread of the column times the square root of
    the number of columns, variances the median 1, the noise variance 0.05, and slopes of linear kernels 0.1. Logarithms
    are normal, with standard deviation 1, or 1.5 for noise and slopes. All variances share a further factor, whose
    logarithm has standard deviation 10, so that the scale of the targets is almost unknown. The entries of a linear
    kernel share one factor. Of more than `MANY_COLUMNS` columns, those that contain only 0 and 1 share one factor of
    their lengthscales. A parameter without a unit has its present value as the median. Entries of leaves with limits
    share no factor.
    """
    coordinates = Coordinates(model, names)
    own = {leaf.name: prior for leaf, prior in assign_priors(model)} if model.priors else {}
    kernels = tree.nodes(model, Kernel).items()
    slopes = {tree.join_path(path, name) for path, kernel in kernels for name in kernel.slopes}
    scaled = _scale_leaves(model)
    tied = _tied_entries(model)
    base, columns, deviations, common, given = coordinates.vector_of(model), [], [], [], []
    limited = Intervals(*coordinates.limits).is_limited
    for leaf, places in zip(coordinates.leaves, coordinates.places, strict=True):
        kind = "slopes" if leaf.name in slopes else leaf.name.rpartition(".")[2]
        weak = leaf.name not in own
        if weak and leaf.unit is not None and leaf.constraint is not REAL:
            base[places] = math.log(MEDIANS.get(kind, 1.0))
        if not weak:
            given.append((leaf, own[leaf.name], places))
        inside = coordinates.inside.get(leaf.name, np.arange(len(places)))
        alike = np.flatnonzero(np.isin(inside, tied.get(leaf.name, NONE)))
        is_grouped = weak and not limited[places].any()
        for group in _groups(kind, places, alike) if is_grouped else _alone(places):
            columns.append(np.isin(np.arange(len(base)), group).astype(np.float64))
            deviations.append(DEVIATIONS.get(kind, 1.0) if weak else 0.0)
            common.append(float(weak and leaf.name in scaled))
    shift = np.asarray(common)
    covariance = np.diag(np.square(deviations)) + SCALE**2 * np.outer(shift, shift)
    tie = np.stack(columns, axis=1)
    intervals = _intervals(coordinates, base, tie)
    prior = HyperPrior(coordinates, base, tie, covariance, _inverse(covariance), tuple(given), intervals)
    return prior._replace(log_inside=_log_inside(prior, shift)) if limited.any() else prior


def columns_to_tie(X: Any, codes: Collection[int] = (), /) -> npt.NDArray[np.intp]:
    """Return the places of columns that contain only 0 and 1, if X [N, D] has more than `MANY_COLUMNS` columns.

    Columns with codes of levels do not count.
    """
    if X.shape[1] <= MANY_COLUMNS:
        return NONE
    host = to_numpy(X)
    return np.setdiff1d(np.flatnonzero(np.all((host == 0.0) | (host == 1.0), axis=0)), [*codes])


def _tied_entries(model: Any) -> dict[str, npt.NDArray[np.intp]]:
    """Return, for each leaf of lengthscales, the places of its entries for the columns of `columns_to_tie`."""
    width = model.X.shape[1]
    tied = columns_to_tie(model.X, model.kernel.category_levels(width))
    if not len(tied):
        return {}
    columns = columns_by_kernel(model, tuple(map(str, range(width))))
    return {
        tree.join_path(path, "lengthscale"): np.flatnonzero(np.isin(np.asarray(names, dtype=np.intp), tied))
        for path, names in columns.items()
    }


def _groups(kind: str, places: npt.NDArray[np.intp], tied: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    """Return the groups of entries of a leaf that share a coordinate."""
    if kind == "slopes":
        return [places]
    if not len(tied) or len(places) <= int(tied[-1]):
        return _alone(places)
    rest = np.setdiff1d(np.arange(len(places)), tied)
    return [*_alone(places[rest]), places[tied]]


def _alone(places: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    return [places[i : i + 1] for i in range(len(places))]


def _inverse(covariance: Numbers) -> Numbers:
    """Return the inverse where the diagonal is positive, and zeros elsewhere."""
    weak = np.ix_(*2 * [np.diagonal(covariance) > 0.0])
    precision = np.zeros_like(covariance)
    precision[weak] = np.linalg.inv(covariance[weak])
    return precision


def _intervals(coordinates: Coordinates, base: Numbers, tie: Numbers) -> Intervals:
    """Return the limits of the offsets; an offset with limits belongs to one entry."""
    places = np.argmax(tie, axis=0)
    low, high = (end[places] - base[places] for end in coordinates.limits)
    return Intervals(low, high)


def _log_inside(prior: HyperPrior, common: Numbers) -> float:
    """Return the logarithm of the probability of the limits. `common` [m] is 1 for offsets that share a factor."""
    low, high = prior.intervals
    limited, deviations = prior.intervals.is_limited, np.sqrt(np.diagonal(prior.covariance) - SCALE**2 * common)
    of_given = 0.0
    for leaf, density, places in prior.given:
        for rank, place in enumerate(places):
            j = int(np.argmax(prior.tie[place]))
            of_given += _log_inside_given(prior, leaf, density, rank, j) if limited[j] else 0.0
    # P(all inside) = E[prod_j P(inside_j | s)], with the logarithm SCALE s of the common factor
    s = np.linspace(-FARTHEST, FARTHEST, FACTORS)
    logs = -0.5 * s * s - 0.5 * math.log(2.0 * math.pi) + math.log(s[1] - s[0])
    for j in np.flatnonzero(limited & (deviations > 0.0)):
        ends = ((end[j] - SCALE * common[j] * s) / deviations[j] for end in (low, high))
        logs = logs + _log_normal_between(*ends)
    return of_given + float(np.logaddexp.reduce(logs))


def _log_inside_given(prior: HyperPrior, leaf: tree.Leaf, density: Any, rank: int, j: int) -> float:
    """Return the logarithm of the integral of a prior of the user over the interval of the j-th offset.

    `rank` is the place of its entry among the free entries of the leaf.
    """
    interval = Intervals(*(end[j : j + 1] for end in prior.intervals))
    z = np.linspace(*interval.box(MARGIN), POINTS)
    vectors = prior.base + interval.points(z) * prior.tie[:, j]
    entry = int(prior.coordinates.take(leaf.name, np.arange(math.prod(leaf.value.shape)))[rank])
    xp = backend_of(leaf.value).xp
    x = xp.reshape(prior.coordinates.values_at(vectors)[leaf.name], (POINTS, -1))[:, entry]
    unit = None if leaf.unit is None else xp.reshape(xp.broadcast_to(leaf.unit, leaf.value.shape), (-1,))[entry]
    logs: Any = entry_log_density(density, entry, x, unit)
    if logs is None:
        return 0.0
    logs = to_numpy(logs) + interval.log_slopes(z)[:, 0]
    if leaf.constraint is not REAL:  # the density of the logarithm
        logs = logs + np.log(to_numpy(x))
    return float(np.logaddexp.reduce(logs)) + math.log(z[1, 0] - z[0, 0])


def _log_normal_between(low: Numbers, high: Numbers) -> Numbers:
    """Return log(Phi(high) - Phi(low)) elementwise."""
    from scipy.special import log_ndtr

    flip = low > 0.0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    top, bottom = log_ndtr(high), log_ndtr(low)
    with np.errstate(divide="ignore"):
        return top + np.log(-np.expm1(np.minimum(bottom - top, 0.0)))


def _scale_leaves(model: Any) -> set[str]:
    """Return the names of the variances that are proportional to the scale of the targets."""
    before, after = (tree.leaves(kernel, "parameter") for kernel in (model.kernel, model.kernel.scale_by(2.0)))
    changed = {f"kernel.{name}" for name, x in before.items() if name in after and after[name] is not x}
    return {"likelihood.noise_variance", *changed}
