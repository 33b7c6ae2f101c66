"""Columns that are removed from the kernel: which they are, that they change nothing, and that they are named."""

import numpy as np
import pytest

import agp
from agp import to_numpy, tree
from agp.inspection import kernel_relevance
from agp.kernels import RBF, ActiveDims, Linear, Matern52, Overlap, RandomEffects
from agp.selection import _stages as stages
from agp.selection import select_kernel
from agp.selection._pruning import narrow_kernel, relevances

TRUE = (0, 1, 2, 3, 4)


def friedman(rows, columns, seed=0):
    """Friedman's first function of five columns; the others are noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, columns))
    f = 10.0 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2 + 10.0 * X[:, 3] + 5.0 * X[:, 4]
    return X, f + rng.standard_normal(rows)


def columns_of(model):
    """The columns on which the kernel depends, or all of them."""
    return model.kernel.columns if isinstance(model.kernel, ActiveDims) else tuple(range(model.X.shape[1]))


# -- shares and kernels -------------------------------------------------------------------------------------------


def test_shares_are_those_of_the_inspection():
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=(80, 3)), rng.integers(0, 3, 80)])
    kernel = RBF(2.0, [0.5, 2.0, 1e6]).with_categories(4, (3,)).from_data(X, 1.0)
    kernel = tree.with_leaves(kernel, {"parts.1.kernel.lengthscale": np.asarray([1.0])})
    model = agp.GPR.from_data(X, X[:, :1], kernel=kernel)
    found = relevances(model.kernel, X)
    assert found[2] < 1e-9 < found[1] < found[0]
    np.testing.assert_allclose(found, kernel_relevance(model).mean, atol=0.05)  # of other pairs of rows


def test_columns_of_one_row_are_kept():
    np.testing.assert_array_equal(relevances(RBF(), np.ones((1, 3))), np.ones(3))


@pytest.mark.parametrize("kept", [(0,), (1, 2), (3, 4), (0, 3), (0, 1, 2, 4)])
def test_a_kernel_of_fewer_columns_has_the_values_with_the_others_held_constant(kept):
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(size=(12, 3)), rng.integers(0, 3, (12, 2))])
    base = (Matern52() + Linear.centred(X)).with_categories(5, (3, 4)).from_data(X, 2.0)
    new = {name: x * rng.uniform(0.5, 2.0, np.shape(x)) for name, x in tree.leaves(base, "parameter").items()}
    kernel = tree.with_leaves(base, new)
    still = X.copy()
    still[:, [d for d in range(5) if d not in kept]] = X[0, [d for d in range(5) if d not in kept]]
    narrow = narrow_kernel(kernel, kept, 5).on(kept)
    narrow.check(5)
    centred = [K - K.mean(axis=0) - K.mean(axis=1, keepdims=True) + K.mean() for K in (kernel(still)[0], narrow(X)[0])]
    np.testing.assert_allclose(*centred, atol=1e-10)  # kernels are equal up to functions that are constant
    counts = {d: n for d, n in kernel.category_levels(5).items() if d in kept}
    assert narrow.category_levels(5) == counts


def test_sums_and_products_keep_their_parts_for_categories():
    kernel = (Matern52(1.0, np.ones(2)) + Linear(np.ones(2))).with_categories(3, (2,))
    narrow = narrow_kernel(kernel, (2,), 3)
    kinds = {type(node) for node in tree.nodes(narrow, object).values()}
    assert {Overlap, RandomEffects} <= kinds
    assert not {Matern52, Linear} & kinds
    assert narrow_kernel(Linear(np.ones(2)).on((0, 1)), (2,), 3) is None


# -- fits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns", "gain"), [(300, 25, 0.0), (60, 30, 0.1)])
@pytest.mark.usefixtures("full_size")
def test_removed_columns_do_not_matter_and_predictions_are_better(monkeypatch, rows, columns, gain):
    X, y = friedman(rows + 500, columns, seed=1)
    found = agp.fit_regression(X[:rows], y[:rows]).model
    assert set(TRUE) <= set(columns_of(found))
    assert len(columns_of(found)) < columns
    monkeypatch.setattr(stages, "prune", lambda *_: None)
    every = agp.fit_regression(X[:rows], y[:rows]).model
    assert len(columns_of(every)) == columns
    scores = [np.mean(np.asarray(one.predictor().log_density(X[rows:], y[rows:, None]))) for one in (found, every)]
    assert scores[0] > scores[1] + gain


@pytest.mark.usefixtures("full_size")
def test_predictions_do_not_depend_on_removed_columns():
    X, y = friedman(200, 30)
    model = agp.fit_regression(X, y).model
    unused = [d for d in range(30) if d not in columns_of(model)]
    moved = X[:20].copy()
    moved[:, unused] = 1e3
    for one, other in zip(model.predict(moved), model.predict(X[:20]), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (kernel_relevance(model).mean[unused] == 0.0).all()
    names = [f"c{d}" for d in range(30)]
    assert agp.summary(model, columns=names).endswith(f"not used: {', '.join(f'c{d}' for d in unused)}")


@pytest.mark.usefixtures("full_size")
def test_all_columns_are_kept_if_all_matter():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (220, 3))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(220)
    assert columns_of(agp.fit_regression(X, y).model) == (0, 1, 2)


@pytest.mark.usefixtures("full_size")
def test_columns_are_kept_with_kernels_and_priors_of_the_user_and_in_samples(monkeypatch):
    X, y = friedman(230, 12)
    monkeypatch.setattr(stages, "prune", lambda *_: pytest.fail("columns must not be removed"))
    agp.fit_regression(X, y, kernel=Matern52())
    agp.fit_regression(X, y, priors=None)
    agp.fit_regression(X, y, mean_function=agp.LinearMean())
    agp.fit_regression(*friedman(520, 7))
    select_kernel(X, y[:, None], agp.Gaussian())


@pytest.mark.usefixtures("full_size")
def test_trends_and_seasons_keep_the_column_of_times():
    rng = np.random.default_rng(4)
    days = np.sort(rng.uniform(0.0, 1500.0, 260))
    X = np.column_stack([days, rng.normal(size=(260, 8))])
    y = np.sin(2.0 * np.pi * days / 365.25) + np.sin(2.0 * X[:, 1]) + 0.1 * rng.standard_normal(260)
    found = agp.fit_regression(X, y, times=(0,))
    assert "seasonal(365.25)" in found.kernel
    unused = [d for d in range(9) if d not in columns_of(found.model)]
    assert len(unused) > 2
    assert not {0, 1} & {*unused}
    moved = X.copy()
    moved[:, unused] += 100.0
    np.testing.assert_array_equal(found.model.predict_mean(moved), found.model.predict_mean(X))


@pytest.mark.usefixtures("full_size")
def test_all_libraries_remove_the_same_columns(backend):
    X, y = friedman(200, 30)
    expected = agp.fit_regression(X, y).model
    found = agp.fit_regression(backend.array(X), backend.array(y)).model
    assert columns_of(found) == columns_of(expected)
    np.testing.assert_allclose(
        to_numpy(found.predict_mean(backend.array(X[:9]))), expected.predict_mean(X[:9]), rtol=1e-6
    )
