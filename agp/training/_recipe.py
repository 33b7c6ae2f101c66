"""What to run when the user does not say: the project's recipe."""

from collections.abc import Iterable, Mapping
from typing import Any

from agp import tree
from agp.actions import Actions
from agp.backend import backend_of
from agp.checks import check_model
from agp.gradient import GradientMode
from agp.inducing import Inducing
from agp.linalg import diagonal
from agp.posteriors import InverseOwner, Posterior
from agp.processes import SparsePrior
from agp.rows import MEMORY
from agp.updates import Adam, Group, InverseUpdate, NaturalGradient, Normalise, SiteStep, Update, delayed, linear

__all__ = ["recipe"]

FROZEN_SHARE = 0.05
"""The share of the steps for which inducing inputs stay where they start."""
SITE_RATE = 0.1
"""The rate of site steps: small enough for minibatches, and soon there with all data."""
LAST_RATE = 0.1
"""Where the rate of computation-aware models ends, in shares of where it begins."""


def recipe(
    model: Any,
    steps: int,
    *,
    rate: float = 1e-2,
    frozen: str | Iterable[str] = (),
    gradient: GradientMode = "closed-form",
    memory: float = MEMORY,
) -> list[Update]:
    """The updates that train a model in a number of steps.

    Adam on all parameters; inducing inputs stay frozen for the first 5 % of the steps, then move at a fifth of the rate
    with a longer memory (beta1 = 0.99). Inverse factors follow after each step. Sites of the dual parameterisation move
    before it. A q(u) in its own moments (`Marginal`) takes natural-gradient steps, since plain ones train it badly. In
    computation-aware models the rate falls linearly to a tenth, and sparse actions are scaled to unit norm after each
    step.

    Parameters
    ----------
    model
        An `agp.models.Model`.
    steps
        How many steps the training will have.
    rate
        Adam's learning rate.
    frozen
        A pattern, or several, of leaves that stay as they are. A q(u) that takes natural-gradient steps is frozen as a
        whole or not at all.
    gradient, memory
        As `Adam`: the gradient mode, and a budget for working arrays in MiB.

    Raises
    ------
    TypeError, ValueError
        If there is no model, or a part of such a q(u) is frozen.
    """
    check_model(model)
    frozen = tree.patterns(frozen)
    late = Group(delayed(rate / 5.0, int(FROZEN_SHARE * steps)), beta1=0.99)
    groups = {
        tree.joined(path, leaf): late
        for path, inducing in tree.nodes(model, Inducing).items()
        for leaf in inducing.locations
    }
    groups |= {name: Group(rate * unit) for name, unit in _units_of_f(model).items()}
    actions = tree.nodes(model, Actions).values()
    falling = linear(rate, LAST_RATE * rate, max(1, steps)) if actions else rate
    natural = NaturalGradient(SITE_RATE, memory=memory)
    stepping = natural.stepping(model)
    stepping = stepping if any(q.ill_conditioned for q in stepping.values()) else {}
    stepping = {} if _all_frozen(stepping, frozen) else stepping
    moved = tuple(f"{path}.*" for path in stepping)
    groups = {name: group for name, group in groups.items() if not any(tree.matches(name, path) for path in moved)}
    adam = Adam(falling, groups=groups, frozen=(*moved, *frozen), gradient=gradient, memory=memory)
    updates: list[Update] = [natural, adam] if stepping else [adam]
    if any(node.normalises for node in actions):
        updates.append(Normalise())  # before the inverse follows, which depends on the norms
    if any(owner.posterior.inverse_factors for owner in tree.nodes(model, InverseOwner).values()):
        updates.append(InverseUpdate())
    sites = SiteStep(SITE_RATE, memory=memory)
    return [sites, *updates] if sites.applies(model) else updates


def _all_frozen(stepping: Mapping[str, Any], frozen: tuple[str, ...]) -> bool:
    """Whether the leaves of q(u) that natural-gradient steps would move are frozen; ValueError if only some are."""
    names = [tree.joined(path, leaf) for path, q in stepping.items() for leaf in tree.leaves(q, "parameter")]
    kept = [name for name in names if any(tree.matches(name, pattern) for pattern in frozen)]
    if kept and len(kept) < len(names):
        msg = (
            f"natural-gradient steps would move {', '.join(kept)}; freeze {', '.join(names)} together, or none of them."
        )
        raise ValueError(msg)
    return bool(kept)


def _units_of_f(model: Any) -> dict[str, float]:
    """The leaves of q(u) in a power of the unit of f, and what that is: their steps must be in it, too."""
    units = {}
    for path, node in tree.nodes(model, SparsePrior).items():
        variances = node.inducing_covariance()[0]
        deviation = float(backend_of(variances).xp.mean(diagonal(variances))) ** 0.5
        for name, posterior in tree.nodes(node, Posterior).items():
            if "." not in name:
                leaves = posterior.unit_powers.items()
                units |= {tree.joined(path, name, leaf): deviation**power for leaf, power in leaves}
    return units
