"""Sums over the rows, from which collapsed posteriors follow for any variances and any number of inducing inputs."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.bounds import (
    SplitNoise,
    Statistics,
    bound_from_totals,
    posterior_of,
    profile_of,
    split_logarithms,
    split_weights,
    statistics_of,
)
from agp.chunking import budget, column_spreads, mebibytes
from agp.inducing import Points
from agp.linalg import cholesky, nonnegative
from agp.models import SGPR, SVGP, shared_covariance
from agp.processes import Sparse
from agp.selection._given import Data, finite_average

LOG_2PI = math.log(2.0 * math.pi)
NOISE_SHIFTS = tuple(range(0, 21, 2))
"""The logarithms of factors of the noise variance at which the search for the best factor may start."""
NOISE_FACTOR, MOST_FACTORS = 1.4, 6
"""The factor by which the noise variance is increased, and how often, as long as held-out rows are predicted better."""
SQUARES = 3
"""The memory budget for a pass over the rows, in M x M arrays, unless the default budget is larger."""


class HeldOut(NamedTuple):
    """Features of the held-out rows."""

    A: Array
    """Lu^-1 Kuf [M, H]."""
    kff: Array
    """Prior variances [H]."""
    residual: Array
    """y - h [H, P]."""
    weights: Array | None
    noise: Array | None
    """Known noise variances [H]."""


class KnownNoise(NamedTuple):
    """The known noise variances of rows, for which the sums are valid only at one noise variance of the likelihood."""

    least: float
    """The smallest known noise variance, which adds to that of the likelihood."""
    logs: float
    """The sum of w log(v / b) over the rows that are not held out; see `agp.bounds.SplitNoise`."""
    held_logs: float
    """The same sum over the held-out rows."""


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
    known: KnownNoise | None = None
    """None if no noise is known."""

    def _common(self, noise: float) -> Array:
        """Return the noise variance with which the sums are combined (0-d)."""
        return asarray_like(np.asarray(noise + (0.0 if self.known is None else self.known.least)), self.Lu)

    def profile(self) -> tuple[float, float, float]:
        """Return the kernel factor and noise variance that maximise the bound, and the bound in nats per row."""
        from scipy.optimize import minimize

        noise = float(self.model.likelihood.noise_variance)
        found = profile_of(self.totals, self.observations)
        if self.known is not None:  # the weights of the rows depend on the noise variance
            logs = 0.5 * found.outputs * self.known.logs
            return 1.0, noise, (float(found.bound(1.0, float(self._common(noise)))) - logs) / self.observations
        arrays = {name: getattr(found, name) for name in ("eigenvalues", "squares", "residual", "square")}
        host = found._replace(**{name: np.asarray(to_numpy(x), dtype=np.float64) for name, x in arrays.items()})

        def loss(logs: Any) -> float:
            factor, s = np.exp(np.clip(logs, -20.0, 20.0))
            return -float(host.bound(factor, noise * s)) / self.observations

        # few rows may leave the noise variance near zero, where the bound of more rows is steep
        start = min(((0.0, shift) for shift in NOISE_SHIFTS), key=loss)
        best = minimize(loss, np.asarray(start), method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-9})
        factor, s = np.exp(np.clip(best.x, -20.0, 20.0)).tolist()
        return factor, noise * s, -float(best.fun)

    def log_density(self, factor: float, noise: float, count: int | None = None) -> float:
        """Return the average log density of the held-out rows given `count` inducing inputs; -inf if not finite."""
        M = self.totals.gram.shape[0] if count is None else count
        s = asarray_like(np.asarray(noise), self.Lu)
        sums = scaled_statistics(first_inducing(self.totals, M), factor)
        posterior = posterior_of(self.Lu[:M, :M], sums, self._common(noise))
        B = backend_of(self.Lu)
        xp = B.xp
        A, kff, residual, weights, known = self.features
        A = factor**0.5 * A[:M, :]
        mean = A.mT @ B.solve_triangular(posterior.LB, posterior.c, transpose=True)
        left = B.solve_triangular(posterior.LB, A)
        spread = nonnegative(factor * kff - xp.sum(A * A, axis=0) + xp.sum(left * left, axis=0))[0][:, None] + s
        spread = spread if known is None else spread + known[:, None]
        error = residual - mean
        density = -0.5 * xp.sum(LOG_2PI + xp.log(spread) + error * error / spread, axis=1)
        return finite_average(density, weights)

    def calibrate_noise(self, noise: float) -> float:
        """Return the noise variance, or a multiple of it, whichever predicts the held-out rows best.

        If the errors have heavy tails, the noise variance that maximises the evidence of few rows is too small.
        """
        best = self.log_density(1.0, noise)
        for _ in range(MOST_FACTORS):
            if (density := self.log_density(1.0, NOISE_FACTOR * noise)) <= best:
                break
            best, noise = density, NOISE_FACTOR * noise
        return noise

    def best_setting(self, settings: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], float]:
        """Return the kernel factor and noise variance that predict the held-out rows best, and their log density.

        The settings are compared with each other and with their geometric mean.
        """
        settings = {*settings}
        middle = tuple(float(np.exp(np.mean(np.log(column)))) for column in zip(*settings, strict=True))
        density, setting = max((self.log_density(*at), at) for at in {*settings, middle})
        return setting, density

    def posterior(self, factor: float, noise: float, M: int) -> tuple[SVGP, float]:
        """Return the model with the posterior of all rows, including the held-out ones, and its bound in nats."""
        both = Statistics(*(a + b for a, b in zip(self.totals, self.held, strict=True)))
        totals = scaled_statistics(first_inducing(both, M), factor)
        s, common = asarray_like(np.asarray(noise), self.Lu), self._common(noise)
        found = posterior_of(factor**0.5 * self.Lu[:M, :M], totals, common)
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
        bound = float(bound_from_totals(totals, common, self.observations + self.held_observations)[0])
        logs = 0.0 if self.known is None else self.known.logs + self.known.held_logs
        return sparse, bound - 0.5 * totals.projected.shape[1] * logs


def collapse(hyper: Any, Z: Array, data: Data, held: Data, memory: float | None, *, inside: bool = False) -> Collapse:
    """Compute the sums in one pass over the rows, with the hyperparameters of a model and inducing inputs Z [M, D].

    `inside` is True if `data` includes the held-out rows. `memory` is the budget for working arrays in MiB. The default
    is the usual budget or the memory for three M x M matrices, whichever is larger.
    """
    points = Points(Z, Z_unit=column_spreads(Z))
    noise = None if data.noise is None else data.noise[:, None]
    known_of_rows: dict[str, Any] = {"weights": data.weights, "noise": noise}
    model = SGPR(hyper.kernel, hyper.likelihood, points, data.X, data.y, hyper.mean_function, **known_of_rows)
    M = Z.shape[0]
    memory = max(budget(None, Z), mebibytes(SQUARES * M * M, Z)) if memory is None else memory
    Lu = cholesky(model._inducing_covariance()[0])
    (Kuf, kff, h), _ = model._features(held.X)
    A = backend_of(Lu).solve_triangular(Lu, Kuf)
    features = HeldOut(A, kff, held.y - h, held.weights, held.noise)
    common, excess = SplitNoise.of(model.likelihood.noise_variance, model._data)
    held_excess = None if held.noise is None else held.noise - (common - model.likelihood.noise_variance)
    of_held = statistics_of(*features[:3], split_weights(common, held.weights, held_excess))
    totals = model._statistics(memory=memory)
    rows, observations = data.X.shape[0], data.observations
    known = None
    if excess is not None:
        logs, held_logs = (
            float(split_logarithms(common, *one)) for one in ((data.weights, excess), (held.weights, held_excess))
        )
        least = float(common - model.likelihood.noise_variance)
        known = KnownNoise(least, logs - held_logs if inside else logs, held_logs)
    if inside:
        totals = Statistics(*(a - b for a, b in zip(totals, of_held, strict=True)))
        rows, observations = rows - held.X.shape[0], observations - held.observations
    return Collapse(model, Lu, totals, of_held, rows, observations, held.observations, features, inside, known)


def first_inducing(totals: Statistics, count: int, /) -> Statistics:
    """The statistics of a model with only the first `count` inducing inputs."""
    xp = backend_of(totals.gram).xp
    rest = xp.sum(xp.linalg.diagonal(totals.gram)[count:])
    gram, projected = totals.gram[:count, :count], totals.projected[:count, :]
    return Statistics(gram, projected, totals.residual + rest, totals.square)


def scaled_statistics(totals: Statistics, factor: Array | float, /) -> Statistics:
    """The statistics after multiplying the kernel by a factor, and thus A = Lu^-1 Kuf by its square root."""
    root = factor**0.5
    return Statistics(factor * totals.gram, root * totals.projected, factor * totals.residual, totals.square)
