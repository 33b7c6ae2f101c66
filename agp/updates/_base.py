"""The interface of updates."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from agp.backend import Array
from agp.batch import Batch

__all__ = ["Batch", "Info", "Moved", "MovesLeaves", "State", "Update", "apply_updates", "moves_of"]

State: TypeAlias = dict[str, Any]
"""Arrays to save and pass to the next call, in dictionaries that may be nested."""

Info: TypeAlias = dict[str, Array]
"""What to log: 0-d arrays by name."""


class Update(Protocol):
    """A frozen object that holds settings; its progress is in the state that it takes and returns."""

    def init(self, model: Any, /) -> State:
        """The state to start from."""
        ...

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The changed model, the state for the next call, and what to log."""
        ...


class Moved(NamedTuple):
    """What an update does to the leaves of a model: sets of their names."""

    leaves: frozenset[str]
    """Leaves that it may change."""
    kept: frozenset[str] = frozenset()
    """Leaves that it was told not to change."""
    resized: frozenset[str] = frozenset()
    """Leaves whose shape may change."""


@runtime_checkable
class MovesLeaves(Protocol):
    """An update that says which leaves it moves, so that `agp.train` can warn of leaves that no update moves."""

    def moves(self, model: Any, /) -> Moved:
        """The leaves that it moves, and those that it keeps."""
        ...


def moves_of(model: Any, updates: Sequence[Any], /) -> tuple[Moved, bool]:
    """What the updates that say so (`MovesLeaves`) do to the leaves together, and whether all of them say so."""
    found = [update.moves(model) for update in updates if isinstance(update, MovesLeaves)]
    together = Moved(*(frozenset().union(*(one[i] for one in found)) for i in range(3)))
    return together, len(found) == len(updates)


def apply_updates(
    updates: Iterable[Update], model: Any, batch: Batch, states: Iterable[State], /
) -> tuple[Any, list[State], Info]:
    """The model after all updates in turn, their new states, and what they log.

    ValueError if two of them log the same name.
    """
    info: Info = {}
    new: list[State] = []
    for update, state in zip(updates, states, strict=True):
        model, state, logged = update(model, batch, state)
        if clash := info.keys() & logged.keys():
            msg = f"two updates log {', '.join(sorted(clash))}; give one of them another name."
            raise ValueError(msg)
        new.append(state)
        info |= logged
    return model, new, info
