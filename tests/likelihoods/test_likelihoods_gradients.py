"""Likelihood stage: closed form, automatic differentiation and differences; backends; tails; integrals."""

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from helpers import NUMPY, as_arrays, assert_close, assert_closed_form_is_autograd, assert_closed_form_is_slope
from likelihood_cases import KINDS, likelihood_stage, problem_of

from agp import tree
from agp.likelihoods import Bernoulli, Gamma, Gaussian, NegativeBinomial, Poisson, RobustMax, Softmax

DENSITIES = {
    "gaussian": lambda y, f: scipy.stats.norm.logpdf(y, f, 0.2**0.5),
    "bernoulli": lambda y, f: scipy.stats.norm.logcdf((2 * y - 1) * f),
    "bernoulli-squash": lambda y, f: np.log(0.998 * scipy.stats.norm.cdf((2 * y - 1) * f) + 1e-3),
    "bernoulli-logit": lambda y, f: scipy.special.log_expit((2 * y - 1) * f),
    "bernoulli-logit-squash": lambda y, f: np.log(0.998 * scipy.special.expit((2 * y - 1) * f) + 1e-3),
    "student-t": lambda y, f: scipy.stats.t.logpdf(y, 3.0, f, 0.4),
    "student-t-5": lambda y, f: scipy.stats.t.logpdf(y, 5.0, f, 0.4),
    "poisson": lambda y, f: scipy.stats.poisson.logpmf(y, 1.3 * np.exp(f)),
    "gamma": lambda y, f: scipy.stats.gamma.logpdf(y, 1.7, scale=np.exp(f)),
    "exponential": lambda y, f: scipy.stats.expon.logpdf(y, scale=np.exp(f)),
    "negative-binomial": lambda y, f: scipy.stats.nbinom.logpmf(y, 1.0 / 0.6, 1.0 / (1.0 + 0.6 * 1.3 * np.exp(f))),
    "nearly-poisson": lambda y, f: scipy.stats.nbinom.logpmf(y, 500.0, 1.0 / (1.0 + 2e-3 * np.exp(f))),
    "beta": lambda y, f: scipy.stats.beta.logpdf(y, 6.0 * scipy.special.ndtr(f), 6.0 * scipy.special.ndtr(-f)),
    "beta-logit": lambda y, f: scipy.stats.beta.logpdf(y, 6.0 * scipy.special.expit(f), 6.0 * scipy.special.expit(-f)),
    "ordinal": lambda y, f: np.log(
        np.diff(scipy.special.ndtr(np.array([-np.inf, -0.6, 0.3, 1.4, np.inf])[int(y) : int(y) + 2] - f))[0]
    ),
}
"""Log p(y | f) by SciPy."""

POINTS = {"student-t": 100, "student-t-5": 100}
"""Nodes that make the quadrature exact to 1e-6, where 20 do not."""


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_closed_form_is_autograd(name, columns, torch_place):
    assert_closed_form_is_autograd(*likelihood_stage(problem_of(name, columns=columns)))


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_closed_form_is_slope(name, columns):
    assert_closed_form_is_slope(*likelihood_stage(problem_of(name, columns=columns)))


def test_closed_form_is_autograd_with_fixed_noise(torch_place):
    assert_closed_form_is_autograd(*likelihood_stage(problem_of("softmax"), with_draws=False))


@pytest.mark.parametrize("name", KINDS)
def test_closed_form_is_autograd_where_nothing_is_uncertain(name, torch_place):
    # variances of zero count as the floor, where the square root has no slope
    problem = problem_of(name)
    exact = problem._replace(var=0.0 * problem.var)
    assert_closed_form_is_autograd(*likelihood_stage(exact))


def _everything(problem):
    likelihood, mu, var, y, draws = problem
    value, pullback = likelihood.expected_log_density(mu, var, y, draws=draws)
    likelihood_bar, mu_bar, var_bar = pullback(value * 0.0 + 1.0)
    fixed = likelihood.expected_log_density(mu, var, y)[0]
    found = {"value": value, "fixed": fixed, "mu_bar": mu_bar, "var_bar": var_bar} | tree.leaves(likelihood_bar)
    mean, variance = likelihood.predict(mu, var)
    return found | {"mean": mean, "variance": variance, "log": likelihood.predictive_log_density(mu, var, y)}


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", KINDS)
def test_backends_agree(name, backend):
    found = _everything(problem_of(name, backend, columns=2))
    for key, expected in _everything(problem_of(name, columns=2)).items():
        assert_close(backend.numpy(found[key]), expected, 1e-12, key)


@pytest.mark.sample(27)
@pytest.mark.parametrize("name", KINDS)
def test_single_precision_stays_single(name, backend):
    found = _everything(problem_of(name, backend, dtype="float32"))
    for key, expected in _everything(problem_of(name)).items():
        assert_close(backend.numpy(found[key], "float32"), expected, 1e-4, key)


@pytest.mark.sample(35)
@pytest.mark.parametrize("name", KINDS)
def test_expected_log_density_is_below_the_log_of_the_expected_density(name, backend):
    # Jensen's inequality; both sides use the same nodes or the same noise, so it holds without a tolerance for them
    likelihood, mu, var, y, _ = problem_of(name, backend, columns=2, rows=40)
    expected = backend.numpy(likelihood.expected_log_density(mu, var, y)[0])
    predictive = backend.numpy(likelihood.predictive_log_density(mu, var, y))
    assert np.all(expected <= predictive + 1e-9)
    assert np.any(expected < predictive - 1e-3)


def _by_scipy(name, mu, var, y, transform):
    """The integral of transform(log p(y | f)) over N(f; mu, var)."""

    def integrand(f):
        return transform(DENSITIES[name](y, f)) * scipy.stats.norm.pdf(f, mu, var**0.5)

    return scipy.integrate.quad(integrand, mu - 6.0, mu + 6.0, epsabs=1e-12)[0]


def _scalar(name, backend):
    likelihood = as_arrays(KINDS[name].build())
    if name in POINTS:
        likelihood = type(likelihood)(likelihood.scale, likelihood.degrees_of_freedom, POINTS[name])
    return backend.move(likelihood)


@pytest.mark.slow
@pytest.mark.sample(12)
@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("name", DENSITIES)
def test_expectations_are_integrals(name, backend):
    likelihood = _scalar(name, backend)
    mu, var, y = 0.7, 0.3, 0.3 if "beta" in name else 1.0
    columns = [backend.array([[x]]) for x in (mu, var, y)]
    value = likelihood.expected_log_density(*columns)[0]
    np.testing.assert_allclose(backend.numpy(value), [_by_scipy(name, mu, var, y, lambda x: x)], rtol=1e-6)
    density = np.exp(backend.numpy(likelihood.predictive_log_density(*columns)))
    np.testing.assert_allclose(density, [_by_scipy(name, mu, var, y, np.exp)], rtol=1e-6)


def _all_targets(name):
    """Targets and weights whose sums are integrals over all targets, or sums."""
    if KINDS[name].targets.__name__ == "values":
        return np.linspace(-400.0, 400.0, 80_001), 0.01
    if name in ("gamma", "exponential"):  # even in log y
        y = np.exp(np.linspace(-40.0, 12.0, 5001))
        return y, y * 52.0 / 5000
    if "beta" in name:  # even in the log odds
        u = np.linspace(-500.0, 30.0, 20_001)
        y = scipy.special.expit(u)
        return y, y * scipy.special.expit(-u) * 530.0 / 20_000
    most = {"bernoulli": 2, "ordinal": 4, "negative-binomial": 20_000}
    return np.arange(float(next((n for kind, n in most.items() if name.startswith(kind)), 400))), 1.0


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", DENSITIES)
def test_predictive_density_of_all_targets_is_one_and_has_the_predicted_moments(name, backend):
    likelihood = _scalar(name, backend)
    y, weights = _all_targets(name)
    mu, var = (backend.array(np.full((len(y), 1), x)) for x in (0.4, 0.6))
    density = np.exp(backend.numpy(likelihood.predictive_log_density(mu, var, backend.array(y[:, None]))))
    density = density * weights
    mean, variance = (backend.numpy(x)[0, 0] for x in likelihood.predict(mu[:1, :], var[:1, :]))
    if "beta" in name:
        # float64 has few shares between 1 - 1e-13 and 1; what is there is as good as 1
        y, density = np.append(y, 1.0), np.append(density, max(1.0 - density.sum(), 0.0))
        assert density[-1] < 1e-2
    # the tails of Student's distribution with nu = 3 hold 1e-3 of its variance beyond 400, and quadrature has errors
    np.testing.assert_allclose(density.sum(), 1.0, rtol=1e-7)
    # and a millionth of the shares is below exp(-500)
    np.testing.assert_allclose((density * y).sum(), mean, rtol=3e-6 if "beta" in name else 1e-6)
    tolerance = {"student-t": 1e-2, "beta": 1e-5, "beta-logit": 1e-5}.get(name, 1e-6)
    np.testing.assert_allclose((density * (y - mean) ** 2).sum(), variance, rtol=tolerance)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.classes])
def test_classes_are_predicted_with_their_probabilities(name, backend):
    likelihood, mu, var, y, _ = problem_of(name, backend, rows=30)
    mean, variance = (backend.numpy(x) for x in likelihood.predict(mu, var))
    assert mean.shape == (30, 3)
    np.testing.assert_allclose(variance, mean * (1.0 - mean), rtol=1e-12)
    for c in range(3):
        p = np.exp(backend.numpy(likelihood.predictive_log_density(mu, var, 0.0 * y + float(c))))
        np.testing.assert_allclose(mean[:, c], p, rtol=1e-12)
    np.testing.assert_allclose(mean.sum(axis=1), 1.0, atol=1e-12 if name == "softmax" else 0.05)


@pytest.mark.slow
def test_robustmax_is_the_share_of_samples_in_which_the_class_is_the_largest():
    likelihood, mu, var, _, _ = problem_of("robustmax")
    rng = np.random.default_rng(3)
    f = mu + np.sqrt(var) * rng.normal(size=(200_000, *mu.shape))
    share = (f.argmax(axis=-1)[..., None] == np.arange(3)).mean(axis=0)
    expected = share * 0.999 + (1.0 - share) * 0.0005
    np.testing.assert_allclose(likelihood.predict(mu, var).mean, expected, atol=0.01)


def test_robustmax_with_many_classes_is_finite(backend):
    rng = np.random.default_rng(0)
    mu, var = backend.array(4.0 * rng.normal(size=(5, 60))), backend.array(0.1 + rng.uniform(size=(5, 60)))
    value, pullback = RobustMax(60).expected_log_density(mu, var, backend.array(np.arange(5.0)[:, None]))
    for x in (value, *pullback(0.0 * value + 1.0)[1:]):
        assert np.isfinite(backend.numpy(x)).all()


def test_the_noise_of_softmax_is_that_of_the_generator():
    likelihood = Softmax(4, samples=6)
    first, again = (likelihood.draws(np.random.default_rng(2), 5, 4)["eps"] for _ in range(2))
    assert first.shape == (6, 5, 4)
    np.testing.assert_array_equal(first, again)
    assert as_arrays(Gaussian(0.2)).draws(np.random.default_rng(2), 5, 1) == {}


@pytest.mark.parametrize("fixed", [1, 2, 31])
def test_fixed_noise_has_the_moments_of_the_normal_distribution(fixed):
    likelihood = Softmax(4, fixed_samples=fixed)
    noise = likelihood._noise(np.zeros((3, 4)))
    assert noise.shape == (fixed + fixed % 2, 1, 4)
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=1e-15)
    np.testing.assert_allclose((noise**2).mean(axis=0), 1.0, rtol=1e-12)


def test_estimates_by_fixed_noise_do_not_depend_on_the_other_rows():
    likelihood, mu, var, y, _ = problem_of("softmax")
    whole = likelihood.expected_log_density(mu, var, y)[0]
    alone = [likelihood.expected_log_density(mu[i : i + 1], var[i : i + 1], y[i : i + 1])[0] for i in range(len(mu))]
    np.testing.assert_allclose(whole, np.concatenate(alone), rtol=1e-14)


@pytest.mark.slow
def test_a_label_is_predicted_with_its_probability(backend):
    for likelihood in (Bernoulli(squash=1e-3), Bernoulli(link="logit"), Bernoulli(squash=1e-3, link="logit")):
        mu, var = backend.array([[0.5, -1.0]]), backend.array([[0.2, 3.0]])
        mean, variance = likelihood.predict(mu, var)
        p = np.exp(backend.numpy(likelihood.predictive_log_density(mu[:, :1], var[:, :1], backend.array([[1.0]]))))
        np.testing.assert_allclose(backend.numpy(mean)[0, 0], p[0], rtol=1e-12)
        np.testing.assert_allclose(backend.numpy(variance), backend.numpy(mean * (1.0 - mean)), rtol=1e-12)


def test_noise_is_added_to_observations(backend):
    mean, variance = backend.move(as_arrays(Gaussian(0.25))).predict(backend.array([[1.5]]), backend.array([[0.5]]))
    np.testing.assert_allclose(backend.numpy(mean), [[1.5]])
    np.testing.assert_allclose(backend.numpy(variance), [[0.75]])


def test_latent_noise_is_averaged_over_both_functions(backend):
    # a product of Gauss-Hermite rules for f and g, where 80 nodes have converged
    likelihood, mu, var, y, _ = problem_of("latent-noise-in-units", backend)
    t, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()
    m, s, target = backend.numpy(mu), np.sqrt(backend.numpy(var)), backend.numpy(y)
    f, g = m[:, :1, None] + s[:, :1, None] * t[:, None], m[:, 1:, None] + s[:, 1:, None] * t
    noise = 1.4 * np.exp(g / 1.4)
    log_density = scipy.stats.norm.logpdf(target[..., None], f, noise)
    value = np.einsum("nij,i,j->n", log_density, w, w)
    assert_close(backend.numpy(likelihood.expected_log_density(mu, var, y)[0]), value, 1e-10)
    given_g = scipy.stats.norm.pdf(target[..., None], m[:, :1, None], np.sqrt(s[:, :1, None] ** 2 + noise**2))
    density = np.log(given_g[:, 0] @ w)
    assert_close(backend.numpy(likelihood.predictive_log_density(mu, var, y)), density, 1e-7)
    mean, variance = (backend.numpy(x) for x in likelihood.predict(mu, var))
    assert_close(mean, m[:, :1], 1e-15)
    assert_close(variance, s[:, :1] ** 2 + (noise**2 @ w)[:, :1], 1e-10)


@pytest.mark.slow
def test_exponential_is_gamma_with_shape_one(backend):
    exponential, mu, var, y, _ = problem_of("exponential", backend, columns=2)
    gamma = backend.move(as_arrays(Gamma(1.0)))
    for method in ("predict", "expected_log_density", "predictive_log_density"):
        arguments = (mu, var) if method == "predict" else (mu, var, y)
        found, expected = (getattr(likelihood, method)(*arguments) for likelihood in (exponential, gamma))
        for a, b in zip(found, expected, strict=True) if method == "predict" else [(found, expected)]:
            a, b = (x[0] if isinstance(x, tuple) else x for x in (a, b))
            assert_close(backend.numpy(a), backend.numpy(b), 1e-13)


def test_little_dispersion_is_poisson(backend):
    # the limit, with no digits lost to lgamma(1e9)
    _, mu, var, y, _ = problem_of("poisson", backend, columns=2)
    nearly = backend.move(as_arrays(NegativeBinomial(1e-9, exposure=1.3)))
    found, pullback = nearly.expected_log_density(mu, var, y)
    expected = Poisson(exposure=1.3).expected_log_density(mu, var, y)[0]
    assert_close(backend.numpy(found), backend.numpy(expected), 1e-7)
    # d/d dispersion at 0 is E[(y - m)^2 - y] / 2
    slope = pullback(0.0 * found + 1.0)[0].dispersion
    m, v, target = (backend.numpy(x) for x in (mu + float(np.log(1.3)), var, y))
    first, second = np.exp(m + 0.5 * v), np.exp(2.0 * m + 2.0 * v)
    limit = 0.5 * np.sum(target**2 - 2.0 * target * first + second - target)
    np.testing.assert_allclose(backend.numpy(slope), limit, rtol=1e-4)


@pytest.mark.parametrize("common", [0.0, 0.2])
def test_equal_known_noise_is_noise(common, backend):
    _, mu, var, y, _ = problem_of("gaussian", backend, columns=2)
    likelihood, usual = (backend.move(as_arrays(Gaussian(noise))) for noise in (common, common + 0.3))
    for columns in (1, 2):
        at_rows, _ = likelihood.with_noise(backend.array(np.full((8, columns), 0.3)))
        for method in ("expected_log_density", "predictive_log_density", "predictive_cdf", "predictive_crps"):
            pair = (getattr(one, method)(mu, var, y) for one in (at_rows, usual))
            found, expected = ((x[0] if isinstance(x, tuple) else x) for x in pair)
            np.testing.assert_allclose(backend.numpy(found), backend.numpy(expected), rtol=1e-13)
        variances = (backend.numpy(one.predict(mu, var).variance) for one in (at_rows, usual))
        np.testing.assert_allclose(*variances, rtol=1e-13)
    # nobody knows the noise of observations to come, but for the common part
    np.testing.assert_allclose(backend.numpy(likelihood.predict(mu, var).variance), backend.numpy(var) + common)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("link", ["probit", "logit"])
@pytest.mark.parametrize("squash", [0.0, 1e-3], ids=["pure", "squash"])
def test_tails_are_finite(squash, link, dtype, backend):
    # log Phi(-30) = -454.3: a logarithm of the cdf would be -inf (float32 from -14)
    mu = backend.array([[-30.0], [30.0], [0.0]], dtype)
    var = backend.array([[1e-6], [1e-6], [0.0]], dtype)
    value, pullback = Bernoulli(squash=squash, link=link).expected_log_density(
        mu, var, backend.array([[1.0], [1.0], [1.0]], dtype)
    )
    _, mu_bar, var_bar = pullback(backend.array([1.0, 1.0, 1.0], dtype))
    lowest, slope = (scipy.stats.norm.logcdf(-30.0), 30.03) if link == "probit" else (-30.0, 1.0)
    np.testing.assert_allclose(backend.numpy(value, dtype)[0], np.log(squash) if squash else lowest, rtol=1e-5)
    if squash == 0.0:
        np.testing.assert_allclose(backend.numpy(mu_bar, dtype)[0, 0], slope, rtol=1e-3)
    assert np.isfinite(backend.numpy(mu_bar, dtype)).all()
    assert np.isfinite(backend.numpy(var_bar, dtype)).all()


def test_far_targets_have_finite_densities():
    for name in ("student-t", "bernoulli-logit"):
        likelihood = _scalar(name, NUMPY)
        mu, var, y = np.array([[-800.0]]), np.array([[0.5]]), np.array([[1.0]])
        value, pullback = likelihood.expected_log_density(mu, var, y)
        for x in (value, likelihood.predictive_log_density(mu, var, y), *pullback(np.ones(1))[1:]):
            assert np.isfinite(x).all()
