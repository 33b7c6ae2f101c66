"""Sums over the rows, from which collapsed posteriors follow for any variances and any number of inducing inputs."""

import math
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.bounds import (
    Statistics,
    bound_from_totals,
    first_inducing,
    posterior_of,
    profile_of,
    scaled_statistics,
    statistics_of,
)
from agp.chunking import budget, mebibytes
from agp.inducing import Points
from agp.linalg import cholesky, nonnegative
from agp.models import SGPR, SVGP, shared_covariance
from agp.processes import Sparse
from agp.scaling import column_spreads
from agp.selection._rows import Data, average

LOG_2PI = math.log(2.0 * math.pi)
SQUARES = 3
"""The memory budget for a pass over the rows, in M x M arrays, unless the default budget is larger."""


class HeldOut(NamedTuple):
    """Features of the held-out rows: A = Lu^-1 Kuf [M, H], prior variances kff [H], y - h [H, P] and weights [H]."""

    A: Array
    kff: Array
    residual: Array
    weights: Array | None


class Collapse(NamedTuple):
    """Sums over the rows.

    The sums determine the collapsed posterior for any number of inducing inputs, variance and noise variance.
    """

    model: SGPR
    """The model with the hyperparameters and the inducing inputs."""
    Lu: Array
    """The Cholesky factor of Kuu [M, M]."""
    totals: Statistics
    """The sums over the rows that are not held out."""
    held: Statistics
    """The sums over the held-out rows."""
    rows: int
    """The number of rows that are not held out."""
    observations: float
    """The number of observations in the rows that are not held out."""
    held_observations: float
    """The number of observations in the held-out rows."""
    features: HeldOut
    inside: bool
    """True if the model has all rows, including the held-out ones."""

    def profile(self) -> tuple[float, float, float]:
        """Return the kernel factor and noise variance that maximise the bound, and the bound in nats per row."""
        from scipy.optimize import minimize

        found = profile_of(self.totals, self.observations)
        arrays = {name: getattr(found, name) for name in ("eigenvalues", "squares", "residual", "square")}
        host = found._replace(**{name: np.asarray(to_numpy(x), dtype=np.float64) for name, x in arrays.items()})
        noise = float(self.model.likelihood.noise_variance)

        def loss(logs: Any) -> float:
            factor, s = np.exp(np.clip(logs, -20.0, 20.0))
            return -float(host.bound(factor, noise * s)) / self.observations

        best = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-9})
        factor, s = np.exp(np.clip(best.x, -20.0, 20.0)).tolist()
        return factor, noise * s, -float(best.fun)

    def log_density(self, factor: float, noise: float, count: int | None = None) -> float:
        """Return the average log density of the held-out rows given `count` inducing inputs; -inf if not finite."""
        M = self.totals.gram.shape[0] if count is None else count
        s = asarray_like(np.asarray(noise), self.Lu)
        posterior = posterior_of(self.Lu[:M, :M], scaled_statistics(first_inducing(self.totals, M), factor), s)
        B = backend_of(self.Lu)
        xp = B.xp
        A, kff, residual, weights = self.features
        A = factor**0.5 * A[:M, :]
        mean = A.mT @ B.solve_triangular(posterior.LB, posterior.c, transpose=True)
        left = B.solve_triangular(posterior.LB, A)
        spread = nonnegative(factor * kff - xp.sum(A * A, axis=0) + xp.sum(left * left, axis=0))[0][:, None] + s
        error = residual - mean
        density = -0.5 * xp.sum(LOG_2PI + xp.log(spread) + error * error / spread, axis=1)
        mean = float(average(density, weights))
        return mean if math.isfinite(mean) else -math.inf

    def posterior(self, factor: float, noise: float, M: int) -> tuple[SVGP, float]:
        """Return the model with the posterior of all rows, including the held-out ones, and its bound in nats."""
        both = Statistics(*(a + b for a, b in zip(self.totals, self.held, strict=True)))
        totals = scaled_statistics(first_inducing(both, M), factor)
        s = asarray_like(np.asarray(noise), self.Lu)
        found = posterior_of(factor**0.5 * self.Lu[:M, :M], totals, s)
        mean = backend_of(self.Lu).solve_triangular(found.LB, found.c, transpose=True)
        model = tree.replace(
            self.model,
            {
                "kernel": self.model.kernel.scale_by(asarray_like(np.asarray(factor), self.Lu)),
                "inducing": tree.with_leaves(self.model.inducing, {"Z": tree.leaves(self.model.inducing)["Z"][:M, :]}),
                "likelihood": tree.with_leaves(self.model.likelihood, {"noise_variance": s}),
            },
        )
        sparse = SVGP(Sparse.of(model, shared_covariance(mean, found.LB)), model.likelihood, ())
        return sparse, float(bound_from_totals(totals, s, self.observations + self.held_observations)[0])


def collapse(hyper: Any, Z: Array, data: Data, held: Data, memory: float | None, *, inside: bool) -> Collapse:
    """Compute the sums in one pass over the rows, with the hyperparameters of a model and inducing inputs Z [M, D].

    `inside` is True if `data` includes the held-out rows. `memory` is the budget for working arrays in MiB. The default
    is the usual budget or the memory for three M x M matrices, whichever is larger.
    """
    points = Points(Z, Z_unit=column_spreads(Z))
    model = SGPR(hyper.kernel, hyper.likelihood, points, data.X, data.y, hyper.mean_function, weights=data.weights)
    M = Z.shape[0]
    memory = max(budget(None, Z), mebibytes(SQUARES * M * M, Z)) if memory is None else memory
    Lu = cholesky(model._inducing_covariance()[0])
    (Kuf, kff, h), _ = model._features(held.X)
    A = backend_of(Lu).solve_triangular(Lu, Kuf)
    features = HeldOut(A, kff, held.y - h, held.weights)
    of_held = statistics_of(*features)
    totals = model._statistics(memory=memory)
    rows, observations = data.X.shape[0], data.observations
    if inside:
        totals = Statistics(*(a - b for a, b in zip(totals, of_held, strict=True)))
        rows, observations = rows - held.X.shape[0], observations - held.observations
    return Collapse(model, Lu, totals, of_held, rows, observations, held.observations, features, inside)
