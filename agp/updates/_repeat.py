"""Several updates as one, applied several times: expectation and maximisation in any proportion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.backend import backend_of
from agp.batch import Batch
from agp.checks import check_whole
from agp.tree import zero_like
from agp.updates._base import Info, Moved, MovesLeaves, State, Update

__all__ = ["Repeat"]


@dataclass(frozen=True)
class Repeat:
    """The updates in turn, so many times in each step, with one state that goes on from time to time.

    ``[Repeat(SiteStep(0.8), 8), Repeat(Adam(0.1), 20)]`` is an outer iteration of variational EM. All times see the
    same batch. What is logged is that of the last time.

    Parameters
    ----------
    updates
        An update, or several.
    times
        How often.

    Raises
    ------
    ValueError
        If `times` is not a positive whole number.
    """

    updates: Update | Sequence[Update]
    times: int = 1

    def __post_init__(self) -> None:
        check_whole("times", self.times)

    @property
    def _all(self) -> list[Update]:
        return [self.updates] if callable(self.updates) else list(self.updates)

    def init(self, model: Any, /) -> State:
        """The states of the updates, by their positions."""
        return {str(i): update.init(model) for i, update in enumerate(self._all)}

    def moves(self, model: Any, /) -> Moved:
        """What its updates move and keep; all leaves, if one of them does not say."""
        told = [update for update in self._all if isinstance(update, MovesLeaves)]
        if len(told) < len(self._all):
            return Moved(frozenset(tree.leaves(model)))
        found = [update.moves(model) for update in told]
        return Moved(*(frozenset().union(*names) for names in zip(*found, strict=True)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model after all times.

        Raises
        ------
        ValueError
            If two of the updates log the same name.
        """
        zero = zero_like(model)

        def once(count: Any, model: Any, state: State, _info: Info) -> tuple[Any, Any, State, Info]:
            new, info = {}, {}
            for i, update in enumerate(self._all):
                model, new[str(i)], logged = update(model, batch, state[str(i)])
                if clash := info.keys() & logged.keys():
                    msg = f"two updates log {', '.join(sorted(clash))}; give one of them another name."
                    raise ValueError(msg)
                info |= logged
            return count + 1.0, model, new, info

        # the first time outside of the loop shows what the updates log
        first = once(zero, model, state, {})
        if self.times == 1:
            return first[1:]
        more = self.times - 1
        loop = backend_of(zero).while_loop
        return loop(lambda count, *_: count < self.times, once, first, at_least=more, at_most=more)[1:]
