"""Several columns of targets, and what they share."""

import numpy as np
import pytest
from sklearn.base import clone

import agp
from agp.estimators import GPRegressor

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")  # a few steps are enough


def data(rows=80):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (rows, 1))
    wave = np.sin(2.0 * X)
    return X, np.concatenate([wave, 100.0 - 50.0 * wave], axis=1) + np.asarray([0.1, 5.0]) * rng.normal(size=(rows, 2))


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("outputs", ["separate", "coregionalised", "intrinsic"])
def test_what_is_shared_is_a_choice(outputs):
    X, y = data()
    found = clone(GPRegressor(outputs=outputs, num_inducing=20, max_steps=150, random_state=0)).fit(X, y)
    assert found.method_ == "wsvgp"
    assert found.model_.likelihood.noise_variance.shape == (2,)
    assert type(found.model_.process) is (agp.processes.Stack if outputs == "separate" else agp.processes.LinearMixing)
    mean, deviation = found.predict(X, return_std=True)
    assert mean.shape == deviation.shape == (80, 2)
    assert np.all(np.sqrt(np.mean((mean - y) ** 2, axis=0)) < [0.15, 7.5])
    _, covariance = found.predict(X[:5], return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.einsum("nnk->nk", covariance)), deviation[:5], rtol=1e-8)


@pytest.mark.long
def test_targets_of_unlike_sizes_have_honest_error_bars_or_a_warning():
    X, y = data()
    found = GPRegressor(num_inducing=20, max_steps=150, random_state=0).fit(X, y)
    assert found.method_ == "wsvgp"
    deviation = found.predict(X, return_std=True)[1].mean(axis=0)
    assert 0.05 < deviation[0] < 0.2
    assert 2.5 < deviation[1] < 10.0
    with pytest.warns(UserWarning, match="differ in size by a factor of more than 10, but the method gpr has one"):
        GPRegressor(method="gpr", max_steps=2).fit(X, y)
    GPRegressor(method="gpr", max_steps=2).fit(X, y / [1.0, 50.0])


@pytest.mark.long
def test_fewer_latent_functions_than_targets():
    X, y = data()
    found = GPRegressor(outputs="coregionalised", num_latents=1, num_inducing=10, max_steps=5, random_state=0).fit(X, y)
    assert found.model_.process.weights.shape == (2, 1)
    sparse = GPRegressor(outputs="separate", method="rsvgp", num_inducing=10, max_steps=5, random_state=0).fit(X, y)
    assert type(sparse.model_.process.parts[0].posterior) is agp.posteriors.Relaxed
    parts = GPRegressor(outputs="intrinsic", num_inducing=10, random_state=0).partial_fit(X, y).partial_fit(X, y)
    assert parts.predict(X).shape == (80, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"outputs": "seperate"},
            "unknown outputs 'seperate'; did you mean 'separate'?",
        ),
        ({"outputs": "separate", "method": "gpr"}, "outputs is 'separate', but the method gpr does not support it"),
        ({"num_latents": 2}, "num_latents is 2, but outputs='shared' does not use it"),
        ({"outputs": "intrinsic", "num_latents": 3}, "num_latents is 3, but y has 2 columns"),
        ({"outputs": "intrinsic", "num_latents": 0}, "num_latents is 0, but must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**options).fit(*data())


def test_one_column_has_no_several_outputs():
    X, y = data()
    with pytest.raises(ValueError, match="y has one column; leave it out"):
        GPRegressor(outputs="separate").fit(X, y[:, 0])


@pytest.mark.slow
def test_a_choice_is_saved(tmp_path):
    X, y = data()
    options = {"outputs": "coregionalised", "num_latents": 1, "num_inducing": 10, "max_steps": 5}
    found = GPRegressor(**options, random_state=0).fit(X, y)
    agp.save(found, tmp_path / "model.safetensors")
    again = agp.load(tmp_path / "model.safetensors")
    assert (again.outputs, again.num_latents) == ("coregionalised", 1)
    np.testing.assert_array_equal(again.predict(X), found.predict(X))
