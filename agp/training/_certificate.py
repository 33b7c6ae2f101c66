"""References for bounds: the log density of the targets without inputs, and upper bounds on the evidence."""

import math
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of, like, to_numpy
from agp.bounds import Batch, expected_row_density
from agp.likelihoods import Likelihood
from agp.models import collapsed_model
from agp.random import generator
from agp.training._begun import observations_of
from agp.training._progress import Score, Tracker

BASELINE_ROWS = 10_000
"""The maximum number of targets in a baseline that is computed iteratively."""
CERTIFIED_ROWS = 200_000
"""The default maximum number of rows in an upper bound."""


def baseline(
    likelihood: Likelihood,
    y: Array,
    /,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> float:
    """Compute the log density per row of the targets y [N, K] under the best constant latent functions.

    For Gaussian noise, the noise variance is the best one too. Other likelihoods keep their parameters. If iterations
    are needed to find the constants, at most 10,000 targets are used.
    """
    B, N = backend_of(y), y.shape[0]
    if offset is None and noise is None:
        held = None if weights is None else backend_of(weights).gather(weights)
        alone = likelihood.log_density_alone(B.gather(y), held)
        if alone is not None:
            return alone
    some = generator(0, 17).choice(N, BASELINE_ROWS, replace=False) if N > BASELINE_ROWS else None
    parts = {"y": y, "weights": weights, "offset": offset, "noise": noise}
    rows = {name: None if x is None else backend_of(x).gather(x, some) for name, x in parts.items()}
    return _best_constant(likelihood, Batch(X=rows["y"], **rows))  # type: ignore[arg-type]


def judge_bounds(tracker: Tracker, model: Any, data: Batch) -> None:
    """Let the progress describe the quality of a model by the bounds of its training."""
    if not tracker.outputs or tracker.score is not None:
        return
    likelihood, B = model.likelihood, backend_of(data.X)
    alone = math.nan if B.is_lazy else baseline(likelihood, data.y, *data.known)
    kind = "fit" if likelihood.quality == "error" and data.y.shape[1] > 1 else likelihood.quality
    tracker.judge_by(Score(kind, alone), observations_of(data))


def _best_constant(likelihood: Likelihood, data: Batch) -> float:
    """Maximise the density over constants and, if rows have known noise, over the logarithm of the trained noise."""
    from scipy.optimize import minimize

    y: Any = data.y
    P, N = likelihood.latents(y.shape[1]), y.shape[0]
    xp = backend_of(y).xp
    zeros = xp.zeros((N, P), **like(y))
    start, unit = _levels(likelihood, y, P)
    of_noise = likelihood.takes_noise and not (data.noise is None and data.offset is None)
    scale = np.mean(unit**2)

    def loss(u: Any) -> tuple[float, Any]:
        noise = float(scale * np.exp(u[P])) if of_noise else 0.0
        here = tree.with_leaves(likelihood, {"noise_variance": noise + 0.0 * zeros[0, 0]}) if of_noise else likelihood
        ell, pullback = expected_row_density(here, zeros + asarray_like(start + unit * u[:P], y), zeros, data)
        bar, mu_bar, _ = pullback(xp.ones_like(ell))
        slope = unit * to_numpy(xp.sum(mu_bar, axis=0)).astype(np.float64)
        if of_noise:
            slope = np.append(slope, noise * float(bar.noise_variance))
        return -float(xp.sum(ell)) / N, -slope / N

    more = [0.0] if of_noise else []
    with np.errstate(all="ignore"):
        found = [
            minimize(loss, np.append(at, more), jac=True, method="L-BFGS-B").fun for at in (np.zeros(P), -start / unit)
        ]
    return -min((float(one) for one in found if np.isfinite(one)), default=math.inf)


def _levels(likelihood: Likelihood, y: Array, P: int) -> tuple[Any, Any]:
    """Return initial values [P] and units [P] of the constants.

    If the targets are observations of the functions, the initial values are their medians, and the units are their
    standard deviations.
    """
    seen = likelihood.observations(y)
    level = likelihood.level(y) if seen is None else None
    if level is not None:
        return to_numpy(level).astype(np.float64), np.ones(P)
    values = np.full((1, P), np.nan) if seen is None else to_numpy(seen).astype(np.float64)
    if values.shape[1] != P or np.isnan(values).any():
        return np.zeros(P), np.ones(P)
    spread = values.std(axis=0)
    return np.median(values, axis=0), np.where(spread > 0.0, spread, 1.0)


class Certificate(NamedTuple):
    """A lower and an upper bound on the evidence of the exact GP, in nats per datum."""

    bound: float
    upper: float
    """The upper bound at these hyperparameters, or NaN if there is none; for a sample of rows, bound plus gap."""
    gap: float
    """Upper bound minus bound. For a sample of rows, the sample's upper bound minus its collapsed bound."""
    rows: int
    """The number of rows that the upper bound uses."""


def certify(model: Any, data: Batch, /, *, rows: int, seed: int, memory: float | None) -> Certificate:
    """Compute a model's bound per datum and, for Gaussian noise, an upper bound, in O(N M^2) operations.

    With more than `rows` rows, the bounds use a random sample of `rows` rows. All rows are used if the model's bound
    requires them.
    """
    N, all_rows = data.X.shape[0], True
    if model.stochastic and rows < N:
        B, index = backend_of(data.X), asarray_like(generator(seed, 14).permutation(N)[:rows], data.X)
        data, all_rows = data.take(lambda x: B.rows_at(x, index)), False
    known = dict(zip(("weights", "offset", "noise"), data.known, strict=True))
    scale = {} if all_rows else {"scale": N / rows}
    bound = float(model.bound(data.X, data.y, memory=memory, **scale, **known)[0]) / N
    collapsed = collapsed_model(model, data)
    if collapsed is None:
        return Certificate(bound, math.nan, math.nan, 0)
    X, y = collapsed.X, collapsed.y
    upper = float(collapsed.upper_bound(X, y, memory=memory)) / X.shape[0]
    if all_rows:
        return Certificate(bound, upper, upper - bound, N)
    gap = upper - float(collapsed.bound(X, y, memory=memory)[0]) / rows  # fewer rows have less evidence per row
    return Certificate(bound, bound + gap, gap, rows)
