"""The attribute `kernel_` of estimators: the chosen kernel, or a given one as text."""

import numpy as np
import pandas as pd
import pytest

import agp
from agp.estimators import GPClassifier, GPRegressor
from agp.kernels import RBF, Linear

RNG = np.random.default_rng(3)
N = 50
TABLE = pd.DataFrame({"month": pd.date_range("2001-01-01", periods=N, freq="MS"), "temp": RNG.normal(size=N)})
Y = 0.1 * np.arange(N) + TABLE["temp"].to_numpy() + 0.1 * RNG.normal(size=N)


@pytest.mark.parametrize("hyperparameters", ["mode", "mixture"])
@pytest.mark.parametrize("kernel", ["linear.on(month) + rbf.on(temp)", Linear().on("month") + RBF().on("temp")])
def test_a_given_kernel_of_a_table(kernel, hyperparameters):
    model = GPRegressor(kernel=kernel, hyperparameters=hyperparameters, random_state=0).fit(TABLE, Y)
    assert model.kernel_ == "linear.on(month) + rbf.on(temp)"
    assert set(model.candidates_["kernel"]) == {model.kernel_}
    names = agp.inspection.components(model, TABLE).names
    assert " + ".join(name for name in names if name != "mean function") == model.kernel_


def test_a_given_kernel_of_an_array():
    rows = np.stack([np.arange(N) / N, TABLE["temp"]], axis=1)
    model = GPRegressor(kernel="linear.on(0) + rbf.on(1)", hyperparameters="mode", random_state=0).fit(rows, Y)
    assert model.kernel_ == "linear.on(input 1) + rbf.on(input 2)"
    result = agp.fit_regression(rows, Y, kernel=Linear().on(0) + RBF().on(1), hyperparameters="mode")
    assert result.kernel == "linear.on(0) + rbf.on(1)"
    assert result.message.startswith("linear.on(0) + rbf.on(1), ")
    assert max(map(len, result.describe().splitlines()[:2])) == min(map(len, result.describe().splitlines()[:2])) + 17


def test_a_given_kernel_of_classes():
    model = GPClassifier(kernel="linear.on(month) + rbf.on(temp)").fit(TABLE, Y > 2.0)
    assert model.kernel_ == "linear.on(month) + rbf.on(temp)"


def test_a_chosen_kernel_has_its_name():
    model = GPRegressor(hyperparameters="mode", random_state=0).fit(TABLE[["temp"]], Y)
    assert model.kernel_ in model.candidates_["kernel"]
    assert "sum" not in model.kernel_


def test_a_kernel_as_text_is_kept_in_files(tmp_path):
    model = GPRegressor(kernel="linear.on(month) + rbf.on(temp)", hyperparameters="mode", random_state=0).fit(TABLE, Y)
    agp.save(model, tmp_path / "model.safetensors")
    again = agp.load(tmp_path / "model.safetensors")
    assert again.kernel_ == model.kernel_
    inputs = model.model_inputs(TABLE)[:2]
    assert again.predictor_.components(inputs).names == model.predictor_.components(inputs).names
