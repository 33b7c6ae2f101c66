"""Numbers behind pictures: partial dependence, tables whose columns are replaced, predictions under one roof."""

import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import STRICT

import agp
from agp.errors import ColumnWarning, ConvergenceWarning
from agp.estimators import GPClassifier, GPRegressor
from agp.inspection import _subject, as_table, average_prediction, inducing_inputs, partial_dependence, subject_of

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (40, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.5 * X[:, 1:] + 0.05 * RNG.standard_normal((40, 1))
EXACT = agp.GPR.from_data(X, Y)


@pytest.fixture(autouse=True)
def _short_trainings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def test_the_average_of_a_group_has_the_variance_of_its_joint_covariance():
    covariance = EXACT.predict_covariance(X[:12])[0]
    prediction = EXACT.predict(X[:12]).mean[:, 0]
    mean, lower, upper = average_prediction(EXACT, X[:12], 3)
    for g in range(3):
        rows = slice(4 * g, 4 * g + 4)
        weights = np.full(4, 0.25)
        deviation = np.sqrt(weights @ covariance[rows, rows] @ weights)
        assert mean[g, 0] == pytest.approx(prediction[rows].mean())
        assert upper[g, 0] - mean[g, 0] == pytest.approx(1.959963984540054 * deviation, rel=1e-6)
        assert mean[g, 0] - lower[g, 0] == pytest.approx(1.959963984540054 * deviation, rel=1e-6)


def test_partial_dependence_is_the_average_over_rows_with_one_value(backend):
    model = backend.move(EXACT)
    effect = partial_dependence(model, backend.array(X), 1)
    assert effect.is_number
    assert effect.name == "input 2"
    assert effect.values.shape == (25,)
    for g in (0, 12, 24):
        rows = X.copy()
        rows[:, 1] = effect.values[g]
        assert effect.mean[g, 0] == pytest.approx(EXACT.predict(rows).mean.mean(), abs=1e-9)
    assert (effect.lower < effect.mean).all()
    assert (effect.mean < effect.upper).all()


@pytest.mark.slow
def test_the_partial_dependence_of_nearest_rows_has_no_seams():
    parts = {"kernel": EXACT.kernel, "likelihood": EXACT.likelihood, "mean_function": EXACT.mean_function}
    near = agp.NNGP.from_data(X, Y, neighbours=10, **parts)
    effect = partial_dependence(near, X, 1)
    lines = np.repeat(X[:, None, :], len(effect.values), axis=1)
    lines[:, :, 1] = effect.values
    np.testing.assert_allclose(effect.mean, near.predict_mean_along(lines).mean(axis=0), atol=1e-10)
    assert np.max(np.abs(effect.mean - near.predict_mean(lines).mean(axis=0))) > 1e-6


def test_the_band_of_nearest_rows_has_few_neighbours(monkeypatch):
    parts = {"kernel": EXACT.kernel, "likelihood": EXACT.likelihood}
    near = agp.NNGP.from_data(X, Y, neighbours=10, **parts)
    width, narrow = (
        (e.upper - e.lower).mean() for e in (partial_dependence(near, X, 1), partial_dependence(EXACT, X, 1))
    )
    assert width == pytest.approx(narrow, rel=0.5)
    monkeypatch.setattr(_subject, "NEAR_NEIGHBOURS", 2)
    wide = partial_dependence(near, X, 1)
    assert (wide.upper - wide.lower).mean() > 1.2 * width


def test_of_a_linear_function_the_partial_dependence_is_its_slope():
    y = 3.0 * X[:, :1] - X[:, 1:] + 0.01 * RNG.standard_normal((40, 1))
    model = agp.fit_lbfgs(agp.GPR.from_data(X, y, kernel=agp.Linear()), X, y, max_iterations=50).model
    for column, slope in ((0, 3.0), (1, -1.0)):
        effect = partial_dependence(model, X, column)
        assert np.polyfit(effect.values, effect.mean[:, 0], 1)[0] == pytest.approx(slope, abs=0.02)


@pytest.mark.slow
def test_partial_dependence_is_that_of_scikit_learn():
    inspection = pytest.importorskip("sklearn.inspection")
    estimator = GPRegressor(max_steps=20, tolerance=0.1).fit(X, Y[:, 0])
    ours = partial_dependence(estimator, X, 0)
    theirs = inspection.partial_dependence(
        estimator, X, [0], custom_values={0: ours.values}, kind="average", method="brute"
    )
    np.testing.assert_allclose(ours.mean[:, 0], theirs["average"][0], atol=1e-9)


@pytest.mark.slow
def test_a_category_has_a_mean_for_each_of_its_values():
    kind = np.where(np.arange(40) % 4 == 0, "round", "square")
    table = pd.DataFrame({"size": X[:, 0], "kind": kind, "count": 3 * np.arange(40)})
    target = (kind == "round") * 5.0 + X[:, 0] + 0.1 * RNG.standard_normal(40)
    estimator = GPRegressor(max_steps=50).fit(table, target)
    effect = partial_dependence(estimator, table, "kind")
    assert (effect.name, effect.values.tolist(), effect.is_number) == ("kind", ["square", "round"], False)
    assert effect.mean[1, 0] - effect.mean[0, 0] == pytest.approx(5.0, abs=0.3)
    assert effect.mean[1, 0] == pytest.approx(estimator.predict(table.assign(kind="round")).mean())
    assert partial_dependence(estimator, table, "count").is_number
    with pytest.raises(ValueError, match="column 'weight' does not exist; the columns are size, kind, count"):
        partial_dependence(estimator, table, "weight")


@pytest.mark.slow
def test_effects_on_probabilities_stay_probabilities():
    labels = (X[:, 0] > 0.0).astype(float)[:, None]
    model = agp.TVGP.from_data(X, labels, likelihood=agp.Bernoulli())
    model = agp.train(model, X, labels, steps=20).model
    effect = partial_dependence(model, X, 0)
    assert (effect.lower >= 0.0).all()
    assert (effect.upper <= 1.0).all()
    assert effect.mean[0, 0] < 0.4 < 0.6 < effect.mean[-1, 0]
    assert (effect.lower <= effect.mean).all()
    assert (effect.mean <= effect.upper).all()


@pytest.mark.slow
def test_the_band_of_samples_agrees_with_the_closed_form(monkeypatch):
    exact = average_prediction(EXACT, X[:12], 3)
    monkeypatch.setattr("agp.inspection._effects._deviation", _no_joint_covariance)
    sampled = average_prediction(EXACT, X[:12], 3, samples=4000)
    width = exact[2] - exact[1]
    assert (abs(sampled[1] - exact[1]) < 0.15 * width).all()
    assert (abs(sampled[2] - exact[2]) < 0.15 * width).all()


def _no_joint_covariance(*_):
    raise TypeError


def deep():
    """A deep model of two layers."""
    parts = [agp.SVGP.from_data(X, X if i == 0 else Y, num_inducing=6, posterior="whitened").process for i in range(2)]
    return agp.SVGP(agp.processes.Deep(tuple(parts), samples=3), agp.Gaussian(np.asarray(0.1)))


@pytest.mark.long
def test_a_deep_model_has_effects_and_inducing_inputs_of_its_first_layer():
    model = deep()
    effect = partial_dependence(model, X, 0)
    assert (effect.lower < effect.upper).all()
    (path,) = inducing_inputs(model)
    assert "layers.0" in path


def test_few_values_are_all_taken_and_columns_without_numbers_are_refused():
    table = np.stack([X[:, 0], np.arange(40) % 3], axis=1)
    model = agp.GPR.from_data(table, Y)
    assert partial_dependence(model, table, 1).values.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="the column 'input 1' has no finite numbers"):
        partial_dependence(model, np.full((3, 2), np.nan), 0)


def test_tables_keep_the_kind_of_their_columns():
    table = as_table(pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}, index=[7, 8]))
    crossed = table.cartesian_product(1, np.asarray(["u", "v", "w"], dtype=object), np.arange(2))
    assert crossed["a"].tolist() == [1, 2] * 3
    assert crossed["b"].tolist() == ["u", "u", "v", "v", "w", "w"]
    crossed = as_table([[1.0, 2.0]]).cartesian_product(0, np.asarray([5.0, 6.0]), np.zeros(1, dtype=int))
    assert crossed.tolist() == [[5.0, 2.0], [6.0, 2.0]]
    crossed = as_table(np.asarray([[1, 2]])).cartesian_product(0, np.asarray([1.5, 2.5]), np.zeros(1, dtype=int))
    assert crossed.tolist() == [[1.5, 2.0], [2.5, 2.0]]  # a grid is not rounded to the integers of the table
    for wrong, message in ((np.ones(3), "shape"), (np.ones((0, 2)), "shape"), (pd.DataFrame({"a": []}), "no rows")):
        with pytest.raises(ValueError, match=message):
            as_table(wrong)
    with pytest.raises(TypeError, match="X is a str, but must be an array, a list of lists, or a data frame"):
        as_table("table.csv")


TIMES = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(120) * 9, unit="D")
OF_COLUMN = {
    "dates": (TIMES, "M"),
    "text of dates": (TIMES.strftime("%d.%m.%Y"), "M"),
    "times of a zone": (TIMES.tz_localize("UTC").tz_convert("America/New_York"), "M"),
    "durations": (TIMES - TIMES[0], "m"),
    "percentages": ([f"{i}%" for i in range(120)], "f"),
}


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "polars"])
@pytest.mark.parametrize("kind", OF_COLUMN)
def test_effects_of_dates_and_texts_of_numbers_lie_on_a_grid(kind, library):
    cells, dtype = OF_COLUMN[kind]
    frame = pd.DataFrame({"c": cells, "kind": np.where(np.arange(120) % 2, "a", "b")})
    if library != "pandas":
        pytest.importorskip(library, reason=f"{library} is not installed: not executed")
        narwhals = pytest.importorskip("narwhals.stable.v2").from_native(frame)
        frame = narwhals.to_arrow() if library == "pyarrow" else narwhals.to_polars()
    y = np.arange(120) / 60.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        model = GPRegressor(kernel="linear", hyperparameters="mode", max_steps=20, random_state=0).fit(frame, y)
    effect = partial_dependence(model, frame, "c")
    assert (effect.values.dtype.kind, effect.is_number, len(effect.values)) == (dtype, True, 25)
    positions = (
        effect.values.astype(float) if dtype == "f" else (effect.values - effect.values[0]) / np.timedelta64(1, "D")
    )
    slope = np.polyfit(positions, effect.mean[:, 0], 1)[0]
    assert slope * (1.0 if dtype == "f" else 9.0) == pytest.approx(1.0 / 60.0, rel=0.05)
    if dtype == "M":
        assert np.datetime64("2020-01-01") <= effect.values[0] < np.datetime64("2020-02-01")


def test_effects_of_ordered_categories_are_in_their_order():
    sizes = pd.Categorical(np.asarray(["L", "S", "M", "M"] * 10), ["S", "M", "L", "XL"], ordered=True)
    frame = pd.DataFrame({"size": sizes, "x": np.arange(40.0) / 7.0})
    model = GPRegressor(kernel="linear", max_steps=20).fit(frame, 2.0 * sizes.codes + 0.1 * np.sin(np.arange(40)))
    effect = partial_dependence(model, frame, "size")
    assert (effect.values.tolist(), effect.is_number) == (["S", "M", "L"], False)
    np.testing.assert_allclose(effect.mean[:, 0], [0.0, 2.0, 4.0], atol=0.1)


def test_what_is_no_model_is_refused_by_name():
    for wrong, name in ((agp.RBF(), "RBF"), (GPRegressor, "GPRegressor"), ([], "list")):
        with pytest.raises(TypeError, match=f"is a {name}, but must be a model, or a fitted GPRegressor"):
            subject_of(wrong)


@pytest.mark.long
def test_labels_become_codes_and_unseen_ones_are_named():
    labels = np.where(X[:, 0] > 0.0, "yes", "no")
    estimator = GPClassifier(tolerance=0.1, max_steps=20).fit(X, labels)
    subject = subject_of(estimator)
    assert subject.classes == ("no", "yes")
    np.testing.assert_array_equal(subject.targets(labels)[:, 0], labels == "yes")
    with pytest.raises(ValueError, match="y has the label 'maybe', but the model was trained on no, yes"):
        subject.targets(["yes", "maybe"])
    assert subject_of(agp.TVGP.from_data(X, 0.0 * Y, likelihood=agp.Bernoulli())).classes == (0, 1)


def test_predictions_are_host_numbers_with_the_interval_of_the_function():
    found = subject_of(STRICT.move(EXACT)).predict(STRICT.array(X))
    latent, observed = EXACT.predict(X), EXACT.predict(X, observed=True)
    np.testing.assert_allclose(found.mean, observed.mean, atol=1e-9)
    np.testing.assert_allclose(found.variance, observed.variance, rtol=1e-9)
    np.testing.assert_allclose(found.upper - found.lower, 2 * 1.959963984540054 * latent.variance**0.5, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
def test_estimators_name_the_columns_of_their_models():
    table = pd.DataFrame({"a": [1.0, np.nan, 3.0, 4.0], "b": ["x", "y", "x", "y"], "c": [0.1, 0.7, 0.3, 0.2]})
    settings = {"max_steps": 2, "missing": "impute"}
    estimator = GPRegressor(**settings).fit(table, [1.0, 2.0, 3.0, 5.0])
    assert estimator.model_columns() == ["a", "c", "a is missing", "b"]
    np.testing.assert_array_equal(estimator.model_inputs(table)[:, 3], [0.0, 1.0, 0.0, 1.0])
    deep = GPRegressor(method="deep-wsvgp", num_inducing=3, **settings).fit(table, [1.0, 2.0, 3.0, 5.0])
    assert deep.model_columns() == ["a", "c", "a is missing", "b = x", "b = y"]
    assert deep.model_inputs(table).shape == (4, 5)
    plain = GPRegressor(**settings).fit(table[["a", "c"]].to_numpy(), [1.0, 2.0, 3.0, 5.0])
    assert plain.model_columns() == ["input 1", "input 2", "input 1 is missing"]


@pytest.mark.parametrize("likelihood", ["poisson", "bernoulli", "gaussian"])
def test_the_partial_dependence_of_sites_of_nearest_rows_is_that_of_all_rows(likelihood):
    given, y = {
        "poisson": (agp.Poisson(), np.floor(np.exp(np.clip(Y, -1.0, 2.0)))),
        "bernoulli": (agp.Bernoulli(), 1.0 * (Y > 0.0)),
        "gaussian": (agp.Gaussian(0.1), Y),
    }[likelihood]
    step, found = agp.updates.SiteStep(1.0), []
    for kind, options in ((agp.TVGP, {}), (agp.TNNGP, {"neighbours": 40})):
        model = kind.from_data(X, y, kernel=EXACT.kernel, likelihood=given, **options)
        state, batch = step.init(model), model._batch(X, y)
        for _ in range(30):
            model, state, _ = step(model, batch, state)
        found.append(partial_dependence(model, X, 1))
    exact, near = found
    np.testing.assert_allclose(near.mean, exact.mean, atol=1e-4)
    np.testing.assert_allclose(near.upper - near.lower, exact.upper - exact.lower, rtol=0.6)


def test_the_band_of_sites_of_nearest_rows_has_few_neighbours(monkeypatch):
    near = agp.TNNGP.from_data(X, 1.0 * (Y > 0.0), neighbours=30, likelihood=agp.Bernoulli())
    monkeypatch.setattr(_subject, "NEAR_NEIGHBOURS", 2)
    assert _subject.with_fewer_neighbours(near).neighbours == 2
    assert _subject.with_fewer_neighbours(agp.TVGP.from_data(X, Y)).X.shape == X.shape
