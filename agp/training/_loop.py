"""The loop that applies updates in turn, watches them, and loses nothing."""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, to_numpy
from agp.checks import check_data, check_whole
from agp.errors import Interrupted, NonFiniteError, RepairWarning
from agp.io import load_checkpoint, save_checkpoint
from agp.linalg import recorded_repairs
from agp.training._batches import Batches
from agp.training._progress import progress_bar
from agp.training._recipe import recipe
from agp.updates import Batch, Update

__all__ = ["Progress", "Result", "train"]

CHECK_EVERY = 10
"""Steps between looks at the numbers; each look makes the host wait for the device."""


class Progress(NamedTuple):
    """What a callback sees after a step."""

    step: int
    """Steps finished."""
    model: Any
    info: dict[str, Array]
    """What the updates logged: 0-d arrays by name, "bound" among them."""
    seconds: float
    """Time spent in steps so far, callbacks excluded."""


@dataclass
class Result:
    """What training leaves behind."""

    model: Any
    """The trained model."""
    steps: int
    """Steps finished in all, those before a resumption included."""
    seconds: float
    """Time spent in steps, callbacks excluded."""
    trace: dict[str, list[float]] = field(default_factory=dict)
    """What the updates logged, by name: one number a step."""
    repairs: list[str] = field(default_factory=list)
    """Messages about numerical trouble that was repaired."""


Callback = Callable[[Progress], bool | None]


def train(
    model: Any,
    X: Array,
    y: Array,
    /,
    *,
    steps: int,
    updates: Sequence[Update] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
) -> Result:
    """Train a model: apply the updates in turn, `steps` times.

    Parameters
    ----------
    model
        An `agp.models.Model`; it is not changed, `Result.model` is the trained one.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    steps
        Steps in all, those of a resumed run included.
    updates
        What a step does; `recipe(model, steps)` by default.
    batch_size
        Rows in a minibatch; all by default. Batches are drawn on the host and depend on the seed alone.
    seed
        Of the minibatches.
    callbacks
        Called with a `Progress` after each step; one that returns True ends the training.
    progress
        Show a progress bar with the bound and steps per second (needs the extra ``cli``).
    checkpoint, checkpoint_every
        A file to write every so many steps, at the end and when interrupted, and to resume from if it
        exists: a resumed run gives the numbers of one that was never stopped.

    Raises
    ------
    TypeError, ValueError
        For data that do not fit each other or the model, a batch size out of range, or a checkpoint of another run.
    agp.errors.NonFiniteError
        If the bound or what an update reports becomes NaN or infinite; `.result` holds the last finite state.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds everything so far.
    """
    y = check_data(X, y)
    model.check(X, y)
    steps = check_whole("steps", steps, least=0)
    size = _batch_size(model, X.shape[0], batch_size)
    facts: dict[str, Any] = {"seed": seed, "batch_size": size}
    if updates is None:
        updates = recipe(model, steps)
        facts["steps"] = steps  # the recipe depends on it
    run = _Run(model, list(updates), Batches(X, y, size, seed), checkpoint, facts)
    run.resume()
    with progress_bar(steps, run.step) if progress else nullcontext() as bar, recorded_repairs() as repairs:
        run.repairs = repairs
        try:
            run.advance_to(steps, list(callbacks), bar, checkpoint_every)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(run.interrupted()) from interrupt
    result = run.saved()
    if repairs:
        warnings.warn(f"{len(repairs)} numerical repairs; the first: {repairs[0]}", RepairWarning, stacklevel=2)
    return result


def _batch_size(model: Any, rows: int, batch_size: int | None) -> int:
    size = rows if batch_size is None else check_whole("batch_size", batch_size)
    if size > rows:
        msg = f"batch_size is {size}, but there are only {rows} rows."
        raise ValueError(msg)
    if size < rows and not model.stochastic:
        msg = f"the bound of {type(model).__name__} needs all rows at once; leave batch_size out."
        raise ValueError(msg)
    return size


class _Run:
    """The mutable part of a training run."""

    def __init__(
        self, model: Any, updates: list[Update], batches: Batches, path: str | Path | None, facts: dict[str, Any]
    ) -> None:
        self.model, self.updates, self.batches, self.path, self.facts = model, updates, batches, path, facts
        self.states = [update.init(model) for update in updates]
        self.step, self.seconds = 0, 0.0
        self.pending: list[dict[str, Array]] = []
        self.trace: dict[str, list[float]] = {}
        self.repairs: list[str] = []
        self.finite = (0, model)
        if path is not None:
            self.facts["data"] = batches.fingerprint()
        self._apply = backend_of(batches.X).compile(self._apply_updates)

    def _apply_updates(self, model: Any, states: list[Any], X: Array, y: Array, scale: float) -> tuple[Any, list, dict]:
        info, new_states = {}, []
        for update, state in zip(self.updates, states, strict=True):
            model, state, logged = update(model, Batch(X, y, scale), state)
            new_states.append(state)
            info |= logged
        return model, new_states, info

    def advance_to(self, steps: int, callbacks: list[Callback], bar: Any, checkpoint_every: int) -> None:
        while self.step < steps:
            began = time.perf_counter()
            model, states, info = self._apply(self.model, self.states, *self.batches[self.step])
            # one assignment, so that an interrupt cannot separate them
            self.model, self.states, self.step, self.pending = model, states, self.step + 1, [*self.pending, info]
            if self.step % CHECK_EVERY == 0 or self.step == steps:
                self._look(bar)
            self.seconds += time.perf_counter() - began
            if self.path is not None and self.step % checkpoint_every == 0:
                self.saved()
            seen = Progress(self.step, model, info, self.seconds)
            if sum(bool(callback(seen)) for callback in callbacks):  # every callback is called
                return

    def _look(self, bar: Any) -> None:
        """Read what was logged since the last look, and refuse what is not finite."""
        first = self.step - len(self.pending) + 1
        for offset, info in enumerate(self.pending):
            for name, value in info.items():
                number = float(value)
                if not np.isfinite(number):
                    raise NonFiniteError(self._trouble(name, number, first + offset), self._result(*self.finite[::-1]))
                self.trace.setdefault(name, []).append(number)
        self.pending, self.finite = [], (self.step, self.model)
        if bar is not None:
            latest = {name: values[-1] for name, values in self.trace.items()}
            bar.show(self.step, latest, len(self.repairs))

    def _trouble(self, name: str, number: float, step: int) -> str:
        broken = [leaf.name for leaf in tree.describe(self.model) if not np.isfinite(to_numpy(leaf.value)).all()]
        last = f"{self.trace[name][-1]:.6g}" if self.trace.get(name) else "none"
        extremes = ", ".join(
            f"{key} in [{to_numpy(x).min():.3g}, {to_numpy(x).max():.3g}]"
            for key, x in tree.leaves(self.finite[1], "parameter").items()
        )
        return (
            f"{name} became {number} in step {step} (the last finite value: {last}; leaves not finite now: "
            f"{', '.join(broken) or 'none'}). In the last finite model, after step {self.finite[0]}: {extremes}. "
            "Try a smaller learning rate, standardised data, more jitter or float64."
        )

    def _result(self, model: Any, step: int) -> Result:
        return Result(model, step, self.seconds, self.trace, list(self.repairs))

    def saved(self) -> Result:
        """The result so far, written to the checkpoint if there is one."""
        self._look(None)
        if self.path is not None:
            states = {str(i): state for i, state in enumerate(self.states)}
            arrays = {"model": tree.leaves(self.model), "states": states}
            facts = self.facts | {"step": self.step, "seconds": self.seconds, "trace": self.trace}
            save_checkpoint(self.path, arrays, facts)
        return self._result(self.model, self.step)

    def interrupted(self) -> Result:
        """`saved`, or the last finite state if the numbers have gone wrong since."""
        try:
            return self.saved()
        except NonFiniteError:
            return self._result(*self.finite[::-1])

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if self.path is None or not Path(self.path).exists():
            return
        X = self.batches.X
        B = backend_of(X)
        arrays, facts = load_checkpoint(self.path, B, B.device_name(X))
        for name, value in self.facts.items():
            if facts.get(name) != value:
                msg = f"{self.path} was written by a run with {name}={facts.get(name)}, this one has {name}={value}."
                raise ValueError(msg)
        if arrays["model"].keys() != tree.leaves(self.model).keys():
            msg = f"{self.path} holds the leaves {', '.join(arrays['model'])}, which are not those of this model."
            raise ValueError(msg)
        states = {str(i): state for i, state in enumerate(self.states)}
        saved = arrays.get("states", {})
        if _names(saved) != _names(states):
            msg = f"{self.path} was written by a run with other updates, or other frozen leaves; use the same ones."
            raise ValueError(msg)
        self.model = tree.with_leaves(self.model, arrays["model"])
        self.states = [saved.get(name, {}) for name in states]
        self.step, self.seconds, self.trace = facts["step"], facts["seconds"], facts["trace"]
        self.finite = (self.step, self.model)


def _names(states: dict[str, Any], prefix: str = "") -> set[str]:
    """The paths of all arrays."""
    names = set()
    for name, value in states.items():
        names |= _names(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name}
    return names
