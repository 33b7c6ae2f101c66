"""Growth of the number of inducing inputs: train, compare with an upper bound, double, until that gains no more."""

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, backend_of
from agp.checks import check_callables, check_positive, check_whole
from agp.chunking import budget, check_memory, mebibytes
from agp.errors import ConvergenceWarning, NoSignalWarning
from agp.gradient import GradientMode
from agp.inducing import greedy_variance
from agp.likelihoods import Gaussian
from agp.models import exact_model, growing_part, grown
from agp.random import generator
from agp.repairs import outside
from agp.training._begun import check_training
from agp.training._certificate import CERTIFIED_ROWS, Certificate, baseline, certified
from agp.training._fit import FitResult, check_plan, continued, fit
from agp.training._lbfgs import fit_lbfgs
from agp.training._result import Callback, Progress, call_all
from agp.updates import Update

__all__ = ["GROWTH_TOLERANCE", "MOST_INDUCING", "GrowthResult", "Round", "fit_growing"]

MOST_INDUCING = 1024
"""The most inducing inputs, by default."""
GROWTH_TOLERANCE = 0.005
"""In nats per datum: what a doubling must gain."""
RESETS, LITTLE = 2, 5.0
"""How often hyperparameters start again if the model has learned nothing; by how many tolerances its bound must exceed
that of noise alone."""
SAMPLE_ROWS, SAMPLE_STEPS = 2000, 25
"""Rows of the exact evidence that trains hyperparameters first, and its iterations of L-BFGS."""
LAST, LOOSEST, ERROR = 3.0, 10.0, 180.0
"""Tolerances of training, in units of `fit_tolerance`: the first for the first round and the training at the end. Other
rounds need to measure gains only up to the error of an average over N rows: they take the third over the root of N,
within the first two."""
SQUARES = 8, 6
"""Arrays of M x M numbers that training holds at once, and further ones for each output."""


class Round(NamedTuple):
    """The result of training with one number of inducing inputs; in nats per datum."""

    num_inducing: int
    bound: float
    """Of the trained model."""
    upper: float
    """Upper bound on the exact evidence at the same hyperparameters (bound and gap if rows were drawn); NaN if not
    Gaussian."""
    gap: float
    """Upper bound minus bound: the most that further inducing inputs could gain."""
    seconds: float
    """Since the start, at the end of the round."""
    steps: int
    """Of training, likewise."""


# -- when to stop -----------------------------------------------------------------------------------------------------


def _highest(rounds: list[Round]) -> int:
    """The index of the round with the highest bound, the last of several."""
    return max(range(len(rounds)), key=lambda i: (rounds[i].bound, i))


def _behind(rounds: list[Round]) -> bool:
    """Whether the last round ended below an earlier one."""
    return _highest(rounds) < len(rounds) - 1


class _Limits:
    """A callback that knows how far M may grow. Its methods return a reason to stop and a sentence, or None."""

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
        self.callbacks, self.stopped = check_callables("callbacks", callbacks), False
        self.tolerance, self.memory = check_positive("tolerance", tolerance), memory
        self.most = min(check_whole("most", most), rows)
        self.max_steps = None if max_steps is None else check_whole("max_steps", max_steps)
        self.max_seconds = None if max_seconds is None else check_positive("max_seconds", max_seconds)
        self.start = time.perf_counter()

    def __call__(self, seen: Progress) -> bool:
        self.stopped = call_all(self.callbacks, seen) or self.stopped
        return self.stopped

    def callback_ending(self) -> tuple[str, str] | None:
        return ("callback", "a callback ended it") if self.stopped else None

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def spent(self, found: FitResult) -> str:
        """The limit that was reached, in words; empty for none."""
        if self.max_seconds is not None and self.elapsed() >= self.max_seconds:
            return f"the limit of {self.max_seconds:g} s was reached"
        if self.max_steps is not None and found.steps >= self.max_steps:
            return f"the limit of {self.max_steps} steps was reached"
        return ""

    def ending(self, found: FitResult) -> bool:
        """Whether nothing may be trained any more."""
        return self.stopped or bool(self.spent(found))

    def left(self, found: FitResult) -> dict[str, Any]:
        """The limits of the next training."""
        steps = None if self.max_steps is None else self.max_steps - found.steps
        seconds = None if self.max_seconds is None else self.max_seconds - self.elapsed()
        return {"max_steps": steps, "max_seconds": seconds}

    def size(self, model: Any) -> tuple[str, str] | None:
        """Whether M is as large as `most` or the memory allow."""
        part = growing_part(model)[1]
        M = part.inducing.count
        if self.most <= M:
            return "most", f"{M} inducing inputs are as many as there may be"
        larger = min(2 * M, self.most)
        floats = (SQUARES[0] + SQUARES[1] * model.outputs) * larger**2
        beside = part.inducing.reference[1]
        needed, allowed = mebibytes(floats, beside), budget(self.memory, beside)
        if needed > allowed:
            return "memory", f"matrices of {larger} inducing inputs take {needed:.0f} MiB, more than {allowed:g}"
        return None

    def judged(self, rounds: list[Round]) -> tuple[str, str] | None:
        """Whether the gap, or the gain of the last doubling, is below the tolerance."""
        last, least = rounds[-1], f"less than {self.tolerance:g}"
        if last.gap < self.tolerance and not _behind(rounds):
            text = f"no number of inducing inputs gains more than {last.gap:.2g} nats per datum at present"
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
            return "gain", f"{sizes} the bound {what}"
        return None

    def stands(self, ending: tuple[str, str] | None, rounds: list[Round]) -> bool:
        """Whether the reason to stop still holds after the last round, which trained the model to convergence."""
        before, last = rounds[-2:]
        closed = ending is not None and ending[0] == "certificate"
        return (last.gap if closed else last.bound - before.bound) < self.tolerance

    def budget(self, found: FitResult, rounds: list[Round]) -> tuple[str, str] | None:
        """Whether less is left than the next round takes: at least twice the time of the last one."""
        if spent := self.spent(found):
            return ("time" if spent.endswith("s was reached") and "steps" not in spent else "steps"), spent
        last = rounds[-1].seconds - (rounds[-2].seconds if len(rounds) > 1 else 0.0)
        if self.max_seconds is not None and self.max_seconds - self.elapsed() < 2.0 * last:
            return "time", f"a round takes twice the {last:.2g} s of the last one, too long for {self.max_seconds:g} s"
        return None


# -- growth ------------------------------------------------------------------------------------------------------------


@dataclass
class GrowthResult(FitResult):
    """What `fit_growing` returns; `message` is the reason in a sentence."""

    reason: str = ""
    """Why M stopped growing: "certificate", "gain", "most", "memory", "time", "steps" or "callback"."""
    rounds: list[Round] = field(default_factory=list)
    """The result for each M in turn, for some M a second time after further training; the best M last."""
    certified_rows: int = 0
    """The rows of `Round.upper` and `Round.gap`: all, or as many as were drawn; 0 if there is no upper bound."""

    def describe(self) -> str:
        """The rounds as a table, and the reason."""
        lines = [f"{'M':>6} {'bound':>10} {'upper':>10} {'gap':>9} {'seconds':>9}   (nats per datum)"]
        for M, bound, upper, gap, seconds, _ in self.rounds:
            lines.append(f"{M:>6} {bound:>10.4f} {upper:>10.4f} {gap:>9.4f} {seconds:>9.1f}")
        return "\n".join([*lines, f"{self.reason}: {self.message}"])


def fit_growing(
    model: Any,
    X: Array,
    y: Array,
    /,
    *,
    tolerance: float = GROWTH_TOLERANCE,
    most: int = MOST_INDUCING,
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
    progress: bool = False,
) -> GrowthResult:
    """Train a model with few inducing inputs, and double their number until that gains no more.

    Each round trains by `agp.fit`. New inducing inputs are the rows of the data with the largest variance given the
    present ones (`agp.inducing.greedy_variance`); their inducing variables start at the prior given the others, so
    nothing learned is lost. M stops growing when

    - the gap between the bound and an upper bound on the exact evidence, for Gaussian noise, is less than the
      tolerance: no M could gain more at these hyperparameters ("certificate");
    - the last doubling, and training the model to convergence after it, gained less than the tolerance ("gain");
    - it is as large as `most`, or no other row has any variance left ("most");
    - twice as many would exceed the memory ("memory") or the time ("time", "steps"), or a callback returns True.

    If the bound barely exceeds that of pure noise, the model has not learned anything yet. It then grows on, up to
    twice from the initial hyperparameters. Start with enough inducing inputs to see some of the signal.

    The last model is trained further, unless M is `most`. If a larger M ended with a lower bound, for instance because
    the budget was spent, the best earlier model is returned. The upper bound costs as much as a pass of training over
    the data, or over `certified_rows` of them.

    Parameters
    ----------
    model
        `SGPR`, or an `SVGP` whose process is a `Sparse` one (or a `Mixed` one of that) with `Points`, as from
        `from_data`, with the first number of inducing inputs: 64 for instance. It is not changed.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    tolerance
        In nats per datum.
    most
        The largest M; never more than N.
    fit_tolerance
        As `tolerance` of `agp.fit`; the first round and the training at the end take three times as much, other rounds
        180 over the root of the number of rows, but three to ten times.
    max_steps, max_seconds
        In all rounds together; unlimited by default, but each round has the limits of `agp.fit`.
    batch_size, updates, gradient, seed, callbacks, progress
        As `agp.fit`; steps are counted over all rounds.
    memory
        Budget for working arrays in MiB, None as in `agp.models.Model.bound`. Arrays of M^2 numbers must fit; others
        are taken in blocks.
    certified_rows
        The most rows of the upper bound. Models whose bound needs all rows, such as `SGPR`, use them all.
    sample_rows
        If the model is a collapsed one, hyperparameters are trained first by the exact evidence of so many rows, drawn
        by the seed: few inducing inputs would overestimate the noise. Ignored if these rows teach nothing; 0 for none.

    Raises
    ------
    TypeError, ValueError
        As `agp.fit`; also for models that do not grow, and for a tolerance or a limit that is not a positive number.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds everything so far, earlier rounds included.

    Warns
    -----
    agp.errors.ConvergenceWarning
        If a budget ended the training of the last model.

    Source: the greedy choice and the upper bound as a stopping rule: Burt, Rasmussen & van der Wilk, "Convergence of
    sparse variational inference in Gaussian processes regression", JMLR 2020.
    """
    X, y = check_training(model, X, y)
    growing_part(model)
    limits = _Limits(tolerance, most, max_steps, max_seconds, memory, X.shape[0], callbacks)
    fit_tolerance = check_positive("fit_tolerance", fit_tolerance)
    certified_rows = check_whole("certified_rows", certified_rows)
    check_plan(updates)
    settings: dict[str, Any] = {"batch_size": batch_size, "updates": updates, "gradient": gradient, "memory": memory}
    settings |= {"seed": seed, "callbacks": [limits], "progress": progress}
    sample_rows = check_whole("sample_rows", sample_rows, least=0)
    found, tuned = FitResult(model, 0, 0.0), False
    if sample_rows and not model.stochastic:
        found = _tuned_on_sample(model, X, y, sample_rows, limits, settings)
        tuned, model = found.model is not model, found.model
    rounds: list[Round] = []
    reached: list[Any] = []  # the model after each round
    resets, looser = 0, min(max(LAST, ERROR / math.sqrt(X.shape[0])), LOOSEST)

    def trained(found: FitResult, tolerance: float) -> tuple[FitResult, Certificate]:
        if not limits.ending(found):
            with warnings.catch_warnings():  # only those of the last model matter
                warnings.simplefilter("ignore", ConvergenceWarning)
                warnings.simplefilter("ignore", NoSignalWarning)
                found = continued(found, fit, X, y, settings | limits.left(found) | {"tolerance": tolerance})
        return noted(found)

    def noted(found: FitResult) -> tuple[FitResult, Certificate]:
        seen = certified(found.model, X, y, rows=certified_rows, seed=seed, memory=memory)
        M = growing_part(found.model)[1].inducing.count
        rounds.append(Round(M, seen.bound, seen.upper, seen.gap, limits.elapsed(), found.steps))
        reached.append(found.model)
        return found, seen

    def larger(found: FitResult, lost: bool) -> FitResult | None:
        start = _with_hyperparameters(found.model, model) if lost else found.model
        part: Any = growing_part(start)[1]
        Z, M = part.inducing.Z, part.inducing.count
        new = greedy_variance(X, part.kernel, min(limits.most - M, M), seed=seed, tolerance=0.0, given=Z)
        return replace(found, model=grown(start, new, begun=True)) if new.shape[0] else None

    def nothing_learned(seen: Certificate) -> bool:
        return seen.rows > 0 and seen.bound - baseline(Gaussian(), y, model._row_weights) < LITTLE * limits.tolerance

    while True:
        last = limits.size(found.model)
        in_full = not rounds  # the first may be the only one, and costs least
        found, seen = trained(found, fit_tolerance * (LAST if in_full else looser))
        lost = (tuned or resets < RESETS) and nothing_learned(seen)
        judged = None if lost else limits.judged(rounds)
        short = limits.budget(found, rounds)
        ending = limits.callback_ending() or (short if _behind(rounds) else None) or judged or last or short
        more = None if ending else larger(found, lost)
        if more is None and not in_full and (not last or _behind(rounds)):
            found = replace(found, converged=False)  # it was trained at a loose tolerance
            if not limits.ending(found):
                found, seen = trained(found, LAST * fit_tolerance)
                if ending in (None, judged) and not limits.stands(ending, rounds):
                    ending = limits.callback_ending() or limits.budget(found, rounds)
                    more = None if ending else larger(found, lost=False)
        if more is not None:
            found, resets = more, resets + lost
            continue
        if _behind(rounds):  # after a reset, or at the end of the budget
            found, seen = trained(
                replace(found, model=reached[_highest(rounds)], converged=False), LAST * fit_tolerance
            )
        if _behind(rounds):  # further training did not help
            found, seen = noted(replace(found, model=reached[_highest(rounds)]))
        reason, message = ending or ("most", "the prior variance of the rows is explained, but for rounding")
        if nothing_learned(seen):
            message += "; the bound is hardly above that of noise alone: begin with more if there should be a signal"
            if found.converged:
                warnings.warn(message, NoSignalWarning, stacklevel=outside())
        if not found.converged:
            text = f"the training of the last model has not converged: {limits.spent(found) or found.message}."
            warnings.warn(text, ConvergenceWarning, stacklevel=outside())
        growth = {"reason": reason, "rounds": rounds, "certified_rows": seen.rows}
        return GrowthResult(**(vars(found) | {"message": message}), **growth)


def _tuned_on_sample(model: Any, X: Array, y: Array, rows: int, limits: _Limits, settings: dict[str, Any]) -> FitResult:
    """The model with the hyperparameters of the exact GP of some rows, if that has learned anything."""
    index = generator(settings["seed"], 19).permutation(X.shape[0])[:rows]
    X, y = backend_of(X).gathered(X, index), backend_of(y).gathered(y, index)
    weights = model._row_weights
    weights = None if weights is None else backend_of(weights).gathered(weights, index)
    exact = exact_model(model, X, y, weights)
    if exact is None:
        return FitResult(model, 0, 0.0)
    steps = min(SAMPLE_STEPS, limits.max_steps or SAMPLE_STEPS)
    chosen = {"gradient": settings["gradient"], "callbacks": settings["callbacks"], "progress": settings["progress"]}
    found = fit_lbfgs(exact, X, y, max_iterations=steps, **chosen)
    if found.bounds[0] / X.shape[0] - baseline(Gaussian(), y, weights) < LITTLE * limits.tolerance:
        return FitResult(model, found.steps, found.seconds, found.trace, found.repairs)
    path = growing_part(model)[0]
    own = tree.leaves(found.model, "parameter").items()
    inside = {name if name.startswith("likelihood.") else tree.joined(path, name): x for name, x in own}
    return FitResult(tree.with_leaves(model, inside), found.steps, found.seconds, found.trace, found.repairs)


def _with_hyperparameters(model: Any, start: Any) -> Any:
    """The model with the hyperparameters of another one."""
    parts = {"kernel", "likelihood", "mean_function"}
    return tree.with_leaves(model, {name: x for name, x in tree.leaves(start).items() if parts & {*name.split(".")}})
