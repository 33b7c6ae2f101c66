"""Weak priors on the hyperparameters of exact GPs, as a normal distribution of logarithms.

The coordinates phi [m] are logarithms of ratios between hyperparameters and their medians under the prior. The vector
of `agp.training.Coordinates` is base + T phi, where T ties entries that share a coordinate.
"""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import to_numpy
from agp.kernels import Kernel
from agp.priors import assign_priors
from agp.summaries import columns_by_kernel
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


NONE = np.empty(0, dtype=np.intp)


class HyperPrior(NamedTuple):
    """A prior on the coordinates of an exact GP."""

    coordinates: Coordinates
    base: Numbers
    """The vector [n] at phi = 0."""
    tie: Numbers
    """T [n, m]."""
    covariance: Numbers
    """The covariance [m, m] of the coordinates without a prior of the user; the others have zeros."""
    precision: Numbers
    """Its inverse [m, m], zero for coordinates with a prior of the user."""
    given: tuple[tuple[tree.Leaf, Any, npt.NDArray[np.intp]], ...]
    """Leaves with a prior of the user, their priors, and their places in the vector."""

    @property
    def size(self) -> int:
        """The number m of coordinates."""
        return self.tie.shape[1]

    def vectors(self, points: Numbers) -> Numbers:
        """Return the vectors [S, n] of points [S, m]."""
        return self.base + points @ self.tie.T

    def log_density(self, points: Numbers) -> Numbers:
        """Return the log densities [S] of points [S, m], with respect to logarithms of positive hyperparameters."""
        weak = np.diagonal(self.covariance) > 0.0
        block = self.covariance[np.ix_(weak, weak)]
        constant = np.linalg.slogdet(block)[1] + len(block) * math.log(2.0 * math.pi)
        value = -0.5 * (np.sum((points @ self.precision) * points, axis=1) + constant)
        for s in range(len(points)) if self.given else ():
            value[s] += sum(density for density, *_ in self._given_at(points[s]))
        return value

    def expand(self, point: Numbers) -> tuple[float, Numbers, Numbers]:
        """Return the log density at a point, its gradient [m] and the positive part of its curvature [m, m]."""
        slope, curvature = -self.precision @ point, self.precision.copy()
        for (_, first, second), (_, _, places) in zip(self._given_at(point), self.given, strict=True):
            tie = self.tie[places]
            slope += tie.T @ first
            curvature += (tie.T * np.maximum(second, 0.0)) @ tie
        return float(self.log_density(point[None])[0]), slope, curvature

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
    their lengthscales. A parameter without a unit has its present value as the median.
    """
    coordinates = Coordinates(model, names)
    own = {leaf.name: prior for leaf, prior in assign_priors(model)} if model.priors else {}
    kernels = tree.nodes(model, Kernel).items()
    slopes = {tree.join_path(path, name) for path, kernel in kernels for name in kernel.slopes}
    scaled = _scale_leaves(model)
    tied = _tied_entries(model)
    base, columns, deviations, common, given = coordinates.vector_of(model), [], [], [], []
    for leaf, places in zip(coordinates.leaves, coordinates.places, strict=True):
        kind = "slopes" if leaf.name in slopes else leaf.name.rpartition(".")[2]
        weak = leaf.name not in own
        if weak and leaf.unit is not None and leaf.constraint is not REAL:
            base[places] = math.log(MEDIANS.get(kind, 1.0))
        if not weak:
            given.append((leaf, own[leaf.name], places))
        inside = coordinates.inside.get(leaf.name, np.arange(len(places)))
        alike = np.flatnonzero(np.isin(inside, tied.get(leaf.name, NONE)))
        for group in _groups(kind, places, alike) if weak else _alone(places):
            columns.append(np.isin(np.arange(len(base)), group).astype(np.float64))
            deviations.append(DEVIATIONS.get(kind, 1.0) if weak else 0.0)
            common.append(float(weak and leaf.name in scaled))
    shift = np.asarray(common)
    covariance = np.diag(np.square(deviations)) + SCALE**2 * np.outer(shift, shift)
    return HyperPrior(coordinates, base, np.stack(columns, axis=1), covariance, _inverse(covariance), tuple(given))


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


def _scale_leaves(model: Any) -> set[str]:
    """Return the names of the variances that are proportional to the scale of the targets."""
    before, after = (tree.leaves(kernel, "parameter") for kernel in (model.kernel, model.kernel.scale_by(2.0)))
    changed = {f"kernel.{name}" for name, x in before.items() if name in after and after[name] is not x}
    return {"likelihood.noise_variance", *changed}
