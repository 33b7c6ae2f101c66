"""Latent noise that depends on other columns than the mean."""

import numpy as np
import pandas as pd
import pytest

import agp
from agp import tree
from agp.estimators import GPRegressor
from agp.processes import Stack


def noise_of_groups(seed, rows=200):
    """Return a sine whose noise has standard deviations 0.05 and 0.6 in two groups."""
    g = np.random.default_rng(seed)
    x, s = g.uniform(0.0, 6.0, rows), g.choice(["good", "bad"], rows)
    return pd.DataFrame({"x": x, "s": s}), np.sin(x) + np.where(s == "good", 0.05, 0.6) * g.standard_normal(rows)


def noise_of_a_number(seed, rows=150):
    """Return a sine of the first column, with noise of standard deviation 0.05 + 0.3 times the second column."""
    g = np.random.default_rng(seed)
    X = g.uniform(0.0, 6.0, (rows, 2))
    return X, np.sin(X[:, 0]) + (0.05 + 0.3 * X[:, 1]) * g.standard_normal(rows)


def fitted(X, y, **given):
    return GPRegressor(likelihood="latent-noise", random_state=0, **given).fit(X, y)


@pytest.mark.parametrize(
    "seed", [4, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 1, 2, 3, *range(5, 10)))]
)
def test_groups_with_different_noise_have_different_deviations(seed):
    model = fitted(*noise_of_groups(seed))
    rows = pd.DataFrame({"x": [3.0, 3.0], "s": ["good", "bad"]})
    deviation = model.predict(rows, return_std=True)[1]
    np.testing.assert_allclose(deviation, [0.05, 0.6], rtol=0.25)


def test_the_noise_keeps_a_number_that_the_mean_drops():
    model = fitted(*noise_of_a_number(0))
    places = np.asarray([0.5, 2.0, 4.0, 5.5])
    deviation = model.predict(np.stack([np.full(4, 3.0), places], axis=1), return_std=True)[1]
    np.testing.assert_allclose(deviation, 0.05 + 0.3 * places, rtol=0.35)
    mean, noise = (part.kernel.lengthscale for part in model.model_.process.parts)
    assert mean[1] > 30.0
    assert noise[1] < 30.0


def test_constant_noise_costs_little():
    g = np.random.default_rng(1)
    X, X_test = g.uniform(0.0, 6.0, (100, 1)), g.uniform(0.0, 6.0, (1000, 1))
    y, y_test = (np.sin(x[:, 0]) + 0.3 * g.standard_normal(len(x)) for x in (X, X_test))
    varying, constant = fitted(X, y), GPRegressor(random_state=0).fit(X, y)
    assert np.mean(varying.log_density(X_test, y_test)) > np.mean(constant.log_density(X_test, y_test)) - 0.02


def starts(kernel, **given):
    """Return the lengthscales [2] of the noise after a step."""
    X, y = noise_of_a_number(0, 60)
    with pytest.warns(agp.errors.ConvergenceWarning):
        model = fitted(X, y, kernel=kernel, max_steps=1, **given)
    return model.model_


def test_given_lengthscales_are_starts_of_mean_and_noise():
    model = starts(agp.RBF(lengthscale=np.asarray([1e-3, 1e3])), method="rsvgp")
    for part in model.process.parts:
        np.testing.assert_allclose(part.kernel.lengthscale, [1e-3, 1e3], rtol=0.5)


def test_without_an_optimal_posterior_the_noise_starts_with_all_columns():
    lengthscale = starts("auto", method="rsvgp").process.parts[1].kernel.lengthscale
    assert lengthscale.max() < 2.0 * lengthscale.min()


@pytest.mark.parametrize("given", [{"num_inducing": "auto"}, {"method": "deep-rsvgp"}], ids=["growth", "deep"])
def test_functions_share_a_kernel_where_they_cannot_have_one_each(given):
    model = starts("rbf", **given)
    assert not tree.nodes(model, Stack)
    assert model.outputs == 2
