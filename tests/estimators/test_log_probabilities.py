"""Logarithms of the probabilities of labels."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_ndtr
from sklearn.metrics import log_loss

import agp
from agp.estimators import GPClassifier

RNG = np.random.default_rng(0)
X = RNG.uniform(-3.0, 3.0, size=(80, 2))
TWO, THREE = np.where(X[:, 0] > 0.0, "u", "v"), np.digitize(X[:, 0], [-1.0, 1.0])
FAR = np.asarray([[100.0, 0.0], [-100.0, 0.0], [3.0, 1.0], [0.0, 0.0]])
SETTINGS = [
    ({"kernel": "linear"}, TWO),
    ({"kernel": "linear"}, THREE),
    ({"kernel": "linear", "method": "wsvgp", "num_inducing": 10, "max_steps": 50}, TWO),
    ({"kernel": "linear", "method": "rsvgp", "num_inducing": 10, "max_steps": 50}, THREE),
    ({"kernel": "linear + rbf", "likelihood": "ordinal", "max_steps": 30}, THREE),
    ({"kernel": "linear + rbf", "likelihood": "ordinal", "max_steps": 30}, (X[:, 0] > 0.0).astype(int)),
]

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")


@pytest.mark.parametrize(("settings", "labels"), SETTINGS)
def test_logarithms_of_probabilities(settings, labels):
    model = GPClassifier(random_state=0, **settings).fit(X, labels)
    logs, probabilities = model.predict_log_proba(FAR), model.predict_proba(FAR)
    np.testing.assert_allclose(np.exp(logs), probabilities, rtol=1e-9, atol=1e-15)
    for k, label in enumerate(model.classes_):
        np.testing.assert_allclose(logs[:, k], model.log_density(FAR, np.full(4, label)), rtol=1e-12)
    assert np.isfinite(logs).all()
    assert -model.predict_log_proba(X)[np.arange(80), np.searchsorted(model.classes_, labels)].mean() == pytest.approx(
        log_loss(labels, model.predict_proba(X)), rel=1e-6
    )


def test_tiny_probabilities_have_logarithms():
    model = GPClassifier(kernel=agp.Linear() + agp.RBF(), likelihood="ordinal", max_steps=30).fit(X, THREE)
    far = 3.0 * FAR
    assert model.predict_proba(far).min() < 1e-300
    assert -np.inf < model.predict_log_proba(far).min() < -690.0
    two = GPClassifier(kernel="linear", method="tvgp", max_steps=30).fit(X, TWO)
    mean, variance = (x[:, 0] for x in two.predictor_.predict(FAR))
    np.testing.assert_allclose(two.predict_log_proba(FAR)[:, 0], log_ndtr(-mean / np.sqrt(1.0 + variance)), rtol=1e-9)


@pytest.mark.parametrize(("likelihood", "labels"), [("auto", TWO), ("auto", THREE), ("ordinal", THREE)])
def test_logarithms_at_unknown_cells(likelihood, labels):
    table = pd.DataFrame(X, columns=["a", "b"])
    model = GPClassifier(kernel="rbf", missing="impute", likelihood=likelihood, max_steps=60).fit(table, labels)
    holed = table.head(6).copy()
    holed.iloc[2, 0] = holed.iloc[4, 1] = np.nan
    np.testing.assert_allclose(np.exp(model.predict_log_proba(holed)), model.predict_proba(holed), rtol=1e-10)


def test_predictors_have_log_probabilities_of_sets():
    model = agp.SVGP.from_data(X, THREE[:, None] * 1.0, likelihood=agp.Softmax(3), num_inducing=8)
    sets = X[:6].reshape(2, 3, 2)
    predictor = model.predictor()
    found = predictor.log_probabilities(sets, 3)
    assert found.shape == (2, 3, 3)
    np.testing.assert_allclose(np.exp(found), predictor.predict(sets, observed=True).mean, rtol=1e-10)
