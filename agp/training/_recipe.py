"""What to run when the user does not say: the project's recipe."""

from typing import Any

from agp.gradient import GradientMode
from agp.posteriors import Relaxed
from agp.updates import Adam, Group, InverseUpdate, Update, delayed

__all__ = ["recipe"]

FROZEN_SHARE = 0.05
"""The share of the steps for which inducing inputs stay where they start."""


def recipe(model: Any, steps: int, /, *, rate: float = 1e-2, gradient: GradientMode = "closed-form") -> list[Update]:
    """The updates that train a model in a number of steps.

    Adam on all parameters; inducing inputs stay frozen for the first 5 % of the steps, then move at a fifth of the rate
    with a longer memory (beta1 = 0.99). R-SVGP's inverse factor follows after each step.

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
    groups = {}
    if hasattr(model, "Z"):
        groups["Z"] = Group(delayed(rate / 5.0, int(FROZEN_SHARE * steps)), beta1=0.99)
    updates: list[Update] = [Adam(rate, groups=groups, gradient=gradient)]
    if isinstance(getattr(model, "posterior", None), Relaxed):
        updates.append(InverseUpdate())
    return updates
