"""Prediction: in chunks of bounded memory, on every library, and what scores it."""

import math

import numpy as np
import pytest
import scipy.stats
from helpers import peak, process

from agp import GPR, RBF, SVGP, Bernoulli, Gaussian, Matern32, to_backend, to_numpy, train, tree
from agp.chunking import TILE
from agp.posteriors import Relaxed, Whitened

LIBRARIES = ["torch", "array_api_strict"]


def data(N=30, P=1, dtype="float64"):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2)).astype(dtype)
    return X, (np.sin(2 * X[:, :1]) + 0.1 * rng.normal(size=(N, P))).astype(dtype)


def build(method, P=1, dtype="float64", likelihood=None):
    X, y = data(P=P, dtype=dtype)
    if method == "gpr":
        return GPR.from_data(X, y, kernel=Matern32(1.0, 0.8), likelihood=Gaussian(0.1))
    posterior = Whitened if method == "whitened" else Relaxed
    y = (y > 0).astype(dtype) if likelihood else y
    model = SVGP.from_data(X, y, posterior=posterior, kernel=RBF(), likelihood=likelihood, num_inducing=7)
    return train(model, X, y, steps=30).model


def inputs(N=50, dtype="float64"):
    return np.random.default_rng(1).normal(size=(N, 2), scale=1.5).astype(dtype)


METHODS = ["gpr", "whitened", "relaxed"]


@pytest.fixture(params=METHODS)
def model(request):
    """One trained model with three outputs for each method."""
    return build(request.param, P=3)


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("memory", [1e-9, 0.01, 0.05])
def test_chunked_predictions_equal_whole_ones(model, memory, observed):
    X = inputs()
    whole = model.predict(X, observed=observed)
    parts = model.predict(X, observed=observed, memory=memory)
    for value, expected in zip(parts, whole, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-13)
        assert value.shape == (50, 3)
    np.testing.assert_allclose(model.predict_mean(X, memory=memory), model.predict_mean(X), rtol=1e-12, atol=1e-13)
    y = np.zeros((50, 3))
    np.testing.assert_allclose(model.log_density(X, y, memory=memory), model.log_density(X, y), rtol=1e-11)


@pytest.mark.slow
def test_chunks_obey_the_budget(model, monkeypatch):
    rows = []
    prior = type(process(model).kernel).diag

    def counted(self, X):
        rows.append(X.shape[0])
        return prior(self, X)

    monkeypatch.setattr(type(process(model).kernel), "diag", counted)
    model.predict(inputs(), memory=0.01)
    assert sum(rows) == 50
    assert 1 < len(rows) < 50
    assert len(set(rows[:-1])) == 1
    per_row = model.predictor().floats_per_row * 8
    assert max(rows) * per_row <= 0.01 * 2**20 < (max(rows) + 1) * per_row


@pytest.mark.slow
def test_the_mean_alone_is_the_mean(model):
    X = inputs()
    np.testing.assert_allclose(model.predict_mean(X), model.predict(X).mean, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_the_mean_alone_computes_no_variance(model, monkeypatch):
    def forbidden(*args):
        raise AssertionError

    monkeypatch.setattr(type(process(model).kernel), "diag", forbidden)
    model.predict_mean(inputs())


@pytest.mark.slow
def test_covariances_have_the_variances_on_their_diagonal(model):
    X = inputs()
    covariance = model.predict_covariance(X)
    assert covariance.shape == (3, 50, 50)
    np.testing.assert_allclose(np.diagonal(covariance, axis1=1, axis2=2).T, model.predict(X).variance, atol=1e-10)
    np.testing.assert_allclose(covariance, np.swapaxes(covariance, 1, 2), atol=1e-12)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9


@pytest.mark.slow
def test_equal_inputs_are_fully_correlated(model):
    X = inputs(4)
    covariance = model.predict_covariance(np.concatenate([X, X]))
    np.testing.assert_allclose(covariance[:, :4, :4], covariance[:, :4, 4:], atol=1e-10)


@pytest.mark.slow
def test_observations_add_the_noise(model):
    X = inputs()
    latent, observed = model.predict(X), model.predict(X, observed=True)
    np.testing.assert_array_equal(observed.mean, latent.mean)
    noise = np.broadcast_to(model.likelihood.noise_variance, latent.variance.shape)
    np.testing.assert_allclose(observed.variance - latent.variance, noise, rtol=1e-9)


@pytest.mark.slow
def test_gaussian_log_densities_are_those_of_scipy(model):
    X, y = inputs(), np.random.default_rng(2).normal(size=(50, 3))
    mean, variance = model.predict(X, observed=True)
    expected = scipy.stats.norm(mean, np.sqrt(variance)).logpdf(y).sum(axis=1)
    found = model.log_density(X, y)
    assert found.shape == (50,)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_exact_predictions_are_those_of_conditioning():
    model = build("gpr", P=3)
    X = inputs()
    r = [np.linalg.norm((a[:, None] - b[None]) / 0.8, axis=-1) for a, b in ((model.X, model.X), (model.X, X), (X, X))]
    Kff, Kfs, Kss = ((1 + math.sqrt(3) * d) * np.exp(-math.sqrt(3) * d) for d in r)
    level = model.mean_function.value
    weights = np.linalg.solve(Kff + 0.1 * np.eye(30), np.concatenate([model.y - level, Kfs], axis=1))
    mean, variance = model.predict(X)
    covariance = Kss - Kfs.T @ weights[:, 3:]
    np.testing.assert_allclose(mean, level + Kfs.T @ weights[:, :3], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(variance, np.tile(np.diag(covariance)[:, None], 3), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(model.predict_covariance(X)[1], covariance, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["whitened", "relaxed"])
@pytest.mark.parametrize("squash", [0.0, 1e-3])
def test_class_probabilities_are_probabilities(method, squash):
    model = build(method, likelihood=Bernoulli(squash))
    X = np.concatenate([inputs(), 1e3 * inputs(5)])
    p, variance = model.predict(X, observed=True)
    assert np.all((p >= squash) & (p <= 1 - squash))
    np.testing.assert_allclose(variance, p * (1 - p), rtol=1e-12)
    mean, latent = model.predict(X)
    link = scipy.stats.norm.cdf(mean / np.sqrt(1 + latent))
    np.testing.assert_allclose(p, (1 - 2 * squash) * link + squash, rtol=1e-10)
    for label in (0.0, 1.0):
        density = np.exp(model.log_density(X, np.full(len(X), label)))
        np.testing.assert_allclose(density, (p if label else 1 - p)[:, 0], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_predictions_have_the_dtype_of_the_model(method, dtype):
    model = build(method, dtype=dtype)
    X = inputs(dtype=dtype)
    arrays = [*model.predict(X), model.predict_mean(X), model.predict_covariance(X), model.log_density(X, X[:, :1])]
    assert {x.dtype for x in arrays} == {np.dtype(dtype)}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_moved_model_predicts_the_same(model, library):
    pytest.importorskip(library)
    X, y = inputs(), np.zeros((50, 3))
    moved, there, targets = (to_backend(x, library) for x in (model, X, y))
    for value, expected in zip(moved.predict(there), model.predict(X), strict=True):
        np.testing.assert_allclose(to_numpy(value), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(to_numpy(moved.log_density(there, targets)), model.log_density(X, y), rtol=1e-9)
    back = to_backend(moved, "numpy")
    np.testing.assert_array_equal(back.predict(X).mean, model.predict(X).mean)


@pytest.mark.slow
def test_a_model_may_change_its_precision(model):
    X = inputs()
    half = to_backend(model, "numpy", dtype="float32")
    assert {x.dtype for x in tree.leaves(half).values()} == {np.dtype("float32")}
    np.testing.assert_allclose(half.predict(X.astype(np.float32)).mean, model.predict(X).mean, rtol=0.02, atol=0.02)


@pytest.mark.slow
def test_predictions_do_not_change_the_model(model):
    before = {name: np.array(x) for name, x in tree.leaves(model).items()}
    model.predict(inputs())
    for name, value in tree.leaves(model).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.slow
@pytest.mark.parametrize("N", [1, 2])
def test_few_rows_are_predicted(model, N):
    mean, variance = model.predict(inputs()[:N])
    assert mean.shape == variance.shape == (N, 3)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_inputs_may_be_memory_mapped(model, tmp_path):
    X = inputs(5000)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for value, expected in zip(model.predict(mapped, memory=0.5), model.predict(X, memory=0.5), strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.slow
def test_training_data_may_be_memory_mapped(tmp_path):
    X, y = data()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    expected, found = (
        train(SVGP.from_data(x, y, num_inducing=5), x, y, steps=4, batch_size=6).trace["bound"] for x in (X, mapped)
    )
    assert found == expected


@pytest.mark.long
@pytest.mark.parametrize("posterior", [Whitened, Relaxed])
def test_the_memory_of_a_prediction_is_bounded(posterior):
    X, y = data()
    model = SVGP.from_data(X, y, posterior=posterior, num_inducing=20)
    many = np.random.default_rng(3).normal(size=(200_000, 2))
    outputs = 2 * many.shape[0] * 8 / 2**20
    bounded = peak(lambda: model.predict(many, memory=16))
    assert bounded < 16 + 3 * outputs
    tiled = peak(lambda: model.predict(many, memory=1e6))  # on a CPU more than a tile is of no use
    assert tiled < TILE + 3 * outputs
    predictor = model.predictor()
    whole = peak(lambda: predictor.processes[0].project(predictor.factors[0], many))
    assert whole > 4 * bounded


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_rows():
    X, y = data()
    model = SVGP.from_data(X, y, num_inducing=20)
    many = np.random.default_rng(3).normal(size=(100_000, 2))
    few = peak(lambda: model.predict_mean(many[:50_000], memory=2))
    more = peak(lambda: model.predict_mean(many, memory=2))
    assert more - few < 3 * 50_000 * 8 / 2**20
