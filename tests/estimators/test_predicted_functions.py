"""Predictions of functions without noise: `predict`, `predict_quantiles` and `predict_interval` with observed=False."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from helpers import assert_close
from scipy.stats import norm
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import agp
from agp import GPClassifier, GPRegressor

pytestmark = [
    pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning"),
]

N = 70
RNG = np.random.default_rng(3)
X = RNG.uniform(0.0, 6.0, (N, 1))
F = np.sin(X[:, 0])
Y = F + 0.3 * RNG.standard_normal(N)
ERROR = np.where(np.arange(N) % 2, 0.05, 0.8)
TWO = np.stack([Y, 100.0 * Y**2], axis=1)
AT = np.linspace(-1.0, 7.0, 9)[:, None]
GROUP = np.where(np.arange(N) % 2, "a", "b")
TABLE = pd.DataFrame({"x": X[:, 0], "se": ERROR, "group": GROUP})
ROWS = pd.DataFrame({"x": AT[:, 0], "se": 0.5, "group": "b"})
QUICK = {"kernel": "rbf", "random_state": 0, "max_steps": 20}
MODE = QUICK | {"hyperparameters": "mode"}
SPARSE = QUICK | {"num_inducing": 10, "max_steps": 5}
COUNTS = np.round(np.exp(2.0 * F) + 0.5)

MODELS = {
    "mode": (MODE, X, Y, AT),
    "mixture": (QUICK | {"hyperparameters": "mixture"}, X, Y, AT),
    "sgpr": (SPARSE | {"method": "sgpr"}, X, Y, AT),
    "deep": (SPARSE | {"method": "deep-wsvgp"}, X, Y, AT),
    "known noise": (MODE | {"error_column": "se"}, TABLE[["x", "se"]], Y, ROWS[["x", "se"]]),
    "groups": (MODE | {"noise_by": "group"}, TABLE[["x", "group"]], Y, ROWS[["x", "group"]]),
    "student-t": (SPARSE | {"likelihood": "student-t"}, X, Y, AT),
    "latent-noise": (SPARSE | {"likelihood": "latent-noise"}, X, Y, AT),
    "poisson": (SPARSE | {"likelihood": "poisson"}, X, COUNTS, AT),
    "two": (SPARSE, X, TWO, AT),
    "two, separate": (SPARSE | {"outputs": "separate"}, X, TWO, AT),
    "two, latent-noise": (SPARSE | {"likelihood": "latent-noise"}, X, TWO, AT),
}


@pytest.mark.parametrize("name", MODELS)
def test_without_transforms_the_function_is_that_of_the_predictor(name):
    settings, rows, y, at = MODELS[name]
    model = GPRegressor(target_transform=None, **settings).fit(rows, y)
    mean, deviation = model.predict(at, return_std=True, observed=False)
    predictor, A = model.predictor_, model.model_inputs(at)
    latent, columns = predictor.predict(A), 0 if y.ndim == 1 else slice(y.shape[1])
    assert_close(mean, latent.mean[:, columns], 1e-9)
    assert_close(deviation, np.sqrt(latent.variance[:, columns]), 1e-9)
    assert_close(model.predict(at, observed=False), mean, 1e-9)
    observed = model.predict(at, return_std=True)
    for found, expected in zip(model.predict(at, return_std=True, observed=True), observed, strict=True):
        np.testing.assert_array_equal(found, expected)
    if name != "poisson":
        assert (observed[1] > deviation).all()
    quantiles = model.predict_quantiles(at, (0.1, 0.9), observed=False)
    if name not in ("mixture", "deep"):
        assert_close(quantiles[..., 1], mean + norm.ppf(0.9) * deviation, 1e-6)
    np.testing.assert_array_equal(model.predict_interval(at, 0.8, observed=False), quantiles)
    if name != "deep":
        functions = model.sample_y(at, 4000)
        assert (np.abs(functions.std(axis=-1) / deviation - 1.0) < 0.1).all()
        covariances = model.predict(at, return_cov=True, observed=False)[1]
        variances = np.stack([np.diag(c) for c in np.atleast_3d(covariances).T]).T.reshape(deviation.shape)
        assert_close(np.sqrt(variances), deviation, 1e-6)


@pytest.mark.parametrize("name", ["log", "yeo-johnson", "logit", "auto"])
def test_transformed_functions_are_in_the_unit_of_the_targets(name):
    y = 100.0 / (1.0 + np.exp(-F - 0.3 * RNG.standard_normal(N))) if name == "logit" else np.exp(Y)
    model = GPRegressor(target_transform=name, **MODE | {"max_steps": None}).fit(X, y)
    mean, deviation = model.predict(AT[2:7], return_std=True, observed=False)
    functions = model.sample_y(AT[2:7], 40_000)
    assert_close(mean, functions.mean(axis=1), 0.02 * y.std())
    assert (np.abs(functions.std(axis=1) / deviation - 1.0) < 0.05).all()
    assert (deviation < model.predict(AT[2:7], return_std=True)[1]).all()
    quantiles = model.predict_quantiles(AT[2:7], (0.1, 0.5), observed=False)
    latent = model.model_.predict(AT[2:7])
    tenth = latent.mean[:, 0] + norm.ppf(0.1) * np.sqrt(latent.variance[:, 0])
    assert_close(quantiles[:, 0], model.transform_.inverse(tenth), 1e-6 * y.std())
    assert_close(model.predict(AT[2:7], observed=False), mean, 1e-9 * y.std())


def test_units_do_not_matter():
    model, other = GPRegressor(**MODE).fit(X, Y), GPRegressor(**MODE).fit(X, 1e6 * Y)
    for one, two in zip(model.predict(AT, True, observed=False), other.predict(AT, True, observed=False), strict=True):
        np.testing.assert_allclose(1e6 * one, two, rtol=1e-3)


def test_missing_cells_exposures_and_other_libraries():
    model = GPRegressor(missing="impute", **MODE).fit(TABLE[["x", "se"]], Y)
    gap = pd.DataFrame({"x": [np.nan, 1.0], "se": [0.05, 0.05]})
    mean, deviation = model.predict(gap, return_std=True, observed=False)
    assert deviation[0] > 2.0 * deviation[1]
    assert (model.predict(gap, return_std=True)[1] > deviation).all()
    assert np.isfinite(mean).all()
    counts = GPRegressor(likelihood="poisson", **SPARSE).fit(X, COUNTS, exposure=np.full(N, 2.0))
    plain, longer = (counts.predict(AT, observed=False, exposure=x) for x in (None, np.full(len(AT), 3.0)))
    assert_close(longer, plain + np.log(3.0), 1e-9)
    torch = pytest.importorskip("torch")
    found = GPRegressor(**MODE).fit(torch.asarray(X), torch.asarray(Y))
    answers = found.predict(torch.asarray(AT), return_std=True, observed=False)
    assert all(torch.is_tensor(x) for x in answers)
    assert_close(np.asarray(answers[1]), GPRegressor(**MODE).fit(X, Y).predict(AT, True, observed=False)[1], 1e-4)


def test_pipelines_files_and_routing(tmp_path):
    pipeline = make_pipeline(StandardScaler(), GPRegressor(**MODE)).fit(X, Y)
    low = pipeline.predict(AT, return_std=True, observed=False)[1]
    assert (low < pipeline.predict(AT, return_std=True)[1]).all()
    model = GPRegressor(**MODE).fit(X, Y)
    agp.save(model, tmp_path / "m.safetensors")
    for other in (agp.load(tmp_path / "m.safetensors"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(AT, observed=False), model.predict(AT, observed=False))
    with sklearn.config_context(enable_metadata_routing=True):
        routed = GPRegressor(**MODE).set_predict_request(observed=True)
        assert routed.get_metadata_routing().predict.requests["observed"] is True
    found = cross_val_predict(GPRegressor(**MODE), X, Y, cv=3, params=None)
    assert found.shape == (N,)


def test_contradictions_are_refused():
    model = GPRegressor(**MODE).fit(X, Y)
    for method in (model.predict, model.predict_quantiles, model.predict_interval):
        with pytest.raises(ValueError, match=r"noise is given, but observed is False, .* without noise; leave one of"):
            method(AT, noise=np.ones(len(AT)), observed=False)
        with pytest.raises(TypeError, match="observed is 'no', but must be True or False"):
            method(AT, observed="no")
    labels = GPClassifier(likelihood="ordinal", **SPARSE).fit(X, np.digitize(Y, [-0.5, 0.5]))
    for method in (labels.predict_quantiles, labels.predict_interval):
        with pytest.raises(ValueError, match=r"observed is False, but labels are predicted; .* predictor_\.predict"):
            method(AT, observed=False)
