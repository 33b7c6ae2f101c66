"""Components of models and estimators at rows of tables."""

import numpy as np
import pandas as pd
import pytest
from helpers import TORCH, assert_close

import agp
from agp.estimators import GPClassifier, GPRegressor
from agp.inspection import components
from agp.kernels import RBF, Centred, Linear, Matern32, Seasonal, additive

RNG = np.random.default_rng(5)
N = 60
MONTHS = pd.DataFrame({"month": pd.date_range("2001-01-01", periods=N, freq="MS")})
SERIES = 30.0 + 0.05 * np.arange(N) + 2.0 * np.sin(2.0 * np.pi * np.arange(N) / 12.0) + 0.1 * RNG.normal(size=N)
TABLE = pd.DataFrame(
    {
        "age": RNG.uniform(20.0, 80.0, N),
        "city": RNG.choice(["Lima", "Oslo", "Rome"], N),
        "when": pd.date_range("2020-01-01", periods=N, freq="D"),
    }
)
COST = 500.0 + 0.1 * (TABLE["age"] - 50.0) ** 2 + TABLE["city"].map({"Lima": 0.0, "Oslo": 40.0, "Rome": -20.0})
COST = (COST + RNG.normal(size=N)).to_numpy()


def assert_adds_up(model, X, tolerance=1e-9):
    found = components(model, X)
    predictor = model._imputing_predictor()
    mean, variance = predictor.predict(model.model_inputs(X))
    assert_close(found.mean.sum(axis=-1), mean, tolerance)
    assert_close(found.covariance.sum(axis=(-2, -1)), variance, 1e-8)
    return found


def test_trend_and_season_of_a_series():
    kernel = Matern32() + Centred(Seasonal(period=365.25)) * RBF()
    model = GPRegressor(kernel=kernel, random_state=0).fit(MONTHS, SERIES)
    found = assert_adds_up(model, MONTHS)
    assert found.names == ("matern32", "centred(seasonal(365.25)) * rbf", "mean function")
    assert found.columns == (("month",), ("month",), ())
    assert_close(found.mean.sum(axis=-1)[:, 0], model.predict(MONTHS), 1e-9)
    both = components(model, MONTHS, groups={"trend": ["matern32", "mean function"], "season": 1})
    assert both.names == ("trend", "season")
    season, deviation = both.mean[:, 0, 1], np.sqrt(both.variance[:, 0, 1])
    truth = 2.0 * np.sin(2.0 * np.pi * np.arange(N) / 12.0)
    season = season - np.mean(season)  # months have different lengths
    assert np.sqrt(np.mean((season - truth) ** 2)) < 0.1
    assert deviation.max() < 0.2  # without centring, 2 or more
    assert np.mean(np.abs(season - truth) < 3.0 * deviation + 0.02) > 0.9


def test_effects_of_columns_of_a_table():
    model = GPRegressor(kernel=additive(RBF(), ["age", "city"]), random_state=0).fit(TABLE, COST)
    found = assert_adds_up(model, TABLE)
    assert found.names[1] == "centred(rbf).on(age)"
    assert found.columns[1:3] == (("age",), ("city",))
    levels = pd.DataFrame({"age": 50.0, "city": ["Lima", "Oslo", "Rome"], "when": TABLE["when"][:3]})
    effect = components(model, levels).mean[:, 0, 2]
    assert_close(effect[1] - effect[0], 40.0, 0.05)
    assert_close(effect[2] - effect[0], -20.0, 0.05)
    assert abs(np.mean(found.mean[:, 0, 2])) < 1e-6 * np.std(COST)


def test_components_are_those_of_transformed_targets():
    kernel = Linear().on("age") + RBF().on("age")
    y = np.exp(0.01 * TABLE["age"] + 0.1 * RNG.normal(size=N)).to_numpy()
    model = GPRegressor(kernel=kernel, target_transform="log", random_state=0).fit(TABLE[["age"]], y)
    found = components(model, TABLE[["age"]])
    latent = model.predictor_.predict(model.model_inputs(TABLE[["age"]]))
    assert found.names[:2] == ("linear", "rbf")
    assert_close(found.mean.sum(axis=-1), latent.mean, 1e-9)
    assert_close(np.exp(found.mean.sum(axis=-1))[:, 0], model.predict_quantiles(TABLE[["age"]], (0.5,))[:, 0], 1e-2)


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("labels", [["no", "yes"], ["low", "middle", "high"]])
def test_components_of_classes(labels):
    y = np.asarray(labels)[np.digitize(TABLE["age"], np.linspace(20.0, 80.0, len(labels) + 1)[1:-1])]
    kernel = RBF().on("age") + Linear().on("age")
    model = GPClassifier(kernel=kernel, method="wsvgp", num_inducing=10, max_steps=30, tolerance=1.0, random_state=0)
    found = assert_adds_up(model.fit(TABLE[["age"]], y), TABLE[["age"]])
    assert found.mean.shape[1] == (1 if len(labels) == 2 else 3)


def test_components_of_rows_with_unknown_cells():
    holes = TABLE[["age", "city"]].copy()
    holes.loc[[3, 8], "age"] = np.nan
    model = GPRegressor(kernel=additive(RBF(), ["age", "city"]), missing="impute", random_state=0).fit(holes, COST)
    found = assert_adds_up(model, holes, 1e-8)
    known = np.delete(np.arange(N), [3, 8])
    place = found.columns.index(("age",))
    assert found.variance[[3, 8], 0, place].min() > 5.0 * np.median(found.variance[known, 0, place])


def test_components_of_models_and_of_other_libraries():
    X, y = RNG.normal(size=(40, 2)), RNG.normal(size=(40, 1))
    model = agp.GPR.from_data(X, y, kernel=RBF().on(0) + Linear().on(1))
    here, there = components(model, X), components(TORCH.move(model), TORCH.array(X))
    assert here.names[:2] == ("rbf.on(input 1)", "linear.on(input 2)")
    assert here.columns[:2] == (("input 1",), ("input 2",))
    assert isinstance(there.mean, np.ndarray)
    assert_close(there.mean, here.mean, 1e-9)
    numbers = model.predictor().components(X)
    assert numbers.columns[:2] == ((0,), (1,))
    assert numbers.sums({"both": [0, 1]}).columns == ((0, 1), ())


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="the first argument is a RBF"):
        components(RBF(), TABLE)
    model = GPRegressor(kernel="rbf + linear", random_state=0).fit(TABLE[["age"]], COST)
    with pytest.raises(ValueError, match="did you mean 'linear'"):
        components(model, TABLE[["age"]], groups={"a": "linaer"})
