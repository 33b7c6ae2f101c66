"""What a long fit shows: one bar in a terminal, or a line a minute on standard error or in a log file."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agp.errors import require

Shown = bool | str | os.PathLike[str]
"""The argument `progress`: whether to show the progress, or the path of a log file."""

FIRST, EVERY, BETWEEN = 5.0, 60.0, 5.0
"""The times in seconds until the first line, between lines of one stage, and at least between the first lines of stages
that follow each other."""
REFRESH, WAKE = 0.2, 1.0
"""The times in seconds between two states of the bar, and after which a thread looks for lines that are due."""
MOST = 0.99
"""The largest share of the whole before the end."""
OVERRUN = 0.25
"""A piece of work that takes longer than expected is expected to take this share of its time so far, again."""
FLATTEST, STEEPEST, FEWEST = 1.0, 8.0, 4
"""The limits of the power with which gains fall from step to step, and the least number of steps that show it."""
REACH, LEAST_STEPS = 4.0, 40.0
"""How far such trends are followed, as a multiple of the number of steps, and a number that is always expected."""
LOG_2PI_E = math.log(2.0 * math.pi) + 1.0


class Piece(NamedTuple):
    """A piece of the work that is still to come, and its expected duration in seconds, or in any other unit."""

    name: str
    cost: float


@dataclass
class Level:
    """The pieces of a fit, of which each may be a fit with pieces of its own."""

    began: float
    later: list[Piece] = field(default_factory=list)
    present: Piece | None = None
    steps: tuple[float, float] = (0.0, 0.0)
    """The finished steps of the present piece, and how many of them are expected in all."""
    measured: float = 0.0
    """The seconds of the finished pieces."""
    expected: float = 0.0
    """Their costs."""
    words: str = ""
    """The present piece in words; empty if those of the fit around this one suffice."""
    is_old: bool = False
    """Whether results of the present piece come from a checkpoint, so that its duration tells nothing."""
    in_seconds: bool = True
    """Whether costs are expected seconds, and not only relative to each other."""

    def begin(self, name: str, now: float, cost: float | None) -> None:
        """Begin a piece; planned pieces before it are left out."""
        self.finish(now)
        names = [piece.name for piece in self.later]
        planned = self.later[names.index(name)] if name in names else None
        self.later = self.later[names.index(name) + 1 :] if name in names else self.later
        usual = 0.0 if planned is None else planned.cost
        self.began, self.present, self.steps = now, Piece(name, usual if cost is None else cost), (0.0, 0.0)

    def finish(self, now: float) -> None:
        """Note how long the present piece has taken."""
        if self.present is not None and self.present.cost > 0.0 and not self.is_old:
            self.measured += max(now - self.began, 0.0)
            self.expected += self.present.cost
        self.present, self.is_old = None, False

    def left(self, now: float, inside: float | None) -> float | None:
        """Return the expected seconds until all pieces are finished, or None if nothing is known.

        `inside` is the expected time left of a fit inside the present piece.
        """
        spent = max(now - self.began, 0.0)
        rest = inside
        done, total = self.steps
        if done > 0.0:
            rest = spent * max(total - done, 0.0) / done
        costs = sum(piece.cost for piece in self.later)
        present = 0.0 if self.present is None else self.present.cost
        factor = self.measured / self.expected if self.expected > 0.0 else 1.0
        is_known = self.in_seconds or self.expected > 0.0
        if present > 0.0 and is_known:
            planned = max(factor * present - spent, OVERRUN * spent)
            trust = min(spent / (factor * present), 1.0) if factor > 0.0 else 1.0  # first steps tell little
            rest = planned if rest is None else planned ** (1.0 - trust) * rest**trust
        if rest is not None and present > 0.0:
            factor, is_known = (self.measured + spent + rest) / (self.expected + present), True
        if not is_known or (rest is None and not costs):
            return rest
        return (rest or 0.0) + factor * costs


class Score(NamedTuple):
    """The quality of a fit, in words: a log density per row, and that without the inputs."""

    kind: str
    """"error" for densities of targets with normal errors, "label" for labels, or "fit" for others."""
    alone: float = math.nan
    """The log density of a row without the inputs, in nats; NaN if it is not known."""

    def describe(self, density: float) -> str:
        """Describe an average log density in nats per row; return an empty string unless it is finite."""
        if not math.isfinite(density):
            return ""
        if self.kind == "error":
            words, without, show = "typical error", "mean alone", _typical_error
        elif self.kind == "label":
            words, without, show = "probability of the right label", "frequencies alone", _percentage
        else:
            words, without, show = "fit per row", "noise alone", "{:.2f}".format
        if math.isnan(self.alone):
            return f"{words} {show(density)}"
        if self.kind != "fit" and density < self.alone:
            return f"no better than {without} yet"
        return f"{words} {show(density)} ({without} {show(self.alone)})"


def _typical_error(density: float) -> str:
    """Return the standard deviation of normal errors with this average log density."""
    return f"{math.exp(min(-density - 0.5 * LOG_2PI_E, 700.0)):.3g}"


def _percentage(density: float) -> str:
    """Return the geometric mean of probabilities, as text."""
    return f"{100.0 * math.exp(min(density, 0.0)):.0f} %"


def format_seconds(seconds: float) -> str:
    """Format a duration in words, such as "2 h 5 min"."""
    if seconds < 59.5:
        return f"{max(seconds, 1.0):.0f} s"
    minutes = round(seconds / 60.0)
    if minutes < 60:
        rest = round(seconds) % 60
        return f"{int(seconds + 0.5) // 60} min" + (f" {rest} s" if seconds < 600.0 and rest else "")
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h" + (f" {minutes} min" if hours < 24 and minutes else "")


class State(NamedTuple):
    """What is shown at a time."""

    share: float
    elapsed: float
    left: float | None
    stage: str
    detail: str
    """How far the stage is."""
    score: str

    def describe(self) -> str:
        """Return the state in one line."""
        left = "" if self.left is None else f", about {format_seconds(self.left)} left"
        head = f"{100.0 * self.share:3.0f} % after {format_seconds(self.elapsed)}{left}"
        facts = [head, self.stage + (self.detail and f", {self.detail}"), self.score]
        return "; ".join(fact for fact in facts if fact)


# -- where it is shown ------------------------------------------------------------------------------------------------


class Bar:
    """A tqdm bar, from 0 to 100 %."""

    def __init__(self, bar: Any, *, is_notebook: bool) -> None:
        self.bar, self.threads = bar, not is_notebook

    def show(self, state: State) -> None:
        """Show a state."""
        self.bar.set_description_str(state.stage, refresh=False)
        left = "" if state.left is None else f"about {format_seconds(state.left)} left"
        self.bar.set_postfix_str(", ".join(fact for fact in (left, state.detail, state.score) if fact), refresh=False)
        self.bar.n = math.floor(100.0 * state.share)
        self.bar.refresh()

    def end(self, state: State, words: str) -> None:
        """Remove the bar."""
        if not words.startswith("stopped"):
            self.show(state)
        self.bar.close()


class Lines:
    """Lines in a log: the first after a few seconds, then one at each new stage, and one a minute.

    Parameters
    ----------
    write
        A function that writes a line. Its errors are ignored, so that a full disk never stops a training.
    first
        The time in seconds until the first line; if it is 0, the last line is written even if no line came before.
    """

    threads = True

    def __init__(self, write: Callable[[str], Any], first: float) -> None:
        self.write, self.first = write, first
        self.last: float | None = None
        self.stage = ""

    def show(self, state: State) -> None:
        """Write a line about a state if one is due."""
        now = state.elapsed
        due = now >= self.first if self.last is None else now - self.last >= EVERY
        new = self.last is not None and state.stage != self.stage and now - self.last >= BETWEEN
        if due or new:
            self.last, self.stage = now, state.stage
            self._try(state.describe())

    def end(self, state: State, words: str) -> None:
        """Write the last line, which says how the fit ended."""
        if self.last is not None or not self.first:
            facts = [f"{words} after {format_seconds(state.elapsed)}", state.score]
            self._try("; ".join(fact for fact in facts if fact))

    def _try(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream was closed
            self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} agp: {' '.join(text.split())}\n")


def _write_error(line: str) -> None:
    if sys.stderr is not None:  # programs without a console have none
        sys.stderr.write(line)
        sys.stderr.flush()


def _file_writer(path: Path) -> Callable[[str], None]:
    """Return a function that appends a line to a file, which is opened for each line. Raise ValueError if it fails."""

    def write(line: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)

    try:
        write("")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(
            f"the log file {str(path)!r} cannot be written ({reason}); name a file in a folder that exists."
        ) from error
    return write


@contextlib.contextmanager
def _screen() -> Iterator[Any]:
    """Yield a bar if standard error is a terminal or a notebook, else lines on standard error."""
    module: Any = None
    with contextlib.suppress(ImportError):
        module = require("tqdm.auto", "progress=True needs", "cli")
    is_notebook = module is not None and module.notebook_tqdm is not module.std_tqdm
    if not is_notebook and (sys.stderr is None or not sys.stderr.isatty()):
        yield Lines(_write_error, FIRST)
        return
    tqdm = require("tqdm.auto", "progress=True needs", "cli").tqdm
    form = "{desc}: {percentage:3.0f}%|{bar:20}| {postfix}"
    with tqdm(total=100, bar_format=form, dynamic_ncols=True, leave=False) as bar:
        yield Bar(bar, is_notebook=is_notebook)


# -- expected numbers of steps ----------------------------------------------------------------------------------------


def expected_steps(values: Sequence[float], limit: float, most: float, *, every: float = 1.0) -> float:
    """Return after how many steps values that fall like a power of the step are expected to be below a limit.

    There is a value for each `every` steps; the trend is that of the last half of them. The result is at most `most`,
    and at most `REACH` times the number of steps so far.
    """
    most = min(most, max(REACH * every * len(values), LEAST_STEPS))
    kept = [(i + 1.0, math.log(x)) for i, x in enumerate(values) if 0.0 < x < math.inf]
    if not kept or limit <= 0.0:
        return most
    last, height = len(values), kept[-1][1] - math.log(limit)
    if height <= 0.0:
        return min(most, every * last)
    recent = [(math.log(i), x) for i, x in kept if i >= 0.5 * last]
    power = STEEPEST
    if len(recent) >= FEWEST:
        mean, level = (sum(column) / len(recent) for column in zip(*recent, strict=True))
        width = sum((t - mean) ** 2 for t, _ in recent)
        power = min(max(-sum((t - mean) * (x - level) for t, x in recent) / width, FLATTEST), STEEPEST)
    return min(most, every * last * math.exp(min(height / power, 50.0)))


# -- the progress of a fit --------------------------------------------------------------------------------------------


class Tracker:
    """The progress of a fit and of the fits inside it.

    Functions that train others pass their tracker on as `progress`. The share of the whole is the elapsed time over
    its sum with the time that is expected to be left. It never falls, and is 100 % only at the end.
    """

    def __init__(self, outputs: Iterable[Any]) -> None:
        self.outputs = [*outputs]
        self.start = self._ticked = time.monotonic()
        self.levels: list[Level] = []
        self.limits: list[float] = []
        """The times at which limits end the fit."""
        self.before, self.share = 0.0, 0.0
        self.detail, self.ending = "", ""
        self.score: Callable[[], str] | None = None
        self.best = -math.inf
        """The highest bound of the fit, for `judge_by`."""
        self._lock, self._over = threading.RLock(), threading.Event()

    # -- what a fit tells -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(
        self, pieces: Iterable[Piece] = (), *, max_seconds: float | None = None, in_seconds: bool = True
    ) -> Iterator[Level]:
        """Begin a fit, which may be one inside the present piece, with the pieces of its work that are expected."""
        self.levels.append(Level(time.monotonic(), [*pieces], in_seconds=in_seconds))
        depth = len(self.levels)
        if max_seconds is not None:
            self.limits.append(time.monotonic() + max_seconds)
        try:
            yield self.levels[-1]
        finally:
            del self.levels[depth - 1 :]
            if max_seconds is not None:
                self.limits.pop()

    def begin(self, name: str, words: str = "", cost: float | None = None) -> None:
        """Begin a piece of work, in words, unless the fit around it describes it; a `cost` replaces the planned one."""
        self.levels[-1].begin(name, time.monotonic(), cost)
        self.levels[-1].words, self.detail = words, ""
        self.tick()

    def read_old(self) -> None:
        """Tell that results of the present piece come from a checkpoint."""
        for level in self.levels[-1:]:
            level.is_old = True

    def forget_scores(self) -> None:
        """Begin with the scores of another fit."""
        self.score, self.best = None, -math.inf

    def conclude(self, words: str) -> None:
        """Tell why the fit ended, unless a fit around it continues."""
        if len(self.levels) <= 1:
            self.ending = words

    def step(self, done: float, total: float, detail: str = "", bound: float = -math.inf) -> None:
        """Tell how many steps of the present piece are done and are expected in all, and the bound of the model."""
        self.levels[-1].steps = done, max(total, done)
        self.detail, self.best = detail, max(self.best, bound)
        self.tick(patiently=True)

    def judge_by(self, score: Score, rows: float) -> None:
        """Describe the best bound of so many rows by a score, unless a fit around this one describes its own."""
        if self.score is None:
            self.score = lambda: score.describe(self.best / rows)

    # -- what is shown ----------------------------------------------------------------------------------------------

    def left(self) -> float | None:
        """Return the expected seconds until the end, or None if nothing is known."""
        now, found = time.monotonic(), None
        for level in reversed([*self.levels]):
            found = level.left(now, found)
        if self.limits:
            limit = max(min(self.limits) - now, 0.0)
            found = limit if found is None else min(found, limit)
        return found if found is not None and math.isfinite(found) else None

    def state(self) -> State:
        """Return what is known now."""
        elapsed, left = self.before + time.monotonic() - self.start, self.left()
        if left is not None and elapsed + left > 0.0:
            self.share = max(self.share, min(elapsed / (elapsed + left), MOST))
        try:
            score = "" if self.score is None else self.score()
        except (ArithmeticError, LookupError, RuntimeError, ValueError):  # a fit changes what a thread reads
            score = ""
        stage = ": ".join(level.words for level in [*self.levels] if level.words) or "training"
        return State(self.share, elapsed, left, stage, self.detail, score)

    def tick(self, *, patiently: bool = False) -> None:
        """Show the present state; with `patiently`, only if the last one is some time ago."""
        if not self.outputs or (patiently and time.monotonic() - self._ticked < REFRESH):
            return
        with self._lock:
            if self._over.is_set():
                return
            self._ticked = time.monotonic()
            state = self.state()
            for output in self.outputs:
                output.show(state)

    def end(self, words: str) -> None:
        """Show how the fit ended."""
        with self._lock:
            if not self._over.is_set():
                self._over.set()
                finished = not words.startswith(("stopped", "interrupted"))
                state = self.state()._replace(share=1.0 if finished else self.share, left=0.0 if finished else None)
                for output in self.outputs:
                    output.end(state, words)

    def watch(self) -> None:
        """Show the state from a thread, too, because a piece of work may take minutes without a step."""
        if not self.outputs or not all(output.threads for output in self.outputs):
            return

        def run() -> None:
            while not self._over.wait(WAKE):
                if self.levels and self.levels[0].present is not None:
                    self.tick()

        with contextlib.suppress(RuntimeError):  # this platform has no threads
            threading.Thread(target=run, name="agp-progress", daemon=True).start()


@contextlib.contextmanager
def track(progress: Any, log: Any = None) -> Iterator[Tracker]:
    """Yield the tracker of a fit: that of the fit around it, or a new one, which may also append to a log file.

    Raises
    ------
    TypeError
        If `progress` is neither a Boolean nor a path.
    ValueError
        If the log file cannot be written.
    ImportError
        If a bar is wanted, but tqdm is not installed.
    """
    if isinstance(progress, Tracker):
        yield progress
        return
    with contextlib.ExitStack() as stack:
        outputs: list[Any] = []
        if isinstance(progress, (str, os.PathLike)):
            outputs.append(Lines(_file_writer(Path(progress)), 0.0))
        elif progress is not None and not isinstance(progress, (bool, int, np.bool_)):
            raise TypeError(f"progress is shown with True or the path of a log file, not {progress!r:.80}; pass one.")
        elif progress:
            outputs.append(stack.enter_context(_screen()))
        if log is not None:
            outputs.append(Lines(_file_writer(Path(log)), 0.0))
        yield from _show_ending(Tracker(outputs))


def _show_ending(tracker: Tracker) -> Iterator[Tracker]:
    """Yield a tracker, and show how the fit ended."""
    tracker.watch()
    try:
        yield tracker
    except KeyboardInterrupt:
        tracker.end("interrupted")
        raise
    except BaseException as error:
        tracker.end(f"stopped by {type(error).__name__}: {error}")
        raise
    tracker.end(f"ended: {tracker.ending}" if tracker.ending else "ended")
