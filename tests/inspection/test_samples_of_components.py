"""Joint samples of components of models and estimators at rows of tables, against their moments."""

import numpy as np
import pandas as pd
import pytest
from helpers import TORCH, assert_close

import agp
from agp.estimators import GPClassifier, GPRegressor
from agp.inspection import components, sample_components, variance_shares
from agp.kernels import RBF, Linear

RNG = np.random.default_rng(5)
N = 60
TABLE = pd.DataFrame({"month": pd.date_range("2001-01-01", periods=N, freq="MS"), "temp": RNG.normal(size=N)})
Y = 30.0 + 0.05 * np.arange(N) + 2.0 * np.sin(2.0 * np.pi * np.arange(N) / 12.0) + TABLE["temp"].to_numpy()
Y = Y + 0.1 * RNG.normal(size=N)
KERNEL = "linear.on(month) + matern32.on(month) + centred(seasonal(365.25)).on(month) + centred(rbf).on(temp)"
GROUPS = {"trend": ["linear.on(month)", "matern32.on(month)", "mean function"], "effect": "centred(rbf).on(temp)"}


def assert_samples_have_the_moments(model, X, groups=None):
    found = components(model, X, groups=groups)
    drawn = sample_components(model, X, 3000, seed=2, groups=groups)
    assert drawn.names == found.names
    assert drawn.samples.shape == (3000, len(X), *found.mean.shape[1:])
    deviation = np.sqrt(found.variance) + 1e-6
    assert np.max(np.abs(drawn.samples.mean(axis=0) - found.mean) / deviation) < 0.15
    total = np.sqrt(found.covariance.sum(axis=(-2, -1)))
    assert_close(drawn.samples.sum(axis=-1).std(axis=0), total, 0.1)
    assert_close(drawn.of(found.names[0]), drawn.samples[..., 0], 0.0)
    return drawn


@pytest.mark.parametrize("hyperparameters", ["mode", "mixture"])
def test_samples_of_a_table_with_dates(hyperparameters):
    model = GPRegressor(kernel=KERNEL, hyperparameters=hyperparameters, random_state=0).fit(TABLE, Y)
    assert_samples_have_the_moments(model, TABLE.iloc[[3, 40]])
    drawn = assert_samples_have_the_moments(model, TABLE.iloc[[3, 40]], GROUPS)
    assert drawn.names == ("trend", "effect", "centred(seasonal(365.25)).on(month)")
    inputs = model.model_inputs(TABLE.iloc[[3, 40]])
    raw = model.predictor_.sample_components(inputs, 3000, seed=2)
    names = model.predictor_.components(inputs).names
    members = [names.index(name) for name in GROUPS["trend"]]
    assert_close(drawn.of("trend"), raw[..., members].sum(axis=-1), 1e-12)
    rise = np.diff(drawn.of("trend")[:, :, 0], axis=1)
    assert abs(np.mean(rise) - 0.05 * 37) < 0.3
    assert np.std(rise) < 0.3


def test_samples_of_models_of_other_libraries():
    X, y = RNG.normal(size=(40, 2)), RNG.normal(size=(40, 1))
    model = agp.GPR.from_data(X, y, kernel=RBF().on(0) + Linear().on(1))
    here = assert_samples_have_the_moments(model, X[:5])
    there = sample_components(TORCH.move(model), TORCH.array(X[:5]), 3000, seed=2)
    assert isinstance(there.samples, np.ndarray)
    assert_close(there.samples, here.samples, 1e-6)


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_samples_of_classes():
    labels = np.where(TABLE["temp"] > 0.0, "warm", "cold")
    model = GPClassifier(kernel=RBF().on("temp") + Linear().on("temp"), method="wsvgp", num_inducing=10, max_steps=30)
    assert_samples_have_the_moments(model.fit(TABLE[["temp"]], labels), TABLE[["temp"]][:4])


def test_names_of_a_predictor_are_those_of_the_table():
    model = GPRegressor(kernel=KERNEL, hyperparameters="mode", random_state=0).fit(TABLE, Y)
    names = components(model, TABLE).names
    assert names[0] == "linear.on(month)"
    inputs = model.model_inputs(TABLE)[:2]
    for predictor in (model.predictor_, model._imputing_predictor()):
        assert predictor.components(inputs).names == names
    moved = agp.to_backend(model.predictor_, "torch")
    assert moved.components(TORCH.array(inputs)).names == names
    assert model.predictor_.condition_on(model.model_inputs(TABLE)[:1], Y[:1]).input_names == ("month", "temp")


def test_a_column_with_missing_cells_is_named_once():
    holes = TABLE.copy()
    holes.loc[3, "temp"] = np.nan
    kernel = "linear.on(month) + centred(rbf).on(temp)"
    model = GPRegressor(kernel=kernel, missing="impute", hyperparameters="mode", random_state=0).fit(holes, Y)
    expected = ("linear.on(month)", "centred(rbf).on(temp)", "mean function")
    assert components(model, holes).names == expected
    assert model.predictor_.components(model.model_inputs(holes)).names == expected
    assert variance_shares(model, holes).names == expected
    assert_samples_have_the_moments(model, holes[2:5])


def test_unknown_cells_have_no_joint_samples():
    kernel = "linear.on(month) + rbf.on(temp)"
    model = GPRegressor(kernel=kernel, missing="impute", hyperparameters="mode", random_state=0).fit(TABLE, Y)
    holes = TABLE.copy()
    holes.loc[3, "temp"] = np.nan
    components(model, holes)
    for function in (sample_components, variance_shares):
        with pytest.raises(ValueError, match="X has 1 NaN or infinite entries, the first in row 3"):
            function(model, holes)


def test_unknown_components_are_refused():
    model = GPRegressor(kernel="rbf + linear", hyperparameters="mode", random_state=0).fit(TABLE[["temp"]], Y)
    with pytest.raises(ValueError, match="component 'linaer' does not exist; did you mean 'linear'"):
        sample_components(model, TABLE[["temp"]], groups={"a": "linaer"})
    with pytest.raises(ValueError, match="component 'linaer' does not exist; did you mean 'linear'"):
        sample_components(model, TABLE[["temp"]]).of("linaer")
