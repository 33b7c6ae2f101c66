"""Quantiles of observations: against adaptive integrals, on simulated data, of mixtures, and at extremes."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from helpers import JAX, as_arrays

from agp.distributions._quantiles import Mixture, _root, beta_tail, marginal_mixture, mixture_quantiles, normal_quantile
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    Likelihood,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Prediction,
    RobustMax,
    Softmax,
    StudentT,
)
from agp.repairs import collect_reports

EDGES = (-0.6, 0.3, 1.4)
LEVELS = (1e-6, 0.05, 0.5, 0.8, 1.0 - 1e-6)


def negative_binomial(dispersion, m):
    return scipy.stats.nbinom(1.0 / dispersion, 1.0 / (1.0 + dispersion * m))


def beta(s, cdf):
    return lambda f: scipy.stats.beta(s * cdf(f), s * cdf(-f))


class Ordered:
    """Categories as SciPy has distributions: what `Ordinal` and `Bernoulli` are."""

    def __init__(self, tops):
        self.tops = np.stack(tops)

    def cdf(self, y):
        whole = np.clip(np.floor(y), -1.0, len(self.tops)).astype(int)
        padded = np.concatenate([0.0 * self.tops[:1], self.tops, 0.0 * self.tops[:1] + 1.0])
        return np.take_along_axis(padded, np.broadcast_to(whole + 1, padded[:1].shape), axis=0)[0]

    def rvs(self, random_state):
        return 1.0 * np.sum(random_state.uniform(size=self.tops.shape[1:]) > self.tops, axis=0)


class Case(NamedTuple):
    """A likelihood, and p(y | f) by SciPy."""

    likelihood: Likelihood
    distribution: Callable[[Any], Any]
    discrete: bool = False


def flipped(squash, cdf):
    return lambda f: Ordered([1.0 - (squash + (1.0 - 2.0 * squash) * cdf(f))])


CASES = {
    "gaussian": Case(Gaussian(0.2), lambda f: scipy.stats.norm(f, math.sqrt(0.2))),
    "gaussian-missing": Case(Gaussian(0.2, missing=True), lambda f: scipy.stats.norm(f, math.sqrt(0.2))),
    "student-t": Case(StudentT(0.4), lambda f: scipy.stats.t(3.0, f, 0.4)),
    "student-t-heavy": Case(StudentT(0.01, degrees_of_freedom=0.5), lambda f: scipy.stats.t(0.5, f, 0.01)),
    "student-t-sharp": Case(StudentT(1e-5), lambda f: scipy.stats.t(3.0, f, 1e-5)),
    "gamma": Case(Gamma(1.7), lambda f: scipy.stats.gamma(1.7, scale=np.exp(f))),
    "gamma-rough": Case(Gamma(0.1), lambda f: scipy.stats.gamma(0.1, scale=np.exp(f))),
    "gamma-sharp": Case(Gamma(300.0), lambda f: scipy.stats.gamma(300.0, scale=np.exp(f))),
    "exponential": Case(Exponential(), lambda f: scipy.stats.expon(scale=np.exp(f))),
    "beta": Case(Beta(10.0), beta(10.0, scipy.special.ndtr)),
    "beta-logit": Case(Beta(10.0, link="logit"), beta(10.0, scipy.special.expit)),
    "beta-rough": Case(Beta(0.5, link="logit"), beta(0.5, scipy.special.expit)),
    "poisson": Case(Poisson(), lambda f: scipy.stats.poisson(np.exp(f)), discrete=True),
    "poisson-exposure": Case(Poisson(exposure=1e3), lambda f: scipy.stats.poisson(1e3 * np.exp(f)), discrete=True),
    "negative-binomial": Case(NegativeBinomial(0.5), lambda f: negative_binomial(0.5, np.exp(f)), discrete=True),
    "negative-binomial-rough": Case(
        NegativeBinomial(5.0, exposure=20.0), lambda f: negative_binomial(5.0, 20.0 * np.exp(f)), discrete=True
    ),
    "bernoulli": Case(Bernoulli(), flipped(0.0, scipy.special.ndtr), discrete=True),
    "bernoulli-squash": Case(Bernoulli(squash=0.1), flipped(0.1, scipy.special.ndtr), discrete=True),
    "bernoulli-logit": Case(Bernoulli(link="logit"), flipped(0.0, scipy.special.expit), discrete=True),
    "ordinal": Case(Ordinal(4, EDGES), lambda f: Ordered([scipy.special.ndtr(e - f) for e in EDGES]), discrete=True),
}
CONTINUOUS = [name for name, case in CASES.items() if not case.discrete]
DISCRETE = [name for name, case in CASES.items() if case.discrete]


def cdf_of_mixture(distribution, y, mu, var):
    """P(Y <= y) by adaptive integration over f, in pieces of a twentieth of a standard deviation."""
    s = math.sqrt(var)
    if s == 0.0:
        return float(np.squeeze(distribution(np.array([mu])).cdf(y)))

    def integrand(t):
        return float(np.squeeze(distribution(np.array([mu + s * t])).cdf(y))) * math.exp(-0.5 * t * t)

    points = np.linspace(-8.0, 8.0, 17)
    # and where the noise is narrow, about the place that is typical of y
    near = [(x - mu) / s for x in places_of(y) if abs(x - mu) < 8.0 * s]
    points = np.unique([*points, *(p + d for p in near for d in (-0.3, -0.03, -3e-3, 0.0, 3e-3, 0.03, 0.3))])
    pieces = itertools.pairwise(points)
    total = sum(scipy.integrate.quad(integrand, *ends, epsabs=1e-13, epsrel=1e-9)[0] for ends in pieces)
    return total / math.sqrt(2.0 * math.pi)


def places_of(y):
    """Latent values of which y may be typical, of the likelihoods here."""
    with np.errstate(all="ignore"):
        found = [y, np.log(y), np.log(y / 1e3), np.log(y / 300.0), scipy.special.logit(y), scipy.special.ndtri(y)]
    return [float(x) for x in found if np.isfinite(x)]


def quantiles_of(likelihood, mu, var, levels, **settings):
    """Quantiles [Q] for one datum."""
    found = as_arrays(likelihood).predictive_quantiles(np.array([[mu]]), np.array([[var]]), levels, **settings)
    return np.asarray(found)[:, 0, 0]


# -- they are quantiles -----------------------------------------------------------------------------------------------

MOMENTS = [(0.4, 0.3), (-1.5, 6.0)]


@pytest.mark.long
@pytest.mark.parametrize(("mu", "var"), MOMENTS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_distribution_function_at_a_quantile_is_its_level(name, mu, var):
    case = CASES[name]
    levels = (1e-3, 0.05, 0.5, 0.975)
    for level, y in zip(levels, quantiles_of(case.likelihood, mu, var, levels), strict=True):
        found = cdf_of_mixture(case.distribution, y, mu, var)
        if y == np.finfo(np.float64).smallest_normal:  # the level is reached below all numbers,
            assert found >= level
        elif y == 1.0 - 2.0**-53:  # or above all of them that are less than 1
            assert found <= level
        else:
            np.testing.assert_allclose(found, level, rtol=1e-6, err_msg=f"{name} at {level}")


@pytest.mark.long
@pytest.mark.parametrize(("mu", "var"), MOMENTS)
@pytest.mark.parametrize("name", DISCRETE)
def test_a_whole_quantile_is_the_smallest_that_reaches_its_level(name, mu, var):
    case = CASES[name]
    levels = (1e-3, 0.05, 0.5, 0.8, 0.975)
    for level, y in zip(levels, quantiles_of(case.likelihood, mu, var, levels), strict=True):
        assert y == round(y)
        assert cdf_of_mixture(case.distribution, y, mu, var) >= level * (1.0 - 1e-9)
        if y > 0.0:
            assert cdf_of_mixture(case.distribution, y - 1.0, mu, var) < level


@pytest.mark.slow
def test_latent_noise_has_the_quantiles_of_its_own_mixture():
    likelihood = as_arrays(LatentNoiseGaussian(unit=1.4))
    mu, var = np.array([[0.3, -0.8], [2.0, 0.5]]), np.array([[0.2, 0.9], [0.0, 3.0]])
    levels = (1e-3, 0.05, 0.5, 0.975)
    found = likelihood.predictive_quantiles(mu, var, levels)
    assert found.shape == (4, 2, 1)
    for n, k in itertools.product(range(2), range(4)):

        def integrand(t, n=n, k=k):
            noise = 1.4 * math.exp((mu[n, 1] + math.sqrt(var[n, 1]) * t) / 1.4)
            score = (found[k, n, 0] - mu[n, 0]) / math.hypot(noise, math.sqrt(var[n, 0]))
            return scipy.special.ndtr(score) * scipy.stats.norm.pdf(t)

        pieces = itertools.pairwise(np.linspace(-9.0, 9.0, 19))
        total = sum(scipy.integrate.quad(integrand, *ends, epsabs=1e-13)[0] for ends in pieces)
        np.testing.assert_allclose(total, levels[k], rtol=1e-6)


# -- they hold what they promise --------------------------------------------------------------------------------------


def rows_of(rng, rows):
    return rng.normal(0.5, 1.0, (rows, 1)), rng.uniform(0.05, 2.0, (rows, 1))


def check_coverage(y, lower, upper, discrete, rows):
    """Nine tenths inside, a twentieth on each side; of whole numbers at least, and no more than the level on a side."""
    error = 3.0 * math.sqrt(0.05 * 0.95 / rows)
    below, above = np.mean(y < lower), np.mean(y > upper)
    assert below <= 0.05 + error
    assert above <= 0.05 + error
    if not discrete:
        assert below >= 0.05 - error
        assert above >= 0.05 - error


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_intervals_hold_the_observations_that_they_promise(name):
    case, rows = CASES[name], 2000
    rng = np.random.default_rng(11)
    mu, var = rows_of(rng, rows)
    y = case.distribution(rng.normal(mu, np.sqrt(var))).rvs(random_state=rng)
    if "beta" in name:  # SciPy's shares may be 0 or 1
        y = np.clip(y, np.finfo(np.float64).smallest_normal, 1.0 - 2.0**-53)
    lower, upper = as_arrays(case.likelihood).predictive_quantiles(mu, var, (0.05, 0.95))
    assert lower.shape == y.shape
    # and many of those next to 1 are the same number
    check_coverage(y, lower, upper, case.discrete or name in ("beta", "beta-rough"), rows)


@pytest.mark.long
def test_intervals_of_latent_noise_hold_the_observations_that_they_promise():
    rows, rng = 4000, np.random.default_rng(12)
    mu, var = (np.concatenate(both, axis=1) for both in zip(rows_of(rng, rows), rows_of(rng, rows), strict=True))
    f = rng.normal(mu, np.sqrt(var))
    y = f[:, :1] + np.exp(f[:, 1:]) * rng.standard_normal((rows, 1))
    lower, upper = as_arrays(LatentNoiseGaussian()).predictive_quantiles(mu, var, (0.05, 0.95))
    check_coverage(y, lower, upper, False, rows)


# -- samples and columns ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["gaussian", "student-t", "beta", "gamma"])
def test_samples_are_a_mixture(name):
    case = CASES[name]
    mu, var = np.array([-2.0, 0.3, 1.5]), np.array([0.1, 0.02, 0.7])
    found = as_arrays(case.likelihood).predictive_quantiles(mu[:, None], var[:, None], (0.05, 0.6), samples=3)
    assert found.shape == (2, 1, 1)
    for level, y in zip((0.05, 0.6), found[:, 0, 0], strict=True):
        parts = [cdf_of_mixture(case.distribution, y, m, v) for m, v in zip(mu, var, strict=True)]
        np.testing.assert_allclose(np.mean(parts), level, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["poisson", "negative-binomial", "bernoulli", "bernoulli-logit", "ordinal"])
def test_samples_of_whole_numbers_are_a_mixture(name):
    case = CASES[name]
    mu, var = np.array([-1.0, 0.3, 1.0]), np.array([0.1, 0.02, 0.3])
    levels = (0.05, 0.35, 0.6, 0.9)
    found = as_arrays(case.likelihood).predictive_quantiles(mu[:, None], var[:, None], levels, samples=3)
    for level, y in zip(levels, found[:, 0, 0], strict=True):
        at, before = (
            np.mean([cdf_of_mixture(case.distribution, z, m, v) for m, v in zip(mu, var, strict=True)])
            for z in (y, y - 1.0)
        )
        assert at >= level > before


@pytest.mark.parametrize("name", CASES)
def test_equal_samples_are_one(name):
    likelihood = as_arrays(CASES[name].likelihood)
    mu, var = rows_of(np.random.default_rng(3), 4)
    one = likelihood.predictive_quantiles(mu, var, (0.1, 0.7))
    both = likelihood.predictive_quantiles(np.tile(mu, (2, 1)), np.tile(var, (2, 1)), (0.1, 0.7), samples=2)
    np.testing.assert_allclose(both, one, rtol=1e-9)


def test_samples_of_rows_stand_sample_after_sample():
    likelihood = as_arrays(StudentT(0.4))
    mu, var = np.array([[0.0], [10.0], [1.0], [11.0]]), np.full((4, 1), 0.1)
    found = likelihood.predictive_quantiles(mu, var, (0.5,), samples=2)
    np.testing.assert_allclose(found[0, :, 0], [0.5, 10.5], rtol=1e-9)


@pytest.mark.parametrize(
    ("by_output", "alone"),
    [
        (Gaussian((0.1, 2.0)), [Gaussian(0.1), Gaussian(2.0)]),
        (StudentT((0.1, 2.0)), [StudentT(0.1), StudentT(2.0)]),
        (LatentNoiseGaussian(unit=(0.5, 2.0)), [LatentNoiseGaussian(unit=0.5), LatentNoiseGaussian(unit=2.0)]),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Likelihood) else "",
)
@pytest.mark.parametrize("samples", [1, 2])
def test_outputs_have_the_quantiles_of_their_own_parameters(by_output, alone, samples):
    rng = np.random.default_rng(5)
    P = as_arrays(by_output).latents(2)
    mu, var = rng.normal(size=(6, P)), rng.uniform(0.1, 1.0, (6, P))
    found = as_arrays(by_output).predictive_quantiles(mu, var, (0.1, 0.5, 0.9), samples=samples)
    assert found.shape == (3, 6 // samples, 2)
    for k, one in enumerate(alone):
        here = as_arrays(one).predictive_quantiles(mu[:, k::2], var[:, k::2], (0.1, 0.5, 0.9), samples=samples)
        np.testing.assert_allclose(found[..., k : k + 1], here, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("samples", [1, 2])
def test_rows_have_the_quantiles_of_their_own_noise(samples, monkeypatch):
    monkeypatch.setattr("agp.distributions._quantiles.VALUES_PER_CHUNK", 1)  # rows are searched one after another
    mu, var = rows_of(np.random.default_rng(3), 6)
    noise = np.linspace(0.1, 3.0, 6 // samples)[:, None]
    at_rows = as_arrays(Gaussian(0.2)).with_noise(noise)[0]
    found = at_rows.predictive_quantiles(mu, var, (0.1, 0.9), samples=samples)
    for n, known in enumerate(noise[:, 0]):
        alone, rows = as_arrays(Gaussian(0.2 + known)), slice(n, None, len(noise))
        one = alone.predictive_quantiles(mu[rows], var[rows], (0.1, 0.9), samples=samples)
        np.testing.assert_allclose(found[:, n], one[:, 0], rtol=1e-9)


def test_rows_are_searched_in_blocks(monkeypatch):
    mu, var = rows_of(np.random.default_rng(3), 7)
    whole = Poisson().predictive_quantiles(mu, var, (0.2, 0.9))
    monkeypatch.setattr("agp.distributions._quantiles.VALUES_PER_CHUNK", 1)
    np.testing.assert_array_equal(Poisson().predictive_quantiles(mu, var, (0.2, 0.9)), whole)


# -- the search -------------------------------------------------------------------------------------------------------

ONE = np.zeros((1, 1, 1))
"""The marginals of one row, for mixtures that do not depend on them."""


def test_a_search_takes_few_evaluations():
    evaluations = []

    def tail(v, upper):
        evaluations.append(v)
        return np.exp(-np.exp(v)) if upper else -np.expm1(-np.exp(v))

    def exponential(mu, var):
        return Mixture(tail, np.exp, mu[0] - 0.5, mu[0] + 1.3)

    levels = (1e-6, 0.05, 0.3, 0.5, 0.7, 0.95, 1.0 - 1e-6)
    found = mixture_quantiles(exponential, ONE, ONE, levels)
    np.testing.assert_allclose(found[:, 0, 0], scipy.stats.expon.ppf(levels), rtol=1e-12)
    assert len(evaluations) <= 9 * len(levels)


def test_a_search_for_a_step_halves_the_interval():
    low, high = np.zeros(1), np.ones(1)
    with np.errstate(all="ignore"):
        below, above, _ = _root(lambda x: np.where(x < 0.3, -1.0, 1.0), low, high, -high, high)
    assert below <= 0.3 <= above
    np.testing.assert_allclose([below, above], 0.3, rtol=1e-12)


@pytest.mark.parametrize("level", [2.0**-6, 0.25, 0.75, 1.0 - 2.0**-6])
def test_whole_quantiles_are_exact_where_rounding_exceeds_one(level):
    # the search ends within several whole numbers of the quantile
    count = 2.0**48

    def tail(v, upper):
        share = np.clip((v + 1.0) / count, 0.0, 1.0)
        return 1.0 - share if upper else share

    def uniform(mu, var):
        return Mixture(tail, lambda v: v, mu[0] + 0.5 * count, mu[0] + 0.25 * count, (-1.0, count), lambda y: y)

    assert mixture_quantiles(uniform, ONE, ONE, (level,))[0, 0, 0] == level * count - 1.0


def test_large_counts_with_dispersion_need_no_more_nodes_than_small_ones():
    model, nodes = as_arrays(NegativeBinomial(0.5)).observation_model(), []

    def tail(v, f, upper):
        nodes.append(f.size)
        return model.tail(v, f, upper)

    mixture = marginal_mixture(model._replace(tail=tail), ONE + 1.0, ONE + 0.3)
    for count in (5.0, 1e12):
        mixture.tail(model.place(np.array([[count]])), False)
    assert nodes[1] == nodes[0]


@pytest.mark.parametrize("x", [1e-3, 0.5, 2.0])
def test_a_share_near_zero_with_an_enormous_parameter_has_the_tail_of_a_gamma_variable(x):
    b = np.array([1e250])
    expected = scipy.stats.gamma(2.0).cdf(x)
    np.testing.assert_allclose(beta_tail(2.0, b, x / b, np.ones(1), False), expected, rtol=1e-12)


def test_the_median_of_a_normal_variable_is_zero_without_a_sign():
    assert str(normal_quantile(0.5)) == "0.0"


@pytest.mark.parametrize("v", [-2.0, 0.0, 1.5])
@pytest.mark.parametrize("link", ["probit", "logit"])
def test_the_tail_of_shares_bends_within_a_standard_deviation(link, v):
    # for large s the tail is nearly that of a normal variable, as a function of f
    model = as_arrays(Beta(1e4, link=link)).observation_model()
    v = np.array(v)
    (place, width), _ = model.bends(v)
    np.testing.assert_allclose(model.tail(v, place + width, False), scipy.stats.norm.cdf(-1.0), atol=0.01)
    np.testing.assert_allclose(model.tail(v, place - width, True), scipy.stats.norm.cdf(-1.0), atol=0.01)


# -- every place ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sample(21)
@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*CASES, "latent-noise"])
def test_quantiles_are_those_of_numpy_in_every_place(name, dtype, backend):
    likelihood = as_arrays(CASES[name].likelihood if name in CASES else LatentNoiseGaussian(unit=1.4))
    rng = np.random.default_rng(6)
    mu, var = rng.normal(size=(6, 2)), rng.uniform(0.1, 1.0, (6, 2))
    mu, var = mu.astype(dtype).astype("float64"), var.astype(dtype).astype("float64")
    here = backend.move(likelihood, dtype)
    for samples in (1, 3):
        expected = np.asarray(likelihood.predictive_quantiles(mu, var, (0.1, 0.9), samples=samples))
        found = here.predictive_quantiles(
            backend.array(mu, dtype), backend.array(var, dtype), (0.1, 0.9), samples=samples
        )
        tolerance = 1e-9 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(backend.numpy(found, dtype), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.cover(2, quick=1)
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*CASES, "latent-noise"])
def test_quantiles_are_finite_and_ascend_at_extremes(name, dtype, backend):
    likelihood = as_arrays(CASES[name].likelihood if name in CASES else LatentNoiseGaussian())
    grid = np.array(list(itertools.product((-1e4, -30.0, 0.0, 30.0, 1e4), (0.0, 1e-12, 1.0, 1e4))))
    mu, var = (
        (np.repeat(x[:, None], likelihood.latents(1), axis=1) for x in grid.T)
        if name == "latent-noise"
        else (grid[:, :1], grid[:, 1:])
    )
    with collect_reports():
        found = backend.move(likelihood, dtype).predictive_quantiles(
            backend.array(mu, dtype), backend.array(var, dtype), LEVELS
        )
    found = backend.numpy(found, dtype)
    assert found.shape == (len(LEVELS), len(grid), 1)
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=0) >= 0.0).all()
    if name in DISCRETE:
        assert (found == np.floor(found)).all()
    low, high = likelihood.support
    assert (found > low).all()
    assert (found < high).all()


# -- closed forms and limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CONTINUOUS if "beta" not in name])
def test_without_variance_quantiles_are_those_of_y_given_f(name):
    case = CASES[name]
    expected = case.distribution(np.array([0.7])).ppf(np.array(LEVELS))
    np.testing.assert_allclose(quantiles_of(case.likelihood, 0.7, 0.0, LEVELS), expected, rtol=1e-8)


@pytest.mark.parametrize("name", [name for name in DISCRETE if name[:4] in ("pois", "nega")])
def test_without_variance_whole_quantiles_are_those_of_y_given_f(name):
    case = CASES[name]
    expected = case.distribution(np.array([0.7])).ppf(np.array(LEVELS))
    np.testing.assert_array_equal(quantiles_of(case.likelihood, 0.7, 0.0, LEVELS), expected)


@pytest.mark.slow
@pytest.mark.parametrize("var", [1.0, 1e4])
def test_noise_that_is_small_beside_the_spread_makes_no_staircase(var):
    normal = scipy.stats.norm(0.3, math.sqrt(var)).ppf(LEVELS)
    np.testing.assert_allclose(
        quantiles_of(StudentT(1e-9, degrees_of_freedom=30.0), 0.3, var, LEVELS), normal, rtol=1e-8
    )
    shares = scipy.special.expit(scipy.stats.norm(0.3, 1.0).ppf(LEVELS))
    np.testing.assert_allclose(quantiles_of(Beta(1e14, link="logit"), 0.3, 1.0, LEVELS), shares, rtol=1e-6)
    counts = 1e6 * np.exp(scipy.stats.norm(0.3, math.sqrt(var)).ppf(LEVELS[1:]))
    found = quantiles_of(Poisson(exposure=1e6), 0.3, var, LEVELS[1:])
    large = counts > 1e4
    np.testing.assert_allclose(found[large], counts[large], rtol=1e-3)


def test_noise_of_a_hundredth_of_the_spread_is_resolved():
    (y,) = quantiles_of(StudentT(0.01), 0.3, 1.0, (0.6,))
    f = np.linspace(-8.0, 8.0, 20_001)  # the rule converges exponentially: the step is a tenth of the noise
    below = np.sum(scipy.stats.norm.pdf(f) * scipy.stats.t(3.0, 0.3 + f, 0.01).cdf(y)) * (f[1] - f[0])
    assert below == pytest.approx(0.6, abs=1e-9)


def test_gaussian_samples_agree_with_the_closed_form_of_one():
    expected = scipy.stats.norm(0.3, math.sqrt(0.9)).ppf(LEVELS)
    np.testing.assert_allclose(quantiles_of(Gaussian(0.2), 0.3, 0.7, LEVELS), expected, rtol=1e-12)
    found = as_arrays(Gaussian(0.2)).predictive_quantiles(np.full((2, 1), 0.3), np.full((2, 1), 0.7), LEVELS, samples=2)
    np.testing.assert_allclose(found[:, 0, 0], expected, rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_user_who_has_numpy_raise_gets_the_same(name):
    likelihood = as_arrays(CASES[name].likelihood)
    mu, var = np.array([[-40.0], [3.0]], dtype=np.float32), np.array([[1.0], [4.0]], dtype=np.float32)
    expected = likelihood.predictive_quantiles(mu, var, LEVELS, samples=2)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(likelihood.predictive_quantiles(mu, var, LEVELS, samples=2), expected)


def test_known_noise_alone_is_not_predicted():
    found = quantiles_of(Gaussian(0.0), 0.3, 0.7, LEVELS)
    np.testing.assert_allclose(found, scipy.stats.norm(0.3, math.sqrt(0.7)).ppf(LEVELS), rtol=1e-12)


@pytest.mark.long
def test_many_levels_ascend():
    levels = tuple(np.linspace(0.001, 0.999, 101))
    for name, case in CASES.items():
        assert (np.diff(quantiles_of(case.likelihood, 0.3, 2.0, levels)) >= 0.0).all(), name


def test_what_no_number_can_hold_is_the_nearest_one_and_is_said():
    with collect_reports() as reports:
        found = quantiles_of(Gamma(1.0), 1e4, 1.0, (0.5,))
    assert found == [np.finfo(np.float64).max]
    assert "predicted quantiles" in str(reports[0])


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "error", "message"),
    [
        ((0.1, 1.0), ValueError, r"levels\[1\] is 1\.0, but must be more than 0 and less than 1"),
        ((0.0,), ValueError, r"levels\[0\] is 0\.0, but"),
        ((95,), ValueError, r"levels\[0\] is 95, but .* write 95 % as 0\.95"),
        ((math.nan,), ValueError, r"levels\[0\] is nan, but"),
        (("0.5",), ValueError, r"levels\[0\] is '0\.5', but"),
        ((), ValueError, "levels is empty, but must hold at least one probability"),
        (0.9, TypeError, "levels is 0.9, but must be a tuple of probabilities"),
    ],
)
def test_levels_that_are_none_are_refused(levels, error, message):
    with pytest.raises(error, match=message):
        quantiles_of(Poisson(), 0.0, 1.0, levels)


def test_rows_that_are_no_multiple_of_samples_are_refused():
    with pytest.raises(ValueError, match="mu has 3 rows, which is not a multiple of samples=2; give S rows"):
        as_arrays(Gaussian(0.1)).predictive_quantiles(np.zeros((3, 1)), np.ones((3, 1)), (0.5,), samples=2)
    with pytest.raises(ValueError, match="samples is 0, but must be a whole number"):
        as_arrays(Gaussian(0.1)).predictive_quantiles(np.zeros((3, 1)), np.ones((3, 1)), (0.5,), samples=0)


@pytest.mark.parametrize("likelihood", [Softmax(3), RobustMax(3)], ids=["softmax", "robustmax"])
def test_classes_have_no_quantiles(likelihood):
    with pytest.raises(TypeError, match="classes without an order, so there are no quantiles; call `predict`"):
        likelihood.predictive_quantiles(np.zeros((2, 3)), np.ones((2, 3)), (0.5,))


def test_a_likelihood_that_tells_no_distribution_function_says_so():
    class Own(Likelihood):
        def expected_log_density(self, mu, var, y, /, draws=None):
            raise NotImplementedError

        def predict(self, mu, var, /):
            return Prediction(mu, var)

        def predictive_log_density(self, mu, var, y, /):
            raise NotImplementedError

        def from_data(self, variance, /):
            return self

        def check_targets(self, y, /):
            pass

    from agp import tree

    with pytest.raises(TypeError, match="Own has no distribution function"):
        tree.model(Own)().predictive_quantiles(np.zeros((2, 1)), np.ones((2, 1)), (0.5,))


def test_a_search_cannot_be_traced_but_closed_forms_can():
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    mu, var = JAX.array(np.zeros((2, 1))), JAX.array(np.ones((2, 1)))
    closed = jax.jit(lambda mu, var: JAX.move(as_arrays(Gaussian(0.2))).predictive_quantiles(mu, var, (0.9,)))
    np.testing.assert_allclose(JAX.numpy(closed(mu, var)), math.sqrt(1.2) * scipy.stats.norm.ppf(0.9), rtol=1e-12)
    with pytest.raises(TypeError, match="computed on the host, not in traced functions"):
        jax.jit(lambda mu, var: Poisson().predictive_quantiles(mu, var, (0.9,)))(mu, var)


# -- counts and shares, in closed form ------------------------------------------------------------------------------


def test_quantiles_of_counts_whose_rate_is_known_are_those_of_scipy():
    rates = np.asarray([[0.02], [0.9], [7.0], [430.0], [2e6]])
    levels = (0.001, 0.2, 0.5, 0.9, 0.999)
    found = as_arrays(Poisson()).predictive_quantiles(np.log(rates), np.full_like(rates, 1e-20), levels)
    np.testing.assert_array_equal(found[..., 0], [scipy.stats.poisson.ppf(level, rates[:, 0]) for level in levels])


def test_the_predicted_variance_of_counts_with_dispersion_is_that_of_the_mixture():
    mu, var = np.asarray([[-1.0], [0.5], [2.0]]), np.asarray([[0.3], [1.2], [1e-6]])
    mean, variance = as_arrays(NegativeBinomial(0.6)).predict(mu, var)
    expected = np.exp(mu + 0.5 * var)
    np.testing.assert_allclose(mean, expected, rtol=1e-13)
    # E[m] + 0.6 E[m^2] + var[m] for a rate m with a log-normal distribution
    np.testing.assert_allclose(variance, expected + expected**2 * (1.6 * np.exp(var) - 1.0), rtol=1e-12)


def test_shares_whose_mean_is_known_have_the_variance_of_their_distribution():
    f = np.asarray([[-1.5], [0.3], [2.0]])
    mean, variance = as_arrays(Beta(6.0)).predict(f, np.full_like(f, 1e-20))
    np.testing.assert_allclose(variance, mean * (1.0 - mean) / 7.0, rtol=1e-9)


@pytest.mark.parametrize("link", ["probit", "logit"])
def test_shares_whose_mean_is_uncertain_have_the_moments_of_the_mixture(link):
    mu, var, s = 0.4, 0.3, 10.0
    cdf = {"probit": scipy.special.ndtr, "logit": scipy.special.expit}[link]
    t, weights = np.polynomial.hermite_e.hermegauss(60)
    p, weights = cdf(mu + math.sqrt(var) * t), weights / np.sum(weights)
    mean, square = weights @ p, weights @ (p * p + p * (1.0 - p) / (s + 1.0))
    found = as_arrays(Beta(s, link=link)).predict(np.array([[mu]]), np.array([[var]]))
    np.testing.assert_allclose([found.mean.item(), found.variance.item()], [mean, square - mean**2], rtol=1e-9)


def test_counts_with_little_dispersion_have_the_density_of_scipy():
    # at y = 0 the constant is zero; Stirling's series gives it for other counts
    y, f = np.array([[0.0], [3.0], [40.0], [300.0]]), np.array([[1.0], [2.0], [3.0], [5.0]])
    found = as_arrays(NegativeBinomial(1.0 / 150.0)).expected_log_density(f, np.zeros_like(f), y)[0]
    expected = negative_binomial(1.0 / 150.0, np.exp(f)).logpmf(y)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-11)
