"""The results of `fit_regression` and `fit_classification`."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from agp.models import GPR, NNGP, SVGP, TVGP, VIF, Ensemble, GPRMixture, Model
from agp.training import FitResult


class Candidate(NamedTuple):
    """The scores of a kernel. Scores that were not computed are NaN."""

    kernel: str
    rows: int
    """The number of rows in the sample that trained the hyperparameters."""
    evidence: float
    """The log evidence of the exact GP on this sample, including the priors, in nats per row.

    For labels, this is its Laplace approximation.
    """
    log_density: float
    """The average log density of a row in the sample given the other rows."""
    bound: float = math.nan
    """The collapsed bound for the rows that are not held out, at the best variance and noise, in nats per row."""
    held_out: float = math.nan
    """The average log density of a held-out row given the rows that are not held out."""


class Stage(NamedTuple):
    """The name, size and duration of a stage of the fit."""

    name: str
    rows: int
    """The number of rows used."""
    seconds: float


M = TypeVar("M", bound=Model)


@dataclass
class SearchResult(FitResult[M]):
    """Base class of results. `message` describes the model. `converged` is False if the fit ended early."""

    candidates: list[Candidate] = field(default_factory=list)
    """The candidates that were compared. A kernel has one entry for each optimum and each number of rows."""
    kernel: str = ""
    """The name of the chosen kernel."""
    stages: list[Stage] = field(default_factory=list)
    bound: float = math.nan
    """The bound on the log evidence of all rows, in nats.

    With nearest rows, an estimate instead: the number of observations times `log_density`.
    """
    baseline: float = math.nan
    """The log density of the targets, in nats per row, given only their mean and variance, or the shares of classes."""
    log_density: float = math.nan
    """The average log density of a row given all other rows or, with inducing inputs, that of a held-out row."""
    learned: bool = True
    """True if the inputs are informative."""

    def describe(self) -> str:
        """Return the kernels and the stages as tables, followed by `message`."""
        heads = ("evidence", "others", "bound", "held out")
        lines = [f"{'kernel':<20} {'rows':>7} {' '.join(f'{head:>10}' for head in heads)}   (nats per row)"]
        for name, rows, *numbers in self.candidates:
            lines += [f"{name:<20} {rows:>7} {' '.join(f'{number:>10.4f}' for number in numbers)}"]
        lines += [f"{'stage':<36} {'rows':>9} {'seconds':>9}"]
        lines += [f"{stage.name:<36} {stage.rows:>9} {stage.seconds:>9.1f}" for stage in self.stages]
        return "\n".join([*lines, self.message])


@dataclass
class RegressionResult(SearchResult[GPR | GPRMixture | SVGP | NNGP | VIF]):
    """The result of `fit_regression`."""

    @property
    def method(self) -> str:
        """The name of the method: "gpr", "sgpr", "nngp" or "vif"."""
        names = {GPR: "gpr", GPRMixture: "gpr", SVGP: "sgpr", NNGP: "nngp", VIF: "vif"}
        return names[type(self.model)]


@dataclass
class ClassificationResult(SearchResult[Ensemble | TVGP | SVGP]):
    """The result of `fit_classification`. `kernel` names all kernels that the model averages."""

    ending: str = ""
    """Why the fit has not converged, or an empty string."""
    holds_data: bool = True
    """Whether the posterior is that of all rows, which the model stores, and not one with inducing inputs."""
