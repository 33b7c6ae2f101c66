"""What training does before its first step: checks, the start of an untrained q(u), and leaves that no update moves."""

import warnings
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from agp import tree
from agp._context import public
from agp.backend import Array
from agp.checks import check_model
from agp.errors import UntouchedWarning
from agp.models import valid_data
from agp.posteriors import InverseOwner, Posterior
from agp.repairs import outside
from agp.updates import ActionsUpdate, InverseUpdate, SiteStep, Update, moves_of

__all__ = ["begun", "check_training", "frozen_parameters", "leaves_kept", "warn_of_untouched"]

M = TypeVar("M", bound=Any)


def check_training(model: Any, X: Array, y: Array, /) -> tuple[Array, Array]:
    """X [N, D] and y [N, K]. TypeError or ValueError unless the model can be trained on them."""
    check_model(model)
    X, y = valid_data(X, y, missing=model.likelihood.missing)
    model._check(X, y)
    return X, y


@public(repairs=False, ignore=None)
def begun(model: M, kept: AbstractSet[str] = frozenset(), /) -> M:
    """The model as `train` and `fit` start to train it.

    An untrained model predicts its prior. From there gradient steps are slow where q(u) has the form of
    pseudo-observations (`agp.posteriors.SiteForm`: L-SVGP, R-SVGP and similar). So each such q(u) that is still the
    prior gets small variances of pseudo-observations, and matching inverse factors. Trained models are not changed.
    Call it at the start of your own training loops.

    Parameters
    ----------
    model
        An `agp.models.Model`; it is not changed.
    kept
        The names of leaves that must not change; nor does the q(u) that they belong to.
    """
    new, wide = {}, model.likelihood.slopes_vanish
    for path, owner in tree.nodes(model, InverseOwner).items():
        where, old = tree.joined(path, "posterior"), owner.posterior
        first = old.begun(owner._followed_matrix(), wide=wide) if isinstance(old, Posterior) else old
        before = tree.leaves(old)
        changed = {tree.joined(where, name) for name, x in tree.leaves(first).items() if x is not before[name]}
        if changed and not changed & kept:
            new[where] = first
    return tree.replaced(model, new) if new else model


def leaves_kept(model: Any, updates: Sequence[Update]) -> frozenset[str]:
    """The leaves that updates were told not to change, and the parameters that none of them moves."""
    found, complete = moves_of(model, updates)
    return found.kept | (frozenset(tree.leaves(model, "parameter")) - found.leaves if complete else frozenset())


def frozen_parameters(model: Any, updates: Sequence[Update]) -> tuple[str, ...]:
    """The names of the parameters among `leaves_kept`."""
    kept = leaves_kept(model, updates)
    return tuple(name for name in tree.leaves(model, "parameter") if name in kept)


def warn_of_untouched(model: Any, updates: Sequence[Update]) -> None:
    """Warn of inverse factors, sites and chosen actions that no update moves, and name the updates that would.

    No warning if an update does not say what it moves, for leaves that are frozen by name, and for inverses of which
    nothing moves that they depend on.
    """
    found, complete = moves_of(model, updates)
    if not complete:
        return
    remedies = {
        "SiteStep(0.1), first": SiteStep().moves(model).leaves - InverseUpdate.moves(model).leaves,
        "ActionsUpdate(policy), first": ActionsUpdate.moves(model).leaves,
        "InverseUpdate(), last": _stale_inverses(model, found.leaves),
    }
    parts = [
        f"{', '.join(sorted(left))} (add {remedy})"
        for remedy, names in remedies.items()
        if (left := names - found.leaves - found.kept)
    ]
    if parts:
        text = f"no update moves {'; or '.join(parts)}. To leave it as it is, name it in Adam's frozen=."
        warnings.warn(text, UntouchedWarning, stacklevel=outside())


def _stale_inverses(model: Any, moved: frozenset[str]) -> set[str]:
    """The inverse factors whose owner has leaves that move, other than those of its posterior and mean function."""
    stale = set()
    for name in InverseUpdate.moves(model).leaves:
        prefixes = (f"{path}." if path else "" for path in tree.nodes(model, InverseOwner))
        prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len)
        free = tuple(f"{prefix}{part}." for part in ("posterior", "mean_function"))
        if any(leaf.startswith(prefix) and not leaf.startswith(free) for leaf in moved):
            stale.add(name)
    return stale
