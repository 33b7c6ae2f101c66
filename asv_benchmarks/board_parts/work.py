"""Run the cells, several at a time, each in its own process, and write their results."""

import hashlib
import json
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import CellError, LimitError, StoppedError, run_process
from results import machine, read_result, write_result

from board_parts.sides import side_of
from board_parts.splits import splits_of
from board_parts.tables import Table

MEASURING = ("cell.py", "predictions.py", "splits.py")
"""The files that measure every side, beside the module of the side."""
REHEARSED = ("agp", "linear", "mean")
"""The sides that take all tables in a rehearsal."""
SHOWN = ("crps", "log_score", "rmse", "coverage", "log_loss", "error_rate")


@dataclass(frozen=True)
class Cell:
    """One measurement: a table, a split and a side."""

    table: str
    split: int
    side: str

    @property
    def file(self) -> str:
        """Name of its results file."""
        return f"{self.table}.{self.split}.{self.side}.json"

    def __str__(self) -> str:
        return f"{self.table}, split {self.split}, {self.side}"


@dataclass
class Work:
    """The cells of a run, and the settings of their processes.

    Parameters
    ----------
    out
        The folder for the results.
    tables, sides
        The cells are all combinations with the splits of the tables, except for sides that do not take a table.
    limit
        The CPU seconds that the process of a cell may use.
    jobs
        The number of processes at a time.
    checkouts
        The checkouts of agp, by the name of the side.
    small, again
        Whether the run is a rehearsal, and whether it repeats cells that failed.
    """

    out: Path
    tables: list[Table]
    sides: list[str]
    limit: int
    jobs: int
    checkouts: dict[str, Path]
    small: bool
    again: bool
    cells: list[Cell] = field(init=False)
    stopping: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self.commits = {side: commit_of_agp(path) for side, path in self.checkouts.items()}
        self.codes = {side: code_of(side) for side in self.sides}
        self.machine = machine()
        self.cells, weights = [], {}
        for table in self.tables:
            rows = len(table.frame())
            sides = self._sides(table, rows)
            splits = range(splits_of(small=self.small))
            cells = [Cell(table.name, split, side) for split in splits for side in sides]
            self.cells += cells
            weights |= dict.fromkeys(cells, rows)
        # the longest first, so that no long one is left alone in the end, but first splits before others, because the
        # others are not tried if the first is stopped
        self.cells.sort(key=lambda cell: (cell.side not in self.checkouts, cell.split > 0, -weights[cell]))
        self.done = 0

    def _sides(self, table: Table, rows: int) -> list[str]:
        """The sides that take a table; in a rehearsal, some of them take only the first table of numbers or classes."""
        first = next(one for one in self.tables if one.is_classes == table.is_classes)
        sides = [side for side in self.sides if side_of(side).takes(rows, table.is_classes)]
        return [side for side in sides if not self.small or table is first or side in REHEARSED]

    def run(self) -> int:
        """Measure the cells that have no results yet; return the number of cells that failed, now or before."""
        lacking = [cell for cell in self.cells if self.lacks(cell)]
        self.done = len(self.cells) - len(lacking)
        print(f"{self.done} of {len(self.cells)} cells have results", flush=True)
        pool = ThreadPoolExecutor(self.jobs)
        try:
            for future in as_completed([pool.submit(self._run, cell) for cell in lacking]):
                cell, result = future.result()
                self.done += 1
                print(f"[{self.done}/{len(self.cells)}] {cell}: {sentence(result)}", flush=True)
        finally:
            self.stopping.set()
            pool.shutdown(cancel_futures=True)
        return sum("error" in (read_result(self.out / cell.file) or {}) for cell in self.cells)

    def lacks(self, cell: Cell) -> bool:
        """Whether a cell must be measured: it has no result, or one of other code, or failed at a lower limit."""
        found = read_result(self.out / cell.file)
        if found is None:
            return True
        if found["small"] != self.small:
            there, wanted = ("a rehearsal", "a full run") if found["small"] else ("a full run", "a rehearsal")
            raise SystemExit(f"{self.out} holds results of {there}; use another folder for {wanted}.")
        if found["code"] != self.codes[cell.side] or found["commit"] != self.commits.get(cell.side):
            return True
        return "error" in found and (self.again or found["limit"] < self.limit)

    def _run(self, cell: Cell) -> tuple[Cell, dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            result = self._outcome(cell, Path(folder))
        commit = self.commits.get(cell.side)
        if commit and commit != commit_of_agp(self.checkouts[cell.side]):
            raise SystemExit(
                f"the code of agp in {self.checkouts[cell.side]} has changed since the start; run the command again."
            )
        settings = {"small": self.small, "limit": self.limit, "commit": commit, "code": self.codes[cell.side]}
        result = {**vars(cell), **settings, **result, "machine": self.machine}
        write_result(self.out / cell.file, result)
        return cell, result

    def _outcome(self, cell: Cell, folder: Path) -> dict[str, Any]:
        first = read_result(self.out / Cell(cell.table, 0, cell.side).file) if cell.split else None
        if first and first.get("limited") and not self.lacks(Cell(cell.table, 0, cell.side)):
            # all splits of a table take about the same time
            return {"error": f"not tried, as split 0 was {first['error']}", "limited": True, "seconds": self.limit}
        out, checkout = folder / "cell.json", self.checkouts.get(cell.side)
        command = [sys.executable, "-m", "board_parts.cell", cell.table, "--split", str(cell.split)]
        command += ["--side", cell.side, "--limit", str(self.limit), "--out", str(out)]
        command += [*(["--small"] if self.small else []), *(["--checkout", str(checkout)] if checkout else [])]
        try:
            run_process(command, folder, checkout=checkout, limit=self.limit, stopping=self.stopping)
        except StoppedError:
            raise
        except LimitError as failure:
            return {"error": str(failure), "limited": True, "seconds": self.limit}
        except CellError as failure:
            return {"error": str(failure), "limited": False}
        return json.loads(out.read_text(encoding="utf-8"))


def sentence(result: dict[str, Any]) -> str:
    """Format the figures of a cell for the progress line."""
    if "error" in result:
        return f"FAILED, {result['error']}"
    scores = ", ".join(f"{name} {result[name]:.4f}" for name in SHOWN if name in result)
    facts = " ".join(str(fact) for fact in result["facts"].values() if fact not in (None, [], True, False))
    return f"{scores}, {result['seconds']:.1f} s, {result['mebibytes']:.0f} MiB {facts}".rstrip()


def code_of(side: str) -> str:
    """A hash of the files that measure a side, whose results are measured again if they change."""
    here = Path(__file__).parent
    files = (*MEASURING, f"{side_of(side).module}.py")
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in files)).hexdigest()[:12]


def commit_of_agp(checkout: Path) -> str:
    """The last commit of a checkout that changed the code of agp, with a hash of what has changed since."""
    code = ["--", "agp", "backends"]
    changes = _git(checkout, "diff", "HEAD", *code) + _git(
        checkout, "ls-files", "--others", "--exclude-standard", *code
    )
    suffix = f"-dirty-{hashlib.sha256(changes.encode()).hexdigest()[:7]}" if changes else ""
    return (_git(checkout, "log", "-1", "--format=%h", *code) or "no commit") + suffix


def _git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()
