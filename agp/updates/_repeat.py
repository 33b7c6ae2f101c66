"""An update that applies other updates several times in each step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.backend import backend_of
from agp.bounds import Batch
from agp.checks import check_whole
from agp.updates._base import Info, Moved, State, Update, apply_updates, moves_of


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
