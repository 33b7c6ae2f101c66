"""What matters: shares of the prior variance, importance by shuffling, their error bars; units, categories, rows."""

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest

import agp
from agp.errors import ConvergenceWarning
from agp.estimators import GPClassifier, GPRegressor
from agp.inspection import kernel_relevance, permutation_importance
from agp.training import laplace

RNG = np.random.default_rng(0)
N = 60
X = RNG.uniform(-2.0, 2.0, (N, 3))
Y = np.sin(2.0 * X[:, :1]) + 0.5 * X[:, 1:2] + 0.1 * RNG.standard_normal((N, 1))
KIND = RNG.choice(["flat", "round", "square"], N)
TABLE = pd.DataFrame({"kind": KIND, "size": X[:, 0], "noise": X[:, 2]})
SOUND = Y[:, 0] - 0.5 * X[:, 1] + (KIND == "round")


@pytest.fixture(autouse=True)
def _short_trainings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def trained(X, y, **parts):
    return agp.fit_lbfgs(agp.GPR.from_data(X, y, **parts), X, y, max_iterations=100).model


@pytest.fixture(scope="module")
def exact():
    return trained(X, Y)


@pytest.fixture(scope="module")
def estimator():
    return GPRegressor(kernel="rbf", random_state=0).fit(TABLE, SOUND)


@pytest.mark.slow
def test_a_column_without_effect_has_none(exact):
    found, shuffled = kernel_relevance(exact), permutation_importance(exact)
    assert found.names == shuffled.names == ("input 1", "input 2", "input 3")
    assert found.mean[2] < 0.02 < found.mean[1] < found.mean[0]
    assert found.mean[2] < 3.0 * found.deviation[2] < 0.2
    assert abs(shuffled.mean[2, 0]) < 3.0 * shuffled.deviation[2, 0] + 1e-3
    assert (shuffled.mean[:2, 0] > 10.0 * shuffled.deviation[2, 0]).all()
    assert (shuffled.scoring, shuffled.rows, found.rows, found.reason) == ("RMSE", N, N, "")


def test_shares_of_an_additive_kernel_are_the_variances_of_its_parts():
    kernel = agp.Linear(np.asarray([4.0])).on(0) + agp.Linear(np.asarray([1.0])).on(1)
    model = agp.GPR.from_data(X, Y, kernel=kernel)
    found = kernel_relevance(model)
    spread = X[:, :2].var(axis=0) * [4.0, 1.0]
    np.testing.assert_allclose(found.mean, [*(spread / spread.sum()), 0.0], atol=0.02)
    assert found.lengthscales == ()


@pytest.mark.slow
def test_white_noise_and_constants_have_no_share():
    rbf = agp.RBF(lengthscale=np.asarray([1.0, 2.0, 3.0]))
    kernel = rbf + agp.White() + agp.Constant()
    noisy, plain = (agp.GPR.from_data(X, Y, kernel=one) for one in (kernel, rbf))
    np.testing.assert_allclose(kernel_relevance(noisy).mean, kernel_relevance(plain).mean, rtol=1e-9)


@pytest.mark.slow
def test_units_change_lengthscales_alone(exact):
    units = np.asarray([1e3, 1e-2, 1.0])
    other = trained(X * units, 1e4 * Y)
    ours, theirs = kernel_relevance(exact), kernel_relevance(other)
    np.testing.assert_allclose(theirs.mean, ours.mean, atol=5e-3)
    np.testing.assert_allclose(theirs.deviation, ours.deviation, atol=5e-3)
    values = [[one.value for one in found.lengthscales[:2]] for found in (ours, theirs)]
    np.testing.assert_allclose(values[1], values[0] * units[:2], rtol=1e-2)
    shuffled = [permutation_importance(model).mean[:2] for model in (exact, other)]
    np.testing.assert_allclose(shuffled[1], 1e4 * shuffled[0], rtol=1e-2)


@pytest.mark.slow
def test_error_bars_are_those_of_the_curvature(exact):
    found = laplace(exact, X, Y)
    names = found.unflatten.names
    place = names.index("kernel.lengthscale[0]")
    unit = exact.kernel.lengthscale_unit[0]

    def bound(vector):
        return float(found.unflatten(vector).bound(X, Y)[0])

    step = 1e-3
    H = np.empty((len(names),) * 2)
    for i, a in enumerate(step * np.eye(len(names))):
        for j, b in enumerate(step * np.eye(len(names))):
            corners = [bound(found.mean + s * a + t * b) * s * t for s in (1, -1) for t in (1, -1)]
            H[i, j] = -sum(corners) / (4.0 * step**2)
    raw = np.sqrt(np.linalg.inv(H)[place, place])
    assert np.sqrt(found.covariance[place, place]) == pytest.approx(raw, rel=0.05)
    scale = next(one for one in kernel_relevance(exact).lengthscales if one.column == "input 1")
    slope = -np.expm1(-scale.value / unit) / (scale.value / unit)  # d log v / d raw
    assert np.log(scale.factor) == pytest.approx(raw * slope, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["whitened", "marginal", "relaxed"])
def test_error_bars_of_sparse_models_let_q_follow(exact, posterior):
    model = agp.SVGP.from_data(X, Y, Z=X, posterior=posterior)
    parts = {
        "process.kernel": exact.kernel,
        "likelihood": exact.likelihood,
        "process.mean_function": exact.mean_function,
    }
    model = agp.tree.replace(model, parts)
    ours, theirs = kernel_relevance(model, X, Y), kernel_relevance(exact)
    assert ours.reason == ""
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-9)
    np.testing.assert_allclose(ours.deviation, theirs.deviation, rtol=0.05, atol=1e-3)


def test_a_flat_direction_is_known_to_a_factor_of_twenty():
    model = agp.GPR.from_data(X, Y, kernel=agp.RBF(lengthscale=np.asarray([1.0, 1.0, 1e6])))
    assert kernel_relevance(model).lengthscales[2].factor == pytest.approx(np.exp(3.0), rel=1e-3)


@pytest.mark.long
def test_a_category_is_one_column_under_its_name(estimator):
    inspection = pytest.importorskip("sklearn.inspection")
    ours = permutation_importance(estimator, TABLE, SOUND, repeats=4)
    theirs = inspection.permutation_importance(
        estimator, TABLE, SOUND, scoring="neg_root_mean_squared_error", n_repeats=4, random_state=0
    )
    assert ours.names == ("kind", "size", "noise")
    np.testing.assert_allclose(ours.mean[:, 0], theirs["importances_mean"], atol=1e-9)
    np.testing.assert_allclose(ours.deviation[:, 0], theirs["importances_std"], atol=1e-9)
    np.testing.assert_allclose(permutation_importance(estimator, repeats=4).mean, ours.mean, atol=1e-9)
    found = kernel_relevance(estimator)
    assert found.names == ours.names
    assert min(found.mean[:2]) > 0.05 > 0.01 > found.mean[2]
    assert {one.input for one in found.lengthscales if one.column == "kind"} == {"kind"}


@pytest.mark.slow
def test_missing_cells_belong_to_their_column():
    table = TABLE.assign(size=TABLE["size"].where(np.arange(N) % 7 > 0))
    estimator = GPRegressor(kernel="rbf", missing="impute", max_steps=20, tolerance=0.1).fit(table, SOUND)
    assert estimator.model_sources() == ["size", "noise", "size", "kind"]
    assert estimator.model_columns() == ["size", "noise", "size is missing", "kind"]
    array = np.where(np.arange(3 * N).reshape(N, 3) % 5 == 0, np.nan, X)
    estimator = GPRegressor(kernel="rbf", missing="impute", max_steps=20, tolerance=0.1).fit(array, SOUND)
    assert estimator.model_sources() == [f"input {i}" for i in (1, 2, 3, 1, 2, 3)]


@pytest.mark.long
def test_classes_lose_log_density():
    labels = np.where(X[:, 0] > 0.7, "c", np.where(X[:, 0] > -0.7, "b", "a"))
    for y in (labels, labels == "b"):
        estimator = GPClassifier(kernel="rbf", max_steps=200, tolerance=0.05, random_state=0).fit(X, y)
        found = permutation_importance(estimator, X, y, repeats=3)
        assert found.scoring == "log loss"
        assert found.mean[0, 0] > 0.2
        assert abs(found.mean[1:, 0]).max() < 0.1
        expected = -np.mean(np.log(estimator.predict_proba(X)[np.arange(N), np.searchsorted(estimator.classes_, y)]))
        assert found.score[0] == pytest.approx(expected)
        share = kernel_relevance(estimator, X, y)
        assert share.mean[0] == share.mean.max()
        if isinstance(estimator.model_, agp.Ensemble):
            assert share.reason.startswith("the model is an average of models")
        else:
            assert (share.deviation > 0.0).all()


@pytest.mark.long
def test_classes_in_an_order_keep_it():
    grades = np.digitize(X[:, 0], [-0.7, 0.7])
    words = pd.Series(np.asarray(["z", "m", "a"])[grades])
    words = words.astype(pd.CategoricalDtype(["z", "m", "a"], ordered=True))
    fits = [
        GPClassifier(kernel="rbf", likelihood="ordinal", max_steps=50, random_state=0).fit(X, y)
        for y in (grades, words)
    ]
    shuffled = [permutation_importance(fit, X, y, repeats=2) for fit, y in zip(fits, (grades, words), strict=True)]
    np.testing.assert_allclose(shuffled[0].mean, shuffled[1].mean, atol=1e-6)
    shares = [kernel_relevance(fit, X, y) for fit, y in zip(fits, (grades, words), strict=True)]
    np.testing.assert_allclose(shares[0].deviation, shares[1].deviation, atol=1e-4)


@pytest.mark.long
def test_each_target_has_its_column():
    both = np.concatenate([SOUND[:, None], 100.0 * X[:, 2:]], axis=1)
    estimator = GPRegressor(kernel="rbf", outputs="separate", max_steps=200, tolerance=0.05, random_state=0)
    estimator.fit(TABLE, both)
    found = permutation_importance(estimator, TABLE, both, repeats=3)
    assert found.mean.shape == found.deviation.shape == (3, 2)
    assert found.mean[:, 0].argmax() == 1
    assert found.mean[:, 1].argmax() == 2
    assert found.mean[2, 1] > 30.0


def test_rows_are_sampled(exact):
    found = permutation_importance(exact, np.tile(X, (3, 1)), np.tile(Y, (3, 1)), max_rows=50)
    assert found.rows == 50
    again = permutation_importance(exact, np.tile(X, (3, 1)), np.tile(Y, (3, 1)), max_rows=50)
    np.testing.assert_array_equal(found.mean, again.mean)


@pytest.mark.parametrize("kind", [agp.NNGP, agp.VIF])
def test_models_with_neighbours_have_error_bars_of_some_rows(exact, kind, monkeypatch):
    monkeypatch.setattr("agp.inspection._relevance.CURVATURE_ROWS", 40)
    parts = {"kernel": exact.kernel, "likelihood": exact.likelihood, "weights": np.full(N, 2.0)}
    options = {"num_inducing": 5} if kind is agp.VIF else {}
    model = kind.from_data(X, Y, neighbours=39, **options, **parts)
    model = dataclasses.replace(model, squares=np.full(N, 0.01))
    assert model.sets.shape == (N, 39)
    found = kernel_relevance(model)
    assert found.reason == ""
    assert found.rows == 40
    expected = kernel_relevance(exact)
    np.testing.assert_allclose(found.mean, expected.mean)
    factors = [one.lengthscales[0].factor for one in (found, expected)]
    assert factors[0] == pytest.approx(factors[1], rel=0.1)


def test_shuffled_columns_are_predicted_from_few_neighbours(exact, monkeypatch):
    near = agp.NNGP.from_data(X, Y, neighbours=N, kernel=exact.kernel, likelihood=exact.likelihood)
    found = permutation_importance(near, repeats=3)
    np.testing.assert_allclose(found.mean, permutation_importance(exact, repeats=3).mean, rtol=0.2, atol=0.02)
    monkeypatch.setattr("agp.inspection._subject.NEAR_NEIGHBOURS", 3)
    fewer = dataclasses.replace(near, neighbours=3)
    np.testing.assert_array_equal(permutation_importance(near).mean, permutation_importance(fewer).mean)


@pytest.mark.slow
def test_error_bars_of_a_sample_of_the_rows_are_wider(exact, monkeypatch):
    monkeypatch.setattr("agp.inspection._relevance.CURVATURE_ROWS", 30)
    found = kernel_relevance(exact)
    assert found.rows == 30
    assert found.reason == ""
    assert kernel_relevance(exact).lengthscales[0].factor == found.lengthscales[0].factor
    monkeypatch.undo()
    assert found.lengthscales[0].factor > kernel_relevance(exact).lengthscales[0].factor


@pytest.mark.slow
@pytest.mark.parametrize("y", [Y, (Y > 0.0).astype(float)], ids=["gaussian", "bernoulli"])
def test_error_bars_by_some_of_many_inducing_inputs_are_alike(y, monkeypatch):
    likelihood = agp.Gaussian(np.asarray(0.05)) if y is Y else agp.Bernoulli()
    kernel = agp.RBF(lengthscale=np.asarray([2.0, 4.0, 8.0]))
    model = agp.SVGP.from_data(X, y, Z=X, kernel=kernel, likelihood=likelihood, posterior="whitened")
    every = kernel_relevance(model, X, y)
    monkeypatch.setattr("agp.training._objective.MAX_INDUCING", 40)
    some = kernel_relevance(model, X, y)
    assert every.reason == some.reason == ""
    np.testing.assert_allclose(some.deviation, every.deviation, rtol=0.1)


def test_without_training_data_there_are_no_error_bars():
    model = agp.SVGP.from_data(X, Y, num_inducing=20)
    found = kernel_relevance(model)
    assert np.isnan(found.deviation).all()
    assert np.isnan([one.factor for one in found.lengthscales]).all()
    assert "pass X and y" in found.reason
    assert (found.mean > 0.0).all()
    with pytest.raises(ValueError, match="SVGP contains no rows with targets; pass X and y"):
        permutation_importance(model)
    with pytest.raises(ValueError, match="y is missing; give X and y"):
        permutation_importance(model, X)
    for function in (kernel_relevance, permutation_importance):
        with pytest.raises(ValueError, match="X has 60 rows, but y has 59"):
            function(model, X, Y[:59])


def test_layers_have_importance_but_no_lengthscales():
    model = agp.DeepGP.from_data(X, Y, num_inducing=8, layers=2)
    with pytest.raises(TypeError, match="the model has layers, whose lengthscales do not refer to columns"):
        kernel_relevance(model)
    assert permutation_importance(model, X, Y, repeats=1).mean.shape == (3, 1)


def test_one_lengthscale_for_all_columns():
    model = agp.GPR.from_data(X, Y, kernel=agp.RBF(lengthscale=1.5))
    found = kernel_relevance(model)
    assert [one.value for one in found.lengthscales] == [1.5] * 3
    assert len({round(one.factor, 9) for one in found.lengthscales}) == 1


@pytest.mark.slow
def test_every_library_has_the_same_numbers(backend, exact):
    moved = backend.move(exact)
    ours, theirs = kernel_relevance(exact), kernel_relevance(moved)
    np.testing.assert_allclose(theirs.mean, ours.mean, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(theirs.deviation, ours.deviation, rtol=1e-3, atol=1e-9)
    single = kernel_relevance(agp.to_backend(exact, backend.name, dtype="float32"))
    np.testing.assert_allclose(single.deviation, ours.deviation, rtol=1e-3, atol=1e-4)
    ours, theirs = permutation_importance(exact, repeats=2), permutation_importance(moved, repeats=2)
    np.testing.assert_allclose(theirs.mean, ours.mean, atol=1e-8)
