"""Tables whose inputs do not predict the targets: the model predicts their mean and variance, with a warning."""

from functools import partial

import numpy as np
import pytest
from tables import table

import agp
from agp import selection
from agp.errors import NoSignalWarning
from agp.means import LinearMean
from agp.selection._given import Data
from agp.selection._signal import predicts
from agp.training import baseline

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""

SHAPES = {"sample": (20, 1), "wide": (20, 30), "larger": (36, 2), "exact": (55, 3), "collapsed": (110, 2)}


def log_density(y, mean, variance):
    return float(np.mean(np.sum(-0.5 * (np.log(2.0 * np.pi * variance) + (y - mean) ** 2 / variance), axis=1)))


def noise(rows, columns, outputs=1, seed=0):
    rng = np.random.default_rng([seed, rows, columns])
    return rng.normal(size=(rows, columns)), 3.0 + 2.0 * rng.normal(size=(rows, outputs))


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_noise_is_predicted_by_its_mean(shape, seed):
    X, y = noise(*shape, seed=seed)
    with pytest.warns(NoSignalWarning, match="the inputs do not predict the targets") as told:
        found = fit_regression(X, y)
    assert len(told) == 1
    assert str(told[0].message) == found.message
    assert told[0].filename == __file__
    assert not found.learned
    assert found.converged
    assert found.candidates
    rng = np.random.default_rng(9)
    new = rng.normal(size=(50, shape[1]))
    targets = 3.0 + 2.0 * rng.normal(size=(50, 1))
    mean, variance = found.model.predict(new, observed=True)
    assert abs(log_density(targets, mean, variance) - log_density(targets, y.mean(), y.var())) < 0.005
    assert abs(log_density(y, *found.model.predict(X, observed=True)) - baseline(agp.Gaussian(), y)) < 0.005


@pytest.mark.parametrize(("gain", "expected"), [(0.2, True), (0.1, True), (0.0, False), (-0.2, False)])
def test_a_model_predicts_if_it_exceeds_the_moments_on_held_out_rows(gain, expected):
    y, held = noise(90, 1, outputs=2)[1], noise(60, 1, outputs=2, seed=1)[1]
    alone = log_density(held, y.mean(axis=0), y.var(axis=0))
    assert predicts(alone + gain, Data(None, y), Data(None, held)) is expected


@pytest.mark.slow
def test_several_columns_of_noise_have_their_means():
    X, y = noise(55, 2, outputs=3)
    y = y + np.array([0.0, 100.0, -50.0])
    with pytest.warns(NoSignalWarning):
        found = fit_regression(X, y)
    mean, variance = found.model.predict(X, observed=True)
    np.testing.assert_allclose(mean, np.broadcast_to(y.mean(axis=0), y.shape), atol=0.01)
    np.testing.assert_allclose(variance, y.var(axis=0).mean(), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [agp.Linear(), agp.RBF().on([0]), agp.RBF() + agp.Linear(), 2.0 * agp.Matern32()])
@pytest.mark.parametrize("rows", [36, 110])
def test_noise_under_any_kernel(rows, kernel):
    X, y = noise(rows, 2, seed=5)
    with pytest.warns(NoSignalWarning):
        found = fit_regression(X, y, kernel=kernel)
    assert not found.learned
    assert agp.tree.structure(found.model.kernel) == agp.tree.structure(kernel)  # what the user named is never dropped
    assert found.model.predict(X, observed=True).variance.min() > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("mean_function", [agp.ZeroMean(), LinearMean()])
def test_a_mean_function_of_the_user_stays(mean_function):
    X, y = noise(36, 2, seed=3)
    with pytest.warns(NoSignalWarning, match="rows that were held back are predicted no better than by the mean"):
        found = fit_regression(X, y, kernel=agp.RBF(), mean_function=mean_function)
    assert type(found.model.mean_function) is type(mean_function)
    # the mean of the targets is not among its functions, but they come close to it
    assert log_density(y, *found.model.predict(X, observed=True)) > baseline(agp.Gaussian(), y) - 0.3


@pytest.mark.long
@pytest.mark.usefixtures("full_size")
@pytest.mark.parametrize(("rows", "method"), [(400, "gpr"), (1200, "sgpr")])
def test_noise_at_full_size(rows, method):
    X, y = noise(rows, 3)
    with pytest.warns(NoSignalWarning):
        found = fit_regression(X, y, method=method, most=256, tolerance=0.1)
    assert not found.learned
    density = log_density(y[:500], *found.model.predict(X[:500], observed=True))
    assert abs(density - log_density(y[:500], y.mean(), y.var())) < 0.005


# -- a weak signal -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("full_size")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_weak_signal_is_learned(seed):
    rng = np.random.default_rng(seed)
    for method, rows in (("gpr", 110), ("sgpr", 1200)):
        X = rng.uniform(-2.0, 2.0, size=(rows, 1))
        y = X[:, 0] + 1.5 * rng.normal(size=rows)  # 37 % of the variance
        found = fit_regression(X, y, method=method)
        assert found.learned
        new = np.linspace(-2.0, 2.0, 9)[:, None]
        assert np.sqrt(np.mean((found.model.predict(new)[0] - new) ** 2)) < 0.9


@pytest.mark.long
@pytest.mark.usefixtures("full_size")
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("rows", "size"), [(600, 0.45), (6000, 0.3)])
def test_a_signal_of_a_few_percent_is_learned(rows, size, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    y = size * np.sin(X[:, 0]) + rng.normal(size=rows)
    assert fit_regression(X, y, kernel=agp.RBF(), most=128, max_seconds=60.0).learned


@pytest.mark.slow
def test_a_strong_signal_is_no_noise():
    X, y = table(55)
    found = fit_regression(X, y)
    assert found.learned
    assert found.bound > len(X) * found.baseline
