"""What to run when the user does not say: the project's recipe."""

from typing import Any

from agp.backend import backend_of
from agp.gradient import GradientMode
from agp.posteriors import InverseFactored, InverseFree, Whitened
from agp.updates import Adam, Group, InverseUpdate, Update, delayed

__all__ = ["recipe"]

FROZEN_SHARE = 0.05
"""The share of the steps for which inducing inputs stay where they start."""


def recipe(model: Any, steps: int, /, *, rate: float = 1e-2, gradient: GradientMode = "closed-form") -> list[Update]:
    """The updates that train a model in a number of steps.

    Adam on all parameters; inducing inputs stay frozen for the first 5 % of the steps, then move at a fifth of the rate
    with a longer memory (beta1 = 0.99). Inverse factors follow after each step.

    Parameters
    ----------
    model
        An `agp.models.Model`.
    steps
        How many steps the training will have.
    rate
        Adam's learning rate.
    gradient
        The gradient mode.
    """
    groups: dict[str, Group] = {}
    if hasattr(model, "Z"):
        groups["Z"] = Group(delayed(rate / 5.0, int(FROZEN_SHARE * steps)), beta1=0.99)
    posterior = getattr(model, "posterior", None)
    if posterior is not None and not isinstance(posterior, (Whitened, InverseFree)):
        # this mean is in units of f, so its steps must be, too
        prior_variance = model.kernel.diag(model.Z)[0]
        groups["posterior.mean"] = Group(rate * float(backend_of(prior_variance).xp.mean(prior_variance)) ** 0.5)
    updates: list[Update] = [Adam(rate, groups=groups, gradient=gradient)]
    if isinstance(posterior, InverseFactored):
        updates.append(InverseUpdate())
    return updates
