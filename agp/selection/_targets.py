"""Transforms of targets as candidates: which are compared, with which constants, and which one is the best."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import asarray_like, backend_of, to_numpy
from agp.checks import check_choice
from agp.errors import NotPositiveDefiniteError, count_of
from agp.kernels import Kernel
from agp.likelihoods import TRANSFORMS, Logit, Transform, YeoJohnson
from agp.means import ConstantMean
from agp.priors import Fixed, Relative
from agp.selection._climb import Climber, StageOver, ignore_repairs
from agp.selection._given import Data, Plan, all_names, average
from agp.selection._race import Mixed, mix
from agp.selection._seasons import Times
from agp.selection._signal import CHANCE, CLEAR
from agp.selection._trial import Candidate, Trial

RATIO, POWER_RATIO = 2.0, 3.0
"""Transforms are compared only if their slope at some targets is more than so many times that at others. A power must
be further from linear, because two numbers were fitted to the targets."""
SKEWNESS_GAIN = 0.02
"""A power is compared only if the targets alone gain so many nats per row, and more than chance."""
TRIAL_STEPS, TRIAL_MARGIN = 5, 0.02
"""The maximum number of evaluations for a candidate, and how many nats per row it may seem to remain behind."""
WIDENED, NEAR_END = 0.005, 0.05
"""If targets lie at an end of their interval, both ends move outwards by `WIDENED` times its length, and also if no
target is within `NEAR_END` times its length of an end: no target tells that the ends cannot be reached."""
PERCENT, NEAR_PERCENT, HALF = 100.0, 90.0, 50.0
"""Targets from 0 to 100 may be percentages if the largest is 100, or if it is above `NEAR_PERCENT` and the median above
`HALF`. Otherwise they may be prices, say, and further targets may be above 100."""
LEAST_DIFFERENT = 10
"""The smallest number of different targets for which transforms are compared. A transform that is steep at a few values
makes their densities as large as it likes, whatever is predicted."""
CLIP = 3.0
"""The largest difference in nats between the densities of a row that counts fully."""
POWER_ROWS = 10_000
"""The maximum number of targets for the power and the scale."""
POWERS, SCALES = np.linspace(0.0, 2.0, 41), (1.0, 0.5, 0.25, 0.125)
"""The powers, and the scales as fractions of the spread, whose likelihoods are compared."""


# -- which transforms are possible ------------------------------------------------------------------------------------


def transforms_to_compare(asked: Any, plan: Plan, data: Data) -> tuple[str, ...]:
    """Return the names of transforms. Raise TypeError or ValueError for names that are unknown or make no sense."""
    if asked is None:
        return ()
    every = isinstance(asked, str) and asked == "auto"
    if not every and (isinstance(asked, str) or not isinstance(asked, Iterable)):
        known = ", ".join(map(repr, TRANSFORMS))
        raise TypeError(f"transforms is {asked!r}, but must be None, 'auto', or a list of some of {known}.")
    names = [*TRANSFORMS] if every else [*asked]
    for name in names:
        check_choice("transforms", name, tuple(TRANSFORMS))
    why = _why_not_transformed(plan, data)
    if why and names and not every:
        raise ValueError(f"transforms is given, but {why}; leave it out.")
    return () if why else tuple(name for name in TRANSFORMS if name in names)


def _why_not_transformed(plan: Plan, data: Data) -> str:
    """Return why targets must stay in their own units, or an empty string."""
    if backend_of(data.X).is_lazy:
        return "the rows are not in memory"
    if data.y.shape[1] != 1:
        return f"y has {count_of(data.y.shape[1], 'column')}"
    if data.noise is not None:
        return "the noise of the rows is known in the unit of the targets"
    mean = plan.mean_function
    in_units = {
        "likelihood": plan.likelihood.noise_variance is not None,
        "mean_function": mean is not None and not (isinstance(mean, ConstantMean) and mean.value is None),
        "priors": _has_units(plan),
        "kernel": isinstance(plan.kernel, Kernel) and any("variance" in name for name in tree.leaves(plan.kernel)),
    }
    given = next((name for name, is_given in in_units.items() if is_given), None)
    return f"{given} has values in the unit of the targets" if given else ""


def _has_units(plan: Plan) -> bool:
    """Whether a prior or a limit refers to a parameter whose unit is that of the targets."""
    densities = {} if plan.priors is None or isinstance(plan.priors, str) else plan.priors
    pairs = [*densities.items(), *plan.limits]
    names = [f"kernel.{name}" for kernel in plan.kernels().values() for name in all_names(kernel)]
    in_units = ["likelihood.noise_variance", "mean_function.value", "mean_function.weights"]
    in_units += [name for name in names if "variance" in name]
    return any(
        tree.matches(name, tree.whole_pattern(pattern))
        for pattern, prior in pairs
        for name in in_units
        if not isinstance(prior, Fixed | Relative)
    )


# -- the constants of transforms --------------------------------------------------------------------------------------


def transform_of(name: str, y: Any, weights: Any = None) -> Transform:
    """Return the transform with this name for targets y [N] or [N, P] on the host, which may contain NaN.

    "yeo-johnson" has the power and the scale with the largest likelihood of the targets alone, if the transformed
    targets are normal. The interval of "logit" is from 0 to 1 or, for larger targets, from 0 to 100; if targets lie at
    its ends, or if none is within 5 % of them, both ends move outwards by 0.005 times its length.

    Raises
    ------
    ValueError
        If the transform is not possible for these targets.
    """
    numbers = np.asarray(y, dtype=np.float64)
    if name == "yeo-johnson" and numbers.ndim == 2 and numbers.shape[1] > 1:
        raise ValueError(
            f"the transform 'yeo-johnson' is for one target, but y has {numbers.shape[1]}; fit one model per target."
        )
    flat = numbers.reshape(-1)
    known = ~np.isnan(flat)
    if name == "yeo-johnson":
        w = np.ones(len(flat)) if weights is None else np.asarray(weights, dtype=np.float64).reshape(-1)
        return _fit_power(flat[known], w[known])
    found = _interval(flat[known]) if name == "logit" else TRANSFORMS[name]()
    found.check_targets(flat[known])
    return found


def _interval(y: Any) -> Logit:
    """Return the transform of proportions or percentages."""
    upper = 1.0 if y.max() <= 1.0 else PERCENT
    if y.min() < 0.0 or y.max() > upper:
        some = y.min() if y.min() < 0.0 else y.max()
        raise ValueError(
            f"the transform 'logit' needs targets from 0 to 1, or from 0 to 100, but y has {some:g}; use another."
        )
    apart = min(y.min(), upper - y.max()) / upper
    wider = 0.0 if 0.0 < apart < NEAR_END else WIDENED * upper
    return Logit(0.0 - wider, upper + wider)


def _fit_power(y: Any, w: Any) -> YeoJohnson:
    """Return the Yeo-Johnson transform with the largest likelihood of targets [N] with weights, centred at the median.

    The likelihood is compared on a grid; the power is then the peak of a parabola through the best three values. It is
    that of at most `POWER_ROWS` targets at equal steps of their ranks.
    """
    if len(y) > POWER_ROWS:
        order = np.argsort(y, kind="stable")[np.linspace(0, len(y) - 1, POWER_ROWS).round().astype(int)]
        y, w = y[order], w[order]
    centre, low, high = _weighted_quantiles(y, w, (0.5, 0.25, 0.75))
    spread = (high - low) / 1.349 or math.sqrt(np.average((y - centre) ** 2, weights=w))
    if not spread > 0.0:
        return YeoJohnson(1.0, centre, abs(centre) or 1.0)
    found: list[tuple[float, float, float]] = []
    for scale in SCALES:
        density = [_alone(YeoJohnson(power, centre, scale * spread), y, w) for power in POWERS]
        best = int(np.argmax(density))
        power = float(POWERS[best])
        if 0 < best < len(POWERS) - 1:
            before, at, after = density[best - 1 : best + 2]
            power += 0.5 * float((before - after) / (before - 2.0 * at + after)) * float(POWERS[1] - POWERS[0])
        found.append((_alone(YeoJohnson(power, centre, scale * spread), y, w), power, scale * spread))
    _, power, scale = max(found)
    return YeoJohnson(power, centre, scale)


def _weighted_quantiles(y: Any, w: Any, levels: tuple[float, ...]) -> list[float]:
    order = np.argsort(y)
    share = np.cumsum(w[order])
    places = np.searchsorted(share, np.asarray(levels) * share[-1])
    return [float(y[order[place]]) for place in places]


def _alone(transform: Transform | None, y: Any, w: Any) -> float:
    """Return the average log density of targets [N] if the transformed targets are normal, up to a constant."""
    z = y if transform is None else transform.forward(y)
    variance = np.average((z - np.average(z, weights=w)) ** 2, weights=w)
    slope = 0.0 if transform is None else np.average(transform.log_slope(y), weights=w)
    return slope - 0.5 * math.log(max(variance, np.finfo(float).tiny))


def candidates_of(names: tuple[str, ...], data: Data) -> dict[str, Transform]:
    """Return the transforms that can matter for these targets, by name, the simplest first."""
    y, weights = data.targets_on_host()
    found: dict[str, Transform] = {}
    if len(np.unique(y)) < LEAST_DIFFERENT:
        return found
    for name in names:
        try:
            one = transform_of(name, y, weights)
        except ValueError:
            continue
        if _matters(one, y[:, 0], np.ones(len(y)) if weights is None else weights):
            found[name] = one
    return found


def _matters(transform: Transform, y: Any, w: Any) -> bool:
    """Whether a transform is far from linear, and may be meant."""
    slopes = transform.log_slope(y)
    if not np.ptp(slopes) > math.log(POWER_RATIO if isinstance(transform, YeoJohnson) else RATIO):
        return False
    if isinstance(transform, Logit):
        most = float(y.max())
        return transform.upper < PERCENT or most == PERCENT or (most > NEAR_PERCENT and float(np.median(y)) > HALF)
    if isinstance(transform, YeoJohnson):
        return _alone(transform, y, w) - _alone(None, y, w) > max(SKEWNESS_GAIN, CHANCE / float(np.sum(w)))
    return True


# -- the comparison ---------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """The densities of the targets in their own units, for one transform or for none."""

    transform: Transform | None
    each: Any
    """The log densities of rows given the others [N], on the host."""
    evidence: float
    """The log evidence in nats per observation."""


class Choice(NamedTuple):
    """A transform to search with, or none."""

    transform: Transform | None = None
    is_doubtful: bool = False
    """Whether only the evidence prefers the transform, so that the best candidates with and without it must decide."""


def choose_transform(
    plan: Plan, climb: Climber, best: Trial, sample: Data, every: Data
) -> tuple[Choice, list[Candidate]]:
    """Choose a transform of the targets of all rows by a sample, of which `best` is an exact GP.

    Also return the candidates. The constants of the transforms are those of all targets, which may have zeros or ends
    of an interval that the sample lacks.

    The kernel that is the best without a transform may predict a few rows so badly with one that the left-out rows
    hide its gain, though other kernels would not.
    """
    tried: list[Candidate] = []
    transforms = candidates_of(plan.transforms, every)
    if not transforms or best.model.X.shape[0] != sample.X.shape[0]:
        return Choice(), tried
    try:
        found = _compare(climb, best, sample, transforms, tried)
    except StageOver:
        return Choice(), tried
    chosen = _simplest(found, sample).transform
    likely = max(found, key=lambda one: one.evidence if math.isfinite(one.evidence) else -math.inf)
    if chosen is None and sample.observations * (likely.evidence - found[0].evidence) > CLEAR:
        return Choice(likely.transform, is_doubtful=True), tried
    return Choice(chosen), tried


def predicts_better(with_transform: Trial, without: Trial, transform: Transform, sample: Data) -> bool:
    """Whether a candidate for transformed targets predicts left-out rows of the sample better, by more than chance."""
    found = [
        _measure(without.model, without.scores.evidence, None, sample),
        _measure(with_transform.model, with_transform.scores.evidence, transform, sample),
    ]
    return _simplest(found, sample).transform is not None


def mix_transforms(
    plan: Plan, climb: Climber, mixed: Mixed, data: Data, watch: Any, times: Sequence[Times] = ()
) -> tuple[Transform | None, Mixed, list[Candidate]]:
    """Choose a transform by mixtures over the hyperparameters. Also return its mixture, and other candidates.

    Transforms are first compared at the mode. Only the one that wins there has a mixture of its own.
    """
    tried: list[Candidate] = []
    transforms = candidates_of(plan.transforms, data)
    if not transforms:
        return None, mixed, tried
    try:
        mode = climb("transform none", mixed.found.kernel, mixed.found.model.mode, 1)
        quick = _compare(climb, mode, data, transforms, tried)
    except StageOver:
        return None, mixed, tried
    transform = _simplest(quick, data).transform
    if transform is None or watch.is_done:
        return None, mixed, tried
    again = mix(plan, transform_targets(data, transform), watch, times)
    found = [
        _measure(one.found.model, one.found.bound / data.observations, kind, data)
        for one, kind in ((mixed, None), (again, transform))
    ]
    chosen = _simplest(found, data)
    return (None, mixed, tried) if chosen.transform is None else (transform, again, tried)


def _measure(model: Any, evidence: float, transform: Transform | None, data: Data) -> Compared:
    """Return the densities of a model of transformed targets, in the units of targets that are not transformed."""
    y, weights = data.targets_on_host()
    slopes = 0.0 * y[:, 0] if transform is None else transform.log_slope(y)[:, 0]
    return Compared(transform, _left_out(model) + slopes, evidence + float(average(slopes, weights)))


def _compare(
    climb: Climber, best: Trial, sample: Data, transforms: dict[str, Transform], tried: list[Candidate]
) -> list[Compared]:
    """Compare transforms, each trained in a few steps from the best hyperparameters; the first result is that of none.

    The transformed targets are shifted and scaled to the mean and the variance of the targets, so that the
    hyperparameters keep their units. The candidates are added to `tried`.
    """
    y, weights = sample.targets_on_host()
    (mean,), (variance,) = sample.moments()
    found = [Compared(None, _left_out(best.model), best.scores.evidence)]
    for name, one in transforms.items():
        z = one.forward(y)
        (level,), (spread,) = Data(None, z, weights).moments()
        factor = math.sqrt(variance / spread)
        slopes = one.log_slope(y)[:, 0] + math.log(factor)
        gain = float(average(slopes, weights))
        rival = best._replace(scores=_add(best.scores, -gain))
        model = tree.with_leaves(best.model, {"y": asarray_like(mean + factor * (z - level), best.model.y)})
        trial = climb(f"transform {name}", best.kernel, model, TRIAL_STEPS, rival=rival, margin=TRIAL_MARGIN)
        scores = _add(trial.scores, gain)._replace(kernel=f"{best.kernel} of {name}")
        tried.append(scores)
        found.append(Compared(one, _left_out(trial.model) + slopes, scores.evidence))
    return found


def _add(scores: Candidate, gain: float) -> Candidate:
    return scores._replace(evidence=scores.evidence + gain, log_density=scores.log_density + gain)


def _left_out(model: Any) -> Any:
    """Return the leave-one-out log densities [N] on the host, or -inf."""
    try:
        with ignore_repairs():
            return np.asarray(to_numpy(model.leave_one_out()), dtype=np.float64)
    except NotPositiveDefiniteError:
        return np.full(model.X.shape[0], -np.inf)


def _score(one: Compared, sample: Data) -> float:
    """Return the average log density of left-out rows or, for few rows per column, the evidence."""
    found = one.evidence if sample.has_few_rows else float(average(one.each, sample.targets_on_host()[1]))
    return found if math.isfinite(found) else -math.inf


def _simplest(found: list[Compared], sample: Data) -> Compared:
    """Return the first result that is not worse than the best one by more than chance."""
    best = max(found, key=lambda one: _score(one, sample))
    return next(one for one in found if one is best or not _exceeds(best, one, sample))


def _exceeds(one: Compared, other: Compared, sample: Data) -> bool:
    """Whether the average of the differences between rows exceeds its standard error, or does so after clipping.

    Without clipping, a few rows that are improbable without a transform would hide its gain in a large standard error.
    With fewer than five rows per column, the evidence must be larger by more than chance instead.
    """
    if sample.has_few_rows:
        return one.evidence - other.evidence > CHANCE / sample.observations
    weights = sample.targets_on_host()[1]
    apart = np.nan_to_num(one.each - other.each, nan=0.0, posinf=CLIP, neginf=-CLIP)
    return any(_is_positive(d, weights, sample.observations) for d in (apart, np.clip(apart, -CLIP, CLIP)))


def _is_positive(x: Any, weights: Any, observations: float) -> bool:
    mean = float(average(x, weights))
    return mean > math.sqrt(float(average((x - mean) ** 2, weights)) / observations)


def transform_targets(data: Data, transform: Transform) -> Data:
    """Return the rows with transformed targets."""
    return data._replace(y=transform.forward(data.y))


def mean_log_slope(transform: Transform | None, data: Data) -> float:
    """Return the average of log g'(y) over observations in rows whose targets are z = g(y), or 0 for no transform."""
    if transform is None:
        return 0.0
    z, weights = data.targets_on_host()
    return float(average(np.sum(transform.log_slope(transform.inverse(z)), axis=1), weights))


def in_own_units(scores: Candidate, transform: Transform | None, slope: float, held: float, bound: float) -> Candidate:
    """Return the scores of a candidate in the units of the targets, given the average log slopes at its rows."""
    if transform is None:
        return scores
    more = {"held_out": scores.held_out + held, "bound": scores.bound + bound}
    return _add(scores, slope)._replace(kernel=f"{scores.kernel} of {transform.short_name}", **more)
