"""The clock, callbacks, progress bar and checkpoint of a staged fit."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import numpy as np

from agp.checks import check_callables, check_positive
from agp.errors import CheckpointError, Interrupted
from agp.io import REMEDY, load_checkpoint
from agp.selection._trial import Stage
from agp.training import (
    Callback,
    Progress,
    call_all,
    check_checkpoint,
    checkpoint_exists,
    progress_bar,
    write_checkpoint,
)

KIND = "fit_regression"

T = TypeVar("T")


class Watch:
    """A callback that ends all training in a fit at a deadline, or when a user's callback returns True."""

    def __init__(self, max_seconds: float | None, callbacks: Iterable[Callback], *, progress: bool) -> None:
        self.limit = None if max_seconds is None else check_positive("max_seconds", max_seconds)
        self.callbacks = check_callables("callbacks", callbacks)
        self.began, self.before = time.perf_counter(), 0.0
        self.until: float | None = None
        self.stopped, self.late, self.interrupted = False, False, False
        self.cut = False
        """Whether the time limit made a stage shorter."""
        self.steps = 0
        self.bounds: list[float] = []
        self.stages: list[Stage] = []
        self._bar: Any = progress_bar(None) if progress else nullcontext()
        self.bar: Any = None

    def __enter__(self) -> Self:
        self.bar = self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def elapsed(self) -> float:
        """Return the seconds since the start of the fit, including those before it was resumed."""
        return self.before + time.perf_counter() - self.began

    def left(self) -> float:
        """Return the seconds until the time limit; infinity if there is no limit."""
        return float("inf") if self.limit is None else self.limit - self.elapsed()

    @property
    def is_done(self) -> bool:
        """Whether the fit must end now."""
        self.late = self.late or self.left() <= 0.0
        return self.stopped or self.late

    @contextmanager
    def stage(self, name: str, rows: int, share: float = 1.0) -> Iterator[None]:
        """Measure the time of a stage, and end its training when the fraction `share` of the time limit has passed."""
        self.until = None if self.limit is None else share * self.limit
        begun = self.elapsed()
        if self.bar is not None:
            self.bar.begin(f"{name}, {rows:,} rows", self.left())
        yield
        self.stages.append(Stage(name, rows, self.elapsed() - begun))
        self.until = None

    @property
    def stage_over(self) -> bool:
        """Whether the time for the stage or for the whole fit is up."""
        return self.is_done or (self.until is not None and self.elapsed() >= self.until)

    def __call__(self, seen: Progress) -> bool:
        self.steps += 1
        bound = float(seen.info["bound"])
        self.bounds.append(bound)
        if self.bar is not None:
            self.bar.show(self.steps, {"bound": bound}, 0)
        seen = seen._replace(step=self.steps, seconds=self.elapsed())
        self.stopped = call_all(self.callbacks, seen) or self.stopped
        return self.stage_over

    @contextmanager
    def keep_results(self, result: Callable[[], Any]) -> Iterator[None]:
        """Store the result so far, which a function returns, in errors of checkpoints and in interrupts."""
        try:
            yield
        except CheckpointError as error:
            error.result = result()
            raise
        except KeyboardInterrupt as interrupt:
            self.interrupted = True
            raise Interrupted(result()) from interrupt

    def record(self) -> dict[str, Any]:
        """Return the fields of a result that tell the course of the fit."""
        return {"steps": self.steps, "seconds": self.elapsed(), "trace": {"bound": self.bounds}, "stages": self.stages}

    def ending(self) -> str:
        """Return why the fit ended early, or an empty string."""
        if self.interrupted:
            return "the fit was interrupted"
        if self.stopped:
            return "a callback ended the fit"
        return f"the limit of {self.limit:g} s was reached" if self.late or self.cut else ""


class Pieces:
    """The stages' results by name, as dictionaries of NumPy arrays, which are stored in a checkpoint."""

    def __init__(self, path: str | Path | None, facts: dict[str, Any], watch: Watch, *, kind: str = KIND) -> None:
        self.path, self.watch, self.kind = check_checkpoint(path), watch, kind
        self.facts = {"fit": kind, **facts}
        self.done: dict[str, dict[str, Any]] = {}
        if self.path is not None:
            self._open(self.path)

    def _open(self, path: Path) -> None:
        if not checkpoint_exists(path):
            self._write(path)  # raise an error early if the file cannot be written
            return
        arrays, saved = load_checkpoint(path)
        other = saved.get("facts")
        if not isinstance(other, dict) or other.get("fit") != self.kind:
            raise ValueError(f"{path} is not a checkpoint of {self.kind}; {REMEDY}")
        if names := [name for name, mine in self.facts.items() if other.get(name) != mine]:
            raise ValueError(f"{path} was written by a fit with other values of {', '.join(names)}; {REMEDY}")
        try:
            watch = arrays.pop("watch")
            self.watch.steps, self.watch.bounds = int(watch["steps"]), watch["bounds"].tolist()
            self.watch.before = float(watch["seconds"])
            self.done = {name: dict(piece) for name, piece in arrays.items()}
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(path, error)

    def find(self, name: str, read: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the result with this name from the checkpoint, converted by `read`, or None if there is none.

        Raise ValueError if `read` rejects it.
        """
        if self.path is None or name not in self.done:
            return None
        try:
            return read(self.done[name])
        except ValueError as error:
            self._refuse(self.path, error)

    def store(self, name: str, result: dict[str, Any]) -> dict[str, Any]:
        """Write a result to the checkpoint, unless it is incomplete, and return it as it would be read from there."""
        found = {key: np.asarray(value, order="C") for key, value in result.items()}
        if self.path is not None and not self.watch.stage_over:
            self.done[name] = found
            self._write(self.path)
        return found

    @staticmethod
    def _refuse(path: Path, error: Exception) -> NoReturn:
        raise ValueError(f"{path} cannot be resumed: {error}; {REMEDY}") from error

    def _write(self, path: Path) -> None:
        watch = self.watch
        state = {"steps": watch.steps, "bounds": watch.bounds, "seconds": watch.elapsed()}
        arrays = {**self.done, "watch": {key: np.asarray(value, dtype=np.float64) for key, value in state.items()}}
        write_checkpoint(path, arrays, {"facts": self.facts})
