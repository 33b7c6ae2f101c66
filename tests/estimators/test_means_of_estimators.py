"""Estimators compute variances only if they are asked for, and their means do not depend on it."""

import numpy as np
import pandas as pd
import pytest

from agp.backend import find_backend
from agp.estimators import GPClassifier, GPRegressor
from agp.methods import METHODS
from agp.posteriors import Posterior
from agp.processes import Process

pytestmark = [  # a few steps are enough
    pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning"),
]

RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (60, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=60)
NEW = RNG.uniform(-2.0, 2.0, (25, 2))
LABELS = np.where(X[:, 0] * X[:, 1] + 0.3 * RNG.normal(size=60) > 0.0, "yes", "no")
QUICK = {"kernel": "rbf", "num_inducing": 10, "max_steps": 3, "random_state": 0}
DEEP = [name for name, method in METHODS.items() if "layers" in method.takes]
LATENT = ("student-t", "latent-noise")
OTHERS = ("poisson", "negative-binomial", "gamma", "exponential", "beta")


def subclasses(kind):
    return {kind, *(one for child in kind.__subclasses__() for one in subclasses(child))}


def refuse(*_, **__):
    msg = "variances were not asked for"
    raise AssertionError(msg)


def forbid_variances(monkeypatch, *kinds):
    for one in {one for kind in kinds for one in subclasses(kind)}:
        if "project" in vars(one):
            monkeypatch.setattr(one, "project", refuse)


def check_close(found, expected, y=Y):
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-9 * np.std(y))


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_means_without_variances(method, columns, monkeypatch):
    y = Y if columns == 1 else np.stack([Y, -0.5 * Y], axis=1)
    model = GPRegressor(method=method, **QUICK).fit(X, y)
    expected = model.predict(NEW, return_std=True)[0]
    if method in DEEP:  # the inner layers are sampled from their marginals
        monkeypatch.setattr(type(model.predictor_.processes[0]), "project", refuse)
    else:
        forbid_variances(monkeypatch, Process, Posterior)
    check_close(model.predict(NEW), expected)
    assert np.isfinite(model.score(X, y))
    with pytest.raises(AssertionError, match="variances were not asked for"):
        model.predict(NEW, return_std=True)


@pytest.mark.parametrize("outputs", ["separate", "coregionalised", "intrinsic"])
def test_several_outputs_have_means_without_variances(outputs, monkeypatch):
    y = np.stack([Y, 3.0 - Y], axis=1)
    model = GPRegressor(outputs=outputs, method="wsvgp", **QUICK).fit(X, y)
    expected = model.predict(NEW, return_std=True)[0]
    forbid_variances(monkeypatch, Process, Posterior)
    check_close(model.predict(NEW), expected)


@pytest.mark.parametrize("likelihood", LATENT)
@pytest.mark.parametrize("method", ["wsvgp", "rsvgp"])
def test_noise_of_any_shape_leaves_means_alone(likelihood, method, monkeypatch):
    model = GPRegressor(likelihood=likelihood, method=method, **QUICK).fit(X, Y)
    expected = model.predict(NEW, return_std=True)[0]
    forbid_variances(monkeypatch, Process, Posterior)
    check_close(model.predict(NEW), expected)


def test_known_noise_leaves_means_alone(monkeypatch):
    noise = np.full(len(NEW), 0.3)
    model = GPRegressor(**QUICK).fit(X, Y, noise=np.full(len(X), 0.1))
    expected = model.predict(NEW, return_std=True, noise=noise)[0]
    forbid_variances(monkeypatch, Process, Posterior)
    check_close(model.predict(NEW, noise=noise), expected)
    with pytest.raises(ValueError, match="noise"):
        model.predict(NEW, noise=-noise)


@pytest.mark.parametrize("likelihood", OTHERS)
def test_means_of_other_links_are_those_of_all_moments(likelihood):
    rng = np.random.default_rng(0)
    y = {"beta": rng.uniform(0.1, 0.9, 60), "poisson": rng.poisson(3.0, 60) * 1.0}.get(likelihood, np.exp(Y))
    y = np.floor(y) if likelihood == "negative-binomial" else y
    model = GPRegressor(likelihood=likelihood, method="wsvgp", **QUICK)
    exposure = {} if likelihood == "beta" else {"exposure": np.linspace(0.5, 2.0, len(X))}
    model.fit(X, y, **exposure)
    at_new = {name: x[: len(NEW)] for name, x in exposure.items()}
    far = np.concatenate([NEW, 30.0 * NEW])[: len(NEW)]  # where links saturate
    for inputs in (NEW, far):
        mean = model.predict(inputs, **at_new)
        np.testing.assert_array_equal(mean, model.predict(inputs, return_std=True, **at_new)[0])
        A = model.model_inputs(inputs)
        offset = {name: np.log(x) for name, x in zip(["offset"], at_new.values(), strict=False)}
        assert np.abs(mean - model.predictor_.predict_mean(A, **offset)[:, 0]).max() > 0.01


def test_means_of_logarithms_are_those_of_all_moments():
    model = GPRegressor(target_transform="log", **QUICK).fit(X, np.exp(Y))
    mean = model.predict(NEW)
    np.testing.assert_array_equal(mean, model.predict(NEW, return_std=True)[0])
    assert np.all(mean > np.exp(model.predictor_.predict_mean(NEW)[:, 0]))


@pytest.mark.parametrize("method", ["gpr", "sgpr", "rsvgp", "deep-wsvgp"])
def test_unknown_cells_have_the_same_means(method):
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": np.asarray(list("uvw"))[np.arange(60) % 3]})
    new = table.iloc[:8].copy()
    new.loc[1, "a"], new.loc[2, "kind"], new.loc[4, "b"] = np.nan, "unseen", np.nan
    model = GPRegressor(method=method, missing="impute", **QUICK).fit(table, Y)
    inputs = model.model_inputs(new)
    assert np.isnan(inputs).any(axis=1).sum() == (3 if method in DEEP else 2)
    assert (inputs[2, -1] == -1.0) == (method not in DEEP)  # an unseen level has a code of its own
    check_close(model.predict(new), model.predict(new, return_std=True)[0])


# -- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tvgp", "tnngp", "wsvgp", "rsvgp", "deep-wsvgp"])
def test_labels_are_the_most_probable_ones(method, monkeypatch):
    settings = QUICK | {"max_steps": 100} if method in DEEP else QUICK
    model = GPClassifier(method=method, **settings).fit(X, LABELS)
    expected = model.classes_[np.argmax(model.predict_proba(NEW), axis=1)]
    assert set(expected) == {"no", "yes"}
    if method not in DEEP:
        forbid_variances(monkeypatch, Process, Posterior)
    np.testing.assert_array_equal(model.predict(NEW), expected)


@pytest.mark.parametrize("case", ["three classes", "ordinal"])
def test_labels_of_other_likelihoods_are_the_most_probable_ones(case):
    levels = np.digitize(X[:, 0] + 0.3 * RNG.normal(size=60), [-0.7, 0.7])
    kind = "ordinal" if case == "ordinal" else "auto"
    model = GPClassifier(method="wsvgp", likelihood=kind, **QUICK).fit(X, levels)
    np.testing.assert_array_equal(model.predict(NEW), np.argmax(model.predict_proba(NEW), axis=1))


def test_labels_of_unknown_cells_are_the_most_probable_ones():
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    new = pd.DataFrame(NEW, columns=["a", "b"])
    new.loc[::3, "a"] = np.nan
    model = GPClassifier(missing="impute", **QUICK).fit(table, LABELS)
    expected = model.classes_[np.argmax(model.predict_proba(new), axis=1)]
    np.testing.assert_array_equal(model.predict(new), expected)


# -- arrays of floats, which take a short path ------------------------------------------------------------------------


def test_arrays_of_floats_are_checked_as_before():
    model = GPRegressor(**QUICK).fit(X, Y)
    expected = model.predict(NEW.tolist())
    np.testing.assert_array_equal(model.predict(NEW), expected)
    np.testing.assert_array_equal(model.predict(np.asfortranarray(NEW)), expected)
    np.testing.assert_array_equal(model.predict(NEW.astype(">f8")), expected)
    np.testing.assert_allclose(model.predict(NEW.astype(np.float32)), expected, atol=1e-4)
    with pytest.raises(ValueError, match="X has 3 features, but GPRegressor is expecting 2 features"):
        model.predict(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="0 sample"):
        model.predict(np.zeros((0, 2)))
    for cell in (np.nan, np.inf):
        broken = NEW.copy()
        broken[3, 1] = cell
        with pytest.raises(ValueError, match="in row 3, column 1"):
            model.predict(broken)
    with pytest.raises(ValueError, match="must have rows and columns"):
        model.predict(NEW[0])


def test_arrays_without_names_still_cause_a_warning():
    model = GPRegressor(**QUICK).fit(pd.DataFrame(X, columns=["a", "b"]), Y)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(NEW)


def test_other_objects_are_no_arrays():
    class Boxed:
        pass

    assert find_backend(Boxed()) is None
    assert find_backend(Boxed()) is None
    assert find_backend(X).name == "numpy"


def test_tables_without_numbers_are_refused_as_before():
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    with pytest.raises(ValueError, match="'b' holds"):
        GPRegressor(**QUICK).fit(table, Y).predict(table.assign(b=pd.Timestamp("2020-01-01")))
    counts = table.assign(b=np.arange(60) % 7)
    model = GPRegressor(**QUICK).fit(counts, Y)
    assert np.isfinite(model.predict(counts)).all()
