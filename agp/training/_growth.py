"""Training that doubles the number of inducing inputs until the gain is small."""

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch
from agp.checks import check_callables, check_positive, check_whole
from agp.chunking import budget, check_memory, mebibytes
from agp.errors import ConvergenceWarning, NoSignalWarning, explain_call
from agp.gradient import GradientMode
from agp.inducing import greedy_variance
from agp.likelihoods import Gaussian
from agp.models import add_inducing, exact_model, growing_part
from agp.random import generator
from agp.repairs import outside
from agp.training._begun import check_training
from agp.training._certificate import CERTIFIED_ROWS, baseline, certify, judge_bounds
from agp.training._fit import check_plan, fit
from agp.training._lbfgs import fit_lbfgs
from agp.training._progress import Piece, Shown, track
from agp.training._result import Callback, ModelType, Progress, call_all
from agp.training._stages import FitResult, limit_of_seconds, limit_of_steps, resume_training
from agp.updates import Update

MAX_INDUCING = 1024
"""The default maximum number of inducing inputs."""
GROWTH_TOLERANCE = 0.005
"""The default gain, in nats per datum, below which the number of inducing inputs stops growing."""
RESETS, LITTLE = 2, 5.0
"""The maximum number of hyperparameter resets, and the number of tolerances by which a model's bound must exceed that
of pure noise for the model to have learned something."""
SAMPLE_ROWS, SAMPLE_STEPS = 2000, 25
"""The numbers of rows and of L-BFGS iterations when hyperparameters are first trained on the exact evidence."""
FINAL_TOLERANCES, MAX_TOLERANCES, ERROR = 3.0, 10.0, 180.0
"""Training tolerances in units of `fit_tolerance`. The first round and the final training use `FINAL_TOLERANCES`. Other
rounds use `ERROR` / sqrt(N), clipped to the range from `FINAL_TOLERANCES` to `MAX_TOLERANCES`, where gains as accurate
as an average over N rows suffice."""
FIRST_GAIN, SMALLER, POWER = 4.0, 4.0, 1.2
"""For the expected time: the gain of a doubling before it is known, in tolerances, by which factor it is smaller than
the one before, and the power of the number of inducing inputs that the time of a round follows."""
EVALUATIONS, ROUND, SAMPLE, OVERHEAD, SPEED = 40, 12.0, 4.0, 5e8, 4e10
"""For the first round: the number of evaluations, their operations per row and pair of inducing inputs, those of the
exact evidence per cubed number of rows, those that small evaluations take the time of, and the operations per second.
"""
SQUARES = 8, 6
"""The number of M x M arrays that training stores at the same time, and the number of further arrays per output."""


class Round(NamedTuple):
    """The result of training with a fixed number of inducing inputs. Bounds and gaps are in nats per datum."""

    num_inducing: int
    bound: float
    """The bound of the trained model."""
    upper: float
    """Upper bound on the exact evidence at the same hyperparameters; NaN unless the noise is Gaussian. For a sample of
    the rows, bound plus gap."""
    gap: float
    """Upper bound minus bound, which is the maximum gain from further inducing inputs."""
    seconds: float
    """The time in seconds from the start of the fit to the end of the round."""
    steps: int
    """The number of training steps from the start of the fit to the end of the round."""


# -- when to stop -----------------------------------------------------------------------------------------------------


def _highest(rounds: list[Round]) -> int:
    """Return the index of the last round with the highest bound."""
    return max(range(len(rounds)), key=lambda i: (rounds[i].bound, i))


class _Limits:
    """A callback with limits on growth. Checks return None, or the reason to stop as a keyword and a sentence."""

    def __init__(
        self,
        tolerance: float,
        most: int,
        max_steps: int | None,
        max_seconds: float | None,
        memory: float | None,
        rows: int,
        callbacks: Iterable[Callback],
    ) -> None:
        check_memory(memory)
        self.callbacks, self.stopped = check_callables("callbacks", callbacks), ""
        self.tolerance, self.memory = check_positive("tolerance", tolerance), memory
        self.most = min(check_whole("most", most), rows)
        self.max_steps = None if max_steps is None else check_whole("max_steps", max_steps)
        self.max_seconds = None if max_seconds is None else check_positive("max_seconds", max_seconds)
        self.start = time.perf_counter()

    def __call__(self, seen: Progress) -> bool:
        self.stopped = call_all(self.callbacks, seen) or self.stopped
        return bool(self.stopped)

    def callback_ending(self) -> tuple[str, str] | None:
        return ("callback", f"{self.stopped} ended the growth") if self.stopped else None

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def spent(self, found: FitResult[Any]) -> tuple[str, str] | None:
        """Check whether a limit on time or steps was reached."""
        if self.max_seconds is not None and self.elapsed() >= self.max_seconds:
            return "time", limit_of_seconds(self.max_seconds)
        if self.max_steps is not None and found.steps >= self.max_steps:
            return "steps", limit_of_steps(self.max_steps)
        return None

    def ending(self, found: FitResult[Any]) -> bool:
        """Whether training must end now."""
        return bool(self.stopped) or self.spent(found) is not None

    def left(self, found: FitResult[Any]) -> dict[str, Any]:
        """Return the remaining limits for the next training."""
        steps = None if self.max_steps is None else self.max_steps - found.steps
        seconds = None if self.max_seconds is None else self.max_seconds - self.elapsed()
        return {"max_steps": steps, "max_seconds": seconds}

    def size(self, model: Any) -> tuple[str, str] | None:
        """Check whether `most` and the memory allow more inducing inputs."""
        part = growing_part(model)[1]
        M = part.inducing.count
        if self.most <= M:
            return "most", f"{M} inducing inputs are the maximum (most)"
        larger = min(2 * M, self.most)
        floats = (SQUARES[0] + SQUARES[1] * model.outputs) * larger**2
        beside = part.inducing.reference[1]
        needed, allowed = mebibytes(floats, beside), budget(self.memory, beside)
        if needed > allowed:
            need = f"matrices for {larger} inducing inputs need {needed:.0f} MiB"
            return "memory", f"{need}, more than {allowed:g} MiB (memory)"
        return None

    def assess(self, rounds: list[Round]) -> tuple[str, str] | None:
        """Check whether the gap or the gain of the last doubling is below the tolerance."""
        last, least = rounds[-1], f"less than {self.tolerance:g}"
        if last.gap < self.tolerance and _highest(rounds) == len(rounds) - 1:
            text = f"further inducing inputs can gain at most {last.gap:.2g} nats per datum at these hyperparameters"
            return "certificate", f"{text}, {least}"
        if len(rounds) == 1:
            return None
        before = rounds[_highest(rounds[:-1])]
        gain = last.bound - before.bound
        if gain < self.tolerance:
            sizes = f"from {before.num_inducing} to {last.num_inducing} inducing inputs"
            what = (
                f"gained {gain:.2g} nats per datum, {least}" if gain >= 0.0 else f"fell by {-gain:.2g} nats per datum"
            )
            return "gain", f"{sizes}, the bound {what}"
        return None

    def stands(self, ending: tuple[str, str] | None, rounds: list[Round]) -> bool:
        """Whether the reason to stop still holds after the last round, which trains the model to convergence."""
        before, last = rounds[-2:]
        closed = ending is not None and ending[0] == "certificate"
        return (last.gap if closed else last.bound - before.bound) < self.tolerance

    def budget(self, found: FitResult[Any], rounds: list[Round]) -> tuple[str, str] | None:
        """Check whether enough time is left for the next round, which is assumed to take twice as long as the last."""
        if spent := self.spent(found):
            return spent
        last = rounds[-1].seconds - (rounds[-2].seconds if len(rounds) > 1 else 0.0)
        if self.max_seconds is not None and self.max_seconds - self.elapsed() < 2.0 * last:
            all_of_it = f"{self.max_seconds:g} s in all (max_seconds)"
            return "time", f"the next round needs about {2.0 * last:.2g} s, too long for {all_of_it}"
        return None


# -- growth ------------------------------------------------------------------------------------------------------------


@dataclass(repr=False)
class GrowthResult(FitResult[ModelType]):
    """The result of `fit_growing`; `message` explains why the growth ended."""

    reason: str = ""
    """Why M stopped growing: "certificate", "gain", "most", "memory", "time", "steps" or "callback"."""
    rounds: list[Round] = field(default_factory=list)
    """The results of all rounds in order; there are several for an M that is trained further. The best M is last."""
    certified_rows: int = 0
    """The number of rows that `Round.upper` and `Round.gap` use, all or a sample; 0 if there is no upper bound."""

    def describe(self) -> str:
        """Return the rounds as a table, followed by the reason why the growth ended."""
        lines = [f"{'M':>6} {'bound':>10} {'upper':>10} {'gap':>9} {'seconds':>9}   (nats per datum)"]
        for M, bound, upper, gap, seconds, _ in self.rounds:
            lines.append(f"{M:>6} {bound:>10.4f} {upper:>10.4f} {gap:>9.4f} {seconds:>9.1f}")
        return "\n".join([*lines, f"{self.reason}: {self.message}"])


@explain_call
def fit_growing(
    model: ModelType,
    X: Array,
    y: Array,
    /,
    *,
    tolerance: float = GROWTH_TOLERANCE,
    most: int = MAX_INDUCING,
    fit_tolerance: float = 1e-3,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    batch_size: int | None = None,
    updates: Callable[..., list[Update]] | None = None,
    gradient: GradientMode = "closed-form",
    memory: float | None = None,
    certified_rows: int = CERTIFIED_ROWS,
    sample_rows: int = SAMPLE_ROWS,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: Shown = False,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> GrowthResult[ModelType]:
    """Train a model with few inducing inputs, and double their number until the gain is small.

    Each round trains the model by `agp.fit`. The new inducing inputs are the rows of the data with the largest variance
    given the present inducing inputs (`agp.inducing.greedy_variance`). At the start of a round, the new inducing
    variables have their prior distribution given the present inducing variables. The number M of inducing inputs stops
    growing when

    - the gap between the bound and an upper bound on the exact evidence is less than the tolerance ("certificate"; only
      for Gaussian noise). A larger M can gain at most this gap with the same hyperparameters;
    - the last doubling, followed by training to convergence, gained less than the tolerance ("gain");
    - M is as large as `most`, or no other row has any variance left ("most");
    - twice as many inducing inputs would take too much memory ("memory") or time ("time");
    - a limit on time ("time") or steps ("steps") is reached, or a callback returns True ("callback").

    If the bound barely exceeds that of pure noise, the model has not learned anything yet. M then keeps growing, and
    the hyperparameters are reset to their initial values, at most twice. Start with enough inducing inputs to explain
    some of the signal.

    The last model is trained further, unless M is `most`. If a larger M ended with a lower bound, for instance because
    a limit was reached, the best earlier model is returned. An upper bound takes about as long as one training pass
    over the data, or over `certified_rows` rows.

    Parameters
    ----------
    model
        An `SGPR` or `SVGP`, as built by `from_data`. The inducing variables must be `Points`. The process of an `SVGP`
        must be a `Sparse` process or a `LinearMixing` of a `Sparse` process. Build the model with the initial number of
        inducing inputs, for instance 64. The model is not changed.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    tolerance
        The gain, in nats per datum, below which M stops growing.
    most
        The maximum M; a value above N is replaced by N.
    fit_tolerance
        The `tolerance` of `agp.fit`. The first round and the final training use 3 times this value. In other rounds,
        the factor is 180 / sqrt(N), clipped to the range from 3 to 10.
    max_steps, max_seconds
        Limits for all rounds together, unlimited by default. Each round also has the default limits of `agp.fit`.
    batch_size, updates, gradient, seed, callbacks, progress
        See `agp.fit`. Steps are counted over all rounds.
    memory
        Budget for working arrays in MiB; see `agp.models.Model.bound` for the meaning of None. Arrays of M^2 numbers
        must fit into the budget; other arrays are computed in blocks.
    certified_rows
        The maximum number of rows in the upper bound. All rows are used for models whose bound requires them, such as
        `SGPR`.
    sample_rows
        For a collapsed model, the hyperparameters are first trained on the exact evidence of this many random rows; 0
        skips this training. Without it, the noise would be overestimated in the first round, because there are few
        inducing inputs. The model keeps its own hyperparameters if the exact GP learns nothing from these rows.
    weights, offset, noise
        What is known of each row; see `agp.models.Model.bound`.

    Raises
    ------
    TypeError, ValueError
        In the same cases as `agp.fit`, or if the model cannot grow, or if a tolerance or a limit is not a positive
        number.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds everything so far, including earlier rounds.

    Warns
    -----
    agp.errors.ConvergenceWarning
        If a limit on steps or time ended the training of the last model.

    Source: the greedy choice and the upper bound as a stopping rule: Burt, Rasmussen & van der Wilk, "Convergence of
    sparse variational inference in Gaussian processes regression", JMLR 2020.

    Examples
    --------
    Training starts with 4 inducing inputs and doubles their number, here up to a given limit.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(60)
    >>> model = agp.SGPR.from_data(X, y, num_inducing=4)
    >>> result = agp.fit_growing(model, X, y, most=8)
    >>> [one.num_inducing for one in result.rounds]
    [4, 8]
    >>> result.reason
    'most'
    """
    data = check_training(model, X, y, weights, offset, noise)
    growing_part(model)
    limits = _Limits(tolerance, most, max_steps, max_seconds, memory, data.X.shape[0], callbacks)
    fit_tolerance = check_positive("fit_tolerance", fit_tolerance)
    certified_rows = check_whole("certified_rows", certified_rows)
    check_plan(updates)
    settings: dict[str, Any] = {"batch_size": batch_size, "updates": updates, "gradient": gradient, "memory": memory}
    settings |= {"seed": seed, "callbacks": [limits]}
    settings |= {"weights": weights, "offset": offset, "noise": noise}
    sample_rows = check_whole("sample_rows", sample_rows, least=0)
    growth = _Growth(model, data, limits, fit_tolerance, certified_rows, settings)
    with track(progress) as tracker, tracker.inside(max_seconds=limits.max_seconds):
        judge_bounds(tracker, model, data)
        settings["progress"] = growth.tracker = tracker
        if sample_rows and not model.stochastic:
            growth.tune(sample_rows)
        found = _grow(growth, limits)
        tracker.conclude(found.message)
    return found


def _grow(growth: "_Growth", limits: _Limits) -> GrowthResult[Any]:
    """Train models with more and more inducing inputs, until a limit or the gain ends the growth."""
    while True:
        last = limits.size(growth.found.model)
        in_full = not growth.rounds  # the first round may be the only one, and takes the least time
        growth.train(growth.tolerance if in_full else growth.looser)
        lost, judged, ending = growth.judge(last)
        more = None if ending else growth.enlarge(lost)
        if more is None and not in_full and (not last or growth.is_behind):
            growth.found = replace(growth.found, converged=False)  # the model was trained with a loose tolerance
            if not limits.ending(growth.found):
                growth.train(growth.tolerance)
                if ending in (None, judged) and not limits.stands(ending, growth.rounds):
                    ending = limits.callback_ending() or limits.budget(growth.found, growth.rounds)
                    more = None if ending else growth.enlarge(lost=False)
        if more is None:
            break
        growth.found, growth.resets = more, growth.resets + lost
    if growth.is_behind:  # after a reset, or at the end of the budget
        growth.restore_best(converged=False)
        growth.train(growth.tolerance)
    if growth.is_behind:  # further training did not help
        growth.restore_best()
        growth.note()
    return growth.finish(*(ending or ("most", "the inducing inputs explain the prior variance up to rounding")))


class _Growth:
    """A growth in progress: the training so far, the rounds, and the model after each round."""

    def __init__(
        self,
        model: Any,
        data: Batch,
        limits: _Limits,
        fit_tolerance: float,
        certified_rows: int,
        settings: dict[str, Any],
    ) -> None:
        self.model, self.data, self.limits = model, data, limits
        self.certified_rows, self.settings = certified_rows, settings
        self.found: FitResult[Any] = FitResult(model, 0, 0.0)
        self.seen: Any = None  # the certificate of the last round
        self.rounds: list[Round] = []
        self.reached: list[Any] = []  # the model after each round
        self.tracker: Any = None
        self.tuned, self.resets = False, 0
        self.tolerance = fit_tolerance * FINAL_TOLERANCES
        self.looser = fit_tolerance * min(max(FINAL_TOLERANCES, ERROR / math.sqrt(data.X.shape[0])), MAX_TOLERANCES)

    def tune(self, rows: int) -> None:
        """Take the initial hyperparameters from an exact GP on a sample of the rows, if it learns anything."""
        settings, limits, model = self.settings, self.limits, self.model
        index = generator(settings["seed"], 19).permutation(self.data.X.shape[0])[:rows]
        data = self.data.take(lambda x: backend_of(x).gather(x, index))
        exact = exact_model(model, data)
        if exact is None:
            return
        steps = min(SAMPLE_STEPS, limits.max_steps or SAMPLE_STEPS)
        seconds = steps * SAMPLE * float(len(index)) ** 3 / SPEED
        self.tracker.begin("sample", f"training on {len(index):,} rows", seconds)
        chosen = {name: settings[name] for name in ("gradient", "callbacks", "progress")}
        found = fit_lbfgs(exact, exact.X, exact.y, max_iterations=steps, **chosen)
        gain = found.bounds[0] / data.X.shape[0] - baseline(Gaussian(), data.y, *data.known)
        self.tuned = gain >= LITTLE * limits.tolerance
        if self.tuned:
            path = growing_part(model)[0]
            own = tree.leaves(found.model, "parameter").items()
            inside = {name if name.startswith("likelihood.") else tree.join_path(path, name): x for name, x in own}
            self.model = tree.with_leaves(model, inside)
        self.found = FitResult(self.model, found.steps, found.seconds, found.trace, found.repairs)

    def train(self, tolerance: float) -> None:
        """Train the model unless a limit is reached, and note the round."""
        if not self.limits.ending(self.found):
            self._tell()
            settings = self.settings | self.limits.left(self.found) | {"tolerance": tolerance}
            with warnings.catch_warnings():  # only warnings about the last model matter
                warnings.simplefilter("ignore", ConvergenceWarning)
                warnings.simplefilter("ignore", NoSignalWarning)
                self.found = resume_training(self.found, fit, self.data.X, self.data.y, settings)
        self.note()

    def _tell(self) -> None:
        """Tell the progress about a round and those that are expected to follow it."""
        M, limits = growing_part(self.found.model)[1].inducing.count, self.limits
        gain = FIRST_GAIN * limits.tolerance
        if len(self.rounds) > 1:
            gain = self.rounds[-1].bound - self.rounds[-2].bound
            gain = min(gain, self.rounds[-1].gap) if math.isfinite(self.rounds[-1].gap) else gain
        more = math.ceil(math.log(max(gain / limits.tolerance, 1.0), SMALLER))
        sizes = [size for size in (M * 2**k for k in range(1, more + 1)) if size < 2 * limits.most]
        sized, level = (M, *sizes, *sizes[-1:]), self.tracker.levels[-1]
        each = [EVALUATIONS * (ROUND * self.data.X.shape[0] * size**2 + OVERHEAD) for size in sized]
        level.later = [Piece("round", operations / SPEED) for operations in each]
        if self.rounds:  # the last round tells more
            last = self.rounds[-1].seconds - (self.rounds[-2].seconds if len(self.rounds) > 1 else 0.0)
            level.later = [Piece("round", last * (size / self.rounds[-1].num_inducing) ** POWER) for size in sized]
            level.measured, level.expected, level.present = 0.0, 0.0, None
        self.tracker.begin("round", f"training with {M:,} inducing inputs")

    def note(self) -> None:
        """Note the bounds of the model as a round."""
        found, seed, memory = self.found, self.settings["seed"], self.settings["memory"]
        self.seen = seen = certify(found.model, self.data, rows=self.certified_rows, seed=seed, memory=memory)
        M = growing_part(found.model)[1].inducing.count
        self.rounds.append(Round(M, seen.bound, seen.upper, seen.gap, self.limits.elapsed(), found.steps))
        self.reached.append(found.model)

    def judge(self, last: tuple[str, str] | None) -> tuple[bool, tuple[str, str] | None, tuple[str, str] | None]:
        """Return whether nothing was learned, the verdict on gap and gain, and the reason to stop, if there is any.

        `last` is the reason why the last round has the maximum number of inducing inputs, or None.
        """
        lost = (self.tuned or self.resets < RESETS) and self.has_learned_nothing
        judged = None if lost else self.limits.assess(self.rounds)
        short = self.limits.budget(self.found, self.rounds)
        ending = self.limits.callback_ending() or (short if self.is_behind else None) or judged or last or short
        return lost, judged, ending

    @property
    def is_behind(self) -> bool:
        """Whether the bound of the last round is below that of an earlier round."""
        return _highest(self.rounds) < len(self.rounds) - 1

    @property
    def has_learned_nothing(self) -> bool:
        """Whether the bound barely exceeds that of noise alone."""
        seen, alone = self.seen, (Gaussian(), self.data.y, *self.data.known)
        return seen.rows > 0 and seen.bound - baseline(*alone) < LITTLE * self.limits.tolerance

    def enlarge(self, lost: bool) -> FitResult[Any] | None:
        """Return the result with twice as many inducing inputs; None if no other row has any variance.

        If nothing was learned (`lost`), the hyperparameters are reset to their initial values.
        """
        model = self.found.model
        start = _with_hyperparameters(model, self.model) if lost else model
        part: Any = growing_part(start)[1]
        M, seed = part.inducing.count, self.settings["seed"]
        count = min(self.limits.most - M, M)
        new = greedy_variance(self.data.X, part.kernel, count, seed=seed, tolerance=0.0, given=part.inducing.Z)
        return replace(self.found, model=add_inducing(start, new, begun=True)) if new.shape[0] else None

    def restore_best(self, **changes: Any) -> None:
        """Return to the model of the best round."""
        self.found = replace(self.found, model=self.reached[_highest(self.rounds)], **changes)

    def finish(self, reason: str, message: str) -> GrowthResult[Any]:
        """Return the result. Warn if nothing was learned, or if the last training has not converged."""
        found = self.found
        if self.has_learned_nothing:
            message += "; the bound barely exceeds that of noise alone; start with more if you expect a signal"
            if found.converged:
                warnings.warn(message, NoSignalWarning, stacklevel=outside())
        if not found.converged:
            _, text = self.limits.callback_ending() or self.limits.spent(found) or ("", found.message)
            text = f"the training of the last model has not converged: {text}."
            warnings.warn(text, ConvergenceWarning, stacklevel=outside())
        growth = {"reason": reason, "rounds": self.rounds, "certified_rows": self.seen.rows}
        return GrowthResult(**(vars(found) | {"message": message}), **growth)


def _with_hyperparameters(model: Any, start: Any) -> Any:
    """Return the model with the hyperparameters of `start`."""
    parts = {"kernel", "likelihood", "mean_function"}
    return tree.with_leaves(model, {name: x for name, x in tree.leaves(start).items() if parts & {*name.split(".")}})
