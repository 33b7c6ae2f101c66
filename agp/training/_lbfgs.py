"""L-BFGS on all data: for bounds without noise, and parameters that are few enough to converge.

Likelihoods that take means over samples have fixed noise where they are given none; it makes their bounds smooth.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from agp import tree
from agp._context import public
from agp.backend import Array
from agp.batch import Batch
from agp.checks import check_callables, check_model, check_whole
from agp.errors import Interrupted
from agp.gradient import GradientMode
from agp.models import valid_data
from agp.random import generator
from agp.repairs import collect_reports
from agp.training._begun import begun
from agp.training._inner import solved_leaves
from agp.training._objective import Objective
from agp.training._progress import progress_bar
from agp.training._result import LBFGSResult
from agp.training._run import Callback
from agp.training._search import Limits, Search, starts
from agp.tree import detached
from agp.updates import Adam, Update

__all__ = ["fit_lbfgs", "why_not_lbfgs"]


@public(repairs=False, ignore="underflow")
def fit_lbfgs(
    model: Any,
    X: Array,
    y: Array,
    *,
    max_iterations: int = 1000,
    tolerance: float = 1e-6,
    restarts: int = 0,
    spread: float = 1.0,
    frozen: str | Sequence[str] = (),
    inner: Sequence[Update] = (),
    gradient: GradientMode = "closed-form",
    memory: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
) -> LBFGSResult:
    """Maximise the bound of all data over the raw leaves by SciPy's L-BFGS-B, from one or several starts.

    For a model with `priors` the bound plus `agp.priors.log_prior` is maximised, and every bound below means that sum.
    For deterministic bounds: `GPR`, `SGPR`, and `SVGP` with all data, whose auxiliary arrays need `inner` updates; a
    likelihood that takes means over samples has fixed noise here. The raw leaves travel to the host as one float64
    vector and back; the bound and its gradient are computed where the data are, in their dtype.

    Parameters
    ----------
    model
        An `agp.models.Model`; it is not changed: the result holds the trained one.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    max_iterations
        Iterations at most, for each start.
    tolerance
        Stop when no entry of the raw gradient of bound / N exceeds it; raw leaves of a model from `from_data` have no
        dimension, so that this means the same in any units of the data.
    restarts
        Further starts, whose hyperparameters of kernel and likelihood are drawn around those of the model; the best
        start is kept.
    spread
        Of the restarts: positive leaves are multiplied by exp(spread e), others have spread e of their units added,
        e ~ N(0, 1).
    frozen
        Patterns of leaves that stay as they are, such as ``"Z"`` or ``("Z", "likelihood.*")``.
    inner
        Updates that take some leaves to where the bound is highest for the others, such as ``NaturalGradient(1.0)``
        with a Gaussian likelihood, or ``InverseUpdate(1e-9, jumps=True)``. They run before each evaluation, from where
        the last iterate left these leaves, and L-BFGS moves the others: the gradient of the profile of a function is
        the partial one at its optimum.
    gradient
        "closed-form" (every backend) or "autodiff" (torch, JAX).
    memory
        Budget for the working arrays of the bound and its gradient, in MiB; None as in `agp.models.Model.bound`.
    seed
        Of the restarts.
    callbacks
        Called with a `Progress` after each iteration, counted over all starts; one that returns True ends the
        optimisation.
    progress
        Show a progress bar (needs the extra ``cli``).

    Raises
    ------
    TypeError, ValueError
        For data that do not fit each other or the model, a pattern that matches nothing, or a model whose objective is
        noisy or has auxiliary arrays, which gradients do not move; use `agp.train` for those.
    agp.errors.NonFiniteError
        If the bound or its gradient is not finite at the model that was given. Elsewhere such a trial point counts
        as rejected: the line search sees a high finite value there and steps back.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds the best so far.

    Source: Byrd, Lu, Nocedal & Zhu, "A limited memory algorithm for bound constrained optimization", 1995.
    """
    check_model(model)
    X, y = valid_data(X, y, missing=model.likelihood.missing)
    model._check(X, y)
    model = detached(model)
    if why := why_not_lbfgs(model, X.shape[0], inner):
        raise TypeError(why)
    limits = Limits(check_whole("max_iterations", max_iterations, least=0), _not_negative("tolerance", tolerance))
    restarts = check_whole("restarts", restarts, least=0)
    seed, spread = check_whole("seed", seed, least=0), _not_negative("spread", spread)
    moving = _moving(model, frozen, inner, gradient)
    model = (
        begun(model, tree.leaves(model).keys() - moving - solved_leaves(model, inner)) if limits.iterations else model
    )
    objective = Objective(model, Batch(X, y), moving, inner, gradient, memory)
    search = Search(objective, limits, check_callables("callbacks", callbacks))
    total = limits.iterations * (restarts + 1)
    with progress_bar(total) if progress else nullcontext() as bar, collect_reports(objective.aside):
        search.bar = bar
        try:
            search.run(starts(objective, restarts, seed, spread))
        except KeyboardInterrupt as interrupt:
            raise Interrupted(search.result()) from interrupt
    result = search.result()
    objective.repairs.tell()
    return result


def _not_negative(name: str, value: float) -> float:
    if not 0.0 <= value < float("inf"):
        msg = f"{name} is {value!r}, but must be a finite number from zero on."
        raise ValueError(msg)
    return float(value)


def why_not_lbfgs(model: Any, rows: int, inner: Sequence[Update] = (), /) -> str:
    """Why L-BFGS does not serve a model on so many rows with these inner updates; empty where it does."""
    draws = model._draws(generator(0), rows)
    if noise := [name for name in (*draws.by_row, *draws.whole) if not name.startswith("likelihood.")]:
        return f"the objective of this model needs draws ({', '.join(noise)}), L-BFGS none; use agp.train."
    solved = solved_leaves(model, inner)
    if auxiliary := [name for name in tree.leaves(model, "auxiliary") if name not in solved]:
        return f"L-BFGS would leave {', '.join(auxiliary)} behind; use agp.train, or a posterior such as Whitened."
    return ""


def _moving(model: Any, frozen: str | Sequence[str], inner: Sequence[Update], gradient: GradientMode) -> list[str]:
    """The names of the leaves to move; patterns and gradient modes mean, and fail, as they do for Adam."""
    frozen = tree.patterns(frozen)
    solved = solved_leaves(model, inner)
    moving = [name for name in Adam(frozen=frozen, gradient=gradient).init(model)["first"] if name not in solved]
    if not moving:
        by = ", ".join([*frozen, *(type(update).__name__ for update in inner)])
        msg = f"every parameter is frozen by {by}; nothing is left to optimise."
        raise ValueError(msg)
    return moving
