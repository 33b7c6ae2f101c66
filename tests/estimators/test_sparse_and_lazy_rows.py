"""Rows, targets and weights as sparse matrices, or as data frames that are not computed yet."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from agp.estimators import GPClassifier, GPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(40, 3)) * (RNG.uniform(size=(40, 3)) < 0.6)
Y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.standard_normal(40)
LABELS = np.where(X[:, 0] > 0.0, "yes", "no")
FORMATS = ["csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "csc_array", "coo_array", "dok_array", "lil_array"]

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")


def regressor(**settings):
    return GPRegressor(**{"kernel": "rbf", "hyperparameters": "mode", "max_steps": 10} | settings)


def classifier():
    return GPClassifier(kernel="rbf", max_steps=5)


# -- sparse matrices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_sparse_rows_are_rows(name):
    rows = getattr(sparse, name)(X)
    model, dense = regressor().fit(rows, Y), regressor().fit(X, Y)
    for found, known in zip(model.predict(rows, return_std=True), dense.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(found, known)
    np.testing.assert_array_equal(dense.predict(rows), dense.predict(X))
    assert model.n_features_in_ == 3


@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")  # of signs alone
@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_sparse_rows_keep_their_precision(dtype):
    rows = X.astype(dtype)
    found, known = (regressor().fit(A, Y).predict(A) for A in (sparse.csr_array(rows), rows))
    np.testing.assert_array_equal(found, known)
    assert found.dtype == known.dtype


def test_sparse_rows_of_classifiers():
    model, dense = classifier().fit(sparse.csr_matrix(X), LABELS), classifier().fit(X, LABELS)
    np.testing.assert_array_equal(model.predict_proba(sparse.csc_array(X)), dense.predict_proba(X))
    assert model.score(sparse.coo_array(X), LABELS) == dense.score(X, LABELS)
    parts = GPClassifier(method="wsvgp", num_inducing=5, random_state=0).partial_fit(sparse.csr_array(X), LABELS)
    again = GPClassifier(method="wsvgp", num_inducing=5, random_state=0).partial_fit(X, LABELS)
    np.testing.assert_array_equal(parts.predict_proba(X), again.predict_proba(X))


def test_missing_cells_of_sparse_rows():
    holed = np.where(X > 1.5, np.nan, X)
    with pytest.raises(ValueError, match="X has NaN in row .*set missing='impute'"):
        regressor().fit(sparse.csr_array(holed), Y)
    found, known = (regressor(missing="impute").fit(A, Y).predict(A) for A in (sparse.csr_array(holed), holed))
    np.testing.assert_array_equal(found, known)


def test_sparse_targets_and_weights():
    weights = RNG.uniform(1.0, 2.0, 40)
    column = sparse.csr_array(Y[:, None])
    np.testing.assert_array_equal(regressor().fit(X, column).predict(X), regressor().fit(X, Y[:, None]).predict(X))
    found, known = (regressor().fit(X, Y, w).predict(X) for w in (sparse.coo_array(weights), weights))
    np.testing.assert_array_equal(found, known)
    codes = (X[:, 0] > 0.0).astype(int)
    np.testing.assert_array_equal(
        classifier().fit(X, sparse.coo_array(codes)).predict(X), classifier().fit(X, codes).predict(X)
    )


@pytest.mark.parametrize(
    ("rows", "size"),
    [(sparse.csr_array((10**6, 10**4)), "80,000,000,000"), (sparse.coo_array((10**8, 3), dtype="f4"), "1,200,000,000")],
)
def test_sparse_rows_that_do_not_fit_are_refused(rows, size):
    words = f"^X is a sparse matrix of shape .* which would take {size} bytes as a dense array; reduce it .*rows.$"
    with pytest.raises(ValueError, match=words):
        regressor().fit(rows, np.zeros(rows.shape[0]))
    with pytest.raises(ValueError, match=words):
        regressor().fit(X, Y).predict(rows)


def test_sparse_rows_of_one_dimension_are_refused():
    with pytest.raises(ValueError, match=r"X has shape \(40,\), but must have rows and columns"):
        regressor().fit(sparse.coo_array(Y), Y)
    with pytest.raises(ValueError, match="holds complex numbers"):
        regressor().fit(sparse.csr_array(X * 1j), Y)


# -- lazy data frames -------------------------------------------------------------------------------------------------


def test_lazy_frames_of_polars_are_computed():
    polars = pytest.importorskip("polars", reason="polars is not installed: not executed")
    frame = polars.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y, "label": LABELS, "w": np.abs(Y) + 1.0})
    table, lazy = frame.select("a", "b"), frame.lazy()
    model = regressor().fit(lazy.select("a", "b"), lazy.select("y"))
    known = regressor().fit(table, frame.select("y"))
    np.testing.assert_array_equal(model.predict(lazy.select("a", "b")), known.predict(table))
    assert list(model.feature_names_in_) == ["a", "b"]
    assert model.score(lazy.select("a", "b"), lazy.select("y")) == known.score(table, frame.select("y"))
    np.testing.assert_array_equal(
        model.log_density(lazy.select("a", "b"), lazy.select("y")), known.log_density(table, frame.select("y"))
    )
    with pytest.raises(ValueError, match="X has no column 'b', with which the model was trained"):
        model.predict(lazy.select("a"))
    with pytest.warns(UserWarning, match="column-vector y"):
        labels = classifier().fit(lazy.select("a", "b"), lazy.select("label"))
    np.testing.assert_array_equal(labels.predict(lazy.select("a", "b")), classifier().fit(table, LABELS).predict(table))
    with pytest.raises(ValueError, match=r"sample_weight has shape \(40, 1\), but must be 1D"):
        regressor().fit(table, Y, sample_weight=lazy.select("w"))


def test_lazy_frames_in_narwhals_are_computed():
    polars = pytest.importorskip("polars", reason="polars is not installed: not executed")
    narwhals = pytest.importorskip("narwhals", reason="narwhals is not installed: not executed")
    frame = polars.DataFrame({"a": X[:, 0]})
    found = regressor().fit(narwhals.from_native(frame.lazy()), Y)
    np.testing.assert_array_equal(found.predict(frame), regressor().fit(frame, Y).predict(frame))


@pytest.mark.parametrize("kind", [regressor, classifier])
def test_lazy_frames_of_other_libraries_are_refused(kind):
    dask = pytest.importorskip("dask.dataframe", reason="dask is not installed: not executed")
    table = pd.DataFrame({"a": X[:, 0]})
    lazy, y = dask.from_pandas(table, npartitions=2), Y if kind is regressor else LABELS
    with pytest.raises(TypeError, match=r"^X is a lazy data frame, .*; pass X.compute\(\)\.$"):
        kind().fit(lazy, y)
    with pytest.raises(TypeError, match=r"^y is a lazy data frame, .*; pass y.compute\(\)\.$"):
        kind().fit(table, lazy)
    with pytest.raises(TypeError, match=r"^sample_weight is a lazy data frame, .*; pass sample_weight.compute\(\)\.$"):
        kind().fit(table, y, sample_weight=lazy)
    with pytest.raises(TypeError, match=r"pass X.compute\(\)"):
        kind().fit(table, y).predict(lazy)


def test_lazy_targets_of_rows_in_memory():
    dask = pytest.importorskip("dask.array", reason="dask is not installed: not executed")
    found = regressor().fit(X, dask.from_array(Y, chunks=10)).predict(X)
    np.testing.assert_array_equal(found, regressor().fit(X, Y).predict(X))
