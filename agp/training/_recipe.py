"""The default updates of a training."""

from collections.abc import Iterable
from typing import Any, Literal

from agp import tree
from agp.actions import Actions
from agp.checks import check_model
from agp.gradient import GradientMode
from agp.inducing import Inducing
from agp.posteriors import InverseOwner
from agp.updates import Adam, Group, InverseUpdate, Normalise, Rate, SiteStep, Update, delayed, linear

__all__ = ["recipe"]

RATE = 5e-2
"""Adam's first rate, in dimensionless raw leaves."""
FALL = 0.1
"""The last rates, in shares of the first."""
FROZEN_SHARE = 0.05
"""The share of the steps for which inducing inputs do not move."""
SITE_RATE = 0.1
"""The rate of natural-gradient and site steps: small enough for minibatches, and fast with all data."""


def recipe(
    model: Any,
    steps: int,
    *,
    rate: float = RATE,
    fall: float = FALL,
    natural: float | Literal["usual"] | None = "usual",
    frozen: str | Iterable[str] = (),
    gradient: GradientMode = "closed-form",
    memory: float | None = None,
) -> list[Update]:
    """The updates that train a model in a number of steps.

    Adam on all parameters, at rates that fall linearly; a q(u) with a mean and a full covariance takes
    natural-gradient steps from the same gradient instead. Inducing inputs are frozen for the first 5 % of the steps,
    then move at a fifth of the rate with beta1 = 0.99. Sites of the dual parameterisation move before each step;
    inverse factors are updated, and sparse actions scaled to unit norm, after it.

    Parameters
    ----------
    model
        An `agp.models.Model`.
    steps
        The number of steps of the training.
    rate
        Adam's learning rate at the start.
    fall
        The last rates, in shares of the first; 1 keeps them constant.
    natural
        The rate of natural-gradient steps; None leaves q(u) to Adam. "usual" is 0.1, and None for a likelihood whose
        slopes vanish, such as robust-max: from too long a step there is no gradient back.
    frozen
        A pattern, or several, of leaves that do not change. A q(u) that takes natural-gradient steps is frozen as a
        whole or not at all.
    gradient, memory
        As `Adam`.

    Raises
    ------
    TypeError, ValueError
        If `model` is not a model, a pattern matches nothing, or part of such a q(u) is frozen.
    """
    check_model(model)
    start = int(FROZEN_SHARE * steps)

    def falling(rate: float, over: int = steps) -> Rate:
        return rate if fall == 1.0 else linear(rate, fall * rate, max(1, over))

    late = Group(delayed(falling(rate / 5.0, steps - start), start), beta1=0.99)
    groups = {
        tree.joined(path, leaf): late
        for path, inducing in tree.nodes(model, Inducing).items()
        for leaf in inducing.locations
    }
    if natural == "usual":
        natural = None if model.likelihood.slopes_vanish else SITE_RATE
    settings: dict[str, Any] = {"groups": groups, "frozen": tree.patterns(frozen), "natural": natural}
    adam = Adam(falling(rate), gradient=gradient, memory=memory, **settings)
    adam.init(model)  # raises early
    updates: list[Update] = [adam]
    actions = tree.nodes(model, Actions).values()
    if any(node.normalises for node in actions):
        updates.append(Normalise())  # before the inverse, which depends on the norms
    if any(owner.posterior.inverse_factors for owner in tree.nodes(model, InverseOwner).values()):
        updates.append(InverseUpdate())
    sites = SiteStep(SITE_RATE, memory=memory)
    return [sites, *updates] if sites.applies(model) else updates
