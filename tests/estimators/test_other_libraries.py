"""Estimators with arrays of torch and JAX: nothing leaves its library, and scikit-learn passes tensors through."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import agp
from agp.errors import ConvergenceWarning
from agp.estimators import GPClassifier, GPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(60, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=60)
CODES = (X[:, 0] > 0.0) + 5


@pytest.fixture(autouse=True)
def _short_trainings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


@pytest.mark.long
def test_torch_tensors_come_back_as_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    A, b = torch.asarray(X), torch.asarray(Y)
    mean, deviation = GPRegressor().fit(A, b).predict(A, return_std=True)
    assert isinstance(mean, torch.Tensor)
    here = GPRegressor().fit(X, Y).predict(X, return_std=True)
    np.testing.assert_allclose(mean.numpy(), here[0], atol=1e-4)
    np.testing.assert_allclose(deviation.numpy(), here[1], atol=1e-4)


@pytest.mark.slow
def test_torch_integers_and_other_precisions_are_taken():
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    A, b = torch.asarray(X), torch.asarray(Y)
    assert GPRegressor(max_steps=20).fit(A.float(), b).predict(A.float()).dtype == torch.float32
    whole = (10.0 * A).to(torch.int64)
    assert GPRegressor(max_steps=20).fit(whole, (10.0 * b).to(torch.int64)).predict(whole).dtype == torch.float64
    A.requires_grad_()
    assert isinstance(GPRegressor(max_steps=20).fit(A, b).bound_, float)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("library", "steps"), [("torch", 100), pytest.param("jax", 2, marks=pytest.mark.slow)]
)  # what JAX learns is tested elsewhere
def test_labels_stay_in_their_library(library, steps):
    pytest.importorskip(library, reason=f"{library} is not installed: not executed")
    A, codes = agp.to_backend(X, library), agp.to_backend(CODES.astype(np.float64), library)
    model = GPClassifier(method="wsvgp", num_inducing=10, max_steps=steps).fit(A, codes)
    found = model.predict(A)
    assert agp.backend_of(found).name == agp.backend_of(model.classes_).name == library
    assert agp.to_numpy(model.classes_).tolist() == [5.0, 6.0]
    assert agp.backend_of(model.predict_proba(A)).name == library
    host = model.predict(X)
    assert isinstance(host, np.ndarray)
    np.testing.assert_array_equal(host, agp.to_numpy(found))
    assert np.mean(host == CODES) > 0.9 or steps < 100


@pytest.mark.slow
def test_labels_come_back_as_they_came_where_the_model_is_elsewhere():
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    A = torch.asarray(X)
    model = GPClassifier(backend="numpy", method="wsvgp", num_inducing=10, max_steps=3).fit(A, torch.asarray(CODES))
    assert isinstance(model.model_.process.inducing.Z, np.ndarray)
    assert model.predict(A).dtype == torch.int64


@pytest.mark.long
def test_text_labels_stay_on_the_host():
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    model = GPClassifier(method="wsvgp", num_inducing=10, max_steps=100).fit(torch.asarray(X), CODES.astype(str))
    assert np.mean(model.predict(torch.asarray(X)) == CODES.astype(str)) > 0.9


@pytest.mark.long
def test_torch_labels_of_any_kind():
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    A = torch.asarray(X)
    assert GPClassifier(method="wsvgp", max_steps=3).fit(A, A[:, 0] > 0.0).predict(A).dtype == torch.bool
    model = GPClassifier(method="wsvgp").partial_fit(A, torch.asarray(CODES), classes=[5, 6, 7])
    assert model.predict_proba(A).shape == (60, 3)
    assert model.predict(A).dtype == torch.int64
    with pytest.raises(ValueError, match="y has the label 9 in row 2, but the classes are 5, 6, 7; correct it"):
        model.partial_fit(A, torch.where(torch.arange(60) == 2, 9, torch.asarray(CODES)))
    with pytest.raises(ValueError, match="y has numbers that are not whole"):
        GPClassifier().fit(A, torch.asarray(Y))
    with pytest.raises(ValueError, match="y has one class, 1"):
        GPClassifier().fit(A, torch.ones(60, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"y has shape \(60, 2\), but must be 1-dimensional"):
        GPClassifier().fit(A, A)


@pytest.mark.slow
def test_mixtures_and_missing_cells_are_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    with pytest.raises(TypeError, match="y is a torch array, but X is a numpy array; move one with agp.to_backend"):
        GPRegressor().fit(X, torch.asarray(Y))
    with pytest.raises(TypeError, match="y is a torch array, but X is a numpy array"):
        GPClassifier().fit(X, torch.asarray(CODES))
    holes = torch.where(torch.arange(60)[:, None] == 4, torch.nan, torch.asarray(X))
    with pytest.raises(ValueError, match="X has 2 NaN or infinite entries, the first in row 4"):
        GPRegressor().fit(holes, torch.asarray(Y))
    with pytest.raises(ValueError, match="X is a torch array with missing cells"):
        GPRegressor(missing="impute").fit(holes, torch.asarray(Y))


@pytest.mark.slow
def test_tensors_leave_nothing_to_impute():
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    model = GPRegressor(missing="impute", max_steps=2).fit(torch.asarray(X), torch.asarray(Y))
    assert model.predict(X).shape == (60,)
    with pytest.raises(ValueError, match="fit again to a NumPy array or a table with missing='impute'"):
        model.predict(np.where(X > 1.5, np.nan, X))


@pytest.mark.long
def test_arrays_on_another_device_have_covariances_and_scores():
    xp = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed: not executed")

    def there(x):
        return xp.asarray(x, device=xp.Device("device1"))

    settings, weights, codes = {"max_steps": 20, "random_state": 0}, np.abs(Y), CODES.astype(np.int64)
    model, here = GPRegressor(**settings).fit(there(X), there(Y)), GPRegressor(**settings).fit(X, Y)
    covariance = model.predict(there(X), return_cov=True)[1]
    assert covariance.device == xp.Device("device1")
    np.testing.assert_allclose(agp.to_numpy(covariance), here.predict(X, return_cov=True)[1], atol=1e-6)
    assert model.score(there(X), there(Y), there(weights)) == pytest.approx(here.score(X, Y, weights), abs=1e-6)
    judge, here = GPClassifier(**settings).fit(there(X), there(codes)), GPClassifier(**settings).fit(X, codes)
    assert judge.score(there(X), there(codes), there(weights)) == here.score(X, codes, weights)


def _chunks(x, rows):
    return pytest.importorskip("dask.array", reason="dask is not installed: not executed").from_array(x, chunks=rows)


@pytest.mark.long
def test_lazy_rows_have_covariances():
    A = _chunks(X, 16)
    model = GPRegressor(num_inducing=10, max_steps=20).fit(A, _chunks(Y, 16))
    np.testing.assert_allclose(model.predict(A, return_cov=True)[1], model.predict(X, return_cov=True)[1], atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("rows", [7, 16])
def test_lazy_rows_may_lack_targets(rows):
    settings = {"method": "wsvgp", "num_inducing": 10, "max_steps": 20, "missing_targets": "ignore", "random_state": 0}
    holed = np.where((np.arange(60) // 16 == 1) | (X[:, 0] > 1.0), np.nan, Y)  # a chunk without any among them
    model = GPRegressor(**settings).fit(_chunks(X, 16), _chunks(holed, rows))
    here = GPRegressor(**settings).fit(X, holed)
    assert model.n_rows_seen_ == here.n_rows_seen_ == np.isfinite(holed).sum()
    assert model.bound_ == pytest.approx(here.bound_)
    assert model.score(_chunks(X, 16), _chunks(holed, rows)) == pytest.approx(here.score(X, holed))


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32")], ids=["name", "type", "dtype"])
def test_precisions_have_every_name(dtype):
    settings = {"num_inducing": 10, "max_steps": 2, "dtype": dtype}
    for A, b in ((X, Y), (_chunks(X, 16), _chunks(Y, 16))):
        assert GPRegressor(**settings).fit(A, b).predict(X).dtype == np.float32
        with pytest.raises(ValueError, match="dtype is 'float16', but must be 'float64' or 'float32'"):
            GPRegressor(dtype="float16").fit(A, b)


@pytest.mark.long
def test_host_data_can_be_computed_elsewhere_and_come_back():
    pytest.importorskip("torch", reason="torch is not installed: not executed")
    model = GPRegressor(backend="torch", dtype="float32").fit(X, Y)
    assert agp.backend_of(next(iter(agp.tree.leaves(model.model_).values()))).name == "torch"
    assert isinstance(model.predict(X), np.ndarray)


TENSORS = """
import warnings
import torch
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from agp.errors import ConvergenceWarning
from agp.estimators import GPClassifier, GPRegressor

warnings.simplefilter("error")
warnings.simplefilter("ignore", ConvergenceWarning)
torch.manual_seed(0)
X = torch.rand(60, 2, dtype=torch.float64)
y = torch.sin(6.0 * X[:, 0]) + 0.02 * torch.randn(60, dtype=torch.float64)
labels = (X[:, 0] > 0.5).to(torch.int64)
with config_context(array_api_dispatch=True):
    pipeline = make_pipeline(StandardScaler(), GPRegressor()).fit(X, y)
    found = pipeline.predict(X)
    score = pipeline.score(X, y)
    classifier = GPClassifier(method="wsvgp", num_inducing=10, max_steps=100)
    pipeline = make_pipeline(StandardScaler(), classifier).fit(X, labels)
    predicted, probabilities = pipeline.predict(X), pipeline.predict_proba(X)
    accuracy = pipeline.score(X, labels)
assert isinstance(found, torch.Tensor)
assert float(((found - y) ** 2).mean()) < 1e-3 and score > 0.99
assert isinstance(predicted, torch.Tensor) and predicted.dtype == torch.int64
assert isinstance(probabilities, torch.Tensor) and accuracy > 0.9
assert isinstance(pipeline[-1].classes_, torch.Tensor)
"""


@pytest.mark.long
def test_tensors_pass_through_a_pipeline(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: not executed")
    settings = os.environ | {"SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", TENSORS], env=settings, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
