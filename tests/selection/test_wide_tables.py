"""Tables with many columns: the linear part of the search, the rows of training, and the time of a fit."""

from functools import partial

import numpy as np
import pytest

from agp import GPR, RBF, Gaussian, selection, tree
from agp.kernels import Linear
from agp.priors import LogNormal
from agp.selection import Candidate, _stages
from agp.selection._climb import affordable_rows, operations
from agp.selection._race import is_near, reestimate_slopes, train_revived
from agp.selection._trial import Trial
from agp.training._newton import Information

LINEAR = "kernel.parts.1.variance"
"""The variances of the slopes in a sum with a linear kernel."""
fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""


@pytest.fixture
def slopes():
    """Rows of which the targets are linear in two of twelve columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 12))
    return X, X[:, :2] @ [1.0, -2.0] + 0.1 * rng.normal(size=40)


@pytest.mark.parametrize("outputs", [1, 3])
def test_em_sets_variances_to_the_expected_squares_of_the_slopes(slopes, outputs, monkeypatch):
    X, y = slopes
    Y = y[:, None] * np.arange(1.0, outputs + 1.0)
    model = GPR.from_data(X, Y, kernel=RBF() + Linear.centred(X), likelihood=Gaussian(0.1))
    monkeypatch.setattr("agp.selection._race.EM_STEPS", 1)
    found = tree.leaves(reestimate_slopes(model))[LINEAR]
    v, centred = tree.leaves(model)[LINEAR], X - X.mean(0)
    K = model.kernel(X)[0] + 0.1 * np.eye(40)
    mean = v[:, None] * (centred.T @ np.linalg.solve(K, Y - model.mean_function(X)[0]))
    variance = v - v * v * np.sum(centred * np.linalg.solve(K, centred), axis=0)
    np.testing.assert_allclose(found, np.mean(mean * mean, axis=1) + variance, rtol=1e-8)


def test_em_improves_the_evidence_and_moves_nothing_else(slopes):
    X, y = slopes
    model = GPR.from_data(X, y, kernel=RBF() + Linear.centred(X))
    found = reestimate_slopes(model)
    assert float(found.bound(X, y)[0]) > float(model.bound(X, y)[0]) + 1.0
    before, after = tree.leaves(model), tree.leaves(found)
    assert [name for name, x in after.items() if np.any(x != before[name])] == [LINEAR]


def test_em_leaves_variances_with_priors(slopes):
    X, y = slopes
    priors = {"kernel.*variance": LogNormal(1.0, 0.1)}
    model = GPR.from_data(X, y, kernel=RBF() + Linear.centred(X), priors=priors)
    assert reestimate_slopes(model) is model


def test_em_leaves_what_it_cannot_factorise(slopes):
    X, y = slopes
    kernel = RBF() + Linear.centred(X)
    model = GPR.from_data(np.repeat(X, 2, axis=0), np.repeat(y, 2), kernel=kernel, likelihood=Gaussian(1e-300))
    np.testing.assert_allclose(tree.leaves(reestimate_slopes(model))[LINEAR], tree.leaves(model)[LINEAR], rtol=1e-14)


@pytest.mark.parametrize("iterations", [0, 2])
def test_em_finds_a_linear_function_of_few_columns(full_size, iterations, monkeypatch):
    monkeypatch.setattr("agp.selection._race.EM_STEPS", iterations)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 20))
    found = fit_regression(X, X[:, :5].sum(axis=1) + 0.1 * rng.normal(size=300))
    assert found.kernel.endswith("linear") == (iterations > 0)


@pytest.mark.parametrize(("columns", "least", "most"), [(3, 2000, 2000), (200, 2000, 2000), (2000, 900, 1200)])
def test_an_evaluation_on_many_columns_takes_no_longer(columns, least, most):
    budget = operations(2000, _stages.MANY_COLUMNS)
    rows = affordable_rows(2000, columns, budget, least=500)
    assert least <= rows <= most
    assert operations(rows, columns) <= budget
    assert affordable_rows(2000, 10**6, budget, least=500) == 500


def test_fewer_rows_train_where_columns_are_many(monkeypatch):
    monkeypatch.setattr(_stages, "MANY_COLUMNS", 4)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 60))
    found = fit_regression(X, X[:, 0] + 0.1 * rng.normal(size=40))
    rows = {stage.rows for stage in found.stages if stage.name == "train"}
    assert max(rows) < 40
    assert found.model.X.shape[0] == 40


def test_a_thousand_columns_take_no_matrix_of_them(full_size, monkeypatch):
    monkeypatch.setattr(Information, "dense", None)
    monkeypatch.setattr("agp.selection._stages.prune", lambda *_: None)  # the kernel of few columns may have a matrix
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 1000))
    found = fit_regression(X, X[:, 0] + 0.1 * rng.normal(size=40))
    assert found.learned  # no permutation of the targets has this evidence
    new = rng.normal(size=(200, 1000))
    assert np.corrcoef(found.model.predict(new).mean[:, 0], new[:, 0])[0, 1] > 0.8


def test_revived_columns_that_lead_back_are_left_out_unless_they_are_better(slopes):
    X, y = slopes
    model = GPR.from_data(X, y)
    best = Trial(model, Candidate("rbf", 40, -1.0, -1.0))
    far = tree.with_leaves(model, {"likelihood.noise_variance": 3.0 * model.likelihood.noise_variance})
    for there, evidence, kept in [(model, -1.1, False), (model, -0.9, True), (far, -1.1, True)]:
        trial = Trial(there, Candidate("rbf", 40, evidence, -1.0))
        assert train_revived(lambda *_, trial=trial, **__: trial, best, 5) == [trial] * kept


def test_columns_without_an_effect_do_not_make_another_optimum(slopes):
    X, y = slopes
    model = GPR.from_data(X, y, kernel=RBF() + Linear.centred(X))
    unit = model.kernel.parts[1].variance_unit
    one, other = (tree.with_leaves(model, {LINEAR: factor * unit}) for factor in (1e-5, 1e-4))
    assert is_near(one, other)
    assert not is_near(one, model)
