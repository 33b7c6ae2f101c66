"""Classes of the default classifier: weights by class, rare and many classes, labels of any kind, files."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight

import agp
from agp.errors import NoSignalWarning
from agp.estimators import GPClassifier
from agp.estimators._classifier import factors_of_classes
from agp.models import TVGP, Ensemble


def table(rows=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, X[:, 0] + 0.5 * rng.normal(size=rows)


def test_factors_of_classes():
    classes, totals = np.array(["a", "b", "c"]), np.array([10.0, 40.0, 0.0])
    assert factors_of_classes("balanced", classes, totals).tolist() == [1.0, 0.25, 1.0]
    assert factors_of_classes({"a": 4.0}, classes, totals).tolist() == [1.0, 0.25, 0.25]
    assert factors_of_classes({"c": 8.0}, classes, totals).tolist() == [0.125, 0.125, 1.0]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("even", "class_weight is 'even', but must be None, 'balanced' or a dictionary"),
        ({3: 1.0}, r"class_weight has the label 3, which y does not have; the classes are \[0, 1\]"),
        ({0: -1.0}, "its numbers must be finite and zero or more"),
        ({0: 0.0, 1: 0.0}, "not all zero"),
    ],
)
def test_wrong_class_weights(given, text):
    X, f = table()
    with pytest.raises(ValueError, match=text):
        GPClassifier(class_weight=given).fit(X, (f > 0.0).astype(int))


def test_class_weights_are_weights_of_rows():
    X, f = table()
    y = (f > 1.0).astype(int)
    ratio = np.mean(y == 1) / np.mean(y == 0)
    balanced = GPClassifier(class_weight="balanced").fit(X, y).predict_proba(X)
    given = GPClassifier(class_weight={0: ratio, 1: 1.0}).fit(X, y).predict_proba(X)
    rows = GPClassifier().fit(X, y, sample_weight=np.where(y == 1, 1.0, ratio)).predict_proba(X)
    assert np.abs(balanced - given).max() < 1e-9
    assert np.abs(balanced - rows).max() < 1e-9
    plain = GPClassifier().fit(X, y).predict_proba(X)
    assert balanced[:, 1].mean() > plain[:, 1].mean() + 0.1


def test_parts_of_rows_cannot_be_balanced():
    X, f = table()
    with pytest.raises(AttributeError, match="class_weight is 'balanced', which needs all rows at once"):
        GPClassifier(class_weight="balanced").partial_fit(X, f > 0.0)
    model = GPClassifier(class_weight={True: 2.0}, random_state=0).partial_fit(X, f > 0.0)
    assert model.predict_proba(X).shape == (120, 2)


def test_class_weights_are_saved(tmp_path):
    X, f = table()
    model = GPClassifier(class_weight={"low": 0.5, "high": 1.0}).fit(X, np.where(f > 0.0, "high", "low"))
    agp.save(model, tmp_path / "model.safetensors")
    again = agp.load(tmp_path / "model.safetensors")
    assert again.get_params()["class_weight"] == {"low": 0.5, "high": 1.0}
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.kernel_ == model.kernel_


def test_rare_classes_keep_their_frequency():
    X, f = table(300)
    y = f >= np.sort(f)[-8]
    chances = GPClassifier().fit(X, y).predict_proba(X)[:, 1]
    assert abs(chances.mean() - 8 / 300) < 0.015
    assert chances[y].mean() > 5.0 * chances[~y].mean()


def test_a_class_with_a_single_row():
    X, f = table()
    y = np.where(f > 0.0, "b", "a").astype(object)
    y[7] = "single"
    model = GPClassifier().fit(X, y)
    chances = model.predict_proba(X)
    assert model.classes_.tolist() == ["a", "b", "single"]
    assert abs(chances.sum(axis=1) - 1.0).max() < 1e-12
    assert chances[:, 2].mean() < 0.1


@pytest.mark.filterwarnings("ignore:y has:UserWarning")
def test_many_classes():
    rng = np.random.default_rng(0)
    centres = np.repeat(4.0 * rng.normal(size=(40, 3)), 3, axis=0)
    X, y = centres + 0.1 * rng.normal(size=centres.shape), np.repeat(np.arange(40), 3)
    model = GPClassifier().fit(X, y)
    assert model.score(centres + 0.1 * rng.normal(size=centres.shape), y) > 0.9


@pytest.mark.filterwarnings("ignore:y has:UserWarning")
def test_labels_that_identify_rows():
    X, _ = table(40)
    with pytest.warns(NoSignalWarning, match="do not predict the labels"):
        model = GPClassifier().fit(X, [f"row {i}" for i in range(40)])
    assert not model.learned_


def test_what_is_learned():
    X, f = table()
    model = GPClassifier(random_state=0).fit(X, f > 0.0)
    assert isinstance(model.model_, TVGP | Ensemble)
    assert model.method_ == "tvgp"
    assert model.converged_
    assert set(model.candidates_["kernel"]) == {"rbf", "rbf + linear", "matern52"}
    with pytest.raises(AttributeError, match=r"the model averages posteriors|needs all rows at once"):
        model.partial_fit(X, f > 0.0)
    limited = GPClassifier(max_steps=3)
    with pytest.warns(agp.errors.ConvergenceWarning, match="the fit has not converged"):
        limited.fit(X, f > 0.0)
    assert limited.predict_proba(X).shape == (120, 2)


# -- weights of classes, as scikit-learn means them -------------------------------------------------------------------


def test_balanced_weights_count_rows_by_their_weights():
    X, f = table()
    y, rows = np.digitize(f, [-0.5, 1.0]), np.random.default_rng(3).uniform(0.5, 2.0, len(f))
    factors = compute_class_weight("balanced", classes=np.arange(3), y=y, sample_weight=rows)
    factors /= factors.max()
    quick = {"kernel": "rbf", "max_steps": 30}
    found = GPClassifier(class_weight="balanced", **quick).fit(X, y, sample_weight=rows).predict_proba(X)
    known = GPClassifier(**quick).fit(X, y, sample_weight=rows * factors[y]).predict_proba(X)
    np.testing.assert_allclose(found, known, atol=1e-8)
    piped = make_pipeline(StandardScaler(), GPClassifier(class_weight="balanced", **quick))
    piped.fit(X, y, gpclassifier__sample_weight=rows)
    np.testing.assert_allclose(piped.predict_proba(X), found, atol=1e-4)


def test_labels_without_a_weight_have_weight_one():
    X, f = table()
    y = np.asarray(["low", "mid", "high"])[np.digitize(f, [-0.5, 1.0])]
    quick = {"kernel": "rbf", "max_steps": 30}
    some = GPClassifier(class_weight={"low": 0.25}, **quick).fit(X, y).predict_proba(X)
    each = GPClassifier(class_weight={"low": 0.25, "mid": 1.0, "high": 1}, **quick).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(some, each)
    with pytest.raises(ValueError, match="class_weight has the label 'lw', which y does not have; the classes are"):
        GPClassifier(class_weight={"lw": 0.25}, **quick).fit(X, y)


def test_a_fold_may_lack_a_label_with_a_weight():
    X, f = table()
    y = np.where(f > 0.0, "high", "low")
    weights = {"low": 0.5, "high": 1.0, "none": 3.0}
    found = GPClassifier(class_weight=weights, kernel="rbf", max_steps=30).fit(X, y).predict_proba(X)
    del weights["none"]
    known = GPClassifier(class_weight=weights, kernel="rbf", max_steps=30).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(found, known)
