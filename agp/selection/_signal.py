"""Whether the inputs predict the targets, and a model that predicts their mean if not."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of
from agp.likelihoods import Likelihood
from agp.models import GPR
from agp.random import generator
from agp.selection._given import Data
from agp.training import baseline

CHANCE, HELD_OUT_CHANCE = 2.0, 5.0
"""A mixture has learned something if it predicts left-out rows better than the mean of the others does, by more than
`CHANCE` nats in total, and a collapsed posterior if it predicts held-out rows better by more than `HELD_OUT_CHANCE`. A
linear part is added to a kernel if its gain exceeds the number of columns by `CHANCE`."""
CLEAR = 5.0
"""A gain in evidence is clear if it exceeds the number of columns by this many nats. Targets that are pure noise gained
at most two thirds of this in simulations with 30 to 1,000 rows and 1 to 50 columns."""
PERMUTATIONS, PERMUTED_STEPS = 19, 10
"""The number of permutations of the targets with which an unclear gain is compared, and the steps of training."""
NO_SIGNAL_VARIANCE = 1e-6
"""The latent function's variance if the inputs are uninformative, as a fraction of the targets' variance."""


def beats_permutations(train: Callable[[Any], float], y: Any, seed: int) -> bool:
    """Whether the evidence of targets y [N, P] on the host exceeds that of all `PERMUTATIONS` permutations of the rows.

    `train` trains a model for targets and returns its evidence. The comparison ends with the first larger evidence, so
    pure noise rarely needs more than a few permutations.
    """
    rng, found = generator(seed, 23), train(y)
    return all(train(y[rng.permutation(len(y))]) < found for _ in range(PERMUTATIONS))


def predicts_left_out(log_density: float, seen: Data) -> bool:
    """Whether a model with this log density of left-out rows predicts them better than the other rows' mean does."""
    return seen.observations * (log_density - left_out_baseline(seen)) > CHANCE


def left_out_baseline(data: Data) -> float:
    """Return the average log density of a row given the others, if all rows are normal with unknown mean and variance.

    This is the density of a Student-t distribution with N - 2 degrees of freedom. With fewer than three rows, it is
    infinite, because nothing can be learned.
    """
    y, weights = data.targets_on_host()
    w = np.ones(len(y)) if weights is None else weights
    rows, rest = len(y), np.sum(w) - w
    if rows < 3:
        return math.inf
    mean = (w @ y - w[:, None] * y) / rest[:, None]
    centred = y - np.average(y, axis=0, weights=w)
    # sums of squares around the mean of the others: S - w e^2 W / (W - w), with deviations e from the mean of all
    squares = w @ centred**2 - (w * np.sum(w) / rest)[:, None] * centred**2
    degrees = rows - 2
    scale = np.sqrt(np.maximum(squares, np.finfo(np.float64).tiny) / degrees * (rows / np.sum(w)) * (rows / (rows - 1)))
    z = (y - mean) / scale
    constant = math.lgamma(0.5 * (degrees + 1)) - math.lgamma(0.5 * degrees) - 0.5 * math.log(degrees * math.pi)
    logs = constant - np.log(scale) - 0.5 * (degrees + 1) * np.log1p(z * z / degrees)
    return float(np.average(np.sum(logs, axis=1), weights=w))


def predicts(log_density: float, seen: Data, left_out: Data) -> bool:
    """Whether a model predicts the held-out rows better than the mean and variance of the other rows do."""
    mean, variance = seen.moments()
    held, weights = left_out.targets_on_host()
    variance = np.maximum(variance, np.finfo(np.float64).tiny)
    squares = (held - mean) ** 2 / variance
    alone = -0.5 * float(np.average(np.sum(np.log(2.0 * np.pi * variance) + squares, axis=1), weights=weights))
    return left_out.observations * (log_density - alone) > HELD_OUT_CHANCE


def why_nothing_learned(every: Data) -> str:
    """Return why a model of these rows has learned nothing, and what to do about it."""
    if every.X.shape[0] < 3:
        return (
            "two rows cannot tell whether the inputs predict the targets; add rows, or do not rely on the predictions"
        )
    return (
        "the inputs do not predict the targets: rows that were held back are predicted no better than by the mean of "
        "the targets; check that inputs and targets belong together, or add rows or columns"
    )


def constant_model(started: GPR, X: Array, one: Data, data: Data) -> GPR | None:
    """Return a model that predicts the mean and the variance of the targets; None if its mean function is no constant.

    Parameters
    ----------
    started
        A model with the parts of the result and the initial hyperparameters.
    X
        A sample of the inputs.
    one
        One row, which the model stores.
    data
        All rows.
    """
    if "mean_function.value" not in tree.leaves(started):
        return None
    parts = {"likelihood": started.likelihood, "mean_function": started.mean_function}
    level, variances = data.moments()
    spread = float(np.mean(variances)) or 1.0
    kernel = started.kernel
    xp = backend_of(X).xp
    average, least = float(xp.mean(kernel.diag(X)[0])), 2.0 * float(xp.finfo(X.dtype).smallest_normal)
    if average > 0.0:  # else the function is zero at the data
        kernel = kernel.scale_by(asarray_like(np.asarray(max(NO_SIGNAL_VARIANCE * spread, least) / average), X))
    known = 0.0 if data.noise is None else float(backend_of(data.noise).xp.mean(data.noise))
    noise = max(spread - known, NO_SIGNAL_VARIANCE * spread)  # without the known noise
    leaves = {
        "likelihood.noise_variance": asarray_like(np.asarray(noise), X),
        "mean_function.value": asarray_like(level, X),
    }
    return tree.with_leaves(GPR.from_data(one.X, one.y, kernel=kernel, **parts), leaves)


def baseline_of(likelihood: Likelihood, targets: Data) -> float:
    """Return the log density per observation of a normal distribution with the mean and variance of the targets."""
    noise = None if targets.noise is None else targets.noise[:, None]
    per_row = baseline(likelihood, targets.y, targets.weights, None, noise)
    return per_row if targets.weights is None else per_row * targets.y.shape[0] / targets.observations
