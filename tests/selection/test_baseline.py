"""What a model has to exceed: the log density of the targets at the best constants, against a search of its own."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from helpers import as_arrays, assert_close

import agp
from agp.training import baseline

N = 40


def targets(kind, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "real": lambda: rng.normal(2.0, 3.0, size=(N, 1)),
        "heavy": lambda: 5.0 + rng.standard_t(3, size=(N, 1)),
        "binary": lambda: (rng.uniform(size=(N, 1)) < 0.3) * 1.0,
        "counts": lambda: rng.poisson(4.0, size=(N, 1)) * 1.0,
        "positive": lambda: rng.gamma(2.0, 3.0, size=(N, 1)),
        "share": lambda: rng.beta(2.0, 5.0, size=(N, 1)),
        "classes": lambda: rng.integers(0, 3, size=(N, 1)) * 1.0,
    }[kind]()


LIKELIHOODS = {
    "bernoulli": (lambda: agp.Bernoulli(), "binary"),
    "logit": (lambda: agp.Bernoulli(link="logit"), "binary"),
    "poisson": (lambda: agp.Poisson(), "counts"),
    "negative-binomial": (lambda: agp.NegativeBinomial(2.0), "counts"),
    "exponential": (lambda: agp.Exponential(), "positive"),
    "gamma": (lambda: agp.Gamma(2.0), "positive"),
    "beta": (lambda: agp.Beta(3.0), "share"),
    "student": (lambda: agp.StudentT(1.0), "heavy"),
    "latent-noise": (lambda: agp.LatentNoiseGaussian(), "real"),
    "ordinal": (lambda: agp.Ordinal(3, (-1.0, 1.0)), "classes"),
    "softmax": (lambda: agp.Softmax(3), "classes"),
    "robustmax": (lambda: agp.RobustMax(3), "classes"),
}
FLAT = {"robustmax"}
"""Whose density has no slope almost everywhere at the start: there the best constant is that of the start."""


def best_constant(likelihood, y):
    """By a search without gradients, from several starts."""
    P = likelihood.latents(y.shape[1])

    def loss(f):
        ell, _ = likelihood.expected_log_density(np.zeros((N, P)) + f, np.zeros((N, P)), y)
        return -float(np.mean(ell))

    starts = [np.full(P, level) for level in (-1.0, 0.0, 1.0, 3.0)]
    options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}
    return -min(scipy.optimize.minimize(loss, s, method="Nelder-Mead", options=options).fun for s in starts)


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_best_constant(name):
    build, kind = LIKELIHOODS[name]
    likelihood, y = as_arrays(build()), targets(kind)
    found, expected = baseline(likelihood, y), best_constant(likelihood, y)
    if name in FLAT:
        assert found <= expected + 1e-9
    else:
        assert abs(found - expected) <= 1e-6


@pytest.mark.parametrize("name", ["bernoulli", "softmax", "poisson"])
def test_frequencies(name):
    build, kind = LIKELIHOODS[name]
    y = targets(kind)
    values, counts = np.unique(y, return_counts=True)
    shares = counts / N
    entropy = {"poisson": lambda: float(np.mean(scipy.stats.poisson.logpmf(y, y.mean())))}
    expected = entropy.get(name, lambda: float(np.sum(shares * np.log(shares))))()
    assert_close(baseline(as_arrays(build()), y), expected, 1e-4 if name == "bernoulli" else 1e-6)


@pytest.mark.parametrize("outputs", [1, 3])
def test_gaussian_noise_has_the_variance_of_the_targets(outputs, backend):
    y = np.random.default_rng(0).normal(2.0, 3.0, size=(N, outputs))
    expected = float(np.mean(np.sum(scipy.stats.norm.logpdf(y, y.mean(axis=0), y.std(axis=0)), axis=1)))
    assert_close(baseline(agp.Gaussian(), backend.array(y)), expected, 1e-12)
    assert_close(baseline(agp.Gaussian(0.1), backend.array(y, "float32")), expected, 1e-6)


def test_targets_that_are_missing_have_no_say():
    y = targets("real")
    y[::4] = np.nan
    seen = y[~np.isnan(y)]
    expected = float(np.sum(scipy.stats.norm.logpdf(seen, seen.mean(), seen.std()))) / N
    assert_close(baseline(agp.Gaussian(missing=True), y), expected, 1e-12)


def test_known_noise_is_part_of_the_variance(backend):
    y, noise = targets("real"), np.random.default_rng(1).uniform(0.1, 30.0, size=(N, 1))

    def loss(at):
        return -float(np.mean(scipy.stats.norm.logpdf(y, at[0], np.sqrt(noise + np.exp(at[1])))))

    expected = -min(scipy.optimize.minimize(loss, (2.0, s), method="Nelder-Mead").fun for s in (-3.0, 2.0))
    assert_close(baseline(agp.Gaussian(), backend.array(y), noise=backend.array(noise)), expected, 1e-6)


def test_offsets_are_added_to_the_constants():
    counts, exposure = targets("counts"), np.random.default_rng(1).uniform(0.5, 20.0, size=(N, 1))
    rate = counts.sum() / exposure.sum()
    expected = float(np.mean(scipy.stats.poisson.logpmf(counts, rate * exposure)))
    assert_close(baseline(agp.Poisson(), counts, offset=np.log(exposure)), expected, 1e-6)
    y, offset = targets("real"), 3.0 * exposure
    assert_close(baseline(agp.Gaussian(), y, offset=offset), baseline(agp.Gaussian(), y - offset), 1e-6)


@pytest.mark.parametrize("name", ["gaussian", "poisson", "bernoulli"])
def test_whole_weights_are_repeated_rows(name):
    build, kind = ({"gaussian": (agp.Gaussian, "real")} | LIKELIHOODS)[name]
    y, count = targets(kind), np.random.default_rng(1).integers(0, 4, size=N)
    found = baseline(as_arrays(build()), y, weights=1.0 * count)
    again = baseline(as_arrays(build()), np.repeat(y, count, axis=0))
    assert_close(found * N, again * count.sum(), 1e-6)


def test_constant_targets():
    assert np.isfinite(baseline(agp.Gaussian(), np.full((N, 2), 3.0)))


def test_far_targets():
    y = targets("real")
    assert abs(baseline(agp.Gaussian(), 3e6 + y) - baseline(agp.Gaussian(), y)) < 1e-8


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("level", [0.0, 1e3, 1e6])
def test_far_targets_with_heavy_tails(level, scale):
    y = targets("heavy")
    found = baseline(as_arrays(agp.StudentT(scale)), scale * (y + level))
    assert abs(found + np.log(scale) - baseline(as_arrays(agp.StudentT(1.0)), y)) < 1e-5


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_noise_that_varies(scale):
    y = scale * targets("real")
    likelihood = agp.LatentNoiseGaussian(unit=np.asarray(scale))
    assert_close(baseline(likelihood, y), baseline(agp.Gaussian(), y), 1e-6)  # the best constants are the same


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_large_and_small_targets(scale):
    y = scale * targets("positive")
    expected = float(np.mean(scipy.stats.gamma.logpdf(y, 2.0, scale=y.mean() / 2.0)))
    assert_close(baseline(as_arrays(agp.Gamma(2.0)), y), expected, 1e-6)
    counts = np.round(np.abs(y) + 1.0)
    expected = float(np.mean(scipy.stats.poisson.logpmf(counts, counts.mean())))
    assert_close(baseline(agp.Poisson(), counts), expected, 1e-6)


@pytest.mark.parametrize("name", ["bernoulli", "poisson", "student", "softmax"])
def test_on_every_library(name, backend):
    build, kind = LIKELIHOODS[name]
    y = targets(kind)
    likelihood = as_arrays(build())
    assert_close(baseline(backend.move(likelihood), backend.array(y)), baseline(likelihood, y), 1e-9)


def test_all_targets_count_where_noise_is_gaussian():
    y = np.random.default_rng(0).normal(size=(30_000, 1))
    expected = float(np.mean(scipy.stats.norm.logpdf(y, y.mean(), y.std())))
    assert_close(baseline(agp.Gaussian(), y), expected, 1e-12)
    assert abs(baseline(as_arrays(agp.StudentT(1.0, 1e6)), y) - expected) < 0.02  # a sample


def test_lazy_rows():
    da = pytest.importorskip("dask.array")
    y = targets("real")
    assert_close(baseline(agp.Gaussian(), da.from_array(y, chunks=7)), baseline(agp.Gaussian(), y), 1e-12)
