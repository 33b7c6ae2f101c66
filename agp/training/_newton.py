"""Newton's method with the average information, in a trust region, for the evidence of exact GPs.

The optimiser moves the logarithms of positive parameters, and real parameters in their units. Coefficients of a linear
mean function follow from the other parameters, so the trust region does not limit them.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, backend_of, to_numpy
from agp.bounds import Batch
from agp.errors import NotPositiveDefiniteError
from agp.models import Model
from agp.priors import assign_priors, held_leaves
from agp.repairs import speculate
from agp.training._coordinates import Coordinates, Vector
from agp.tree import NONNEGATIVE, POSITIVE, REAL

RADIUS, MOST_RADIUS, LEAST_RADIUS = 1.0, 4.0, 1e-3
"""The first, largest and smallest radius of the trust region, for the largest change of a coordinate."""
LEAST_RATIO, POOR, GOOD = 1e-3, 0.25, 0.7
"""A step is accepted if its gain exceeds `LEAST_RATIO` of the predicted gain. Below `POOR`, the radius shrinks to half
the step. Above `GOOD`, it is doubled."""
SHRINK = 0.3
"""The radius after a rejected step, as a fraction of the step."""
INSIDE, WIDE = 0.8, 2.0
"""The trust region limits a step if a change exceeds this fraction of the radius, and the radius is not wide."""
EDGE = 1e-9
"""Coordinates that are closer to a limit than this are at the limit."""
STEP_OF_LOGARITHMS = 1e-4
"""The step of the difference quotient for the curvature of priors."""
COARSE = 1.2
"""The ratio of two values of the damping that need not be distinguished."""
DAMPING = 1e-8
"""The least damping of a step, as a fraction of the largest eigenvalue of the information."""
TINY = 1e-100
"""The information, in nats, below which a direction has no curvature."""
MANY = 256
"""For more parameters than this, steps are computed by Cholesky factors instead of eigenvectors."""
DEPENDENT = 1e-8
"""Singular values of the mean function below this fraction of the largest are zero, or more if rounding is coarse."""


class Information(NamedTuple):
    """A positive semi-definite matrix W^T W + diag(d) [m, m]."""

    vectors: Any
    """W [R, m]."""
    diagonal: Vector
    """d [m], not negative."""

    def at(self, places: npt.NDArray[np.intp]) -> "Information":
        """Return the rows and columns at these places."""
        if len(places) == len(self.diagonal):
            return self
        return Information(self.vectors[:, places], self.diagonal[places])

    def times(self, x: Vector) -> Vector:
        """Return the product with a vector [m]."""
        return self.vectors.T @ (self.vectors @ x) + self.diagonal * x

    def dense(self) -> Any:
        """Return the matrix [m, m]."""
        matrix = self.vectors.T @ self.vectors
        matrix.reshape(-1)[:: len(matrix) + 1] += self.diagonal
        return matrix


class MeanStep(NamedTuple):
    """The optimal change of the c coefficients of the mean function, for a change of the m other coordinates."""

    first: Vector
    """The optimal change [c] if the others do not change."""
    V: Any
    """A matrix [c, k] of rank k."""
    projected: Any
    """A matrix [k, m]."""
    gain: float
    """The gain in nats if the others do not change."""

    def after(self, change: Vector) -> Vector:
        """Return the optimal change [c] for a change [m] of the other coordinates."""
        return self.first - self.V @ (self.projected @ change)


def profile(
    slope: Vector, whitened: Any, curvature: Vector, linear: npt.NDArray[np.bool_], roundoff: float
) -> tuple[Vector, Information, MeanStep]:
    """Return the gradient [m] and the information [m, m] after the mean function is optimised, and its optimum.

    Let B [R, m] be the columns of `Expansion.whitened` for the other coordinates, and H [R, c] those for the
    coefficients of the mean function, with a further row for each coefficient that has a prior. Let U be an orthonormal
    basis of the columns of H. The average information is B^T (I - U U^T) B / 2, to which the `curvature` [n] of the log
    prior is added. The curvature is not negative. `roundoff` is the relative precision of `whitened`.
    """
    own, mean = np.flatnonzero(~linear), np.flatnonzero(linear)
    B, H, places = whitened[:, own], whitened[:, mean], np.flatnonzero(curvature[mean])
    if len(places):
        priors = np.zeros((len(places), len(mean)))
        priors[np.arange(len(places)), places] = np.sqrt(curvature[mean[places]])
        B, H = np.concatenate([B, np.zeros((len(places), len(own)))]), np.concatenate([H, priors])
    U, V = _pseudoinverse(H, roundoff)
    projected, optimum = U.T @ B, slope[mean] @ V
    step = MeanStep(V @ optimum, V, projected, 0.5 * float(optimum @ optimum))
    information = Information(math.sqrt(0.5) * (B - U @ projected), curvature[own])
    return slope[own] - projected.T @ optimum, information, step


def _pseudoinverse(H: Any, roundoff: float) -> tuple[Any, Any]:
    """Return an orthonormal basis U [R, k] of the columns of H [R, c], and V [c, k] with H^+ = V U^T."""
    if H.shape[1] == 1 and (size := float(np.linalg.norm(H))) > 0.0:  # the usual case, a constant mean
        return H / size, np.full((1, 1), 1.0 / size)
    Q, T = np.linalg.qr(H)
    u, sizes, v = np.linalg.svd(T, full_matrices=False)
    kept = sizes > max(DEPENDENT, len(H) * roundoff) * np.max(sizes, initial=0.0)
    return Q @ u[:, kept], v[kept].T / sizes[kept]


def damped_step(g: Vector, A: Information, radius: float) -> Vector:
    """Return (A + lambda I)^-1 g with the smallest lambda for which no entry exceeds the radius."""
    by_factors = _by_vectors if A.vectors.shape[0] < len(g) else _by_cholesky
    size, at = (_by_eigenvectors if len(g) <= MANY else by_factors)(g, A)
    least = DAMPING * max(size, TINY)
    step = at(least)
    if np.max(np.abs(step)) <= radius:
        return step
    low, high = least, max(float(np.linalg.norm(g)) / radius, 2.0 * least)
    step = at(high)
    while high > COARSE * low:
        middle = math.sqrt(low * high)
        found = at(middle)
        if np.max(np.abs(found)) > radius:
            low = middle
        else:
            high, step = middle, found
    return step


Solver = tuple[float, Callable[[float], Vector]]
"""An upper bound on the eigenvalues of A, and the function lambda -> (A + lambda I)^-1 g."""


def _by_eigenvectors(g: Vector, A: Information) -> Solver:
    values, vectors = np.linalg.eigh(A.dense())
    values, g = np.maximum(values, 0.0), vectors.T @ g
    return float(values[-1]), lambda damping: vectors @ (g / (values + damping))


def _by_cholesky(g: Vector, A: Information) -> Solver:
    from scipy.linalg import cho_factor, cho_solve

    dense, identity = A.dense(), np.eye(len(g))
    size = float(np.max(np.sum(np.abs(dense), axis=0)))
    return size, lambda damping: cho_solve(cho_factor(dense + damping * identity), g)


def _by_vectors(g: Vector, A: Information) -> Solver:
    # with E = diag(d) + lambda I and V = W E^-1/2,
    # (W^T W + E)^-1 = E^-1/2 (I - V^T (I + V V^T)^-1 V) E^-1/2
    from scipy.linalg import cho_factor, cho_solve

    W, d = A
    identity, absolute = np.eye(W.shape[0]), np.abs(W)
    size = float(np.max(np.sum(absolute, axis=1) @ absolute + d))

    def at(damping: float) -> Vector:
        root = np.sqrt(d + damping)
        V, u = W / root, g / root
        return (u - cho_solve(cho_factor(identity + V @ V.T), V @ u) @ V) / root

    return size, at


# -- the search --------------------------------------------------------------------------------------------------------


def _expand(model: Any, batch: Batch, scales: dict[str, Array]) -> Any:
    return model._expand(batch, scales)


class Expanded(NamedTuple):
    """The objective at a vector, to second order. The objective is the evidence plus the log prior, in nats.

    The derivatives are those of the maximum over the coefficients of the mean function, by the other coordinates.
    """

    vector: Vector
    model: Any
    value: float
    slope: Vector
    """The gradient [m]."""
    information: Information
    mean: MeanStep
    leave_one_out: float
    """The average log density of an observation given the others."""


class Evidence:
    """The evidence of exact GPs on the same rows, plus the log prior, as a function of a vector.

    A call counts the reason and returns None if the objective cannot be computed at a vector.
    """

    def __init__(self, model: Any, batch: Batch, names: list[str], frozen: tuple[str, ...] = ()) -> None:
        self.coordinates = Coordinates(model, names, frozen)
        self.evaluations, self.seconds = 0, 0.0
        self.rejections: Counter[str] = Counter()
        self._batch = batch
        self.linear = self.coordinates.linear
        places = zip(self.coordinates.leaves, self.coordinates.places, strict=True)
        self._places = {leaf.name: place for leaf, place in places}
        self._priors = assign_priors(model) if model.priors else []
        self._roundoff = float(backend_of(batch.X).xp.finfo(batch.X.dtype).eps)
        expand, first = backend_of(batch.X).compile(_expand), self.coordinates.leaves[0].value
        waits = backend_of(first).reading_waits(first)
        self._expand = (lambda *given: speculate(lambda: expand(*given), first)[0]) if waits else expand

    def __call__(self, vector: Vector) -> Expanded | None:
        began = time.perf_counter()
        with np.errstate(all="ignore"):  # overflow at trial points is detected below
            model = self.coordinates.model_at(vector)
            try:
                found = self._expand(model, self._batch, self.coordinates.scales_at(model))
            except NotPositiveDefiniteError:
                expanded = self._reject("a factorisation failed")
            else:
                expanded = self._profile(vector, model, *(np.asarray(to_numpy(x), dtype=np.float64) for x in found))
        self.evaluations += 1
        self.seconds += time.perf_counter() - began
        return expanded

    def rounding_error(self, model: Any) -> float:
        """Return an estimate of the rounding error of the evidence, in nats.

        It is the machine precision times the sum of the variances of the functions, divided by the smallest noise
        variance: an upper bound on the condition number of the covariance matrix.
        """
        xp = backend_of(model.X).xp
        total, noise = float(xp.sum(model.kernel.diag(model.X)[0])), float(xp.min(model._noise_by_row))
        return self._roundoff * total / noise if noise > 0.0 else math.inf

    def _profile(self, vector: Vector, model: Any, value: Any, slope: Vector, whitened: Any, density: Any) -> Any:
        """Add the priors, and maximise over the mean function."""
        slope, whitened = self.coordinates.fold(slope), self.coordinates.fold(whitened)
        if (limited := self.coordinates.of_mean & ~self.linear).any():  # their information is not halved
            whitened = np.where(limited, math.sqrt(2.0), 1.0) * whitened
        curvature = np.zeros_like(slope)
        if self._priors and np.isfinite(value):
            value, slope, curvature = self._with_prior(model, value, slope)
        if not np.isfinite(value):
            return self._reject("a factorisation failed" if np.isnan(value) else "the bound was not finite")
        if not (np.isfinite(slope).all() and np.isfinite(whitened).all()):
            return self._reject("the gradient was not finite")
        slope, information, mean = profile(slope, whitened, curvature, self.linear, self._roundoff)
        return Expanded(vector, model, float(value), slope, information, mean, float(density))

    def _with_prior(self, model: Any, value: Any, slope: Vector) -> tuple[Any, Vector, Vector]:
        """Add the log prior and its gradient; also return the positive part of its curvature [n]."""
        slope, curvature = slope.copy(), np.zeros_like(slope)
        for leaf, density, first, second in expand_priors(model, self._priors):
            value = value + density
            if (places := self._places.get(leaf.name)) is not None:
                slope[places] += self.coordinates.take(leaf.name, first)
                curvature[places] += self.coordinates.take(leaf.name, np.maximum(second, 0.0))
        return value, slope, curvature

    def _reject(self, reason: str) -> None:
        self.rejections[reason] += 1


def expand_priors(model: Any, priors: Iterable[tuple[tree.Leaf, Any]]) -> Iterator[tuple[Any, float, Vector, Vector]]:
    """Yield the leaves of a model that have priors, with what `prior_along_coordinates` returns for them."""
    values = tree.leaves(model)
    for leaf, prior in priors:
        here = leaf._replace(value=values[leaf.name])
        yield here, *prior_along_coordinates(here, prior)


def prior_along_coordinates(leaf: tree.Leaf, prior: Any) -> tuple[float, Vector, Vector]:
    """Return a log prior, its derivatives by the coordinates of a leaf, and minus the second derivatives."""
    ones = backend_of(leaf.value).xp.ones_like(leaf.value)

    def at(shift: float) -> tuple[Array, Vector]:
        if leaf.constraint is REAL:
            scale = ones if leaf.unit is None else leaf.unit * ones
            value = leaf.value + shift * scale
        else:
            value = scale = math.exp(shift) * leaf.value
        density, pull = prior.log_density(value, leaf.unit)
        return density, to_numpy(scale * pull(1.0)).astype(np.float64).reshape(-1)

    h = STEP_OF_LOGARITHMS
    density, first = at(0.0)
    return float(density), first, (at(-h)[1] - at(h)[1]) / (2.0 * h)


class Ascent:
    """A search from a point: `advance` takes a step until the predicted gain is below a tolerance."""

    def __init__(self, objective: Evidence, first: Expanded, box: tuple[Vector, Vector], radius: float) -> None:
        self.objective, self.radius = objective, radius
        self.point: Any = first
        self.own, self.mean = np.flatnonzero(~objective.linear), np.flatnonzero(objective.linear)
        self.low, self.high = (limit[self.own] for limit in box)
        self._plan()

    def _plan(self) -> None:
        """Compute the next step and the gain that it promises; coordinates that would leave the box stay."""
        at, g, A = self.point.vector[self.own], self.point.slope, self.point.information
        held = ((at <= self.low + EDGE) & (g < 0.0)) | ((at >= self.high - EDGE) & (g > 0.0))
        free = np.flatnonzero(~held)
        self.change = np.zeros_like(g)
        if len(free):
            self.change[free] = damped_step(g[free], A.at(free), self.radius)
        self.predicted = self.point.mean.gain + float((g - 0.5 * A.times(self.change)) @ self.change)

    def next_vector(self) -> Vector:
        """Return the coordinates after the next step."""
        own, mean = self.own, self.point.mean
        new = self.point.vector.copy()
        new[own] = np.clip(new[own] + self.change, self.low, self.high)
        new[self.mean] += mean.after(new[own] - self.point.vector[own])
        return new

    def advance(self) -> bool:
        """Try a step; return whether the point has changed."""
        new = self.next_vector()
        length = float(np.max(np.abs(self.change), initial=0.0))
        found = self.objective(new)
        ratio = -1.0 if found is None else (found.value - self.point.value) / max(self.predicted, 1e-300)
        moved = found is not None and ratio > LEAST_RATIO
        if moved:
            self.point = found
            if ratio > GOOD:
                self.radius = min(2.0 * self.radius, MOST_RADIUS)
            elif ratio < POOR:
                self.radius = max(0.5 * length, LEAST_RADIUS)
        else:
            self.radius = SHRINK * max(length, LEAST_RADIUS)
        self._plan()
        return moved

    def reset(self, radius: float) -> None:
        """Set the radius of the trust region."""
        self.radius = radius
        self._plan()

    @property
    def hoped_gain(self) -> float:
        """The gain that the quadratic model predicts, or infinity if the trust region limits the next step."""
        limited = self.radius < WIDE and np.max(np.abs(self.change), initial=0.0) >= INSIDE * self.radius
        return math.inf if limited else self.predicted


def ascend(
    objective: Evidence,
    start: Vector,
    *,
    most: int,
    tolerance: float,
    box: tuple[Vector, Vector],
    radius: float = RADIUS,
    seen: Callable[[Expanded, float], bool] = lambda *_: False,
    thorough: bool = False,
) -> tuple[Expanded | None, bool, bool]:
    """Maximise the objective from a start.

    Returns the last point, or None, whether the search converged, and whether `seen` ended it.

    Parameters
    ----------
    objective, start
        The objective, and the coordinates [n] of the start.
    most
        The maximum number of evaluations, including that of the start.
    tolerance
        The search ends when the predicted gain of a step is below this value, in nats.
    box
        The limits of the coordinates.
    radius
        The first radius of the trust region.
    seen
        A function that is called with each new point and the gain in nats that the quadratic model predicts (infinity
        if the trust region limits the step). If it returns True, the search ends.
    thorough
        After rejected steps, the trust region may be so small that each step gains little, although longer steps in
        other directions would gain more. If `thorough` is true, the search continues with the first radius, until this
        gains less than the tolerance.
    """
    first = objective(np.clip(start, *box))
    if first is None:
        return None, False, False
    search = Ascent(objective, first, box, radius)
    stopped, evaluations, height = seen(first, search.hoped_gain), 1, first.value
    while not stopped and evaluations < most:
        if search.predicted < tolerance or search.radius < LEAST_RADIUS:
            if not thorough or search.hoped_gain < tolerance or search.point.value - height < tolerance:
                return search.point, True, False
            height = search.point.value
            search.reset(radius)
            continue
        if search.advance():
            stopped = seen(search.point, search.hoped_gain)
        evaluations += 1
    end = search.hoped_gain if thorough else search.predicted
    return search.point, end < tolerance, stopped


def newton_names(model: Any) -> list[str]:
    """Return the names of the parameters that Newton's method moves, which are neither fixed nor zero."""
    held = held_leaves(model)
    return [name for name in tree.leaves(model, "parameter") if name not in held]


def why_not_newton(model: Any, /) -> str:
    """Return the reason why Newton's method cannot train a model, or an empty string."""
    if type(model)._expand is Model._expand:
        return f"{type(model).__name__} has no second-order expansion of its bound"
    for leaf in tree.describe(model):
        if leaf.role == "parameter" and leaf.constraint not in (POSITIVE, NONNEGATIVE, REAL):
            return f"{leaf.name} is {leaf.constraint.name}"
    X = backend_of(model.X).gather(model.X[:2, :])
    near = model._searches_rows
    if (model.kernel.linearise_groups(X[:, None, :]) if near else model.kernel.linearise(X)) is None:
        return f"{type(model.kernel).__name__} or a part of it has no method linearise{'_groups' if near else ''}"
    if model.mean_function.basis(X, model.outputs) is None:
        return f"{type(model.mean_function).__name__} has no method basis"
    return ""
