"""Posteriors of classifiers: fixed points of sites, weights of kernels by left-out rows, and inducing inputs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.batch import Batch
from agp.chunking import row_ranges, rows_within
from agp.likelihoods import expected_row_density
from agp.linalg import diagonal, identity
from agp.models import SVGP, TVGP
from agp.posteriors import Dual, SiteSystem
from agp.selection._climb import beside
from agp.selection._rows import Data
from agp.updates import SiteStep

MOST_FACTORISATIONS, MOST_STEPS = 20, 10
"""The maximum numbers of precisions that are tried, and of steps of the means for each of them."""
TOLERANCE, INNER = 1e-3, 0.3
"""The root mean square, over the rows, of the errors of the means' fixed point at which the search ends, and the factor
of it at which the steps for fixed precisions end."""
CHANGE, SHARE = 0.05, 0.9
"""The relative error of the precisions at which the search ends, and the share by which their logarithms move."""
WORSE, SMALLER = 2.0, 0.5
"""The increase of the error after which steps start again from the best means, and the factor of their length."""
DEPTH, LEAST_SINGULAR = 4, 1e-12
"""The number of earlier steps that are combined, and the smallest singular value of their inner products."""
MEAN_CHANGE = 2e-2
"""With inducing inputs, site steps end when the mean of q(u) changes by less than this fraction of itself."""
SITE_SAMPLES = 64
"""The number of samples for the expectations of site steps for three or more classes."""
LEAST_SHARE = 1e-9
"""The smallest product of a precision and k(x, x), in site steps."""
RATE, LEAST_RATE, SLOWER, FASTER = 1.0, 0.3, 0.7, 1.3
"""The first rate and the smallest rate of site steps, and the factors after an increase and a decrease of the error."""
SPREADS = (1.0, 0.5, 0.25)
"""The factors of the predicted variances that are compared for three or more classes."""
PSEUDO_ROWS, EM_STEPS = 0.01, 200
"""The fraction of the rows by which each kernel is preferred, so that no weight is zero, and the number of EM steps."""


class Rate:
    """The rate of site steps, which falls if the error of the fixed point rises."""

    def __init__(self) -> None:
        self.value, self.last = RATE, float("inf")

    def after(self, error: float) -> float:
        """Return the rate of the next step."""
        if np.isfinite(self.last):
            rises = error > self.last
            self.value = max(LEAST_RATE, SLOWER * self.value) if rises else min(1.0, FASTER * self.value)
        self.last = error
        return self.value


class Settled(NamedTuple):
    """A posterior of all rows at its fixed point."""

    name: str
    model: TVGP
    weights: Array
    """K^-1 times the mean of the rows, [N, P]."""
    bound: float
    error: float
    """The root mean square of the errors of the fixed point."""
    mean: Array
    """The mean [N, P] of each row given the other rows."""
    variance: Array
    """The variance [N, P] of each row given the other rows."""


class Extrapolation:
    """Anderson's acceleration of a fixed point x = x + r(x): combine the last steps so that the residual is least.

    Source: Walker & Ni, "Anderson acceleration for fixed-point iterations", SIAM Journal on Numerical Analysis 2011.
    """

    def __init__(self, damping: float = 1.0) -> None:
        self.damping = damping
        self.points: list[Array] = []
        self.residuals: list[Array] = []

    def after(self, x: Array, r: Array) -> Array:
        """Return the next x [N, P], given the residual r at this one."""
        self.points, self.residuals = ([*old[-DEPTH:], new] for old, new in ((self.points, x), (self.residuals, r)))
        if len(self.points) == 1:
            return x + self.damping * r
        xp = backend_of(x).xp
        dx, dr = (
            xp.stack([xp.reshape(b - a, (-1,)) for a, b in pairwise(several)])
            for several in (self.points, self.residuals)
        )
        gram, right = to_numpy(dr @ dr.mT), to_numpy(dr @ xp.reshape(r, (-1,)))
        shares = asarray_like(np.linalg.lstsq(gram, right, rcond=LEAST_SINGULAR)[0], x)
        return x + self.damping * r - xp.reshape(shares @ (dx + self.damping * dr), x.shape)


def settle(
    name: str, model: TVGP, batch: Batch, *, memory: float | None, is_over: Callable[[], bool], like: Settled | None
) -> Settled:
    """Return a posterior whose sites are those of its marginals, or its state when `is_over` returns True.

    For fixed precisions, one factorisation solves the fixed point of the means, a = E[d log p / df] with mu = K a, in
    several steps: a <- (I + diag(lam2) K)^-1 (alpha + lam2 mu). The precisions then follow the marginals. The search
    starts at a similar posterior, if given, or at the prior.
    """
    K, _ = model.kernel(batch.X)
    xp, gradients = backend_of(K).xp, _gradients_of(model, batch, memory)
    least = LEAST_SHARE / xp.max(diagonal(K))
    if like is None:
        a, var = xp.zeros_like(model.site_shift), diagonal(K)[:, None] + xp.zeros_like(model.site_shift)
        precision = xp.maximum(gradients(a, var)[1], least)
    else:
        a, precision = like.weights, like.model.site_precision
    count = 0
    while True:
        system = SiteSystem.of(K, precision)
        var = xp.broadcast_to(system.shares() / precision, a.shape)
        at = _settle_means(system, a, lambda mu, var=var: gradients(mu, var))
        a = at.weights
        change = _root_mean_square(at.beta - precision) / _root_mean_square(at.beta)
        count += 1
        if (at.error < TOLERANCE and change < CHANGE) or count == MOST_FACTORISATIONS or is_over():
            break
        precision = xp.exp((1.0 - SHARE) * xp.log(precision) + SHARE * xp.log(xp.maximum(at.beta, least)))
    mu = at.mu
    model = model._with_sites(a + precision * mu, precision)

    def expected(mu: Array, var: Array, y: Array, weights: Array | None) -> Array:
        return expected_row_density(model.likelihood, mu, var, Batch(y, y, weights=weights))[0]

    values = by_blocks(expected, model.likelihood, mu, var, batch.y, batch.weights)
    bound = float(np.sum(values)) - float(system.divergence(a, mu))
    return Settled(name, model, a, bound, at.error, *model._without_own_site(mu, var, batch.weights))


class Means(NamedTuple):
    """Means mu = K a of the rows, and the derivatives of the expected log density there."""

    weights: Array
    """a [N, P]."""
    mu: Array
    alpha: Array
    beta: Array
    error: float
    """The root mean square of alpha - a."""


def _settle_means(system: SiteSystem, a: Array, gradients: Callable[[Array], tuple[Array, Array]]) -> Means:
    """Return the means at the fixed point a = alpha for fixed variances, starting at weights a [N, P].

    If the curvature at the new means exceeds the precisions, a step may increase the error. The search then restarts
    from the best means, with smaller steps.
    """

    def at(a: Array) -> Means:
        mu = system.K @ a
        alpha, beta = gradients(mu)
        return Means(a, mu, alpha, beta, _root_mean_square(alpha - a))

    steps = Extrapolation()
    best = last = at(a)
    for _ in range(MOST_STEPS):
        if best.error < INNER * TOLERANCE:
            break
        if not last.error <= WORSE * best.error:
            last, steps = best, Extrapolation(SMALLER * steps.damping)
        residual = system.weights(last.alpha + system.precision * last.mu) - last.weights
        last = at(steps.after(last.weights, residual))
        best = last if last.error < best.error else best
    return best


def _gradients_of(model: TVGP, batch: Batch, memory: float | None) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Return a function of mu and var [N, P] that computes alpha and beta, from few samples for several classes."""
    if model.outputs > 1:
        softmax: Any = model.likelihood
        model = tree.replace(model, {"likelihood": replace(softmax, fixed_samples=SITE_SAMPLES)})
    return lambda mu, var: model._gradients_of_sites(mu, var, batch, None, memory)


def _root_mean_square(x: Array) -> float:
    """Return the root of the average over the rows of the squared norm of x [N, P]."""
    xp = backend_of(x).xp
    return float(xp.mean(xp.sum(x * x, axis=1))) ** 0.5


def model_of_rows(kernel: Any, likelihood: Any, data: Data) -> TVGP:
    """Return a model of all rows with this kernel, without sites."""
    parts = {"kernel": beside(kernel, data.X), "likelihood": likelihood, "weights": data.weights}
    return TVGP.from_data(data.X, data.y, **parts, shared_precision=likelihood.latents(1) > 1)


def by_blocks(f: Callable[..., Array], likelihood: Any, mu: Array, *rows: Array | None) -> Any:
    """Return ``f(mu, *rows)`` [N] on the host, for arrays [N, ...] or None, in blocks of rows that fit into memory."""
    block = rows_within(None, likelihood.floats_per_row * mu.shape[1], mu)
    parts = [
        to_numpy(f(*(None if x is None else x[start:stop, ...] for x in (mu, *rows))))
        for start, stop in row_ranges(mu.shape[0], block)
    ]
    return np.concatenate(parts).astype(np.float64)


def densities(likelihood: Any, mean: Array, variance: Array, y: Array) -> Any:
    """Return the log densities [N] of the labels of rows with these moments, on the host."""
    return by_blocks(likelihood.predictive_log_density, likelihood, mean, variance, y)


def stack(log_densities: Any, weights: Any) -> Any:
    """Return the weights [K] that maximise the average log density of the mixture of K densities [N, K], by EM.

    Source: Yao, Vehtari, Simpson & Gelman, "Using stacking to average Bayesian predictive distributions", Bayesian
    Analysis 2018.
    """
    count = log_densities.shape[1]
    p = np.exp(log_densities - log_densities.max(axis=1, keepdims=True))
    rows = np.ones(len(p)) if weights is None else weights
    found = np.full(count, 1.0 / count)
    for _ in range(EM_STEPS if count > 1 else 0):
        share = p * found
        share = rows @ (share / share.sum(axis=1, keepdims=True)) / rows.sum()
        found = (share + PSEUDO_ROWS) / (1.0 + PSEUDO_ROWS * count)
    return found


def combine(weights: Any, moments: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the moments of the average of models with these moments, as in `agp.processes.Averaged`."""
    pairs = list(zip(weights.tolist(), moments, strict=True))
    first, second = (sum((w * x[i] for w, x in pairs[1:]), start=pairs[0][0] * pairs[0][1][i]) for i in (0, 1))
    return first, second


def best_spread(score: Callable[[float], float], several: bool) -> tuple[float, float]:
    """Return the factor of the predicted variances with the best score, and this score.

    For two classes, left-out rows would favour factors that are too small, and the factor is 1. For more classes, the
    variances of independent latent functions are too large.
    """
    found = [(score(spread), spread) for spread in (SPREADS if several else SPREADS[:1])]
    best = max(found, key=lambda pair: pair[0])
    return best[1], best[0]


# -- inducing inputs --------------------------------------------------------------------------------------------------


def sparse_model(kernel: Any, likelihood: Any, some: Data) -> SVGP:
    """Return a model without sites whose inducing inputs are those of the given rows."""
    posterior = partial(Dual.from_prior, tied="white", shared_precision=likelihood.latents(1) > 1)
    parts = {"kernel": beside(kernel, some.X), "likelihood": likelihood, "posterior": posterior}
    return SVGP.from_data(some.X, some.y, Z=some.X, **parts)


def settle_inducing(model: SVGP, batch: Batch, most: int, *, memory: float | None, is_over: Callable[[], bool]) -> SVGP:
    """Repeat site steps until the mean of q(u) hardly changes, at most so often, or until `is_over` returns True."""
    rate, step = Rate(), RATE
    mean = _white_mean(model)
    for _ in range(most):
        update = SiteStep(step, memory=memory)
        model = update(model, batch, update.init(model))[0]
        new = _white_mean(model)
        change = float(np.linalg.norm(new - mean)) / (step * max(float(np.linalg.norm(new)), 1e-300))
        mean = new
        if change < MEAN_CHANGE or is_over():
            break
        step = rate.after(change)
    return model


def _white_mean(model: Any) -> Any:
    """Return the mean [M, P] of Lu^-1 u on the host."""
    q = model.process.posterior
    return to_numpy(q.whitened_state(identity(q.precision))[0].white_mean)


def place_weights(weights: Any, X: Array) -> Array:
    """Return weights [K] in the library, dtype and device of X."""
    return asarray_like(np.asarray(weights), X)
