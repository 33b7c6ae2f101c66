"""Targets that are all the same, and single rows: one rule for `fit_regression` and `GPRegressor`."""

import numpy as np
import pytest

import agp
from agp.errors import NoSignalWarning
from agp.estimators import GPRegressor

RNG = np.random.default_rng(0)
X, FAR = RNG.uniform(size=(6, 2)), np.asarray([[30.0, 40.0], [-20.0, 10.0]])
CASES = {
    "equal": (X, np.full(6, 3.0)),
    "zero": (X, np.zeros(6)),
    "one": (X[:1], np.asarray([-15.0])),
    "two": (X[:2], np.full(2, 3.0)),
    "tiny": (X, np.full(6, 1e-9)),
}
KNOWN = {
    "no noise": {"likelihood": agp.Gaussian(0.0)},
    "a number": {"likelihood": agp.Gaussian(1e-20)},
    "known noise": {"likelihood": agp.Gaussian(0.0), "noise": 1e-20},
}


def by_function(X, y, *, noise=None, **options):
    noise = None if noise is None else np.full(len(y), noise)
    with pytest.warns(NoSignalWarning, match="all targets are the same"):
        result = agp.fit_regression(X, y, noise=noise, **options)
    assert not result.learned
    return lambda rows, observed=False: [np.ravel(x) for x in result.model.predict(rows, observed=observed)]


def by_estimator(X, y, *, noise=None, **options):
    noise = None if noise is None else np.full(len(y), noise)
    with pytest.warns(UserWarning, match="all targets are the same"):
        estimator = GPRegressor(**options).fit(X, y, noise=noise)
    return lambda rows, observed=False: [np.ravel(x) for x in estimator.model_.predict(rows, observed=observed)]


@pytest.mark.parametrize("fit", [by_function, by_estimator])
@pytest.mark.parametrize("name", CASES)
def test_noise_that_is_learned_is_a_tenth_of_the_targets(name, fit):
    X, y = CASES[name]
    mean, variance = fit(X, y)(np.concatenate([X, FAR]), observed=True)
    size = np.max(np.abs(y)) or 1.0
    np.testing.assert_allclose(mean, y[0], atol=1e-6 * size)
    np.testing.assert_allclose(np.sqrt(variance), 0.1 * size, rtol=1e-3)


@pytest.mark.parametrize("fit", [by_function, by_estimator])
@pytest.mark.parametrize("options", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("name", ["equal", "zero", "one", "two"])
def test_functions_without_noise_are_known_at_the_rows_and_unknown_far_away(name, options, fit):
    X, y = CASES[name]
    predict = fit(X, y, **options)
    size = np.max(np.abs(y)) or 1.0
    mean, variance = predict(X)
    np.testing.assert_allclose(mean, y, atol=1e-6 * size)
    assert np.all(np.sqrt(variance) < 1e-3 * size)
    mean, variance = predict(FAR)
    np.testing.assert_allclose(mean, y[0], atol=1e-6 * size)
    assert np.all(np.sqrt(variance) > 0.05 * size)


@pytest.mark.parametrize("options", [{"hyperparameters": "mode"}, {"method": "sgpr"}, {"store_data": False}])
def test_other_methods_follow_the_rule(options):
    mean, variance = by_function(*CASES["equal"], **options)(FAR, observed=True)
    np.testing.assert_allclose(mean, 3.0, atol=1e-6)
    np.testing.assert_allclose(np.sqrt(variance), 0.3, rtol=1e-3)


def test_several_targets_and_many_rows():
    many = RNG.uniform(size=(5000, 2))
    _, variance = by_function(many, np.tile([2.0, -4.0], (5000, 1)))(FAR, observed=True)
    np.testing.assert_allclose(np.sqrt(variance), 0.4, rtol=1e-3)


def test_a_kernel_of_the_user_is_kept():
    options = {"kernel": agp.RBF(1.0, 0.5), "likelihood": agp.Gaussian(0.0)}
    with pytest.warns(NoSignalWarning):
        result = agp.fit_regression(*CASES["equal"], **options)
    np.testing.assert_allclose(result.model.kernel.lengthscale, 0.5)
