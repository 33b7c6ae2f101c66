"""Preparation for training: checks, initial values of q(u), default updates, and leaves that no update moves."""

import warnings
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeVar

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch
from agp.checks import check_model, check_parameters, check_positive, check_whole
from agp.errors import UntouchedWarning, explain_call
from agp.gradient import GradientMode
from agp.inducing import Inducing
from agp.models import valid_data
from agp.posteriors import InverseOwner, Posterior
from agp.repairs import outside, public
from agp.updates import (
    ActionsUpdate,
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
    moves_of,
)

RATE = 5e-2
"""Adam's initial learning rate, for dimensionless raw leaves."""
FINAL_RATE_FRACTION = 0.1
"""The final learning rates, as a fraction of the initial rates."""
FROZEN_SHARE = 0.05
"""The fraction of the steps in which inducing inputs do not move."""
SITE_RATE = 0.1
"""The step size of natural-gradient and site steps: small enough for minibatches, and fast with all data."""
LOCAL_RATE = 0.8
"""The step size of sites that depend on their own row and its neighbours only, so that minibatches add no noise."""

M = TypeVar("M", bound=Any)


def check_training(
    model: Any,
    X: Array,
    y: Array,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
    /,
) -> Batch:
    """Return all rows as one batch; raise TypeError or ValueError if the model cannot be trained on them."""
    check_model(model)
    X, y = valid_data(X, y, missing=model.likelihood.missing)
    check_parameters(model, *model._reference())
    batch = model._batch(X, y, weights=weights, offset=offset, noise=noise)
    model._check(batch)
    return batch


def observations_of(batch: Batch, /) -> float:
    """Return the number of observations in a batch: the sum of the weights, or the number of rows."""
    weights = batch.weights
    return (0.0 if weights is None else float(backend_of(weights).xp.sum(weights))) or batch.X.shape[0]


@public(repairs=False, ignore=None)
def initial_state(model: M, kept: AbstractSet[str] = frozenset(), /) -> M:
    """Return the model with the initial values that `train` and `fit` use.

    An untrained model predicts its prior. If q(u) has the form of pseudo-observations (`agp.posteriors.SiteForm`:
    L-SVGP, R-SVGP and similar), training by gradient steps from the prior is slow. If such a q(u) still equals the
    prior, this function therefore sets small pseudo-observation variances and matching inverse factors. Trained models
    are not changed. Call this function before your own training loops.

    Parameters
    ----------
    model
        An `agp.models.Model`; it is not changed.
    kept
        The names of leaves that must not change. A q(u) that contains such a leaf is not changed at all.
    """
    new, wide = {}, model.likelihood.slopes_vanish
    for path, owner in tree.nodes(model, InverseOwner).items():
        where, old = tree.join_path(path, "posterior"), owner.posterior
        first = old.begun(owner._matrix_to_invert(), wide=wide) if isinstance(old, Posterior) else old
        before = tree.leaves(old)
        changed = {tree.join_path(where, name) for name, x in tree.leaves(first).items() if x is not before[name]}
        if changed and not changed & kept:
            new[where] = first
    return tree.replace(model, new) if new else model


def kept_leaves(model: Any, updates: Sequence[Update]) -> frozenset[str]:
    """Return the names of the leaves that updates keep fixed, and of the parameters that no update moves."""
    found, complete = moves_of(model, updates)
    return found.kept | (frozenset(tree.leaves(model, "parameter")) - found.leaves if complete else frozenset())


def warn_about_untouched(model: Any, updates: Sequence[Update]) -> None:
    """Warn about inverse factors, sites and chosen actions that no update moves, and name the missing updates.

    There is no warning about leaves that are frozen by name, or about inverse factors that depend only on fixed leaves.
    If an update does not declare which leaves it moves, there is no warning at all.
    """
    untouched = untouched_leaves(model, updates)
    if untouched:
        parts = "; or ".join(f"{', '.join(sorted(names))} (add {remedy})" for remedy, names in untouched.items())
        text = f"no update moves {parts}. To keep these leaves fixed, pass their names to Adam as frozen."
        warnings.warn(text, UntouchedWarning, stacklevel=outside())


def untouched_leaves(model: Any, updates: Sequence[Update]) -> dict[str, frozenset[str]]:
    """Return the leaves of `warn_about_untouched` by name, as the values of a dictionary from the missing updates."""
    found, complete = moves_of(model, updates)
    if not complete:
        return {}
    needed = {
        "SiteStep(0.1) as the first update": SiteStep().moves(model).leaves - InverseUpdate.moves(model).leaves,
        "ActionsUpdate(policy) as the first update": ActionsUpdate.moves(model).leaves,
        "InverseUpdate() as the last update": _stale_inverses(model, found.leaves),
    }
    return {remedy: left for remedy, names in needed.items() if (left := names - found.leaves - found.kept)}


def _stale_inverses(model: Any, moved: frozenset[str]) -> frozenset[str]:
    """Return the names of inverse factors that depend on leaves that move.

    An inverse factor depends on all leaves of its owner, except those of the mean function and of the posterior. Of the
    posterior, it depends only on the leaves that the posterior declares.
    """
    stale: set[str] = set()
    for path, owner in tree.nodes(model, InverseOwner).items():
        posterior, where = owner.posterior, tree.join_path(path, "posterior")
        if not posterior.inverse_factors:
            continue
        own = {name for name in tree.leaves(owner) if not name.startswith(("posterior.", "mean_function."))}
        needed = {tree.join_path(path, name) for name in own}
        needed |= {tree.join_path(where, name) for name in posterior.target_leaves}
        if not needed.isdisjoint(moved):
            stale |= {tree.join_path(where, name) for name in posterior.inverse_factors}
    return frozenset(stale)


# -- the default updates ----------------------------------------------------------------------------------------------


@explain_call
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
    inverse factors are updated. Every 40 steps, the neighbours of models with neighbours are renewed. Their sites
    take steps of size 0.8, and others of size 0.1.

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
    check_whole("steps", steps, least=0)
    for name, value in (("rate", rate), ("fall", fall)):
        check_positive(name, value)
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
    near = NeighboursUpdate.applies(model)
    sites = SiteStep(LOCAL_RATE if near else SITE_RATE, memory=memory)
    updates = [sites, *updates] if sites.applies(model) else updates
    return [NeighboursUpdate(), *updates] if near else updates
