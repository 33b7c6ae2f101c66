"""What to run when the user does not say: the project's recipe."""

from typing import Any

from agp import tree
from agp.actions import Actions
from agp.backend import backend_of
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
    /,
    *,
    rate: float = 1e-2,
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
    gradient, memory
        As `Adam`: the gradient mode, and a budget for working arrays in MiB.
    """
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
    frozen = tuple(f"{path}.*" for path in stepping)
    groups = {name: group for name, group in groups.items() if not any(tree.matches(name, path) for path in frozen)}
    adam = Adam(falling, groups=groups, frozen=frozen, gradient=gradient, memory=memory)
    updates: list[Update] = [natural, adam] if stepping else [adam]
    if any(node.normalises for node in actions):
        updates.append(Normalise())  # before the inverse follows, which depends on the norms
    if any(owner.posterior.inverse_factors for owner in tree.nodes(model, InverseOwner).values()):
        updates.append(InverseUpdate())
    sites = SiteStep(SITE_RATE, memory=memory)
    return [sites, *updates] if sites.applies(model) else updates


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
