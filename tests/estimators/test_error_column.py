"""Regressors that read standard deviations of measurement errors from a column of the table."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import agp
from agp.estimators import GPClassifier, GPRegressor

pytestmark = [
    pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning"),
]

N = 60
RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, N)
ERROR = np.where(np.arange(N) % 2, 0.05, 0.8)
Y = np.sin(2.0 * X) + ERROR * RNG.standard_normal(N)
INPUTS = pd.DataFrame({"x": X})
TABLE = INPUTS.assign(se=ERROR)[["se", "x"]]
QUICK = {"kernel": "rbf", "hyperparameters": "mode", "max_steps": 5, "random_state": 0}
BY_COLUMN = GPRegressor(error_column="se", **QUICK)
NOISE = {"noise": ERROR**2}
AT_3 = np.arange(N) == 3


def by_hand(rows=slice(None), **settings):
    return GPRegressor(**(QUICK | settings)).fit(INPUTS[rows], Y[rows], noise=ERROR[rows] ** 2)


def log_score(model, X, y):
    return float(np.mean(model.log_density(X, y)))


def test_all_methods_use_the_squares_of_the_column():
    found, other = clone(BY_COLUMN).fit(TABLE, Y), by_hand()
    for name, arguments in {
        "predict": (True,),
        "predict_quantiles": ((0.1, 0.9),),
        "predict_interval": (0.9,),
        "sample": (5,),
    }.items():
        expected = vars(GPRegressor).get(name) or getattr(GPRegressor, name)
        answers = expected(found, TABLE, *arguments), expected(other, INPUTS, *arguments, **NOISE)
        np.testing.assert_allclose(*answers, rtol=1e-12)
    np.testing.assert_array_equal(found.log_density(TABLE, Y), other.log_density(INPUTS, Y, **NOISE))
    np.testing.assert_array_equal(found.sample_y(TABLE, 2), other.sample_y(INPUTS, 2))
    covariances = found.predict(TABLE, return_cov=True)[1], other.predict(INPUTS, return_cov=True, **NOISE)[1]
    np.testing.assert_array_equal(*covariances)
    assert found.score(TABLE, Y) == other.score(INPUTS, Y)
    assert [*found.feature_names_in_] == ["x"]
    assert found.model_inputs(TABLE).shape == (N, 1)
    assert found.model_columns() == ["x"]


def test_tables_without_the_column_are_predicted_without_measurement_error():
    found, other = clone(BY_COLUMN).fit(TABLE, Y), by_hand()
    np.testing.assert_array_equal(found.predict(INPUTS, True)[1], other.predict(INPUTS, True)[1])
    given = found.predict(INPUTS, True, noise=ERROR**2)[1]
    np.testing.assert_array_equal(given, found.predict(TABLE, True)[1])
    with pytest.raises(ValueError, match=r"noise is given, but X has the column 'se' \(error_column\); leave one of"):
        found.predict(TABLE, True, noise=ERROR**2)
    with pytest.raises(ValueError, match="noise is given, but X has the column 'se'"):
        clone(BY_COLUMN).fit(TABLE, Y, noise=ERROR**2)


@pytest.mark.parametrize("kind", ["numpy", "list", "torch", "polars", "float32"])
def test_arrays_and_tables_of_other_libraries(kind):
    rows, y, asked = TABLE.to_numpy(), Y, 0
    if kind == "list":
        rows = rows.tolist()
    elif kind == "torch":
        torch = pytest.importorskip("torch")
        rows, y = torch.asarray(rows), torch.asarray(y)
    elif kind == "polars":
        rows, asked = pytest.importorskip("polars").DataFrame({"se": ERROR, "x": X}), "se"
    found = GPRegressor(error_column=asked, **QUICK, dtype="float32" if kind == "float32" else None).fit(rows, y)
    expected = by_hand().predict(INPUTS, True, **NOISE)
    for answer, value in zip(found.predict(rows, True), expected, strict=True):
        np.testing.assert_allclose(np.asarray(answer), value, rtol=1e-6 if kind != "float32" else 2e-2)
    assert found.n_features_in_ == 1
    if kind == "numpy":
        plain = found.predict(rows[:, 1:], True)[1]
        np.testing.assert_allclose(plain, by_hand().predict(INPUTS, True)[1], rtol=1e-12)


def test_cross_validation_and_search_by_log_density():
    folds = KFold(3, shuffle=True, random_state=0)
    expected = []
    for train, test in folds.split(X):
        rest = GPRegressor(**QUICK).fit(INPUTS.iloc[train], Y[train], noise=ERROR[train] ** 2)
        expected.append(rest.log_density(INPUTS.iloc[test], Y[test], noise=ERROR[test] ** 2).mean())
    np.testing.assert_allclose(cross_val_score(BY_COLUMN, TABLE, Y, cv=folds, scoring=log_score), expected, rtol=1e-9)
    grid = GridSearchCV(BY_COLUMN, {"kernel": ["rbf", "linear"]}, cv=folds, scoring=log_score).fit(TABLE, Y)
    assert grid.best_params_ == {"kernel": "rbf"}
    assert grid.predict(TABLE).shape == cross_val_predict(BY_COLUMN, TABLE, Y, cv=folds).shape == (N,)


def test_scores_take_noise_by_routing():
    with sklearn.config_context(enable_metadata_routing=True):
        model = GPRegressor(**QUICK).set_fit_request(noise=True).set_score_request(noise=True)
        found = cross_val_score(model, INPUTS, Y, cv=KFold(3), params=NOISE)
    plain = cross_val_score(BY_COLUMN, TABLE, Y, cv=KFold(3))
    np.testing.assert_allclose(found, plain, rtol=1e-12)
    assert by_hand().score(INPUTS, Y, **NOISE) == by_hand().score(INPUTS, Y)


def test_pipelines_keep_the_column_apart():
    scaled = ColumnTransformer([("scale", StandardScaler(), ["x"])], remainder="passthrough")
    scaled.set_output(transform="pandas")
    pipeline = make_pipeline(scaled, GPRegressor(error_column="remainder__se", **QUICK)).fit(TABLE, Y)
    z = pd.DataFrame({"scale__x": (X - X.mean()) / X.std()})
    other = GPRegressor(**QUICK).fit(z, Y, noise=ERROR**2)
    np.testing.assert_allclose(pipeline.predict(TABLE, return_std=True)[1], other.predict(z, True, **NOISE)[1])
    with pytest.raises(ValueError, match=r"the column 0 of X \(error_column\) is -1 .* do not scale this column"):
        make_pipeline(StandardScaler(), GPRegressor(error_column=0, **QUICK)).fit(TABLE, Y)


def test_other_methods_parts_and_groups():
    table = TABLE.assign(unit=np.where(np.arange(N) % 3, "a", "b"))
    found = GPRegressor(error_column="se", noise_by="unit", **QUICK).fit(table, Y)
    other = GPRegressor(noise_by="unit", **QUICK).fit(table[["x", "unit"]], Y, noise=ERROR**2)
    assert found.noise_by_ == other.noise_by_
    sparse = {"method": "wsvgp", "num_inducing": 10, "kernel": "rbf", "random_state": 0}
    found, other = GPRegressor(error_column="se", **sparse), GPRegressor(**sparse)
    for rows in (slice(30), slice(30, N)):
        found.partial_fit(TABLE[rows], Y[rows])
        other.partial_fit(INPUTS[rows], Y[rows], noise=ERROR[rows] ** 2)
    np.testing.assert_array_equal(found.predict(TABLE, True)[1], other.predict(INPUTS, True, **NOISE)[1])


# -- several targets, each with a column of its own ------------------------------------------------------------------

BOTH = np.stack([Y, 1000.0 * np.cos(X)], axis=1)
ERRORS = np.stack([ERROR, np.where(X > 0.0, 300.0, 20.0)], axis=1)
WIDE = INPUTS.assign(e1=ERRORS[:, 0], e2=ERRORS[:, 1])[["e2", "x", "e1"]]
LEAST = {"num_inducing": 10, **QUICK}
OF_TWO = GPRegressor(error_column=["e1", "e2"], **LEAST)


def two_by_hand(rows=slice(None)):
    return GPRegressor(**LEAST).fit(INPUTS[rows], BOTH[rows], noise=ERRORS[rows] ** 2)


@pytest.mark.parametrize("kind", ["list", "tuple", "clone", "numpy", "torch", "polars"])
def test_each_target_has_a_column(kind):
    rows, y, asked = WIDE, BOTH, ["e1", "e2"]
    if kind == "tuple":
        asked = ("e1", "e2")
    elif kind in ("numpy", "torch"):
        rows, asked = WIDE.to_numpy(), [2, 0]
        if kind == "torch":
            torch = pytest.importorskip("torch")
            rows, y = torch.asarray(rows), torch.asarray(y)
    elif kind == "polars":
        rows = pytest.importorskip("polars").DataFrame({name: WIDE[name].to_numpy() for name in WIDE})
    model = GPRegressor(error_column=asked, **LEAST)
    found, other = (clone(model) if kind == "clone" else model).fit(rows, y), two_by_hand()
    noise = {"noise": ERRORS**2}
    for answers in (
        (found.predict(rows, True)[1], other.predict(INPUTS, True, **noise)[1]),
        (found.predict_interval(rows), other.predict_interval(INPUTS, **noise)),
        (found.log_density(rows, y), other.log_density(INPUTS, BOTH, **noise)),
        (found.sample(rows, 3), other.sample(INPUTS, 3, **noise)),
        (found.score(rows, y), other.score(INPUTS, BOTH)),
    ):
        np.testing.assert_allclose(*map(np.asarray, answers), rtol=1e-4)
    assert found.n_features_in_ == 1


def test_tables_may_lack_some_of_the_columns():
    found, other = clone(OF_TWO).fit(WIDE, BOTH), two_by_hand()
    np.testing.assert_array_equal(found.predict(INPUTS, True)[1], other.predict(INPUTS, True)[1])
    one = other.predict(INPUTS, True, noise=ERRORS**2 * [1.0, 0.0])[1]
    np.testing.assert_array_equal(found.predict(WIDE[["x", "e1"]], True)[1], one)
    given = found.predict(INPUTS, True, noise=ERRORS**2)[1]
    np.testing.assert_array_equal(given, found.predict(WIDE, True)[1])
    with pytest.raises(ValueError, match=r"noise is given, but X has the column 'e1' \(error_column\); leave one of"):
        found.predict(WIDE, True, noise=ERRORS**2)


def test_one_column_for_all_targets_is_named_for_each():
    two = np.stack([Y, -Y], axis=1)
    for method in ("wsvgp", "gpr"):  # exact models have one noise variance in each row
        settings = LEAST | {"method": method}
        found = GPRegressor(error_column=["se", "se"], **settings).fit(TABLE, two)
        other = GPRegressor(**settings).fit(INPUTS, two, **NOISE)
        np.testing.assert_array_equal(found.predict(TABLE, True)[1], other.predict(INPUTS, True, **NOISE)[1])
    found = GPRegressor(error_column=["se"], **QUICK).fit(TABLE, Y)
    np.testing.assert_array_equal(found.predict(TABLE, True)[1], by_hand().predict(INPUTS, True, **NOISE)[1])


@pytest.mark.parametrize(("asked", "single", "several"), [("se", 1, 0), (["se"], 1, 0), (["e1", "e2"], 0, 1)])
def test_tags_say_how_many_targets_are_taken(asked, single, several):
    tags = GPRegressor(error_column=asked).__sklearn_tags__().target_tags
    assert (tags.single_output, tags.multi_output) == (bool(single), bool(several))


def test_several_columns_in_parts_pipelines_searches_and_files(tmp_path):
    sparse = {"method": "wsvgp", "num_inducing": 10, "kernel": "rbf", "random_state": 0}
    found, other = GPRegressor(error_column=["e1", "e2"], **sparse), GPRegressor(**sparse)
    for rows in (slice(30), slice(30, N)):
        found.partial_fit(WIDE[rows], BOTH[rows])
        other.partial_fit(INPUTS[rows], BOTH[rows], noise=ERRORS[rows] ** 2)
    expected = other.predict(INPUTS, True, noise=ERRORS**2)[1]
    np.testing.assert_array_equal(found.predict(WIDE, True)[1], expected)
    scaled = ColumnTransformer([("scale", StandardScaler(), ["x"])], remainder="passthrough")
    scaled.set_output(transform="pandas")
    names = ["remainder__e1", "remainder__e2"]
    pipeline = make_pipeline(scaled, GPRegressor(error_column=names, **LEAST)).fit(WIDE, BOTH)
    assert (pipeline.predict(WIDE, return_std=True)[1] > ERRORS).all()
    scores = cross_val_score(OF_TWO, WIDE, BOTH, cv=KFold(2), scoring=log_score)
    assert np.isfinite(scores).all()
    for asked, rows in ((["e1", "e2"], WIDE), ([2, 0], WIDE.to_numpy())):
        found = GPRegressor(error_column=asked, **LEAST).fit(rows, BOTH)
        agp.save(found, tmp_path / "m.safetensors")
        for loaded in (agp.load(tmp_path / "m.safetensors"), pickle.loads(pickle.dumps(found))):
            assert loaded.error_column == asked
            np.testing.assert_array_equal(loaded.predict(rows, True)[1], found.predict(rows, True)[1])


def test_errors_of_missing_targets_may_be_missing():
    gone = np.arange(N) % 5 == 0
    targets, errors = BOTH.copy(), ERRORS.copy()
    targets[gone, 1] = errors[gone, 1] = np.nan
    ignoring = clone(OF_TWO).set_params(missing_targets="ignore")
    found = ignoring.fit(INPUTS.assign(e1=errors[:, 0], e2=errors[:, 1]), targets)
    other = GPRegressor(missing_targets="ignore", **LEAST).fit(INPUTS, targets, noise=errors**2)
    np.testing.assert_array_equal(found.predict(INPUTS), other.predict(INPUTS))


BAD_LISTS = {
    "one of two": ("se", TABLE, BOTH, r"error_column is 'se', but y has 2 columns.* such as \['se', 'se'\]"),
    "number": (0, TABLE.to_numpy(), BOTH, r"error_column is 0, but y has 2 columns.* such as \[0, 0\]"),
    "two of one": (["e1", "e2"], WIDE, Y, "error_column names 2 columns, but y has 1 column; name one for each"),
    "two of three": (["e1", "e2"], WIDE, np.tile(Y[:, None], 3), "error_column names 2 columns, but y has 3 columns;"),
    "unknown": (["e1", "e3"], WIDE, BOTH, r"error_column\[1\] is 'e3', but there is no such column; choose from e2"),
    "empty": ([], WIDE, BOTH, r"error_column is \[\], but must be the name of a column, or a list of them"),
    "array": ([0, 3], WIDE.to_numpy(), BOTH, r"error_column\[1\] is 3, but X has no names of columns; pass the num"),
    "alone": ([0, 1], WIDE[["e1", "e2"]].to_numpy(), BOTH, "but X has 2 columns; pass inputs as well"),
    "negative": (["e1", "e2"], WIDE.assign(e2=-1.0), BOTH, r"the column 'e2' of X \(error_column\) is -1 in row 0"),
    "missing": (
        ["e1", "e2"],
        WIDE.assign(e2=np.where(AT_3, np.nan, 1.0)),
        BOTH,
        r"the column 'e2' of X \(error_column\) contains NaN in row 3; correct these",
    ),
}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_bad_lists_of_columns_are_refused(name):
    asked, rows, y, message = BAD_LISTS[name]
    with pytest.raises(ValueError, match=message):
        GPRegressor(error_column=asked, **LEAST).fit(rows, y)


# -- files and errors ------------------------------------------------------------------------------------------------


def test_files_and_pickles(tmp_path):
    found = clone(BY_COLUMN).fit(TABLE, Y)
    agp.save(found, tmp_path / "m.safetensors")
    for other in (agp.load(tmp_path / "m.safetensors"), pickle.loads(pickle.dumps(found))):
        assert other.error_column == "se"
        np.testing.assert_array_equal(other.predict(TABLE, True)[1], found.predict(TABLE, True)[1])


BAD = {
    "unknown": ({"error_column": "sd"}, TABLE, "error_column is 'sd', but there is no such column; "),
    "number": ({"error_column": 7}, TABLE.to_numpy(), "error_column is 7, but X has no names of columns; pass the num"),
    "name": ({"error_column": "se"}, TABLE.to_numpy(), "error_column is 'se', but X has no names of columns"),
    "alone": ({"error_column": 0}, TABLE[["se"]].to_numpy(), "error_column is 0, but X has 1 column; pass inputs as"),
    "negative": (
        {},
        TABLE.assign(se=np.where(AT_3, -1.0, ERROR)),
        r"\(error_column\) is -1 in row 3; standard de",
    ),
    "missing": (
        {},
        TABLE.assign(se=np.where(AT_3, np.nan, ERROR)),
        r"\(error_column\) contains NaN in row 3; correct these",
    ),
    "text": ({}, TABLE.assign(se="large"), r"the column 'se' of X \(error_column\) holds the text 'large'; pass num"),
    "likelihood": ({"likelihood": "student-t"}, TABLE, "noise is given, but likelihood='student-t' does not use it"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_columns_are_refused(name):
    settings, table, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        clone(BY_COLUMN).set_params(**settings).fit(table, Y)


def test_classifiers_do_not_have_it():
    assert "error_column" not in GPClassifier().get_params()


# -- noise of rows that are left out, and messages -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["noise", "column", "weights", "several"])
def test_noise_of_rows_that_are_left_out_may_be_missing(kind):
    out = np.arange(N) % 5 == 0
    error, y = np.where(out, np.nan, ERROR), np.where(out, np.nan, Y)
    ignoring = {"missing_targets": "ignore", **QUICK}
    expected = by_hand(~out).predict(INPUTS)
    if kind == "noise":
        found = GPRegressor(**ignoring).fit(INPUTS, y, noise=error**2)
    elif kind == "column":
        found = GPRegressor(error_column="se", **ignoring).fit(TABLE.assign(se=error), y)
    elif kind == "weights":
        weights = np.where(out, 0.0, 1.0)
        found = GPRegressor(**QUICK).fit(INPUTS, Y, sample_weight=weights, noise=error**2)
    else:
        found = GPRegressor(num_inducing=10, **ignoring)
        found.fit(INPUTS, np.stack([y, Y], axis=1), noise=np.stack([error, ERROR], axis=1) ** 2)
        assert np.isfinite(found.predict(INPUTS)).all()
        return
    np.testing.assert_allclose(found.predict(INPUTS), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="noise contains NaN in row 0; correct these entries, or remove their rows"):
        GPRegressor(**ignoring).fit(INPUTS, Y, noise=error**2)


def test_messages_name_the_argument_and_the_row():
    model, bad = GPRegressor(**QUICK), ["a", *ERROR[1:]]
    with pytest.raises(ValueError, match="noise holds the text 'a'; pass numbers"):
        model.fit(INPUTS, Y, noise=bad)
    with pytest.raises(ValueError, match="noise contains infinity in row 4; correct these entries"):
        model.fit(INPUTS, Y, noise=np.where(np.arange(N) == 4, np.inf, ERROR))
    with pytest.raises(ValueError, match=r"the column 'se' of X \(error_column\) contains NaN in row 4; correct these"):
        clone(BY_COLUMN).fit(TABLE.assign(se=np.where(np.arange(N) == 4, np.nan, ERROR)), Y)
    with pytest.raises(ValueError, match="sample_weight contains NaN in row 4; correct these entries"):
        model.fit(INPUTS, Y, sample_weight=np.where(np.arange(N) == 4, np.nan, 1.0))


def test_noise_is_taken_by_position_as_weights_are():
    order = np.random.default_rng(0).permutation(N)
    found = GPRegressor(**QUICK).fit(INPUTS, Y, noise=pd.Series(ERROR**2, index=order))
    np.testing.assert_array_equal(found.predict(INPUTS), by_hand().predict(INPUTS))
