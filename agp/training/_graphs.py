"""Many training steps with few calls: device graphs, and loops that are compiled for the device.

A graph is recorded once, and then launched with one call per step. A step is a pure function of a model, states and a
batch, so steps that take the same branches launch the same operations. In a graph, the branches are guessed
(`agp.backend.speculating`), so that the host reads no numbers. The model and the states are stored in fixed arrays. A
launch overwrites these arrays only if all guesses so far were right, including those of this launch. The host checks
the guesses while the next step runs. After a wrong guess, two launches have no effect, and the steps are repeated
without a graph.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of, constants, map_arrays, speculating, to_numpy
from agp.errors import BackendError
from agp.random import Draws
from agp.repairs import collect_reports
from agp.training._batches import Batches, batch_of, draw_on_device

MIN_STEPS_PER_CALL = 100
"""The minimum number of steps in one call of the compiled loop."""

EAGER_STEPS = 3
"""The number of steps before a graph is recorded; libraries initialise during these steps."""
PAUSE_STEPS = 10
"""The number of steps without the graph after a wrong guess; it doubles if another wrong guess follows soon."""

Step = Callable[[Any, Any, list[Any]], tuple[Any, list[Any], dict[str, Array]]]
"""(model, batch, states) -> (model, states, info)."""


class _Recording:
    """A step recorded on fixed arrays that hold a model, the states and the parts of a batch (`Batches.parts`).

    Raises BackendError with the reason if the step cannot be recorded.
    """

    def __init__(self, step: Step, batches: Batches, model: Any, states: list[Any], parts: Any) -> None:
        self.step, self.batches, self.key = step, batches, _key(model, states, parts)
        B = backend_of(tree.first_leaf(model))
        self.held = B.copies(_arrays(tree.leaves(model), *states))
        self.parts = map_arrays(parts, lambda x: B.copies([x])[0])
        self.model, self.states = _with_arrays(model, states, self.held)
        self.reference = tree.first_leaf(self.model)
        # whether all guesses were right so far; False while recording, so that nothing changes
        self.right = B.xp.zeros((), dtype=B.xp.bool, device=self.reference.device)
        self.count = B.xp.zeros((), **B.like(self.reference))
        self.dtypes: dict[str, Any] = {}
        self.replay, self.log = B.capture(self._record, self.reference)
        self.kept = constants()  # keeps the memory that the graph reads

    def _record(self) -> Array:
        """Take one step on the fixed arrays; return 1.0 if all guesses so far were right, else 0.0, and the log."""
        B = backend_of(self.reference)
        xp, guesses = B.xp, [self.right]
        with speculating(guesses, blind=True), collect_reports() as reports:
            batch = self.batches.of_parts(self.parts[0], Draws(*self.parts[1]))
            model, states, info = self.step(self.model, batch, self.states)
        if reports:
            raise BackendError("every step reports a numerical repair.")
        if _key(model, states, self.parts) != self.key:
            raise BackendError("the step changes settings or array shapes of the model or of a state.")
        right = xp.all(xp.stack(guesses))
        B.overwrite([*self.held, self.count], [*_arrays(tree.leaves(model), *states), self.count + 1.0], where=right)
        self.right[...] = right
        self.dtypes = {name: x.dtype for name, x in info.items()}
        widest = B.widest_float(self.reference)
        return xp.stack([xp.astype(x, widest) for x in (right, *info.values())])

    def load(self, model: Any, states: list[Any]) -> None:
        """Copy a model and states into the fixed arrays."""
        for x, y in zip(self.held, _arrays(tree.leaves(model), *states), strict=True):
            x[...] = y
        self.right[...] = True
        self.count[...] = 0.0

    def launch(self, parts: Any) -> Callable[[], Any]:
        """Launch a step; return a function that waits for its log."""
        for x, y in zip(_arrays(self.parts), _arrays(parts), strict=True):
            x[...] = y
        self.replay()
        return backend_of(self.log).fetch(self.log)

    def reached(self) -> tuple[Any, list[Any]]:
        """Return the model and the states after the last step with right guesses, in new arrays."""
        return _with_arrays(self.model, self.states, backend_of(self.reference).copies(self.held))

    def infos(self, logs: list[Any]) -> list[dict[str, Any]]:
        """Return the log of the last step as arrays, for callbacks, and the logs of earlier steps as numbers."""
        if not logs:
            return []
        found = [dict(zip(self.dtypes, map(float, log[1:]), strict=True)) for log in logs[:-1]]
        last = asarray_like(np.asarray(logs[-1][1:]), self.log)
        xp = backend_of(last).xp
        return [*found, {name: xp.astype(last[i], dtype) for i, (name, dtype) in enumerate(self.dtypes.items())}]


class StepGraph:
    """Decide which steps are launched as a graph, and collect their results."""

    def __init__(self, step: Step, batches: Batches, first: int) -> None:
        self.step, self.batches = step, batches
        self.recording: _Recording | None = None
        self.refusal = ""
        self.next = first + EAGER_STEPS  # the next step that may be launched as a graph
        self.pause = PAUSE_STEPS  # the number of steps without the graph after a wrong guess
        self.loaded: list[Any] | None = None  # the states in the recording
        self.start, self.done = 0, 0  # the step that loaded the recording, and the last step whose guesses were right
        self.logs: dict[int, Any] = {}  # the logs of launched steps
        self.taken, self.wrong = 0, 0

    @property
    def reason(self) -> str:
        """The reason why no step was launched as a graph; empty if any step was."""
        if self.refusal or self.taken or not self.wrong:
            return self.refusal
        return f"the guesses about the branches of the step were wrong {self.wrong} times in a row."

    def launch(self, model: Any, states: list[Any], step: int) -> bool:
        """Launch a step; return False if this or an earlier step has to be taken without a graph."""
        if self.refusal or step < self.next:
            return False
        parts = self.batches.parts(step)
        if self.loaded is not states and not self._load(model, states, parts, step):
            return False
        assert self.recording is not None
        self.logs[step] = None  # an interrupt may occur after the launch and before the next assignment
        self.logs[step] = self.recording.launch(parts)
        before = self.logs.get(step - 1)
        return before is None or bool(before()[0])

    def _load(self, model: Any, states: list[Any], parts: Any, step: int) -> bool:
        try:
            if self.recording is None or self.recording.key != _key(model, states, parts):
                self.recording = None  # free its memory first
                self.recording = _Recording(self.step, self.batches, model, states, parts)
            self.recording.load(model, states)
        except Exception as error:  # without a graph, the step works or raises its own error
            self.recording, self.refusal = None, str(error) or type(error).__name__
            return False
        self.logs, self.start, self.done, self.loaded = {}, step, step, states
        return True

    def collect(self, step: int) -> tuple[Any, list[Any], list[dict[str, Any]]] | None:
        """Return the model and the states after the last right guess, and the logs of the launched steps.

        The logs begin at step `step`. Return None if no step was launched. Repeated calls return the same result until
        `acknowledge` is called.
        """
        if not self.logs or self.recording is None:
            return None
        self.done = self.start + int(to_numpy(self.recording.count))
        here = [log for number, log in self.logs.items() if step <= number < self.done]
        logs = [to_numpy(self.recording.log) if log is None else log() for log in here]
        return *self.recording.reached(), self.recording.infos(logs)

    def acknowledge(self, states: list[Any]) -> None:
        """Record that the caller has stored the collected results and continues from `states`."""
        wrong = self.done <= max(self.logs, default=-1)
        self.taken += self.done - min(self.logs, default=self.done)
        self.logs, self.loaded = {}, None if wrong else states
        if wrong:
            self.wrong += 1
            self.pause = 2 * self.pause if self.done - self.start < PAUSE_STEPS else PAUSE_STEPS
            self.next = self.done + self.pause


def _arrays(*nested: Any) -> list[Array]:
    """Return the arrays in nested dictionaries and tuples."""
    found: list[Array] = []
    map_arrays(nested, found.append)
    return found


def _with_arrays(model: Any, states: list[Any], arrays: list[Array]) -> tuple[Any, list[Any]]:
    """Return the model and the states with these arrays: first the leaves, then the arrays of the states."""
    each = iter(arrays)
    leaves, states = map_arrays((tree.leaves(model), tuple(states)), lambda _: next(each))
    return tree.with_leaves(model, leaves), list(states)


def _key(model: Any, states: list[Any], parts: Any) -> tuple[Any, ...]:
    """Return what a recording fixes: classes and settings of the model, and shapes and dtypes of all arrays."""
    return tree.outline(model), map_arrays((tuple(states), parts), lambda x: (list(x.shape), x.dtype))


class Epochs:
    """Run an epoch, or `MIN_STEPS_PER_CALL` steps if that is more, in one call of a loop that is compiled once.

    The row numbers of all batches are transferred before the call, and so is their noise, unless it is drawn on the
    device.
    """

    def __init__(self, step: Step, batches: Batches) -> None:
        self.batches, self.length = batches, max(MIN_STEPS_PER_CALL, batches.per_epoch)
        self._run = backend_of(batches.X).compile(partial(_take_steps, step, batches.size, batches.device_seed))

    def to(self, first: int, last: int) -> int:
        """Return the last step of a call that starts at step `first`: the end of the epoch, but at most `last`."""
        if self.batches.per_epoch >= MIN_STEPS_PER_CALL:
            return min(last, first - first % self.batches.per_epoch + self.batches.per_epoch)
        return min(last, first + self.length)

    def __call__(self, model: Any, states: list[Any], first: int, last: int) -> tuple[Any, list[Any], dict[str, Any]]:
        """Run the steps from `first` to `last`; return the model, the states, and all logs on the host."""
        data: Any = self.batches.data
        ahead = self._ahead(range(first, last))
        (model, states), logged = self._run(model, states, data, ahead, asarray_like(np.asarray(last - first), data[0]))
        B = backend_of(data[0])
        return model, states, {name: B.to_numpy(x)[: last - first] for name, x in logged.items()}

    def _ahead(self, steps: range) -> tuple[Array, Array | None, Draws]:
        """Return the step numbers [K], rows [K, B] and draws [K, ...] of the steps, padded to the length of a call."""
        X, batches = self.batches.X, self.batches

        def stacked(arrays: list[Any]) -> Array:
            return asarray_like(np.stack(arrays + arrays[-1:] * (self.length - len(arrays))), X)

        rows = None if batches.whole else stacked([batches.indices(step) for step in steps])
        drawn = [batches.host_draws(step) for step in steps]
        parts = ({name: stacked([one[i][name] for one in drawn]) for name in drawn[0][i]} for i in range(2))
        return stacked([np.asarray(step) for step in steps]), rows, Draws(*parts)


def _take_steps(
    step: Step,
    size: int,
    device_seed: int | None,
    model: Any,
    states: list[Any],
    data: tuple[Array | None, ...],
    ahead: tuple[Array, Array | None, Draws],
    count: Array,
) -> tuple[Any, dict[str, Array]]:
    """Take `count` steps with these numbers, rows and draws, on batches of `size` rows of the data.

    With `device_seed`, the noise is drawn on the device.
    """

    def once(carry: tuple, each: tuple) -> tuple:
        number, rows, draws = each
        model, states = carry
        if device_seed is not None:
            draws = draw_on_device(model._draws, data[0], device_seed, number, size)
        model, states, info = step(model, batch_of(data, rows, draws, size), states)
        return (model, states), info

    return backend_of(data[0]).repeat(once, (model, states), ahead, count)


def check_loops(X: Array, callbacks: list[Any]) -> None:
    """Raise ValueError if the library of X cannot run a loop on the device, or if there are callbacks."""
    B = backend_of(X)
    if not B.loops_on_device:
        raise ValueError(
            f"on_device=True needs an array library that compiles loops, such as JAX, but X is an array of {B.name}; "
            "omit on_device, or convert the model and the data with agp.to_backend."
        )
    if callbacks:
        raise ValueError(
            "callbacks run after each step, but on_device=True runs many steps in one call; omit one of them."
        )
