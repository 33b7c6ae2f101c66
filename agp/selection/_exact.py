"""Hyperparameters from the exact evidence of a sample of the rows."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, placed, to_numpy
from agp.errors import NonFiniteError, NotPositiveDefiniteError, RepairWarning
from agp.kernels import Kernel
from agp.models import GPR
from agp.priors import LogNormal, Relative, log_prior
from agp.selection._rows import Data, average
from agp.selection._watch import Watch
from agp.starts import starting_kernels
from agp.training import Gain, fit_lbfgs

__all__ = [
    "LONG",
    "Tuned",
    "default_priors",
    "exact_gp",
    "judged_on",
    "log_density_of",
    "on_rows",
    "searched",
    "trained",
]

SHORT, LONG = 20, 40
"""Iterations of L-BFGS from each start, and further ones from the best of them."""
KEPT = 2
"""How many starts are trained further."""
LEAST_GAIN = 1e-4
"""In nats per row: what 20 iterations must gain."""
LEAST_NOISE = 1e-4
"""The least noise at which training on more rows starts, in shares of the variance of the targets."""
ROWS_PER_COLUMN = 5
"""With fewer rows lengthscales have a prior."""
LENGTHSCALE = Relative(LogNormal(2.66, 3.0**0.5))
"""In spreads of the column times the root of the number of columns; the mode is 0.7, 95 % lie between 0.5 and 430.

Source: Hvarfner, Hellsten & Nardi, "Vanilla Bayesian optimization performs great in high dimensions", ICML 2024, for
inputs that fill an interval of length 1, whose spread is 0.29.
"""


class Tuned(NamedTuple):
    """The exact GP of a sample at trained hyperparameters; densities in nats per row."""

    model: GPR
    evidence: float
    """With the priors of the hyperparameters."""
    log_density: float
    """Of a row given the others, on average."""

    @property
    def observations(self) -> float:
        """The number of observations: the sum of the weights."""
        return Data(self.model.X, self.model.y, self.model.weights).observations

    @property
    def score(self) -> float:
        """The number by which models of the same sample are compared: how well each row is predicted from the others.

        With as many hyperparameters as rows it is the evidence, since rows then predict each other by chance. Elsewhere
        the evidence of a model that is not quite right is the worse criterion.
        """
        few = self.observations < ROWS_PER_COLUMN * self.model.X.shape[1]
        return self.evidence if few else self.log_density

    def pieces(self) -> dict[str, Any]:
        """The numbers for a checkpoint."""
        leaves = tree.leaves(self.model, "parameter")
        return {name: to_numpy(x) for name, x in leaves.items()} | {"evidence": self.evidence, "log": self.log_density}

    @classmethod
    def of(cls, model: Any, pieces: dict[str, Any]) -> "Tuned":
        """A model with the numbers of a checkpoint. ValueError if these are of another model."""
        expected = {name: tuple(x.shape) for name, x in tree.leaves(model, "parameter").items()}
        if {name: np.shape(x) for name, x in pieces.items()} != expected | {"evidence": (), "log": ()}:
            msg = "it holds numbers of another model"
            raise ValueError(msg)
        leaves = {name: placed(x, model.X) for name, x in pieces.items() if name not in ("evidence", "log")}
        return cls(tree.with_leaves(model, leaves), float(pieces["evidence"]), float(pieces["log"]))


def default_priors(rows: float, kernel: Kernel, columns: int) -> dict[str, Any]:
    """Priors of the lengthscales of a kernel, if there are few rows for each."""
    some = any(name.endswith("lengthscale") for name in (*tree.missing(kernel), *tree.leaves(kernel)))
    return {"kernel.*lengthscale": LENGTHSCALE} if some and rows < ROWS_PER_COLUMN * columns else {}


def searched(
    kernel: Kernel,
    data: Data,
    parts: dict[str, Any],
    watch: Watch,
    least_gain: float = LEAST_GAIN,
    among: Callable[[], Array] | None = None,
) -> Tuned:
    """The best exact GP from several starts: a few iterations of L-BFGS from each, more from the best two.

    Maximises the evidence, and compares by `Tuned.score`. Missing lengthscales of the kernel start at several values;
    `parts` are the other arguments of `GPR.from_data`. L-BFGS ends when 20 iterations gain less than `least_gain` nats
    per row, or when the watch ends it. `among` returns rows for the spread of columns that are constant in the data.
    """
    found = starting_kernels(kernel, *data.repeated(), parts["likelihood"], among=among)
    models = [exact_gp(data, kernel=start, **parts) for start in [start for _, start in found] or [kernel]]
    begun = [trained(model, data, SHORT, watch, least_gain) for model in models]
    best = sorted(begun, key=lambda one: -one.score)[:KEPT]
    further = [trained(one.model, data, LONG, watch, least_gain) for one in best]
    return max([*further, best[0]], key=lambda one: one.score)


def exact_gp(data: Data, **parts: Any) -> GPR:
    """`GPR.from_data` of the rows with their weights."""
    return GPR.from_data(data.X, data.y, weights=data.weights, **parts)


def on_rows(model: Any, data: Data, priors: Any, kernel: Kernel | None = None) -> GPR:
    """The exact GP of other rows with the hyperparameters of a model, or with another kernel.

    Vanishing noise is raised, since more rows may show some.
    """
    parts = {"likelihood": model.likelihood, "mean_function": model.mean_function, "priors": priors}
    found = exact_gp(data, kernel=model.kernel if kernel is None else kernel, **parts)
    least = LEAST_NOISE * float(data.moments()[1].mean())
    noise = float(found.likelihood.noise_variance)
    return tree.with_leaves(found, {"likelihood.noise_variance": placed(np.asarray(max(noise, least)), data.X)})


def trained(model: Any, data: Data, iterations: int, watch: Watch, least_gain: float) -> Tuned:
    """The model after at most so many iterations of L-BFGS; the evidence is -inf if the bound is not finite."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RepairWarning)  # of trial points; the result is checked
            limit = 0 if watch.stage_over else iterations
            callbacks = [watch, Gain(least_gain * data.observations)]
            found = fit_lbfgs(model, data.X, data.y, max_iterations=limit, callbacks=callbacks)
        return Tuned(found.model, found.bounds[0] / data.observations, log_density_of(found.model))
    except (NonFiniteError, NotPositiveDefiniteError):
        return Tuned(model, -float("inf"), -float("inf"))


def judged_on(model: GPR, data: Data) -> Tuned:
    """The model without further training."""
    evidence = float(model.bound(data.X, data.y)[0] + log_prior(model)[0]) / data.observations
    return Tuned(model, evidence if np.isfinite(evidence) else -float("inf"), log_density_of(model))


def log_density_of(model: GPR) -> float:
    """Of a row given the others, on average; -inf where rounding leaves no number."""
    mean = float(average(model.leave_one_out(), model.weights))
    return mean if np.isfinite(mean) else -float("inf")
