"""What every update offers."""

from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from agp.backend import Array
from agp.batch import Batch

__all__ = ["Batch", "Info", "Moved", "MovesLeaves", "State", "Update"]

State: TypeAlias = dict[str, Any]
"""What must be saved to go on: arrays, in dictionaries that may be nested."""

Info: TypeAlias = dict[str, Array]
"""What a person wants to see: 0-d arrays by name."""


class Update(Protocol):
    """A frozen object with settings only; progress lives in the state that it is given and returns."""

    def init(self, model: Any, /) -> State:
        """The state to start from."""
        ...

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The changed model, the state for the next call, and what to log."""
        ...


class Moved(NamedTuple):
    """What an update does to the leaves of a model, by their names."""

    leaves: frozenset[str]
    """Those that it may change."""
    kept: frozenset[str] = frozenset()
    """Those that it was told to leave as they are."""
    resized: frozenset[str] = frozenset()
    """Those that may come to have another shape."""


@runtime_checkable
class MovesLeaves(Protocol):
    """An update that says which leaves it moves, so that `agp.train` can tell which ones a list of updates forgets."""

    def moves(self, model: Any, /) -> Moved:
        """The leaves that it moves, and those that are to stay."""
        ...
