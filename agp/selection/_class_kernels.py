"""The search for the kernel of a classifier: hyperparameters by the Laplace evidence of a sample of the rows."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import backend_of, to_numpy
from agp.bounds import laplace_evidence
from agp.chunking import column_spreads
from agp.errors import NotPositiveDefiniteError
from agp.gradient import unfrozen
from agp.kernels import RBF, Constant, Kernel, Linear, Matern52, Stationary, Sum, kernel_text
from agp.models import TVGP, ignore_moved
from agp.priors import Fixed, as_priors, assign_priors, fixed_entries, held_leaves
from agp.selection._climb import beside
from agp.selection._given import Columns, Data, by_compared_kernel
from agp.training import Coordinates, expand_priors

VARIANCE = 4.0
"""The starting variance of the latent functions."""
VARIANCE_DEVIATION, LENGTHSCALE_DEVIATION = 1.0, 1.5
"""The standard deviations of the normal priors for the logarithms of variances and lengthscales."""
FARTHEST = 9.0
"""The largest change of a logarithm from its starting value."""
RATIO = 2.0, 1e3
"""The ratios of the largest to the smallest spread for which a common unit of the columns is compared."""
ISOTROPIC_STEPS, ARD_STEPS, LATER_STEPS = 8, 16, 8
"""The maximum numbers of evaluations for kernels with one lengthscale, for others, and on further rows."""
RELATIVE_GAIN = 1e-4
"""The search ends when a step gains less than this fraction of the evidence."""
LARGE = 1e10
"""The loss where the evidence cannot be computed."""


class Start(NamedTuple):
    """A kernel with starting values."""

    name: str
    kernel: Any
    tied: bool
    """Whether all entries of a parameter move together, by one factor."""


class Searched(NamedTuple):
    """A kernel with trained hyperparameters."""

    start: Start
    model: Any
    """A `TVGP` of the sample, without sites."""
    evidence: float
    """The Laplace approximation of the log evidence of the sample, in nats, including the priors."""

    @property
    def name(self) -> str:
        return self.start.name


class LaplaceLoss:
    """Minus the Laplace evidence and the log prior, as a function of changes of the logarithms of hyperparameters.

    With default priors, the logarithms have independent normal priors around their starting values.
    """

    def __init__(self, model: TVGP, data: Data, *, tied: bool, priors: bool, frozen: tuple[str, ...] = ()) -> None:
        self.coordinates = Coordinates(model, free_names(model, frozen), frozen)
        pairs = zip(self.coordinates.leaves, self.coordinates.places, strict=True)
        self._places = {leaf.name: places for leaf, places in pairs}
        self.origin = self.coordinates.vector_of(model)
        self.batch = model._batch(data.X, data.y, weights=data.weights)
        sizes = [1] * len(self.origin) if not tied else self.coordinates.sizes
        self.groups = np.repeat(np.arange(len(sizes)), sizes)
        names = np.repeat([leaf.name for leaf in self.coordinates.leaves], self.coordinates.sizes)
        long = np.asarray([name.endswith("lengthscale") for name in names], dtype=bool)
        deviations = np.where(long, LENGTHSCALE_DEVIATION, VARIANCE_DEVIATION)
        self.precisions = np.zeros(len(sizes))
        if priors:
            self.precisions[self.groups] = deviations**-2.0
        self.priors = assign_priors(model) if model.priors else []
        self.weights: Any = None
        self.best: tuple[float, Any] = (math.inf, model)

    def change_to(self, model: Any) -> Any:
        """Return the changes of the logarithms that lead to a model, in which tied parameters have one factor."""
        _, first = np.unique(self.groups, return_index=True)
        return (self.coordinates.vector_of(model) - self.origin)[first]

    def limits(self) -> list[tuple[float, float]]:
        """Return the smallest and the largest changes."""
        low, high = (np.clip(limit - self.origin, -FARTHEST, FARTHEST) for limit in self.coordinates.limits)
        of = [self.groups == group for group in range(len(self.precisions))]
        return [(float(np.max(low[each])), float(np.min(high[each]))) for each in of]

    def __call__(self, change: Any) -> tuple[float, Any]:
        model = self.coordinates.model_at(self.origin + change[self.groups])
        try:
            with np.errstate(all="ignore"):
                evidence, slopes = self._evidence(model)
        except NotPositiveDefiniteError:
            return LARGE, np.zeros_like(change)
        loss = 0.5 * float(self.precisions @ change**2) - evidence
        slope = self.precisions * change - np.bincount(self.groups, slopes, len(change))
        if not (math.isfinite(loss) and np.isfinite(slope).all()):
            return LARGE, np.zeros_like(change)
        if loss < self.best[0]:
            self.best = loss, model
        return loss, slope

    def _evidence(self, model: Any) -> tuple[float, Any]:
        """Return the evidence plus the log priors of the user, and the derivatives by the coordinates [n]."""
        X = self.batch.X
        linear = model.kernel.linearise(X)
        if linear is None:
            K, pull_kernel = model.kernel(X)
        else:
            K = backend_of(X).symmetric_from_lower(linear.K)
            pull_kernel = lambda bar: (linear.pull(bar),)  # noqa: E731
        found, pull = laplace_evidence(model.likelihood, K, self.batch, self.weights)
        self.weights, evidence = found.weights, float(found.value)
        bars = tree.leaves(tree.cotangent(model, kernel=pull_kernel(pull(1.0))[0]))
        scales = self.coordinates.scales_at(model)
        entries = np.concatenate([to_numpy(scales[name] * bars[name]).reshape(-1) for name in sorted(scales)])
        slope = self.coordinates.fold(entries)
        for leaf, density, first, _ in expand_priors(model, self.priors):
            evidence += density
            if (places := self._places.get(leaf.name)) is not None:
                slope[places] += self.coordinates.take(leaf.name, first)
        return evidence, slope


def start_model(start: Start, data: Data, likelihood: Any, plan: Any) -> Searched:
    """Return a kernel with its starting values, and a model of rows on the host, with the priors of a `ClassPlan`."""
    priors = (*as_priors(None if isinstance(plan.priors, str) else plan.priors), *plan.limits)
    if isinstance(plan.kernel, str):
        priors = by_compared_kernel(priors, start.kernel, plan.columns)
    given: Any = {"priors": priors, "weights": data.weights, "likelihood": likelihood}
    shared = likelihood.latents(1) > 1
    with ignore_moved():
        model = TVGP.from_data(data.X, data.y, kernel=start.kernel, **given, shared_precision=shared)
    return Searched(start, model, -math.inf)


def free_names(model: TVGP, frozen: tuple[str, ...]) -> list[str]:
    """Return the names of the parameters that move, which are neither frozen nor zero.

    Raise ValueError if a pattern matches nothing.
    """
    names, held = tree.leaves(model, "parameter"), held_leaves(model)
    fixed = fixed_entries(model, frozen)
    free = [x for x in names if x not in held and len(fixed.get(x, ())) < max(1, math.prod(names[x].shape))]
    wholes = map(tree.whole_pattern, frozen)
    unknown = [pattern for pattern in wholes if not any(tree.matches(name, pattern) for name in names)]
    return unfrozen(model, (*frozen, *(f"^{name}" for name in sorted(held)))) if free or unknown else []


def train_kernel(one: Searched, data: Data, likelihood: Any, plan: Any, most: int, see: Any) -> Searched:
    """Train a kernel further on rows on the host, with about `most` evaluations at most.

    The default priors depend on the starting values of the kernel, not on the present ones. `see` is a function of a
    model and its evidence, called after each iteration; training ends when it returns True.
    """
    from scipy.optimize import minimize

    begun, frozen = start_model(one.start, data, likelihood, plan).model, plan.frozen
    if isinstance(plan.kernel, str):
        frozen = tuple(
            name
            for name, _ in by_compared_kernel(tuple((name, Fixed()) for name in frozen), one.start.kernel, plan.columns)
        )
    if not free_names(begun, frozen):
        batch = begun._batch(data.X, data.y, weights=data.weights)
        value = laplace_evidence(likelihood, begun.kernel(data.X)[0], batch)[0].value
        return Searched(one.start, begun, float(value))
    loss = LaplaceLoss(begun, data, tied=one.start.tied, priors=isinstance(plan.priors, str), frozen=frozen)

    def stop(_: Any) -> None:
        if see(loss.best[1], -loss.best[0]):
            raise StopIteration

    begin = loss.change_to(one.model)
    options = {"maxiter": most, "maxfun": most, "ftol": RELATIVE_GAIN, "maxcor": 20}
    minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=loss.limits(), options=options, callback=stop)
    return Searched(one.start, loss.best[1], -loss.best[0])


# -- the kernels that are compared ------------------------------------------------------------------------------------


def starting_scales(X: Any, columns: Columns) -> list[Any]:
    """Return the units [D] of the columns of X that are compared: their spreads, and perhaps one unit for all numbers.

    The unit of categories is the distance 1 between levels.
    """
    spreads = column_spreads(X)
    spreads[[*columns.categories]] = 1.0
    varies = X.max(axis=0) > X.min(axis=0)
    varies[[*columns.categories]] = False
    known = spreads[varies]
    if not len(known):
        return [spreads]
    # by ratios, which are independent of the unit of X
    common = np.where(varies, known.max() * math.sqrt(np.mean((known / known.max()) ** 2)), spreads)
    ratio = known.max() / known.min()
    return [spreads, common] if RATIO[0] < ratio < RATIO[1] else [spreads]


def isotropic(X: Any, scales: Any, columns: Columns) -> Start:
    """Return the sum of a constant and an RBF kernel with lengthscales proportional to the scales [D]."""
    return Start("rbf", _sum(X, columns, _stationary(RBF, scales)), tied=True)


def isotropic_plus_linear(X: Any, scales: Any, columns: Columns) -> Start:
    """Return `isotropic` plus a linear kernel."""
    line = Linear(variance=1.0 / (len(scales) * scales**2), centre=X.mean(axis=0))
    return Start("rbf + linear", _sum(X, columns, _stationary(RBF, scales), line), tied=True)


def by_column(X: Any, scales: Any, columns: Columns) -> Start:
    """Return the sum of a constant and a Matern-5/2 kernel whose lengthscales move independently."""
    return Start("matern52", _sum(X, columns, _stationary(Matern52, scales)), tied=False)


def _stationary(kind: type[Stationary], scales: Any) -> Kernel:
    return kind(variance=np.asarray(VARIANCE), lengthscale=math.sqrt(len(scales)) * scales)


def _sum(X: Any, columns: Columns, *parts: Kernel) -> Kernel:
    return columns.mix(Sum((Constant(variance=np.asarray(1.0)), *parts))).from_data(X, VARIANCE)


def compared_kernels(
    kernel: Any, X: Any, columns: Columns, train: Callable[[Start, int], Searched]
) -> Iterator[Searched]:
    """Yield the trained kernels. The unit of the columns is that of the best kernel with one lengthscale.

    `train` is a function of a start and the maximum number of evaluations.
    """
    if not isinstance(kernel, str):
        name, begun = kernel_text(kernel), beside(kernel, X).from_data(X, VARIANCE)
        yield train(Start(name, begun, tied=False), ARD_STEPS)
        return
    scales = starting_scales(X, columns)
    tried = [train(isotropic(X, one, columns), ISOTROPIC_STEPS) for one in scales]
    best = max(range(len(tried)), key=lambda i: tried[i].evidence)
    yield tried[best]
    yield train(isotropic_plus_linear(X, scales[best], columns), ISOTROPIC_STEPS)
    yield train(by_column(X, scales[best], columns), ARD_STEPS)
