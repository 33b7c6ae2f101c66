"""Random numbers that a step needs: drawn from the seed, handed to the nodes that asked for them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["NO_DRAWS", "Draws", "Noise", "below", "under", "union"]


class Noise(ABC):
    """A generator of a library for the draws of a step: what nodes may ask for of NumPy's, as arrays on a device."""

    @abstractmethod
    def standard_normal(self, size: Any = ()) -> Any:
        """Independent standard normal numbers of that shape."""

    @abstractmethod
    def integers(self, low: int, high: int, size: Any = ()) -> Any:
        """Whole numbers of that shape, from low to high - 1, all equally probable."""

    def __getattr__(self, name: str) -> Any:
        msg = f"noise on a device has standard_normal and integers, but no {name}; leave draws='device' out."
        raise AttributeError(msg)


class Draws(NamedTuple):
    """Arrays by the path of the node that asked for them, and its name for them."""

    by_row: Mapping[str, Any]
    """[S, N, ...]: rows lie along the second axis, and are cut together with the data."""
    whole: Mapping[str, Any]
    """Arrays that belong to no rows."""


NO_DRAWS = Draws({}, {})
"""The draws of what needs none."""


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
