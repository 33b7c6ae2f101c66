"""What training does first: a q(u) that is still the prior moves to where steps by gradients serve it best."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from agp import tree
from agp.posteriors import InverseOwner, Posterior
from agp.updates import MovesLeaves, Update

__all__ = ["begun", "leaves_moved"]

M = TypeVar("M", bound=Any)


def begun(model: M, moving: AbstractSet[str] | None = None, /) -> M:
    """The model as `train` and `fit` begin with it.

    An untrained model predicts its prior, and from there steps by gradients make slow progress where q(u) is that of
    pseudo-observations (`agp.posteriors.SiteForm`: L-SVGP, R-SVGP and their kin). So those whose q(u) is still the
    prior get small variances of pseudo-observations, and the inverse factors that belong to them. Others stay as they
    are, and so does a model that has begun. For loops of your own, which should start here, too.

    Parameters
    ----------
    model
        An `agp.models.Model`; it is not changed.
    moving
        The names of the leaves that may move, all by default; a q(u) that would need another one stays as it is.
    """
    new = {}
    for path, owner in tree.nodes(model, InverseOwner).items():
        where, old = tree.joined(path, "posterior"), owner.posterior
        first = old.begun(owner.followed_matrix()) if isinstance(old, Posterior) else old
        changed = {tree.joined(where, leaf) for leaf in _changed(old, first)}
        if changed and (moving is None or changed <= moving):
            new[where] = first
    return tree.replaced(model, new) if new else model


def _changed(old: Any, new: Any) -> set[str]:
    """The names of the parameters that are not the same arrays."""
    before = tree.leaves(old, "parameter")
    return {name for name, x in tree.leaves(new, "parameter").items() if x is not before[name]}


def leaves_moved(model: Any, updates: Sequence[Update]) -> frozenset[str] | None:
    """The leaves that some update moves; None if one does not tell."""
    told = [update.moves(model).leaves for update in updates if isinstance(update, MovesLeaves)]
    return frozenset().union(*told) if len(told) == len(updates) else None
