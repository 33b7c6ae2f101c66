"""Predictive densities against integrals of many panels, from exact latent functions to priors a hundred wide."""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from helpers import JAX, TORCH, as_arrays, log_density_by_nodes
from likelihood_cases import problem_of

from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    NegativeBinomial,
    Poisson,
    StudentT,
)

MEANS = (-30.0, -3.0, 0.0, 0.7, 4.0, 30.0)
VARIANCES = (1e-6, 1e-2, 1.0, 30.0, 1e4)
COUNTS = (0.0, 1.0, 5.0, 300.0)
SIZES = (1e-3, 0.4, 5.0, 2e3)
NUMBERS = (-40.0, 0.0, 0.5, 6.0)
SHARES = (1e-6, 0.2, 0.5, 0.97)


def exp(x):
    return np.exp(np.minimum(x, 700.0))


def log_gamma(shape):
    return lambda y, f: (
        -shape * f - exp(math.log(y) - f) + (shape - 1.0) * math.log(y) - math.lgamma(shape)  # SciPy underflows
    )


def log_counts(dispersion):
    r = 1.0 / dispersion

    def log_density(y, f):
        constant = math.lgamma(y + r) - math.lgamma(r) - math.lgamma(y + 1.0)
        return constant + y * (f - math.log(r)) - (y + r) * np.logaddexp(0.0, f - math.log(r))

    return log_density


def log_share(s, log_cdf):
    def log_density(y, f):
        log_a, log_b = math.log(s) + log_cdf(f), math.log(s) + log_cdf(-f)
        a, b = np.exp(log_a), np.exp(log_b)
        norm = log_a - scipy.special.gammaln(1.0 + a) + log_b - scipy.special.gammaln(1.0 + b) + math.lgamma(s)
        return norm + (a - 1.0) * math.log(y) + (b - 1.0) * math.log1p(-y)

    return log_density


PROBLEMS = {
    "poisson": (Poisson(), lambda y, f: y * f - exp(f) - math.lgamma(y + 1.0), COUNTS),
    "poisson-exposure": (
        Poisson(exposure=50.0),
        lambda y, f: y * (f + math.log(50.0)) - exp(f + math.log(50.0)) - math.lgamma(y + 1.0),
        COUNTS,
    ),
    "gamma": (Gamma(1.7), log_gamma(1.7), SIZES),
    "gamma-rough": (Gamma(0.1), log_gamma(0.1), SIZES),
    "gamma-sharp": (Gamma(300.0), log_gamma(300.0), SIZES),
    "exponential": (Exponential(), log_gamma(1.0), SIZES),
    "negative-binomial": (NegativeBinomial(0.5), log_counts(0.5), COUNTS),
    "negative-binomial-rough": (NegativeBinomial(40.0), log_counts(40.0), COUNTS),
    "negative-binomial-sharp": (NegativeBinomial(1e-3), log_counts(1e-3), COUNTS),
    "beta": (Beta(10.0), log_share(10.0, scipy.special.log_ndtr), SHARES),
    "beta-sharp": (Beta(1e3), log_share(1e3, scipy.special.log_ndtr), SHARES),
    "beta-logit": (Beta(10.0, link="logit"), log_share(10.0, scipy.special.log_expit), SHARES),
    "beta-logit-rough": (Beta(0.5, link="logit"), log_share(0.5, scipy.special.log_expit), SHARES),
    "bernoulli-logit": (Bernoulli(link="logit"), lambda y, f: scipy.special.log_expit((2.0 * y - 1.0) * f), (0.0, 1.0)),
    "bernoulli-logit-squash": (
        Bernoulli(link="logit", squash=1e-3),
        lambda y, f: np.log(0.998 * scipy.special.expit((2.0 * y - 1.0) * f) + 1e-3),
        (0.0, 1.0),
    ),
    "student-t": (StudentT(0.4), lambda y, f: scipy.stats.t.logpdf(y, 3.0, f, 0.4), NUMBERS),
    "student-t-heavy": (
        StudentT(0.01, degrees_of_freedom=0.5),
        lambda y, f: scipy.stats.t.logpdf(y, 0.5, f, 0.01),
        NUMBERS,
    ),
    "student-t-light": (
        StudentT(0.4, degrees_of_freedom=60.0),
        lambda y, f: scipy.stats.t.logpdf(y, 60.0, f, 0.4),
        NUMBERS,
    ),
}
"""Likelihoods, log p(y | f) by other formulas, and targets."""

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def places_of(y):
    """Where log p(y | f) may bend: at the target and the logarithms and links of it."""
    with np.errstate(all="ignore"):
        found = [y, np.log(max(y, 1.0)), np.log(abs(y)), scipy.special.logit(y), scipy.special.ndtri(y), 0.0]
    return [x for x in found if np.isfinite(x)]


def integrated(log_density, mu, var, y):
    """The same integral by two thousand panels: even ones over the prior, and ones that grow about all that bends."""
    s = math.sqrt(var)
    grid = mu + s * np.linspace(-60.0, 60.0, 1201)
    places = [mu, *places_of(y)]
    coarse = np.concatenate([grid, *(p + d * np.geomspace(1e-8, 1e3, 300) for p in places for d in (-1.0, 1.0))])
    # and about the highest point of all these
    peak = coarse[np.argmax(log_density(y, coarse) - 0.5 * ((coarse - mu) / s) ** 2)]
    around = [peak + d * np.geomspace(1e-9, max(1.0, 60.0 * s), 400) for d in (-1.0, 1.0)]
    low, high = min(peak, *places) - 60.0 * s, max(peak, *places) + 60.0 * s
    edges = np.unique(np.clip(np.concatenate([coarse, *around, [low, high]]), low, high))
    middle, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
    f = middle[:, None] + half[:, None] * NODES
    terms = log_density(y, f) - 0.5 * ((f - mu) / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi))
    return scipy.special.logsumexp(terms + np.log(WEIGHTS * half[:, None]))


def grid_of(targets):
    return np.array(list(itertools.product(MEANS, VARIANCES, targets))).T[..., None]


@pytest.mark.long
@pytest.mark.parametrize("name", PROBLEMS)
def test_predictive_densities_are_integrals(name):
    likelihood, log_density, targets = PROBLEMS[name]
    mu, var, y = grid_of(targets)
    found = as_arrays(likelihood).predictive_log_density(mu, var, y)
    expected = np.array([integrated(log_density, *row) for row in np.concatenate([mu, var, y], axis=1)])
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-6)


def test_targets_far_from_the_prior_have_the_densities_of_integrals():
    # panels need the curvature at the peak of the product, where both ends of F matter
    likelihood, log_density, _ = PROBLEMS["beta"]
    found = as_arrays(likelihood).predictive_log_density(*(np.array([[x]]) for x in (300.0, 30.0, 1e-6)))
    np.testing.assert_allclose(found, integrated(log_density, 300.0, 30.0, 1e-6), rtol=1e-9)


def test_precise_shares_far_from_the_prior_have_the_densities_of_integrals():
    log_density = log_share(1e3, scipy.special.log_expit)
    found = as_arrays(Beta(1e3, link="logit")).predictive_log_density(*(np.array([[x]]) for x in (-3.0, 0.01, 0.97)))
    np.testing.assert_allclose(found, integrated(log_density, -3.0, 0.01, 0.97), rtol=1e-8)


@pytest.mark.parametrize(("mu", "var", "y"), [(300.0, 1.0, 0.2), (-300.0, 1.0, 0.8), (60.0, 0.1, 0.2)])
def test_the_higher_of_two_peaks_may_be_the_one_near_the_prior(mu, var, y):
    # between the peaks log p(y | f) falls steeply, and beyond only like the logarithm of the link
    likelihood, log_density, _ = PROBLEMS["beta-sharp"]
    found = as_arrays(likelihood).predictive_log_density(*(np.array([[x]]) for x in (mu, var, y)))
    f = np.linspace(-310.0, 310.0, 62_001)
    terms = log_density(y, f) - 0.5 * (f - mu) ** 2 / var - 0.5 * math.log(2.0 * math.pi * var)
    np.testing.assert_allclose(found[0], scipy.special.logsumexp(terms) + math.log(f[1] - f[0]), rtol=1e-9)


DIFFERENTIABLE = [
    "bernoulli-logit",
    "poisson",
    "gamma",
    "negative-binomial",
    "beta",
    "student-t",
    "latent-noise-in-units",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_predictive_densities_have_the_gradients_of_integrals(name, torch_place):
    # the panels are constants of differentiation; differences move them
    import torch

    here, there = problem_of(name, TORCH), problem_of(name)
    mu, var = (x.requires_grad_() for x in (here.mu, here.var))
    total = torch.sum(here.likelihood.predictive_log_density(mu, var, here.y))
    slopes = [TORCH.numpy(x) for x in torch.autograd.grad(total, [mu, var])]
    h = 1e-5
    for k, slope in enumerate(slopes):
        for row, column in itertools.product(*map(range, slope.shape)):
            ends = []
            for step in (h, -h):
                moments = [there.mu.copy(), there.var.copy()]
                moments[k][row, column] += step
                ends.append(np.sum(there.likelihood.predictive_log_density(*moments, there.y)))
            np.testing.assert_allclose(slope[row, column], (ends[0] - ends[1]) / (2.0 * h), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["poisson", "student-t"])
def test_predictive_densities_compile_and_differentiate_in_jax(name):
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    problem = problem_of(name, JAX, rows=2)

    def total(mu, var):
        return jax.numpy.sum(problem.likelihood.predictive_log_density(mu, var, problem.y))

    value, slopes = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(problem.mu, problem.var)
    host = problem_of(name, rows=2)
    found = np.sum(host.likelihood.predictive_log_density(host.mu, host.var, host.y))
    np.testing.assert_allclose(float(value), found, rtol=1e-10)
    assert all(np.isfinite(JAX.numpy(x)).all() for x in slopes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poisson", "student-t"])
def test_one_rule_about_the_mean_is_not_enough(name):
    # what the panels are for: peers' twenty nodes, which this grid shows to be far off
    likelihood, log_density, targets = PROBLEMS[name]
    mu, var, y = grid_of(targets)
    found = as_arrays(likelihood).predictive_log_density(mu, var, y)
    rows = zip(mu[:, 0], var[:, 0], y[:, 0], strict=True)
    nodes = np.array([log_density_by_nodes(functools.partial(log_density, y), m, v) for m, v, y in rows])
    assert np.abs(nodes - found).max() > 0.5
    # but where the prior is narrow, and near the target, they are right
    narrow = (var[:, 0] < 1e-4) & (np.abs(mu[:, 0]) < 5.0)
    np.testing.assert_allclose(found[narrow], nodes[narrow], rtol=1e-6, atol=1e-6)
