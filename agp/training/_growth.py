"""The number of inducing inputs by itself: training, a certificate, twice as many, until more would gain nothing."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from agp import tree
from agp.backend import Array, backend_of
from agp.checks import check_callables, check_model, check_positive, check_whole
from agp.errors import ConvergenceWarning, NoSignalWarning
from agp.gradient import GradientMode
from agp.inducing import greedy_variance
from agp.models import exact_model, growing_part, grown, valid_data
from agp.random import generator
from agp.repairs import outside
from agp.training._certificate import CERTIFIED_ROWS, Certificate, certified, noise_alone
from agp.training._fit import FitResult, check_plan, continued, fit
from agp.training._lbfgs import fit_lbfgs
from agp.training._limits import Limits, Round, behind, highest
from agp.training._result import Progress
from agp.training._run import Callback
from agp.updates import Update

__all__ = ["GROWTH_TOLERANCE", "MOST_INDUCING", "GrowthResult", "Round", "fit_growing"]

MOST_INDUCING = 1024
"""Inducing inputs at most where the user does not say."""
GROWTH_TOLERANCE = 0.005
"""In nats per datum: what a doubling must gain."""
RESETS, LITTLE = 2, 5.0
"""How often hyperparameters begin again, where few inducing inputs have made all targets noise: where the bound is
above the density of noise alone by less than so many tolerances."""
SAMPLE_ROWS, SAMPLE_STEPS = 2000, 25
"""The rows of which the exact evidence trains hyperparameters first, and the iterations of L-BFGS."""
LAST, LOOSEST, ERROR = 3.0, 10.0, 180.0
"""Where the training of the last model ends, in tolerances of training, and that of a round: at so many over the root
of the number of rows, which is how the error of an average over them falls, within these limits. A round has only to
tell what a doubling gains. Where M is as large as may be the round is the last: more steps would cost more than all
before."""


@dataclass
class GrowthResult(FitResult):
    """What `fit_growing` leaves behind; `message` is the reason in a sentence."""

    reason: str = ""
    """Why M grew no more: "certificate", "gain", "most", "memory", "time", "steps" or "callback"."""
    rounds: list[Round] = field(default_factory=list)
    """What each M reached, the first one first; an M again where it was trained further, and in the end the best one if
    the largest had not reached as much."""
    certified_rows: int = 0
    """The rows of `Round.upper` and `Round.gap`: all, or as many as were drawn; 0 where there is no upper bound."""

    def describe(self) -> str:
        """The rounds as a table, and why they ended."""
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

    Each round trains by `agp.fit`, and then looks at the bound per datum. New inducing inputs are rows of the data,
    those of the largest variance given the present ones (`agp.inducing.greedy_variance`); their inducing variables
    enter at the prior given the others, so that nothing that was learned is lost. M grows no more when

    - the certificate says that no number of them could gain as much as the tolerance at these hyperparameters: the gap
      between the bound and an upper bound on the exact evidence, for Gaussian noise ("certificate");
    - the last doubling gained less than the tolerance, all parameters trained again, and so did training the model to
      the end thereafter ("gain");
    - there are as many as asked for, or no row is left that adds any ("most");
    - twice as many would exceed the memory ("memory") or the time ("time", "steps"), or a callback says so.

    A model whose bound is hardly above the density of noise alone has learned nothing, and neither its certificate nor
    its gain says anything: it grows on from the hyperparameters of the sample or, up to twice, from those that were
    given. Still, begin with enough inducing inputs to see some of the signal.

    Before it ends the last model is trained further, unless M is as large as may be. Where larger ones ended with a
    lower bound, since a budget ended their training for instance, the model is the best of those before. The upper
    bound costs as much as one pass of training over the data; of very many rows some are drawn for it.

    Parameters
    ----------
    model
        `SGPR`, or an `SVGP` whose process is a `Sparse` one (or a `Mixed` one of that) with `Points`, as `from_data`
        gives it, with the number of inducing inputs to begin with: 64 for instance. It is not changed.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    tolerance
        In nats per datum.
    most
        M at most; never more than N.
    fit_tolerance
        As `tolerance` of `agp.fit`, of which the first round and what follows the last take three times as much, and
        other rounds three to ten times: 180 over the root of the number of rows.
    max_steps, max_seconds
        In all rounds together; unlimited by default, but that each is one of `agp.fit`, which has limits.
    batch_size, updates, gradient, seed, callbacks, progress
        As `agp.fit`; steps count on from round to round.
    memory
        Budget for working arrays in MiB, None as in `agp.models.Model.bound`. Those with M^2 numbers must fit, others
        are taken in blocks.
    certified_rows
        Of how many rows the upper bound is taken, at the most. Models whose bound takes all rows in any case, such as
        `SGPR`, have it of all.
    sample_rows
        On so many rows, drawn by the seed, hyperparameters are trained first by the evidence of the exact GP, where the
        model is a collapsed one: few inducing inputs would teach too much noise. 0 for none; what has learned nothing
        is not kept. Variational models begin with what they were given, since their q(u) has to be trained besides.

    Raises
    ------
    TypeError, ValueError
        As `agp.fit`; also for models that do not grow, and for a tolerance or a limit that is not a positive number.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds everything so far, those of the rounds before included.

    Warns
    -----
    agp.errors.ConvergenceWarning
        If a budget ended the training of the last model.

    Source: the greedy choice and the upper bound as a rule to stop by: Burt, Rasmussen & van der Wilk, "Convergence of
    sparse variational inference in Gaussian processes regression", JMLR 2020.
    """
    check_model(model)
    X, y = valid_data(X, y, missing=model.likelihood.missing)
    model._check(X, y)
    growing_part(model)
    limits = Limits(tolerance, most, max_steps, max_seconds, memory, X.shape[0])
    fit_tolerance = check_positive("fit_tolerance", fit_tolerance)
    certified_rows = check_whole("certified_rows", certified_rows)
    watch = _Watch(callbacks)
    check_plan(updates)
    settings: dict[str, Any] = {"batch_size": batch_size, "updates": updates, "gradient": gradient, "memory": memory}
    settings |= {"seed": seed, "callbacks": [watch], "progress": progress}
    sample_rows = check_whole("sample_rows", sample_rows, least=0)
    found, tuned = FitResult(model, 0, 0.0), False
    if sample_rows and not model.stochastic:
        found = _tuned_on_sample(model, X, y, sample_rows, limits, settings)
        tuned, model = found.model is not model, found.model
    rounds: list[Round] = []
    reached: list[Any] = []  # the model after each round
    resets, looser = 0, min(max(LAST, ERROR / math.sqrt(X.shape[0])), LOOSEST)

    def trained(found: FitResult, tolerance: float) -> tuple[FitResult, Certificate]:
        left = None if watch.ended else limits.left(found)
        found = _continued(found, X, y, settings | left | {"tolerance": tolerance}) if left is not None else found
        return noted(found)

    def noted(found: FitResult) -> tuple[FitResult, Certificate]:
        seen = certified(found.model, X, y, rows=certified_rows, seed=seed, memory=memory)
        M = growing_part(found.model)[1].inducing.count
        rounds.append(Round(M, seen.bound, seen.upper, seen.gap, limits.elapsed(), found.steps))
        reached.append(found.model)
        return found, seen

    def larger(found: FitResult, lost: bool) -> FitResult | None:
        begin = _reset(found.model, model) if lost else found.model
        M = growing_part(begin)[1].inducing.count
        Z = _new_inputs(begin, X, min(limits.most - M, M), seed)
        return replace(found, model=grown(begin, Z, begun=True)) if Z.shape[0] else None

    def nothing_learned(seen: Certificate) -> bool:
        return seen.rows > 0 and seen.bound - noise_alone(y, model._row_weights) < LITTLE * limits.tolerance

    while True:
        last = limits.size(found.model)
        in_full = not rounds  # the first may be the only one, and costs least
        found, seen = trained(found, fit_tolerance * (LAST if in_full else looser))
        lost = (tuned or resets < RESETS) and nothing_learned(seen)
        judged = None if lost else limits.judged(rounds)
        short = limits.budget(found, rounds)
        ending = watch.ending() or (short if behind(rounds) else None) or judged or last or short
        more = None if ending else larger(found, lost)
        if more is None and not in_full and (not last or behind(rounds)):
            found = replace(found, converged=False)  # it has not been trained to the end
            if not watch.ended and not limits.spent(found):
                found, seen = trained(found, LAST * fit_tolerance)
                if ending in (None, judged) and not limits.stands(ending, rounds):
                    ending = watch.ending() or limits.budget(found, rounds)
                    more = None if ending else larger(found, lost=False)
        if more is not None:
            found, resets = more, resets + lost
            continue
        if behind(rounds):  # what was to be learned anew has not been, or not as well
            found, seen = trained(replace(found, model=reached[highest(rounds)], converged=False), LAST * fit_tolerance)
        if behind(rounds):  # nor did training it further
            found, seen = noted(replace(found, model=reached[highest(rounds)]))
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


def _tuned_on_sample(model: Any, X: Array, y: Array, rows: int, limits: Limits, settings: dict[str, Any]) -> FitResult:
    """The model with hyperparameters that suit the exact GP of some rows, if that has learned anything of them."""
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
    if found.bounds[0] / X.shape[0] - noise_alone(y, weights) < LITTLE * limits.tolerance:
        return FitResult(model, found.steps, found.seconds, found.trace, found.repairs)
    path = growing_part(model)[0]
    own = tree.leaves(found.model, "parameter").items()
    inside = {name if name.startswith("likelihood.") else tree.joined(path, name): x for name, x in own}
    return FitResult(tree.with_leaves(model, inside), found.steps, found.seconds, found.trace, found.repairs)


def _continued(found: FitResult, X: Array, y: Array, settings: dict[str, Any]) -> FitResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what matters is the end
        warnings.simplefilter("ignore", NoSignalWarning)
        return continued(found, fit, X, y, settings)


def _reset(model: Any, start: Any) -> Any:
    """The model with the hyperparameters of another one, which has fewer inducing inputs."""
    parts = {"kernel", "likelihood", "mean_function"}
    return tree.with_leaves(model, {name: x for name, x in tree.leaves(start).items() if parts & {*name.split(".")}})


def _new_inputs(model: Any, X: Array, count: int, seed: int) -> Array:
    """At most so many rows of X, those of the largest variance given the inducing inputs."""
    part: Any = growing_part(model)[1]
    return greedy_variance(X, part.kernel, count, seed=seed, tolerance=0.0, given=part.inducing.Z)


class _Watch:
    """The user's callbacks as one, which remembers whether any of them ended the training."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks, self.ended = check_callables("callbacks", callbacks), False

    def __call__(self, seen: Progress) -> bool:
        said = sum(bool(callback(seen)) for callback in self.callbacks)  # every callback is called
        self.ended = self.ended or said > 0
        return self.ended

    def ending(self) -> tuple[str, str] | None:
        return ("callback", "a callback ended it") if self.ended else None
