"""The interface of updates, and an update that applies other updates several times in each step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch
from agp.checks import check_whole
from agp.priors import Limits, limits_of, restrict

State: TypeAlias = dict[str, Any]
"""Arrays, possibly in nested dictionaries, that are saved and passed to the next call of an update."""

Info: TypeAlias = dict[str, Array]
"""The values that an update logs, as 0-d arrays by name."""


@runtime_checkable
class Update(Protocol):
    """A part of each training step: an immutable object with settings.

    Each call takes the state of the update and returns the new state.
    """

    def init(self, model: Any, /) -> State:
        """Return the initial state."""
        ...

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the changed model, the state for the next call, and the values to log."""
        ...


class Moved(NamedTuple):
    """The names of the model leaves that an update affects."""

    leaves: frozenset[str]
    """Leaves that the update may change."""
    kept: frozenset[str] = frozenset()
    """Leaves, and entries such as "kernel.lengthscale[0]", that the user has frozen."""
    resized: frozenset[str] = frozenset()
    """Leaves whose shape may change."""


@runtime_checkable
class MovesLeaves(Protocol):
    """An update that lists the leaves that it may change. `agp.train` warns about leaves that no update changes."""

    def moves(self, model: Any, /) -> Moved:
        """Return the leaves that the update may change, and the leaves that the user has frozen."""
        ...


def moves_of(model: Any, updates: Sequence[Any], /) -> tuple[Moved, bool]:
    """Return the leaves that any of the updates affects, and whether all updates have a method `moves`."""
    found = [update.moves(model) for update in updates if isinstance(update, MovesLeaves)]
    together = Moved(*(frozenset().union(*(one[i] for one in found)) for i in range(3)))
    return together, len(found) == len(updates)


def leaves_of(nodes: Mapping[str, Any], role: str | None = None, /) -> frozenset[str]:
    """Return the names of the leaves in the given nodes of a model, a mapping from paths to nodes."""
    return frozenset(tree.join_path(path, name) for path, node in nodes.items() for name in tree.leaves(node, role))


def class_names(model: Any, kind: type, /) -> str:
    """Return the class names of all nodes of a kind, or the model's if there are none, as text for a message."""
    found = sorted({type(node).__name__ for node in tree.nodes(model, kind).values()})
    return " and ".join(found) or type(model).__name__


def apply_updates(
    updates: Iterable[Update], model: Any, batch: Batch, states: Iterable[State], /
) -> tuple[Any, list[State], Info]:
    """Apply updates in order; return the model, states and logs. Raise ValueError if two updates log the same name.

    After each update, parameters are moved into their limits, and fixed ones get back their values.
    """
    info: Info = {}
    new: list[State] = []
    limits = limits_of(model)
    for update, state in zip(updates, states, strict=True):
        model, state, logged = update(model, batch, state)
        model = restrict(model, _limits_in_shape(limits, model)) if limits else model
        if clash := info.keys() & logged.keys():
            raise ValueError(f"two updates log values named {', '.join(sorted(clash))}; change the name in one update.")
        new.append(state)
        info |= logged
    return model, new, info


def _limits_in_shape(limits: dict[str, Limits], model: Any) -> dict[str, Limits]:
    """Leave out the limits of leaves whose shapes an update has changed."""
    leaves = tree.leaves(model)
    return {name: one for name, one in limits.items() if leaves[name].shape == one.low.shape}


@dataclass(frozen=True)
class Repeat:
    """An update that applies other updates in order, several times in each step, to the same batch.

    ``[Repeat(SiteStep(0.8), 8), Repeat(Adam(0.1), 20)]`` is an outer iteration of variational EM. Only the last
    repetition is logged.

    Parameters
    ----------
    updates
        An update, or a sequence of updates.
    times
        The number of repetitions.

    Raises
    ------
    ValueError
        If `times` is not a positive integer.
    """

    updates: Update | Sequence[Update]
    times: int = 1

    def __post_init__(self) -> None:
        check_whole("times", self.times)

    @property
    def _all(self) -> list[Update]:
        return [self.updates] if callable(self.updates) else list(self.updates)

    def init(self, model: Any, /) -> State:
        """Return the states of the updates, by position."""
        return {str(i): update.init(model) for i, update in enumerate(self._all)}

    def moves(self, model: Any, /) -> Moved:
        """Return the leaves that the updates affect, or all leaves if one of the updates has no method `moves`."""
        found, complete = moves_of(model, self._all)
        return found if complete else Moved(frozenset(tree.leaves(model)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model after all repetitions. Raise ValueError if two of the updates log the same name."""
        zero = tree.zero_like(model)

        def once(count: Any, model: Any, state: State, _info: Info) -> tuple[Any, Any, State, Info]:
            old = [state[str(i)] for i in range(len(self._all))]
            model, new, info = apply_updates(self._all, model, batch, old)
            return count + 1.0, model, {str(i): one for i, one in enumerate(new)}, info

        first = once(zero, model, state, {})  # the loop needs an initial value for everything that the updates log
        if self.times == 1:
            return first[1:]
        more = self.times - 1
        loop = backend_of(zero).while_loop
        return loop(lambda count, *_: count < self.times, once, first, at_least=more, at_most=more)[1:]
