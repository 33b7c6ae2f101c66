"""Predictions where the latent function is extreme: finite means, positive variances, and a report of what was cut."""

import itertools
import math
import warnings

import numpy as np
import pytest
import scipy.special
from helpers import POSTERIORS, inducing_covariance, problem, process, replaced, with_leaves
from likelihood_cases import KINDS

from agp import tree
from agp.errors import RepairWarning
from agp.likelihoods import Bernoulli, Gaussian, Poisson, RobustMax, Softmax
from agp.repairs import Tally, collect_reports

MEANS = (-1e4, -800.0, -90.0, -40.0, 0.0, 10.0, 40.0, 90.0, 400.0, 800.0, 1e4)
VARIANCES = (0.0, 1e-12, 1.0, 100.0, 1e4)


def extremes(kind, backend, dtype):
    """A likelihood here, and marginals and targets [N, P] of every combination of extremes."""
    y = kind.targets(np.random.default_rng(0), len(MEANS) * len(VARIANCES), 1)
    P = kind.build().latents(y.shape[1])
    grid = np.array(list(itertools.product(MEANS, VARIANCES)))
    mu = np.concatenate([grid[:, :1], np.zeros((len(grid), P - 1))], axis=1)
    var = np.concatenate([grid[:, 1:]] * P, axis=1)
    likelihood = tree.with_leaves(
        kind.build(), {name: backend.array(x, dtype) for name, x in tree.leaves(kind.build()).items()}
    )
    return likelihood, backend.array(mu, dtype), backend.array(var, dtype), backend.array(y, dtype)


@pytest.mark.sample(14)
@pytest.mark.cover(2, quick=1)
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", KINDS)
def test_predictions_are_finite_and_variances_positive(name, dtype, backend):
    likelihood, mu, var, y = extremes(KINDS[name], backend, dtype)
    mean, variance = (backend.numpy(x, dtype) for x in likelihood.predict(mu, var))
    assert np.isfinite(mean).all()
    assert np.isfinite(variance).all()
    assert (variance >= np.finfo(dtype).smallest_normal).all()
    density = backend.numpy(likelihood.predictive_log_density(mu, var, y), dtype)
    assert np.isfinite(density).all()


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_counts_beyond_the_largest_float_are_that_float_with_one_warning(posterior):
    model, X, _ = problem("rbf-ard", posterior)
    model = with_leaves(model, {"posterior.mean": process(model).posterior.mean + 1e5})
    model = replaced(model, likelihood=Poisson())
    with collect_reports():  # of inverse factors, whose repairs are another matter
        model = replaced(model, posterior=process(model).posterior.recompute_factors(inducing_covariance(model)))
    mu, var = model.predict(X)
    assert np.max(mu) > 1e3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mean, variance = model.predict(X, observed=True)
    (warning,) = caught
    assert warning.category is RepairWarning
    largest, smallest = np.finfo(float).max, np.finfo(float).smallest_normal
    logs = (mu + 0.5 * var, np.logaddexp(mu + 0.5 * var, 2.0 * mu + 2.0 * var + np.log(-np.expm1(-var))))
    cut = 0
    for moment, log_moment in zip((mean, variance), logs, strict=True):
        over, under = log_moment > math.log(largest), log_moment < math.log(smallest)
        assert (moment[over] == largest).all()
        assert (moment[under] == smallest).all()
        inside = ~(over | under)
        np.testing.assert_allclose(np.log(moment[inside]), log_moment[inside], rtol=1e-12)
        cut += np.count_nonzero(~inside)
    assert f"{cut} predicted moments" in str(warning.message)


def test_usual_counts_are_predicted_as_ever(backend):
    rng = np.random.default_rng(1)
    mu, var = rng.normal(size=(50, 2)), np.exp(rng.normal(size=(50, 2)))
    var[0] = 0.0
    with collect_reports() as repairs:
        found = Poisson(exposure=1.3).predict(backend.array(mu), backend.array(var))
    assert not Tally(repairs).total
    mean = 1.3 * np.exp(mu + 0.5 * var)
    np.testing.assert_allclose(backend.numpy(found.mean), mean, rtol=1e-13)
    np.testing.assert_allclose(backend.numpy(found.variance), mean + mean**2 * np.expm1(var), rtol=1e-13)


@pytest.mark.parametrize("squash", [0.0, 1e-20])
@pytest.mark.parametrize("link", ["probit", "logit"])
def test_the_variance_of_a_sure_label_keeps_its_digits(link, squash, backend):
    mu, var = np.array([[8.0], [-8.0], [25.0], [-25.0]]), np.full((4, 1), 1e-14)
    found = Bernoulli(link=link, squash=squash).predict(backend.array(mu), backend.array(var))
    cdf = scipy.special.ndtr if link == "probit" else scipy.special.expit
    p, q = ((1.0 - 2.0 * squash) * cdf(x) + squash for x in (mu, -mu))
    np.testing.assert_allclose(backend.numpy(found.mean), p, rtol=1e-9)
    np.testing.assert_allclose(backend.numpy(found.variance), p * q, rtol=1e-5)


def test_the_variances_of_sure_classes_keep_their_digits(backend):
    mu, var = np.array([[50.0, 0.0, -5.0]]), np.full((1, 3), 1e-20)
    variance = backend.numpy(Softmax(3).predict(backend.array(mu), backend.array(var)).variance)[0]
    p = np.exp(mu[0] - 50.0)
    np.testing.assert_allclose(variance, [p[1] + p[2], p[1], p[2]], rtol=1e-6)
    rare = RobustMax(3, epsilon=1e-20, squash=1e-21)
    variance = backend.numpy(rare.predict(backend.array(mu), backend.array(var)).variance)[0]
    np.testing.assert_allclose(variance, [1e-20, 5e-21, 5e-21], rtol=0.5)


def test_without_noise_an_observation_at_an_input_that_is_known_exactly_is_certain(backend):
    zero = backend.array(np.zeros((3, 1)))
    likelihood = Gaussian(zero[0, 0])
    assert not backend.numpy(likelihood.predict(zero, zero).variance).any()
    assert not backend.numpy(likelihood.predictive_quantiles(zero, zero, (0.05, 0.95), samples=1)).any()
