"""Cells of the papers' tables, measured one run after another, with a results file for each run.

A run that is interrupted, even by SIGKILL, continues from its last checkpoint when the command is repeated. A run that
diverges has a results file without scores; delete it to repeat the run. Several commands can share a folder of results:
a lock keeps them from measuring the same run.
"""

import argparse
import fcntl
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
import scipy
from results import commit, machine, read_result, write_result
from rows import InputError, check_file

import agp

STOPPED = 130
"""Exit status after Ctrl-C."""
ROOT = Path(__file__).parents[2]
RUNS = 5
"""Number of runs of a cell."""
CHECKPOINT_EVERY = 50
"""Number of steps between checkpoints."""


# -- tables of a paper ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A figure of a paper with its standard error, which is None if the paper does not state one."""

    value: float
    error: float | None = None

    @classmethod
    def from_deviation(cls, value: float, deviation: float, runs: int = RUNS) -> Self:
        """Convert the standard deviation over `runs` runs to the standard error of their mean."""
        return cls(value, deviation / math.sqrt(runs))


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a method and a data set, which have a figure for each score."""

    name: str
    """Name of the cell, such as "elevators-svgp-1024"."""
    data: str
    """Name of the data set, whose file is NAME.npz."""
    settings: dict[str, Any]
    """Arguments of the script's `measure`."""
    theirs: dict[str, Figure] = field(default_factory=dict)
    """Figures of the paper by score."""
    seeds: tuple[int, ...] = tuple(range(RUNS))
    full: bool = True
    """Whether size and number of steps are the paper's."""
    needs: str = ""
    """The name of a library that the cell needs."""


@dataclass(frozen=True)
class Table:
    """A table of scores for which the paper has no figures, with a row for each cell."""

    title: str
    cells: str
    """Pattern of the names of its cells."""
    columns: dict[str, str]
    """Headings by score."""
    cpu: bool = False
    """Whether a column has the CPU seconds of a whole run."""


@dataclass(frozen=True)
class Paper:
    """A paper, its cells, and what the page says about them."""

    name: str
    """Name of the script and first part of the names of results files."""
    version: int
    """Version of the measurements. Raise it after a change of their numbers: older results no longer count."""
    title: str
    source: str
    """Authors, title, venue and tables."""
    protocol: str | None
    """Docstring of the script."""
    cells: Sequence[Cell]
    differences: tuple[str, ...]
    """Differences between the paper's protocol and ours, in sentences."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Reasons why figures differ, in sentences by pattern of cell names."""
    tables: tuple[Table, ...] = ()


def curve_table(title: str, cells: str, score: str, counts: Sequence[int], unit: str) -> Table:
    """A table of the scores SCORE_COUNT after several counts of a unit, such as "step"."""
    columns = {f"{score}_{i}": f"{i:,} {unit}" + "s" * (i > 1) for i in counts}
    return Table(title, cells, columns, cpu=score == "seconds")


# -- a run ------------------------------------------------------------------------------------------------------------


class Run:
    """A run of a cell, with notes that survive an interruption.

    The file of notes is next to the results file. It holds scores by name, and the seconds of interrupted processes up
    to their last checkpoint. Notes and checkpoints of other versions of the script are deleted.

    Parameters
    ----------
    data
        The folder of the data.
    path
        The results file.
    seed
        The seed of the split, the initial model and the minibatches.
    version
        The version of the script.
    small
        Whether this is a rehearsal with few rows and steps.
    """

    def __init__(self, data: Path, path: Path, seed: int, *, version: int, small: bool) -> None:
        self.data, self.path, self.seed, self.version, self.small = data, path, seed, version, small
        self._file = path.with_suffix(".notes")
        self.versions: dict[str, str] = {}
        """Versions of further libraries."""
        earlier = read_result(self._file)
        if earlier is None or earlier["version"] != version:
            self._delete_parts()
            earlier = {"notes": {}, "seconds": 0.0, "cpu_seconds": 0.0}
        self._notes: dict[str, dict[str, float]] = earlier["notes"]
        self._wall = time.perf_counter() - earlier["seconds"]
        self._cpu = time.process_time() - earlier["cpu_seconds"]

    def seconds(self) -> dict[str, float]:
        """Wall and CPU seconds so far, including those before resumptions."""
        return {"seconds": time.perf_counter() - self._wall, "cpu_seconds": time.process_time() - self._cpu}

    def note(self, name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return the scores noted under a name; measure and note them if there are none."""
        if name not in self._notes:
            self._notes[name] = measure()
            self.keep()
        return self._notes[name]

    def stages(self, steps: Sequence[int], scores: Callable[[int], dict[str, float]]) -> dict[str, float]:
        """Note ``scores(step)`` for each of several steps, and return all scores.

        `scores` trains up to the step, which continues from the checkpoint of the previous stage.
        """
        found: dict[str, float] = {}
        for step in steps:
            found |= self.note(f"step {step}", lambda step=step: scores(step))
        return found

    def train(
        self, model: Any, X: Any, y: Any, *, steps: int, every: int = CHECKPOINT_EVERY, name: str = "", **settings: Any
    ) -> Any:
        """Train by `agp.train` with a checkpoint after each `every` steps; return the result.

        A run with several trainings gives each a name.
        """

        def keep_seconds(progress: Any) -> None:
            if progress.step % every == 0:
                self.keep()

        file = self.path.with_suffix(f".{name}.safetensors" if name else ".safetensors")
        kept = {"checkpoint": file, "checkpoint_every": every, "callbacks": [keep_seconds]}
        self.keep()
        try:
            return agp.train(model, X, y, steps=steps, **kept, **settings)
        finally:
            self.keep()

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Write the results file, then delete notes and checkpoints; return the result."""
        result = facts | {"version": self.version, "versions": facts["versions"] | self.versions} | self.seconds()
        write_result(self.path, result)
        self._delete_parts()
        return result

    def keep(self) -> None:
        """Write the notes and the seconds so far. Checkpoints without notes are deleted."""
        write_result(self._file, {"version": self.version, "notes": self._notes, **self.seconds()})

    def _delete_parts(self) -> None:
        checkpoints = self.path.parent.glob(f"{self.path.stem}.*safetensors")
        for file in (self._file, self.path.with_suffix(".pt"), self.path.with_suffix(".pt.part"), *checkpoints):
            file.unlink(missing_ok=True)


def remove_units(model: Any) -> Any:
    """Set the units of all parameters to 1, as in GPflow and GPyTorch, for which the papers chose their rates."""
    units = {leaf.name: leaf.value for leaf in agp.tree.describe(model) if leaf.name.endswith("_unit")}
    return agp.tree.with_leaves(model, {name: np.ones_like(value) for name, value in units.items()})


Measure = Callable[..., dict[str, float]]
"""``measure(run, **settings)`` returns the scores of a run."""


@contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Lock a results file; yield False if another process holds the lock.

    The system releases the lock when its process ends. The lock file is deleted when there are results.
    """
    file = path.with_suffix(".lock")
    with file.open("w") as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
        if path.exists():
            file.unlink(missing_ok=True)


# -- all runs ---------------------------------------------------------------------------------------------------------


class Runs:
    """The runs of a command, one after another."""

    def __init__(self, paper: Paper, cells: Sequence[Cell], measure: Measure, a: argparse.Namespace) -> None:
        self.paper, self.measure, self.data, self.small = paper, measure, a.data, a.small
        # rehearsals have their own folder, so that they are neither results nor checkpoints of full runs
        self.out = a.out / "small" if a.small else a.out
        self.runs = [(cell, seed) for cell in cells for seed in cell.seeds[: a.seeds]]
        versions = {"agp": f"{agp.__version__} ({commit(ROOT)})", "numpy": np.__version__, "scipy": scipy.__version__}
        self.facts = {"versions": versions, "processor": machine()["processor"]}

    def file_of(self, cell: Cell, seed: int) -> Path:
        """The results file of a run."""
        return self.out / f"{self.paper.name}.{cell.name}.{seed}.json"

    def measure_all(self) -> int:
        """Measure the runs without results of this version; return the number of runs that diverged."""
        make_folder(self.out)
        diverged = 0
        for done, (cell, seed) in enumerate(self.runs, 1):
            path, where = self.file_of(cell, seed), f"[{done}/{len(self.runs)}] {cell.name}, seed {seed}:"
            if self._is_measured(path):
                continue
            with lock(path) as mine:
                if not mine:
                    print(where, "another process is measuring this run", flush=True)
                elif not self._is_measured(path):
                    diverged += not self._measure(cell, seed, where)
        return diverged

    def _is_measured(self, path: Path) -> bool:
        result = read_result(path)
        return result is not None and result["version"] == self.paper.version

    def _measure(self, cell: Cell, seed: int, where: str) -> bool:
        """Measure a run and print its scores; return False if it diverges, which leaves a result without scores."""
        run = Run(self.data, self.file_of(cell, seed), seed, version=self.paper.version, small=self.small)
        scores: dict[str, float] = {}
        try:
            scores = check_finite(self.measure(run, **cell.settings))
        except agp.errors.NonFiniteError as error:
            print(where, f"diverged, {error}", flush=True)
        identity = {"paper": self.paper.name, "cell": cell.name, "seed": seed, "small": self.small}
        result = run.finish({**identity, "scores": scores, **self.facts})
        if scores:
            print(where, describe(scores, cell.theirs, result), flush=True)
        return bool(scores)


def make_folder(folder: Path) -> None:
    """Make the folder of results unless it exists; raise InputError if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out is {folder}, but this folder cannot be made ({error.strerror}); name another folder."
        ) from error


def check_finite(scores: dict[str, float]) -> dict[str, float]:
    """Return the scores; raise NonFiniteError if one is not finite."""
    if not all(map(math.isfinite, scores.values())):
        raise agp.errors.NonFiniteError(f"the scores are not finite: {scores}")
    return scores


def describe(scores: dict[str, float], theirs: dict[str, Figure], result: dict[str, Any]) -> str:
    """Format the scores of a run beside the paper's figures, and its times."""
    paper = {name: f" (paper {figure.value:.4g})" for name, figure in theirs.items()}
    shown = [f"{name} {value:.4f}{paper.get(name, '')}" for name, value in scores.items()]
    return f"{', '.join(shown)}; {result['seconds']:.0f} s, CPU {result['cpu_seconds']:.0f} s"


def choose(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """The cells whose names match a pattern; raise InputError if a pattern matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise InputError(
                f"no cell has a name like {pattern}; choose from {', '.join(cell.name for cell in cells)}."
            )
    return [cell for cell in cells if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]


def installed(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose libraries are installed; print those that are left out. Raise InputError if all are."""
    lacking = [cell for cell in cells if cell.needs and find_spec(cell.needs) is None]
    if not lacking:
        return list(cells)
    needs = ", ".join(dict.fromkeys(cell.needs for cell in lacking))
    why = f"the cells {', '.join(cell.name for cell in lacking)} need {needs}, which is not installed"
    if len(lacking) == len(cells):
        raise InputError(f"{why}; install {needs}, or choose other cells.")
    print(f"{why}; the other cells are measured.", file=sys.stderr)
    return [cell for cell in cells if cell not in lacking]


def main(paper: Paper, measure: Measure) -> int:
    """Run a script; return its exit status: 1 if a run diverged, and 2 for wrong arguments or missing data."""
    parser = argparse.ArgumentParser(description=paper.protocol, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the .npz files")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="OUT", help="folder for the results, one file per run"
    )
    parser.add_argument("--cells", nargs="+", default=["*"], metavar="PATTERN", help="names or patterns of cells")
    parser.add_argument("--seeds", type=int, default=RUNS, metavar="N", help="at most this number of runs per cell")
    parser.add_argument("--small", action="store_true", help="rehearsal with few rows and steps, in OUT/small")
    a = parser.parse_args()
    if a.seeds < 1:
        parser.error(f"--seeds is {a.seeds}, but must be at least 1")
    try:
        cells = installed(choose(paper.cells, a.cells))
        for name in dict.fromkeys(cell.data for cell in cells):
            check_file(a.data, name)
        diverged = Runs(paper, cells, measure, a).measure_all()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to continue.")
        return STOPPED
    return 1 if diverged else 0
