"""`LevelCovariance`, the learned covariances of the levels of a category."""

import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import as_arrays
from sklearn.exceptions import NotFittedError

import agp
from agp import GPR, NNGP, RBF, SVGP, Constant, Gaussian, Matern52, Overlap, fit_newton, tree
from agp.estimators import GPClassifier, GPRegressor
from agp.kernels import LevelCovariance, parse_kernel
from agp.priors import Between, Normal
from agp.processes import near_search
from agp.testing import check_pullback

L = 6
RNG = np.random.default_rng(0)
TRUE = np.asarray([[1.0, 0.0], [1.1, 0.1], [0.9, -0.1], [-0.8, 0.9], [0.1, 1.0], [0.0, 1.2]])
CODE, SIZE = RNG.integers(0, L, 150), RNG.uniform(0.0, 5.0, 150)
Y = 10.0 + 3.0 * np.sum(TRUE[CODE] * np.column_stack([np.sin(3.0 * SIZE), np.cos(3.0 * SIZE)]), axis=1)
Y = Y + 0.2 * RNG.standard_normal(150)
X = np.column_stack([SIZE, CODE.astype(float)])
NAMES = np.asarray(["ash", "birch", "cedar", "elm", "fir", "oak"])
TABLE = pd.DataFrame({"size": SIZE, "tree": NAMES[CODE]})
RIGHT = TRUE @ TRUE.T / np.sqrt(np.sum(TRUE**2, axis=1) * np.sum(TRUE**2, axis=1)[:, None])


def covariance_of(kernel):
    """The covariances [L + 1, L + 1] of the levels and an unknown one, by the formula."""
    C = np.zeros((len(kernel.weights) + 1,) * 2)
    C[:-1, :-1] = kernel.weights @ kernel.weights.T + np.diag(np.broadcast_to(kernel.variance, len(kernel.weights)))
    C[-1, -1] = np.trace(C) / len(kernel.weights)
    return C


def rbf(part, x, z):
    return float(part.variance) * np.exp(-0.5 * ((x[:, None] - z) / np.asarray(part.lengthscale)) ** 2)


def test_the_posterior_is_that_of_a_normal_distribution():
    kernel = RBF().on(0) * LevelCovariance(rank=2).on(1) + Constant() * LevelCovariance(rank=1).on(1)
    model = fit_newton(GPR.from_data(X, Y, kernel=kernel), X, Y, max_iterations=20).model
    first, second = model.kernel.parts
    base, levels = first.parts[0].kernel, covariance_of(first.parts[1].kernel)
    more = float(second.parts[0].variance) * covariance_of(second.parts[1].kernel)

    def dense(A, C):
        a, c = (np.where(x < 0, L, x).astype(int) for x in (A[:, 1], C[:, 1]))
        return rbf(base, A[:, 0], C[:, 0]) * levels[np.ix_(a, c)] + more[np.ix_(a, c)]

    new = np.column_stack([np.linspace(0.0, 5.0, 9), [0, 1, 2, 3, 4, 5, -1, -1, 77]])
    codes = new.copy()
    codes[-1, 1] = -1
    S = dense(X, X) + float(model.likelihood.noise_variance) * np.eye(len(X))
    cross, level = dense(X, codes), float(model.mean_function.value[0])
    A = np.linalg.solve(S, cross)
    C = dense(codes, codes) - cross.T @ A
    mean, variance = model.predict(new)
    np.testing.assert_allclose(mean[:, 0], level + A.T @ (Y - level), rtol=1e-8)
    np.testing.assert_allclose(variance[:, 0], np.diag(C), rtol=1e-7)
    np.testing.assert_allclose(np.reshape(model.predict_covariance(new), C.shape), C, rtol=1e-6, atol=1e-8)
    evidence = -0.5 * ((Y - level) @ np.linalg.solve(S, Y - level) + np.linalg.slogdet(2.0 * np.pi * S)[1])
    np.testing.assert_allclose(model.bound(X, Y)[0], evidence, rtol=1e-10)


@pytest.mark.long
def test_correlations_are_learned_by_newton_and_by_gradients():
    kernel = RBF().on(0) * LevelCovariance(rank=2).on(1)
    model = GPR.from_data(X, Y, kernel=kernel)
    by_newton, by_gradients = fit_newton(model, X, Y), agp.fit(SVGP.from_data(X, Y, kernel=kernel, Z=X), X, Y)
    assert by_newton.converged
    for found in (by_newton.model, by_gradients.model):
        (learned,) = agp.inspection.level_correlations(found)
        np.testing.assert_allclose(learned.correlations, RIGHT, atol=0.25)


@pytest.mark.parametrize("rank", [1, 2, 3, 9])
@pytest.mark.parametrize("variance", [0.3, 2e-8, 4e7])
def test_starts_have_the_variance_of_the_targets(rank, variance):
    kernel = LevelCovariance(rank=rank).from_data(X[:, 1:], variance)
    assert kernel.levels == L
    assert kernel.weights.shape == (L, min(rank, L))
    np.testing.assert_allclose(kernel.diag(np.arange(-1.0, L)[:, None])[0], variance, rtol=1e-12)
    K = kernel(np.arange(float(L))[:, None])[0] / variance
    np.testing.assert_allclose(K - np.diag(np.diag(K)), 0.5 * (1.0 - np.eye(L)), atol=0.02)
    np.testing.assert_allclose(np.asarray(kernel.weights_unit) ** 2, variance, rtol=1e-12)


def test_the_scale_of_products_is_that_of_the_first_factor():
    product = (RBF() * LevelCovariance(rank=2).on(1)).from_data(X, 9.0)
    assert float(product.parts[0].variance) == 9.0
    np.testing.assert_allclose(as_arrays(product).diag(X)[0], 9.0, rtol=1e-12)
    np.testing.assert_allclose(as_arrays(LevelCovariance(rank=2).on(1).from_data(X, 9.0)).diag(X)[0], 9.0, rtol=1e-12)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_units_of_targets_do_not_matter(unit):
    kernel = LevelCovariance(rank=1).on(1) + RBF().on(0) * LevelCovariance(rank=2).on(1)
    here, there = (agp.fit(GPR.from_data(X, s * Y, kernel=kernel), X, s * Y).model for s in (1.0, unit))
    np.testing.assert_allclose(there.predict_mean(X) / unit, here.predict_mean(X), rtol=1e-4)


def test_float32_is_near():
    kernel = RBF().on(0) * LevelCovariance(rank=2).on(1)
    model = agp.fit(GPR.from_data(X, Y, kernel=kernel), X, Y).model
    narrow = tree.to_backend(model, "numpy", dtype="float32")
    np.testing.assert_allclose(
        narrow.kernel(X.astype(np.float32))[0], model.kernel(X)[0], rtol=2e-5, atol=1e-4 * model.kernel(X)[0].max()
    )
    x, y = X.astype(np.float32), Y.astype(np.float32)
    found = agp.fit(GPR.from_data(x, y, kernel=kernel), x, y).model
    assert found.kernel(x)[0].dtype == np.float32
    np.testing.assert_allclose(found.predict_mean(x), model.predict_mean(X), atol=0.05)


def test_features_are_exact():
    kernel = as_arrays(LevelCovariance(TRUE, 0.3))
    codes = np.asarray([[-1.0], [0.0], [3.0], [5.0], [9.0]])
    phi = kernel.random_features(np.random.default_rng(0), 10, 1)
    np.testing.assert_allclose(phi(codes)[0] @ phi(codes)[0].T, kernel(codes)[0], atol=1e-12)


def test_near_rows_are_those_of_correlated_levels():
    C = np.asarray([[1.0, 0.0], [1.0, 0.05], [0.0, 1.0]])
    kernel = as_arrays(RBF(1.0, 1.0).on(0) * LevelCovariance(C, 1e-3).on(1))
    rows = np.column_stack([np.tile(np.linspace(0.0, 1.0, 7), 3), np.repeat([0.0, 1.0, 2.0], 7)])
    found = np.asarray(near_search(kernel, rows).nearest(np.asarray([[0.5, 0.0]]), 10))
    assert {*rows[found[0], 1]} == {0.0, 1.0}
    model = NNGP.from_data(X, Y, kernel=RBF().on(0) * LevelCovariance(rank=2).on(1), neighbours=20)
    result = fit_newton(model, X, Y)
    assert result.model.bound(X, Y)[0] > model.bound(X, Y)[0]


def test_wrong_arguments_have_clear_errors():
    with pytest.raises(ValueError, match=r"acts on 2 columns, but needs one.*on\(0\)"):
        GPR.from_data(np.column_stack([CODE, CODE]) * 1.0, Y, kernel=LevelCovariance(rank=2))
    with pytest.raises(ValueError, match="has weights of 3 levels, but the data have the code 5"):
        LevelCovariance(TRUE[:3]).from_data(X[:, 1:], 1.0)
    with pytest.raises(ValueError, match="contains the code 5, but LevelCovariance has entries for 3 levels"):
        GPR.from_data(X, Y, kernel=LevelCovariance(TRUE[:3]).on(1))
    with pytest.raises(ValueError, match=r"weights of shape \(6,\)"):
        GPR.from_data(X, Y, kernel=LevelCovariance(TRUE[:, 0], 0.3).on(1))
    with pytest.raises(ValueError, match=r"variances of shape \(3,\)"):
        GPR.from_data(X, Y, kernel=LevelCovariance(TRUE, np.ones(3)).on(1))
    with pytest.raises(ValueError, match="has no weights to scale"):
        LevelCovariance(rank=2).scale_by(2.0)


def test_levels_are_those_of_all_rows():
    few = np.column_stack([SIZE, np.minimum(CODE, 2)])
    few[-1, 1] = 9.0
    found = agp.fit_regression(few, Y, kernel=RBF().on(0) * LevelCovariance(rank=2).on(1), hyperparameters="mode")
    assert found.model.kernel.category_levels(2) == {1: 10}
    assert LevelCovariance(levels=12).from_data(few[:, 1:], 1.0).levels == 12


def test_priors_and_limits_hold():
    priors = {"weights": Normal(0.0, 0.1), "*variance": Between(0.01, 50.0)}
    kernel = RBF().on(0) * LevelCovariance(rank=2).on(1)
    model = agp.fit(GPR.from_data(X, Y, kernel=kernel, priors=priors), X, Y).model
    free = agp.fit(GPR.from_data(X, Y, kernel=kernel), X, Y).model
    assert np.abs(model.kernel.parts[1].kernel.weights).max() < np.abs(free.kernel.parts[1].kernel.weights).max()


# -- estimators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [RBF(), RBF().on("size")])
def test_estimators_learn_the_correlations_of_named_levels(base, tmp_path):
    model = GPRegressor(kernel=base * LevelCovariance(rank=2).on("tree")).fit(TABLE, Y)
    (found,) = agp.inspection.level_correlations(model)
    assert found.column == "tree"
    assert found.levels == tuple(NAMES)
    np.testing.assert_allclose(found.correlations, RIGHT, atol=0.25)
    names = {type(node).__name__ for node in tree.nodes(model.model_, agp.kernels.Kernel).values()}
    assert "Overlap" not in names
    new = TABLE.iloc[:4].assign(tree=["oak", "ash", "yew", "elm"])
    mean, deviation = model.predict(new, return_std=True)
    assert deviation[2] > 2.0 * deviation[1]
    agp.save(model, tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(new), mean)
    np.testing.assert_array_equal(agp.inspection.level_correlations(again)[0].correlations, found.correlations)


def test_classifiers_and_counts_take_it():
    kernel = RBF().on("size") * LevelCovariance(rank=2).on("tree")
    assert GPClassifier(kernel=kernel).fit(TABLE, Y > 10.0).score(TABLE, Y > 10.0) > 0.9
    counts = GPRegressor(kernel=kernel, likelihood="poisson").fit(TABLE, np.round(np.exp(0.2 * Y)))
    assert len(agp.inspection.level_correlations(counts)[0].levels) == L


@pytest.mark.parametrize("method", ["sgpr", "wsvgp", "rsvgp", "tsvgp", "nngp", "vif", "cagp-cg"])
def test_other_methods_take_it(method):
    kernel = RBF().on("size") * LevelCovariance(rank=2).on("tree")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor(kernel=kernel, method=method, max_steps=100).fit(TABLE, Y)
    assert model.score(TABLE, Y) > 0.8
    assert agp.inspection.level_correlations(model)[0].correlations[0, 1] > 0.6


def test_inducing_inputs_are_rows():
    kernel = Matern52().on(0) * LevelCovariance().on(1)
    Z = SVGP.from_data(X, Y, kernel=kernel, num_inducing=30).process.inducing.Z
    assert {*Z[:, 1]} <= {*map(float, range(L))}


def test_pullbacks_are_right():
    check_pullback(LevelCovariance(), backends=["torch"])
    check_pullback(RBF().on(0) * LevelCovariance(variance=0.4, rank=1).on(1), backends=["torch"])


def test_integration_over_hyperparameters_takes_it():
    few = CODE < 3
    model = GPR.from_data(X[few], Y[few], kernel=RBF().on(0) * LevelCovariance(rank=1).on(1), likelihood=Gaussian(0.04))
    found = agp.integrate(model)
    (learned,) = agp.inspection.level_correlations(found.model)
    assert learned.correlations.min() > 0.5


def test_correlations_of_other_kernels_of_codes():
    model = GPRegressor(
        kernel=RBF().on("size") * Overlap(1.0).on("tree"), hyperparameters="mode", frozen="*lengthscale"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which correlates opposite levels
        model.fit(TABLE, Y)
    (found,) = agp.inspection.level_correlations(model)
    np.testing.assert_allclose(found.correlations, np.where(np.eye(L) == 1.0, 1.0, np.exp(-0.5)), rtol=1e-12)


def test_text_names_it():
    assert isinstance(parse_kernel("levelcovariance.on(kind)").kernel, LevelCovariance)
    model = GPRegressor(kernel="rbf.on(size) * levelcovariance.on(tree)").fit(TABLE, Y)
    assert agp.inspection.level_correlations(model)[0].levels == tuple(NAMES)


def test_codes_of_levels_have_names():
    table = TABLE.assign(kind=np.where(CODE > 2, "x", None))
    model = GPRegressor(hyperparameters="mode", kernel="rbf", missing="impute").fit(table, Y)
    assert model.model_levels() == {"tree": [*NAMES], "kind": model.columns_.levels["kind"]}
    codes = model.model_inputs(table)[:, model.model_columns().index("tree")]
    assert [model.model_levels()["tree"][int(code)] for code in codes[:9]] == TABLE["tree"][:9].tolist()
    assert GPRegressor(kernel="rbf", hyperparameters="mode").fit(X, Y).model_levels() == {}
    with pytest.raises(NotFittedError):
        GPRegressor().model_levels()


def test_a_list_of_priors_is_refused_with_a_remedy():
    with pytest.raises(
        TypeError, match=r"give a prior and a limit different patterns, such as 'weights' and '\*weights'"
    ):
        GPR.from_data(X, Y, priors={"weights": (Normal(0.0, 1.0), Between(-1.0, 1.0))})
