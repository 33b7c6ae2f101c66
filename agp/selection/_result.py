"""The results of `fit_regression`."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from agp.training import FitResult

__all__ = ["Candidate", "RegressionResult", "Stage"]


class Candidate(NamedTuple):
    """A kernel that was compared, and its scores; NaN for those that were not computed."""

    kernel: str
    rows: int
    """Of the sample that trained its hyperparameters."""
    evidence: float
    """Of the exact GP of these rows, priors included, in nats per row."""
    log_density: float
    """Of a row given the others of the sample, on average."""
    bound: float = math.nan
    """The collapsed bound of the rows not held out, at the best variance and noise, in nats per row."""
    held_out: float = math.nan
    """The log density of a row held out, on average, given the others."""


class Stage(NamedTuple):
    """A part of the fit."""

    name: str
    rows: int
    """The number of rows that it used."""
    seconds: float


@dataclass
class RegressionResult(FitResult):
    """The result of `fit_regression`. `message` describes the choice; `converged` is True if no limit ended the fit."""

    candidates: list[Candidate] = field(default_factory=list)
    """The kernels that were compared, with an entry for each number of rows."""
    kernel: str = ""
    """The kernel that was chosen."""
    stages: list[Stage] = field(default_factory=list)
    bound: float = math.nan
    """The bound on the log evidence of all rows, in nats."""
    baseline: float = math.nan
    """The log density of the targets from their mean and variance alone, in nats per row."""
    log_density: float = math.nan
    """The average log density of a row given others: for exact GPs, given all others; otherwise, of the held-out
    rows."""
    learned: bool = True
    """Whether the inputs are informative. Otherwise the model predicts the mean of the targets."""

    def describe(self) -> str:
        """Return the kernels and the stages as tables, and the choice."""
        heads = ("evidence", "others", "bound", "held out")
        lines = [f"{'kernel':<20} {'rows':>7} {' '.join(f'{head:>10}' for head in heads)}   (nats per row)"]
        for name, rows, *numbers in self.candidates:
            lines += [f"{name:<20} {rows:>7} {' '.join(f'{number:>10.4f}' for number in numbers)}"]
        lines += [f"{'stage':<36} {'rows':>9} {'seconds':>9}"]
        lines += [f"{stage.name:<36} {stage.rows:>9} {stage.seconds:>9.1f}" for stage in self.stages]
        return "\n".join([*lines, self.message])
