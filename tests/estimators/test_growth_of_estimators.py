"""`num_inducing="auto"` of the estimators and of `agp fit`."""

import numpy as np
import pytest

import agp
from agp.estimators import GPClassifier, GPRegressor
from agp.estimators._base import START_INDUCING
from agp.estimators._regressor import GROWING_KINDS
from agp.selection import Candidate
from agp.training import Round

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(200, 1))
Y = np.sin(3.0 * X[:, 0]) + 0.1 * RNG.normal(size=200)


@pytest.mark.long
def test_a_regressor_finds_their_number(monkeypatch, tmp_path):
    monkeypatch.setattr("agp.estimators._base.START_INDUCING", 4)
    model = GPRegressor(method="wsvgp", num_inducing="auto", tolerance=5e-3, random_state=0).fit(X, Y)
    assert model.growth_reason_ in ("certificate", "gain")
    assert list(model.growth_) == list(Round._fields)
    assert model.growth_["num_inducing"][0] == 4.0
    assert model.growth_["num_inducing"][-1] == model.model_.process.inducing.count > 4
    assert model.score(X, Y) > 0.95
    agp.save(model, tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    assert again.growth_ == model.growth_
    assert again.growth_reason_ == model.growth_reason_
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    model.set_params(num_inducing=5).fit(X, Y)
    assert "growth_" not in vars(model)


@pytest.mark.long
def test_collapsed_regression_chooses_it_from_the_data(tmp_path):
    model = GPRegressor(method="sgpr", num_inducing="auto", random_state=0).fit(X, Y)
    assert (model.method_, model.learned_) == ("sgpr", True)
    assert "growth_" not in vars(model)
    assert model.kernel_ in model.candidates_["kernel"]
    assert list(model.candidates_) == list(Candidate._fields)
    assert model.score(X, Y) > 0.95
    agp.save(model, tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    assert (again.kernel_, again.learned_) == (model.kernel_, True)
    np.testing.assert_equal(again.candidates_, model.candidates_)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    model.set_params(num_inducing=20, tolerance=0.02).fit(X, Y)
    assert "candidates_" not in vars(model)


@pytest.mark.long
def test_a_classifier_does_as_well(monkeypatch):
    monkeypatch.setattr("agp.estimators._base.START_INDUCING", 4)
    model = GPClassifier(method="wsvgp", num_inducing="auto", tolerance=0.02, random_state=0).fit(X, Y > 0.0)
    assert model.growth_reason_ == "gain"
    assert np.isnan(model.growth_["gap"]).all()
    assert model.score(X, Y > 0.0) > 0.9


@pytest.mark.long
def test_many_rows_of_a_regression_find_it_by_default(monkeypatch):
    for name, rows in {"SAMPLE": 60, "LARGER": 100, "FEW": 32}.items():
        monkeypatch.setattr(f"agp.selection._stages.{name}", rows)
    for module in ("estimators._regressor", "selection._sizes"):
        monkeypatch.setattr(f"agp.{module}.EXACT_ROWS", 150)
    model = GPRegressor(method="sgpr", random_state=0).fit(X, Y)
    assert model.method_ == "sgpr"
    assert model.model_.process.inducing.count >= 32
    assert model.score(X, Y) > 0.95
    few = GPRegressor(num_inducing=20, tolerance=0.02, random_state=0).fit(X, Y)
    assert few.model_.process.inducing.count == 20


@pytest.mark.long
def test_it_is_no_matter_where_there_are_none():
    model = GPRegressor(num_inducing="auto").fit(X, Y)
    assert model.method_ == "gpr"
    assert "growth_" not in vars(model)
    assert START_INDUCING == 64


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["solve", "deep-wsvgp", "tsvgp", "cagp-opt"])
def test_methods_that_do_not_grow_are_refused(method):
    with pytest.raises(ValueError, match=rf"num_inducing is 'auto', but the method {method} cannot choose the number"):
        GPRegressor(method=method, num_inducing="auto").fit(X, Y)


@pytest.mark.long
@pytest.mark.parametrize("outputs", ["separate", "coregionalised"])
def test_outputs_that_do_not_grow_are_refused(outputs):
    with pytest.raises(
        ValueError, match=rf"'auto', which outputs='{outputs}' does not support; .* outputs='shared' or"
    ):
        GPRegressor(outputs=outputs, num_inducing="auto").fit(X, np.stack([Y, -Y], axis=1))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_outputs_of_one_kernel_grow(monkeypatch):
    monkeypatch.setattr("agp.estimators._base.START_INDUCING", 4)
    for outputs in GROWING_KINDS:
        model = GPRegressor(outputs=outputs, num_inducing="auto", max_steps=3).fit(X, np.stack([Y, -Y], axis=1))
        assert "growth_" in vars(model)


@pytest.mark.long
def test_parts_are_refused():
    with pytest.raises(AttributeError, match="needs all rows at once"):
        GPRegressor(num_inducing="auto").partial_fit(X, Y)


@pytest.mark.long
def test_other_words_are_refused():
    with pytest.raises((TypeError, ValueError), match="num_inducing"):
        GPRegressor(method="sgpr", num_inducing="many").fit(X, Y)
