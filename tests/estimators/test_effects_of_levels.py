"""Estimators that know effects of levels: inputs, unseen levels, files, inspection, and what they are good for."""

import warnings

import numpy as np
import pandas as pd
import pytest

import agp
from agp.errors import ColumnWarning, ConvergenceWarning
from agp.estimators import GPRegressor
from agp.inspection import kernel_relevance, partial_dependence, permutation_importance

EFFECTS = {"oak": 0.0, "fir": 3.0, "elm": 1.0, "ash": 6.0, "yew": 4.5, "box": 2.0}


def trees(rows=300, seed=0, noise=0.1):
    """A smooth function of a number, plus an effect of each of six levels."""
    rng = np.random.default_rng(seed)
    kinds, x = rng.choice([*EFFECTS], rows), rng.uniform(-2.0, 2.0, rows)
    y = np.sin(2.0 * x) + np.asarray([EFFECTS[kind] for kind in kinds]) + noise * rng.standard_normal(rows)
    return pd.DataFrame({"kind": kinds, "x": x}), y


def stones(rows=700, seed=0):
    """Prices like those of diamonds: better clarity, which text does not order, is more frequent in smaller stones."""
    rng = np.random.default_rng(seed)
    names, ranks = np.asarray(["SI2", "IF", "VS1", "I1", "VVS2", "SI1", "VS2", "VVS1"]), [1, 7, 4, 0, 5, 2, 3, 6]
    codes = rng.integers(0, 8, rows)
    rank = np.asarray(ranks, float)[codes]
    size = np.exp(0.35 * rng.standard_normal(rows) - 0.12 * rank)
    y = 1.7 * np.log(size) + 0.25 * rank * (1.0 + 0.4 * np.log(size)) + 0.1 * rng.standard_normal(rows)
    return pd.DataFrame({"clarity": names[codes], "size": size}), y


def fitted(table, y, **settings):
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, ColumnWarning):
            warnings.simplefilter("ignore", category)
        return GPRegressor(random_state=0, **settings).fit(table, y)


@pytest.fixture(scope="module")
def model():
    return fitted(*trees())


# -- inputs -----------------------------------------------------------------------------------------------------------


def test_a_column_with_effects_becomes_two_inputs(model):
    table, _ = trees()
    assert model.model_columns() == ["x", "kind (effect)", "kind"]
    assert model.model_sources() == ["x", "kind", "kind"]
    assert model._categories == (2,)
    inputs = model.model_inputs(table)
    assert inputs.shape == (300, 3)
    np.testing.assert_array_equal(inputs[:, 0], table["x"])
    levels = sorted(EFFECTS)
    np.testing.assert_array_equal(inputs[:, 2], [levels.index(kind) for kind in table["kind"]])
    effects = model.columns_.effects["kind"]
    np.testing.assert_array_equal(inputs[:, 1], effects[inputs[:, 2].astype(int)])
    np.testing.assert_array_equal(np.argsort(effects), np.argsort([EFFECTS[level] for level in levels]))
    assert model.model_.kernel.category_levels(3).keys() == {2}
    assert model.model_.X.shape[1] == 3


def test_effects_are_learned_only_where_the_kernel_is_chosen():
    table, y = trees()
    assert fitted(table, y, kernel="rbf").model_columns() == ["x", "kind"]
    assert fitted(table[:150], y[:150]).model_columns() == ["x", "kind"]  # fewer than 30 rows per level
    two = fitted(table.assign(kind=np.where(table["kind"] < "f", "a", "b")), y)
    assert two.model_columns() == ["x", "kind"]
    again = fitted(table, y).set_params(kernel="rbf").fit(table, y)  # a new fit forgets effects
    assert again.model_columns() == ["x", "kind"]
    assert again.columns_.effects == {}


def test_missing_cells_are_a_level_with_an_effect():
    table, y = trees()
    holes = table.assign(kind=table["kind"].where(table["kind"] != "ash", None))
    model = fitted(holes, y, missing="impute")
    effects = dict(zip(model.columns_.levels["kind"], model.columns_.effects["kind"], strict=True))
    assert max(effects, key=effects.get) is None
    new = pd.DataFrame({"kind": [None, "oak"], "x": [0.0, 0.0]})
    np.testing.assert_allclose(model.predict(new), [6.0, 0.0], atol=0.15)


# -- predictions ------------------------------------------------------------------------------------------------------


def test_predictions_are_those_of_the_levels(model):
    new = pd.DataFrame({"kind": [*EFFECTS], "x": 0.5})
    mean, deviation = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, np.sin(1.0) + np.asarray([*EFFECTS.values()]), atol=0.1)
    assert (deviation < 0.15).all()


def test_an_unseen_level_averages_over_the_effects(model):
    new = pd.DataFrame({"kind": ["palm", "oak"], "x": [0.5, 0.5]})
    assert np.isnan(model.model_inputs(new)[0, 1])
    assert model.model_inputs(new)[0, 2] == -1.0
    mean, deviation = model.predict(new, return_std=True)
    effects = np.asarray([*EFFECTS.values()])
    assert abs(mean[0] - np.sin(1.0) - effects.mean()) < 0.5
    spread = effects.std(ddof=1) * np.sqrt(1.0 + 1.0 / 6.0)  # of one more draw
    assert 0.8 < deviation[0] / spread < 1.3
    assert deviation[1] < 0.15
    low, high = model.predict_interval(new, 0.9)[0]
    assert low < effects.min() + 1.0 < effects.max() < high


def test_saved_effects_predict_the_same_bits(model, tmp_path):
    agp.save(model, tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    new = pd.DataFrame({"kind": ["ash", "palm", "box"], "x": [0.3, -0.2, 1.0]})
    for one, other in zip(model.predict(new, return_std=True), again.predict(new, return_std=True), strict=True):
        assert one.tobytes() == other.tobytes()
    assert again.model_columns() == model.model_columns()
    assert again.model_sources() == model.model_sources()
    assert again._categories == model._categories
    np.testing.assert_array_equal(again.columns_.effects["kind"], model.columns_.effects["kind"])


# -- inspection -------------------------------------------------------------------------------------------------------


def test_relevance_has_the_column_of_the_table_once(model):
    table, y = trees()
    found = kernel_relevance(model)
    assert sorted(found.names) == ["kind", "x"]
    shares = dict(zip(found.names, found.mean, strict=True))
    assert shares["kind"] > shares["x"] > 0.01
    increase = permutation_importance(model, table, y, repeats=2)
    assert sorted(increase.names) == ["kind", "x"]
    errors = dict(zip(increase.names, increase.mean[:, 0], strict=True))
    assert errors["kind"] > 2.0  # both inputs are shuffled: the spread of two levels is 2.9
    assert 0.4 < errors["x"] < 1.5


def test_the_partial_dependence_of_a_column_has_the_effects(model):
    table, _ = trees()
    found = partial_dependence(model, table, "kind")
    assert sorted(found.values) == sorted(EFFECTS)
    assert not found.is_number
    truth = np.asarray([EFFECTS[kind] for kind in found.values]) + np.sin(2.0 * table["x"]).mean()
    np.testing.assert_allclose(found.mean[:, 0], truth, atol=0.1)
    assert (found.lower < found.mean).all()
    assert (found.mean < found.upper).all()
    assert (found.upper - found.lower < 0.4).all()


# -- use --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_order_hidden_behind_another_column_helps(monkeypatch):
    table, y = stones()
    new, truth = stones(2000, seed=1)
    means = pd.Series(y).groupby(table["clarity"]).mean()
    with_effects = fitted(table, y)
    assert with_effects.columns_.effects
    order = [with_effects.columns_.levels["clarity"][i] for i in np.argsort(with_effects.columns_.effects["clarity"])]
    assert order == ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"]
    assert [*means.sort_values().index] != order
    monkeypatch.setattr("agp.estimators._search.level_effects", lambda *_, **__: {})
    without = fitted(table, y)
    assert without.model_columns() == ["size", "clarity"]
    gain = with_effects.log_density(new, truth) - without.log_density(new, truth)
    assert gain.mean() > 2.0 * gain.std() / np.sqrt(len(gain))
    assert gain.mean() > 0.005
