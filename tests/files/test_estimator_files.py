"""Estimators in files: what predicts the same, to the bit, and what is refused in one sentence."""

import datetime as dt
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_cases import structure_of
from safetensors.numpy import load as load_arrays
from test_container import sealed
from test_refusals import edit, refused

import agp

pd = pytest.importorskip("pandas", reason="data frames are those of pandas")
pytest.importorskip("sklearn", reason="estimators need the extra sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402

from agp.estimators import GPClassifier, GPRegressor  # noqa: E402
from agp.estimators._encoding import Encoder  # noqa: E402
from agp.estimators._files import encoder_of, state_of  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=40)
HOLES = np.where(RNG.uniform(size=X.shape) < 0.1, np.nan, X)
TABLE = pd.DataFrame(
    {"size": HOLES[:, 0], "kind": RNG.choice(["small", "big", None], 40), "on": X[:, 1] > 0, "all gone": np.nan}
)
NUMBERS = pd.DataFrame(X, columns=list("abc"))
WHOLE = pd.DataFrame({"size": X[:, 0], "kind": "b", "on": 1})
WORDS = np.where(X[:, 0] > 0.5, "up", np.where(X[:, 0] < -0.5, "down", "level"))

MATERIALS = np.arange(120) % 3
ALLOYS = pd.DataFrame({"a": RNG.normal(size=120), "material": np.asarray(["iron", "lead", "zinc"])[MATERIALS]})
HARDNESS = ALLOYS["a"].to_numpy() + 2.0 * MATERIALS + 0.1 * RNG.normal(size=120)

ONE_LEVEL = WHOLE.assign(kind="a")
QUICK = {"max_steps": 5, "random_state": 3, "num_inducing": 10}


def trained(estimator, X, y, **known):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", agp.errors.ConvergenceWarning)
        warnings.simplefilter("ignore", agp.errors.ColumnWarning)  # a column is empty
        return estimator.fit(X, y, **known)


def in_order(words):
    return pd.Series(words).astype(pd.CategoricalDtype(["down", "level", "up"][::-1], ordered=True))


CASES = {
    "exact": lambda: (trained(GPRegressor(**QUICK), X, Y), X),
    "sparse": lambda: (trained(GPRegressor(method="rsvgp", kernel="matern32 + linear", **QUICK), X, Y), X),
    "kernel": lambda: (trained(GPRegressor(kernel=agp.RBF(1.0, (1.0, 2.0, 0.5)) * agp.Linear(), **QUICK), X, Y), X),
    "column": lambda: (trained(GPRegressor(**QUICK), X, np.stack([Y, -Y], axis=1)), X),
    "holes": lambda: (trained(GPRegressor(missing="impute", **QUICK), HOLES, Y), HOLES),
    "frame": lambda: (trained(GPRegressor(missing="impute", **QUICK), TABLE, Y), TABLE),
    "numbers": lambda: (trained(GPRegressor(**QUICK), NUMBERS, Y), NUMBERS),
    "texts": lambda: (trained(GPRegressor(**QUICK), pd.DataFrame({"a": WORDS}), Y), pd.DataFrame({"a": WORDS})),
    "effects": lambda: (trained(GPRegressor(**QUICK), ALLOYS, HARDNESS), ALLOYS.replace("zinc", "tin")),
    "logs": lambda: (trained(GPRegressor(target_transform="log", **QUICK), X, np.exp(Y)), X),
    "powers": lambda: (trained(GPRegressor(target_transform="yeo-johnson", **QUICK), X, np.sinh(Y)), X),
    "proportions": lambda: (trained(GPRegressor(target_transform="logit", **QUICK), X, 1.0 / (1.0 + np.exp(Y))), X),
    "words": lambda: (trained(GPClassifier(**QUICK), X, WORDS), X),
    "objects": lambda: (trained(GPClassifier(**QUICK), ONE_LEVEL, pd.Series(WORDS)), ONE_LEVEL),
    "truth": lambda: (trained(GPClassifier(**QUICK), X, X[:, 0] > 0), X),
    "whole": lambda: (trained(GPClassifier(**QUICK), X, np.where(X[:, 0] > 0, 7, -3)), X),
    "floats": lambda: (trained(GPClassifier(**QUICK), X, np.where(X[:, 0] > 0, 2.0, 1.0)), X),
    "grades": lambda: (trained(GPClassifier(likelihood="ordinal", **QUICK), X, in_order(WORDS)), X),
    "levels": lambda: (trained(GPRegressor(likelihood=agp.Ordinal(3), **QUICK), X, np.digitize(X[:, 0], (-1, 1))), X),
    "noise": lambda: (trained(GPRegressor(likelihood="latent-noise", **QUICK), X, Y), X),
    "gaps": lambda: (trained(GPRegressor(missing_targets="ignore", **QUICK), X, np.stack([Y, HOLES[:, 0]], axis=1)), X),
    "deep": lambda: (trained(GPRegressor(method="deep-rsvgp", layers=3, **QUICK), X, Y), X),
    "known noise": lambda: (trained(GPRegressor(likelihood=agp.Gaussian(0.0), **QUICK), X, Y, noise=X[:, 1] ** 2), X),
    "weights": lambda: (trained(GPRegressor(**QUICK), X, Y, sample_weight=0.5 + X[:, 1] ** 2), X),
    "by parts": lambda: (GPRegressor(method="wsvgp", **QUICK).partial_fit(X, Y), X),
}  # fmt: skip
LEFT_OUT = {"_updates", "_states"}
"""What is built anew, from what comes back."""


def answers(estimator, X):
    if isinstance(estimator, GPClassifier):
        return estimator.predict(X), estimator.predict_proba(X)
    return estimator.predict(X, return_std=True)


def assert_same_attributes(found, expected):
    here, there = vars(found), vars(expected)
    assert here.keys() | LEFT_OUT == there.keys() | LEFT_OUT
    for name in there.keys() - LEFT_OUT - {"model_", "columns_", "kernel", "likelihood", "transform_"}:
        np.testing.assert_array_equal(here[name], there[name], err_msg=name)
        assert type(here[name]) is type(there[name]), name
    assert repr(here.get("transform_")) == repr(there.get("transform_"))
    assert here["history_"] == there["history_"] if "history_" in there else True


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_an_estimator_predicts_the_same_to_the_bit(name, path):
    estimator, rows = CASES[name]()
    agp.save(estimator, path)
    found = agp.load(path)
    assert type(found) is type(estimator)
    assert_same_attributes(found, estimator)
    for here, there in zip(answers(found, rows), answers(estimator, rows), strict=True):
        assert here.dtype == there.dtype
        assert here.tobytes() == there.tobytes() or here.tolist() == there.tolist()
    assert repr(clone(found)) == repr(clone(estimator))
    before = structure_of(path)
    agp.save(found, path)
    assert structure_of(path) == before


@pytest.mark.slow
def test_a_table_is_encoded_as_before(path):
    estimator, _ = CASES["frame"]()
    agp.save(estimator, path)
    found = agp.load(path)
    new = TABLE.assign(kind=["small", "unheard of"] * 20, size=np.nan)
    np.testing.assert_array_equal(found.model_inputs(new), estimator.model_inputs(new))
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(TABLE.rename(columns={"size": "length"}))


@pytest.mark.long
@given(
    cells=st.lists(
        st.tuples(st.none() | st.floats(-1e200, 1e200), st.none() | st.text(max_size=3), st.booleans()),
        min_size=1, max_size=6,
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_columns_of_any_table_come_back(cells):
    frame = pd.DataFrame(
        {
            "a": pd.Series([a for a, _, _ in cells], dtype=float),
            "b": pd.Series([b for _, b, _ in cells], dtype=object),
            "c": pd.Series([c for _, _, c in cells], dtype=bool),
        }
    )
    import narwhals.stable.v2 as nw

    known = nw.from_native(frame.assign(b=frame["b"].astype("string")), eager_only=True)
    encoder = Encoder("impute", keep=["b"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", agp.errors.ColumnWarning)
        encoder.fit(known)
    again = encoder_of(json.loads(json.dumps(state_of(encoder))))
    assert state_of(again) == state_of(encoder)
    expected = encoder.transform(known)
    assert len(again.sources()) == expected.shape[1]
    np.testing.assert_array_equal(again.transform(known), expected)


@pytest.mark.slow
def test_parts_go_on_after_loading(path):
    estimator, _ = CASES["by parts"]()
    agp.save(estimator, path)
    found = agp.load(path).partial_fit(X, Y)
    assert found.n_iter_ == estimator.n_iter_ + 1
    assert found.n_rows_seen_ == 2 * len(X)


@pytest.mark.long
def test_labels_come_back_in_their_library(path, backend):
    rows, labels = backend.array(X), backend.array(np.where(X[:, 0] > 0, 7, -3), "int32")
    estimator = trained(GPClassifier(method="wsvgp", **QUICK), rows, labels)
    agp.save(estimator, path)
    found, here = agp.load(path), agp.load(path, backend="numpy")
    for classes in (found.classes_, found.predict(rows)):
        backend.check(classes, "int32")
    expected = backend.numpy(estimator.predict(rows), "int32")
    np.testing.assert_array_equal(backend.numpy(found.predict(rows), "int32"), expected)
    assert isinstance(here.predict(X), np.ndarray)
    np.testing.assert_array_equal(here.predict(X), expected)
    assert found.partial_fit(rows, labels).n_iter_ == estimator.n_iter_ + 1


@pytest.mark.slow
def test_what_broke_in_its_first_part_is_not_saved(path):
    estimator = GPRegressor(method="wsvgp", total_rows=0, **QUICK)
    with pytest.raises(ValueError, match="total_rows"):
        estimator.partial_fit(X, Y)
    with pytest.raises(NotFittedError):
        agp.save(estimator, path)


@pytest.mark.long
def test_an_estimator_moves_to_another_library(path):
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    estimator = trained(GPRegressor(backend="torch", **QUICK), X, Y)
    agp.save(estimator, path)
    there, here = agp.load(path), agp.load(path, backend="numpy")
    assert np.array_equal(there.predict(X), estimator.predict(X))
    assert isinstance(here.model_.process.X if "process" in vars(here.model_) else here.model_.X, np.ndarray)
    np.testing.assert_allclose(here.predict(X), estimator.predict(X), rtol=1e-6)
    assert here.get_params() | {"backend": "torch"} == estimator.get_params()
    assert isinstance(agp.load(path, backend="torch", dtype="float32").model_.X, torch.Tensor)
    assert agp.load(path, backend="numpy", dtype="float32").predict(X).dtype == np.float32
    assert isinstance(there.predict(torch.asarray(X)), torch.Tensor)


# -- what is not saved ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (GPRegressor(random_state=np.random.RandomState(0), max_steps=2), "the parameter random_state is RandomState"),
        (
            GPRegressor(device=object(), max_steps=2),
            "the parameter device is <object .*; set a number or a string with set_pa",
        ),
    ],
)
def test_parameters_that_files_cannot_hold_are_named(estimator, message, path):
    device, estimator.device = estimator.device, None
    trained(estimator, X, Y).device = device
    with pytest.raises(TypeError, match=message):
        agp.save(estimator, path)
    assert not path.exists()


def test_what_is_not_trained_or_foreign_is_not_saved(path):
    with pytest.raises(NotFittedError, match="This GPRegressor instance is not fitted yet"):
        agp.save(GPRegressor(), path)
    with pytest.raises(
        TypeError, match=r"or an estimator of agp\.estimators, not sklearn\.impute\._base\.SimpleImputer"
    ):
        agp.save(SimpleImputer(), path)
    own = type("Mine", (GPRegressor,), {})(max_steps=2)
    with pytest.raises(TypeError, match="Mine is not a class of agp; save its model_ instead"):
        agp.save(trained(own, X, Y), path)


@pytest.mark.slow
def test_without_scikit_learn_the_extra_is_named(path, monkeypatch):
    agp.save(CASES["exact"]()[0], path)
    for name in [name for name in sys.modules if name.startswith(("agp.estimators", "sklearn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        ImportError, match=r"holds an estimator: .*sklearn, which is not installed: .*array-gp\[sklearn\]"
    ):
        agp.load(path)


@pytest.mark.long
def test_a_fresh_process_loads_an_estimator(path):
    agp.save(CASES["words"]()[0], path)
    program = f"import agp, numpy as np\nprint(agp.load({str(path)!r}).predict(np.zeros((1, 3)))[0])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() in WORDS, done.stderr


# -- contents with a right digest -------------------------------------------------------------------------------------


def rewritten(path, change):
    """The file with edited facts and arrays, and the digest that belongs to them."""
    structure, arrays = structure_of(path), load_arrays(path.read_bytes())
    change(structure, arrays)
    path.write_bytes(sealed(arrays, json.dumps(structure)))


CHANGES = {
    "class": (lambda f: f.update({"class": "os.system"}), "os.system"),
    "no class": (lambda f: f.pop("class"), "class"),
    "classifier": (lambda f: f.update({"class": "GPRegressor"}), "does not take class_weight=None"),
    "factors": (lambda f: f["parameters"].update(class_weight=[["a", "b"]]), "instead of factors of labels"),
    "parameter": (lambda f: f["parameters"].update(method=3), "GPClassifier does not take method=3"),
    "missing": (lambda f: f["parameters"].update(missing=""), "missing is '', but must be 'refuse' or 'impute'"),
    "more": (lambda f: f["parameters"].update(predict=3), "does not take predict=3"),
    "learned": (lambda f: f["learned"].update(n_iter_="x"), "its n_iter_ is 'x', which has the wrong type"),
    "attribute": (lambda f: f["learned"].update(predict=3), "predict"),
    "method": (lambda f: f["learned"].update(method_="magic"), "its method is 'magic'"),
    "width": (lambda f: f["learned"].update(n_features_in_=9), "9 columns"),
    "names": (lambda f: f.update(names=["a", 3, "c"]), "instead of the names of 3 columns"),
    "no columns": (lambda f: f.pop("columns"), "column names, but no fitted columns"),
    "columns": (
        lambda f: f["columns"].update(means=[0.0], marked=[False]),
        "do not match the fitted means and categor",
    ),
    "means": (lambda f: f["columns"].update(means=["a", "b"]), "instead of means and missing cells"),
    "kinds": (lambda f: f["columns"].update(kinds={"a": "colour"}), "instead of kinds of columns"),
    "no levels": (lambda f: f["columns"].update(levels={}), "instead of levels of its categories"),
    "levels": (lambda f: f["columns"]["levels"].update(kind=[3]), "instead of a list of strings"),
    "empty levels": (lambda f: f["columns"]["levels"].update(kind=[]), "a column has none"),
    "one-hot": (
        lambda f: f["columns"].update({"one hot": True, "levels": {"kind": ["a", "b"]}}),
        "its 3 columns become 4 inputs",
    ),
    "encoding": (lambda f: f["columns"].update({"one hot": 1}), "instead of an encoding"),
    "effects": (lambda f: f["columns"].update(effects={"kind": ["a"]}), "instead of effects of levels"),
    "more effects": (lambda f: f["columns"].update(effects={"kind": [0.0, 1.0]}), "instead of effects of levels"),
    "effects of numbers": (lambda f: f["columns"].update(effects={"size": [0.0]}), "instead of effects of levels"),
    "width of effects": (lambda f: f["columns"].update(effects={"kind": [0.0]}), "its 3 columns become 4 inputs"),
    "order": (lambda f: f["columns"]["levels"].update(kind=["b", "a", "b"]), "are repeated"),
    "orders": (lambda f: f["columns"].update(orders={"kind": ["a"]}), "instead of orders of its categories"),
    "styles": (lambda f: f["columns"].update(styles={"kind": [",", "%"]}), "instead of a style of numbers"),
    "ranges": (lambda f: f["columns"].update(ranges={"kind": [0.0, 1.0]}), "the first and the last date of a column"),
    "history": (lambda f: f.update(history=["bound", "nothing"]), "history.nothing"),
    "labels": (lambda f: f["classes"].update(values=["b", "a", "c"]), "its labels are not sorted"),
    "few labels": (lambda f: f["classes"].update(values=["a", "b"]), "a likelihood other than Bernoulli"),
    "kind of labels": (lambda f: f["classes"].update(dtype="O"), "instead of labels"),
    "numbers for labels": (lambda f: f["classes"].update(values=[1, 2, 3]), "instead of labels"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    file = tmp_path_factory.mktemp("whole") / "model.safetensors"
    agp.save(CASES["objects"]()[0], file)
    return file.read_bytes()


@pytest.mark.parametrize("kind", CHANGES)
def test_wrong_facts_are_refused(kind, path, whole):
    path.write_bytes(whole)
    change, why = CHANGES[kind]
    rewritten(path, lambda s, a: change(s["facts"]))
    refused(path, match=rf"is not a model of agp \(.*{why}.*\); name another file\.$")


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: f.update(order=[2, 1, 1]), "instead of the order of 3 labels"),
        (lambda f: f.update(order=["a", 1, 0]), "instead of the order of 3 labels"),
        (lambda f: f.update(order=3), "instead of the order of 3 labels"),
        (lambda f: f.pop("order"), "a likelihood other than Softmax"),
        (
            lambda f: (f["classes"].update(values=["a", "b"]), f.update(order=[1, 0])),
            "has 3 ordered classes, but",
        ),
    ],
)
def test_a_wrong_order_is_refused(change, why, path):
    agp.save(CASES["grades"]()[0], path)
    rewritten(path, lambda s, a: change(s["facts"]))
    refused(path, match=why)


def test_columns_under_other_names_are_refused(path, whole):
    path.write_bytes(whole)
    rewritten(path, lambda s, a: s["facts"]["columns"]["kinds"].update(other=s["facts"]["columns"]["kinds"].pop("on")))
    refused(path, match="its column names differ from those of its fitted columns")


@pytest.mark.slow
@given(draw=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore")
def test_any_edit_of_the_facts_is_refused_or_sound(draw, path, whole):
    path.write_bytes(whole)
    rewritten(path, lambda s, a: edit(draw.draw, s["facts"], a))
    try:
        found = agp.load(path)
    except agp.errors.FileError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    level = (vars(found)["columns_"].levels.get("kind") or ["a"])[0] if "columns_" in vars(found) else "a"
    rows = pd.DataFrame({name: [level or "a"] if name == "kind" else [1.0] for name in ("size", "kind", "on")})
    X = np.zeros((1, found.model_._width), dtype=found.model_._reference()[1].dtype)
    assert found.model_.predict(X).mean.shape == (1, 3)
    if level and "feature_names_in_" in vars(found) and list(found.feature_names_in_) == list(rows):
        assert found.predict_proba(rows).shape == (1, 3)


# -- names of columns and labels of any type --------------------------------------------------------------------------

NAMES = {
    "whole numbers": [0, 1],
    "NumPy's numbers": [np.int64(3), np.int64(4)],
    "floats": [0.5, 1.5],
    "tuples": [("a", 1), ("b", 2)],
    "several levels": pd.MultiIndex.from_tuples([("a", "x"), ("b", "y")]),
    "dates and times": [pd.Timestamp("2020-01-01"), pd.Timestamp("2020-02-01 12:30", tz=None)],
    "times in a zone": pd.date_range("2020-01-01", periods=2, tz="Europe/Berlin"),
    "dates": [dt.date(2020, 1, 1), dt.date(2020, 2, 1)],
    "Booleans": [True, False],
    "line breaks": ["a\nb", ""],
    "long text": ["x" * 500, "y"],
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_columns_of_any_type_come_back(kind, path):
    numbers = pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0.0, "up", "down")})
    numbers.columns = NAMES[kind]
    estimator = trained(GPRegressor(**QUICK), numbers, Y)
    agp.save(estimator, path)
    found = agp.load(path)
    assert_same_attributes(found, estimator)
    assert found.predict(numbers).tobytes() == estimator.predict(numbers).tobytes()
    assert [*found.columns_.columns.kinds] == [*estimator.columns_.columns.kinds]


@pytest.mark.filterwarnings("ignore::agp.errors.ColumnWarning")
def test_columns_that_are_left_out_keep_names_of_any_type(path):
    table = pd.DataFrame({0: X[:, 0], 1: [f"row {i}" for i in range(len(X))]})
    estimator = trained(GPRegressor(**QUICK), table, Y)
    agp.save(estimator, path)
    found = agp.load(path)
    assert found.left_out_ == estimator.left_out_ == [1]
    assert found.predict(table).tobytes() == estimator.predict(table).tobytes()


@pytest.mark.parametrize("names", [[b"a", b"b"], [pd.Timestamp(1), pd.Timestamp(2)]])
def test_names_that_cannot_be_stored_are_named(names, path):
    table = pd.DataFrame(X[:, :2])
    table.columns = names
    estimator = trained(GPRegressor(**QUICK), table, Y)
    with pytest.raises(TypeError, match="cannot be stored; use text as column names, and fit again"):
        agp.save(estimator, path)


@pytest.mark.parametrize(
    "names",
    [
        [["int", 0], ["int", 0]],
        [["int", True], ["int", 1]],
        [["bytes", "a"], ["int", 1]],
        [["date", "yesterday"], ["int", 1]],
        [["int", 0]],
        [0, 1],
        [["float", "nan"], ["int", 1]],
    ],
)
def test_damaged_names_are_refused(names):
    from agp.estimators._names import with_names

    state = {"kinds": {"0": "number", "1": "number"}, "names": names}
    with pytest.raises((LookupError, TypeError, ValueError)):
        with_names(state)


UP = X[:, 0] > 0
LABELS = {
    "dates": pd.Series(np.where(UP, pd.Timestamp("2020-01-01"), pd.Timestamp("2020-02-01"))),
    "NumPy's dates": np.where(UP, np.datetime64("2020-01-01"), np.datetime64("2020-02-01")),
    "small floats": np.where(UP, 1.0, 2.0).astype(np.float16),
    "categories of Booleans": pd.Series(pd.Categorical(UP)),
    "nullable Booleans": pd.Series(UP, dtype="boolean"),
    "nullable numbers": pd.Series(np.where(UP, 7, -3), dtype="Int64"),
    "objects that are numbers": np.asarray([7 if up else -3 for up in UP], dtype=object),
    "objects that are Booleans": np.asarray([bool(up) for up in UP], dtype=object),
    "ordered categories of numbers": pd.Series(pd.Categorical(np.where(UP, 10, 20), categories=[20, 10], ordered=True)),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_type_come_back(kind, path):
    estimator = trained(GPClassifier(**QUICK), X, LABELS[kind])
    agp.save(estimator, path)
    found = agp.load(path)
    here, there = found.predict(X), estimator.predict(X)
    assert here.dtype == there.dtype == found.classes_.dtype
    assert here.tolist() == there.tolist()
    assert found.predict_proba(X).tobytes() == estimator.predict_proba(X).tobytes()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("categories of Booleans", bool),
        ("nullable Booleans", bool),
        ("objects that are Booleans", bool),
        ("nullable numbers", np.int64),
        ("objects that are numbers", np.int64),
    ],
)
def test_predicted_labels_have_the_type_of_the_labels(kind, dtype):
    estimator = trained(GPClassifier(**QUICK), X, LABELS[kind])
    assert estimator.predict(X).dtype == dtype
    assert {*estimator.classes_.tolist()} == {*pd.Series(LABELS[kind]).tolist()}


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_the_end_of_a_training_comes_back(path):
    estimator = GPRegressor(max_steps=2, hyperparameters="mode", verbose=str(path) + ".log").fit(X, Y)
    words = "the limit of 2 steps (max_steps) was reached"
    assert estimator.facts()["training"].endswith(words)
    agp.save(estimator, path)
    found = agp.load(path)
    assert found.ending_ == words
    assert found.facts() == estimator.facts()
    assert found.verbose is False
