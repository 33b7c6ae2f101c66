"""What L-BFGS leaves to updates: the optimum of q(u), of sites and of inverse factors for the other leaves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agp import tree
from agp.posteriors import Posterior
from agp.updates import InverseUpdate, MovesLeaves, NaturalGradient, Repeat, SiteStep, Update

__all__ = ["inner_updates", "moves_posteriors", "solved_leaves"]

TOLERANCE = 1e-7
"""Of inverse factors. The gradient leaves out what it would change of them: an error of second order."""
SITE_RATE, SITE_STEPS = 0.8, 8
"""Site steps for likelihoods that are not quadratic, from where the sites of the last iterate were."""


def inner_updates(model: Any, memory: float | None) -> list[Update]:
    """The updates that take some leaves of a model to their optimum for the others, on all rows; maybe none.

    None for sites whose steps may not settle: where the likelihood is not log-concave, or inverse factors hang on them.
    """
    inverses = InverseUpdate.moves(model).leaves
    likelihood = model.likelihood
    if SiteStep().applies(model):
        if inverses or not likelihood.log_concave:
            return []
        exact = SiteStep(1.0, memory=memory)
        return [exact if likelihood.quadratic else Repeat(replace(exact, rate=SITE_RATE), SITE_STEPS)]
    found: list[Update] = [InverseUpdate(TOLERANCE, jumps=True)] if inverses else []
    if likelihood.quadratic and NaturalGradient.stepping(model):
        found.append(NaturalGradient(1.0, memory=memory))
    return found


def solved_leaves(model: Any, inner: Sequence[Update]) -> frozenset[str]:
    """The leaves that inner updates take to their optimum. TypeError for an update that does not say what it moves."""
    told = [update for update in inner if isinstance(update, MovesLeaves)]
    if unknown := [update for update in inner if update not in told]:
        msg = f"inner has {unknown[0]!r}, but each must be an update that says by `moves` which leaves are its own."
        raise TypeError(msg)
    return frozenset().union(*(update.moves(model).leaves for update in told))


def moves_posteriors(model: Any, inner: Sequence[Update]) -> bool:
    """Whether parameters of a q(u) are left to L-BFGS."""
    own = {
        tree.joined(path, leaf)
        for path, posterior in tree.nodes(model, Posterior).items()
        for leaf in tree.leaves(posterior, "parameter")
    }
    return bool(own - solved_leaves(model, inner))
