"""Warps of skewed columns in `fit_regression`: when they are chosen, and that they change nothing else."""

import numpy as np
import pytest
from helpers import as_arrays

import agp
from agp import tree
from agp.backend import to_numpy
from agp.kernels import Linear, Matern52, Warp, Warped
from agp.priors import LogNormal
from agp.processes import near_search
from agp.selection._climb import columns_of, exact_gp, narrow, widen
from agp.selection._given import Columns, Data, Plan
from agp.selection._pruning import narrow_kernel
from agp.selection._skewed import SUFFIX, warp_kernel, warp_of


def rows_of(N=320, seed=0, columns=3):
    """Rows of which the first column is log-normal, and targets that vary with its logarithm."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, columns))
    X[:, 0] = np.exp(3.0 * X[:, 0])
    y = np.sin(3.0 * np.log(1.0 + X[:, 0])) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(N)
    return X, y


def plan_of(kernel="auto", priors="auto", columns=3, **more):
    return Plan(kernel, agp.Gaussian(), None, priors, None, 1e-3, Columns(columns), **more)


def test_a_skewed_column_is_warped_and_predictions_are_better(monkeypatch):
    X, y = rows_of(600)
    train, test = slice(0, 320), slice(320, None)
    found = agp.fit_regression(X[train], y[train])
    assert found.kernel.endswith(SUFFIX)
    assert any(one.kernel == found.kernel for one in found.candidates)
    monkeypatch.setattr("agp.selection._race.warp_of", lambda *_: None)
    without = agp.fit_regression(X[train], y[train])
    ours, theirs = (one.predictor().log_density(X[test], y[test]).mean() for one in (found, without))
    assert ours > theirs + 0.2
    assert abs(ours - -0.5 * np.log(2 * np.pi * np.e * 0.01)) < 0.4  # the density given the function


def test_columns_that_matter_linearly_are_used_as_they_are():
    X, _ = rows_of(320)
    y = 1e-3 * X[:, 0] + np.sin(X[:, 1]) + 0.1 * np.random.default_rng(1).standard_normal(320)
    assert not agp.fit_regression(X, y).kernel.endswith(SUFFIX)


def test_a_mixture_averages_kernels_with_and_without_warps():
    X, y = rows_of(60)
    found = agp.fit_regression(X, y)
    assert {one.kernel for one in found.candidates} >= {"matern52 + linear", f"matern52 + linear{SUFFIX}"}
    assert found.kernel == f"matern52 + linear{SUFFIX}"


@pytest.mark.parametrize("N", [60, 320])
def test_units_change_nothing(N):
    X, y = rows_of(N)
    one = agp.fit_regression(X, y)
    other = agp.fit_regression(1e3 * X + np.asarray([0.0, 5e3, -2e3]), 10.0 * y + 3.0)
    assert other.kernel == one.kernel
    np.testing.assert_allclose(other.log_density, one.log_density - np.log(10.0), atol=1e-4)


def test_many_rows_search_for_neighbours_among_warped_inputs():
    X, y = rows_of(4600, columns=2)
    densities = []
    for kernel in (Matern52(), Warped(Matern52(), [0.0, 0.0], [0.1, 0.0])):
        found = agp.fit_regression(X[:4400], y[:4400], kernel=kernel, method="nngp")
        densities.append(found.model.predictor().log_density(X[4400:], y[4400:]).mean())
    assert densities[1] > densities[0] + 0.02
    assert densities[1] > -0.5 * np.log(2 * np.pi * np.e * 0.01) - 0.2  # the density given the function


# -- which columns, and with which parameters -------------------------------------------------------------------------


def test_only_skewed_numbers_are_warped():
    rng = np.random.default_rng(0)
    skewed = np.exp(rng.standard_normal(200))
    X = np.stack([skewed, rng.standard_normal(200), -skewed, np.floor(skewed) % 3, skewed, np.ones(200)], axis=1)
    plan = plan_of()._replace(columns=Columns(6, (3,)), times=(4,))
    warp = warp_of(plan, X)
    np.testing.assert_array_equal(warp.scale > 0.0, [True, False, True, False, False, False])
    assert warp_of(plan, rng.standard_normal((200, 6))) is None
    assert warp_of(plan._replace(kernel=agp.RBF()), X) is None
    assert warp_of(plan._replace(priors={"kernel.lengthscale": LogNormal(0.0, 1.0)}), X) is None


def test_parameters_keep_their_values_in_units_of_the_columns():
    X, y = rows_of()
    warp = Warp(np.median(X, axis=0), np.asarray([0.7, 0.0, 0.0]))
    kernel = (Matern52().on((1, 0)) + Linear.centred(X)).from_data(X, 1.0)
    found = warp_kernel(kernel, warp, X)
    before, after = tree.leaves(kernel), tree.leaves(found.kernel)
    ratio = np.std(np.arcsinh((X[:, 0] - np.median(X[:, 0])) / 0.7)) / np.std(X[:, 0])
    name = "parts.0.kernel.lengthscale"
    np.testing.assert_allclose(after[name], before[name] * [1.0, ratio], rtol=1e-12)
    np.testing.assert_allclose(after["parts.1.variance"], before["parts.1.variance"] / [ratio**2, 1.0, 1.0])
    np.testing.assert_allclose(after["parts.1.centre"], warp(X).mean(axis=0), rtol=1e-12)
    again = found.kernel.from_data(warp(X), 1.0)
    np.testing.assert_allclose(after["parts.1.variance_unit"], tree.leaves(again)["parts.1.variance_unit"], rtol=0.3)


def test_the_origin_of_float32_moves_the_centres_of_warps_and_of_columns_that_are_not_warped():
    X, y = rows_of(80)
    X = X + np.asarray([0.0, 1e4, 0.0])
    warp = Warp(np.median(X, axis=0), np.asarray([0.7, 0.0, 0.0]))
    kernel = warp_kernel((Matern52() + Linear.centred(X)).from_data(X, 1.0), warp, X)
    model = exact_gp(Data(X, y[:, None]), kernel=kernel)
    thin = narrow(model)
    np.testing.assert_allclose(thin.kernel(thin.X)[0], model.kernel(X)[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(widen(model, thin, thin).kernel(X)[0], model.kernel(X)[0], rtol=1e-4, atol=1e-4)
    row = np.asarray([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(columns_of(model, "kernel.kernel.parts.1", row), [0.0, 2.0, 3.0])
    np.testing.assert_array_equal(columns_of(model, "kernel", row), row)


# -- the kernel -------------------------------------------------------------------------------------------------------


def test_the_usual_warp_has_quartiles_of_the_columns(backend):
    X = np.stack([np.arange(9.0) ** 2 - 1.0, np.asarray([0.0] * 8 + [1.0]), np.arange(9.0) + 1.0], axis=1)
    kernel = Warped(agp.RBF()).from_data(backend.array(X), 1.0)
    np.testing.assert_allclose(to_numpy(kernel.centre), [15.0, 0.0, 0.0])
    np.testing.assert_allclose(to_numpy(kernel.scale), [0.5 * (36.0 - 4.0), 0.5 * np.std(X[:, 1]), 3.0])
    np.testing.assert_allclose(to_numpy(kernel.warp(backend.array(X)))[0, 0], np.arcsinh(-1.0))


@pytest.mark.parametrize("build", [lambda inner: inner, lambda inner: inner.on((0, 1, 2)) + 0.1 * agp.RBF(0.1, 9.0)])
def test_near_rows_are_those_with_the_largest_correlations(build, backend):
    (X, _), (Q, _) = rows_of(300), rows_of(20, seed=1)
    inner = as_arrays(Warped(agp.RBF(1.0, [0.5, 2.0, 1.0]), [1.0, 0.0, 0.0], [0.4, 0.0, 0.0]))
    kernel = as_arrays(build(inner))
    search = near_search(backend.move(kernel), backend.array(X))
    K = inner(Q, X)[0]
    np.testing.assert_array_equal(to_numpy(search.nearest(backend.array(Q), 5)), np.argsort(-K, axis=1)[:, :5])
    # from row to row, and for earlier rows, coordinates are warped once
    others = to_numpy(search.others(backend.array(np.arange(4), "int64"), 3))
    between = inner(X)[0] - np.eye(300) * 9.0
    np.testing.assert_array_equal(others, np.argsort(-between[:4], axis=1)[:, :3])


@pytest.mark.parametrize("scale", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
def test_a_wrong_number_of_scales_is_named(scale):
    with pytest.raises(ValueError, match=r"Warped has scales of shape \(\d,\), but the inputs have 3 columns"):
        Warped(agp.RBF(), 0.0, scale).from_data(rows_of()[0], 1.0)


def test_a_negative_scale_is_refused():
    with pytest.raises(ValueError, match=r"Warped has a negative scale; pass positive scales, and 0 for columns"):
        Warped(agp.RBF(), 0.0, [1.0, 0.0, -2.0]).from_data(rows_of()[0], 1.0)


def test_columns_can_be_removed_from_warped_kernels():
    X, _ = rows_of(40)
    kernel = as_arrays(Warped(Matern52(1.0, [0.5, 2.0, 1.0]) + Linear([0.1, 0.2, 0.3]), [1.0] * 3, [0.4, 0.0, 2.0]))
    X[:, 1] = 0.7
    found = narrow_kernel(kernel, (0, 2), 3).on((0, 2))
    expected = kernel(X)[0] - 0.2 * (0.7 - 0.0) ** 2  # the linear kernel of the constant column
    np.testing.assert_allclose(found(X)[0], expected, rtol=1e-12)
