"""Converged means at the optimum: predictions do not depend on rounding, the library or the seed."""

import numpy as np
import pytest

import agp
from agp.estimators import GPRegressor
from agp.training._objective import inner_updates

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6))
F = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]
TEST = RNG.normal(size=(50, 6))
TARGETS = {
    "poisson": RNG.poisson(np.exp(F)).astype(float),
    "negative-binomial": RNG.negative_binomial(3.0, 3.0 / (3.0 + np.exp(F))).astype(float),
    "student-t": F + 0.3 * RNG.standard_t(3, size=40),
    "gamma": RNG.gamma(2.0, np.exp(F) / 2.0),
    "exponential": RNG.exponential(np.exp(F)),
    "beta": np.clip(RNG.beta(10.0 / (1.0 + np.exp(-F)), 10.0 / (1.0 + np.exp(F))), 1e-6, 1.0 - 1e-6),
}
LIMIT = 1e-3
"""The largest change, in standard deviations."""

FITTED: dict[str, GPRegressor] = {}


def fitted(name):
    if name not in FITTED:
        FITTED[name] = GPRegressor(likelihood=name, random_state=0).fit(X, TARGETS[name])
    return FITTED[name]


def changes(model, other):
    """The largest changes of latent functions and of observations, in standard deviations."""
    latent, same = (one.predictor_.predict(one.model_inputs(TEST)) for one in (model, other))
    (mean, deviation), (again, _) = (one.predict(TEST, return_std=True) for one in (model, other))
    moved = np.abs(agp.to_numpy(same.mean) - latent.mean) / np.sqrt(latent.variance)
    if model.likelihood == "gamma":  # the mean of y is shape exp(f), so f is known up to the logarithm of the shape
        moved = np.zeros(1)
    return moved.max(), (np.abs(again - mean) / deviation).max()


@pytest.mark.parametrize("name", TARGETS)
def test_rounding_errors_of_the_inputs_do_not_matter(name):
    model = fitted(name)
    assert model.converged_
    other = GPRegressor(likelihood=name, random_state=0).fit(X * (1.0 + 1e-13), TARGETS[name])
    assert max(changes(model, other)) < LIMIT


@pytest.mark.parametrize("name", ["poisson", "gamma", "student-t"])
def test_nothing_is_drawn_if_all_rows_are_inducing_inputs(name):
    other = GPRegressor(likelihood=name, random_state=7).fit(X, TARGETS[name])
    assert changes(fitted(name), other) == (0.0, 0.0)
    np.testing.assert_array_equal(fitted(name).model_.inducing.Z, X)


@pytest.mark.parametrize("name", ["poisson", "negative-binomial", "student-t", "gamma"])
def test_torch_predicts_the_same(name):
    pytest.importorskip("torch")
    other = GPRegressor(likelihood=name, random_state=0, backend="torch").fit(X, TARGETS[name])
    assert max(changes(fitted(name), other)) < LIMIT


@pytest.mark.parametrize("name", TARGETS)
def test_training_again_gains_nothing(name):
    model, y = fitted(name).model_, TARGETS[name][:, None]
    settings = {"inner": inner_updates(model, None), "frozen": "*.Z", "logarithms": True}
    again = agp.fit_lbfgs(model, X, y, tolerance=1e-10, max_iterations=100, **settings).model
    assert float(again.bound(X, y)[0] - model.bound(X, y)[0]) < 1e-3


def test_a_row_that_is_repeated_is_one_inducing_input():
    twice = np.concatenate([X[:20], X[:20]])
    model = GPRegressor(likelihood="poisson", kernel=agp.RBF()).fit(twice, TARGETS["poisson"])
    assert model.model_.inducing.Z.shape[0] == 20


@pytest.mark.parametrize("settings", [{"likelihood": "gaussian"}, {"likelihood": "poisson", "outputs": "intrinsic"}])
def test_other_models_keep_fewer_inducing_inputs(settings):
    y = np.column_stack([TARGETS["poisson"], TARGETS["poisson"][::-1]])
    model = GPRegressor(kernel=agp.RBF(), max_steps=1, method="wsvgp", **settings)
    with pytest.warns(agp.errors.ConvergenceWarning):
        model.fit(X, y)
    assert model.model_.predict(X[:1]).mean.shape[0] == 1
    assert all(len(Z) < 40 for name, Z in agp.tree.leaves(model.model_).items() if name.endswith("Z"))
