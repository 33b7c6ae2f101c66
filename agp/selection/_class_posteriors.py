"""Posteriors of classifiers: fixed points of sites, weights of kernels by left-out rows, and inducing inputs."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.bounds import Batch, expected_row_density
from agp.chunking import row_ranges, rows_within
from agp.linalg import diagonal, identity
from agp.models import SVGP, TNNGP, TVGP
from agp.posteriors import Dual, SiteSystem
from agp.selection._climb import beside
from agp.selection._given import Data
from agp.training import LABEL_NEIGHBOURS
from agp.updates import SiteStep

MOST_FACTORISATIONS, MOST_STEPS = 20, 10
"""The maximum numbers of precisions that are tried, and of steps of the means for each of them."""
TOLERANCE, INNER = 1e-2, 0.3
"""The relative error of the means' fixed point at which the search ends, and the factor of it at which the steps for
fixed precisions end."""
CHANGE, SHARE = 0.05, 0.9
"""The relative error of the precisions at which the search ends, and the share by which their logarithms move."""
MOST_SMALL_STEPS, SMALL_RATE = 80, 0.3
"""The maximum number of small site steps, and their rate."""
UNSETTLED = 10.0
"""The factor of both errors at which a posterior is reported as not converged."""
WORSE, SMALLER = 2.0, 0.5
"""The increase of the error after which steps start again from the best means, and the factor of their length."""
DEPTH, LEAST_SINGULAR = 4, 1e-8
"""The number of earlier steps that are combined, and the smallest singular value of their inner products."""
MEAN_CHANGE = 2e-2
"""With inducing inputs, site steps end when the mean of q(u) changes by less than this fraction of itself."""
SITE_SAMPLES = 64
"""The number of samples for the expectations of site steps for three or more classes."""
LEAST_SHARE = 0.6
"""In site steps, the product of a precision and k(x, x) is at least eps to this power."""
RATE, LEAST_RATE, SLOWER, FASTER = 1.0, 0.3, 0.7, 1.3
"""The first rate and the smallest rate of site steps, and the factors after an increase and a decrease of the error."""
SPREADS = (1.0, 0.5, 0.25)
"""The factors of the predicted variances that are compared for three or more classes."""
PSEUDO_ROWS, EM_STEPS = 0.01, 200
"""The fraction of the rows by which each kernel is preferred, so that no weight is zero, and the number of EM steps."""


class Settled(NamedTuple):
    """A posterior of all rows at its fixed point."""

    name: str
    model: TVGP
    weights: Array
    """K^-1 times the mean of the rows, [N, P]."""
    bound: float
    is_settled: bool
    """Whether the sites are near their fixed point."""
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
        sizes = xp.sqrt(xp.sum(dr * dr, axis=1)) + float(xp.finfo(x.dtype).smallest_normal)
        dx, dr = dx / sizes[:, None], dr / sizes[:, None]
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
    xp = backend_of(K).xp
    problem = Problem(
        K,
        _gradients_of(model, batch, memory),
        float(xp.finfo(K.dtype).eps) ** LEAST_SHARE / xp.max(diagonal(K)),
        is_over,
    )
    prior = xp.zeros_like(model.site_shift)
    start = prior if like is None else like.weights
    precision = problem.precision(prior) if like is None else like.model.site_precision
    found = _accelerate(problem, start, precision)
    if not found.is_near(UNSETTLED) and not is_over():
        found = _step_from_prior(problem, prior)
    system, a, mu, var = found.system, found.weights, found.mu, found.variance
    model = model._with_sites(a + system.precision * mu, system.precision)

    def expected(mu: Array, var: Array, y: Array, weights: Array | None) -> Array:
        return expected_row_density(model.likelihood, mu, var, Batch(y, y, weights=weights))[0]

    values = by_blocks(expected, model.likelihood, memory, mu, var, batch.y, batch.weights)
    bound = float(np.sum(values)) - float(system.divergence(a, mu))
    left_out = model._without_own_site(mu, var, batch.weights)
    return Settled(name, model, a, bound, found.is_near(UNSETTLED), *left_out)


class Problem(NamedTuple):
    """The fixed point of the sites of all rows."""

    K: Array
    gradients: Callable[[Array, Array], tuple[Array, Array]]
    """A function of the means and variances [N, P] of the rows, which returns alpha and beta."""
    least: Array
    """The smallest precision (0-d)."""
    is_over: Callable[[], bool]

    def precision(self, means: Array) -> Array:
        """Return the precisions of the rows for means [N, P] and the variances of the prior."""
        xp = backend_of(means).xp
        return xp.maximum(self.gradients(means, diagonal(self.K)[:, None] + xp.zeros_like(means))[1], self.least)


class Point(NamedTuple):
    """A posterior with its distance from the fixed point."""

    system: SiteSystem
    weights: Array
    """K^-1 times the means, a [N, P]."""
    mu: Array
    variance: Array
    error: float
    """The norm of alpha - a, relative to that of alpha."""
    change: float
    """The norm of beta minus the precisions, relative to that of beta."""

    def is_near(self, factor: float = 1.0) -> bool:
        """Whether the distance is below the tolerances, times a factor."""
        return self.error < factor * TOLERANCE and self.change < factor * CHANGE


def _accelerate(problem: Problem, a: Array, precision: Array) -> Point:
    """Alternate between the fixed point of the means for given precisions, and the precisions at these means."""
    xp = backend_of(a).xp
    count = 0
    while True:
        count += 1
        system = SiteSystem.of(problem.K, precision)
        var = xp.broadcast_to(system.shares / precision, a.shape)
        at = _settle_means(system, a, lambda mu, var=var: problem.gradients(mu, var))
        a, beta = at.weights, xp.maximum(at.beta, problem.least)
        found = Point(system, a, at.mu, var, at.error, _relative_error(precision, beta))
        if found.is_near() or count == MOST_FACTORISATIONS or problem.is_over():
            return found
        precision = xp.exp((1.0 - SHARE) * xp.log(precision) + SHARE * xp.log(beta))


def _step_from_prior(problem: Problem, prior: Array) -> Point:
    """Take small site steps from the prior, which converge where accelerated steps do not, but take longer."""
    xp = backend_of(prior).xp
    precision = problem.precision(prior)
    shift = xp.zeros_like(prior)
    count = 0
    while True:
        count += 1
        system = SiteSystem.of(problem.K, precision)
        a, var = system.weights(shift), xp.broadcast_to(system.shares / precision, prior.shape)
        mu = problem.K @ a
        alpha, beta = problem.gradients(mu, var)
        beta = xp.maximum(beta, problem.least)
        found = Point(system, a, mu, var, _relative_error(a, alpha), _relative_error(precision, beta))
        if found.is_near() or count == MOST_SMALL_STEPS or problem.is_over():
            return found
        shift = shift + SMALL_RATE * (alpha + beta * mu - shift)
        precision = precision + SMALL_RATE * (beta - precision)


def _relative_error(x: Array, target: Array) -> float:
    """Return the norm of x - target [N, P], relative to that of the target."""
    B = backend_of(x)
    return float(B.norm(x - target)) / max(float(B.norm(target)), float(B.xp.finfo(x.dtype).smallest_normal))


class Means(NamedTuple):
    """Means mu = K a of the rows, and the derivatives of the expected log density there."""

    weights: Array
    """a [N, P]."""
    mu: Array
    alpha: Array
    beta: Array
    error: float
    """The norm of alpha - a, relative to that of alpha."""


def _settle_means(system: SiteSystem, a: Array, gradients: Callable[[Array], tuple[Array, Array]]) -> Means:
    """Return the means at the fixed point a = alpha for fixed variances, starting at weights a [N, P].

    If the curvature at the new means exceeds the precisions, a step may increase the error. The search then restarts
    from the best means, with smaller steps.
    """

    def at(a: Array) -> Means:
        mu = system.K @ a
        alpha, beta = gradients(mu)
        return Means(a, mu, alpha, beta, _relative_error(a, alpha))

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


def model_of_rows(kernel: Any, likelihood: Any, data: Data) -> TVGP:
    """Return a model of all rows with this kernel, without sites."""
    parts = {"kernel": beside(kernel, data.X), "likelihood": likelihood, "weights": data.weights}
    return TVGP.from_data(data.X, data.y, **parts, shared_precision=likelihood.latents(1) > 1)


def near_model_of_rows(kernel: Any, likelihood: Any, data: Data) -> TNNGP:
    """Return a model of all rows given their nearest rows, without sites."""
    parts = {"kernel": beside(kernel, data.X), "likelihood": likelihood, "weights": data.weights}
    return TNNGP.from_data(data.X, data.y, neighbours=min(LABEL_NEIGHBOURS, data.X.shape[0]), **parts)


def by_blocks(f: Callable[..., Array], likelihood: Any, memory: float | None, mu: Array, *rows: Array | None) -> Any:
    """Return ``f(mu, *rows)`` [N] on the host, for arrays [N, ...] or None, in blocks of rows that fit into memory."""
    block = rows_within(memory, likelihood.floats_per_row * mu.shape[1], mu)
    parts = [
        to_numpy(f(*(None if x is None else x[start:stop, ...] for x in (mu, *rows))))
        for start, stop in row_ranges(mu.shape[0], block)
    ]
    return np.concatenate(parts).astype(np.float64)


def densities(likelihood: Any, mean: Array, variance: Array, y: Array, *, memory: float | None = None) -> Any:
    """Return the log densities [N] of the labels of rows with these moments, on the host."""
    return by_blocks(likelihood.predictive_log_density, likelihood, memory, mean, variance, y)


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
    mean, step, last = _white_mean(model), RATE, math.inf
    for _ in range(most):
        update = SiteStep(step, memory=memory)
        model = update(model, batch, update.init(model))[0]
        new = _white_mean(model)
        change = float(np.linalg.norm(new - mean)) / (step * max(float(np.linalg.norm(new)), 1e-300))
        mean = new
        if change < MEAN_CHANGE or is_over():
            break
        if last < math.inf:
            step = max(LEAST_RATE, SLOWER * step) if change > last else min(1.0, FASTER * step)
        last = change
    return model


def _white_mean(model: Any) -> Any:
    """Return the mean [M, P] of Lu^-1 u on the host."""
    q = model.process.posterior
    return to_numpy(q.whitened_state(identity(q.precision))[0].white_mean)
