"""Distribution functions and CRPS of observations: against closed forms, sums and the quantiles."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from helpers import as_arrays
from test_predictive_quantiles import CASES, CONTINUOUS, DISCRETE, MOMENTS

from agp.distributions._quantiles import Mixture
from agp.distributions._scores import _Knots, mixture_crps
from agp.likelihoods import Beta, Gamma, Gaussian, NegativeBinomial, Poisson, Softmax, StudentT

FINITE = [name for name in DISCRETE if name.startswith(("bern", "ord"))]


def column(*values):
    return np.array(values)[:, None]


def cdf_at(likelihood, mu, var, y):
    """P(Y <= y) of one datum for several y."""
    rows = np.ones((len(y), 1))
    return as_arrays(likelihood).predictive_cdf(mu * rows, var * rows, y)[:, 0]


# -- distribution functions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mu", "var"),  # not where quantiles are the floats next to 0 and 1
    [
        (name, *at)
        for name in CONTINUOUS
        for at in MOMENTS
        if "rough" not in name and (at[0] > 0.0 or "beta" not in name)
    ],
)
def test_the_distribution_function_undoes_quantiles(name, mu, var):
    likelihood, levels = as_arrays(CASES[name].likelihood), (1e-3, 0.05, 0.5, 0.975)
    y = likelihood.predictive_quantiles(np.array([[mu]]), np.array([[var]]), levels)[:, 0, :]
    np.testing.assert_allclose(cdf_at(likelihood, mu, var, y), levels, rtol=1e-7)


@pytest.mark.parametrize("name", DISCRETE)
def test_whole_numbers_have_jumps_where_they_are(name):
    case = CASES[name]
    y = column(-1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 7.0)
    found = cdf_at(case.likelihood, 0.7, 0.0, y)
    expected = [float(np.squeeze(case.distribution(np.array([0.7])).cdf(one))) for one in np.floor(y[:, 0])]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize(("name", "outside"), [("gamma", (-1.0, 0.0)), ("exponential", (-1.0,)), ("beta", (-0.1, 0.0))])
def test_nothing_is_below_the_support(name, outside):
    np.testing.assert_allclose(cdf_at(CASES[name].likelihood, 0.4, 0.3, column(*outside)), 0.0, atol=1e-10)


def test_where_a_number_is_missing_so_is_the_answer():
    y = column(math.nan, 1.0)
    for likelihood in (Poisson(), StudentT(0.4), Gaussian(0.1), CASES["ordinal"].likelihood):
        for score in ("predictive_cdf", "predictive_crps"):
            found = getattr(as_arrays(likelihood), score)(np.zeros((2, 1)), np.ones((2, 1)), y)
            assert np.isnan(found[0, 0])
            assert 0.0 < found[1, 0] <= 1.0


# -- CRPS -------------------------------------------------------------------------------------------------------------


def crps_of_normal(mean, deviation, y):
    z = (y - mean) / deviation
    inner = z * (2.0 * scipy.stats.norm.cdf(z) - 1.0) + 2.0 * scipy.stats.norm.pdf(z) - 1.0 / math.sqrt(math.pi)
    return deviation * inner


def crps_of_t(nu, z):
    t, B = scipy.stats.t(nu), scipy.special.beta
    shared = 2.0 * math.sqrt(nu) * B(0.5, nu - 0.5) / ((nu - 1.0) * B(0.5, 0.5 * nu) ** 2)
    return z * (2.0 * t.cdf(z) - 1.0) + 2.0 * t.pdf(z) * (nu + z * z) / (nu - 1.0) - shared


def crps_of_gamma(shape, scale, y):
    F, more = scipy.stats.gamma(shape, scale=scale), scipy.stats.gamma(shape + 1.0, scale=scale)
    spread = scale / scipy.special.beta(0.5, shape)
    return y * (2.0 * F.cdf(y) - 1.0) - shape * scale * (2.0 * more.cdf(y) - 1.0) - spread


def crps_of_beta(a, b, y):
    B = scipy.special.beta
    spread = 2.0 * B(2.0 * a, 2.0 * b) / (a * B(a, b) ** 2)
    inner = 1.0 - 2.0 * scipy.stats.beta.cdf(y, a + 1.0, b) - spread
    return y * (2.0 * scipy.stats.beta.cdf(y, a, b) - 1.0) + a / (a + b) * inner


def crps_of_poisson(rate, y):
    F = scipy.stats.poisson(rate)
    bessel = scipy.special.ive(0, 2.0 * rate) + scipy.special.ive(1, 2.0 * rate)
    return (y - rate) * (2.0 * F.cdf(y) - 1.0) + 2.0 * rate * F.pmf(np.floor(y)) - rate * bessel


Y = column(0.0, 1.0, 3.0, 40.0)
SHARES = column(0.01, 0.4, 0.7, 0.999)
F0 = 0.7
CLOSED = {
    # Jordan, Krueger & Lerch, "Evaluating probabilistic forecasts with scoringRules", J. Statistical Software 2019
    "student-t": (StudentT(0.4), Y, 0.4 * crps_of_t(3.0, (Y - F0) / 0.4)),
    "gamma": (Gamma(1.7), Y, crps_of_gamma(1.7, math.exp(F0), Y)),
    "gamma-sharp": (Gamma(300.0), Y, crps_of_gamma(300.0, math.exp(F0), Y)),
    "beta": (Beta(10.0, link="logit"), SHARES, crps_of_beta(*(10.0 * scipy.special.expit([F0, -F0])), SHARES)),
    "poisson": (Poisson(), Y, crps_of_poisson(math.exp(F0), Y)),
    "poisson-large": (Poisson(exposure=1e3), 50.0 * Y, crps_of_poisson(1e3 * math.exp(F0), 50.0 * Y)),
    "poisson-rare": (Poisson(exposure=1e-4), Y, crps_of_poisson(1e-4 * math.exp(F0), Y)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_without_variance_scores_are_closed_forms(name):
    likelihood, y, expected = CLOSED[name]
    found = as_arrays(likelihood).predictive_crps(np.full_like(y, F0), np.zeros_like(y), y)
    np.testing.assert_allclose(found, expected, rtol=3e-4, atol=1e-8)


def test_gaussian_noise_has_a_closed_form_also_of_samples():
    found = as_arrays(Gaussian(0.2)).predictive_crps(np.full_like(Y, 0.3), np.full_like(Y, 0.7), Y)
    np.testing.assert_allclose(found, crps_of_normal(0.3, math.sqrt(0.9), Y), rtol=1e-12)
    at_rows = as_arrays(Gaussian(0.05)).with_noise(np.full_like(Y, 0.15))[0]
    known = at_rows.predictive_crps(np.full_like(Y, 0.3), np.full_like(Y, 0.7), Y)
    np.testing.assert_allclose(known, found, rtol=1e-12)
    mean, var = np.array([[0.0], [3.0]]), np.array([[0.1], [0.5]])
    of_two = as_arrays(Gaussian(0.2)).predictive_crps(mean, var, column(1.0), samples=2)
    F = lambda x: np.mean(scipy.stats.norm.cdf(x, mean[:, 0], np.sqrt(var[:, 0] + 0.2)))  # noqa: E731
    parts = [scipy.integrate.quad(lambda x: (F(x) - (x >= 1.0)) ** 2, *ends)[0] for ends in ((-9.0, 1.0), (1.0, 15.0))]
    np.testing.assert_allclose(of_two, sum(parts), rtol=1e-8)


COUNTS = {
    "poisson": Poisson(exposure=3.0),
    "negative-binomial": NegativeBinomial(0.5, exposure=3.0),
    "negative-binomial-rough": NegativeBinomial(5.0, exposure=20.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_scores_of_counts_are_sums(name):
    # P(Y <= k) itself was compared above
    y, k = column(0.0, 2.0, 9.0, 100.0), np.arange(3000.0)[:, None]
    F = cdf_at(COUNTS[name], 0.4, 0.3, k)
    expected = [np.sum((F - (k[:, 0] >= one)) ** 2) for one in y[:, 0]]
    found = as_arrays(COUNTS[name]).predictive_crps(np.full_like(y, 0.4), np.full_like(y, 0.3), y)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["student-t", "gamma", "exponential", "beta", "beta-rough"])
def test_scores_under_uncertainty_are_integrals(name):
    grid = np.concatenate([np.linspace(1e-4, 1.0, 2000), np.geomspace(1.0, 4e3, 2000)[1:]])
    grid = np.concatenate([-grid[::-1], grid]) if name == "student-t" else grid[grid < 1.0] if "beta" in name else grid
    F, at = cdf_at(CASES[name].likelihood, 0.4, 0.3, grid[:, None]), (len(grid) // 10, len(grid) // 2)
    integral = scipy.integrate.trapezoid
    expected = [integral(F[: i + 1] ** 2, grid[: i + 1]) + integral((1.0 - F[i:]) ** 2, grid[i:]) for i in at]
    y = column(*grid[list(at)])
    found = as_arrays(CASES[name].likelihood).predictive_crps(np.full_like(y, 0.4), np.full_like(y, 0.3), y)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("name", FINITE)
def test_scores_of_categories_are_sums(name):
    count = len(CASES[name].distribution(np.array([0.0])).tops) + 1
    k = np.arange(float(count))[:, None]
    F = cdf_at(CASES[name].likelihood, 0.4, 0.3, k)
    found = as_arrays(CASES[name].likelihood).predictive_crps(np.full_like(k, 0.4), np.full_like(k, 0.3), k)
    np.testing.assert_allclose(found[:, 0], [np.sum((F - (k[:, 0] >= one)) ** 2) for one in range(count)], rtol=1e-12)


def test_a_score_is_an_average_over_samples_of_the_distribution():
    # two bumps far apart: E|Y - y| - E|Y - Y'| / 2 by draws
    rng, f = np.random.default_rng(0), np.array([[0.0], [3.0]])
    draws = np.concatenate(
        [rng.poisson(np.exp(one + math.sqrt(0.05) * rng.standard_normal(40_000))) for one in f[:, 0]]
    )
    rng.shuffle(draws)
    expected = np.mean(np.abs(draws - 4.0)) - 0.5 * np.mean(np.abs(draws - np.roll(draws, 1)))
    found = Poisson().predictive_crps(f, np.full((2, 1), 0.05), column(4.0), samples=2)
    np.testing.assert_allclose(found, expected, rtol=0.02)


@pytest.mark.parametrize("width", [1e-2, 1e-4, 1e-7])
def test_a_score_of_narrow_and_distant_bumps_is_that_of_two_points(width):
    # normal noise in effect; a step of F at each mean, between knots that are far apart in comparison
    y = column(0.3, 0.8, 1.2)
    found = as_arrays(StudentT(width, degrees_of_freedom=1e4)).predictive_crps(
        np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])[:, None], np.full((6, 1), 1e-300), y, samples=2
    )
    # E|Y - y| - E|Y - Y'| / 2
    expected = 0.5 * (y + np.abs(y - 1.0)) - 0.25 - 0.5 * width / math.sqrt(math.pi)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_score_of_a_smooth_distribution_takes_few_evaluations():
    evaluations = []

    def tail(v, upper):
        evaluations.append(v)
        return np.exp(-np.exp(v)) if upper else -np.expm1(-np.exp(v))

    def exponential(mu, var):
        return Mixture(tail, np.exp, mu[0] - 0.5, mu[0] + 1.3)

    found = mixture_crps(exponential, np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), column(1.0))
    np.testing.assert_allclose(found, 2.0 * math.exp(-1.0) - 0.5, rtol=1e-4)
    assert sum(v.size for v in evaluations) <= 90


def test_a_distribution_between_two_ends_has_a_score_inside_and_outside():
    # the distribution function is 0 or 1 at the outer knots, and bends at the ends
    def uniform(mu, var):
        return Mixture(tail, lambda v: v, mu[0] + 0.5, mu[0] + math.sqrt(1.0 / 12.0), (0.0, 1.0))

    def tail(v, upper):
        return 1.0 - v if upper else v

    y = column(0.1, 0.4, 0.8, 1.3)
    inside = np.clip(y, 0.0, 1.0)
    expected = 0.5 * inside**2 + 0.5 * (1.0 - inside) ** 2 + (y - inside) - 1.0 / 6.0
    found = mixture_crps(uniform, np.zeros((1, 4, 1)), np.zeros((1, 4, 1)), y)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("moments", [(-700.0, 1e-300), (50.0, 1e4), (0.0, 1e-12)])
@pytest.mark.parametrize("name", CASES)
def test_scores_at_extremes_are_numbers(name, moments):
    likelihood = as_arrays(CASES[name].likelihood)
    y = np.full((1, 2 if "noise" in name else 1), 0.5)  # with the known variance
    mu, var = (np.full((1, likelihood.latents(y.shape[1])), one) for one in moments)
    with np.errstate(all="raise"):
        assert 0.0 <= likelihood.predictive_cdf(mu, var, y)[0, 0] <= 1.0
        assert likelihood.predictive_crps(mu, var, y)[0, 0] >= 0.0


def test_interpolated_distribution_functions_ascend_beside_a_flat_part():
    z = np.array([0.0, 1.0, 1.01, 2.01])[:, None, None]
    knots = _Knots(np.arange(4.0)[:, None, None], z)
    assert np.all(np.diff(knots.share(np.linspace(0.0, 3.0, 61)[:, None, None]), axis=0) > 0.0)


def test_a_score_between_two_knots_is_found_on_the_line_through_them():
    knots = _Knots(*(np.array(one)[:, None, None] for one in ([0.0, 1.0, 5.0], [-3.0, 1.0, 2.0])))
    found = [float(knots.of_score(z).item()) for z in (-4.0, -2.0, 1.25, 3.0)]
    np.testing.assert_allclose(found, [0.0, 0.25, 2.0, 5.0], rtol=1e-15)


def test_classes_have_no_distribution_function():
    with pytest.raises(
        TypeError, match="classes without an order, so there are no distribution functions; call `predict`"
    ):
        Softmax(3).predictive_cdf(np.zeros((2, 3)), np.ones((2, 3)), np.zeros((2, 1)))
