"""Rows and targets that estimators refuse: each by one sentence of agp, with what scikit-learn's checks expect."""

import warnings

import numpy as np
import pandas as pd
import pytest

from agp.errors import NoSignalWarning
from agp.estimators import GPClassifier, GPRegressor
from agp.inspection import kernel_relevance, partial_dependence

RNG = np.random.default_rng(5)
X = pd.DataFrame({"a": RNG.normal(size=20), "b": RNG.normal(size=20)})
Y = np.sin(X["a"].to_numpy())
LABELS = np.where(Y > 0.0, "yes", "no")
QUICK = {"kernel": "rbf", "hyperparameters": "mode", "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return GPRegressor(**QUICK).fit(X, Y)


ROWS = {
    "a list of numbers": ([1.0, 2.0], ValueError, "Reshape your data"),
    "no row in a list": ([], ValueError, "Reshape your data"),
    "no row in an array": (np.zeros((0, 2)), ValueError, "pass at least one row with at least one column"),
    "no column": (np.zeros((3, 0)), ValueError, "pass at least one row with at least one column"),
    "complex numbers": (np.ones((4, 2)) + 1j, ValueError, "two columns"),
    "lists of unequal length": ([[1.0], [1.0, 2.0]], ValueError, "unequal length"),
    "a time in a list": (
        [[pd.Timestamp("2020"), 1.0]],
        TypeError,
        "convert it to a number, or pass a data frame",
    ),
    "a dictionary in a list": ([[{}, 1.0]], TypeError, "convert it to a number, or pass a data frame"),
    "a period in an array": (
        np.asarray([[pd.Period("2020-01", "M"), 1.0]], dtype=object),
        TypeError,
        "convert it to a number",
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_are_refused_in_one_sentence(case):
    rows, error, message = ROWS[case]
    with pytest.raises(error, match=message) as caught:
        GPRegressor(**QUICK).fit(rows, Y[: len(rows)])
    assert "\n" not in str(caught.value)


NAMES = {
    "renamed": (X.rename(columns={"b": "c"}), "no column 'b'"),
    "left out": (X[["a"]], "no column 'b'"),
    "further": (X.assign(c=1.0), "has the column 'c'"),
    "another order": (X[["b", "a"]], "in another order"),
}


@pytest.mark.parametrize("case", NAMES)
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_wrong_columns_are_named_before_the_lines_of_scikit_learn(model, case, library):
    table, message = NAMES[case]
    if library == "polars":
        table = pytest.importorskip("polars").from_pandas(table)
    with pytest.raises(ValueError, match=message) as caught:
        model.predict(table)
    first, _, more = str(caught.value).partition("\n")
    assert first.endswith(".")
    assert more.startswith("The feature names should match")


@pytest.mark.parametrize("names", [(0, 1, 2), pd.date_range("2020", periods=3), (("u", 1), ("u", 2), ("v", 1))])
def test_columns_whose_names_are_no_text_are_named_too(names):
    table = X.set_axis(pd.Index(names[:2], tupleize_cols=False), axis=1)
    trained = GPRegressor(**QUICK).fit(table, Y)
    with pytest.raises(ValueError, match="X has no column"):
        trained.predict(table.rename(columns={names[1]: names[2]}))
    assert GPRegressor(**QUICK, keep=names[0]).fit(table, Y).predict(table).shape == (20,)


TARGETS = {
    "a period": (pd.period_range("2020-01", periods=20, freq="M"), "convert it to a number"),
    "complex numbers": (Y + 1j, "two columns"),
    "a text": ("y", "y is 'y'"),
    "a number": (3.0, "y is 3.0"),
}


@pytest.mark.parametrize("case", TARGETS)
def test_targets_are_refused_in_one_sentence(case):
    y, message = TARGETS[case]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        GPRegressor(**QUICK).fit(X, y)
    assert "\n" not in str(caught.value)


LABEL_CASES = {
    "numbers": (Y, "use GPRegressor"),
    "labels of several types": (pd.Categorical([3, "a"] * 10), "several types"),
    "too few": (LABELS[:-1], "19"),
    "a number": (3.0, "y is 3.0"),
}


@pytest.mark.parametrize("case", LABEL_CASES)
def test_labels_are_refused_in_one_sentence(case):
    y, message = LABEL_CASES[case]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        GPClassifier(kernel="rbf").fit(X, y)
    assert "\n" not in str(caught.value)


def test_scores_accept_labels_as_objects_and_refuse_other_types():
    model = GPClassifier(kernel="rbf", random_state=0).fit(X, np.asarray(Y > 0.0, dtype=object))
    assert model.score(X, np.asarray(Y > 0.0, dtype=object)) > 0.8
    for labels in (LABELS, np.asarray([*LABELS], dtype=object)):
        with pytest.raises(ValueError, match="another type than those of training"):
            model.score(X, labels)


@pytest.mark.parametrize("mark", [pd.NA, pd.NaT, None])
def test_marks_of_missing_cells_in_arrays_are_missing(mark):
    rows = X.to_numpy(object).copy()
    rows[3, 1] = mark
    with pytest.raises(ValueError, match=r"NaN in row 3, column 1"):
        GPRegressor(**QUICK).fit(rows, Y)
    model = GPRegressor(**QUICK, missing="impute").fit(rows, Y)
    assert np.isfinite(model.predict(rows)).all()
    assert np.isfinite(partial_dependence(model, rows, 1, samples=2).mean).all()


@pytest.mark.parametrize("number", [5e-324, 1e-310, -2e-308])
@pytest.mark.parametrize("targets", [1, 2])
def test_subnormal_inputs_are_zero(number, targets):
    y = np.stack([Y] * targets, axis=1) if targets > 1 else Y
    tiny = np.stack([np.full(20, number), X["a"]], axis=1)
    zero = tiny * [0.0, 1.0]
    found, expected = (GPRegressor(**QUICK).fit(rows, y).predict(rows) for rows in (tiny, zero))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
def test_large_whole_numbers_of_arrow_are_numbers(dtype):
    pa = pytest.importorskip("pyarrow")
    ids = np.arange(20, dtype=dtype) + dtype(2**62)
    model = GPRegressor(**QUICK).fit(pa.table({"id": ids * 2 - ids, "a": X["a"]}), Y)
    assert model.model_inputs(pa.table({"id": ids, "a": X["a"]}))[0, 0] == 2.0**62


def test_relevance_if_the_kernel_with_the_largest_density_is_not_averaged():
    age, b = pd.Categorical([*"ccbbaaaadc"]), pd.Categorical([*"dcdcccccdb"], categories=[*"abcd"], ordered=True)
    y = [1e-6, 0.99, 0.99, 0.99, 1e-6, 1e-6, 1e-6, 0.99, 1e-6, 0.99]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoSignalWarning)
        models = [GPRegressor(random_state=0).fit(pd.DataFrame({"age": age, "b": b}), y[k:] + y[:k]) for k in (3, 4)]
    assert any(not kernel_relevance(model).lengthscales for model in models)


@pytest.mark.parametrize("name", [pd.Timestamp("2020"), ("a", 1), 1.5, 7, True, "a"])
def test_the_column_of_noise_groups_of_an_array_is_a_number(name):
    with pytest.raises(ValueError, match="X has no names of columns; pass the number of a column, from 0 to 1"):
        GPRegressor(noise_by=name).fit(X.to_numpy(), Y)


def test_infinite_labels_are_refused_without_a_warning():
    with pytest.raises(ValueError, match="y holds numbers that are no labels|infinity|inf"):
        GPClassifier(kernel="rbf").fit(X, np.where(Y > 0.0, np.inf, Y))


WEIGHTS = {
    "missing": (np.where(np.arange(20) == 3, np.nan, 1.0), "sample_weight contains NaN"),
    "too few": (np.ones(5), "X has 20 rows, but sample_weight has 5"),
    "several columns": (np.ones((20, 2)), "sample_weight has shape \\(20, 2\\), but must be 1D"),
    "a number": (2.0, "sample_weight is 2.0"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_scores_are_told_by_their_name(model, case):
    weights, message = WEIGHTS[case]
    for one, y in ((model, Y), (GPClassifier(kernel="rbf", random_state=0).fit(X, LABELS), LABELS)):
        with pytest.raises((TypeError, ValueError), match=message):
            one.score(X, y, sample_weight=weights)
