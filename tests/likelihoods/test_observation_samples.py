"""Draws of observations have the distribution that the other functions of the likelihood say."""

from typing import Any

import numpy as np
import pytest
from helpers import NUMPY
from likelihood_cases import KINDS, problem_of

from agp import tree
from agp.likelihoods import Gamma, Likelihood, NegativeBinomial, Poisson, RobustMax, Softmax, StudentT

DRAWS = 40_000


@pytest.mark.parametrize("name", [name for name in KINDS if name != "robustmax-rough"])  # it rounds predictions
def test_draws_have_the_predicted_moments(name):
    problem = problem_of(name, rows=4)
    rng = np.random.default_rng(3)
    f = problem.mu + np.sqrt(problem.var) * rng.standard_normal((DRAWS, *problem.mu.shape))
    y = problem.likelihood.sample(f, rng)
    mean, variance = problem.likelihood.predict(problem.mu, problem.var)
    plain = getattr(problem.likelihood, "likelihood", problem.likelihood)
    if isinstance(plain, RobustMax | Softmax):  # the probabilities of the classes
        y = 1.0 * (y == np.arange(plain.classes))
    assert y.shape == (DRAWS, *mean.shape)
    finite = np.isfinite(variance)
    error = np.abs(y.mean(axis=0) - mean) / np.sqrt(np.where(finite, variance, np.inf) / DRAWS)
    assert error.max() < (7.0 if isinstance(plain, Softmax) else 4.5)  # whose prediction is an estimate


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.classes is None])
def test_draws_are_as_often_below_quantiles_as_these_say(name):
    problem = problem_of(name, rows=4)
    rng = np.random.default_rng(4)
    f = problem.mu + np.sqrt(problem.var) * rng.standard_normal((DRAWS, *problem.mu.shape))
    y = problem.likelihood.sample(f, rng)
    levels = (0.05, 0.5, 0.9)
    ends = problem.likelihood.predictive_quantiles(problem.mu, problem.var, levels)
    spread = 4.5 * np.sqrt(0.25 / DRAWS)
    for level, end in zip(levels, ends, strict=True):
        assert np.all((y <= end).mean(axis=0) > level - spread)
        assert np.all((y < end).mean(axis=0) < level + spread)


def test_parameters_may_be_numbers_of_python():
    f = np.zeros((4, 1))
    for number, array in ((Gamma(2.0), Gamma(np.asarray(2.0))), (StudentT(1), StudentT(np.asarray(1.0)))):
        found, expected = (one.sample(f, np.random.default_rng(0)) for one in (number, array))
        np.testing.assert_array_equal(found, expected)
        found, expected = (one.predictive_cdf(f, f + 1.0, f + 0.5) for one in (number, array))
        np.testing.assert_array_equal(found, expected)


def test_a_likelihood_without_draws_says_so():
    nothing: Any = None

    @tree.model
    class Own(Likelihood):
        expected_log_density = predict = predictive_log_density = from_data = check_targets = nothing

    with pytest.raises(TypeError, match="Own cannot draw observations"):
        Own().sample(NUMPY.array([0.0]), None)


@pytest.mark.parametrize("parent", [Poisson, NegativeBinomial])
def test_whole_numbers_reach_the_lower_bound_of_their_support(parent):
    @tree.model
    class Own(parent):
        support = (0.0, np.inf)

    likelihood, f = Own(), np.full((50, 1), -1.0)
    quantiles = likelihood.predictive_quantiles(f, 0.1 + 0.0 * f, (0.05, 0.5, 0.999))
    np.testing.assert_array_equal(quantiles, parent().predictive_quantiles(f, 0.1 + 0.0 * f, (0.05, 0.5, 0.999)))
    assert quantiles.min() == 0.0
    y = likelihood.sample(f, np.random.default_rng(0))
    np.testing.assert_array_equal(y, parent().sample(f, np.random.default_rng(0)))
    assert y.min() == 0.0


@pytest.mark.parametrize("whole", [True, False])
def test_only_whole_numbers_reach_the_bounds_zero_and_one(whole):
    nothing: Any = None

    @tree.model
    class Own(Likelihood):
        support = (0.0, 1.0)
        whole_numbers = whole
        expected_log_density = predict = predictive_log_density = nothing

        def _sample(self, f, rng):
            return 1.0 * (rng.uniform(size=f.shape) < 0.5)

    y = Own().sample(np.zeros((50, 1)), np.random.default_rng(0))
    assert (y.min() == 0.0) == (y.max() == 1.0) == whole
