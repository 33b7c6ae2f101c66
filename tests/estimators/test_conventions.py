"""What scikit-learn's own tools, and people who know them, expect of estimators."""

import inspect
import pickle
import warnings
from datetime import date
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags

import agp
from agp.errors import ConvergenceWarning, NonFiniteError
from agp.estimators import GPClassifier, GPRegressor
from agp.methods import METHODS

RNG = np.random.default_rng(1)
X = RNG.uniform(-2.0, 2.0, size=(60, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=60)
LABELS = np.where(X[:, 0] > 0.0, "yes", "no")
QUICK = {"method": "wsvgp", "num_inducing": 10, "max_steps": 60}
DEEP_METHODS = [name for name, method in METHODS.items() if "layers" in method.takes]
PART_METHODS = [name for name, method in METHODS.items() if method.takes_parts]


@pytest.fixture(autouse=True)
def _short_trainings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


# -- tags and signatures ----------------------------------------------------------------------------------------------


def test_tags_say_what_the_arguments_allow():
    tags = get_tags(GPRegressor())
    assert tags.target_tags.multi_output
    assert tags.array_api_support
    assert tags.input_tags.sparse
    assert tags.target_tags.required
    assert not tags.input_tags.allow_nan
    assert get_tags(GPRegressor(missing="impute")).input_tags.allow_nan
    assert get_tags(GPClassifier()).classifier_tags.multi_class
    assert not get_tags(GPClassifier()).target_tags.multi_output


@pytest.mark.parametrize(
    ("settings", "several", "single", "positive"),
    [
        ({}, True, True, False),
        ({"target_transform": "yeo-johnson"}, False, True, False),
        ({"noise_by": "site"}, False, True, False),
        ({"hyperparameters": "mixture"}, False, True, False),
        ({"store_data": False}, False, True, False),
        ({"outputs": "intrinsic"}, True, False, False),
        ({"outputs": "separate", "likelihood": "latent-noise"}, True, True, False),
        ({"target_transform": "log"}, True, True, True),
        *(({"likelihood": name}, True, True, True) for name in ("poisson", "negative-binomial", "gamma")),
        ({"likelihood": agp.Poisson()}, True, True, True),
        ({"likelihood": "beta"}, True, True, True),
        ({"likelihood": "student-t"}, True, True, False),
        ({"likelihood": "none of these"}, True, True, False),
    ],
)
def test_tags_say_which_targets_are_taken(settings, several, single, positive):
    tags = get_tags(GPRegressor(**settings)).target_tags
    assert (tags.multi_output, tags.single_output, tags.positive_only) == (several, single, positive)


def test_every_parameter_is_documented_once():
    def documented(kind):
        section = inspect.cleandoc(kind.__doc__).partition("Parameters\n----------\n")[2].partition("\n\nAttributes")[0]
        return [name for line in section.splitlines() if line[:1].isalpha() for name in line.split(", ")]

    for kind in (GPRegressor, GPClassifier):
        assert sorted(documented(kind)) == sorted(inspect.signature(kind).parameters) == sorted(kind().get_params())


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_search_finds_a_kernel():
    found = GridSearchCV(GPRegressor(), {"kernel": ["linear", "rbf"]}, cv=2).fit(X, Y)
    assert found.best_params_ == {"kernel": "rbf"}


@pytest.mark.slow
def test_estimators_stand_behind_transformers():
    columns = ColumnTransformer([("number", StandardScaler(), [0]), ("kind", OneHotEncoder(sparse_output=False), [1])])
    table = pd.DataFrame({"a": X[:, 0], "kind": np.where(X[:, 1] > 0.0, "u", "v")})
    for steps in (columns, columns.set_output(transform="pandas")):
        assert make_pipeline(steps, GPRegressor()).fit(table, Y).score(table, Y) > 0.8


@pytest.mark.long
def test_estimators_vote_and_are_calibrated():
    assert VotingRegressor([("a", GPRegressor()), ("b", GPRegressor(kernel="matern32"))]).fit(X, Y).score(X, Y) > 0.9
    probabilities = CalibratedClassifierCV(GPClassifier(**QUICK), cv=2).fit(X, LABELS).predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


@pytest.mark.long
@pytest.mark.parametrize("model", [GPRegressor(**QUICK), GPClassifier(**QUICK)], ids=["regressor", "classifier"])
def test_trained_estimators_are_pickled_and_copied(model):
    model = clone(model).fit(X, LABELS if "Classifier" in str(model) else Y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    assert "model_" not in vars(clone(model))


@pytest.mark.long
def test_a_second_fit_forgets_the_first():
    table = pd.DataFrame({"a": X[:, 0], "kind": LABELS})
    model = GPRegressor(missing="impute").fit(table, Y).fit(np.hstack([X, X]), Y)
    assert model.n_features_in_ == 4
    assert "feature_names_in_" not in vars(model)
    assert model.predict(np.hstack([X, X])).shape == (60,)


# -- unusual data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.hstack([x, np.ones((60, 1))]),
        lambda x: x * [1e8, 1e-8],
        lambda x: np.asfortranarray(x),
        lambda x: x > 0.0,
        lambda x: np.round(10.0 * x).astype(np.int8),
        lambda x: x.astype(np.float16),
    ],
    ids=["constant column", "scales", "Fortran", "Booleans", "whole numbers", "half precision"],
)
def test_unusual_inputs_are_taken(change):
    A = change(X)
    A.flags.writeable = False
    assert np.isfinite(GPRegressor(max_steps=30).fit(A, Y).predict(A)).all()


def test_single_precision_stays():
    single = X.astype(np.float32)
    assert GPRegressor(max_steps=30).fit(single, Y).predict(single).dtype == np.float32


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")  # two rows do not show a signal
def test_there_may_be_few_rows():
    mean, deviation = GPRegressor().fit(X[:2], Y[:2]).predict(X[:2], return_std=True)
    assert np.isfinite(mean).all()
    assert (deviation > 0.0).all()
    assert GPRegressor(method="sgpr", num_inducing=500, max_steps=5).fit(X, Y).model_.process.inducing.Z.shape == (
        60,
        2,
    )
    assert GPRegressor(method="solve-collapsed", max_steps=5).fit(X, Y).predict(X).shape == (60,)


@pytest.mark.parametrize("level", [0.0, 7.0])
def test_targets_that_are_all_the_same_are_said(level):
    with pytest.warns(UserWarning, match="all targets are the same"):
        model = GPRegressor().fit(X, np.full(60, level))
    mean, deviation = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, level)
    assert (deviation > 0.0).all()
    assert model.n_iter_ == 0


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (np.array([b"1.0"] * 60), "y holds text; convert it to numbers"),
        (["1.0", "one"] * 30, "y holds text"),
        (pd.Series(["1.0", "one"] * 30), "y holds text"),
        (np.array(["2020-01-01"] * 60, dtype="datetime64[D]"), "y holds dates; convert them to numbers"),
        (pd.Series(pd.to_timedelta(range(60), unit="s")), "y holds durations"),
        (np.where(np.arange(60) == 3, np.nan, Y), "y has NaN in row 3; remove rows with missing targets"),
    ],
)
def test_targets_that_are_no_numbers_are_refused(targets, words):
    with pytest.raises(ValueError, match=words):
        GPRegressor().fit(X, targets)


@pytest.mark.long
@pytest.mark.parametrize("cell", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [GPRegressor, GPClassifier])
def test_cells_that_are_no_numbers_are_named(kind, cell):
    holed = np.where(np.arange(120).reshape(60, 2) == 7, cell, X)
    remedy = "set missing='impute'" if np.isnan(cell) else "correct it"
    with pytest.raises(ValueError, match=f"X has (NaN|inf) in row 3, column 1; .*{remedy}"):
        kind().fit(holed, LABELS if kind is GPClassifier else Y)
    model = kind(**QUICK).fit(X, LABELS if kind is GPClassifier else Y)
    with pytest.raises(ValueError, match="X has (NaN|inf) in row 3, column 1"):
        model.predict(holed)


@pytest.mark.parametrize("outputs", ["separate", "coregionalised", "intrinsic"])
def test_one_target_shares_nothing(outputs):
    with pytest.raises(ValueError, match=f"outputs is '{outputs}', but y has one column; leave it out, or give y as"):
        GPRegressor(outputs=outputs).fit(X, Y)


def test_inputs_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="X holds text; convert it to numbers, or pass a data frame"):
        GPRegressor().fit([["a", 1.0]] * 60, Y)
    with pytest.raises(ValueError, match="X holds dates; pass a data frame"):
        GPRegressor().fit(np.array([["2020-01-01"]] * 60, dtype="datetime64[D]"), Y)


@pytest.mark.parametrize(
    "labels",
    [["a"] * 3 + [None] + ["b"] * 56, np.where(np.arange(60) == 3, np.nan, 1.0), pd.Series([1, 0, 1, None] * 15)],
    ids=["None", "NaN", "series"],
)
def test_labels_that_are_missing_are_refused(labels):
    with pytest.raises(ValueError, match="y has no label in row 3; remove rows without a label"):
        GPClassifier().fit(X, labels)


@pytest.mark.long
def test_columns_of_targets_keep_their_shape():
    assert GPRegressor(max_steps=5).fit(X, Y[:, None]).predict(X).shape == (60, 1)
    assert GPRegressor(max_steps=5).fit(X, pd.DataFrame({"u": Y, "v": Y})).predict(X).shape == (60, 2)
    assert GPRegressor(max_steps=5).fit(X, pd.Series(Y)).predict(X).shape == (60,)


# -- tables and arrays in turn ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["refuse", "impute"])
@pytest.mark.filterwarnings("ignore:X (has feature names|does not have valid)")
def test_tables_of_numbers_and_arrays_stand_for_each_other(missing):
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    model = GPRegressor(missing=missing, max_steps=30).fit(table, Y)
    np.testing.assert_array_equal(model.predict(X), model.predict(table))
    model = GPRegressor(missing=missing, max_steps=30).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), model.predict(table))
    model = GPRegressor(max_steps=30).fit(table.assign(kind="u"), Y)
    with pytest.raises(ValueError, match="X is an array, but column 'kind' of the training table is no numeric input"):
        model.predict(np.ones((3, 3)))


@pytest.mark.slow
def test_columns_that_changed_are_refused():
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    model = GPRegressor(max_steps=5).fit(table, Y)
    with pytest.raises(ValueError, match="column 'b' holds text, but held numbers in training"):
        model.predict(table.assign(b="u"))
    with pytest.raises(ValueError, match=r"X has shape \(0, 2\), but must not be empty"):
        model.predict(table[:0])


@pytest.mark.slow
def test_numbers_among_objects_are_numbers():
    table = pd.DataFrame({"a": X[:, 0].astype(object), "b": [None, *X[1:, 1]]}, dtype=object)
    model = GPRegressor(missing="impute", max_steps=30).fit(table, Y)
    assert model.columns_.columns.numbers == ["a", "b"]
    assert np.isfinite(model.predict(table)).all()


@pytest.mark.slow
@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, Decimal("NaN")])
def test_decimal_numbers_are_numbers(missing):
    table = pd.DataFrame({"a": [Decimal(repr(float(x))) for x in X[:, 0]], "b": X[:, 1]})
    model = GPRegressor(max_steps=30).fit(table, Y)
    np.testing.assert_array_equal(model.model_inputs(table), X)
    table.loc[3, "a"] = missing
    with pytest.raises(ValueError, match="column 'a' has a missing cell in row 3"):
        model.predict(table)
    filled = GPRegressor(missing="impute", max_steps=30).fit(table, Y)
    assert filled.model_columns() == ["a", "b", "a is missing"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "kinds"),
    [([UUID(int=7)] * 60, "UUID"), (["u", 2.0] * 30, "float and str"), ([date(2020, 1, 1), "u"] * 30, "date and str")],
)
def test_objects_of_other_kinds_are_refused_by_column(values, kinds):
    table = pd.DataFrame({"a": pd.Series(values, dtype=object), "b": X[:, 1]})
    with pytest.raises(ValueError, match=f"column 'a' holds {kinds} values; convert all of them to one type"):
        GPRegressor(missing="impute").fit(table, Y)
    model = GPRegressor(max_steps=2).fit(table.assign(a=X[:, 0]), Y)
    with pytest.raises(ValueError, match=f"column 'a' holds {kinds} values; convert"):
        model.predict(table)


@pytest.mark.slow
def test_rows_that_all_lack_a_number_are_imputed():
    table = pd.DataFrame({"a": [None, *X[1:, 0]], "b": X[:, 1]})
    model = GPRegressor(missing="impute", max_steps=2).fit(table, Y)
    none = table.assign(a=pd.Series([None] * 60, dtype=object))
    np.testing.assert_array_equal(model.predict(none), model.predict(table.assign(a=np.nan)))


def test_columns_of_one_name_are_refused():
    table = pd.DataFrame(X, columns=["a", "a"])
    with pytest.raises(ValueError, match=r"^X has two columns named 'a'; rename one of them\.$"):
        GPRegressor().fit(table, Y)
    with pytest.raises(ValueError, match=r"^y has two columns named 'a'; rename one of them\.$"):
        GPRegressor().fit(X, table)
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: not executed")
    with pytest.raises(ValueError, match="X has two columns named 'a'"):
        GPClassifier().fit(pa.Table.from_arrays([pa.array(Y)] * 2, names=["a", "a"]), LABELS)


HOLED = np.where(X > 1.5, np.nan, X)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X does not have valid")
def test_what_is_filled_in_was_learned_in_training():
    model = GPRegressor(max_steps=2).fit(X, Y).set_params(missing="impute")
    assert model.predict(X).shape == (60,)
    for data in (X, pd.DataFrame(X, columns=["a", "b"])):
        model = GPRegressor(max_steps=2).fit(data, Y).set_params(missing="impute")
        with pytest.raises(ValueError, match="X has NaN in row .*with missing='impute'"):
            model.predict(HOLED)
    model = GPRegressor(missing="impute", max_steps=2).fit(HOLED, Y)
    answers = model.predict(X)
    model.set_params(missing="refuse")
    np.testing.assert_array_equal(model.predict(X), answers)
    with pytest.raises(ValueError, match="set missing='impute'"):
        model.predict(HOLED)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")  # of row numbers as targets
def test_cells_that_are_masked_are_missing():
    masked = np.ma.masked_invalid(np.where(X > 1.5, np.nan, X))
    masked.data[masked.mask] = -999.0
    with pytest.raises(ValueError, match="X has NaN in row"):
        GPRegressor().fit(masked, Y)
    model = GPRegressor(missing="impute", max_steps=5, random_state=0).fit(masked, Y)
    np.testing.assert_array_equal(model.model_inputs(masked), model.model_inputs(HOLED))
    whole = np.ma.masked_greater(np.arange(60), 57)
    with pytest.raises(ValueError, match="y has NaN in row 58"):
        GPRegressor().fit(X, whole)
    assert GPRegressor(missing_targets="ignore", max_steps=2).fit(X, whole).n_rows_seen_ == 58
    assert GPClassifier(max_steps=2).fit(X, np.ma.array(LABELS)).classes_.tolist() == ["no", "yes"]


@pytest.mark.parametrize("labels", [LABELS, (LABELS == "yes").astype(int)], ids=["text", "numbers"])
def test_labels_that_are_masked_are_missing(labels):
    with pytest.raises(ValueError, match="y has no label in row 7"):
        GPClassifier().fit(X, np.ma.array(labels, mask=np.arange(60) == 7))


def test_polars_tables_are_taken():
    polars = pytest.importorskip("polars", reason="polars is not installed: not executed")
    columns = {"size": X[:, 0], "kind": np.where(X[:, 1] > 0.0, "u", "v"), "count": [None, *range(59)]}
    table = polars.DataFrame(columns)
    model = GPRegressor(missing="impute", max_steps=30).fit(table, polars.Series(Y))
    assert list(model.feature_names_in_) == ["size", "kind", "count"]
    np.testing.assert_array_equal(model.predict(pd.DataFrame(columns)), model.predict(table))
    with pytest.raises(ValueError, match="'count' has a missing cell in row 0"):
        GPRegressor().fit(table, Y)


# -- methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("method", [name for name in METHODS if name not in DEEP_METHODS])
def test_every_method_of_a_gaussian_process_answers_everything(method):
    model = GPRegressor(method=method, max_steps=3, num_inducing=10).fit(X, np.stack([Y, -Y], axis=1))
    assert model.predict(X[:4], return_cov=True)[1].shape == (4, 4, 2)
    assert model.sample_y(X[:4], 3).shape == (4, 2, 3)


@pytest.mark.parametrize("method", GPClassifier()._methods())
def test_every_method_takes_several_classes(method):
    model = GPClassifier(method=method, kernel="rbf", max_steps=3, num_inducing=10).fit(
        X, np.digitize(X[:, 0], [-0.7, 0.7])
    )
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.long
def test_steps_of_their_own_are_those_of_the_method():
    model = GPRegressor(method="cagp-cg", num_inducing=10, max_steps=5)
    kept = GPRegressor(method="cagp-cg", num_inducing=10).set_params(max_steps=1)
    first, later = (np.asarray(one.fit(X, Y).model_.actions.values) for one in (kept, model))
    assert np.abs(first - later).max() > 1e-3  # new actions before each step
    natural = GPRegressor(method="qsvgp", num_inducing=10, max_steps=5).fit(X, Y)
    assert "bound" in natural.history_


@pytest.mark.long
def test_batches_are_refused_where_there_are_none():
    with pytest.raises(ValueError, match="the method gpr needs all rows at once; leave batch_size out"):
        GPRegressor(method="gpr", batch_size=10).fit(X, Y)
    assert GPRegressor(batch_size=10).fit(X, Y).method_ == "gpr"
    assert GPRegressor(method="wsvgp", max_steps=3, batch_size=1000).fit(X, Y).n_iter_ == 3


# -- deep models ------------------------------------------------------------------------------------------------------

DEEP = {"method": "deep-rsvgp", "num_inducing": 8, "max_steps": 5, "random_state": 0}


@pytest.mark.parametrize("method", DEEP_METHODS)
def test_deep_models_have_means_and_deviations(method):
    model = GPRegressor(**DEEP | {"method": method}).fit(X, np.stack([Y, -Y], axis=1))
    assert len(model.model_.process.layers) == 2
    mean, deviation = model.predict(X, return_std=True)
    assert mean.shape == deviation.shape == (60, 2)
    assert np.all(deviation > 0.0)


@pytest.mark.slow
def test_deep_models_have_as_many_layers_as_asked():
    for layers in (1, 3):
        model = GPRegressor(layers=layers, **DEEP).fit(X, Y)
        assert len(model.model_.process.layers) == layers
    classifier = GPClassifier(layers=3, **DEEP).partial_fit(X, LABELS)
    assert len(classifier.model_.process.layers) == 3
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "layers is 0, but must be a whole number of at least 1"),
        ({"layers": 2.5}, "layers is 2.5, but must be a whole number of at least 1"),
        ({"layers": 2, "method": "wsvgp"}, "layers is 2, but the method wsvgp has no layers; leave it out, or use"),
        (
            {"layers": 2, "method": "auto"},
            "layers is 2, but the method gpr, which auto selects, has no layers; leave it out",
        ),
    ],
)
def test_layers_that_cannot_be_are_refused(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        GPRegressor(**DEEP | settings).fit(X, Y)


def test_deep_models_have_no_joint_answers():
    model = GPRegressor(**DEEP).fit(X, Y)
    for ask in (lambda: model.predict(X, return_cov=True), lambda: model.sample_y(X)):
        with pytest.raises(TypeError, match="a deep model is not a Gaussian process.*; call `predict` for marginals"):
            ask()
    assert model.model_.sample_functions(3)(X).shape == (3, 60, 1)


# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("method", PART_METHODS)
def test_rows_can_come_in_parts(method):
    model = GPRegressor(method=method, num_inducing=10)
    for start in range(0, 60, 20):
        model.partial_fit(X[start : start + 20], Y[start : start + 20])
    assert (model.n_iter_, model.n_rows_seen_, model.converged_) == (3, 60, False)
    assert len(model.history_["bound"]) == 3
    assert model.bound_ == model.history_["bound"][-1]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


@pytest.mark.parametrize("method", [name for name in METHODS if name not in PART_METHODS])
def test_methods_that_need_all_rows_take_no_parts(method):
    assert "partial_fit" not in dir(GPRegressor(method=method))
    with pytest.raises(AttributeError, match=f"the method {method} needs all rows at once; call fit, or use another"):
        GPRegressor(method=method).partial_fit(X, Y)


@pytest.mark.long
def test_parts_go_on_where_a_fit_ended():
    model = GPRegressor(method="wsvgp", num_inducing=10, max_steps=300, random_state=0).fit(X, Y)
    before, steps = model.predict(X), model.n_iter_
    model.partial_fit(X, Y)
    assert (model.n_iter_, model.n_rows_seen_) == (steps + 1, 120)
    assert np.abs(model.predict(X) - before).max() < 0.02
    model.fit(np.hstack([X, X]), Y).partial_fit(np.hstack([X, X]), Y)
    assert model.n_features_in_ == 4
    assert model.n_iter_ == len(model.history_["bound"])
    with pytest.raises(AttributeError, match="the method gpr needs all rows at once; call fit, or use another method"):
        GPRegressor().fit(X, Y).partial_fit(X, Y)


@pytest.mark.long
def test_there_are_no_fewer_rows_than_came():
    with pytest.raises(ValueError, match="total_rows is 5, but 60 rows were passed at once; give the total number"):
        GPRegressor(total_rows=5).partial_fit(X, Y)
    model = GPRegressor(total_rows=60, num_inducing=10)
    assert model.partial_fit(X, Y).partial_fit(X, Y).n_rows_seen_ == 120  # shown twice


@pytest.mark.parametrize("seed", [-1, "one"])
def test_seeds_that_are_none_are_refused(seed):
    message = f"random_state is {seed!r}, but must be a whole number from 0"
    with pytest.raises(ValueError, match=message):
        GPClassifier(random_state=seed).fit(X, LABELS)
    with pytest.raises(ValueError, match=message):
        GPRegressor(max_steps=2).fit(X, Y).sample_y(X, random_state=seed)


@pytest.mark.long
def test_parts_learn():
    model = GPRegressor(num_inducing=20, total_rows=60, random_state=0)
    for _ in range(300):
        for start in (0, 30):
            model.partial_fit(X[start : start + 30], Y[start : start + 30])
    assert model.method_ == "wsvgp"
    assert model.score(X, Y) > 0.9


@pytest.mark.slow
def test_rows_that_break_the_model_are_not_learned_from():
    model = GPRegressor(method="wsvgp", num_inducing=10).partial_fit(X, Y)
    before = model.predict(X)
    with np.errstate(all="ignore"), pytest.raises((NonFiniteError, FloatingPointError)):
        model.partial_fit(X, np.full(60, 1e200))
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.n_iter_ == 1


@pytest.mark.long
def test_classes_may_be_told_before_they_come():
    model = GPClassifier(method="wsvgp", num_inducing=10).partial_fit(X, LABELS, classes=["no", "yes", "perhaps"])
    assert model.predict_proba(X).shape == (60, 3)
    with pytest.raises(ValueError, match="has the label .never. in row 0, but the classes are"):
        model.partial_fit(X, np.full(60, "never"))


# -- trainings that are refused ---------------------------------------------------------------------------------------


def _same(model, known):
    """Whether an estimator has the attributes it had, by identity."""
    return vars(model).keys() == known.keys() and all(vars(model)[name] is value for name, value in known.items())


@pytest.mark.long
def test_a_refused_refit_of_a_classifier_leaves_it_as_it_was():
    model = GPClassifier(**QUICK).fit(X, LABELS)
    answers = model.predict(X)
    model.set_params(method="gpr")
    known = dict(vars(model))
    with pytest.raises(ValueError, match="only for regression"):
        model.fit(X[:, :1], np.array(["q", "r", "s"])[np.digitize(X[:, 0], [-1, 1])])
    assert _same(model, known)
    np.testing.assert_array_equal(model.predict(X), answers)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_refused_first_training_leaves_nothing(method):
    model = GPRegressor(**QUICK)
    known = dict(vars(model))
    with pytest.raises(ValueError, match="y has NaN"):
        getattr(model, method)(X, np.where(X[:, 0] > 1.0, np.nan, Y))
    assert _same(model, known)


@pytest.mark.long
def test_a_refused_refit_keeps_the_columns_that_the_model_knows():
    model = GPRegressor(missing="impute", **QUICK).fit(np.where(X > 1.5, np.nan, X), Y)
    answers = model.predict(X)
    with pytest.raises(ValueError, match="y has NaN"):
        model.fit(pd.DataFrame({"a": X[:, 0], "b": LABELS}), np.where(X[:, 0] > 1.0, np.nan, Y))
    np.testing.assert_array_equal(model.predict(X), answers)


@pytest.mark.long
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), NonFiniteError("no further")], ids=["interrupted", "not finite"]
)
def test_a_training_that_breaks_off_leaves_the_estimator_as_it_was(monkeypatch, error):
    model = GPRegressor(**QUICK).fit(X, Y)
    known = dict(vars(model))

    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr("agp.estimators._base.fit", broken)
    with pytest.raises(type(error)):
        model.fit(X[:, :1], Y)
    assert _same(model, known)


@pytest.mark.long
def test_warnings_point_at_the_line_that_trains():
    with pytest.warns(UserWarning, match="all targets are the same") as caught:
        GPRegressor().fit(X, np.zeros(60))
    with pytest.warns(UserWarning, match="differ in size") as more:
        GPRegressor(method="gpr", max_steps=2).fit(X, np.stack([Y, 100.0 * Y], axis=1))
    assert {one.filename for one in (*caught, *more) if one.category is UserWarning} == {__file__}
