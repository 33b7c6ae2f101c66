"""Training steps as one graph of the device: recorded once, launched by one call each.

A step is a pure function of a model, states and a batch, so that what it launches is the same in every step, as long as
its decisions are. A graph takes those for granted (`agp.backend.guessing`) and reads no number: the model and the
states are in arrays that stay where they are, each launch writes what it makes of them back, and it does so only where
all decisions, in it and in those before, were right. Whether they were comes to the host while the next step is under
way already. So a wrong guess costs two launches, which change nothing, and the steps are taken again one call after
another.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, constants, guessing, mapped, placed, to_numpy
from agp.errors import BackendError
from agp.random import Draws
from agp.repairs import collect_reports
from agp.training._batches import Batches
from agp.tree import first_leaf

__all__ = ["EAGER", "StepGraph"]

EAGER = 3
"""Steps before a graph is recorded, in which libraries make themselves ready."""
PAUSE = 10
"""Steps without the graph after a wrong guess, and twice as many after each that follows soon."""

Step = Callable[[Any, list[Any], Any], tuple[Any, list[Any], dict[str, Array]]]
"""(model, states, batch) -> (model, states, info)."""


class _Recording:
    """A step recorded on arrays of its own.

    Parameters
    ----------
    step
        What is recorded.
    batches
        Where the batch of a step comes from.
    model, states, parts
        Of the step at hand; `parts` is what its batch is made of (`Batches.parts`).

    Raises
    ------
    agp.errors.BackendError
        If it cannot be recorded; the message says why.
    """

    def __init__(self, step: Step, batches: Batches, model: Any, states: list[Any], parts: Any) -> None:
        self.step, self.batches, self.key = step, batches, _key(model, states, parts)
        B = backend_of(first_leaf(model))
        self.held, self.parts = B.copies(_arrays(model, states)), mapped(parts, lambda x: B.copies([x])[0])
        self.model, self.states = _with_arrays(model, states, self.held)
        self.reference = first_leaf(self.model)
        # whether all guesses were right so far: while it is recorded they are not, so that nothing changes
        self.right = B.xp.zeros((), dtype=B.xp.bool, device=self.reference.device)
        self.count = B.xp.zeros((), **B.like(self.reference))
        self.dtypes: dict[str, Any] = {}
        self.replay, self.log = B.capture(self._recorded, self.reference)
        self.kept = constants()  # the graph knows where they are, not that they are in use

    def _recorded(self) -> Array:
        """One step on the arrays that are held; whether it was right, and what it logs, as a vector."""
        B = backend_of(self.reference)
        xp, guesses = B.xp, [self.right]
        with guessing(guesses, blind=True), collect_reports() as reports:
            batch = self.batches.of_parts(self.parts[0], Draws(*self.parts[1]))
            model, states, info = self.step(self.model, self.states, batch)
        if reports:
            msg = "it reports a repair in every step."
            raise BackendError(msg)
        if _key(model, states, self.parts) != self.key:
            msg = "it changes the settings or the shapes of the model or of a state."
            raise BackendError(msg)
        right = xp.all(xp.stack(guesses))
        B.overwrite([*self.held, self.count], [*_arrays(model, states), self.count + 1.0], where=right)
        self.right[...] = right
        self.dtypes = {name: x.dtype for name, x in info.items()}
        widest = B.widest_float(self.reference)
        return xp.stack([xp.astype(x, widest) for x in (right, *info.values())])

    def load(self, model: Any, states: list[Any]) -> None:
        """Go on from there."""
        for x, y in zip(self.held, _arrays(model, states), strict=True):
            x[...] = y
        self.right[...] = True
        self.count[...] = 0.0

    def launch(self, parts: Any) -> Callable[[], Any]:
        """Launch a step; the function that waits for its log."""
        new: list[Array] = []
        mapped(parts, new.append)
        each = iter(new)

        def copy(x: Array) -> None:
            x[...] = next(each)

        mapped(self.parts, copy)
        self.replay()
        return backend_of(self.log).fetch(self.log)

    def reached(self) -> tuple[Any, list[Any]]:
        """The model and the states after the last step that was right, in new arrays."""
        return _with_arrays(self.model, self.states, backend_of(self.reference).copies(self.held))

    def infos(self, logs: list[Any]) -> list[dict[str, Any]]:
        """What steps have logged: numbers, and of the last one, which callbacks see, arrays as it has them itself."""
        if not logs:
            return []
        found = [dict(zip(self.dtypes, map(float, log[1:]), strict=True)) for log in logs[:-1]]
        last = placed(np.asarray(logs[-1][1:]), self.log)
        xp = backend_of(last).xp
        return [*found, {name: xp.astype(last[i], dtype) for i, (name, dtype) in enumerate(self.dtypes.items())}]


class StepGraph:
    """Which steps are launched as a graph, and what becomes of them.

    Parameters
    ----------
    step
        ``(model, states, batch) -> (model, states, info)``.
    batches
        Where the batch of a step comes from.
    first
        The number of the first step.
    """

    def __init__(self, step: Step, batches: Batches, first: int) -> None:
        self.step, self.batches = step, batches
        self.recording: _Recording | None = None
        self.refusal = ""
        self.next, self.pause = first + EAGER, PAUSE  # when a graph may be tried, and how long not after a wrong guess
        self.loaded: list[Any] | None = None  # the states that the recording is at
        self.start, self.done = 0, 0  # the step it was loaded at, and the last one known to be right
        self.logs: dict[int, Any] = {}  # of steps that are under way
        self.taken, self.wrong = 0, 0

    @property
    def reason(self) -> str:
        """Why no step was launched as a graph; empty where one was."""
        if self.refusal or self.taken or not self.wrong:
            return self.refusal
        return f"decisions in it were not the likely ones, {self.wrong} times in a row."

    def launch(self, model: Any, states: list[Any], step: int) -> bool:
        """Launch a step; False where it, or one before, has to be taken one call after another."""
        if self.refusal or step < self.next:
            return False
        parts = self.batches.parts(step)
        if self.loaded is not states and not self._load(model, states, parts, step):
            return False
        assert self.recording is not None
        self.logs[step] = None  # an interrupt may come between the launch and its log
        self.logs[step] = self.recording.launch(parts)
        before = self.logs.get(step - 1)
        return before is None or bool(before()[0])

    def _load(self, model: Any, states: list[Any], parts: Any, step: int) -> bool:
        try:
            if self.recording is None or self.recording.key != _key(model, states, parts):
                self.recording = None  # its memory is free before the next one asks for some
                self.recording = _Recording(self.step, self.batches, model, states, parts)
            self.recording.load(model, states)
        except Exception as error:  # whatever it is, a step that is launched call by call does not have it, or tells
            self.recording, self.refusal = None, str(error) or type(error).__name__
            return False
        self.logs, self.start, self.done, self.loaded = {}, step, step, states
        return True

    def arrived(self, step: int) -> tuple[Any, list[Any], list[dict[str, Any]]] | None:
        """The model, the states, and what was logged, of those steps under way, from `step` on, that were right.

        None where none were launched. The same again until `settled` is called.
        """
        if not self.logs or self.recording is None:
            return None
        self.done = self.start + int(to_numpy(self.recording.count))
        here = [log for number, log in self.logs.items() if step <= number < self.done]
        logs = [to_numpy(self.recording.log) if log is None else log() for log in here]
        return *self.recording.reached(), self.recording.infos(logs)

    def settled(self, states: list[Any]) -> None:
        """What has arrived is with the caller, these states among it."""
        wrong = self.done <= max(self.logs, default=-1)
        self.taken += self.done - min(self.logs, default=self.done)
        self.logs, self.loaded = {}, None if wrong else states
        if wrong:
            self.wrong += 1
            self.pause = 2 * self.pause if self.done - self.start < PAUSE else PAUSE
            self.next = self.done + self.pause


def _arrays(model: Any, states: list[Any]) -> list[Array]:
    """The leaves of the model and the arrays of the states."""
    found: list[Array] = []
    mapped((tree.leaves(model), tuple(states)), found.append)
    return found


def _with_arrays(model: Any, states: list[Any], arrays: list[Array]) -> tuple[Any, list[Any]]:
    """The same with these arrays, in the order of `_arrays`."""
    each = iter(arrays)
    leaves, states = mapped((tree.leaves(model), tuple(states)), lambda _: next(each))
    return tree.with_leaves(model, leaves), list(states)


def _key(model: Any, states: list[Any], parts: Any) -> tuple[Any, ...]:
    """All that is recorded but the numbers: classes and settings of the model, shapes and dtypes."""
    return tree.outline(model), mapped((tuple(states), parts), lambda x: (list(x.shape), x.dtype))
