"""The runs in docs/papers.json, and their comparison with the papers' figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cell, Figure, Paper
from results import read_result
from rows import InputError

KEPT = ("paper", "cell", "seed", "small", "scores", "seconds", "cpu_seconds", "versions", "processor")
WITHIN_1, WITHIN_2, OUTSIDE, ONE_RUN = "within 1", "within 2", "outside", "one run"
"""Marks of figures by their distance in standard errors."""

Results = list[dict[str, Any]]


def collect(out: Path, papers: Sequence[Paper]) -> Results:
    """Read the results in a folder; leave out rehearsals. Raise InputError if there are no results."""
    found = [read_result(path) or {} for paper in papers for path in sorted(out.glob(f"{paper.name}.*.json"))]
    runs = [{name: run[name] for name in KEPT} for run in found if not run["small"]]
    if not runs:
        why = "only rehearsals (--small)" if found else "no results"
        msg = f"--out is {out}, which has {why}; run a script such as solve_gp.py with this folder first."
        raise InputError(msg)
    return runs


def merge(old: Results, new: Results, papers: Sequence[Paper]) -> Results:
    """Add new runs, which replace those of the same cell and seed; order them as the papers' cells.

    Raise InputError if a run is a rehearsal, or if its cell does not exist.
    """
    order = {(paper.name, cell.name): (i, j) for i, paper in enumerate(papers) for j, cell in enumerate(paper.cells)}
    runs = {(run["paper"], run["cell"], run["seed"]): run for run in (*old, *new)}
    for (paper, cell, seed), run in runs.items():
        where = f"the results of {paper}, cell {cell}, seed {seed}"
        if run["small"]:
            msg = f"{where} are from a rehearsal (--small); delete them."
            raise InputError(msg)
        if (paper, cell) not in order:
            msg = f"{where} belong to no cell of the scripts; delete them."
            raise InputError(msg)
    return sorted(runs.values(), key=lambda run: (order[run["paper"], run["cell"]], run["seed"]))


def runs_of(runs: Results, paper: Paper, cell: Cell | None = None) -> Results:
    """The runs of a paper, or of one of its cells."""
    return [run for run in runs if run["paper"] == paper.name and (cell is None or run["cell"] == cell.name)]


def mean_of(values: Sequence[float]) -> Figure:
    """The mean of several runs and its standard error, which is None for one run."""
    mean, runs = float(np.mean(values)), len(values)
    return Figure.from_deviation(mean, float(np.std(values, ddof=1)), runs) if runs > 1 else Figure(mean)


@dataclass(frozen=True)
class Comparison:
    """A figure of a paper, and the mean of our runs."""

    cell: Cell
    score: str
    theirs: Figure
    ours: Figure
    runs: int

    @property
    def distance(self) -> float | None:
        """Difference of the means in combined standard errors, sqrt(e1^2 + e2^2).

        If the paper has no standard error, that of our runs is used alone. The distance is None if there is only one
        run, whose error is unknown.
        """
        if self.ours.error is None:
            return None
        difference = abs(self.ours.value - self.theirs.value)
        error = math.hypot(self.ours.error, self.theirs.error or 0.0)
        return difference / error if error else math.inf if difference else 0.0

    @property
    def mark(self) -> str:
        """Whether the distance is at most one or two standard errors."""
        if self.distance is None:
            return ONE_RUN
        return WITHIN_1 if self.distance <= 1.0 else WITHIN_2 if self.distance <= 2.0 else OUTSIDE


def comparisons(runs: Results, paper: Paper) -> list[Comparison]:
    """Compare the figures of a paper that have been measured."""
    found = []
    for cell in paper.cells:
        own = runs_of(runs, paper, cell)
        for score, theirs in cell.theirs.items() if own else ():
            found.append(Comparison(cell, score, theirs, mean_of([run["scores"][score] for run in own]), len(own)))
    return found
