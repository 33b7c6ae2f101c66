"""Hyperparameters from few rows: the search from many starts, and the integration over them."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import backend_of, to_numpy
from agp.kernels import RBF, Constant, Kernel, Linear, Matern52
from agp.models import GPR
from agp.priors import Between, as_priors, assign_priors, limits_of, restrict, with_priors
from agp.selection._climb import NOISE, Climber, exact_gp, kernel_at, on_rows
from agp.selection._given import KERNELS, Data, Plan, finite_average, with_base
from agp.selection._seasons import Seasons, Times, seasons_for
from agp.selection._signal import CHANCE
from agp.selection._skewed import SUFFIX, try_warp, warp_kernel, warp_of
from agp.selection._trial import Candidate, Found, Trial, sort_trials
from agp.starts import spread_starts
from agp.training import Evidence, Progress, columns_to_tie, fit, integrate, why_not_newton
from agp.tree import REAL

RACE_ROWS, SAMPLE = 250, 500
"""The numbers of rows for comparing starts, at most half of the sample, and for comparing kernels."""
SMALL = 100
"""In samples with fewer rows than this, starts are compared on all rows."""
HEAT_STEPS, RACE_STEPS, STEPS = 3, 8, 10
"""The maximum numbers of evaluations from each start, further ones from the best starts, and those on the sample."""
EM_STEPS, LEAST_FACTOR = 2, 1e-3
"""The number of EM iterations for the variances of slopes, and the smallest factor by which one iteration changes them.
"""
LINEAR_STEPS, LINEAR_CAUTION = 20, 10.0
"""The maximum number of evaluations for a linear part, and a multiple of the predicted gain, because its variances move
far."""
FINALISTS = 2
"""The number of starts that are trained further."""
MARGIN = 0.02
"""Training ends if a candidate seems to remain behind the best one by this many nats per observation."""
FEW_ROWS_HEAT, FEW_ROWS_STEPS = 8, 20
"""The maximum numbers of evaluations from each start, and from the best starts, if lengthscales have priors."""
SHARP, QUIET = 2.0, 0.1
"""The power of the relevance for starts in which few columns count, and the factor of their noise variance."""
RACER, FEW_ROWS_RACER = "matern52", "rbf"
"""The kernels with which starts are compared, the second one if lengthscales have priors."""
KEPT = 2
"""The number of different optima that are trained on more rows."""
DISTINCT, SAME, CLIP, NEGLIGIBLE, TINY = 0.3, 1e-3, 2.0, 6.0, 1e-300
"""Two optima are different if their evidence differs by more than `SAME` nats per row, and a logarithm of their
hyperparameters, clipped at `CLIP`, by more than `DISTINCT`. Kernel parameters below exp(-`NEGLIGIBLE`) are alike. A
noise variance of zero counts as `TINY`."""
CAP, DROP = 1.5, 2.0
"""The maximum logarithm of revived lengthscales, in spreads of their columns, and the fall of the noise variance's."""
USUAL_COLUMNS = 8
"""Up to this number of columns, the maximum of revived lengthscales does not depend on the number."""
RADIUS = 0.5
"""The first radius of the trust region for revived columns."""
FEW_ROWS, FEW_PARAMETERS, MOST_ROWS = 200, 30, 1000
"""The maximum numbers of rows and of hyperparameters for which "auto" integrates, and the maximum number of rows for
"mixture"."""
ONE_KERNEL_ROWS = 100
"""Up to this number of rows, only one kernel is used."""
CONSTANT_SHARE = 0.1
"""The prior probability that the function is constant, relative to that of another kernel."""
LEAST_SECONDS = 2.0
"""The minimum time limit for which "auto" integrates."""


class Race:
    """The comparison of starts and kernels on a sample of the rows.

    Parameters
    ----------
    plan
        What to compare.
    wide, sample
        Rows from which starting values are computed, and rows for comparing kernels.
    climb
        The training of a candidate.
    linear
        Whether to add a linear kernel to the best kernel and then to warp skewed columns, if the plan leaves the choice
        open.
    compete
        Whether the training of a kernel ends early if it seems to be worse than the best one on the sample.
    times
        The columns of times.

    Attributes
    ----------
    beaten
        Candidates that predict worse than the best one with warped inputs, or with trend and seasons.
    """

    def __init__(
        self,
        plan: Plan,
        wide: Data,
        sample: Data,
        climb: Climber,
        *,
        linear: bool = True,
        compete: bool = True,
        times: Sequence[Times] = (),
    ) -> None:
        self.plan, self.climb, self.wide, self.sample, self.compete = plan, climb, wide, sample, compete
        self.beaten: list[Trial] = []
        self.linear = linear and isinstance(plan.kernel, str)
        self.few = sample.has_few_rows
        self.times = times if isinstance(plan.kernel, str) else ()

    def run(self) -> Iterator[list[Trial]]:
        """Yield the candidates after each stage, the best first."""
        kernels = self.plan.kernels()
        racer = FEW_ROWS_RACER if self.few else RACER
        first = racer if racer in kernels else next(iter(kernels))
        found = (self._with_priors if self.few else self._first)(first, kernels.pop(first))
        yield found
        for name in kernels:
            found = sort_trials([*found, self._again(name, found[0])])
            yield found
        if self.linear:
            found = sort_trials([*found, *self._with_linear(found[0])])
            yield found
            if better := try_warp(self.plan, self.sample, self.climb, found[0], warp_of(self.plan, self.wide.X)):
                self.beaten += found
                found = better
                yield found
        for times in self.times:
            best = Seasons(self.plan, self.sample, self.climb, times).run(found[0])
            if best is not found[0]:
                self.beaten += found
                found = [best]
                yield found

    def _starts(self, kernel: Kernel, data: Data, **options: Any) -> list[Any]:
        """Return models of these rows from several starts, which are computed from more rows."""
        X, y = self.wide.repeat_rows()
        model = exact_gp(data, kernel=kernel_at(kernel, X, y), **self.plan.parts(kernel, data))
        found = []
        for start in spread_starts(kernel, X, y, **options):
            own = tree.leaves(start, "parameter").items()
            leaves = {f"kernel.{name}": x for name, x in own if name.endswith(("lengthscale", "period"))}
            found.append(restrict(tree.with_leaves(model, leaves), limits_of(model)))
        return found

    def _first(self, name: str, kernel: Kernel) -> list[Trial]:
        """Compare starts on few rows, and train different optima and revived columns on the sample."""
        rows = self.sample.X.shape[0]
        small = self.sample if rows < SMALL else self.sample.at(np.arange(min(RACE_ROWS, rows // 2)))
        begun = sort_trials(self.climb("heat", name, one, HEAT_STEPS) for one in self._starts(kernel, small))
        kept = sort_trials(self.climb("race", name, one.model, RACE_STEPS) for one in begun[:FINALISTS])
        found: list[Trial] = []
        for one in distinct(kept):
            model = on_rows(one.model, self.sample, self.plan.parts(one.model.kernel, self.sample)["priors"])
            found = sort_trials([*found, self.climb("search", name, model, STEPS, **_against(found))])
        return sort_trials([*found, *train_revived(self.climb, found[0], STEPS, margin=MARGIN)])

    def _again(self, name: str, best: Trial) -> Trial:
        """Train another kernel from the hyperparameters of the best candidate."""
        model = tree.replace(best.model, {"kernel": with_base(best.model.kernel, KERNELS[name])})
        return self.climb("search", name, model, STEPS, **(_against([best]) if self.compete else {}))

    def _with_priors(self, name: str, kernel: Kernel) -> list[Trial]:
        """Train a kernel from several starts on the whole sample, because fewer rows do not tell optima apart.

        Starts in which few columns count, and with little noise, lead to optima that others miss.
        """
        starts = self._starts(kernel, self.sample)
        for one in self._starts(kernel, self.sample, power=SHARP):
            noise = one.likelihood.noise_variance
            starts.append(restrict(tree.with_leaves(one, {NOISE: QUIET * noise}), limits_of(one)))
        begun = sort_trials(self.climb("heat", name, one, FEW_ROWS_HEAT) for one in starts)
        found = sort_trials(self.climb("race", name, one.model, FEW_ROWS_STEPS) for one in begun[: FINALISTS + 1])
        again = self.climb("revive", name, revive(found[0].model), FEW_ROWS_STEPS, radius=RADIUS)
        return sort_trials([*found, again])

    def _with_linear(self, best: Trial) -> list[Trial]:
        """Add a linear kernel to the best kernel; return the sum if its gain is not due to chance.

        With few rows, training is shorter: the optimum of many variances without priors is too certain.
        """
        kernel = best.model.kernel + self.plan.columns.linear(self.sample.repeat_rows()[0])
        model = on_rows(best.model, self.sample, self.plan.parts(kernel, self.sample)["priors"], kernel)
        needed = best.scores.evidence + (self.sample.X.shape[1] + CHANCE) / self.sample.observations
        rival = best._replace(scores=best.scores._replace(evidence=needed, log_density=math.inf))
        name = f"{best.kernel} + linear"
        settings: Any = {} if self.few else {"begin": reestimate_slopes, "caution": LINEAR_CAUTION}
        trial = self.climb("search", name, model, STEPS if self.few else LINEAR_STEPS, rival=rival, **settings)
        return [trial] if trial.scores.evidence > needed else []


def _against(found: list[Trial]) -> dict[str, Any]:
    """Return the arguments of `Climber` that end the training of candidates that seem to be worse than the best."""
    return {"rival": found[0], "margin": MARGIN} if found else {}


def reestimate_slopes(model: Any) -> Any:
    """Return a model in which EM has changed the variances v of the slopes of the linear part, if they have no priors.

    An EM iteration sets v_d to the expected square of the slope w_d of column d, averaged over the P outputs. This is
    v_d (1 + (2 / P) dl / dlog v_d), where l is the evidence. It is fast while most columns are irrelevant.
    """
    names = [tree.join_path(path, "variance") for path in tree.nodes(model, Linear)]
    if not names or why_not_newton(model) or any(leaf.name in names for leaf, _ in assign_priors(model)):
        return model
    evidence = Evidence(model, model._data, names)
    vector = evidence.coordinates.vector_of(model)
    for _ in range(EM_STEPS):
        point = evidence(vector)
        if point is None:
            break
        vector = vector + np.log(np.maximum(1.0 + 2.0 / model.outputs * point.slope, LEAST_FACTOR))
    return evidence.coordinates.model_at(vector)


def distinct(found: list[Trial]) -> list[Trial]:
    """Return the first candidate, and others that are different optima, those with the most evidence first."""
    kept = [found[0]]
    for one in [*sorted(found, key=lambda one: -one.scores.evidence), *found[1:]]:
        if len(kept) < KEPT and all(_differ(one, other) for other in kept):
            kept.append(one)
    return kept


def _differ(one: Trial, other: Trial) -> bool:
    a, b = (np.maximum(_logarithms(x.model), -CLIP) for x in (one, other))
    return _distance(a, b) > DISTINCT and abs(one.scores.evidence - other.scores.evidence) > SAME


def is_near(one: Any, other: Any) -> bool:
    """Whether the hyperparameters of two models belong to the same optimum."""
    return _distance(_logarithms(one), _logarithms(other)) <= DISTINCT


def _distance(a: Any, b: Any) -> float:
    """Return the largest difference of logarithms; columns with long lengthscales are alike."""
    return float(np.max(np.abs(np.minimum(a, CLIP) - np.minimum(b, CLIP))))


def _logarithms(model: Any) -> Any:
    """Return the logarithms of the kernel's parameters, if they are not negligible, and of the noise variance.

    They are in their units. Parameters that may be negative are returned as they are.
    """
    found = []
    for leaf in tree.describe(model):
        if leaf.role == "parameter" and not leaf.name.startswith("mean_function."):
            value = to_numpy(leaf.value if leaf.unit is None else leaf.value / leaf.unit)
            least = TINY if leaf.name == NOISE else math.exp(-NEGLIGIBLE)
            found.append((value if leaf.constraint is REAL else np.log(np.maximum(value, least))).reshape(-1))
    return np.concatenate(found)


def train_revived(climb: Climber, best: Trial, most: int, **settings: Any) -> list[Trial]:
    """Train the best candidate with revived columns; return the result unless it is the same optimum, and no better."""
    until = partial(is_near, best.model)
    found = climb("revive", best.kernel, revive(best.model), most, radius=RADIUS, rival=best, until=until, **settings)
    return [found] if found.scores.evidence > best.scores.evidence or not until(found.model) else []


def revive(model: Any) -> Any:
    """Return a model in which columns that had been switched off count again, with less noise.

    Lengthscales are at most exp(1.5) times the spreads of their columns, or more for more than eight columns.
    """
    columns = model.X.shape[1]
    most = math.exp(CAP) / min(columns, USUAL_COLUMNS) ** 0.5
    new = {}
    for leaf in tree.describe(model):
        if leaf.role == "parameter" and leaf.unit is not None and leaf.name.endswith("lengthscale"):
            new[leaf.name] = backend_of(leaf.value).xp.minimum(leaf.value, most * leaf.unit)
        elif leaf.name == NOISE:
            new[leaf.name] = math.exp(-DROP) * leaf.value
    return restrict(tree.with_leaves(model, new), limits_of(model))


# -- integration, for few rows ----------------------------------------------------------------------------------------


def takes_mixture(plan: Plan, data: Data, hyperparameters: str, method: str, limit: float | None) -> bool:
    """Whether to integrate over the hyperparameters. Raise ValueError if this was asked for but is not possible."""
    rows, lazy = data.X.shape[0], backend_of(data.X).is_lazy
    if hyperparameters == "mixture" and (lazy or rows > MOST_ROWS):
        where = "in an array that is not in memory" if lazy else f"{rows:,} rows"
        raise ValueError(
            f"hyperparameters is 'mixture', which is for at most {MOST_ROWS:,} rows in memory, not {where}; use 'auto'."
        )
    if hyperparameters != "auto" or _limits_mean(plan):
        return hyperparameters == "mixture"
    few = not lazy and method in ("auto", "gpr") and 1 < rows <= FEW_ROWS and (limit is None or limit >= LEAST_SECONDS)
    return few and _parameters(plan, data) <= FEW_PARAMETERS


def _limits_mean(plan: Plan) -> bool:
    """Whether the mean may have limits, which `integrate` does not take."""
    patterns = [tree.whole_pattern(pattern) for pattern, limit in plan.limits if isinstance(limit, Between)]
    return any(tree.matches("mean_function.value", pattern) for pattern in patterns)


def _parameters(plan: Plan, data: Data) -> int:
    """Return the number of hyperparameters of the first kernel."""
    if isinstance(plan.kernel, str):
        columns, tied = data.X.shape[1], len(columns_to_tie(data.at().X, plan.columns.categories))
        return columns - max(tied - 1, 0) + 3
    kernel = exact_gp(data.at(), kernel=plan.kernel, likelihood=plan.likelihood).kernel
    return 1 + sum(math.prod(x.shape) for x in tree.leaves(kernel, "parameter").values())


def kernels_to_mix(plan: Plan, data: Data, times: Sequence[Times] = ()) -> dict[str, Kernel]:
    """Return the kernels to average, by name. For columns of times, a further kernel has seasons."""
    if not isinstance(plan.kernel, str):
        return plan.kernels()
    X = data.repeat_rows()[0]
    kinds = {"matern52": Matern52()} if X.shape[0] <= ONE_KERNEL_ROWS else {"matern52": Matern52(), "rbf": RBF()}
    linear = plan.columns.linear(X)
    found: dict[str, Kernel] = {f"{name} + linear": plan.columns.mix(kernel) + linear for name, kernel in kinds.items()}
    name, kernel = next(iter(found.items()))
    for season, part in ((season, part) for one in times for season, part in seasons_for(one, X).items()):
        name, kernel = f"{name} + {season}", kernel + part
    found[name] = kernel
    if (warp := warp_of(plan, X)) is not None:
        found |= {f"{name}{SUFFIX}": warp_kernel(kernel, warp, X) for name, kernel in found.items()}
    return found | {"constant": Constant()}


class Mixed(NamedTuple):
    """The result of an integration over hyperparameters."""

    found: Found
    candidates: list[Candidate]
    certain: bool
    """Whether the function is certainly not constant."""


def mix(plan: Plan, data: Data, watch: Any, times: Sequence[Times] = ()) -> Mixed:
    """Integrate over the hyperparameters of exact GPs of these rows."""
    kernels = kernels_to_mix(plan, data, times)
    models = [_start(plan, kernel, data) for kernel in kernels.values()]
    found = integrate(models, shares=[CONSTANT_SHARE if name == "constant" else 1.0 for name in kernels])
    density = finite_average(found.model.leave_one_out(), data.weights)
    rows, count = data.X.shape[0], data.observations
    evidence = dict(zip(kernels, found.by_kernel, strict=True))
    candidates = [Candidate(name, rows, value / count, density) for name, value in evidence.items()]
    watch(Progress(0, found.model.mode, {"bound": np.asarray(found.log_evidence)}, 0.0))
    best = max(evidence, key=lambda name: evidence[name])
    certain = "constant" in kernels and not any(isinstance(one.kernel, Constant) for one in found.model.models)
    kind = f"averaged over {found.model.shares.shape[0]} settings of the hyperparameters, given {rows} rows"
    return Mixed(Found(found.model, best, kind, found.log_evidence, data, density, held_out=False), candidates, certain)


def _start(plan: Plan, kernel: Kernel, data: Data) -> GPR:
    """Return the untrained model, or a trained one if the coefficients of its mean function are not integrated over."""
    parts = plan.parts(kernel, data)
    priors = as_priors(plan.add_limits(None, kernel) if isinstance(plan.priors, str) else parts["priors"])
    model = exact_gp(data, kernel=kernel, **parts | {"priors": None})
    if isinstance(plan.kernel, str) and isinstance(kernel, Constant):  # it has few of the parameters
        names = [*tree.leaves(model, "parameter")]
        wholes = [(tree.whole_pattern(at), (at, prior)) for at, prior in priors]
        priors = tuple(pair for whole, pair in wholes if any(tree.matches(name, whole) for name in names))
    model = restrict(with_priors(model, priors))
    known = model.mean_function.is_constant or not tree.leaves(model.mean_function, "parameter")
    return model if known else fit(model, data.X, data.y).model
