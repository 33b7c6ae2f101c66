"""Trend and seasons: parts of the kernel that depend on a column of times alone, and the comparison of their forecasts.

Parts are added to the best kernel one by one. If the rows are a series, rows are predicted from the rows before them;
otherwise, each row is predicted from all others.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import backend_of, to_numpy
from agp.errors import NotPositiveDefiniteError
from agp.kernels import RBF, Kernel, Linear, Matern32, Seasonal
from agp.selection._climb import Climber, ignore_repairs, kernel_at, model_on, on_rows
from agp.selection._given import KERNELS, ROUGHEST, Data, Plan, split_name, with_base
from agp.selection._pruning import narrow_kernel
from agp.selection._signal import CLEAR
from agp.selection._trial import Trial, exceeds

Numbers = npt.NDArray[np.float64]

YEAR, WEEK, DAY = 365.25, 7.0, 1.0
"""Periods in days."""
SPANS = {YEAR: 1.9, WEEK: 6.0, DAY: 4.0}
"""The least number of periods that times must span."""
GAPS = {YEAR: 0.34, WEEK: 0.22, DAY: 0.34}
"""The largest usual gap between times, in periods."""
DISTINCT, REGULAR = 0.95, 0.7
"""Rows are a series if at least so many times are different, and so many gaps are at most twice as large or small as
usual."""
LEAST_TIMES = 20
"""The least number of different times."""
ORIGINS, BLOCKS = (0.4, 0.6, 0.8), 5
"""Shares of the rows before a forecast, which ends at the next share, and the number of blocks of each forecast whose
averages are compared, because the errors of neighbouring rows are alike."""
DECAY, SHORT = 2.0, 0.03
"""The initial lengthscales of changes of the season, and of a second smooth part, in spans of the times."""
ALIKE = -1.0
"""The least gain in nats from a linear trend, which need not raise the evidence: forecasts then return to it."""
STEPS = 12
"""The maximum number of evaluations of the evidence for each part."""
WITHOUT = " without times"
"""The end of the name of a kernel that does not depend on the times."""
SMOOTHEST = "rbf"
"""The kernel whose forecasts are too certain: it takes the trend to be smooth beyond the last row."""


class Times(NamedTuple):
    """What is known of a column of times."""

    column: int
    span: float
    """The time between the first and the last row, in days."""
    periods: list[float]
    """The periods in days that can be told from the times."""
    is_series: bool
    """Whether the rows are a record over time, with one row for each time."""


def describe_times(X: Any, columns: Iterable[int]) -> list[Times]:
    """Return what is known of columns of times of inputs X [N, D], in days, without those with few different times."""
    found = (_describe(_column(X, column), column) for column in columns)
    return [one for one in found if one is not None]


def moments_of(times: Iterable[Times], X: Any) -> Numbers | None:
    """Return the times [N] of the rows if they are a series, otherwise None."""
    return next((_column(X, one.column) for one in times if one.is_series), None)


def _column(X: Any, column: int) -> Numbers:
    return to_numpy(backend_of(X).gather(X[:, column])).astype(np.float64)


def _describe(times: Numbers, column: int) -> Times | None:
    moments = np.unique(times)
    if len(moments) < LEAST_TIMES:
        return None
    span, gaps = float(moments[-1] - moments[0]), np.diff(moments)
    usual = float(np.median(gaps))
    periods = [at for at in SPANS if span >= SPANS[at] * at and usual <= GAPS[at] * at]
    regular = np.mean((gaps >= 0.5 * usual) & (gaps <= 2.0 * usual)) >= REGULAR
    return Times(column, span, periods, bool(regular and len(moments) >= DISTINCT * len(times)))


def seasons_for(times: Times, X: Any) -> dict[str, Kernel]:
    """Return the kernels of the seasons in a column of times of inputs X [N, D], by name."""
    kernels = ((period, Seasonal(period=period) * RBF(lengthscale=DECAY * times.span)) for period in times.periods)
    return {f"seasonal({period:g}) * rbf": on_times(kernel, times, X) for period, kernel in kernels}


def on_times(kernel: Kernel, times: Times, X: Any) -> Kernel:
    """Return a kernel on a column of times of inputs X [N, D]."""
    return kernel if X.shape[1] == 1 else kernel.on((times.column,))


def train_without_times(plan: Plan, sample: Data, climb: Climber, best: Trial, times: Times) -> Trial | None:
    """Train a candidate for a series as a function of the other columns alone; None if there are none.

    Rows at random times are best predicted from rows at about the same time, which forecasts do not have.
    """
    width = sample.X.shape[1]
    kept = tuple(d for d in range(width) if d != times.column)
    kernel = narrow_kernel(best.model.kernel, kept, width) if kept and times.is_series else None
    if kernel is None:
        return None
    kernel = kernel.on(kept)
    model = on_rows(best.model, sample, plan.parts(kernel, sample)["priors"], kernel)
    return climb("without times", best.kernel + WITHOUT, model, STEPS)


class Rated(NamedTuple):
    """A candidate, and how well it predicts."""

    trial: Trial
    each: Any
    """The average log densities of blocks of rows that are forecast, or the log densities of rows given the others."""


class Seasons:
    """The search for parts of the kernel for a column of times.

    Parameters
    ----------
    plan, sample, climb
        As for `Race`.
    times
        The column.
    """

    def __init__(self, plan: Plan, sample: Data, climb: Climber, times: Times) -> None:
        self.plan, self.sample, self.climb, self.times = plan, sample, climb, times
        self.order = np.argsort(sample.X[:, times.column], kind="stable")

    def run(self, best: Trial) -> Trial:
        """Return the best candidate with the parts that improve it, or the candidate itself.

        Parts are added as long as the evidence rises clearly. Of all candidates on this path, the simplest one wins
        that predicts as well as the best. The path starts without the times if forecasts are then better.
        """
        path = [Rated(best, self._densities(best.model))]
        if (without := self._without_times(best)) is not None and exceeds(without.each, path[0].each):
            path = [without]
        for name, part in self._parts(best.model.kernel).items():
            last = path[-1].trial
            kernel = last.model.kernel + kernel_at(part, *self.sample.repeat_rows())
            one = self._rate(f"{last.kernel} + {name}", last.model, kernel)
            gain = self.sample.observations * (one.trial.scores.evidence - last.scores.evidence)
            if gain > (ALIKE if name == "linear" else CLEAR):
                path.append(one)
        found = simplest(path)
        return found.trial if found is path[0] else self._with_best_base(found).trial

    def _without_times(self, best: Trial) -> Rated | None:
        trial = train_without_times(self.plan, self.sample, self.climb, best, self.times)
        return None if trial is None else Rated(trial, self._densities(trial.model))

    def _parts(self, kernel: Kernel) -> dict[str, Kernel]:
        """Return the kernels that may be added to a kernel, by name: a trend, seasons and a second smooth part.

        In less than two years, a trend cannot be told from the season.
        """
        X, times = self.sample.X, self.times
        parts = seasons_for(times, X)
        has_trend = any(isinstance(node, Linear) for node in tree.nodes(kernel, Kernel).values())
        if times.span >= SPANS[YEAR] * YEAR and not has_trend:
            parts = {"linear": on_times(Linear.centred(X[:, times.column : times.column + 1]), times, X)} | parts
        return parts | {"matern32": on_times(Matern32(lengthscale=SHORT * times.span), times, X)}

    def _with_best_base(self, found: Rated) -> Rated:
        """Return the candidate with the roughest base kernel that predicts as well as the best.

        Another kernel may have been better before the parts were added.
        """
        name, parts = split_name(found.trial.kernel)
        if name not in KERNELS:
            return found
        rated, model = {name: found}, found.trial.model
        others = [other for other in ROUGHEST if other != SMOOTHEST or not self.times.is_series]
        for other in others:
            if other != name:
                rated[other] = self._rate(f"{other}{parts}", model, with_base(model.kernel, KERNELS[other]))
        return simplest([rated[other] for other in others])

    def _rate(self, name: str, model: Any, kernel: Kernel) -> Rated:
        """Train a model with another kernel, and compute the densities of its predictions."""
        begun = on_rows(model, self.sample, self.plan.parts(kernel, self.sample)["priors"], kernel)
        trial = self.climb("seasons", name, begun, STEPS)
        return Rated(trial, self._densities(trial.model))

    def _densities(self, model: Any) -> Any:
        try:
            with ignore_repairs(), np.errstate(all="ignore"):
                return np.concatenate([*self._forecasts(model)]) if self.times.is_series else model.leave_one_out()
        except NotPositiveDefiniteError:
            return np.full(len(ORIGINS) * BLOCKS if self.times.is_series else len(self.order), -np.inf)

    def _forecasts(self, model: Any) -> Iterator[Any]:
        """Yield the average log densities of blocks of rows, given the rows before an origin."""
        ends = [round(share * len(self.order)) for share in (*ORIGINS, 1.0)]
        for first, last in pairwise(ends):
            late = self.sample.at(self.order[first:last])
            noise = None if late.noise is None else late.noise[:, None]
            found = model_on(model, self.sample.at(self.order[:first])).predict(late.X, observed=True, noise=noise)
            squares = (late.y - found.mean) ** 2 / found.variance
            each = -0.5 * np.sum(np.log(2.0 * math.pi * found.variance) + squares, axis=1)
            yield np.asarray([np.mean(block) for block in np.array_split(each, min(BLOCKS, len(each)))])


def simplest(found: Sequence[Rated]) -> Rated:
    """Return the first of the candidates that the best does not exceed by more than the standard error."""
    best = max(found, key=lambda one: np.mean(one.each))
    return next(one for one in found if one is best or not exceeds(best.each, one.each))
