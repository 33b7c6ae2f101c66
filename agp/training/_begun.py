"""Preparation for training: checks, initial values of an untrained q(u), and leaves that no update moves."""

import warnings
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch
from agp.checks import check_model, check_parameters
from agp.errors import UntouchedWarning
from agp.models import valid_data
from agp.posteriors import InverseOwner, Posterior
from agp.repairs import outside, public
from agp.updates import ActionsUpdate, InverseUpdate, SiteStep, Update, moves_of

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
