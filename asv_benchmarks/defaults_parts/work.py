"""Run the cells one after another, each in its own process, and write their results."""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import CellError, run_process
from results import commit, machine, read_result, write_result

from defaults_parts.sides import side_of
from defaults_parts.tables import Table

SHOWN = ("nlpd", "rmse", "log_loss", "error_rate")


@dataclass(frozen=True)
class Cell:
    """One measurement: a table, a split, a seed and a side."""

    table: str
    split: int
    seed: int
    side: str

    @property
    def file(self) -> str:
        """Name of its results file."""
        return f"{self.table}.{self.split}.{self.seed}.{self.side}.json"

    def __str__(self) -> str:
        return f"{self.table}, split {self.split}, seed {self.seed}, {self.side}"


@dataclass
class Work:
    """The cells of a run, and the settings of their processes.

    Parameters
    ----------
    out
        The folder for the results.
    tables, splits, seeds, sides
        The cells are all combinations, except for sides that do not support a table.
    peer_python
        The interpreter for other libraries.
    checkouts
        The checkouts of agp, by the name of the side.
    exact_rows
        Maximum number of training rows for sides with a limit.
    small, again
        Whether the run is a rehearsal, and whether it repeats cells that failed.
    """

    out: Path
    tables: list[Table]
    splits: list[int]
    seeds: list[int]
    sides: list[str]
    peer_python: str | None
    checkouts: dict[str, Path]
    exact_rows: int
    small: bool
    again: bool

    def __post_init__(self) -> None:
        self.commits = {side: commit(path) for side, path in self.checkouts.items()}
        self.machine = machine()
        self.cells = [
            Cell(table.name, split, seed, side)
            for table in self.tables
            for split in self.splits
            for seed in self.seeds
            for side in self.sides
            if side_of(side).takes(table.classes)
        ]
        self.done = 0

    def run(self) -> int:
        """Measure the cells that have no results yet; return the number of cells that failed, now or before."""
        self.out.mkdir(parents=True, exist_ok=True)
        lacking = [cell for cell in self.cells if self.lacks(cell)]
        self.done = len(self.cells) - len(lacking)
        print(f"{self.done} of {len(self.cells)} cells have results", flush=True)
        for table in self.tables:
            for split in self.splits:
                self._run_split(table, split, [c for c in lacking if (c.table, c.split) == (table.name, split)])
        return sum("error" in (read_result(self.out / cell.file) or {}) for cell in self.cells)

    def lacks(self, cell: Cell) -> bool:
        """Whether a cell must be measured."""
        found = read_result(self.out / cell.file)
        return found is None or found["small"] != self.small or (self.again and "error" in found)

    def _run_split(self, table: Table, split: int, cells: list[Cell]) -> None:
        if not cells:
            return
        job = table.job(split, small=self.small)
        facts = {"rows": len(job.y), "test_rows": len(job.y_test), "columns": job.X.shape[1], "classes": job.classes}
        with tempfile.TemporaryDirectory() as folder:
            job.write(Path(folder) / "job.npz")
            for cell in cells:
                self.done += 1
                where = f"[{self.done}/{len(self.cells)}] {cell}:"
                if side_of(cell.side).has_limit and len(job.y) > self.exact_rows:
                    print(where, f"left out, because it has {len(job.y):,} rows", flush=True)
                    continue
                result = self.outcome(cell, Path(folder))
                write_result(self.out / cell.file, {**vars(cell), **facts, "small": self.small, **result})
                print(where, sentence(result), flush=True)

    def outcome(self, cell: Cell, folder: Path) -> dict[str, Any]:
        """Measure a cell; return its figures or its error, and the machine."""
        try:
            figures = self._measured(cell, folder)
        except CellError as failure:
            return {"error": str(failure), "machine": self.machine}
        if cell.side in self.commits:
            figures["versions"]["agp"] += f" ({self.commits[cell.side]})"
        return {**figures, "machine": self.machine}

    def _measured(self, cell: Cell, folder: Path) -> dict[str, Any]:
        out, checkout = folder / "cell.json", self.checkouts.get(cell.side)
        out.unlink(missing_ok=True)
        python = self.peer_python if side_of(cell.side).is_peer else sys.executable
        command = [str(python), "-m", "defaults_parts.cell", str(folder / "job.npz"), "--out", str(out)]
        command += ["--side", cell.side, "--seed", str(cell.seed), *(["--checkout", str(checkout)] if checkout else [])]
        run_process(command, folder, checkout=checkout)
        if not out.exists():
            raise CellError("ended without a result")
        return json.loads(out.read_text(encoding="utf-8"))


def sentence(result: dict[str, Any]) -> str:
    """Format the figures of a cell for the progress line."""
    if "error" in result:
        return f"FAILED, {result['error']}"
    scores = ", ".join(f"{name} {result[name]:.4f}" for name in SHOWN if name in result)
    facts = " ".join(str(fact) for fact in result["facts"].values() if fact is not None)
    return f"{scores}, {result['seconds']:.1f} s, {result['mebibytes']:.0f} MiB {facts}".rstrip()
