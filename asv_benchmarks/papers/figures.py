"""The runs in docs/papers.json, and their comparison with the papers' figures."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cells import RUNS, Cell, Figure, Paper
from rows import InputError

KEPT = ("paper", "version", "cell", "seed", "small", "scores", "seconds", "cpu_seconds", "versions", "processor")
WITHIN_1, WITHIN_2, OUTSIDE = "within 1", "within 2", "outside"
"""Marks of figures by their distance in standard errors."""
DIVERGED, FEW_RUNS, FEWER_STEPS = "diverged", "few runs", "fewer steps"
"""Marks of figures without a distance."""
MIN_RUNS = 3
"""Least number of runs for a distance."""

Results = list[dict[str, Any]]


def collect(out: Path, papers: Sequence[Paper]) -> Results:
    """Read the results in a folder, without rehearsals. Raise InputError if there are no results."""
    found = [read_run(path) for paper in papers for path in out.glob(f"{paper.name}.*.json")]
    runs = [run for run in found if not run["small"]]
    if not runs:
        why = "only rehearsals (--small)" if found else "no results"
        raise InputError(f"--out is {out}, which has {why}; run a script such as solve_gp.py with this folder first.")
    return runs


def read_run(path: Path) -> dict[str, Any]:
    """Read the results file of a run; raise InputError if it is none."""
    try:
        run = json.loads(path.read_text("utf-8"))
        return {name: run[name] for name in KEPT}
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path} is not a results file of these scripts; move or delete it.") from None


def merge(old: Results, new: Results, papers: Sequence[Paper]) -> Results:
    """Add new runs, which replace those of the same cell and seed; order them as the papers' cells.

    Runs of other versions of the scripts are left out. Raise InputError if a run is a rehearsal, or if its cell does
    not exist.
    """
    order = {(paper.name, cell.name): (i, j) for i, paper in enumerate(papers) for j, cell in enumerate(paper.cells)}
    versions = {paper.name: paper.version for paper in papers}
    current = [run for run in (*old, *new) if run["version"] == versions.get(run["paper"])]
    runs = {(run["paper"], run["cell"], run["seed"]): run for run in current}
    for (paper, cell, seed), run in runs.items():
        where = f"the results of {paper}, cell {cell}, seed {seed}"
        if run["small"]:
            raise InputError(f"{where} are from a rehearsal (--small); delete them.")
        if (paper, cell) not in order:
            raise InputError(f"{where} belong to no cell of the scripts; delete them.")
    return sorted(runs.values(), key=lambda run: (order[run["paper"], run["cell"]], run["seed"]))


def runs_of(runs: Results, paper: Paper, cell: Cell | None = None) -> Results:
    """The runs of a paper, or of one of its cells."""
    return [run for run in runs if run["paper"] == paper.name and (cell is None or run["cell"] == cell.name)]


def mean_of(values: Sequence[float]) -> Figure:
    """The mean over runs and its standard error, which is None for one run."""
    mean, runs = float(np.mean(values)), len(values)
    return Figure.from_deviation(mean, float(np.std(values, ddof=1)), runs) if runs > 1 else Figure(mean)


@dataclass(frozen=True)
class Comparison:
    """A figure of a paper, and the mean of our runs."""

    cell: Cell
    score: str
    theirs: Figure
    ours: Figure | None
    """None if all runs diverged."""
    runs: int
    """Number of runs that did not diverge."""
    diverged: int = 0

    @property
    def distance(self) -> float | None:
        """Difference of the means in combined standard errors, sqrt(e1^2 + e2^2); None if there is none.

        If the paper has no standard error, that of five runs with the scatter of ours is used. There is no distance
        if a run diverged, for few runs, and for runs with fewer steps than the paper's.
        """
        if self.diverged or self.ours is None or self.ours.error is None or self.runs < MIN_RUNS or not self.cell.full:
            return None
        difference = abs(self.ours.value - self.theirs.value)
        scatter = self.ours.error * math.sqrt(self.runs)
        theirs = scatter / math.sqrt(RUNS) if self.theirs.error is None else self.theirs.error
        error = math.hypot(self.ours.error, theirs)
        return difference / error if error else math.inf if difference else 0.0

    @property
    def mark(self) -> str:
        """Whether the distance is at most one or two standard errors, or why there is none."""
        if self.diverged:
            return DIVERGED
        if self.distance is None:
            return FEW_RUNS if self.cell.full else FEWER_STEPS
        return WITHIN_1 if self.distance <= 1.0 else WITHIN_2 if self.distance <= 2.0 else OUTSIDE


def comparisons(runs: Results, paper: Paper) -> list[Comparison]:
    """Compare the figures of a paper that have been measured."""
    found = []
    for cell in paper.cells:
        own = runs_of(runs, paper, cell)
        scores = [run["scores"] for run in own if run["scores"]]
        for score, theirs in cell.theirs.items() if own else ():
            ours = mean_of([one[score] for one in scores]) if scores else None
            found.append(Comparison(cell, score, theirs, ours, len(scores), len(own) - len(scores)))
    return found
