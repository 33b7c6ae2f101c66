"""Regressors whose noise differs between the levels of a column."""

import functools
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import agp
from agp.estimators import GPClassifier, GPRegressor
from agp.estimators._noise_groups import _estimate, _posterior, _Rows, _sample
from agp.estimators._observations import Observations

SITES, DEVIATIONS = ("north", "south", "west"), (0.1, 0.5, 2.0)
QUICK: dict[str, Any] = {"kernel": "rbf", "random_state": 0}


def sampled(seed, counts=(300, 300, 300), deviations=DEVIATIONS):
    """A table, its targets, their means and the standard deviations of their noise."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    x, spread = rng.uniform(0.0, 6.0, len(group)), np.asarray(deviations)[group]
    f = np.sin(2.0 * x)
    y = f + spread * rng.standard_normal(len(group))
    return pd.DataFrame({"x": x, "site": np.asarray(SITES)[group]}), y, f, spread


def nlpd(found, table, y):
    return -float(np.mean(found.log_density(table, y)))


@functools.cache
def many(**settings):
    table, y, _, _ = sampled(0)
    return GPRegressor(random_state=0, noise_by="site", **settings).fit(table, y)


FEW = sampled(2, (40, 40, 40), (0.1, 0.5, 2.0))


@functools.cache
def few(**settings):
    return GPRegressor(noise_by="site", **(QUICK | settings)).fit(*FEW[:2])


def coded(table):
    return np.stack([table["x"], 10.0 * table["site"].map(SITES.index)], axis=1)


# -- what is learned --------------------------------------------------------------------------------------------------


def test_deviations_coverage_and_densities_are_those_of_the_groups():
    found = many()
    assert [*found.noise_by_] == [*SITES]
    np.testing.assert_allclose(np.sqrt([*found.noise_by_.values()]), DEVIATIONS, rtol=0.15)
    table, y, f, spread = sampled(1, (2000, 2000, 2000))
    low, high = found.predict_interval(table, 0.9).T
    for one in DEVIATIONS:
        rows = spread == one
        assert 0.85 < np.mean((y > low)[rows] & (y < high)[rows]) < 0.95
    true = float(np.mean(0.5 * ((y - f) / spread) ** 2 + np.log(spread) + 0.5 * np.log(2.0 * np.pi)))
    train, targets, _, _ = sampled(0)
    common = GPRegressor(random_state=0, target_transform=None).fit(train, targets)
    assert nlpd(found, table, y) < true + 0.03
    assert nlpd(found, table, y) < nlpd(common, table, y) - 0.5
    error = [np.mean((one.predict(table) - f) ** 2) for one in (found, common)]
    assert error[0] < 0.5 * error[1]


def test_groups_of_equal_noise_cost_little():
    table, y, _, _ = sampled(3, deviations=(0.3, 0.3, 0.3))
    new, later, _, _ = sampled(4, deviations=(0.3, 0.3, 0.3))
    settings: dict[str, Any] = QUICK | {"target_transform": None}
    scores = [nlpd(GPRegressor(noise_by=by, **settings).fit(table, y), new, later) for by in (None, "site")]
    assert abs(scores[1] - scores[0]) < 0.01


def test_signal_that_a_noisy_group_hides_is_found():
    rng = np.random.default_rng(0)
    x, group = rng.uniform(0.0, 6.0, 500), np.arange(500) % 10 < 3
    y = np.sin(2.0 * x) + np.where(group, 0.1, 30.0) * rng.standard_normal(500)
    found = GPRegressor(noise_by=1, **QUICK).fit(np.stack([x, group], axis=1), y)
    new = np.linspace(0.5, 5.5, 40)
    assert np.corrcoef(found.predict(np.stack([new, np.ones(40)], axis=1)), np.sin(2.0 * new))[0, 1] > 0.95
    np.testing.assert_allclose(np.sqrt([*found.noise_by_.values()]), [30.0, 0.1], rtol=0.2)


def test_units_do_not_matter():
    table, y, _, _ = FEW
    scaled = GPRegressor(noise_by="site", **QUICK).fit(table.assign(x=1e-3 * table["x"]), 1e3 * y)
    expected = few()
    variances = [np.asarray([*one.noise_by_.values()]) for one in (scaled, expected)]
    np.testing.assert_allclose(variances[0], 1e6 * variances[1], rtol=1e-2)
    new = table[:20]
    quantiles = scaled.predict_quantiles(new.assign(x=1e-3 * new["x"]))
    np.testing.assert_allclose(quantiles, 1e3 * expected.predict_quantiles(new), atol=5.0, rtol=1e-2)


def test_a_group_of_few_rows_has_a_moderate_variance():
    table, y, _, _ = sampled(5, (150, 150, 2), (0.2, 0.2, 0.2))
    few_rows = table["site"] == "west"
    y = np.where(few_rows, np.sin(2.0 * table["x"]), y)  # two rows without any noise, by chance
    variances = GPRegressor(noise_by="site", **QUICK).fit(table, y).noise_by_
    assert 0.1 < np.sqrt(variances["west"]) < 0.3


def test_an_unseen_level_has_at_least_the_pooled_variance():
    found, rows = few(), FEW[0][:5].assign(site="elsewhere")
    latent = found.predictor_.predict(found.model_inputs(rows)).variance[:, 0]
    noise = found.predict(rows, return_std=True)[1] ** 2 - latent
    np.testing.assert_allclose(noise, np.mean([*found.noise_by_.values()]), rtol=1e-6)  # groups of equal size
    larger = sampled(6, (10, 10, 100))
    uneven = GPRegressor(noise_by="site", **QUICK).fit(*larger[:2])
    rows = larger[0][:5].assign(site="elsewhere")
    latent = uneven.predictor_.predict(uneven.model_inputs(rows)).variance[:, 0]
    pooled = np.asarray([10.0, 10.0, 100.0]) @ [*uneven.noise_by_.values()] / 120.0
    np.testing.assert_allclose(uneven.predict(rows, return_std=True)[1] ** 2 - latent, pooled, rtol=1e-6)


def test_one_level_is_common_noise():
    table = FEW[0][["x"]].assign(site=1.0)
    y = np.sin(2.0 * table["x"].to_numpy()) + 0.1 * np.random.default_rng(0).standard_normal(len(table))
    settings: dict[str, Any] = QUICK | {"target_transform": None}
    found, common = (GPRegressor(noise_by=by, **settings).fit(table, y) for by in ("site", None))
    assert [*found.noise_by_] == [1.0]
    np.testing.assert_allclose(found.predict(table, return_std=True), common.predict(table, return_std=True), rtol=1e-4)


def test_equal_targets_have_equal_noise():
    with pytest.warns(UserWarning, match="all targets are the same"):
        found = GPRegressor(noise_by="site", **QUICK).fit(FEW[0], np.full(len(FEW[1]), 3.0))
    assert len({*found.noise_by_.values()}) == 1
    assert np.isfinite(found.predict(FEW[0], return_std=True)).all()


# -- the estimate for a given kernel ----------------------------------------------------------------------------------


def test_the_estimate_maximises_the_posterior_density():
    table, y, _, _ = sampled(7, (30, 5, 12))
    group = table["site"].map(SITES.index).to_numpy()
    X, w = table[["x"]].to_numpy(), np.random.default_rng(0).uniform(0.5, 3.0, len(y))
    model = agp.GPR.from_data(X, y, kernel=agp.RBF(0.5, 1.0), mean_function=agp.ConstantMean())
    rows = _Rows.of([(1.0, model)], Observations(X, y[:, None], w), group, 3)
    K, residual = model.kernel(X)[0], y - model.mean_function(X)[0][:, 0]

    def log_density(u):
        v = np.exp(u)[group]
        C = K + np.diag(v / w)
        exact = -0.5 * np.linalg.slogdet(C)[1] - 0.5 * residual @ np.linalg.solve(C, residual)
        return exact - 0.5 * np.sum((w - 1.0) * np.log(v))

    u = _estimate(rows, np.zeros(3), -20.0, start=True)
    step = 1e-4 * np.eye(3)
    slopes = np.asarray([(log_density(u + one) - log_density(u - one)) / 2e-4 for one in step])
    gaps = u - u.mean()
    assert abs(slopes.sum()) < 0.1  # the prior does not know the mean of the logarithms
    ratio = slopes / gaps  # the slope of the prior is -(u - mean) / variance
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=0.15)
    assert 0.0 < 1.0 / ratio.mean() - (np.sum(gaps**2) + 1.0) / 4.0 < 0.25


def test_the_prior_shrinks_equal_levels_but_not_different_ones():
    rng = np.random.default_rng(0)
    information = np.diag(np.full(40, 10.0))
    for spread, most in ((0.0, 0.75), (3.0, 1.0)):
        truth = spread * rng.standard_normal(40)
        estimate = truth + rng.standard_normal(40) / np.sqrt(10.0)
        prior = 0.0, 1.0
        for _ in range(5):
            u, prior = _posterior(information, information @ estimate, prior)
        assert np.mean((u - truth) ** 2) < most * np.mean((estimate - truth) ** 2)
        assert prior[1] == pytest.approx(spread**2, rel=0.5, abs=0.2)


def test_the_sample_has_as_many_rows_of_each_level_as_possible():
    group = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [10_000, 100, 3000]))
    rows = _sample(group, 0)
    assert [*np.bincount(group[rows])] == [950, 100, 950]
    assert (np.diff(rows) > 0).all()
    assert [*_sample(group[:1500], 0)] == [*range(1500)]


# -- predictions ------------------------------------------------------------------------------------------------------


def test_all_predictions_of_observations_have_the_noise_of_the_group():
    found, new = few(), FEW[0][:12]
    variances = new["site"].map(found.noise_by_).to_numpy()
    A = found.model_inputs(new)
    mean, latent = (x[:, 0] for x in found.predictor_.predict(A))
    total = np.sqrt(latent + variances)
    np.testing.assert_allclose(found.predict(new, return_std=True)[1], total, rtol=1e-6)
    covariance = found.predict(new, return_cov=True)[1]
    joint = found.predictor_.predict_covariance(A)[0]
    np.testing.assert_allclose(covariance, joint + np.diag(variances), rtol=1e-6, atol=1e-9)
    draws = found.sample(new, 4000)
    np.testing.assert_allclose(draws.std(axis=1), total, rtol=0.1)
    functions = found.sample_y(new, 4000)
    np.testing.assert_allclose(functions.std(axis=1), np.sqrt(latent), rtol=0.1)
    y = FEW[1][:12]
    far = found.predict_interval(new, 0.999)
    assert np.all(np.diff(far)[:, 0] > 5.0 * np.sqrt(variances))
    np.testing.assert_allclose(found.predictor_.crps(A, y[:, None])[:, 0], found.predictor_.crps(A, y)[:, 0])
    assert found.predictor_.pit(A, y).shape == (12, 1)
    assert found.score(new, y) == found.score(new, y)


@pytest.mark.parametrize("kind", ["number", "text of table", "ordered", "polars", "torch", "float32"])
def test_tables_and_arrays_give_the_same_model(kind):
    table, y, _, _ = FEW
    array = coded(table)
    settings: dict[str, Any] = {"by": 1, "rows": array}
    if kind == "number":
        settings = {"by": "site", "rows": table.assign(site=array[:, 1])}
    elif kind == "text of table":
        settings = {"by": "site", "rows": table.assign(site=[f"s{x:.0f}" for x in array[:, 1]])}
    elif kind == "ordered":
        settings = {"by": "site", "rows": table.assign(site=pd.Categorical(table["site"], SITES, ordered=True))}
    elif kind == "polars":
        polars = pytest.importorskip("polars")
        settings = {"by": "site", "rows": polars.DataFrame({"x": array[:, 0], "site": array[:, 1]})}
    elif kind == "torch":
        torch = pytest.importorskip("torch")
        settings = {"by": 1, "rows": torch.asarray(array), "y": torch.asarray(y)}
    found = GPRegressor(noise_by=settings["by"], **QUICK, dtype="float32" if kind == "float32" else None)
    found.fit(settings["rows"], settings.get("y", y))
    expected = GPRegressor(noise_by=1, **QUICK).fit(array, y)
    exact = kind in ("number", "polars", "torch")
    tolerance = 1e-8 if exact else 0.15  # codes have another kernel, and the positions of ordered levels another unit
    np.testing.assert_allclose([*found.noise_by_.values()], [*expected.noise_by_.values()], rtol=tolerance)
    labels = {"text of table": ["s0", "s10", "s20"], "ordered": [*SITES]}.get(kind, [0.0, 10.0, 20.0])
    assert [*found.noise_by_] == labels
    if exact:
        deviation = found.predict(settings["rows"], return_std=True)[1]
        np.testing.assert_allclose(np.asarray(deviation), expected.predict(array, return_std=True)[1], rtol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("method", ["auto", "nngp", "sgpr"])
def test_many_rows(method):
    table, y, _, _ = sampled(8, (4000, 300, 200), (0.2, 1.0, 0.05))
    found = GPRegressor(noise_by="site", method=method, **QUICK).fit(table, y)
    assert found.method_ in ("sgpr", "nngp", "vif")
    np.testing.assert_allclose(np.sqrt([*found.noise_by_.values()]), [0.2, 1.0, 0.05], rtol=0.2)
    new, later, f, spread = sampled(9, (500, 500, 500), (0.2, 1.0, 0.05))
    true = np.mean(0.5 * ((later - f) / spread) ** 2 + np.log(spread) + 0.5 * np.log(2.0 * np.pi))
    assert nlpd(found, new, later) < true + 0.1


@pytest.mark.parametrize("method", ["wsvgp", "sgpr", pytest.param("cggp", marks=pytest.mark.long)])
def test_methods_that_fit_regression_does_not_choose(method):
    found = GPRegressor(noise_by="site", method=method, num_inducing=20, **QUICK).fit(*FEW[:2])
    assert found.noise_by_["west"] > 9.0 * found.noise_by_["north"]
    low, high = (found.predict(FEW[0].assign(site=one), return_std=True)[1] for one in ("north", "west"))
    assert np.median(high) > 3.0 * np.median(low)


def test_weights_and_categories_with_effects():
    rng = np.random.default_rng(0)
    table, y, _, _ = FEW
    table = table.assign(batch=[f"b{k}" for k in rng.integers(0, 30, len(y))])
    found = GPRegressor(noise_by="site", random_state=0).fit(table, y, sample_weight=rng.integers(1, 4, len(y)))
    assert [*found.noise_by_] == [*SITES]
    np.testing.assert_allclose(np.sqrt([*found.noise_by_.values()]), DEVIATIONS, rtol=0.35)
    variances = table["site"].map(found.noise_by_).to_numpy()
    noise = found.predictor_.noise_at(found.model_inputs(table))[:, 0] + min(found.noise_by_.values())
    np.testing.assert_allclose(noise, variances, rtol=1e-9)


def test_a_limit_of_time_is_for_all_fits():
    with pytest.warns(agp.errors.ConvergenceWarning):
        found = GPRegressor(noise_by="site", random_state=0, max_seconds=1.0).fit(*FEW[:2])
    assert np.isfinite(found.predict(FEW[0], return_std=True)).all()


# -- files, and what is shown -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "array", "float32"])
def test_files_keep_the_noise(tmp_path, kind):
    table, y, _, _ = FEW
    rows = table if kind == "table" else coded(table)
    found = few() if kind == "table" else GPRegressor(noise_by=1, **QUICK).fit(rows, y)
    agp.save(found, tmp_path / "m.safetensors")
    loaded = agp.load(tmp_path / "m.safetensors", dtype="float32" if kind == "float32" else None)
    assert loaded.noise_by_ == found.noise_by_
    assert loaded.noise_by == found.noise_by
    mean, deviation = loaded.predict(rows, return_std=True)
    if kind == "float32":
        np.testing.assert_allclose(deviation, found.predict(rows, return_std=True)[1], rtol=0.05)
    else:
        assert (deviation == found.predict(rows, return_std=True)[1]).all()
    copy = pickle.loads(pickle.dumps(found))
    assert copy.noise_by_ == found.noise_by_
    assert "noise_by_" not in vars(clone(found))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("levels", [0.0, 1.0]),
        ("levels", [0.0, 1.0, 9.0]),
        ("further", [0.0, -1.0, 1.0]),
        ("variances", [0.0, "x", 1.0]),
        ("unseen", None),
    ],
)
def test_damaged_files_are_refused(name, value):
    from agp.estimators._files import deserialise, serialise

    stored = serialise(few())
    stored.facts["noise groups"][name] = value
    with pytest.raises(ValueError, match="it has"):
        deserialise(stored, {"backend": None, "device": None, "dtype": None})
    del stored.facts["noise groups"]
    with pytest.raises(ValueError, match="it has no noise variances of levels"):
        deserialise(stored, {"backend": None, "device": None, "dtype": None})


def test_the_description_names_the_deviations():
    text = few().facts()["noise"]
    first = few().noise_by_["north"] ** 0.5
    assert text.startswith(f"by 'site', standard deviations: north {first:.4g}, south ")
    assert "by &#x27;site&#x27;" in few()._repr_html_() or "by 'site'" in few()._repr_html_()


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_by": "place"}, "noise_by is 'place', but there is no such column; choose from x, site."),
        ({"noise_by": 1}, "noise_by is 1, but there is no such column; choose from x, site."),
        ({"likelihood": "student-t"}, "likelihood='student-t' does not use it; use likelihood='gaussian'"),
        ({"likelihood": "latent-noise"}, "likelihood='latent-noise' does not use it; use likelihood='gaussian'"),
        ({"likelihood": agp.Gaussian(0.0)}, "the likelihood says that there is no noise; use likelihood='gaussian'"),
        ({"target_transform": "yeo-johnson"}, "target_transform='yeo-johnson' does not use it"),
        ({"method": "deep-wsvgp"}, "the method deep-wsvgp does not take it; use another method, such as auto"),
        ({"noise_by": "x"}, "this column has 120 different values; group them, or convert the column to text"),
    ],
)
def test_contradictions_are_refused(settings, message):
    with pytest.raises(ValueError, match="noise_by is ") as caught:
        GPRegressor(**{"noise_by": "site", **QUICK, **settings}).fit(*FEW[:2])
    assert message in str(caught.value)


def test_other_data_are_refused():
    table, y, _, _ = FEW
    by_site = GPRegressor(noise_by="site", **QUICK)
    with pytest.raises(ValueError, match="y has 2 columns; fit one estimator for each target"):
        by_site.fit(table, np.stack([y, y], axis=1))
    with pytest.raises(AttributeError, match="needs all rows at once; call fit instead"):
        by_site.partial_fit(table, y)
    with pytest.raises(
        ValueError,
        match="X has no names of columns; pass the number of a column, from 0 to 1, or pass X as a data frame",
    ):
        by_site.fit(coded(table), y)
    with pytest.raises(ValueError, match="noise_by is 2, but X has no names of columns"):
        GPRegressor(noise_by=2, **QUICK).fit(coded(table), y)
    gaps = table.assign(site=np.where(table["site"] == "north", np.nan, coded(table)[:, 1]))
    with pytest.raises(ValueError, match="this column has missing cells; fill them in, or convert"):
        GPRegressor(noise_by="site", missing="impute", **QUICK).fit(gaps, y)
    named = table.assign(row=[f"row {i}" for i in range(len(y))])
    with (
        pytest.warns(agp.errors.ColumnWarning),
        pytest.raises(ValueError, match="this column is left out of the inputs; name it in keep"),
    ):
        GPRegressor(noise_by="row", **QUICK).fit(named, y)


def test_huge_targets_are_refused_without_another_warning():
    table, y, _, _ = FEW
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="its variance exceeds the maximum of float64"):
            GPRegressor(noise_by="site", **QUICK).fit(table, 1e300 * y)


def test_a_new_fit_forgets_the_noise():
    found = clone(few()).fit(*FEW[:2]).set_params(noise_by=None)
    found.fit(*FEW[:2])
    assert "noise_by_" not in vars(found)
    table = FEW[0]
    deviations = [found.predict(table.assign(site=one), return_std=True)[1] for one in SITES]
    assert np.max(deviations) < 3.0 * np.min(deviations)


def test_classifiers_and_latent_noise_do_not_have_it():
    assert "noise_by" not in GPClassifier().get_params()
    table, y, _, _ = FEW
    found = GPRegressor(likelihood="latent-noise", num_inducing=20, max_steps=20, **QUICK)
    with pytest.warns(agp.errors.ConvergenceWarning):
        found.fit(table, y)
    assert found.predictor_.level_noise is None


# -- how levels are shown ---------------------------------------------------------------------------------------------

DAYS = ["2020-03-01", "2020-04-01", "2021-01-01"]
LEVELS = {
    "years": ([2019, 2020, 2021], [2019, 2020, 2021], "2019 0.1"),
    "halves": ([0.5, 1.0, 1.5], [0.5, 1, 1.5], "0.5 0.1"),
    "Booleans": ([False, True, True], [False, True], "False 0.1"),
    "words": (["false", "TRUE", "TRUE"], ["false", "TRUE"], "false 0.1"),
    "dates": (pd.to_datetime(DAYS), DAYS, "2020-03-01 0.1"),
    "texts of dates": (DAYS, DAYS, "2020-03-01 0.1"),
    "times": (pd.to_datetime([f"{day} 12:30" for day in DAYS]), [f"{day}T12:30:00" for day in DAYS], "T12:30:00 0.1"),
    "whole numbers": (pd.Categorical([10, 20, 300]), ["10", "20", "300"], "10 0.1"),
    "gaps": (["a", "b", None], ["a", "b", None], "missing 2"),
}


@pytest.mark.parametrize("kind", LEVELS)
def test_levels_are_shown_as_the_table_has_them(kind, tmp_path):
    cells, names, words = LEVELS[kind]
    table, y, _, _ = sampled(3, (40, 40, 40))
    group = table["site"].map(SITES.index).to_numpy()
    table = pd.DataFrame({"x": table["x"], kind: pd.Series(cells)[group].reset_index(drop=True)})
    found = GPRegressor(noise_by=kind, missing="impute", **QUICK).fit(table, y)
    assert [*found.noise_by_] == names
    assert [*map(type, found.noise_by_)] == [*map(type, names)]
    assert words.rpartition(" ")[0] in found.facts()["noise"]
    agp.save(found, tmp_path / "m.safetensors")
    assert agp.load(tmp_path / "m.safetensors").facts() == found.facts()
