"""How well each row is predicted from the others: all at once what one refit for each row gives."""

import numpy as np
import pytest
from helpers import assert_close, peak

import agp
from agp import tree
from agp.kernels import RBF, Linear, Matern32, White
from agp.means import ConstantMean, LinearMean, ZeroMean

MODELS = {
    "rbf": lambda: {"kernel": RBF(0.8, 0.7)},
    "ard": lambda: {"kernel": RBF(0.8, (0.7, 1.1, 0.9))},
    "sum": lambda: {"kernel": RBF(0.8, 0.7) + Linear(0.3) + White(0.1)},
    "columns": lambda: {"kernel": Matern32(1.2, 0.8).on([0, 2])},
    "zero": lambda: {"mean_function": ZeroMean()},
    "slopes": lambda: {"mean_function": LinearMean()},
}


def fitted(name, rows, outputs, noise):
    rng = np.random.default_rng([rows, outputs])
    X, y = rng.normal(size=(rows, 3)), 2.0 + rng.normal(size=(rows, outputs))
    return agp.GPR.from_data(X, y, likelihood=agp.Gaussian(noise), **MODELS[name]()), X, y


def refits(model, X, y):
    """Log N(y_n; ...) under the exact GP of all rows but n."""
    found = []
    for n in range(len(X)):
        others = np.arange(len(X)) != n
        rest = tree.with_leaves(model, {"X": X[others], "y": y[others]})
        mean, variance = rest.predict(X[n : n + 1], observed=True)
        density = -0.5 * (np.log(2.0 * np.pi * variance) + (y[n : n + 1] - mean) ** 2 / variance)
        found.append(float(np.sum(density)))
    return np.array(found)


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("noise", [1e-3, 0.3])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_one_refit_for_each_row(name, outputs, noise, backend):
    model, X, y = fitted(name, 14, outputs, noise)
    found = backend.numpy(backend.move(model).leave_one_out())
    assert found.shape == (14,)
    assert_close(found, refits(model, X, y), 1e-9)


def test_a_single_row_is_predicted_by_the_prior():
    model = agp.GPR(
        RBF(np.asarray(2.0), np.asarray(1.0)), agp.Gaussian(np.asarray(0.5)), X=np.ones((1, 1)), y=np.ones((1, 1))
    )
    expected = -0.5 * (np.log(2.0 * np.pi * 2.5) + 1.0 / 2.5)
    assert_close(model.leave_one_out(), np.array([expected]), 1e-12)


def test_duplicates_predict_each_other():
    X = np.repeat(np.linspace(0.0, 9.0, 4), 2)[:, None]
    y = np.repeat(np.arange(4.0), 2)
    alone, twice = (
        agp.GPR.from_data(*data, kernel=RBF(1.0, 0.5), mean_function=ConstantMean())
        for data in ((X[::2], y[::2]), (X, y))
    )
    assert float(np.mean(twice.leave_one_out())) > float(np.mean(alone.leave_one_out()))


def test_short_numbers(backend):
    model, X, y = fitted("rbf", 14, 2, 0.1)
    found = backend.move(model, "float32").leave_one_out()
    assert_close(backend.numpy(found, "float32"), refits(model, X, y), 1e-4)


def test_the_units_of_targets_shift_it():
    model, X, y = fitted("zero", 14, 2, 0.1)
    leaves = tree.leaves(model)
    scaled = {
        "kernel.variance": 100.0 * leaves["kernel.variance"],
        "likelihood.noise_variance": 100.0 * leaves["likelihood.noise_variance"],
    }
    other = tree.with_leaves(model, scaled | {"y": 10.0 * y})
    np.testing.assert_allclose(other.leave_one_out(), model.leave_one_out() - 2.0 * np.log(10.0), rtol=1e-10)


def test_memory_is_that_of_a_few_matrices():
    model, _, _ = fitted("rbf", 400, 1, 0.1)
    assert peak(model.leave_one_out) < 8 * 400**2 * 8 / 2**20
