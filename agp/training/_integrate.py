"""Integration over the hyperparameters of exact GPs, by importance sampling around the modes of their posterior."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.bounds import Batch, log_evidence, stacked_evidence, targets_of
from agp.checks import check_whole
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.kernels import Constant
from agp.linalg import noisy_cholesky
from agp.means import ZeroMean
from agp.models import GPR, GPRMixture, Model
from agp.priors import held_leaves, limits_of
from agp.processes import Settings
from agp.repairs import public
from agp.training._coordinates import Coordinates
from agp.training._hyper_prior import HyperPrior, hyper_prior
from agp.training._importance import Weighted, sample_density
from agp.training._newton import Evidence, Expanded, Information, ascend, newton_names, why_not_newton

Numbers = npt.NDArray[np.float64]
Objective = Callable[[Numbers], tuple[float, Numbers]]

SETTINGS, LEAST_SETTINGS, ENTRIES = 256, 64, 2**23
"""The default and the minimum number of settings, and the maximum number of entries of their matrices together."""
PER_PARAMETER = 32
"""The maximum number of settings for each hyperparameter."""
MOST_POINTS, LEAST_POINTS, OPERATIONS = 1792, 192, 5e8
"""The maximum and the minimum number of points of all adaptations, and the number of operations above which there are
fewer points than the maximum."""
PER_PAIR = 48
"""The maximum number of points for each pair of hyperparameters; few hyperparameters need fewer points."""
ADAPTATIONS, PER_ADAPTATION = 9, 64
"""The maximum number of adaptations, and the minimum number of points in each."""
LEVEL = 1e3
"""The prior variance of a constant mean, in units of the targets' variance."""
STARTS = (
    {},
    {"kernel": 1.0, "noise_variance": 0.1, "slopes": 0.2},
    {"kernel": 0.3, "noise_variance": 5.0, "slopes": 5.0},
)
"""Factors of variances, relative to their prior medians, for starts of the search for modes; 1 by default."""
MODE_STEPS, MODE_TOLERANCE, LIMIT, NEAR = 40, 1e-3, 16.0, 0.2
"""The maximum number of evaluations for a mode, the predicted gain in nats at which the search ends, the largest
coordinate beyond 0 and limits, and the distance from a known mode at which the search from a further start ends."""
INSIDE = 0.05
"""The distance of starts from limits, as a fraction of the interval, or of 1 for wide intervals."""
NEGLIGIBLE = 1e-3
"""Kernels whose posterior probability is below this value are left out."""
NEGLIGIBLE_SETTING = 1e-6
"""Settings whose weight is below this value are left out."""
DIFFERENCE = 1e-4
"""The step of difference quotients of the density; those of its gradient take 100 times this step."""


@dataclass
class Integral:
    """The result of `integrate`."""

    model: GPRMixture
    log_evidence: float
    """The logarithm of p(y), the evidence averaged over the priors of the hyperparameters and of the kernels."""
    by_kernel: tuple[float, ...]
    """The log evidence of each of the given models, averaged over the priors of its hyperparameters."""
    effective: float
    """The effective number of the points that determined the moments of the hyperparameters."""

    @property
    def message(self) -> str:
        """A description of the model."""
        count = sum(one.count for one in self.model.settings)
        return f"a mixture of {count} settings of the hyperparameters"


@public(repairs=False)
def integrate(
    models: GPR | Sequence[GPR], /, *, settings: int | None = None, shares: Sequence[float] | None = None
) -> Integral:
    """Integrate over the hyperparameters of an exact GP, instead of choosing their best values.

    If there are few rows, many values of the hyperparameters explain the data. The result predicts with a mixture of
    exact GPs, weighted by the posterior probability of their hyperparameters.

    1. Newton's method finds modes of the posterior from several starts.
    2. Points are drawn from Student-t distributions around the modes, and then from distributions with the mean and the
       covariance of all previous points. Importance weights correct for the difference from the posterior. The random
       numbers are fixed, so the result is a continuous function of the data.
    3. The points of the last step are the settings of the mixture.

    A constant mean function is integrated over analytically. Other mean functions keep the coefficients of the model.

    Parameters
    ----------
    models
        A `GPR`, or several with different kernels and the same data. Several kernels are weighted by their evidence.
        Parameters without a prior of the model get weak priors: normal distributions of logarithms, relative to units
        from the data. See the documentation of priors for their values. Limits (`agp.priors.Between`) truncate priors.
        Current values of parameters are one of the starts. Zeros stay zero.
    settings
        The number S of settings. The default is 256, or fewer for more than 181 rows.
    shares
        The prior probabilities of several models, which are positive; by default equal.

    Returns
    -------
    Integral
        Its `model` is a `GPRMixture`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not a `GPR`, if the models have different data, if a prior does not fit, or if a constant mean
        has limits.
    agp.errors.NonFiniteError
        If the evidence cannot be computed for any setting.

    Examples
    --------
    Predictions average over the hyperparameters of two kernels. The evidence prefers the smooth kernel.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 15)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(15)
    >>> models = [agp.GPR.from_data(X, y, kernel=kernel) for kernel in (agp.RBF(), agp.Matern12())]
    >>> result = agp.integrate(models, settings=60)
    >>> smooth, rough = result.by_kernel
    >>> smooth > rough
    True
    >>> bool(abs(result.model.predict_mean(np.asarray([[1.5]]))[0, 0] - np.sin(1.5)) < 0.2)
    True
    """
    given = tuple(models) if isinstance(models, Sequence) else (models,)
    _check_models(given)
    odds = _valid_shares(shares, len(given))
    usual = max(LEAST_SETTINGS, min(SETTINGS, ENTRIES // given[0].X.shape[0] ** 2))
    count = usual if settings is None else check_whole("settings", settings, least=8)
    posteriors = [HyperPosterior(model) for model in given]
    counts = _share_settings([one.prior.size for one in posteriors], count)
    found = [_integrate_one(*pair) for pair in zip(posteriors, counts, strict=True)]
    logs = np.asarray([weighted.log_total for _, weighted, _ in found])
    joint = logs + np.log(odds / np.sum(odds))
    evidence = float(np.logaddexp.reduce(joint))
    posterior_shares = np.maximum(np.exp(joint - evidence) - NEGLIGIBLE, 0.0)
    posterior_shares = posterior_shares / np.sum(posterior_shares)
    kept = [(one, share) for one, share in zip(found, posterior_shares, strict=True) if share > 0.0]
    weights = np.concatenate([share * weighted.weights for (_, weighted, _), share in kept])
    mixture = given[0]._mixture_of(
        tuple(model for (model, _, _), _ in kept),
        tuple(posterior.settings(weighted.points) for (_, weighted, posterior), _ in kept),
        asarray_like(weights / np.sum(weights), given[0].X),
        given[0].mean_function,
        kept[0][0][2].level,
    )
    return Integral(mixture, evidence, tuple(logs.tolist()), min(weighted.effective for (_, weighted, _), _ in kept))


def _check_models(models: tuple[Any, ...]) -> None:
    for model in models:
        if not (isinstance(model, Model) and model._mixes):
            raise TypeError(f"integrate needs a GPR, but got {type(model).__name__}; build one with GPR.from_data.")
        model._check_parts()
        model._check_same_data(models[0]._data)
        if has_limited_constant(model):
            raise ValueError(
                "integrate does not take limits of a constant mean, over which it integrates in closed form; fix the "
                "mean (agp.priors.Fixed), or train the model with agp.fit, which respects limits."
            )
    if not models:
        raise ValueError("there are no models; pass at least one GPR.")


def has_limited_constant(model: Any, /) -> bool:
    """Whether `integrate` would integrate over a constant mean that has limits."""
    name = "mean_function.value"
    return model.mean_function.is_constant and name not in held_leaves(model) and name in limits_of(model)


def _valid_shares(shares: Sequence[float] | None, count: int) -> Numbers:
    found = np.ones(count) if shares is None else np.asarray(shares, dtype=np.float64)
    if found.shape != (count,) or not (np.isfinite(found).all() and np.all(found > 0.0)):
        raise ValueError(f"shares is {shares!r}, but must contain a positive number for each of {count} models.")
    return found


def _share_settings(sizes: list[int], total: int) -> list[int]:
    """Return the number of settings for each number of hyperparameters; few hyperparameters need fewer."""
    counts, left = [0] * len(sizes), total
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    for done, i in enumerate(order):
        counts[i] = max(8, min(PER_PARAMETER * sizes[i], left // (len(sizes) - done)))
        left -= counts[i]
    return counts


def _integrate_one(posterior: "HyperPosterior", count: int) -> tuple[GPR, Weighted, "HyperPosterior"]:
    modes = posterior.modes()
    best = max(modes, key=lambda mode: mode.value)
    pairs = [(mode.vector, mode.information.dense()) for mode in modes]
    try:
        weighted = sample_density(posterior.log_density, pairs, posterior.sizes(), count)
    except FloatingPointError:
        raise NonFiniteError(
            "the evidence is not finite for any hyperparameters; check the kernel, the data and their scale."
        ) from None
    kept = weighted.weights > NEGLIGIBLE_SETTING
    weights = weighted.weights[kept] / np.sum(weighted.weights[kept])
    return posterior.model_at(best.vector), weighted._replace(points=weighted.points[kept], weights=weights), posterior


class HyperPosterior:
    """The posterior density of the hyperparameters of a `GPR`, as a function of the points of `HyperPrior`."""

    def __init__(self, model: GPR) -> None:
        self.model = model
        names = [name for name in newton_names(model) if not name.startswith("mean_function.")]
        self.prior: HyperPrior = hyper_prior(model, names)
        data = model._data
        targets = targets_of(data)
        self.level: Array | None = None
        if model.mean_function.is_constant and "mean_function.value" not in held_leaves(model):
            variance = float(backend_of(targets).xp.mean(backend_of(targets).xp.var(targets, axis=0))) or 1.0
            self.level = asarray_like(np.asarray(LEVEL * variance), model.X)
        centred = targets - model.mean_function(model.X)[0]
        self.batch = Batch(data.X, centred, weights=data.weights, noise=data.noise)
        self.box = self.prior.intervals.box(LIMIT)

    # -- the density ------------------------------------------------------------------------------------------------

    def settings(self, points: Numbers) -> Settings:
        """Return the settings at points [S, m]."""
        moved = self.prior.coordinates.values_at(self.prior.vectors(points))
        given = tree.leaves(self.model, "parameter")

        def stacked(name: str) -> Array:
            return moved[name] if name in moved else _repeat(given[name], len(points))

        kernel = {name: stacked(f"kernel.{name}") for name in tree.leaves(self.model.kernel, "parameter")}
        return Settings(tree.with_leaves(self.model.kernel, kernel), stacked("likelihood.noise_variance"))

    def log_density(self, points: Numbers) -> Numbers:
        """Return the log evidence plus the log prior [S] at points [S, m], or minus infinity."""
        found = np.full(len(points), -np.inf)
        low, high = self.box
        inside = np.flatnonzero(np.all((points >= low) & (points <= high), axis=1))
        if len(inside):
            at = self.settings(points[inside])
            with np.errstate(all="ignore"):
                values = to_numpy(stacked_evidence(at.kernel, at.noise, self.batch, level=self.level))
                total = values.astype(np.float64) + self.prior.log_density(points[inside])
            found[inside] = np.where(np.isfinite(total), total, -np.inf)
        return found

    def sizes(self) -> list[int]:
        """Return the number of points of each adaptation."""
        N, D = self.model.X.shape
        cost = N * N * (2.0 * D + 30.0) + N**3
        most = min(MOST_POINTS, max(LEAST_POINTS, PER_PAIR * self.prior.size**2))
        points = int(min(most, max(LEAST_POINTS, OPERATIONS / cost)))
        count = min(ADAPTATIONS, points // PER_ADAPTATION)
        return [points // count] * count

    # -- modes ------------------------------------------------------------------------------------------------------

    def modes(self) -> list[Expanded]:
        """Return the modes from all starts, which may coincide."""
        work, names, held = self._with_level()
        if why_not_newton(work):
            objective: Any = self._slopes(work, names, held)
        else:
            evidence = Evidence(work, self.batch, names, held)
            objective = _Penalised(evidence, self.prior)
        kept: list[Expanded] = []
        for start in self._starts():
            found = self._climb(objective, start, kept)
            kept += [] if found is None else [found]
        if not kept:
            raise NonFiniteError("the evidence is not finite at any start; check the kernel, the data and their scale.")
        return kept

    def _climb(self, objective: Any, start: Numbers, known: list[Expanded]) -> Expanded | None:
        """Return the mode from a start, or a known mode if the search comes near it."""

        def nearest(x: Numbers) -> list[Expanded]:
            return [mode for mode in known if np.max(np.abs(mode.vector - x)) < NEAR]

        if not isinstance(objective, _Penalised):
            return _mode_without_curvature(objective, start, nearest)
        settings: Any = {"most": MODE_STEPS, "tolerance": MODE_TOLERANCE, "box": self.box}
        found = ascend(objective, start, seen=lambda x, _: bool(nearest(x.vector)), **settings)[0]  # type: ignore[arg-type]
        return found if found is None else next(iter(nearest(found.vector)), found)

    def _with_level(self) -> tuple[GPR, list[str], tuple[str, ...]]:
        """Return the model with a constant kernel instead of a constant mean, its parameters, and fixed entries."""
        model, coordinates = self.model, self.prior.coordinates
        names, held = [leaf.name for leaf in coordinates.leaves], [f"^{name}" for name in coordinates.fixed_names]
        plain: dict[str, Any] = {"priors": (), "mean_function": ZeroMean(), "offset": None}  # the targets are centred
        if self.level is None:
            return dataclasses.replace(model, **plain), names, tuple(held)
        kernel = model.kernel + Constant(self.level)
        nested = len(kernel.parts) == 2 and kernel.parts[0] is model.kernel
        if nested:
            names, held = ([name.replace("kernel.", "kernel.parts.0.", 1) for name in each] for each in (names, held))
        return dataclasses.replace(model, kernel=kernel, **plain), names, tuple(held)

    def _starts(self) -> list[Numbers]:
        """Return the starts [m]: the present parameters, and variances around their prior medians."""
        tie, coordinates = self.prior.tie, self.prior.coordinates
        present = (tie.T @ (coordinates.vector_of(self.model) - self.prior.base)) / np.sum(tie, axis=0)
        found = [self._clip(present)]
        for factors in STARTS:
            vector = np.zeros(len(tie))
            for leaf, places in zip(coordinates.leaves, coordinates.places, strict=True):
                kind = leaf.name.rpartition(".")[2]
                if kind == "noise_variance" or kind == "variance":
                    tied = tie[places].sum(axis=0).max() > 1.0
                    key = "slopes" if tied else "noise_variance" if kind == "noise_variance" else "kernel"
                    vector[places] = math.log(factors.get(key, 1.0))
            found.append(self._clip((tie.T @ vector) / np.sum(tie, axis=0)))
        return found

    def _clip(self, offsets: Numbers) -> Numbers:
        """Return the point [m] in the box at offsets [m], or next to them, away from limits."""
        low, high = self.prior.intervals
        margin = INSIDE * np.minimum(high - low, 1.0)
        return np.clip(self.prior.intervals.coordinates(np.clip(offsets, low + margin, high - margin)), *self.box)

    def _slopes(self, work: GPR, names: list[str], held: tuple[str, ...]) -> Objective:
        """Return the density and its gradient as a function of a point, for kernels without second derivatives.

        The gradient follows from pullbacks, or from difference quotients if the kernel has none.
        """
        coordinates = Coordinates(work, names, held)
        low, high = self.box

        def value_and_slope(point: Numbers) -> tuple[float, Numbers]:
            failed = -np.inf, np.zeros(len(point))
            if not np.all((point >= low) & (point <= high)):
                return failed
            model = coordinates.model_at(self.prior.vectors(point[None])[0])
            scales = coordinates.scales_at(model)
            try:
                value, pull = log_evidence(model, self.batch)
                bars = tree.leaves(pull()[0])
            except NotPositiveDefiniteError:
                return failed
            slopes = [to_numpy(scales[name] * (0.0 if bars[name] is None else bars[name])) for name in sorted(scales)]
            slope = coordinates.fold(np.concatenate([x.reshape(-1) for x in slopes]).astype(np.float64))
            density, prior_slope, _ = self.prior.expand(point)
            total = float(value) + density, self.prior.slopes_at(point).T @ slope + prior_slope
            return total if np.isfinite(total[0]) and np.isfinite(total[1]).all() else failed

        try:
            with np.errstate(all="ignore"):
                value_and_slope(self._starts()[0])
        except TypeError:  # no pullback, and the library cannot differentiate
            return self._differences
        return value_and_slope

    def _differences(self, point: Numbers) -> tuple[float, Numbers]:
        """Return the density at a point, and difference quotients."""
        size = len(point)
        steps = DIFFERENCE * np.concatenate([np.zeros((1, size)), np.eye(size), -np.eye(size)])
        values = self.log_density(point + steps)
        if not np.isfinite(values).all():
            return -np.inf, np.zeros(size)
        return float(values[0]), (values[1 : size + 1] - values[size + 1 :]) / (2.0 * DIFFERENCE)

    # -- the model at a point ---------------------------------------------------------------------------------------

    def model_at(self, point: Numbers) -> GPR:
        """Return the model at a point [m], with the expected constant mean."""
        model = self.prior.coordinates.model_at(self.prior.vectors(point[None])[0])
        if self.level is None:
            return model
        # E[constant | y] = h + c 1^T (K + c 1 1^T + V)^-1 (y - h)
        B = backend_of(model.X)
        L = noisy_cholesky(model.kernel(model.X)[0] + self.level, model._noise_by_row)
        half = B.solve_triangular(L, B.xp.ones_like(self.batch.y[:, :1]))
        shift = self.level * (half.mT @ B.solve_triangular(L, self.batch.y))[0, :]
        value = model.mean_function.value
        return tree.with_leaves(model, {"mean_function.value": value + (shift if value.ndim else B.xp.mean(shift))})


class _Penalised:
    """The evidence plus the log prior to second order, as a function of the coordinates of the prior."""

    def __init__(self, evidence: Evidence, prior: HyperPrior) -> None:
        self.evidence, self.prior = evidence, prior
        self.linear = np.zeros(prior.size, dtype=bool)

    def __call__(self, point: Numbers) -> Expanded | None:
        found = self.evidence(self.prior.vectors(point[None])[0])
        if found is None:
            return None
        tie = self.prior.slopes_at(point)
        value, slope, curvature = self.prior.expand(point)
        eigenvalues, vectors = np.linalg.eigh(curvature)
        rows = [found.information.vectors @ tie, vectors.T * np.sqrt(np.maximum(eigenvalues, 0.0))[:, None]]
        information = Information(np.concatenate(rows), tie.T @ found.information.diagonal)
        mean = found.mean._replace(projected=found.mean.projected @ tie)  # without rows, as there are no coefficients
        return found._replace(
            vector=point,
            value=found.value + value,
            slope=tie.T @ found.slope + slope,
            information=information,
            mean=mean,
        )


def _mode_without_curvature(
    objective: Objective, start: Numbers, nearest: Callable[[Numbers], list[Expanded]]
) -> Expanded | None:
    """Find a mode by L-BFGS, and its curvature by difference quotients of the gradient; or return a known mode."""
    from scipy.optimize import minimize

    first = objective(start)[0]
    if not np.isfinite(first):
        return None
    highest = 1e3 * (1.0 + abs(first)) - first

    def descent(point: Numbers) -> tuple[float, Numbers]:
        with np.errstate(all="ignore"):
            value, slope = objective(point)
        return (-value, -slope) if np.isfinite(value) else (highest, 0.0 * slope)

    found = minimize(descent, start, jac=True, method="L-BFGS-B")
    if not found.fun < highest:
        return None
    if seen := nearest(found.x):
        return seen[0]
    wide = 100.0 * DIFFERENCE
    rows = [descent(found.x + wide * e)[1] - descent(found.x - wide * e)[1] for e in np.eye(len(start))]
    values, vectors = np.linalg.eigh(np.asarray(rows) / (4.0 * wide) + np.asarray(rows).T / (4.0 * wide))
    root = vectors.T * np.sqrt(np.maximum(values, 0.0))[:, None]
    nothing: Any = None
    return Expanded(found.x, None, -float(found.fun), 0.0 * found.x, Information(root, 0.0 * found.x), nothing, 0.0)


def _repeat(x: Array, count: int) -> Array:
    xp = backend_of(x).xp
    return xp.broadcast_to(x[None, ...], (count, *x.shape))
