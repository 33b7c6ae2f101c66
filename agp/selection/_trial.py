"""The records of candidates, the choice among them, and the results of staged fits."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from agp.backend import asarray_like, to_numpy
from agp.likelihoods import Transform, with_transform
from agp.models import GPR, NNGP, SVGP, TNNGP, TVGP, VIF, Ensemble, GPRMixture, Model
from agp.predictors import Predictor
from agp.selection._given import Data
from agp.training import FitResult
from agp.tree import leaves, replace, with_leaves

CLOSE, ALIKE = 0.02, 0.002
"""Differences in nats per row. Candidates within `CLOSE` of the best are trained further. Two candidates with the same
kernel are the same optimum if their evidence differs by less than `ALIKE`."""
MAX_CLOSE = 2
"""The maximum number of candidates that are trained further."""


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


@dataclass(repr=False)
class SearchResult(FitResult[M]):
    """Base class of results. `message` describes the model. `converged` is False if the fit ended early."""

    candidates: list[Candidate] = field(default_factory=list)
    """The candidates that were compared. A kernel has one entry for each optimum and each number of rows."""
    kernel: str = ""
    """The name of the chosen kernel, or a given kernel as text."""
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
    ending: str = ""
    """Why the fit has not converged, or an empty string."""

    def describe(self) -> str:
        """Return the kernels and the stages as tables, followed by `message`."""
        heads = ("evidence", "others", "bound", "held out")
        width = max(20, *(len(one.kernel) for one in self.candidates), 0)
        lines = [f"{'kernel':<{width}} {'rows':>7} {' '.join(f'{head:>10}' for head in heads)}   (nats per row)"]
        for name, rows, *numbers in self.candidates:
            lines += [f"{name:<{width}} {rows:>7} {' '.join(f'{number:>10.4f}' for number in numbers)}"]
        lines += [f"{'stage':<36} {'rows':>9} {'seconds':>9}"]
        lines += [f"{stage.name:<36} {stage.rows:>9} {stage.seconds:>9.1f}" for stage in self.stages]
        return "\n".join([*lines, self.message])


@dataclass(repr=False)
class RegressionResult(SearchResult[GPR | GPRMixture | SVGP | NNGP | VIF]):
    """The result of `fit_regression`.

    If a transform of the targets was chosen, `model` is that of the transformed targets, but all densities and bounds
    are those of the targets in their own units.
    """

    transform: Transform | None = None
    """The transform of the targets that was chosen, or None."""

    def predictor(self) -> Predictor:
        """Return a predictor of the targets in their own units."""
        found = self.model.predictor()
        return replace(found, {"likelihood": with_transform(found.likelihood, self.transform)})  # type: ignore[arg-type]

    @property
    def method(self) -> str:
        """The name of the method: "gpr", "sgpr", "nngp" or "vif"."""
        names = {GPR: "gpr", GPRMixture: "gpr", SVGP: "sgpr", NNGP: "nngp", VIF: "vif"}
        return names[type(self.model)]


def first_model(model: Any) -> Any:
    """Return the first model of an ensemble, or the model itself."""
    return model.models[0] if isinstance(model, Ensemble) else model


@dataclass(repr=False)
class ClassificationResult(SearchResult[Ensemble | TVGP | SVGP | TNNGP]):
    """The result of `fit_classification`. `kernel` names all kernels that the model averages."""

    holds_data: bool = True
    """Whether the model stores the rows, which one with inducing inputs does not."""

    @property
    def method(self) -> str:
        """The name of the method: "tvgp", "tsvgp" or "tnngp"."""
        return {TVGP: "tvgp", SVGP: "tsvgp", TNNGP: "tnngp"}[type(first_model(self.model))]


class Trial(NamedTuple):
    """A candidate: how it is built, its scores, and what they cost."""

    model: Any
    """An exact GP with the hyperparameters, conditioned on a sample of the rows."""
    scores: Candidate
    seconds: float = 0.0
    """The time in seconds for computing the scores; for `held_out`, in seconds per row."""

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return self.scores.kernel

    @property
    def score(self) -> float:
        """The number for comparing candidates: the log density of held-out rows, of left-out rows, or the evidence.

        With fewer than five observations per column, rows predict each other well by chance, so the score is the
        evidence. With more rows, the log density is the better criterion because models are never exactly right.
        """
        if not math.isnan(self.scores.held_out):
            return self.scores.held_out
        few = Data(self.model.X, self.model.y, self.model.weights).has_few_rows
        return self.scores.evidence if few else self.scores.log_density

    def pieces(self) -> dict[str, Any]:
        """Return the hyperparameters and scores to store in a checkpoint."""
        scores = {"evidence": self.scores.evidence, "log": self.scores.log_density, "seconds": self.seconds}
        return pieces_of(self.model, **scores)

    @classmethod
    def of(cls, model: Any, kernel: str, pieces: dict[str, Any]) -> "Trial":
        """Restore a candidate from the pieces of a checkpoint. Raise ValueError unless they fit the model's leaves."""
        found, evidence, density, seconds = restore(model, pieces, "evidence", "log", "seconds")
        return cls(found, Candidate(kernel, model.X.shape[0], evidence, density), seconds)


class Found(NamedTuple):
    """A posterior, and its entries in the result."""

    model: Any
    kernel: str
    kind: str
    bound: float
    """The bound for the posterior's rows, in nats."""
    targets: Data
    """The targets of these rows."""
    log_density: float
    held_out: bool
    """True if the log density is that of the held-out rows."""
    slope: float = 0.0
    """The average log slope of a transform of the targets, over the rows of the log density."""


def pieces_of(model: Any, **numbers: float) -> dict[str, Any]:
    """Return the hyperparameters of a model, and some numbers, to store in a checkpoint."""
    return {name: to_numpy(x) for name, x in leaves(model, "parameter").items()} | numbers


def restore(model: Any, pieces: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """Return the model with the hyperparameters of `pieces_of`, and the numbers with these names.

    Raise ValueError unless the hyperparameters fit the model's leaves.
    """
    expected = {name: tuple(x.shape) for name, x in leaves(model, "parameter").items()}
    if {name: np.shape(x) for name, x in pieces.items()} != expected | dict.fromkeys(names, ()):
        raise ValueError("the file stores the hyperparameters of another model")
    new = {name: asarray_like(pieces[name], model.X) for name in expected}
    return with_leaves(model, new), *(float(pieces[name]) for name in names)


def exceeds(one: Any, other: Any) -> bool:
    """Whether the first numbers exceed the second on average, by more than the standard error of the difference.

    They do not if any number is not finite.
    """
    with np.errstate(invalid="ignore"):
        difference = one - other
        return float(np.mean(difference)) > float(np.std(difference)) / math.sqrt(len(difference))


def sort_trials(found: Iterable[Trial]) -> list[Trial]:
    """Sort candidates by their scores, the best first."""
    return sorted(found, key=lambda one: -one.score)


def best_of_kernels(found: list[Trial]) -> list[Trial]:
    """Return the best candidate of each kernel."""
    kept: dict[str, Trial] = {}
    for one in found:
        kept.setdefault(one.kernel, one)
    return [*kept.values()]


def close_to_best(found: list[Trial]) -> list[Trial]:
    """Return the best candidate, and another one if its score is within `CLOSE` of the best."""
    kept: list[Trial] = []
    for one in found:
        others = (x for x in kept if x.kernel == one.kernel)
        is_other = all(abs(one.scores.evidence - x.scores.evidence) > ALIKE for x in others)
        if is_other and one.score >= found[0].score - CLOSE:
            kept.append(one)
    return kept[:MAX_CLOSE]
