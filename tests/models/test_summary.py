"""The table of a model's leaves."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import agp
from agp.priors import Gamma

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = np.sin(X[:, :1])


def _rows(text):
    return {line.split()[0]: line for line in text.splitlines()[2:]}


def test_every_leaf_stands_in_the_table_and_units_in_a_column():
    model = agp.SVGP.from_data(X, Y, num_inducing=7, posterior="relaxed")
    text = agp.summary(model)
    assert text.splitlines()[0] == "SVGP"
    expected = [name for name in agp.tree.leaves(model) if not name.endswith("_unit")]
    assert list(_rows(text)) == expected
    assert text.count(f"{float(model.likelihood.noise_variance_unit):.4g}") >= 1


def test_values_constraints_and_roles_are_told():
    model = agp.SVGP.from_data(X, Y, num_inducing=7, posterior="relaxed")
    rows = _rows(agp.summary(model, frozen="likelihood.*"))
    value = float(model.likelihood.noise_variance)
    assert f"{value:.4g}" in rows["likelihood.noise_variance"]
    assert rows["likelihood.noise_variance"].endswith("frozen")
    assert "positive" in rows["process.kernel.lengthscale"]
    assert rows["process.kernel.lengthscale"].endswith("yes")
    assert "[7 x 2] in" in rows["process.inducing.Z"]
    assert rows["process.posterior.inverse_factor"].endswith("auxiliary")


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (agp.Gaussian(0.0), "zero"),
        (agp.Gaussian(np.zeros(2)), "zero"),
        (agp.GPR.from_data(X, Y, likelihood=agp.Gaussian(0.0), noise=np.full(30, 0.1)), "zero"),
        (agp.Gaussian(np.asarray([0.0, 0.1])), "yes"),
        (agp.Gaussian(0.1), "yes"),
    ],
)
def test_a_noise_variance_of_zero_is_not_trained(part, shown):
    (row,) = (line for line in agp.summary(part).splitlines() if "noise_variance " in line)
    assert row.endswith(f" {shown}")


def test_priors_stand_beside_their_parameters():
    model = agp.GPR.from_data(X, Y, priors={"kernel.lengthscale": Gamma(2.0, 1.0)})
    rows = _rows(agp.summary(model))
    assert "Gamma" in rows["kernel.lengthscale"]
    assert "Gamma" not in rows["kernel.variance"]


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ValueError, match="no parameter matches 'kernle"):
        agp.summary(agp.GPR.from_data(X, Y), frozen="kernle.*")


def test_what_training_left_is_told_after_it():
    model = agp.SVGP.from_data(X, Y, num_inducing=7, posterior="relaxed")
    frozen = ("likelihood.*", "kernel.lengthscale")
    trained = agp.train(model, X, Y, steps=2, updates=agp.recipe(model, 2, frozen=frozen))
    names = ("process.kernel.lengthscale", "likelihood.noise_variance")
    assert trained.frozen == names
    rows = _rows(agp.summary(trained.model, frozen=trained.frozen))
    assert {name for name, row in rows.items() if row.endswith("frozen")} == set(names)
    own = agp.train(model, X, Y, steps=2, updates=[agp.updates.Adam(groups={"Z": agp.updates.Group(1e-2)}), Untold()])
    assert own.frozen == ()


class Untold:
    """An update that does not say what it moves."""

    def init(self, model, /):
        return {}

    def __call__(self, model, batch, state, /):
        return model, state, {}


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [(), ("likelihood.*",)])
def test_what_lbfgs_and_inner_updates_left_is_told(frozen):
    exact, sparse = agp.GPR.from_data(X, Y), agp.SVGP.from_data(X, Y, num_inducing=5, posterior="whitened")
    names = ("likelihood.noise_variance",) if frozen else ()
    assert agp.fit_lbfgs(exact, X, Y, frozen=frozen, max_iterations=2).frozen == names
    inner = [agp.updates.NaturalGradient(1.0)]
    assert agp.fit_lbfgs(sparse, X, Y, inner=inner, frozen=frozen, max_iterations=2).frozen == names
    assert agp.fit(exact, X, Y).frozen == ()


def test_lengthscales_stand_in_lines_beside_the_names_of_their_columns():
    model = agp.GPR.from_data(X, Y, kernel=agp.RBF(1.0, (0.5, 20.0)) + agp.Matern32().on((1,)))
    lines = agp.summary(model, columns=["height", "mass"]).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("kernel.parts.0.lengthscale"))
    assert lines[at].split()[1:4] == ["height:", "0.5", "positive"]
    assert lines[at + 1].split()[:2] == ["mass:", "20"]
    assert lines[at].index("height") == lines[at + 1].index("mass")
    (own,) = (line for line in lines if line.startswith("kernel.parts.1.kernel.lengthscale"))
    assert own.split()[1] == "mass:"


def test_summaries_of_estimators_are_those_of_their_models():
    table = pd.DataFrame({"size": np.linspace(0.0, 3.0, 30), "kind": ["a", "b", "c"] * 10})
    y = np.sin(table["size"]) + 0.1 * np.cos(7.0 * np.arange(30.0))
    for estimator, targets in ((agp.GPRegressor(hyperparameters="mode"), y), (agp.GPClassifier(), y > 0.5)):
        with pytest.raises(NotFittedError):
            agp.summary(estimator)
        estimator.fit(table, targets)
        found = agp.summary(estimator)
        assert found == agp.summary(estimator.model_, columns=estimator.model_columns())
        assert "size" in found
        assert agp.summaries.summary_html(estimator).startswith("<")


def test_summaries_of_other_objects_are_refused():
    with pytest.raises(TypeError, match="int is not a model"):
        agp.summary(3)


def test_models_of_several_show_the_priors_of_each():
    X = np.linspace(0.0, 6.0, 20)[:, None]
    y = np.sin(X[:, 0]) + 0.1 * np.cos(37.0 * X[:, 0])
    priors = {"likelihood.noise_variance": agp.priors.LogNormal(-3.0, 0.7), "kernel.variance": agp.priors.Between(0.01)}
    model = agp.GPR.from_data(X, y, kernel=agp.RBF(), priors=priors)
    for whole in (agp.integrate(model, settings=8).model, agp.Ensemble((model, model), np.asarray([0.4, 0.6]))):
        text = agp.summary(whole)
        for line in text.splitlines():
            if line.startswith("models.0.likelihood.noise_variance"):
                assert "LogNormal(mean=-3.0, deviation=0.7)" in line
            if line.startswith("models.0.kernel.variance"):
                assert "between 0.01 and inf" in line
        assert text.count("LogNormal(") == len(whole.models)
