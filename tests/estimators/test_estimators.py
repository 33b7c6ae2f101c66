"""Estimators: error bars, units, methods and kernels by name, tables of every kind, labels."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import agp
from agp.errors import ConvergenceWarning
from agp.estimators import GPClassifier, GPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(80, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=80)
LABELS = np.where(X[:, 0] * X[:, 1] > 0.0, "yes", "no")


@pytest.fixture(autouse=True)
def _short_trainings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def test_parameters_survive_a_copy():
    one = GPRegressor(kernel=agp.RBF() + agp.Linear(), random_state=3)
    assert str(clone(one).get_params()) == str(one.get_params())


# -- regression -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_error_bars_cover_what_they_promise():
    test = RNG.uniform(-2.0, 2.0, size=(500, 2))
    truth = np.sin(2.0 * test[:, 0]) + 0.5 * test[:, 1] + 0.1 * RNG.normal(size=500)
    mean, deviation = GPRegressor().fit(X, Y).predict(test, return_std=True)
    assert mean.shape == deviation.shape == (500,)
    assert 0.9 < np.mean(np.abs(truth - mean) < 1.96 * deviation) < 0.995


@pytest.mark.long
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_answers_do_not_depend_on_units(scale, offset):
    columns = [1e3, 1e-3]
    mean, deviation = GPRegressor().fit(X, Y).predict(X[:9], return_std=True)
    found = GPRegressor().fit(X * columns, scale * (Y + offset)).predict(X[:9] * columns, return_std=True)
    np.testing.assert_allclose(found[0] / scale - offset, mean, atol=2e-3)
    np.testing.assert_allclose(found[1] / scale, deviation, atol=2e-3)


@pytest.mark.long
def test_joint_covariances_have_the_variances_on_their_diagonal():
    model = GPRegressor().fit(X, Y)
    _, deviation = model.predict(X[:7], return_std=True)
    _, covariance = model.predict(X[:7], return_cov=True)
    np.testing.assert_allclose(np.diagonal(covariance), deviation**2, rtol=1e-9)
    np.testing.assert_allclose(covariance, covariance.T)
    with pytest.raises(ValueError, match="return_std and return_cov are both true"):
        model.predict(X, return_std=True, return_cov=True)


@pytest.mark.long
def test_several_targets_keep_their_shape():
    both = np.stack([Y, -2.0 * Y], axis=1)
    model = GPRegressor().fit(X, both)
    assert model.predict(X[:5]).shape == (5, 2)
    assert model.predict(X[:5], return_cov=True)[1].shape == (5, 5, 2)
    assert model.sample_y(X[:5], 3).shape == (5, 2, 3)
    assert GPRegressor().fit(X, Y).sample_y(X[:5], 3).shape == (5, 3)


@pytest.mark.long
def test_what_training_found_is_told():
    model = GPRegressor(hyperparameters="mode").fit(X, Y)
    assert model.method_ == "gpr"
    assert model.converged_
    assert model.n_iter_ == len(model.history_["bound"])
    assert model.bound_ == pytest.approx(float(model.model_.bound(X, Y)[0]))
    assert model.score(X, Y) > 0.95


@pytest.mark.long
def test_cross_validation_and_pipelines_take_them():
    scores = cross_val_score(make_pipeline(StandardScaler(), GPRegressor()), X, Y, cv=3)
    assert scores.min() > 0.8


@pytest.mark.long
def test_kernels_are_named_or_given():
    named = GPRegressor(kernel="matern32 + linear").fit(X, Y)
    given = GPRegressor(kernel=agp.Matern32() + agp.Linear()).fit(X, Y)
    np.testing.assert_allclose(named.predict(X), given.predict(X))


def test_methods_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="unknown method 'nothing'; choose from auto, gpr"):
        GPRegressor(method="nothing").fit(X, Y)
    with pytest.raises(ValueError, match="the method gpr is only for regression; use auto, or one of"):
        GPClassifier(method="gpr").fit(X, LABELS)


# -- classification ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_labels_may_be_text():
    model = GPClassifier().fit(X, LABELS)
    assert list(model.classes_) == ["no", "yes"]
    assert model.score(X, LABELS) > 0.9
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(X))


@pytest.mark.long
def test_there_may_be_several_classes():
    labels = np.digitize(X[:, 0], [-0.7, 0.7])
    model = GPClassifier(max_steps=300, num_inducing=20).fit(X, labels)
    assert model.method_ == "wsvgp"
    assert model.predict_proba(X).shape == (80, 3)
    assert model.score(X, labels) > 0.9


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="y has one class, 'a'; a classifier needs two or more classes"):
        GPClassifier().fit(X, ["a"] * 80)


# -- tables -----------------------------------------------------------------------------------------------------------


def _table():
    return pd.DataFrame({"size": X[:, 0], "kind": np.where(X[:, 1] > 0.0, "big", "small"), "on": X[:, 1] > 1.0})


@pytest.mark.long
def test_data_frames_with_text_and_booleans_become_numbers():
    table = _table()
    targets = np.sin(2.0 * table["size"]) + 1.0 * (table["kind"] == "big") + 0.1 * RNG.normal(size=80)
    model = GPRegressor().fit(table, targets)
    assert list(model.feature_names_in_) == ["size", "kind", "on"]
    assert model.n_features_in_ == 3
    assert model.score(table, targets) > 0.98
    unseen = table.head(2).assign(kind="enormous")
    assert np.isfinite(model.predict(unseen)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table.rename(columns={"size": "length"}))


@pytest.mark.long
def test_missing_cells_are_refused_or_imputed():
    table = _table()
    table.loc[3, "size"] = np.nan
    table.loc[5, "kind"] = None
    with pytest.raises(
        ValueError,
        match="column 'size' has a missing cell in row 3 .counted from 0.; fill it in, or set missing='impute'",
    ):
        GPRegressor().fit(table, Y)
    with pytest.raises(ValueError, match="column 'kind' has a missing cell in row 5"):
        GPRegressor().fit(table.assign(size=0.0 * X[:, 0] + X[:, 0]), Y)
    assert np.isfinite(GPRegressor(missing="impute").fit(table, Y).predict(table)).all()
    holes = X.copy()
    holes[4, 1] = np.nan
    assert np.isfinite(GPRegressor(missing="impute").fit(holes, Y).predict(holes)).all()
    with pytest.raises(ValueError, match="missing is 'drop', but must be 'refuse' or 'impute'"):
        GPRegressor(missing="drop").fit(X, Y)


def test_intervals_and_infinite_numbers_are_refused_by_column():
    with pytest.raises(
        ValueError, match=r"column 'size' holds cells of type interval\[.*\]; convert them to float, dates or text"
    ):
        GPRegressor().fit(_table().assign(size=pd.interval_range(0, len(Y))), Y)
    table = _table()
    table.loc[2, "size"] = np.inf
    with pytest.raises(ValueError, match="column 'size' has an infinite number in row 2"):
        GPRegressor().fit(table, Y)


@pytest.mark.long
def test_lists_and_whole_numbers_are_taken():
    whole = np.round(10.0 * X).astype(int)
    np.testing.assert_allclose(
        GPRegressor().fit(whole.tolist(), Y.tolist()).predict(whole.tolist()),
        GPRegressor().fit(whole, Y).predict(whole),
    )


def test_a_fit_without_time_has_a_model_and_no_candidates():
    X = np.random.default_rng(0).normal(size=(300, 2))
    with pytest.warns(ConvergenceWarning):
        model = GPRegressor(max_seconds=1e-6).fit(X, X[:, 0])
    assert model.candidates_["kernel"] == []
    assert np.isfinite(model.predict(X, return_std=True)).all()
