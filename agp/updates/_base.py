"""The interface of updates."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from agp.backend import Array
from agp.batch import Batch

__all__ = ["Batch", "Info", "Moved", "MovesLeaves", "State", "Update", "apply_updates", "moves_of"]

State: TypeAlias = dict[str, Any]
"""Arrays that are saved and passed to the next call, in dictionaries that may be nested."""

Info: TypeAlias = dict[str, Array]
"""The values to log: 0-d arrays by name."""


class Update(Protocol):
    """A frozen object that holds settings. Its progress is in the state that it takes and returns."""

    def init(self, model: Any, /) -> State:
        """Return the initial state."""
        ...

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the changed model, the state for the next call, and the values to log."""
        ...


class Moved(NamedTuple):
    """The effect of an update on the leaves of a model, as sets of leaf names."""

    leaves: frozenset[str]
    """Leaves that the update may change."""
    kept: frozenset[str] = frozenset()
    """Leaves that the update was told not to change."""
    resized: frozenset[str] = frozenset()
    """Leaves whose shape may change."""


@runtime_checkable
class MovesLeaves(Protocol):
    """An update that says which leaves it moves, so that `agp.train` can warn about leaves that no update moves."""

    def moves(self, model: Any, /) -> Moved:
        """Return the leaves that the update moves, and those that it was told to keep."""
        ...


def moves_of(model: Any, updates: Sequence[Any], /) -> tuple[Moved, bool]:
    """Return the joint effect of the updates that have a method `moves` (`MovesLeaves`), and whether all have one."""
    found = [update.moves(model) for update in updates if isinstance(update, MovesLeaves)]
    together = Moved(*(frozenset().union(*(one[i] for one in found)) for i in range(3)))
    return together, len(found) == len(updates)


def apply_updates(
    updates: Iterable[Update], model: Any, batch: Batch, states: Iterable[State], /
) -> tuple[Any, list[State], Info]:
    """Apply the updates in order; return the model, the new states, and the values that they log.

    Raises ValueError if two updates log the same name.
    """
    info: Info = {}
    new: list[State] = []
    for update, state in zip(updates, states, strict=True):
        model, state, logged = update(model, batch, state)
        if clash := info.keys() & logged.keys():
            msg = f"two updates log {', '.join(sorted(clash))}; change the name in one of them."
            raise ValueError(msg)
        new.append(state)
        info |= logged
    return model, new, info
