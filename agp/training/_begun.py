"""What training does first: a q(u) that is still the prior moves to where steps by gradients serve it best."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from agp import tree
from agp._context import public
from agp.posteriors import InverseOwner, Posterior
from agp.updates import MovesLeaves, Update

__all__ = ["begun", "frozen_parameters", "leaves_kept"]

M = TypeVar("M", bound=Any)


@public(repairs=False, ignore=None)
def begun(model: M, kept: AbstractSet[str] = frozenset(), /) -> M:
    """The model as `train` and `fit` begin with it.

    An untrained model predicts its prior, and from there steps by gradients make slow progress where q(u) is that of
    pseudo-observations (`agp.posteriors.SiteForm`: L-SVGP, R-SVGP and their kin). So those whose q(u) is still the
    prior get small variances of pseudo-observations, and the inverse factors that belong to them. Others stay as they
    are, and so does a model that has begun. For loops of your own, which should start here, too.

    Parameters
    ----------
    model
        An `agp.models.Model`; it is not changed.
    kept
        The names of leaves that are to stay as they are, and with them the q(u) that they belong to.
    """
    new, wide = {}, model.likelihood.slopes_vanish
    for path, owner in tree.nodes(model, InverseOwner).items():
        where, old = tree.joined(path, "posterior"), owner.posterior
        first = old.begun(owner._followed_matrix(), wide=wide) if isinstance(old, Posterior) else old
        changed = {tree.joined(where, leaf) for leaf in _changed(old, first)}
        if changed and not changed & kept:
            new[where] = first
    return tree.replaced(model, new) if new else model


def _changed(old: Any, new: Any) -> set[str]:
    """The names of the leaves that are not the same arrays."""
    before = tree.leaves(old)
    return {name for name, x in tree.leaves(new).items() if x is not before[name]}


def leaves_kept(model: Any, updates: Sequence[Update]) -> frozenset[str]:
    """The leaves that updates were told to leave as they are, and the parameters that none of them moves."""
    told = [update.moves(model) for update in updates if isinstance(update, MovesLeaves)]
    kept = frozenset().union(*(one.kept for one in told))
    if len(told) < len(updates):  # what the others move nobody knows
        return kept
    return kept | frozenset(tree.leaves(model, "parameter")).difference(*(one.leaves for one in told))


def frozen_parameters(model: Any, updates: Sequence[Update]) -> tuple[str, ...]:
    """The names of the parameters among `leaves_kept`."""
    kept = leaves_kept(model, updates)
    return tuple(name for name in tree.leaves(model, "parameter") if name in kept)
