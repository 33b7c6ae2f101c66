"""Training of hyperparameters with the exact evidence of sampled rows."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, to_numpy
from agp.errors import NonFiniteError, NotPositiveDefiniteError, RepairWarning
from agp.kernels import Kernel
from agp.models import GPR
from agp.priors import LogNormal, Relative, log_prior
from agp.selection._rows import Data, average
from agp.selection._watch import Watch
from agp.starts import starting_kernels
from agp.training import Gain, fit_lbfgs

SHORT, LONG = 20, 40
"""The numbers of L-BFGS iterations from each start, and of further iterations from the best starts."""
NUM_KEPT_STARTS = 2
"""The number of starts that are trained further."""
MIN_GAIN = 1e-4
"""L-BFGS stops when 20 iterations gain less than this many nats per row."""
MIN_NOISE = 1e-4
"""Training on more rows starts with at least this noise variance, as a fraction of the targets' variance."""
ROWS_PER_COLUMN = 5
"""Lengthscales have a prior if there are fewer rows per column than this."""
LENGTHSCALE = Relative(LogNormal(2.66, 3.0**0.5))
"""The prior for lengthscales, in units of the column's spread times the square root of the number of columns.

Its mode is 0.7, and 95 % of its mass lies between 0.5 and 430. In the source, inputs fill an interval of length 1,
whose spread is 0.29.

Source: Hvarfner, Hellsten & Nardi, "Vanilla Bayesian optimization performs great in high dimensions", ICML 2024.
"""


class Tuned(NamedTuple):
    """An exact GP with trained hyperparameters, conditioned on a sample of the rows, and its scores in nats per row."""

    model: GPR
    evidence: float
    """The log evidence plus the log prior of the hyperparameters."""
    log_density: float
    """The average log density of a row given the other rows."""

    @property
    def score(self) -> float:
        """The score for comparing models of the same sample: the log density, or the evidence if there are few rows.

        With fewer than five rows per column, rows predict each other well by chance, so the score is the evidence. With
        more rows, the log density is the better criterion because models are never exactly right.
        """
        data = Data(self.model.X, self.model.y, self.model.weights)
        few = data.observations < ROWS_PER_COLUMN * data.X.shape[1]
        return self.evidence if few else self.log_density

    def pieces(self) -> dict[str, Any]:
        """Return the hyperparameters and scores to store in a checkpoint."""
        leaves = tree.leaves(self.model, "parameter")
        return {name: to_numpy(x) for name, x in leaves.items()} | {"evidence": self.evidence, "log": self.log_density}

    @classmethod
    def of(cls, model: Any, pieces: dict[str, Any]) -> "Tuned":
        """Restore the model from the pieces of a checkpoint. Raise ValueError unless they fit the model's leaves."""
        expected = {name: tuple(x.shape) for name, x in tree.leaves(model, "parameter").items()}
        if {name: np.shape(x) for name, x in pieces.items()} != expected | {"evidence": (), "log": ()}:
            msg = "the file stores the hyperparameters of another model"
            raise ValueError(msg)
        leaves = {name: asarray_like(x, model.X) for name, x in pieces.items() if name not in ("evidence", "log")}
        return cls(tree.with_leaves(model, leaves), float(pieces["evidence"]), float(pieces["log"]))


def default_priors(rows: float, kernel: Kernel, columns: int) -> dict[str, Any]:
    """Return a dictionary of priors for a kernel's lengthscales, which is empty for at least five rows per column."""
    some = any(name.endswith("lengthscale") for name in (*tree.missing(kernel), *tree.leaves(kernel)))
    return {"kernel.*lengthscale": LENGTHSCALE} if some and rows < ROWS_PER_COLUMN * columns else {}


def search_hyperparameters(
    kernel: Kernel,
    data: Data,
    parts: dict[str, Any],
    watch: Watch,
    least_gain: float = MIN_GAIN,
    among: Callable[[], Array] | None = None,
) -> Tuned:
    """Train exact GPs from several starts, train the best two further, and return the best.

    Training maximises the evidence; `Tuned.score` compares the results. Lengthscales that the kernel lacks start at
    several values. `parts` contains the other arguments of `GPR.from_data`. L-BFGS stops when 20 iterations gain less
    than `least_gain` nats per row, or when `watch` ends the training. If a column is constant in `data`, its spread is
    computed from the rows that `among` returns.
    """
    found = starting_kernels(kernel, *data.repeat_rows(), parts["likelihood"], among=among)
    starts = [start for _, start in found] or [kernel]
    begun = [train_exact(exact_gp(data, kernel=start, **parts), data, SHORT, watch, least_gain) for start in starts]
    best = sorted(begun, key=lambda one: -one.score)[:NUM_KEPT_STARTS]
    further = [train_exact(one.model, data, LONG, watch, least_gain) for one in best]
    return max([*further, best[0]], key=lambda one: one.score)


def exact_gp(data: Data, **parts: Any) -> GPR:
    """Build a model with `GPR.from_data` from the rows, their weights and their known noise variances."""
    return GPR.from_data(data.X, data.y, weights=data.weights, noise=data.noise, **parts)


def on_rows(model: Any, data: Data, priors: Any, kernel: Kernel | None = None) -> GPR:
    """Build an exact GP on other rows with a model's hyperparameters; `kernel` replaces the model's kernel.

    A noise variance near zero is increased, because the other rows may be noisy.
    """
    parts = {"likelihood": model.likelihood, "mean_function": model.mean_function, "priors": priors}
    found = exact_gp(data, kernel=model.kernel if kernel is None else kernel, **parts)
    least = MIN_NOISE * float(data.moments()[1].mean())
    noise = float(found.likelihood.noise_variance)
    if noise == 0.0:  # all noise is known
        return found
    return tree.with_leaves(found, {"likelihood.noise_variance": asarray_like(np.asarray(max(noise, least)), data.X)})


def train_exact(model: Any, data: Data, iterations: int, watch: Watch, least_gain: float) -> Tuned:
    """Train a model by L-BFGS, for a limited number of iterations; the evidence is -inf if the bound is not finite."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RepairWarning)  # of trial points and candidates; the result is checked
            limit = 0 if watch.stage_over else iterations
            callbacks = [watch, Gain(least_gain * data.observations)]
            found = fit_lbfgs(model, data.X, data.y, max_iterations=limit, callbacks=callbacks)
            return Tuned(found.model, found.bounds[0] / data.observations, log_density_of(found.model))
    except (NonFiniteError, NotPositiveDefiniteError):
        return Tuned(model, -float("inf"), -float("inf"))


def evaluate_on(model: GPR, data: Data) -> Tuned:
    """Compute the scores of a model without further training."""
    evidence = float(model.bound(data.X, data.y)[0] + log_prior(model)[0]) / data.observations
    return Tuned(model, evidence if np.isfinite(evidence) else -float("inf"), log_density_of(model))


def log_density_of(model: GPR) -> float:
    """Return the average log density of a row given the other rows, or -inf if the average is not finite."""
    mean = float(average(model.leave_one_out(), model.weights))
    return mean if np.isfinite(mean) else -float("inf")
