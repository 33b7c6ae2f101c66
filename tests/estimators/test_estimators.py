"""Estimators by scikit-learn's conventions: its own checks, tables of every kind, text labels, other libraries."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

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


# -- scikit-learn's own checks ----------------------------------------------------------------------------------------


SHORT = {"max_steps": 350, "num_inducing": 20}


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        GPRegressor(method="gpr"),
        GPRegressor(method="sgpr", num_inducing=20),
        GPRegressor(method="wsvgp", **SHORT),
        GPRegressor(method="rsvgp", **SHORT),
        GPClassifier(method="tvgp", max_steps=50),
        GPClassifier(method="wsvgp", max_steps=100, num_inducing=20),
        GPClassifier(method="rsvgp", max_steps=100, num_inducing=20),
    ],
    ids=str,
)
def test_every_check_of_scikit_learn_passes(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are skipped, and those that the checks provoke
        outcomes = check_estimator(estimator, on_fail=None)
    failed = {one["check_name"]: one["exception"] for one in outcomes if one["status"] == "failed"}
    assert not failed
    assert sum(one["status"] == "passed" for one in outcomes) > 40


def test_parameters_survive_a_copy():
    one = GPRegressor(kernel=agp.RBF() + agp.Linear(), random_state=3)
    assert str(clone(one).get_params()) == str(one.get_params())


# -- regression -------------------------------------------------------------------------------------------------------


def test_error_bars_cover_what_they_promise():
    test = RNG.uniform(-2.0, 2.0, size=(500, 2))
    truth = np.sin(2.0 * test[:, 0]) + 0.5 * test[:, 1] + 0.1 * RNG.normal(size=500)
    mean, deviation = GPRegressor().fit(X, Y).predict(test, return_std=True)
    assert mean.shape == deviation.shape == (500,)
    assert 0.9 < np.mean(np.abs(truth - mean) < 1.96 * deviation) < 0.995


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_answers_do_not_depend_on_units(scale, offset):
    columns = [1e3, 1e-3]
    mean, deviation = GPRegressor().fit(X, Y).predict(X[:9], return_std=True)
    found = GPRegressor().fit(X * columns, scale * (Y + offset)).predict(X[:9] * columns, return_std=True)
    np.testing.assert_allclose(found[0] / scale - offset, mean, atol=2e-3)
    np.testing.assert_allclose(found[1] / scale, deviation, atol=2e-3)


def test_joint_covariances_have_the_variances_on_their_diagonal():
    model = GPRegressor().fit(X, Y)
    _, deviation = model.predict(X[:7], return_std=True)
    _, covariance = model.predict(X[:7], return_cov=True)
    np.testing.assert_allclose(np.diagonal(covariance), deviation**2, rtol=1e-9)
    np.testing.assert_allclose(covariance, covariance.T)
    with pytest.raises(ValueError, match="at most one of return_std and return_cov"):
        model.predict(X, return_std=True, return_cov=True)


def test_several_targets_keep_their_shape():
    both = np.stack([Y, -2.0 * Y], axis=1)
    model = GPRegressor().fit(X, both)
    assert model.predict(X[:5]).shape == (5, 2)
    assert model.predict(X[:5], return_cov=True)[1].shape == (5, 5, 2)
    assert model.sample_y(X[:5], 3).shape == (5, 2, 3)
    assert GPRegressor().fit(X, Y).sample_y(X[:5], 3).shape == (5, 3)


def test_what_training_found_is_told():
    model = GPRegressor().fit(X, Y)
    assert model.method_ == "gpr"
    assert model.converged_
    assert model.n_iter_ == len(model.history_["bound"])
    assert model.bound_ == pytest.approx(float(model.model_.bound(X, Y)[0]))
    assert model.score(X, Y) > 0.95


def test_cross_validation_and_pipelines_take_them():
    scores = cross_val_score(make_pipeline(StandardScaler(), GPRegressor()), X, Y, cv=3)
    assert scores.min() > 0.8


def test_kernels_are_named_or_given():
    named = GPRegressor(kernel="matern32 + linear").fit(X, Y)
    given = GPRegressor(kernel=agp.Matern32() + agp.Linear()).fit(X, Y)
    np.testing.assert_allclose(named.predict(X), given.predict(X))


def test_methods_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="unknown method 'nothing'; known are auto, gpr"):
        GPRegressor(method="nothing").fit(X, Y)
    with pytest.raises(ValueError, match="the method gpr is not for GPClassifier; use one of"):
        GPClassifier(method="gpr").fit(X, LABELS)


def test_rows_can_come_in_parts():
    model = GPRegressor(method="wsvgp", num_inducing=20)
    for start in range(0, 80, 20):
        model.partial_fit(X[start : start + 20], Y[start : start + 20])
    assert model.n_iter_ == 4
    assert model.predict(X).shape == (80,)
    assert not [name for name in dir(GPRegressor(method="gpr")) if name == "partial_fit"]


# -- classification ---------------------------------------------------------------------------------------------------


def test_labels_may_be_text():
    model = GPClassifier().fit(X, LABELS)
    assert list(model.classes_) == ["no", "yes"]
    assert model.score(X, LABELS) > 0.9
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(X))


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


def test_missing_cells_are_refused_or_imputed():
    table = _table()
    table.loc[3, "size"] = np.nan
    table.loc[5, "kind"] = None
    with pytest.raises(ValueError, match="'size' has a missing cell in row 3; fill it in, or ask for missing='impute'"):
        GPRegressor().fit(table, Y)
    with pytest.raises(ValueError, match="column 'kind' has a missing cell in row 5"):
        GPRegressor().fit(table.assign(size=0.0 * X[:, 0] + X[:, 0]), Y)
    assert np.isfinite(GPRegressor(missing="impute").fit(table, Y).predict(table)).all()
    holes = X.copy()
    holes[4, 1] = np.nan
    assert np.isfinite(GPRegressor(missing="impute").fit(holes, Y).predict(holes)).all()
    with pytest.raises(ValueError, match="missing is 'drop', but must be 'refuse' or 'impute'"):
        GPRegressor(missing="drop").fit(X, Y)


def test_dates_and_infinite_numbers_are_refused_by_column():
    with pytest.raises(ValueError, match=r"column 'when' holds Datetime.*; make numbers of it"):
        GPRegressor().fit(_table().assign(when=pd.Timestamp("2020-01-01")), Y)
    table = _table()
    table.loc[2, "size"] = np.inf
    with pytest.raises(ValueError, match="column 'size' has an infinite number in row 2"):
        GPRegressor().fit(table, Y)


def test_lists_and_whole_numbers_are_taken():
    whole = np.round(10.0 * X).astype(int)
    np.testing.assert_allclose(
        GPRegressor().fit(whole.tolist(), Y.tolist()).predict(whole.tolist()),
        GPRegressor().fit(whole, Y).predict(whole),
    )


# -- other libraries --------------------------------------------------------------------------------------------------


def test_torch_tensors_come_back_as_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    A, b = torch.asarray(X), torch.asarray(Y)
    mean, deviation = GPRegressor().fit(A, b).predict(A, return_std=True)
    assert isinstance(mean, torch.Tensor)
    here = GPRegressor().fit(X, Y).predict(X, return_std=True)
    np.testing.assert_allclose(mean.numpy(), here[0], atol=1e-4)
    np.testing.assert_allclose(deviation.numpy(), here[1], atol=1e-4)


def test_host_data_can_be_computed_elsewhere_and_come_back():
    pytest.importorskip("torch", reason="torch is not installed: not executed")
    model = GPRegressor(backend="torch", dtype="float32").fit(X, Y)
    assert agp.backend_of(next(iter(agp.tree.leaves(model.model_).values()))).name == "torch"
    assert isinstance(model.predict(X), np.ndarray)


TENSORS = """
import torch
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from agp.estimators import GPRegressor

torch.manual_seed(0)
X = torch.rand(60, 2, dtype=torch.float64)
y = torch.sin(6.0 * X[:, 0])
with config_context(array_api_dispatch=True):
    pipeline = make_pipeline(StandardScaler(), GPRegressor()).fit(X, y)
    found = pipeline.predict(X)
assert isinstance(found, torch.Tensor)
assert float(((found - y) ** 2).mean()) < 1e-3
"""


@pytest.mark.slow
def test_tensors_pass_through_a_pipeline(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: not executed")
    settings = os.environ | {"SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", TENSORS], env=settings, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
