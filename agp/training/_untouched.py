"""What a list of updates forgets: inverse factors, sites and chosen actions that go stale while other leaves move."""

import warnings
from collections.abc import Sequence
from typing import Any

from agp import tree
from agp.errors import UntouchedWarning
from agp.posteriors import InverseOwner
from agp.repairs import outside
from agp.updates import ActionsUpdate, InverseUpdate, MovesLeaves, SiteStep, Update

__all__ = ["warn_of_untouched"]


def warn_of_untouched(model: Any, updates: Sequence[Update]) -> None:
    """One warning that names the auxiliary leaves which no update moves, and the updates that would.

    None where an update does not say what it moves, where a leaf is frozen by name, and where nothing moves that an
    inverse depends on.
    """
    told = [update for update in updates if isinstance(update, MovesLeaves)]
    if len(told) < len(updates):
        return
    found = [update.moves(model) for update in told]
    moved: frozenset[str] = frozenset().union(*(one.leaves for one in found))
    settled = moved.union(*(one.kept for one in found))
    remedies = {
        "SiteStep(0.1), first": SiteStep().moves(model).leaves - InverseUpdate.moves(model).leaves,
        "ActionsUpdate(policy), first": ActionsUpdate.moves(model).leaves,
        "InverseUpdate(), last": _stale_inverses(model, moved),
    }
    parts = [
        f"{', '.join(sorted(left))} (add {remedy})" for remedy, names in remedies.items() if (left := names - settled)
    ]
    if parts:
        text = f"no update moves {'; or '.join(parts)}. To leave it as it is, name it in Adam's frozen=."
        warnings.warn(text, UntouchedWarning, stacklevel=outside())


def _stale_inverses(model: Any, moved: frozenset[str]) -> set[str]:
    """The inverse factors whose owner has leaves that move, those of its posterior and mean function excepted."""
    stale = set()
    for name in InverseUpdate.moves(model).leaves:
        path = max((p for p in tree.nodes(model, InverseOwner) if name.startswith(_prefix(p))), key=len)
        own = {leaf for leaf in moved if leaf.startswith(_prefix(path))}
        free = tuple(f"{_prefix(path)}{part}." for part in ("posterior", "mean_function"))
        if any(not leaf.startswith(free) for leaf in own):
            stale.add(name)
    return stale


def _prefix(path: str) -> str:
    return f"{path}." if path else ""
