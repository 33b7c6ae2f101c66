"""The optimal q(u) on all rows: after training by minibatches, and in turn with L-BFGS for R-SVGP and L-SVGP."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch
from agp.errors import Interrupted, NonFiniteError, NotPositiveDefiniteError
from agp.repairs import collect_reports
from agp.training._objective import is_sampled, why_not_lbfgs
from agp.updates import InverseUpdate, OptimalPosterior, OptimalPseudoObservations, Update, apply_updates

SETTLED = 1e-3
"""After training by minibatches, steps of `OptimalPosterior` stop when they gain less than this many nats."""


def settling_updates(
    model: Any, rows: int, inner: list[Update], frozen: Iterable[str], memory: float | None
) -> list[Update]:
    """Return the updates that move q(u) to its optimum on all rows after training by minibatches, if there are any."""
    likelihood = model.likelihood
    if why_not_lbfgs(model, rows, inner) or likelihood.slopes_vanish or is_sampled(likelihood):
        return []
    if (matching := matching_update(model, frozen, memory)) is not None:
        return [matching]
    if likelihood.quadratic:  # inner updates take a single step, which leads to the optimum
        return [update for update in inner if not isinstance(update, InverseUpdate)]
    update = OptimalPosterior(SETTLED, memory=memory)
    return [update] if update.applies(model) and not moves_any(update, model, frozen) else []


def matching_update(model: Any, frozen: Iterable[str], memory: float | None) -> OptimalPseudoObservations | None:
    """Return the update for q(u) in the form of pseudo-observations, or None if it does not apply or q(u) is frozen."""
    update, likelihood = OptimalPseudoObservations(memory=memory), model.likelihood
    if not update.applies(model) or likelihood.slopes_vanish or is_sampled(likelihood):
        return None
    return None if moves_any(update, model, frozen) else update


def moves_any(update: Any, model: Any, patterns: Iterable[str]) -> bool:
    """Return whether an update moves a leaf, or entries of a leaf, that one of the patterns matches."""
    wholes = [tree.whole_pattern(pattern) for pattern in patterns]
    return any(tree.matches(name, whole) for name in update.moves(model).leaves for whole in wholes)


def settle_posterior(found: Any, data: Batch, updates: Sequence[Update], memory: float | None) -> Any:
    """Return the result after updates of q(u) on all rows; the result itself if there are none, or if they fail."""
    if not updates:
        return found
    start, model = time.perf_counter(), found.model
    try:
        with collect_reports(), np.errstate(all="ignore"):
            new, before, after = backend_of(data.X).compile(partial(_settle, updates, memory))(model, data)
            model = new if float(after) >= float(before) else model
    except KeyboardInterrupt as interrupt:
        raise Interrupted(found) from interrupt
    except (NonFiniteError, NotPositiveDefiniteError):
        pass  # steps may be too long for a likelihood that is not log-concave
    return replace(found, model=model, seconds=found.seconds + time.perf_counter() - start)


def _settle(updates: Sequence[Update], memory: float | None, model: Any, data: Batch) -> tuple[Any, Array, Array]:
    """Return the model after updates, and the bounds before and after."""
    states = [update.init(model) for update in updates]
    new = apply_updates(updates, model, data, states)[0]
    before, after = (each._objective(data, memory=memory)[0] for each in (model, new))
    return new, before, after
