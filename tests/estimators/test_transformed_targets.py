"""`GPRegressor(target_transform=...)`: predictions in the unit of the targets, files, and what is refused."""

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp import GPRegressor, inspection
from agp.likelihoods import Log, Logit, YeoJohnson

N = 90
RNG = np.random.default_rng(5)
X = RNG.uniform(0.0, 6.0, (N, 1))
F = np.sin(X[:, 0]) + 0.15 * RNG.standard_normal(N)
KINDS = {
    "log": (np.exp(F), Log),
    "yeo-johnson": (3.0 - 10.0 * np.exp(F), YeoJohnson),
    "logit": (np.round(100.0 / (1.0 + np.exp(-4.0 * F))), Logit),
}
SETTINGS = {"hyperparameters": "mode", "random_state": 0}


@pytest.fixture(scope="module")
def fitted():
    return {name: GPRegressor(target_transform=name, **SETTINGS).fit(X, y) for name, (y, _) in KINDS.items()}


@pytest.mark.parametrize("name", KINDS)
def test_predictions_are_those_of_the_targets(name, fitted):
    y, kind = KINDS[name]
    model, at = fitted[name], X[:5]
    assert isinstance(model.transform_, kind)
    latent, draws = model.model_.predictor(), model.sample(at, 20_000)
    low, middle, high = model.predict_quantiles(at, [0.1, 0.5, 0.9]).T
    assert_close(middle, model.transform_.inverse(latent.predict_mean(at)[:, 0]), 1e-9)
    assert_close(np.quantile(draws, 0.9, axis=1), high, 0.1)
    mean, deviation = model.predict(at, return_std=True)
    assert np.abs(draws.mean(axis=1) - mean).max() < 0.05 * np.std(y)
    assert np.abs(draws.std(axis=1) / deviation - 1.0).max() < 0.1
    slopes = model.transform_.log_slope(y)
    assert_close(model.log_density(X, y), latent.log_density(X, model.transform_.forward(y)) + slopes, 1e-9)
    assert_close(
        model.bound_, float(model.model_.bound(X, model.transform_.forward(y)[:, None])[0]) + slopes.sum(), 1e-6
    )
    functions = model.sample_y(at, 2000)
    assert np.all((low < np.median(functions, axis=1)) & (np.median(functions, axis=1) < high))
    assert model.score(X, y) > 0.85
    assert f"transform: {name}" in model.facts()["estimator"]
    assert f"transform: {name}" in model._repr_html_inner()


@pytest.mark.parametrize("name", KINDS)
def test_files_keep_the_transform(name, fitted, tmp_path):
    agp.save(fitted[name], tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    assert repr(again.transform_) == repr(fitted[name].transform_)
    for method in ("predict", "predict_interval"):
        assert np.array_equal(getattr(again, method)(X), getattr(fitted[name], method)(X))


@pytest.mark.parametrize("name", KINDS)
def test_effects_and_importances_are_in_the_unit_of_the_targets(name, fitted):
    y = KINDS[name][0]
    effect = inspection.partial_dependence(fitted[name], X, 0)
    assert np.all((effect.mean > y.min() - np.ptp(y)) & (effect.mean < y.max() + np.ptp(y)))
    assert np.ptp(effect.mean) > 0.4 * np.ptp(y)
    own = inspection.permutation_importance(fitted[name])
    assert_close(own.score, inspection.permutation_importance(fitted[name], X, y).score, 1e-6)


def test_the_automatic_choice_is_the_default_and_gives_the_model_of_that_transform():
    y = np.exp(2.0 * F)
    found, log, none = (
        GPRegressor(**kind, **SETTINGS).fit(X, y)
        for kind in ({}, {"target_transform": "log"}, {"target_transform": "none"})
    )
    assert isinstance(found.transform_, Log)
    assert none.transform_ is None
    assert_close(found.predict(X), log.predict(X), 1e-6)
    assert_close(found.bound_, log.bound_, 1e-6)
    assert found.bound_ > none.bound_ + 10.0
    assert found._largest == log._largest


def test_targets_beyond_the_support_of_a_chosen_transform_are_improbable():
    y = np.exp(2.0 * F)
    found = GPRegressor(**SETTINGS).fit(X, y)
    assert np.isneginf(found.log_density(X[:2], [-1.0, 1.0])).tolist() == [True, False]
    with pytest.raises(ValueError, match="the transform 'log' needs positive targets, but y has -1"):
        GPRegressor(target_transform="log", **SETTINGS).fit(X, y).log_density(X[:2], [-1.0, 1.0])


def test_a_chosen_transform_takes_no_known_noise_in_predictions():
    y = np.exp(2.0 * F)
    found = GPRegressor(**SETTINGS).fit(X, y)
    with pytest.raises(ValueError, match="noise is given, but target_transform='log' does not use it"):
        found.predict(X, noise=np.ones(N))
    assert found.fit(X, y, noise=0.01 * np.ones(N)).transform_ is None
    assert found.predict(X, noise=np.ones(N)).shape == (N,)


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("settings", [{"likelihood": "gamma"}, {"method": "wsvgp", "max_steps": 2}])
def test_other_models_have_no_transform_by_default(settings):
    assert GPRegressor(kernel="rbf", random_state=0, **settings).fit(X, np.exp(F)).transform_ is None


def test_parts_of_the_data_keep_the_transform():
    y = KINDS["yeo-johnson"][0]
    model = GPRegressor(target_transform="yeo-johnson", kernel="rbf", random_state=0)
    first = model.partial_fit(X[:60], y[:60]).transform_
    assert model.partial_fit(X[60:], y[60:]).transform_ is first


def test_several_targets_have_one_transform():
    y = np.stack([np.exp(F), np.exp(-F)], axis=1)
    model = GPRegressor(target_transform="log", kernel="rbf", max_steps=50, random_state=0).fit(X, y)
    assert np.all(model.predict(X) > 0.0)
    with pytest.raises(ValueError, match="the transform 'yeo-johnson' is for one target, but y has 2"):
        GPRegressor(target_transform="yeo-johnson").fit(X, y)


@pytest.mark.filterwarnings("ignore:all targets are the same")
@pytest.mark.parametrize("name", KINDS)
def test_equal_targets_are_predicted(name):
    mean, deviation = GPRegressor(target_transform=name).fit(X, np.full(N, 0.7)).predict(X[:2], return_std=True)
    assert np.all(np.abs(mean - 0.7) < 0.01)
    assert np.all((deviation > 0.005) & (deviation < 0.1))
