"""Random numbers that a step needs: drawn on the host from the seed, handed to the nodes that asked for them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["NO_DRAWS", "Draws", "below", "under", "union"]


class Draws(NamedTuple):
    """Arrays by the path of the node that asked for them, and its name for them."""

    by_row: Mapping[str, Any]
    """[S, N, ...]: rows lie along the second axis, and are cut together with the data."""
    whole: Mapping[str, Any]
    """Arrays that belong to no rows."""


NO_DRAWS = Draws({}, {})


def under(path: str, draws: Draws, /) -> Draws:
    """The draws of a node as those of a model in which it stands at that path."""
    return Draws(*({f"{path}.{name}": x for name, x in part.items()} for part in draws))


def below(path: str, draws: Draws, /) -> Draws:
    """Those of the draws that belong to the node at a path: the inverse of `under`."""
    if not any(draws):
        return NO_DRAWS
    start = f"{path}."
    return Draws(*({name[len(start) :]: x for name, x in part.items() if name.startswith(start)} for part in draws))


def union(several: Iterable[Draws], /) -> Draws:
    """All of the draws."""
    by_row, whole = {}, {}
    for draws in several:
        by_row |= draws.by_row
        whole |= draws.whole
    return Draws(by_row, whole)
