"""Columns that identify rows, levels and missing cells about which training says nothing, and kernels on columns."""

import warnings

import narwhals
import numpy as np
import pandas as pd
import pytest

import agp
from agp.errors import ColumnWarning, ConvergenceWarning
from agp.estimators import GPClassifier, GPRegressor
from agp.estimators._encoding import Encoder
from agp.kernels import RBF, Linear, Overlap
from agp.tables import identifies_rows, level_of, numbers_rows

EFFECTS = dict(zip("ABCDEF", [4.0, -3.0, 0.5, 2.0, -5.0, 1.0], strict=True))


def numbers(rows=40, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"a": rng.normal(size=rows), "b": rng.uniform(size=rows)})
    return table, (np.sin(2.0 * table["a"]) + table["b"]).to_numpy() + 0.1 * rng.normal(size=rows)


def quick(**settings):
    return GPRegressor(kernel=settings.pop("kernel", "rbf"), random_state=0, **settings)


def fitted(estimator, table, y):
    with warnings.catch_warnings():
        for category in (ColumnWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category)
        return estimator.fit(table, y)


def grouped(levels="ABCDEF", rows=150, noise=0.05):
    rng = np.random.default_rng(0)
    groups = rng.choice(list(levels), rows)
    return groups, np.asarray([EFFECTS[group] for group in groups]) + noise * rng.standard_normal(rows)


# -- columns that identify rows ----------------------------------------------------------------------------------------

NAMES = {
    "all different": lambda i, rows: f"Mr. {i}",
    "nearly all different": lambda i, rows: f"ticket {i if 4 * i < 3 * rows else rows}",
    "missing cells": lambda i, rows: None if i % 3 == 0 else f"cabin {i}",
    "blanks and case": lambda i, rows: ["", " ", "-", "_"][i % 4] * (i // 4 + 1),
}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("dtype", [object, "category", "string"])
def test_a_column_that_identifies_rows_is_left_out_to_the_bit(kind, dtype):
    table, y = numbers()
    names = pd.Series([NAMES[kind](i, len(table)) for i in range(len(table))], dtype=dtype)
    table.insert(1, "name", names)
    with pytest.warns(ColumnWarning, match="column 'name' is left out, because most rows have a value that no") as told:
        model = quick().fit(table, y)
    assert len(told) == 1
    assert model.left_out_ == ["name"]
    plain = quick().fit(table.drop(columns="name"), y)
    assert plain.left_out_ == []
    assert model.bound_ == plain.bound_
    assert model.model_columns() == ["a", "b"]
    for new in (table, table.drop(columns="name"), table.assign(name="never seen")):
        for found, expected in zip(
            model.predict(new, return_std=True), plain.predict(table[["a", "b"]], True), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_missing_names_are_no_missing_inputs_and_other_columns_are_still_needed():
    table, y = numbers()
    table["name"] = [None if i == 3 else f"Mr. {i}" for i in range(len(table))]
    model = fitted(quick(), table, y)
    model.predict(table)
    with pytest.raises(ValueError, match="missing"):
        model.predict(table[["a", "name"]])
    with pytest.raises(ValueError, match="X is an array, but column 'name' of the training table is no numeric input"):
        model.columns_.transform_array(np.zeros((2, 3)))
    assert model.facts()["left out"] == "name"


def test_names_are_kept_on_request():
    table, y = numbers()
    table["name"] = [f"Mr. {i}" for i in range(len(table))]
    table["id"] = np.arange(len(table))
    model = quick(keep=["name", "id"]).fit(table, y)  # without warnings
    assert model.left_out_ == []
    assert model.model_columns() == ["a", "b", "id", "name"]
    assert model.columns_.names() == ["a", "b", "id", "name"]
    one_hot = Encoder("refuse", ["name", "id"], one_hot=True).fit(narwhals.from_native(table))
    assert len(one_hot.names()) == 3 + len(table)
    assert fitted(quick(keep="name"), table, y).left_out_ == []
    with pytest.raises(ValueError, match="keep names the column 'nam', which .*; did you mean 'name'"):
        quick(keep=["nam"]).fit(table, y)
    with pytest.raises(TypeError, match=r"keep is 3, but must be a list of column names, such as \['"):
        quick(keep=3).fit(table, y)


def test_a_table_of_names_alone_is_refused():
    with pytest.raises(ValueError, match="no column is left for inputs: column 'name' is left out, because most"):
        quick().fit(pd.DataFrame({"name": ["a", "b", "c"]}), [1.0, 2.0, 3.0])


def test_classifiers_leave_out_names_too_and_a_new_fit_forgets():
    table, y = numbers()
    table["name"] = [f"Mr. {i}" for i in range(len(table))]
    model = GPClassifier(kernel="rbf")
    assert fitted(model, table, y > 0.5).left_out_ == ["name"]
    assert fitted(model, table[["a", "b"]].to_numpy(), y > 0.5).left_out_ == []


def test_saved_models_know_what_was_left_out(tmp_path):
    table, y = numbers()
    table["name"] = [f"Mr. {i}" for i in range(len(table))]
    model = fitted(quick(missing="impute", keep=["a"]), table, y)
    agp.save(model, tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    assert again.left_out_ == ["name"]
    assert again.keep == ["a"]
    new = table.drop(columns="name").assign(b=np.nan)
    for found, expected in zip(again.predict(new, True), model.predict(new, True), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("start", [0, 1])
def test_row_numbers_are_mentioned_and_used(start):
    table, y = numbers()
    table["id"] = np.random.default_rng(0).permutation(len(table)) + start
    with pytest.warns(ColumnWarning, match=f"column 'id' holds row numbers from {start} to {start + 39}; leave it out"):
        model = quick().fit(table, y)
    assert model.model_columns() == ["a", "b", "id"]
    quick(keep=["id"]).fit(table, y)
    quick().fit(table[["id"]], np.sin(0.2 * table["id"]))  # without a warning: there is nothing else


def test_which_columns_identify_or_number_rows():
    assert identifies_rows(["a", "b", "c"])
    assert identifies_rows(["a", "b", "c", "d", "d"])
    assert identifies_rows([None, None, None, "a"])
    assert not identifies_rows(["a", "b", "c", "c"])
    assert not identifies_rows([None, None])
    assert numbers_rows(np.arange(1.0, 41.0))
    assert numbers_rows(np.random.default_rng(0).permutation(60)[:40])  # a part of the rows
    assert not numbers_rows(np.arange(1950, 2011))  # years
    assert not numbers_rows(np.arange(19))
    assert not numbers_rows(0.5 * np.arange(40))
    assert not numbers_rows(np.repeat(np.arange(20), 2))


# -- levels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["rbf", "matern32 + linear", "linear"])
def test_a_level_never_seen_has_the_spread_of_the_levels(kernel):
    groups, y = grouped()
    model = quick(kernel=kernel).fit(pd.DataFrame({"group": groups}), y)
    mean, deviation = model.predict(pd.DataFrame({"group": ["Z", "A"]}), return_std=True)
    effects = np.asarray([*EFFECTS.values()])
    assert abs(mean[0] - effects.mean()) < 0.1
    assert 0.85 < deviation[0] / (effects.std(ddof=1) * np.sqrt(1.0 + 1.0 / 6.0)) < 1.1  # of one more draw: 3.6
    assert abs(mean[1] - 4.0) < 0.05
    assert 0.04 < deviation[1] < 0.07
    low, high = model.predict_interval(pd.DataFrame({"group": ["Z"]}), 0.9)[0]
    assert abs(high - low - 2.0 * 1.645 * deviation[0]) < 0.3


@pytest.mark.slow
def test_levels_left_out_are_covered():
    rng = np.random.default_rng(1)
    levels = list("ABCDEFGHIJKL")
    effects = dict(zip(levels, 3.0 * rng.standard_normal(12), strict=True))
    groups, x = rng.choice(levels, 96), rng.normal(size=96)
    y = np.asarray([effects[group] for group in groups]) + np.sin(2.0 * x) + 0.1 * rng.standard_normal(96)
    table, covered = pd.DataFrame({"group": groups, "x": x}), []
    for level in levels[::2]:
        out = groups == level
        ends = quick().fit(table[~out], y[~out]).predict_interval(table[out], 0.9)
        covered.append(np.mean((ends[:, 0] < y[out]) & (y[out] < ends[:, 1])))
    assert np.mean(covered) > 0.75
    assert sum(part > 0.5 for part in covered) >= 5


@pytest.mark.parametrize(("how", "rounding", "tail"), [("mode", 1e-10, 1e-6), ("mixture", 1e-9, 0.05)])
def test_levels_never_seen_beside_a_number_in_all_answers(how, rounding, tail):
    groups, y = grouped()
    x = np.random.default_rng(1).normal(size=len(y))
    table = pd.DataFrame({"group": groups, "x": x})
    model = quick(hyperparameters=how, kernel="auto").fit(table, y + np.sin(2.0 * x))
    new = pd.DataFrame({"group": ["A", "Z", "B", "Y"], "x": [0.0, 0.5, 1.0, -1.0]})
    mean, deviation = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean[[0, 2]], model.predict(new.iloc[[0, 2]]), rtol=rounding)
    assert (deviation[[1, 3]] > 2.8).all()
    covariance = model.predict(new, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), deviation, rtol=1e-9)
    assert np.linalg.eigvalsh(covariance).min() > 0.0
    draws = model.sample(new, 400, random_state=1)
    np.testing.assert_allclose(draws.std(axis=1), deviation, rtol=0.2)
    density = model.log_density(new, mean)
    np.testing.assert_allclose(density, -0.5 * np.log(2.0 * np.pi * deviation**2), rtol=tail)  # a mixture is not normal
    np.testing.assert_array_equal(model.model_inputs(new), [[0.0, 0.0], [0.5, -1.0], [1.0, 1.0], [-1.0, -1.0]])


def test_classes_and_counts_at_a_level_never_seen():
    rng = np.random.default_rng(0)
    groups = rng.choice(list("ABCD"), 120)
    rates = np.asarray([{"A": 9.0, "B": 1.0, "C": 4.0, "D": 2.0}[group] for group in groups])
    table, new = pd.DataFrame({"group": groups}), pd.DataFrame({"group": ["Z", "A", "B"]})
    chances = GPClassifier(kernel="rbf").fit(table, rates > 3.0).predict_proba(new)[:, 1]
    assert 0.2 < chances[0] < 0.8
    assert chances[1] > 0.9 > 0.1 > chances[2]
    counts = GPRegressor(kernel="rbf", likelihood="poisson").fit(table, rng.poisson(rates).astype(float))
    mean, deviation = counts.predict(new, return_std=True)
    assert deviation[0] > 1.4 * mean[0] ** 0.5  # more than the noise
    assert deviation[1] < 1.1 * mean[1] ** 0.5


def test_one_level_says_nothing_about_others():
    table, y = numbers()
    model = quick().fit(table.assign(country="US"), y)
    with pytest.raises(
        ValueError, match="column 'country' has 'CA' in row 1 .counted from 0., but 'US' in all training rows"
    ):
        model.predict(table.head(2).assign(country=["US", "CA"]))


SAME = {
    "whole numbers beside a missing cell": (
        lambda x: pd.Series(x).astype("category"),
        lambda x: pd.Series([*map(float, x), np.nan]).astype("category"),
    ),
    "a missing cell in training": (
        lambda x: pd.Series([*map(float, x[:-1]), np.nan]).astype("category"),
        lambda x: pd.Series(x).astype("category"),
    ),
    "text of numbers": (lambda x: pd.Series(x).astype("category"), lambda x: pd.Series([f"{i}.0" for i in x])),
    "plain numbers": (lambda x: pd.Series(x).astype("category"), lambda x: pd.Series(x)),
    "numbers of text": (lambda x: pd.Series([str(i) for i in x]), lambda x: pd.Series(x, dtype=float)),
}


@pytest.mark.parametrize("case", SAME)
def test_a_level_is_the_same_beside_a_missing_cell(case):
    codes = np.random.default_rng(0).choice([10, 20, 30], 60)
    y = codes / 10.0 + 0.01 * np.random.default_rng(1).standard_normal(60)
    learned, asked = SAME[case]
    model = fitted(quick(missing="impute"), pd.DataFrame({"code": learned([*map(int, codes)])}), y)
    found = model.predict(pd.DataFrame({"code": asked([10, 20, 30])}))
    np.testing.assert_allclose(found[:3], [1.0, 2.0, 3.0], atol=0.05)


def test_texts_of_levels():
    assert [level_of(x) for x in (10, 10.0, "10", "10.0", np.float32(10), np.int8(10))] == ["10"] * 6
    assert [level_of(x) for x in ("007", "1.50", 0.5, True, "1e3", "v1.0", -3.0)] == [
        *("007", "1.50", "0.5", "True", "1e3", "v1.0", "-3")
    ]


def test_too_many_levels_for_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("agp.estimators._encoding.MAX_CELLS", 1000)
    table, y = numbers()
    table["place"] = [f"place {i // 2}" for i in range(len(table))]
    deep = GPRegressor(method="deep-wsvgp", num_inducing=5, max_steps=2)
    fitted(deep, table, y)
    monkeypatch.setattr("agp.estimators._encoding.MAX_CELLS", 800)
    with pytest.raises(
        ValueError, match="column 'place' has 20 different values, each of which becomes an input of 40 rows"
    ):
        deep.fit(table, y)
    assert quick().fit(table, y).model_inputs(table).shape == (40, 3)  # codes of levels are one column


# -- missing cells ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_array", [False, True])
def test_a_cell_missing_only_at_prediction_has_wide_error_bars(as_array):
    a, b = np.random.default_rng(0).uniform(-3.0, 3.0, (2, 150))
    y = np.sin(2.0 * a) + 0.3 * b + 0.05 * np.random.default_rng(1).standard_normal(150)
    table = pd.DataFrame({"a": a, "b": b})
    new = pd.DataFrame({"a": [np.nan, 0.0, 0.0, np.nan], "b": [0.0, 0.0, np.nan, np.nan]})
    table, new = (table.to_numpy(), new.to_numpy()) if as_array else (table, new)
    model = quick(missing="impute").fit(table, y)
    mean, deviation = model.predict(new, return_std=True)
    spread, slope = np.sin(2.0 * a).std(), 0.3 * b.std()
    np.testing.assert_allclose(deviation, [spread, 0.052, slope, np.hypot(spread, slope)], rtol=0.15)
    np.testing.assert_allclose(mean, [np.sin(2.0 * a).mean(), 0.0, 0.0, np.sin(2.0 * a).mean()], atol=0.2)


def test_missing_dates_and_categories_at_prediction():
    rng = np.random.default_rng(0)
    days = pd.date_range("2023-01-01", periods=90)
    groups = rng.choice(["low", "high"], 90)
    y = 0.05 * np.arange(90) + np.where(groups == "low", -1.0, 1.0) + 0.05 * rng.standard_normal(90)
    table = pd.DataFrame({"day": days, "group": groups})
    model = quick(missing="impute", kernel="auto").fit(table, y)
    new = pd.DataFrame({"day": [days[40], pd.NaT, days[40]], "group": ["low", "low", None]})
    mean, deviation = model.predict(new, return_std=True)
    assert deviation[0] < 0.1
    np.testing.assert_allclose(deviation[1], 0.05 * 90 / 12**0.5, rtol=0.1)
    assert 1.0 < deviation[2] < 3.0**0.5  # two levels say little about the spread of all
    np.testing.assert_allclose(mean, [1.0, 0.05 * 44.5 - 1.0, 2.0], atol=0.2)


def test_a_column_that_had_missing_cells_keeps_its_mark():
    table, y = numbers(80)
    gone = np.arange(80) % 4 == 0
    y = np.where(gone, 3.0, y)  # missing cells mean something
    model = quick(missing="impute").fit(table.assign(a=table["a"].where(~gone)), y)
    mean, deviation = model.predict(pd.DataFrame({"a": [np.nan], "b": [0.5]}), return_std=True)
    assert abs(mean[0] - 3.0) < 0.3
    assert deviation[0] < 0.5
    assert not np.isnan(model.model_inputs(pd.DataFrame({"a": [np.nan], "b": [0.5]}))).any()


def test_further_rows_with_unknown_cells_are_refused():
    groups, y = grouped()
    model = GPRegressor(kernel="rbf").partial_fit(pd.DataFrame({"group": groups}), y)
    with pytest.raises(ValueError, match="column 'group' has a cell in row 1 that is missing or has a value unseen"):
        model.partial_fit(pd.DataFrame({"group": ["A", "Z"]}), [1.0, 2.0])


# -- kernels on columns -----------------------------------------------------------------------------------------------


def moved(rows=120):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"kind": rng.choice(list("xyz"), rows), "a": rng.uniform(-2.0, 2.0, rows)})
    return table, np.sin(2.0 * table["a"]).to_numpy() + 0.05 * rng.standard_normal(rows)


@pytest.mark.parametrize("kernel", [RBF().on(("a",)), RBF().on("a"), "rbf.on(a)", "rbf.on( 'a' )"])
def test_kernels_act_on_named_columns(kernel):
    table, y = moved()
    model = GPRegressor(kernel=kernel, random_state=0).fit(table, y)
    assert model.model_.kernel.columns == (0,)
    assert model.score(table, y) > 0.95


@pytest.mark.parametrize(
    "kernel",
    [RBF().on((1,)), RBF().on(1), RBF() + Linear().on(1), (RBF() * RBF().on((0,))).on(("a",)) + RBF().on((1,))],
)
def test_numbers_of_moved_columns_are_refused(kernel):
    table, y = moved()
    with pytest.raises(
        ValueError, match=r"acts on column number 1, but columns of the table were moved, encoded or left"
    ):
        GPRegressor(kernel=kernel).fit(table, y)
    names = table.assign(name=[f"row {i}" for i in range(len(table))])[["name", "a"]]
    with pytest.raises(ValueError, match=r"use names, as in on\(\('a',\)\), from 'a'"):
        fitted(GPRegressor(kernel=RBF().on(1)), names, y)


def test_a_named_category_is_all_of_its_inputs_and_numbers_of_unmoved_columns_stay():
    table, y = moved()
    model = quick(kernel=RBF().on(("kind", "a")) + Linear().on("a")).fit(table, y)
    (rbf, overlap), slope = model.model_.kernel.parts[0].kernel.parts, model.model_.kernel.parts[1]
    assert model.model_.kernel.parts[0].columns == (1, 0)
    assert (rbf.columns, overlap.columns, type(overlap.kernel)) == ((1,), (0,), Overlap)
    assert (slope.columns, type(slope.kernel)) == ((0,), Linear)
    plain, z = numbers(120)
    assert quick(kernel=RBF().on((1, 0))).fit(plain, z).model_.kernel.columns == (1, 0)
    nested = quick(kernel=(RBF() + RBF().on("a")).on(("b", "a"))).fit(plain, z).model_.kernel
    assert (nested.columns, nested.kernel.parts[1].columns) == ((1, 0), (1,))


def test_names_of_columns_that_are_not_there_are_refused():
    table, y = moved()
    with pytest.raises(ValueError, match="RBF acts on column 'b', which .*; the columns are a, kind"):
        GPRegressor(kernel=RBF().on("b")).fit(table, y)
    with pytest.raises(ValueError, match="RBF acts on column 'a', but the rows are an array; use numbers"):
        GPRegressor(kernel=RBF().on("a")).fit(table[["a"]].to_numpy(), y)
    with pytest.raises(ValueError, match="columns of arrays have no names; use numbers"):
        agp.GPR.from_data(table[["a"]].to_numpy(), y, kernel=RBF().on("a"))
    with pytest.raises(ValueError, match="acts on column number 1"):
        GPClassifier(kernel=RBF().on(1)).fit(table, y > 0.0)


def test_kernels_on_named_columns_are_saved(tmp_path):
    table, y = moved()
    model = quick(kernel=RBF().on("a")).fit(table, y)
    agp.save(model, tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    assert again.kernel.columns == ("a",)
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
