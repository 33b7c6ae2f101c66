"""What a model has to exceed: the log density of the targets without the inputs."""

import math
from typing import Any

import numpy as np

from agp.backend import Array, backend_of, like, placed, to_numpy
from agp.likelihoods import Likelihood
from agp.random import generator

__all__ = ["baseline"]

ROWS = 10_000
"""Of how many targets the best constant is sought at the most, where that takes iterations."""


def baseline(likelihood: Likelihood, y: Array, /, weights: Array | None = None) -> float:
    """The log density per row of targets y [N, K] where each latent function is the best constant.

    Gaussian noise has the variance of the targets, and its rows may have weights [N]. Other likelihoods are taken with
    the parameters that they have.
    """
    B = backend_of(y)
    held = () if weights is None else (backend_of(weights).gathered(weights),)
    alone = likelihood.log_density_alone(B.gathered(y), *held)
    if alone is not None:
        return alone
    some = generator(0, 17).choice(y.shape[0], ROWS, replace=False) if y.shape[0] > ROWS else None
    return _constant(likelihood, B.gathered(y, some))


def _constant(likelihood: Likelihood, y: Array) -> float:
    from scipy.optimize import minimize

    P, N = likelihood.latents(y.shape[1]), y.shape[0]
    xp = backend_of(y).xp
    zeros = xp.zeros((N, P), **like(y))

    start, unit = _levels(likelihood, y, P)

    def loss(u: Any) -> tuple[float, Any]:
        ell, pullback = likelihood.expected_log_density(zeros + placed(start + unit * u, y), zeros, y)
        _, mu_bar, _ = pullback(xp.ones_like(ell))
        slope = unit * to_numpy(xp.sum(mu_bar, axis=0)).astype(np.float64)
        return -float(xp.sum(ell)) / N, -slope / N

    with np.errstate(all="ignore"):
        found = [minimize(loss, at, jac=True, method="L-BFGS-B").fun for at in (np.zeros(P), -start / unit)]
    return -min((float(one) for one in found if np.isfinite(one)), default=math.inf)


def _levels(likelihood: Likelihood, y: Array, P: int) -> tuple[Any, Any]:
    """Where constants [P] may start, and their units: of what observes the latent functions; else their level and 1."""
    seen = likelihood.observations(y)
    level = likelihood.level(y) if seen is None else None
    if level is not None:
        return to_numpy(level).astype(np.float64), np.ones(P)
    values = np.full((1, P), np.nan) if seen is None else to_numpy(seen).astype(np.float64)
    if values.shape[1] != P or np.isnan(values).any():
        return np.zeros(P), np.ones(P)
    spread = values.std(axis=0)
    return np.median(values, axis=0), np.where(spread > 0.0, spread, 1.0)
