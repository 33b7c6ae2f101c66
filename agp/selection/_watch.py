"""The clock, the callbacks and the progress bar of a fit in stages."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

from agp.checks import check_callables, check_positive
from agp.selection._result import Stage
from agp.training import Callback, Progress, progress_bar

__all__ = ["Watch"]


class Watch:
    """A callback for all trainings of a fit, which ends them at a deadline or where a callback of the user does."""

    def __init__(self, max_seconds: float | None, callbacks: Iterable[Callback], *, progress: bool) -> None:
        self.limit = None if max_seconds is None else check_positive("max_seconds", max_seconds)
        self.callbacks = check_callables("callbacks", callbacks)
        self.began, self.before = time.perf_counter(), 0.0
        self.until: float | None = None
        self.stopped, self.late, self.interrupted = False, False, False
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
        """Seconds since the beginning, those before a resumption included."""
        return self.before + time.perf_counter() - self.began

    def left(self) -> float:
        """Seconds until the limit; infinite without one."""
        return float("inf") if self.limit is None else self.limit - self.elapsed()

    @property
    def ended(self) -> bool:
        """Whether nothing more should be begun."""
        self.late = self.late or self.left() <= 0.0
        return self.stopped or self.late

    @contextmanager
    def stage(self, name: str, rows: int, share: float = 1.0) -> Iterator[None]:
        """A stage, whose trainings end when so much of the whole time has passed."""
        self.until = None if self.limit is None else share * self.limit
        begun = self.elapsed()
        if self.bar is not None:
            self.bar.begin(f"{name}, {rows:,} rows", self.left())
        yield
        self.stages.append(Stage(name, rows, self.elapsed() - begun))
        self.until = None

    @property
    def stage_over(self) -> bool:
        """Whether the time of the stage has passed, or that of all."""
        return self.ended or (self.until is not None and self.elapsed() >= self.until)

    def __call__(self, seen: Progress) -> bool:
        self.steps += 1
        bound = float(seen.info["bound"])
        self.bounds.append(bound)
        if self.bar is not None:
            self.bar.show(self.steps, {"bound": bound}, 0)
        seen = seen._replace(step=self.steps, seconds=self.elapsed())
        self.stopped = sum(bool(callback(seen)) for callback in self.callbacks) > 0 or self.stopped
        return self.stage_over

    def ending(self) -> str:
        """Why the fit ended before its time; empty if it did not."""
        if self.interrupted:
            return "it was interrupted"
        if self.stopped:
            return "a callback ended it"
        return f"the limit of {self.limit:g} s was reached" if self.late else ""
