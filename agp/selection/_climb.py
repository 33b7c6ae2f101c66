"""Training of the hyperparameters of exact GPs on sampled rows."""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import asarray_like, backend_of
from agp.errors import NonFiniteError, NotPositiveDefiniteError, RepairWarning
from agp.kernels import (
    AXES,
    ActiveDims,
    Constant,
    Kernel,
    Linear,
    OnSphere,
    Overlap,
    Periodic,
    Product,
    Projected,
    RandomEffects,
    Scaled,
    Seasonal,
    Stationary,
    Sum,
    Warped,
    White,
    input_columns,
)
from agp.means import ConstantMean, ZeroMean
from agp.models import GPR, ignore_moved
from agp.priors import limits_of, restrict
from agp.selection._given import Data, Plan, checksum_of, finite_average
from agp.selection._trial import Candidate, Trial
from agp.selection._watch import Pieces, Watch
from agp.training import Coordinates, Evidence, Gain, Progress, ascend, fit_lbfgs, newton_names, why_not_newton

MEAN = "mean_function.value"

GAIN = 100.0
"""The predicted gain in nats at which training on a sample ends, as a multiple of the tolerance of the fit."""
ITERATIONS = 3
"""The number of L-BFGS iterations for each evaluation of Newton's method, for kernels that it does not support."""
NOISE = "likelihood.noise_variance"
MIN_NOISE = 1e-4
"""Training on more rows starts with at least this noise variance, as a fraction of the targets' variance."""
LEAST_NOISE, MOST_NOISE = {64: -25.0, 32: -9.5}, 2.0
"""The limits of the logarithm of the noise variance, as a fraction of the targets' variance. In float32, covariance
matrices with less noise cannot be factorised."""
SHORT, LONG, FAR = -5.0, 8.0, 14.0
"""The limits of the logarithms of lengthscales, as multiples of the spreads of their columns, and of others."""
CAUTION = 3.0
"""The gain that is usually still possible, as a multiple of the predicted gain of a step."""
COMPOSITES = (ActiveDims, Product, Projected, Scaled, Sum, Warped)
SHIFTED = (*COMPOSITES, Constant, Overlap, Periodic, RandomEffects, Seasonal, Stationary, White)
"""Kernels that do not change if their inputs, and the centres of their parts, are shifted."""
SPEED, LEAST_SECONDS = 2e10, 0.1
"""The assumed number of operations per second, and the time for measuring it."""
FLOOR = 1e-6
"""Distance from the limit of the noise below which float64 continues the training."""


def operations(rows: int, columns: int) -> float:
    """Return the number of operations of an evidence with its gradient and information."""
    return 4.0 * rows**3 + 12.0 * rows**2 * columns + 4.0 * rows * columns * min(rows, columns)


def affordable_rows(rows: int, columns: int, most: float, *, least: int) -> int:
    """Return a number of rows, at most `rows` and at least `least`, whose evidence takes at most `most` operations."""
    while rows > least and operations(rows, columns) > most:
        rows = max(least, int(0.95 * rows))
    return rows


@contextmanager
def ignore_repairs() -> Iterator[None]:
    """Do not warn about repairs at trial points and of candidates; the result is checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepairWarning)
        yield


class StageOver(Exception):  # noqa: N818 - it is not an error
    """The time for a stage is up, or a callback has ended the fit."""


class Climber:
    """Training that stores its results in a checkpoint and ends when the time is up."""

    def __init__(self, plan: Plan, pieces: Pieces, watch: Watch, *, exact: bool = True) -> None:
        self.plan, self.pieces, self.watch, self.exact = plan, pieces, watch, exact
        self.done: list[Trial] = []
        """The results so far."""
        self.operations, self.seconds = 0.0, 0.0

    def least_noise(self, X: Any) -> float:
        """Return the smallest logarithm of the noise variance, as a fraction of the targets' variance.

        In samples of the rows, noise variances near zero are due to chance.
        """
        return noise_floor(X) if self.exact else LEAST_NOISE[32]

    @property
    def speed(self) -> float:
        """The number of operations per second, as measured so far, but at most `SPEED`."""
        return min(SPEED, self.operations / self.seconds) if self.seconds > LEAST_SECONDS else SPEED

    def __call__(
        self,
        stage: str,
        kernel: str,
        model: Any,
        most: int,
        *,
        radius: float = 1.0,
        tolerance: float | None = None,
        rival: Trial | None = None,
        margin: float = 0.0,
        caution: float = CAUTION,
        narrowly: bool = False,
        begin: Callable[[Any], Any] = lambda model: model,
        until: Callable[[Any], bool] = lambda _: False,
    ) -> Trial:
        """Train an exact GP on the rows that it holds, with at most so many evaluations of its evidence.

        Parameters
        ----------
        stage
            The name of the stage in the checkpoint.
        kernel
            The name of the kernel.
        model
            The model, with the hyperparameters from which training starts.
        most
            The maximum number of evaluations; 1 computes the scores of the given hyperparameters.
        radius
            The first radius of the trust region.
        tolerance
            The predicted gain in nats at which training ends.
        rival, margin, caution
            A candidate for the same rows. Training ends when it seems that the evidence and the log density will remain
            below those of the rival, by `margin` nats per observation. The gain that is still possible is taken to be
            `caution` times the predicted gain of a step.
        narrowly
            Train in float32, and also compute the scores in float32. Data or parts for which float32 does not suffice
            are trained in float64.
        begin
            A function that changes the model before training.
        until
            A function of the model. Training ends when it returns True.

        Raises
        ------
        StageOver
            If the time for the stage is up.
        """
        if self.watch.stage_over:
            self.watch.cut = self.watch.was_cut
            raise StageOver
        piece = f"{stage} {kernel} {model.X.shape[0]} {most} from {checksum_of(model)}"
        found = self.pieces.find(piece, lambda done: Trial.of(model, kernel, done))
        if found is not None:
            self.done.append(found)
            return found
        least = GAIN * self.plan.tolerance if tolerance is None else tolerance
        began, steps = time.perf_counter(), self.watch.steps
        train = self._by_lbfgs if why_not_newton(model) else self._by_newton
        if narrowly and train == self._by_newton and self.plan.is_plain and is_wide(model.X):
            train = self._narrowly
        self._hopeless = partial(is_hopeless, rival, margin, caution, observations(model))
        self._until = until
        with ignore_repairs():
            trained, evidence, density = train(begin(model), most, least, radius)
        scores = Candidate(
            kernel, model.X.shape[0], *(x if math.isfinite(x) else -math.inf for x in (evidence, density))
        )
        trial = Trial(trained, scores, time.perf_counter() - began)
        self.seconds += trial.seconds
        self.operations += max(1, self.watch.steps - steps) * operations(*model.X.shape)
        self.done.append(Trial.of(model, kernel, self.pieces.store(piece, trial.pieces())))
        return self.done[-1]

    def _narrowly(self, model: Any, most: int, least: float, radius: float) -> tuple[Any, float, float]:
        if MEAN in limits_of(model):  # `narrow` shifts the mean
            return self._by_newton(model, most, least, radius)
        thin = narrow(model)
        trained, *scores = self._by_newton(thin, most, least, radius)
        if not math.isfinite(scores[0]):
            return self._by_newton(model, most, least, radius)
        return widen(model, thin, trained), *scores  # type: ignore[return-value]

    def _by_newton(self, model: Any, most: int, least: float, radius: float) -> tuple[Any, float, float]:
        objective = Evidence(model, model._data, newton_names(model))
        start = objective.coordinates.vector_of(model)
        box = search_box(objective.coordinates, model.X, start, self.least_noise(model.X))
        settings: Any = {"most": most, "tolerance": least, "box": box, "radius": radius}
        point = ascend(objective, start, seen=self._watch, **settings)[0]
        if point is None:
            return model, -math.inf, -math.inf
        return point.model, point.value / observations(model), point.leave_one_out

    def _watch(self, point: Any, predicted: float) -> bool:
        bound = np.asarray(point.value)
        stopped = self.watch(Progress(0, point.model, {"bound": bound}, 0.0))  # type: ignore[dict-item]
        return stopped or self._hopeless(point, predicted) or self._until(point.model)

    def _by_lbfgs(self, model: Any, most: int, least: float, _: float) -> tuple[Any, float, float]:
        iterations = 0 if most == 1 else ITERATIONS * most
        try:
            callbacks = [self.watch, Gain(least)]
            found = fit_lbfgs(model, model.X, model.y, max_iterations=iterations, callbacks=callbacks)
        except (NonFiniteError, NotPositiveDefiniteError):
            return model, -math.inf, -math.inf
        density = finite_average(found.model.leave_one_out(), found.model.weights)
        return found.model, found.bounds[0] / observations(model), density


def is_hopeless(rival: Trial | None, margin: float, caution: float, count: float, point: Any, predicted: float) -> bool:
    """Whether the next step would leave a candidate behind a rival, in evidence and in log density."""
    if rival is None:
        return False
    reached = (point.value + caution * predicted) / count
    return reached < rival.scores.evidence - margin and point.leave_one_out < rival.scores.log_density - margin


def search_box(coordinates: Coordinates, X: Any, start: Any, least_noise: float) -> tuple[Any, Any]:
    """Return the limits of the coordinates; they include the start. `least_noise` is that of the noise variance."""
    columns = 0.5 * math.log(X.shape[1])  # the unit of a lengthscale is the spread times the root of this number
    low, high = np.full_like(start, -FAR), np.full_like(start, FAR)
    low[coordinates.linear], high[coordinates.linear] = -math.inf, math.inf
    for leaf, places in zip(coordinates.leaves, coordinates.places, strict=True):
        if leaf.name == NOISE:
            low[places], high[places] = least_noise, MOST_NOISE
        elif leaf.name.endswith("lengthscale") and leaf.unit is not None:
            low[places], high[places] = SHORT - columns, LONG - columns
    return coordinates.within(np.minimum(low, start), np.maximum(high, start))


def is_wide(X: Any) -> bool:
    """Whether an array is in float64."""
    return backend_of(X).dtype_name(X) == "float64"


def noise_floor(X: Any) -> float:
    """Return the smallest logarithm of a noise variance with which matrices in the precision of X can be factorised."""
    return LEAST_NOISE[64 if is_wide(X) else 32]


def needs_wide(model: Any) -> bool:
    """Whether the noise variance is as small as float32 allows."""
    likelihood = model.likelihood
    noise, unit = float(likelihood.noise_variance), likelihood.noise_variance_unit
    return 0.0 < noise <= math.exp(LEAST_NOISE[32] + FLOOR) * (1.0 if unit is None else float(unit))


def observations(model: Any) -> float:
    """Return the number of observations in the rows that a model holds."""
    return Data(model.X, model.y, model.weights).observations


def exact_gp(data: Data, **parts: Any) -> GPR:
    """Build a model with `GPR.from_data` from the rows, their weights and their known noise variances."""
    with ignore_moved():  # those of the user are checked before
        model = GPR.from_data(data.X, data.y, weights=data.weights, noise=data.noise, **parts)
    model.likelihood.check_noise(model.noise)
    return model


def on_rows(model: Any, data: Data, priors: Any, kernel: Kernel | None = None) -> GPR:
    """Build an exact GP on other rows with a model's hyperparameters; `kernel` replaces the model's kernel.

    The other rows may be in another library. A noise variance near zero is increased, because they may be noisy, or
    because their precision may be lower.
    """
    parts = parts_beside(model, data.X)
    if kernel is not None:
        parts = parts._replace(kernel=beside(kernel, data.X))
    found = exact_gp(data, priors=priors, **parts._asdict())
    xp = backend_of(found.X).xp
    size = float(xp.mean(found.kernel.diag(found.X)[0]))
    least = max(MIN_NOISE * float(data.moments()[1].mean()), math.exp(noise_floor(found.X)) * size)
    noise = float(found.likelihood.noise_variance)
    if noise == 0.0:  # all noise is known
        return found
    raised = tree.with_leaves(found, {NOISE: asarray_like(np.asarray(max(noise, least)), data.X)})
    return restrict(raised, limits_of(found))


class Parts(NamedTuple):
    """The hyperparameters of an exact GP."""

    kernel: Any
    likelihood: Any
    mean_function: Any


def parts_beside(model: Any, X: Any) -> Parts:
    """Return the hyperparameters of a model in the library, dtype and device of X."""
    return Parts(*(beside(getattr(model, name), X) for name in Parts._fields))


def model_on(model: Any, data: Data) -> GPR:
    """Build an exact GP on other rows with a model's hyperparameters and priors."""
    return exact_gp(data, priors=model.priors, **parts_beside(model, data.X)._asdict())


def beside(part: Any, X: Any) -> Any:
    """Convert a part of a model to the library, dtype and device of X."""
    B = backend_of(X)
    here = next(iter(tree.leaves(part).values()), None)
    if here is None or (backend_of(here) is B and here.dtype == X.dtype):
        return part
    return tree.to_backend(part, B.name, dtype=B.dtype_name(X), device=B.device_name(X) or None)


def kernel_at(kernel: Kernel, X: Any, y: Any) -> Kernel:
    """Return the kernel with a value for each parameter, from inputs [N, D] and targets [N, P]."""
    xp = backend_of(y).xp
    return beside(tree.place_leaves(kernel.from_data(X, float(xp.mean(xp.var(y, axis=0))) or 1.0), X), X)


# -- training in float32 ----------------------------------------------------------------------------------------------


def narrow(model: Any) -> Any:
    """Return an exact GP in float32, with the averages of its inputs and targets as origins.

    Columns are shifted if a shift changes neither the kernel, which is stationary there or has a centre, nor the mean
    function. Targets are shifted only if the mean function is a constant.
    """
    leaves = tree.leaves(model)
    xp = backend_of(model.X).xp
    fixed = {*model.kernel.category_levels(model.X.shape[1]), *_unshifted_columns(model)}
    origin = xp.mean(model.X, axis=0)
    origin = origin * asarray_like(~np.isin(np.arange(model.X.shape[1]), [*fixed]) * 1.0, origin)
    shifted = {"X": model.X - origin}
    for path, part in (tree.nodes(model, Linear) | tree.nodes(model, Warped)).items():
        if part.centre is not None:
            shifted[tree.join_path(path, "centre")] = part.centre - columns_of(model, path, origin)
    if MEAN in leaves:
        level = xp.mean(model.y, axis=0)
        shifted |= {"y": model.y - level, MEAN: leaves[MEAN] - level}
    return tree.with_leaves(model, {name: xp.astype(shifted.get(name, x), xp.float32) for name, x in leaves.items()})


def _unshifted_columns(model: Any) -> set[int]:
    """Return the columns whose shift would change the kernel or the mean function."""
    kernel, width = model.kernel, model.X.shape[1]
    found: set[int] = set() if isinstance(model.mean_function, ConstantMean | ZeroMean) else set(range(width))
    for path, part in tree.nodes(kernel, Kernel).items():
        if not (isinstance(part, SHIFTED) or (isinstance(part, Linear) and part.centre is not None)):
            found |= {*input_columns(kernel, path, width)}
    return found


def columns_of(model: Any, path: str, row: Any) -> Any:
    """Return the entries of a row [D] for the columns on which the part at a path acts.

    Those for warped columns, and for places on a sphere, are 0.
    """
    kinds: tuple[type[Kernel], ...] = (ActiveDims, OnSphere, Projected, Warped)
    parts: dict[str, Any] = {at: part for kind in kinds for at, part in tree.nodes(model, kind).items()}
    outer = [at for at in parts if at != path and path.startswith(f"{at}." if at else "")]
    for part in (parts[at] for at in sorted(outer, key=len)):
        xp = backend_of(row).xp
        if isinstance(part, Warped):
            row = xp.where(part.warp.scale > 0.0, xp.zeros_like(row), row)
        elif isinstance(part, OnSphere):
            row = xp.zeros((AXES,), **backend_of(row).like(row))
        elif isinstance(part, Projected):
            row = row @ part.weights
        else:
            row = xp.stack([row[d] for d in part.columns])
    return row


def widen(model: Any, started: Any, trained: Any) -> Any:
    """Return a model with the hyperparameters of `trained`, which was trained from `started`, `narrow(model)`."""
    xp = backend_of(model.X).xp
    own, before, after = tree.leaves(model), tree.leaves(started), tree.leaves(trained, "parameter")
    new = {name: xp.astype(x, own[name].dtype) for name, x in after.items()}
    if MEAN in new:
        new[MEAN] = own[MEAN] + new[MEAN] - xp.astype(before[MEAN], own[MEAN].dtype)
    return tree.with_leaves(model, new)
