"""What notebooks show of estimators: scikit-learn's diagram, and below it what was learned."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from agp.errors import ConvergenceWarning
from agp.estimators import GPClassifier, GPRegressor

RNG = np.random.default_rng(2)
FRAME = pd.DataFrame({"<age>": RNG.normal(size=50), "weight": RNG.normal(size=50), "kind": ["a", "b"] * 25})
Y = np.sin(FRAME["weight"]) + 0.1 * RNG.normal(size=50)
QUICK = {"method": "wsvgp", "num_inducing": 8, "max_steps": 20, "random_state": 0}


@pytest.fixture(autouse=True)
def _short_trainings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _learned(estimator):
    """What stands below the diagram."""
    html = estimator._repr_html_()
    assert html.count("<table") >= 1
    assert estimator._repr_mimebundle_()["text/html"].count(">Leaves<") == html.count(">Leaves<") == 1
    return html[html.index(">Training<") :]


@pytest.mark.parametrize("kind", [GPRegressor, GPClassifier])
def test_before_training_there_is_scikit_learns_diagram_alone(kind):
    html = kind()._repr_html_()
    assert "sk-" in html
    assert ">Training<" not in html
    assert ">Leaves<" not in kind()._repr_mimebundle_()["text/html"]
    assert kind.__name__ in html


@pytest.mark.long
def test_after_training_lengthscales_stand_beside_the_names_of_columns():
    model = GPRegressor(kernel="rbf", hyperparameters="mode", random_state=0).fit(FRAME, Y)
    html = model._repr_html_()
    assert html.index("sk-") < html.index(">Training<")
    learned = _learned(model)
    assert "<pre>" not in learned
    assert "<age>" not in learned
    lengthscales = model.model_.kernel.parts[0].kernel.lengthscale
    for name, value in zip(("&lt;age&gt;", "weight"), lengthscales, strict=True):
        assert f"{name}: {value:.4g}" in learned
    assert ">Candidates<" in learned
    assert f"bound {model.bound_:.6g}" in learned
    assert model.facts()["training"] in learned


@pytest.mark.long
def test_classes_and_growth_are_told():
    labels = np.where(Y > 0.0, "<yes>", "no")
    learned = _learned(GPClassifier(**QUICK).fit(FRAME, labels))
    assert "&lt;yes&gt;, no" in learned
    grown = GPRegressor(method="wsvgp", num_inducing="auto", max_steps=20).fit(FRAME[["weight"]], Y)
    assert ">Growth<" in _learned(grown)


@pytest.mark.slow
def test_what_training_has_not_said_yet_is_left_out():
    model = GPRegressor(**QUICK).partial_fit(FRAME[["weight"]], Y)
    assert "not converged after 1 steps" in _learned(model)
    assert ">Training<" not in clone(model)._repr_html_()
    del model.bound_
    assert "not converged" not in _learned(model)
    del model.method_
    assert "<pre>GPRegressor(" in model._repr_html_()


@pytest.mark.slow
def test_text_is_shown_where_it_is_asked_for():
    model = GPRegressor(**QUICK).fit(FRAME[["weight"]], Y)
    with config_context(display="text"):
        assert [*model._repr_mimebundle_()] == ["text/plain"]
        assert not hasattr(model, "_repr_html_")
    with config_context(display="diagram"):
        assert ">Leaves<" in model._repr_html_()


@pytest.mark.slow
def test_a_pipeline_shows_its_diagram():
    pipeline = make_pipeline(StandardScaler(), GPRegressor(**QUICK)).fit(FRAME[["weight"]], Y)
    assert "GPRegressor" in pipeline._repr_html_()
