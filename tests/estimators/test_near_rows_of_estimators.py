"""Counts and other noise than Gaussian of many rows: nearest rows with sites, files, and who takes W-SVGP instead."""

import pickle

import numpy as np
import pandas as pd
import pytest

import agp
from agp.estimators import GPClassifier, GPRegressor
from agp.models import SVGP, TNNGP

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")  # one step is enough

RNG = np.random.default_rng(0)
ROWS = 4100
X = RNG.uniform(0.0, 6.0, size=(ROWS, 1))
RATE = np.exp(1.0 + np.sin(2.0 * X[:, 0]))
Y = RNG.poisson(RATE).astype(float)
NEW = np.linspace(0.1, 5.9, 20)[:, None]
QUICK = {"max_steps": 1, "random_state": 0, "kernel": "rbf"}


@pytest.fixture(scope="module")
def fitted():
    return GPRegressor(likelihood="poisson", **QUICK).fit(X, Y)


def test_many_counts_take_nearest_rows(fitted):
    assert fitted.method_ == "tnngp"
    assert isinstance(fitted.model_, TNNGP)
    assert fitted.n_rows_seen_ == ROWS
    rate = np.exp(1.0 + np.sin(2.0 * NEW[:, 0]))
    assert np.median(np.abs(fitted.predict(NEW) / rate - 1.0)) < 0.2
    mean, deviation = fitted.predict(NEW, return_std=True)
    assert np.all(deviation > 0.0)
    assert fitted.score(X[:200], Y[:200]) > 0.3


def test_one_target_in_a_column_is_one_target(fitted):
    found = GPRegressor(likelihood="poisson", **QUICK).fit(X, Y[:, None])
    assert found.method_ == "tnngp"
    np.testing.assert_array_equal(found.predict(NEW)[:, 0], fitted.predict(NEW))


@pytest.mark.parametrize("kernel", [agp.RBF() + agp.White(), agp.Periodic()], ids=["white", "without groups"])
def test_kernels_that_nearest_rows_do_not_support_keep_inducing_inputs(kernel):
    settings = {"max_steps": 1, "random_state": 0, "kernel": kernel}
    assert GPRegressor(likelihood="poisson", **settings).fit(X, Y).method_ == "wsvgp"


def test_they_are_saved_and_loaded(fitted, tmp_path):
    expected = fitted.predict(NEW)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(NEW), expected)
    path = tmp_path / "estimator.safetensors"
    agp.save(fitted, path)
    again = agp.load(path)
    assert again.method_ == "tnngp"
    np.testing.assert_array_equal(again.predict(NEW), expected)
    lower, upper = again.predict_interval(NEW, 0.9).T
    assert np.all(lower <= expected)
    assert np.all(expected <= upper)


def test_what_is_asked_of_estimators_is_answered(fitted):
    assert fitted.sample_y(NEW[:3], n_samples=4, random_state=0).shape == (3, 4)
    line = agp.inspection.partial_dependence(fitted, X[:200], 0)
    assert np.all(np.isfinite(line.mean))
    assert "TNNGP" in repr(fitted.model_)
    assert agp.summary(fitted.model_)


@pytest.mark.parametrize(
    "settings",
    [{"num_inducing": 8}, {"batch_size": 500}, {"layers": 2, "method": "deep-wsvgp", "num_inducing": 8}],
    ids=["inducing", "batches", "layers"],
)
def test_those_who_ask_for_inducing_inputs_or_batches_get_them(settings):
    found = GPRegressor(likelihood="poisson", **QUICK, **settings).fit(X, Y)
    assert found.method_ == settings.get("method", "wsvgp")
    assert not isinstance(found.model_, TNNGP)


def test_two_targets_take_wsvgp():
    found = GPRegressor(likelihood="poisson", **QUICK).fit(X, np.stack([Y, Y + 1.0], axis=1))
    assert found.method_ == "wsvgp"
    assert isinstance(found.model_, SVGP)


def test_few_rows_take_wsvgp():
    found = GPRegressor(likelihood="poisson", **QUICK).fit(X[:300], Y[:300])
    assert found.method_ == "wsvgp"


def test_classes_do_not():
    found = GPClassifier(**QUICK).fit(X[:, :1], (Y > 2.0).astype(int))
    assert not isinstance(found.model_, TNNGP)


@pytest.mark.parametrize("likelihood", ["student-t", "negative-binomial"])
def test_other_noise(likelihood):
    found = GPRegressor(likelihood=likelihood, **QUICK).fit(X, Y)
    assert found.method_ == "tnngp"
    assert np.all(np.isfinite(found.predict(NEW)))


def test_noise_with_two_functions_takes_wsvgp():
    found = GPRegressor(likelihood="latent-noise", **QUICK).fit(X, Y)
    assert found.method_ == "wsvgp"


def test_the_kernel_of_the_user_is_kept():
    found = GPRegressor(likelihood="poisson", kernel=agp.Matern32(), max_steps=1, random_state=0).fit(X, Y)
    assert isinstance(found.model_.kernel, agp.Matern32)


def test_weights_exposures_and_the_name_of_the_method():
    exposure = RNG.uniform(0.5, 2.0, size=200)
    y = RNG.poisson(RATE[:200] * exposure).astype(float)
    found = GPRegressor(method="tnngp", likelihood="poisson", **QUICK).fit(
        X[:200], y, exposure=exposure, sample_weight=np.full(200, 2.0)
    )
    assert found.method_ == "tnngp"
    assert np.all(found.predict(NEW) > 0.0)
    labels = np.where(Y[:200] > 2.0, "many", "few")
    classes = GPClassifier(method="tnngp", **QUICK).fit(X[:200], labels)
    assert classes.score(X[:200], labels) > 0.6
    three = GPClassifier(method="tnngp", **QUICK).fit(X[:200], np.clip(Y[:200], 1.0, 3.0))
    assert three.predict_proba(NEW).shape == (20, 3)


def test_unknown_cells_and_categories():
    table = pd.DataFrame({"x": X[:300, 0], "kind": np.where(X[:300, 0] > 3.0, "a", "b")})
    settings = {"missing": "impute", "max_steps": 1, "random_state": 0}
    holed = table.assign(x=table["x"].where(np.arange(300) % 7 > 0))
    found = GPRegressor(method="tnngp", likelihood="poisson", **settings).fit(holed, Y[:300])
    assert np.all(np.isfinite(found.predict(holed)))
    assert np.all(np.isfinite(found.predict(table.assign(kind="c"))))
