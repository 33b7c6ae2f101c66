"""Categories in tables: many levels in little time, every method, and what is said of their columns."""

import time
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import assert_close

import agp
from agp import tree
from agp.errors import ColumnWarning, ConvergenceWarning, NoSignalWarning, RepairWarning
from agp.estimators import GPClassifier, GPRegressor
from agp.inducing import Points
from agp.inspection import kernel_relevance, permutation_importance
from agp.kernels import RBF, Overlap, RandomEffects
from agp.methods import METHODS as TABLE

QUICK = {"num_inducing": 40, "max_steps": 300, "random_state": 0}


def grouped(rows=300, levels=12, seed=0, noise=0.1):
    """A function of a number, and an effect of each level."""
    rng = np.random.default_rng(seed)
    effects = 2.0 * np.random.default_rng(99).standard_normal(levels)
    codes, x = rng.integers(0, levels, rows), rng.uniform(-2.0, 2.0, rows)
    table = pd.DataFrame({"place": [f"place {i}" for i in codes], "x": x})
    return table, np.sin(2.0 * x) + effects[codes] + noise * rng.standard_normal(rows)


def fitted(estimator, table, y):
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, ColumnWarning, NoSignalWarning, RepairWarning):
            warnings.simplefilter("ignore", category)
        return estimator.fit(table, y)


def rmse(model, table, y):
    return np.sqrt(np.mean((model.predict(table) - y) ** 2))


# -- every method ------------------------------------------------------------------------------------------------------

METHODS = ("gpr", "sgpr", "nngp", "msvgp", "wsvgp", "lsvgp", "rsvgp", "asvgp", "qsvgp", "tsvgp", "tvgp", "tnngp")
METHODS += ("solve",)
METHODS += ("solve-collapsed",)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_from_a_text_column(method):
    table, y = grouped()
    new, truth = grouped(seed=1)
    settings = {name: x for name, x in QUICK.items() if name != "num_inducing" or name in TABLE[method].takes}
    model = fitted(GPRegressor(method=method, kernel="rbf", **settings), table, y)
    plain = fitted(GPRegressor(method=method, kernel="rbf", **settings), table[["x"]], y)
    assert rmse(model, new, truth) < 0.6 * rmse(plain, new[["x"]], truth)
    for points in tree.nodes(model.model_, Points).values():
        codes = np.asarray(points.Z)[:, 1]
        np.testing.assert_array_equal(codes, np.round(codes))  # training has not moved them


def test_levels_have_no_order():
    table, y = grouped(80, 5)
    renamed = table.assign(place=table["place"].map(dict(zip(sorted(table["place"].unique()), "caebd", strict=True))))
    for method, tolerance in {"gpr": 1e-8, "nngp": 1e-4}.items():  # nearest rows are trained in float32
        one, other = (GPRegressor(method=method, random_state=0).fit(x, y) for x in (table, renamed))
        np.testing.assert_allclose(one.predict(table), other.predict(renamed), atol=tolerance)


def test_classes_depend_on_many_levels():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 30, 240)
    table, y = pd.DataFrame({"code": [f"c{i}" for i in codes], "x": rng.normal(size=240)}), codes % 3
    model = GPClassifier(random_state=0).fit(table, y)
    assert model.score(table, y) > 0.97
    assert model.model_columns() == ["x", "code"]
    unknown = model.predict_proba(pd.DataFrame({"code": ["new"], "x": [0.0]}))[0]
    assert unknown.max() < 0.7


# -- many levels ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hundred_levels_are_learned_in_seconds():
    rng = np.random.default_rng(0)  # like countries and years
    country, year = np.repeat(np.arange(142), 9), np.tile(np.arange(1952.0, 1997.0, 5.0), 142)
    level, slope = rng.normal(60.0, 10.0, 142), rng.normal(0.2, 0.1, 142)
    y = level[country] + slope[country] * (year - 1975.0) + rng.normal(0.0, 0.5, len(country))
    table = pd.DataFrame({"country": [f"country {i}" for i in country], "year": year})
    held = rng.permutation(len(y)) < 200
    begun = time.perf_counter()
    model = GPRegressor(random_state=0).fit(table[~held], y[~held])
    assert time.perf_counter() - begun < 60.0
    assert rmse(model, table[held], y[held]) < 1.2  # the noise is 0.5; the spread of the levels 10
    plain = GPRegressor(random_state=0).fit(table[~held][["year"]], y[~held])
    assert rmse(model, table[held], y[held]) < 0.2 * rmse(plain, table[held][["year"]], y[held])


def test_a_thousand_levels_become_one_column_at_once():
    rng = np.random.default_rng(0)
    rows = 20_000
    table = pd.DataFrame({"tail": [f"N{i}" for i in rng.integers(0, 1000, rows)], "x": rng.normal(size=rows)})
    model = GPRegressor(method="wsvgp", kernel="rbf", num_inducing=5, max_steps=1)
    model = fitted(model, table, rng.normal(size=rows))
    begun = time.perf_counter()
    inputs = model.model_inputs(table)
    assert time.perf_counter() - begun < 2.0
    assert inputs.shape == (rows, 2)
    assert [*np.unique(inputs[:, 1])] == [*range(1000)]


@pytest.mark.slow
def test_several_categories_do_not_hide_the_signal():
    rng = np.random.default_rng(0)  # like carriers, destinations and origins of flights
    rows = 800
    carrier, goal, origin = (rng.integers(0, count, rows) for count in (12, 80, 3))
    hour = rng.uniform(5.0, 23.0, rows)
    y = 0.5 * (hour - 14.0) + rng.normal(0.0, 2.0, 12)[carrier] + rng.normal(0.0, 4.0, rows)
    table = pd.DataFrame(
        {
            "carrier": [f"c{i}" for i in carrier],
            "goal": [f"g{i}" for i in goal],
            "origin": [f"o{i}" for i in origin],
            "hour": hour,
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoSignalWarning)
        model = GPRegressor(random_state=0).fit(table[:600], y[:600])
    assert model.learned_
    plain = GPRegressor(random_state=0).fit(table[:600][["hour"]], y[:600])
    assert rmse(model, table[600:], y[600:]) < rmse(plain, table[600:][["hour"]], y[600:])


@pytest.mark.slow
def test_a_category_of_noise_costs_little():
    rng = np.random.default_rng(1)
    table, y = grouped(200, 6)
    more = table.assign(noise=[f"n{i}" for i in rng.integers(0, 40, 200)])
    new, truth = grouped(400, 6, seed=5)
    plain = GPRegressor(random_state=0).fit(table, y)
    model = GPRegressor(random_state=0).fit(more, y)
    assert rmse(model, new.assign(noise="n3"), truth) < 1.15 * rmse(plain, new, truth)


# -- unknown levels ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_error_bars_of_unknown_levels_cover():
    covered = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        effects, codes = 3.0 * rng.standard_normal(16), rng.integers(0, 15, 90)
        codes[:15] = np.arange(15)
        y = effects[codes] + 0.1 * rng.standard_normal(90)
        model = GPRegressor(kernel="rbf", random_state=0).fit(pd.DataFrame({"c": [f"c{i}" for i in codes]}), y)
        low, high = model.predict_interval(pd.DataFrame({"c": ["new"]}), 0.9)[0]
        spread = effects[:15].std(ddof=1) * np.sqrt(1.0 + 1.0 / 15.0)
        assert 0.8 < (high - low) / (2.0 * 1.645 * spread) < 1.3
        covered.append(low < effects[15] < high)
    assert np.mean(covered) >= 0.75  # 90 % of 20, less three standard deviations


def test_whole_numbers_beside_a_missing_cell_are_the_same_levels():
    codes = np.random.default_rng(0).choice([10, 20, 30], 60)
    y = np.asarray([{10: 1.0, 20: 5.0, 30: 2.0}[int(i)] for i in codes])
    y += 0.01 * np.random.default_rng(1).standard_normal(60)
    model = GPRegressor(kernel="rbf", random_state=0).fit(pd.DataFrame({"code": codes}).astype("category"), y)
    new = pd.DataFrame({"code": pd.Series([10.0, 20.0, 30.0, np.nan]).astype("category")})
    model.missing = "impute"
    inputs = model.columns_._encode(model.columns_.columns.read(_frame(new.head(3))))
    assert_close(inputs, [[0.0], [1.0], [2.0]], 0.0)
    np.testing.assert_allclose(model.predict(new.head(3)), [1.0, 5.0, 2.0], atol=0.05)


def _frame(table):
    import narwhals.stable.v2 as nw

    return nw.from_native(table)


def test_further_rows_of_known_levels_are_learned():
    table, y = grouped(120, 4)
    model = GPRegressor(kernel="rbf", num_inducing=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(20):
            model.partial_fit(table, y)
    assert model.score(table, y) > 0.5
    with pytest.raises(ValueError, match="column 'place' has a cell in row 0 that is missing or has a value unseen"):
        model.partial_fit(pd.DataFrame({"place": ["elsewhere"], "x": [0.0]}), [1.0])


# -- files and descriptions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gpr", "nngp", "wsvgp", "deep-wsvgp"])
def test_saved_models_predict_the_same_bits(method, tmp_path):
    table, y = grouped(60, 5)
    settings = {"num_inducing": 8, "max_steps": 3} if "wsvgp" in method else {}
    model = fitted(GPRegressor(method=method, random_state=0, **settings), table, y)
    agp.save(model, tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    new = pd.DataFrame({"place": ["place 1", "elsewhere"], "x": [0.3, -0.2]})
    for one, other in zip(model.predict(new, return_std=True), again.predict(new, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.columns_.one_hot == model.columns_.one_hot == method.startswith("deep")
    assert again.model_columns() == model.model_columns()
    assert again.columns_.categories == model.columns_.categories


def test_summaries_and_relevances_name_the_columns_of_the_table():
    table, y = grouped(120, 5)
    model = fitted(GPRegressor(hyperparameters="mode", random_state=0), table.assign(other=table["x"] ** 2), y)
    assert model.model_columns() == ["x", "other", "place"]
    kernels = tree.nodes(model.model_, object)
    assert any(isinstance(part, Overlap | RandomEffects) for part in kernels.values())
    text = str(agp.summary(model.model_, columns=model.model_columns()))
    lines = [line for line in text.splitlines() if "place" in line]
    assert lines
    assert not any(" x" in line for line in lines)
    found = kernel_relevance(model)
    assert sorted(found.names) == ["other", "place", "x"]
    shares = dict(zip(found.names, found.mean, strict=True))
    assert shares["place"] > 0.3 > 0.1 > shares["other"]
    assert {one.input for one in found.lengthscales if one.column == "place"} <= {"place"}
    increase = permutation_importance(model, repeats=2)
    assert sorted(increase.names) == ["other", "place", "x"]
    assert dict(zip(increase.names, increase.mean[:, 0], strict=True))["place"] > 1.0


def test_kernels_of_users_are_mixed():
    table, y = grouped(60, 4)
    model = GPRegressor(kernel=RBF(), random_state=0).fit(table, y)
    rest, overlap = model.model_.kernel.parts
    assert (rest.columns, overlap.columns) == ((0,), (1,))
    own = GPRegressor(kernel=RBF().on("x") + RandomEffects().on("place"), random_state=0).fit(table, y)
    assert [part.columns for part in own.model_.kernel.parts] == [(0,), (1,)]
    assert own.score(table, y) > 0.95
