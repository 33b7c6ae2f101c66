"""Likelihood stage: closed form, automatic differentiation and differences; tails; integrals."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from helpers import LIKELIHOODS, as_arrays, assert_closed_form_is_autograd, assert_closed_form_is_slope

from agp import tree
from agp.likelihoods import Bernoulli, Gaussian


def likelihood_stage(likelihood, y):
    """Expected log densities as a function of the likelihood's leaves, mu and var."""

    def stage(leaves):
        own = {name: leaves[name] for name in tree.leaves(likelihood)}
        targets = leaves["mu"] * 0.0 + (y if isinstance(leaves["mu"], np.ndarray) else leaves["mu"].new_tensor(y))
        value, pull = tree.with_leaves(likelihood, own).expected_log_density(leaves["mu"], leaves["var"], targets)

        def pullback(bar):
            likelihood_bar, mu_bar, var_bar = pull(bar)
            return tree.leaves(likelihood_bar) | {"mu": mu_bar, "var": var_bar}

        return (value,), pullback

    return stage


def _case(name, outputs):
    rng = np.random.default_rng([7, outputs])
    likelihood = as_arrays(LIKELIHOODS[name]())
    y = rng.normal(size=(8, outputs)) if name == "gaussian" else 1.0 * rng.integers(0, 2, size=(8, outputs))
    marginals = {"mu": 2.0 * rng.normal(size=(8, outputs)), "var": 0.1 + rng.uniform(size=(8, outputs))}
    return likelihood_stage(likelihood, y), tree.leaves(likelihood) | marginals


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_closed_form_is_autograd(name, outputs, torch_place):
    assert_closed_form_is_autograd(*_case(name, outputs))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_closed_form_is_slope(name, outputs):
    assert_closed_form_is_slope(*_case(name, outputs))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_expectation_is_the_integral(name, backend):
    likelihood = backend.move(as_arrays(LIKELIHOODS[name]())) if name == "gaussian" else LIKELIHOODS[name]()
    mu, var, y = 0.7, 0.3, 1.0
    value, _ = likelihood.expected_log_density(*(backend.array([[x]]) for x in (mu, var, y)))

    def integrand(f):
        if name == "gaussian":
            log_p = scipy.stats.norm.logpdf(y, f, 0.2**0.5)
        else:
            squash = LIKELIHOODS[name]().squash
            log_p = np.log((1.0 - 2.0 * squash) * scipy.stats.norm.cdf(f) + squash)
        return log_p * scipy.stats.norm.pdf(f, mu, var**0.5)

    exact = scipy.integrate.quad(integrand, mu - 5.0, mu + 5.0, epsabs=1e-12)[0]
    np.testing.assert_allclose(backend.numpy(value), [exact], rtol=1e-7)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_predictive_density_of_both_labels_or_all_targets_is_one(name, backend):
    likelihood = backend.move(as_arrays(LIKELIHOODS[name]())) if name == "gaussian" else LIKELIHOODS[name]()
    y = np.linspace(-12.0, 12.0, 4001) if name == "gaussian" else np.array([0.0, 1.0])
    mu, var = np.full_like(y, 0.4), np.full_like(y, 0.6)
    columns = (backend.array(x[:, None]) for x in (mu, var, y))
    density = np.exp(backend.numpy(likelihood.predictive_log_density(*columns)))
    total = np.trapezoid(density, y) if name == "gaussian" else density.sum()
    np.testing.assert_allclose(total, 1.0, rtol=1e-9)


def test_a_label_is_predicted_with_its_probability(backend):
    likelihood = Bernoulli(squash=1e-3)
    mu, var = backend.array([[0.5, -1.0]]), backend.array([[0.2, 3.0]])
    mean, variance = likelihood.predict(mu, var)
    p = np.exp(backend.numpy(likelihood.predictive_log_density(mu[:, :1], var[:, :1], backend.array([[1.0]]))))
    np.testing.assert_allclose(backend.numpy(mean)[0, 0], p[0], rtol=1e-12)
    np.testing.assert_allclose(backend.numpy(variance), backend.numpy(mean * (1.0 - mean)), rtol=1e-12)


def test_noise_is_added_to_observations(backend):
    mean, variance = backend.move(as_arrays(Gaussian(0.25))).predict(backend.array([[1.5]]), backend.array([[0.5]]))
    np.testing.assert_allclose(backend.numpy(mean), [[1.5]])
    np.testing.assert_allclose(backend.numpy(variance), [[0.75]])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("squash", [0.0, 1e-3], ids=["pure", "squash"])
def test_probit_tails_are_finite(squash, dtype, backend):
    # log Phi(-30) = -454.3: a logarithm of the cdf would be -inf (float32 from -14)
    mu = backend.array([[-30.0], [30.0], [0.0]], dtype)
    var = backend.array([[1e-6], [1e-6], [0.0]], dtype)
    value, pullback = Bernoulli(squash=squash).expected_log_density(
        mu, var, backend.array([[1.0], [1.0], [1.0]], dtype)
    )
    _, mu_bar, var_bar = pullback(backend.array([1.0, 1.0, 1.0], dtype))
    lowest = np.log(squash) if squash else scipy.stats.norm.logcdf(-30.0)
    np.testing.assert_allclose(backend.numpy(value, dtype)[0], lowest, rtol=1e-5)
    if squash == 0.0:
        np.testing.assert_allclose(backend.numpy(mu_bar, dtype)[0, 0], 30.03, rtol=1e-3)
    assert np.isfinite(backend.numpy(mu_bar, dtype)).all()
    assert np.isfinite(backend.numpy(var_bar, dtype)).all()
