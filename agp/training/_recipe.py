"""The default updates of training."""

from collections.abc import Iterable
from typing import Any, Literal

from agp import tree
from agp.checks import check_model
from agp.gradient import GradientMode
from agp.inducing import Inducing
from agp.updates import (
    Adam,
    Group,
    InverseUpdate,
    NeighboursUpdate,
    Normalise,
    Rate,
    SiteStep,
    Update,
    delayed,
    linear,
)

RATE = 5e-2
"""Adam's initial learning rate, for dimensionless raw leaves."""
FINAL_RATE_FRACTION = 0.1
"""The final learning rates, as a fraction of the initial rates."""
FROZEN_SHARE = 0.05
"""The fraction of the steps in which inducing inputs do not move."""
SITE_RATE = 0.1
"""The step size of natural-gradient and site steps: small enough for minibatches, and fast with all data."""


def recipe(
    model: Any,
    steps: int,
    *,
    rate: float = RATE,
    fall: float = FINAL_RATE_FRACTION,
    natural: float | Literal["usual"] | None = "usual",
    frozen: str | Iterable[str] = (),
    gradient: GradientMode = "closed-form",
    memory: float | None = None,
) -> list[Update]:
    """Return the updates that train a model in a given number of steps.

    Adam moves all parameters, with linearly decreasing learning rates, except a q(u) with a mean and a full covariance.
    Such a q(u) moves by natural-gradient steps, which use the same gradient as Adam. Inducing inputs are frozen for the
    first 5 % of the steps, and then move at a fifth of Adam's rate, with beta1 = 0.99. Sites of the dual
    parameterisation move before each Adam step. After each Adam step, sparse actions are scaled to unit norm, and
    inverse factors are updated. Every 40 steps, the neighbours of models with neighbours are renewed.

    Parameters
    ----------
    model
        An `agp.models.Model`.
    steps
        The number of training steps.
    rate
        Adam's initial learning rate.
    fall
        The final learning rates, as a fraction of the initial rates; 1 keeps them constant.
    natural
        The step size of natural-gradient steps; with None, Adam moves q(u). "usual" means 0.1 for most likelihoods. For
        likelihoods whose gradients can vanish, such as robust-max, "usual" means None, because a step that is too large
        can make their gradient zero.
    frozen
        A pattern of leaves that do not change, or several patterns. A q(u) that takes natural-gradient steps must be
        frozen as a whole or not at all.
    gradient, memory
        See `agp.updates.Adam`.

    Raises
    ------
    TypeError, ValueError
        If `model` is not a model, a pattern matches nothing, or only part of a q(u) with natural-gradient steps is
        frozen.

    Examples
    --------
    The updates depend on the model. The default posterior of `SVGP` has an inverse factor, which is also updated.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 50)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> for posterior in ("whitened", "relaxed"):
    ...     model = agp.SVGP.from_data(X, y, num_inducing=8, posterior=posterior)
    ...     print([type(update).__name__ for update in agp.recipe(model, steps=100)])
    ['Adam']
    ['Adam', 'InverseUpdate']
    """
    check_model(model)
    start = int(FROZEN_SHARE * steps)

    def falling(rate: float, over: int = steps) -> Rate:
        return rate if fall == 1.0 else linear(rate, fall * rate, max(1, over))

    late = Group(delayed(falling(rate / 5.0, steps - start), start), beta1=0.99)
    groups = {
        tree.join_path(path, leaf): late
        for path, inducing in tree.nodes(model, Inducing).items()
        for leaf in inducing.locations
    }
    if natural == "usual":
        natural = None if model.likelihood.slopes_vanish else SITE_RATE
    adam = Adam(falling(rate), groups, frozen, gradient, natural=natural, memory=memory)
    adam.init(model)  # raise errors early
    updates: list[Update] = [adam]
    if Normalise().moves(model).leaves:
        updates.append(Normalise())  # before the inverse update, which depends on the norms
    if InverseUpdate.moves(model).leaves:
        updates.append(InverseUpdate())
    if NeighboursUpdate.applies(model):
        return [NeighboursUpdate(), *updates]
    sites = SiteStep(SITE_RATE, memory=memory)
    return [sites, *updates] if sites.applies(model) else updates
