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
WITHIN_1, WITHIN_2, OUTSIDE = "within 1", "within 2", "outside"
"""Marks of figures by their distance in standard errors."""

SEVERAL = 3
"""Number of runs from which their scatter gives the standard error of their mean."""

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
    """The mean over runs and its standard error, which is None for one run."""
    mean, runs = float(np.mean(values)), len(values)
    return Figure.from_deviation(mean, float(np.std(values, ddof=1)), runs) if runs > 1 else Figure(mean)


def mean_score(scores: Sequence[dict[str, float]], name: str) -> Figure:
    """The mean of a score over runs and its standard error.

    The standard error is from the scatter of the runs or, for one or two runs, from the scatter over their test rows.
    """
    mean, runs = mean_of([score[name] for score in scores]), len(scores)
    if runs >= SEVERAL:
        return mean
    return Figure.from_deviation(mean.value, float(np.mean([score[f"{name}_error"] for score in scores])), runs)


@dataclass(frozen=True)
class Comparison:
    """A figure of a paper, and the mean of our runs."""

    cell: Cell
    score: str
    theirs: Figure
    ours: Figure
    runs: int

    @property
    def distance(self) -> float:
        """Difference of the means in combined standard errors, sqrt(e1^2 + e2^2).

        If the paper has no standard error, that of our runs is used alone.
        """
        difference = abs(self.ours.value - self.theirs.value)
        error = math.hypot(self.ours.error or 0.0, self.theirs.error or 0.0)
        return difference / error if error else math.inf if difference else 0.0

    @property
    def mark(self) -> str:
        """Whether the distance is at most one or two standard errors."""
        return WITHIN_1 if self.distance <= 1.0 else WITHIN_2 if self.distance <= 2.0 else OUTSIDE


def comparisons(runs: Results, paper: Paper) -> list[Comparison]:
    """Compare the figures of a paper that have been measured."""
    found = []
    for cell in paper.cells:
        own = runs_of(runs, paper, cell)
        for score, theirs in cell.theirs.items() if own else ():
            found.append(Comparison(cell, score, theirs, mean_score([run["scores"] for run in own], score), len(own)))
    return found
