"""The clock, callbacks, progress and checkpoint of a staged fit."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import numpy as np

from agp.checks import check_callables, check_positive, check_whole
from agp.errors import CheckpointError, Interrupted
from agp.io import REMEDY, load_checkpoint
from agp.selection._trial import Candidate, Stage
from agp.training import (
    Callback,
    Piece,
    Progress,
    Score,
    Shown,
    Tracker,
    call_all,
    check_checkpoint,
    checkpoint_exists,
    limit_of_seconds,
    limit_of_steps,
    track,
    write_checkpoint,
)

KIND = "fit_regression"
WORDS = {
    "integrate": "averaging over hyperparameters",
    "transforms": "comparing transforms of the target",
    "search": "comparing kernels",
    "search again": "comparing kernels for the transformed target",
    "kernels": "comparing kernels",
    "train": "training",
    "further rows": "training",
    "judge": "comparing predictions",
    "without times": "comparing with a model without times",
    "metric": "learning a metric",
    "neighbours": "training on nearest rows",
    "both": "combining nearest rows and inducing inputs",
    "compare": "trying few inducing inputs",
    "posterior": "computing the final model",
}
"""The stages in words."""

T = TypeVar("T")


class Watch:
    """A callback that ends all training in a fit at a limit, or when a user's callback returns True."""

    def __init__(
        self,
        max_seconds: float | None,
        callbacks: Iterable[Callback],
        *,
        progress: Shown | Tracker,
        max_steps: int | None = None,
    ) -> None:
        self.limit = None if max_seconds is None else check_positive("max_seconds", max_seconds)
        self.max_steps = None if max_steps is None else check_whole("max_steps", max_steps)
        self.callbacks = check_callables("callbacks", callbacks)
        self.began, self.before = time.perf_counter(), 0.0
        self.until: float | None = None
        self.stopped = ""
        """The callback that ended the fit, in words."""
        self.late, self.interrupted = False, False
        self.cut = False
        """Whether the time limit made a stage shorter."""
        self.steps = 0
        self.bounds: list[float] = []
        self.stages: list[Stage] = []
        self.candidates: list[Candidate] = []
        self._progress, self._stack = progress, ExitStack()
        self.tracker: Any = Tracker(())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.tracker = stack.enter_context(track(self._progress))
            stack.enter_context(self.tracker.inside(max_seconds=self.limit))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def expect(self, pieces: Iterable[Piece], score: Score) -> None:
        """Tell the stages that are expected, and how the scores of candidates are described."""
        self.tracker.levels[-1].later = [*pieces]
        if self.tracker.score is None:
            self.tracker.score = lambda: score.describe(best_density(self.candidates))

    def conclude(self, ending: str) -> None:
        """Tell the progress why the fit ended."""
        self.tracker.conclude(ending or "converged")

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
        return bool(self.stopped) or self.is_full or self.late

    @property
    def is_full(self) -> bool:
        """Whether the limit on the number of steps is reached."""
        return self.max_steps is not None and self.steps >= self.max_steps

    @property
    def was_cut(self) -> bool:
        """Whether a stage that is over has ended because of the time, and not of a callback or of the steps."""
        return not (self.stopped or self.is_full)

    @contextmanager
    def stage(self, name: str, rows: int, share: float = 1.0) -> Iterator[None]:
        """Measure the time of a stage, and end its training when the fraction `share` of the time limit has passed."""
        self.until = None if self.limit is None else share * self.limit
        begun = self.elapsed()
        self.tracker.begin(name, f"{WORDS.get(name, name)}, {rows:,} rows")
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
        self.tracker.tick(patiently=True)
        seen = seen._replace(step=self.steps, seconds=self.elapsed())
        ended = call_all(self.callbacks, seen)
        self.stopped = self.stopped or ended
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
            return f"{self.stopped} ended the fit"
        if self.max_steps is not None and self.is_full:
            return limit_of_steps(self.max_steps)
        return limit_of_seconds(self.limit or 0.0) if self.late or self.cut else ""


def best_density(candidates: Iterable[Candidate]) -> float:
    """Return the highest density of left-out or held-out rows, or else evidence, in nats per row."""
    best = [-math.inf, -math.inf]
    for one in [*candidates]:
        density = one.log_density if math.isnan(one.held_out) else one.held_out
        known = not math.isnan(density)
        best[known] = max(best[known], density if known else one.evidence)
    return best[1] if best[1] > -math.inf else best[0]


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
            self.watch.before = self.watch.tracker.before = float(watch["seconds"])
            self.done = {name: dict(piece) for name, piece in arrays.items()}
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(path, error)

    def find(self, name: str, read: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the result with this name from the checkpoint, converted by `read`, or None if there is none.

        Raise ValueError if `read` rejects it.
        """
        if self.path is None or name not in self.done:
            return None
        self.watch.tracker.read_old()
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
