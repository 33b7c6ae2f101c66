"""What to run when the user does not say: the project's recipe."""

from typing import Any

from agp.actions import BlockActions
from agp.backend import backend_of
from agp.gradient import GradientMode
from agp.posteriors import FollowsInverse, Posterior
from agp.rows import MEMORY
from agp.updates import Adam, Group, InverseUpdate, Normalise, SiteStep, Update, delayed, linear

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
    before it. In computation-aware models the rate falls linearly to a tenth, and sparse actions are scaled to unit
    norm after each step.

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
    groups: dict[str, Group] = {}
    if hasattr(model, "Z"):
        groups["Z"] = Group(delayed(rate / 5.0, int(FROZEN_SHARE * steps)), beta1=0.99)
    groups |= _in_units_of_f(model, rate)
    actions = getattr(model, "actions", None)
    falling = rate if actions is None else linear(rate, LAST_RATE * rate, max(1, steps))
    updates: list[Update] = [Adam(falling, groups=groups, gradient=gradient, memory=memory)]
    if isinstance(actions, BlockActions):
        updates.append(Normalise())  # before the inverse follows, which depends on the norms
    if isinstance(getattr(model, "posterior", None), FollowsInverse):
        updates.append(InverseUpdate())
    sites = SiteStep(SITE_RATE)
    return [sites, *updates] if sites.applies(model) else updates


def _in_units_of_f(model: Any, rate: float) -> dict[str, Group]:
    """The groups of the leaves of q(u) that are in a power of the unit of f: their steps must be, too."""
    found = {name: q for name in ("posterior", "second") if isinstance(q := getattr(model, name, None), Posterior)}
    powers = {f"{name}.{leaf}": power for name, q in found.items() for leaf, power in q.unit_powers.items()}
    if not powers:
        return {}
    prior_variance = model.kernel.diag(model.Z)[0]
    deviation = float(backend_of(prior_variance).xp.mean(prior_variance)) ** 0.5
    return {name: Group(rate * deviation**power) for name, power in powers.items()}
