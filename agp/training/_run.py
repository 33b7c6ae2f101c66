"""The mutable part of a training run: steps, the watch over their numbers, checkpoints."""

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, to_numpy
from agp.batch import Batch
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.io import load_checkpoint, save_checkpoint
from agp.training._batches import Batches
from agp.training._result import Progress, Result
from agp.updates import Update

__all__ = ["Callback", "Run"]

Callback = Callable[[Progress], bool | None]

REMEDY = "try a smaller learning rate, standardised data, more jitter or float64"
CHECK_EVERY = 10
"""Steps between looks at the numbers; each look makes the host wait for the device."""
REPAIRS_KEPT = 20
"""Messages about repairs that a checkpoint keeps."""


class Run:
    """A model in training.

    Parameters
    ----------
    model, updates, batches
        What is trained, how, and on what.
    path, facts
        The checkpoint, if any, and what must be the same when it is resumed.
    """

    def __init__(
        self, model: Any, updates: list[Update], batches: Batches, path: Path | None, facts: dict[str, Any]
    ) -> None:
        self.model, self.updates, self.batches, self.path, self.facts = model, updates, batches, path, facts
        self.states = [update.init(model) for update in updates]
        self.step, self.seconds = 0, 0.0
        self.pending: list[dict[str, Array]] = []
        self.trace: dict[str, list[float]] = {}
        self.repairs: list[str] = []
        self.finite: tuple[int, Any] = (0, model)
        if path is not None:
            self.facts = facts | {
                "model": _written(model),
                "updates": _written(updates),
                "data": batches.fingerprint(),
            }
            self._resume(path)
        self._apply = backend_of(batches.X).compile(self._apply_updates)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _apply_updates(self, model: Any, states: list[Any], batch: Batch) -> tuple[Any, list, dict]:
        info: dict[str, Array] = {}
        new_states = []
        for update, state in zip(self.updates, states, strict=True):
            model, state, logged = update(model, batch, state)
            if clash := info.keys() & logged.keys():
                msg = f"two updates log {', '.join(sorted(clash))}; give one of them another name."
                raise ValueError(msg)
            new_states.append(state)
            info |= logged
        return model, new_states, info

    def advance_to(self, steps: int, callbacks: list[Callback], bar: Any, checkpoint_every: int) -> None:
        """Steps until `steps` are done or a callback returns True."""
        while self.step < steps:
            began = time.perf_counter()
            info = self._advance()
            if self.step % CHECK_EVERY == 0 or self.step == steps:
                self._look()
                self._show(bar)
            elif callbacks:
                self._wait(info)
            self.seconds += time.perf_counter() - began
            if self.step % checkpoint_every == 0:
                self.save()
            seen = Progress(self.step, self.model, info, self.seconds)
            if sum(bool(callback(seen)) for callback in callbacks):  # every callback is called
                return

    def _advance(self) -> dict[str, Array]:
        try:
            model, states, info = self._apply(self.model, self.states, self.batches[self.step])
        except NotPositiveDefiniteError as error:
            self._look()  # earlier numbers that are not finite are the better explanation
            msg = f"a factorisation failed in step {self.step + 1}; {REMEDY}."
            details = f"Of the factorisation: {error}\n{self._circumstances()}"
            raise NonFiniteError(msg, self._last_finite(), details) from error
        # one assignment, so that an interrupt cannot separate them
        self.model, self.states, self.step, self.pending = model, states, self.step + 1, [*self.pending, info]
        return info

    def _wait(self, info: dict[str, Array]) -> None:
        """Let the device finish the step before the clock is read."""
        for value in info.values():
            backend_of(value).synchronise(value)

    def _show(self, bar: Any) -> None:
        if bar is not None:
            latest = {name: values[-1] for name, values in self.trace.items()}
            bar.show(self.step, latest, len(self.repairs))

    # -- the watch --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read what was logged since the last look, and refuse numbers and leaves that are not finite."""
        first = self.step - len(self.pending) + 1
        numbers = [{name: float(value) for name, value in info.items()} for info in self.pending]
        for offset, info in enumerate(numbers):
            for name, number in info.items():
                if not np.isfinite(number):
                    seen = [earlier[name] for earlier in numbers[:offset] if name in earlier]
                    last = (self.trace.get(name, []) + seen)[-1:]
                    self._refuse(f"{name} became {number}", first + offset, last)
        if broken := self._broken_leaves():
            self._refuse(f"{', '.join(broken)} became NaN or infinite", self.step, [])
        if outside := [leaf.name for leaf in tree.describe(self.model) if bool(leaf.constraint.violated(leaf.value))]:
            # softplus underflows to zero, from where no gradient leads back
            self._refuse(f"{', '.join(outside)} became 0, but must be positive", self.step, [])
        for info in numbers:
            for name, number in info.items():
                self.trace.setdefault(name, []).append(number)
        self.pending, self.finite = [], (self.step, self.model)

    def _broken_leaves(self) -> list[str]:
        leaves = tree.leaves(self.model).items()
        return [name for name, x in leaves if not bool(backend_of(x).xp.all(backend_of(x).xp.isfinite(x)))]

    def _refuse(self, what: str, step: int, last: list[float]) -> None:
        value = f"the last finite value: {last[0]:.6g}" if last else "never finite before"
        msg = f"{what} in step {step} ({value}); {REMEDY}."
        raise NonFiniteError(msg, self._last_finite(), self._circumstances())

    def _circumstances(self) -> str:
        """What a person needs to know about trouble."""
        broken = ", ".join(self._broken_leaves()) or "none"
        extremes = ", ".join(
            f"{name} in [{to_numpy(x).min():.3g}, {to_numpy(x).max():.3g}]"
            for name, x in tree.leaves(self.finite[1], "parameter").items()
        )
        return f"Leaves not finite now: {broken}.\nIn the last finite model, after step {self.finite[0]}: {extremes}."

    def _last_finite(self) -> Result:
        step, model = self.finite
        return Result(model, step, self.seconds, self.trace, list(self.repairs))

    # -- results and checkpoints ------------------------------------------------------------------------------------

    def result(self) -> Result:
        """Everything so far, checked."""
        self._look()
        return self._last_finite()

    def interrupted(self) -> Result:
        """Everything so far, saved; the last finite state if the numbers have gone wrong since."""
        with contextlib.suppress(NonFiniteError):
            self._look()
            self.save()
        return self._last_finite()

    def save(self) -> None:
        """Write the checkpoint, if there is one, once the numbers are known to be finite."""
        if self.path is None:
            return
        self._look()
        states = {str(i): state for i, state in enumerate(self.states)}
        trace = {name: np.asarray(values) for name, values in self.trace.items()}
        arrays = {"model": tree.leaves(self.model), "states": states, "trace": trace}
        progress = {"step": self.step, "seconds": self.seconds, "repairs": self.repairs[:REPAIRS_KEPT]}
        save_checkpoint(self.path, arrays, {"facts": self.facts, "progress": progress})

    def _resume(self, path: Path) -> None:
        """Go on from the checkpoint, if the file exists."""
        if not path.exists():
            return
        X = self.batches.X
        B = backend_of(X)
        arrays, meta = load_checkpoint(path, B, B.device_name(X))
        if not meta.keys() >= {"facts", "progress"}:
            msg = f"{path} is not a checkpoint of a training run; name another file, or remove it to start afresh."
            raise ValueError(msg)
        _check_facts(path, meta["facts"], self.facts)
        states = {str(i): state for i, state in enumerate(self.states)}
        saved = arrays.get("states", {})
        if _names(saved) != _names(states):
            msg = f"{path} was written by a run with other updates, or other frozen leaves; use the same ones."
            raise ValueError(msg)
        self.model = tree.with_leaves(self.model, arrays["model"])
        self.states = [_merged(states[name], saved.get(name, {})) for name in states]
        progress = meta["progress"]
        self.step, self.seconds = progress["step"], progress["seconds"]
        self.trace = {name: to_numpy(x).tolist() for name, x in arrays.get("trace", {}).items()}
        self.repairs = progress["repairs"]
        self.finite = (self.step, self.model)


def _written(x: Any) -> str:
    """The classes, settings and shapes of x, without the addresses that functions are printed with."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(x))


def _check_facts(path: Path, saved: dict[str, Any], mine: dict[str, Any]) -> None:
    for name, value in mine.items():
        if saved.get(name) != value:
            what = (
                f"other {name}"
                if name in ("data", "updates")
                else f"{name}={saved.get(name)}; this one has {name}={value}"
            )
            msg = f"{path} was written by a run with {what}; name another file, or remove it to start afresh."
            raise ValueError(msg)


def _names(states: dict[str, Any], prefix: str = "") -> set[str]:
    """The paths of all arrays."""
    names = set()
    for name, value in states.items():
        names |= _names(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name}
    return names


def _merged(start: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """The saved arrays in the structure of the start, whose empty dictionaries no file can hold."""
    return {
        name: _merged(value, saved.get(name, {})) if isinstance(value, dict) else saved[name]
        for name, value in start.items()
    }
