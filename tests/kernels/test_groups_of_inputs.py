"""Covariances within groups of inputs to first order in the parameters, and the scales by which rows are near."""

import numpy as np
import pytest
from helpers import as_arrays, assert_close
from kernel_cases import CASES, cases_with, kernel_case

from agp import tree
from agp.kernels import (
    RBF,
    Constant,
    LevelCovariance,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    OnSphere,
    Overlap,
    Periodic,
    RationalQuadratic,
    Stationary,
)

GROUPS, SIZE = 5, 7


def grouped(columns, seed=3):
    """Inputs [G, n, D], vectors [G, n] and symmetric weights [G, n, n] on the host."""
    rng = np.random.default_rng(seed)
    X, a, W = (rng.normal(size=(GROUPS, SIZE, *shape)) for shape in ((columns,), (), (SIZE,)))
    return X, a, W + np.swapaxes(W, 1, 2)


SUPPORTED = cases_with("linearise_groups")


@pytest.mark.cover(2)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", SUPPORTED)
def test_values_are_those_of_each_group(name, columns, backend):
    kernel, (X, _, _) = kernel_case(name, columns), grouped(columns)
    found = backend.move(kernel).linearise_groups(backend.array(X))
    assert_close(backend.numpy(found.K), np.stack([kernel(x)[0] for x in X]), 1e-12)


@pytest.mark.cover(2)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", SUPPORTED)
def test_products_are_those_of_each_group(name, columns, weighted, backend):
    kernel, (X, a, W) = kernel_case(name, columns), grouped(columns)
    linear = backend.move(kernel).linearise_groups(backend.array(X))
    found = tree.leaves(linear.times(backend.array(a), backend.array(W) if weighted else None))
    for g in range(GROUPS):
        expected = kernel.linearise(X[g]).times(a[g][:, None], np.tril(W[g]) if weighted else None)
        for leaf, x in tree.leaves(expected).items():
            assert_close(backend.numpy(found[leaf])[g], x[:, 0], 1e-9, leaf)


@pytest.mark.parametrize("name", SUPPORTED)
def test_products_are_the_slopes_of_the_pullback(name):
    # sum c * times(a, W) is what the pullback gives for the cotangents W * c a^T
    kernel, (X, a, W) = kernel_case(name, 3), grouped(3)
    c = np.random.default_rng(9).normal(size=a.shape)
    bar = W * c[:, :, None] * a[:, None, :]
    expected = tree.leaves(kernel.grouped_covariance(X)[1](0.5 * (bar + np.swapaxes(bar, 1, 2)))[0], "parameter")
    for leaf, x in tree.leaves(kernel.linearise_groups(X).times(a, W), "parameter").items():
        total = np.sum(np.reshape(c, (*c.shape, *[1] * (x.ndim - 2))) * x, axis=(0, 1))
        np.testing.assert_allclose(total, expected[leaf], rtol=1e-9, atol=1e-9, err_msg=leaf)


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_small_groups_far_from_zero_keep_their_digits(shift):
    # the mean of each group is subtracted; that of all would leave distances of 1e-4 in 1e6
    rng = np.random.default_rng(2)
    places = shift * np.arange(GROUPS)[:, None, None]
    small = 1e-3 * rng.normal(size=(GROUPS, SIZE, 12))
    X = places + small
    kernel = as_arrays(RBF(1.0, 1e-3))
    exact = np.stack([kernel(x)[0] for x in X - places])
    assert_close(kernel.grouped_covariance(X)[0], exact, 1e-5)
    assert_close(kernel.linearise_groups(X).K, exact, 1e-5)


def test_shapes_with_their_own_pullback_give_none():
    @tree.model
    class WithPull(RBF):
        def pull_shape(self, r2):
            return lambda K_bar: {}

    assert as_arrays(WithPull(1.0, 0.8)).linearise_groups(grouped(3)[0]) is None
    assert as_arrays(RationalQuadratic(1.0, 0.8, 1.2)).linearise_groups(grouped(3)[0]) is not None


# -- scales -----------------------------------------------------------------------------------------------------------

L = np.array([0.5, 2.0, 4.0])
SCALES = {
    "one": (lambda: Matern32(0.7, 0.5), [2.0, 2.0, 2.0]),
    "by-column": (lambda: RBF(0.7, L), [2.0, 0.5, 0.25]),
    "scaled": (lambda: 3.0 * Matern12(0.7, L), [2.0, 0.5, 0.25]),
    "on": (lambda: RBF(0.7, (0.5, 4.0)).on((2, 0)), [0.25, 0.0, 2.0]),
    "largest": (lambda: RBF(0.7, L) + Matern52(0.9, 1.0), [1.0, 1.0, 1.0]),
    "largest-first": (lambda: RBF(1.7, L) + Matern52(0.9, 1.0), [2.0, 0.5, 0.25]),
    "with-linear": (lambda: RBF(0.1, L) + Linear(2.0) + Constant(5.0), [2.0, 0.5, 0.25]),
    "product": (lambda: RBF(0.7, L) * Matern52(0.9, 1.0), [5.0**0.5, 1.25**0.5, 1.0625**0.5]),
    "product-on": (lambda: RBF(0.7, 0.5).on((0,)) * Matern52(0.9, 4.0).on((1,)) * Linear(0.3), [2.0, 0.25, 0.0]),
    "sphere": (lambda: RBF(0.7, 0.5).on_sphere((2, 0)), [0.0, 0.0, 0.0, 2.0, 2.0, 2.0]),
    "sphere-by-axis": (lambda: OnSphere(2.0 * RBF(0.7, L)).on((2, 0)), [0.0, 0.0, 0.0, 2.0, 0.5, 0.25]),
    "sphere-and-time": (lambda: RBF(0.7, 0.5).on_sphere((0, 1)) * RBF(1.0, 4.0).on(2), [0, 0, 0.25, 2, 2, 2]),
    "time-largest": (lambda: RBF(0.7, 0.5).on_sphere((0, 1)) + RBF(1.0, 4.0).on(2), [0, 0, 0.25, 0, 0, 0]),
    "sphere-largest": (lambda: RBF(0.7, 0.5).on_sphere((0, 1)) + RBF(0.5, 4.0).on(2), [0, 0, 0, 2, 2, 2]),
    "two-spheres": (lambda: RBF(1, 0.5).on_sphere((0, 1)) * RBF(1, 0.2).on_sphere((0, 2)), [0] * 3 + [2] * 3 + [5] * 3),
    "larger-sphere": (
        lambda: RBF(0.4, 0.5).on_sphere((0, 1)) + RBF(1.0, 0.2).on_sphere((0, 1)) + Linear(2.0),
        [0] * 6 + [5] * 3,
    ),
    "linear": (lambda: Linear(0.7) + Constant(0.4), None),
    "linear-on-sphere": (lambda: Linear(0.7).on_sphere((0, 1)), None),
    "periodic": (lambda: Periodic(0.7, 0.5, 2.0) * Linear(0.2), None),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_those_of_the_part_that_decides(name, backend):
    build, expected = SCALES[name]
    found = backend.move(as_arrays(build())).inverse_scales(3)
    if expected is None:
        assert found is None
    else:
        assert_close(backend.numpy(found), expected, 1e-14)


@pytest.mark.parametrize("name", CASES)
def test_scales_exist_where_a_part_is_stationary(name):
    kernel = kernel_case(name, 3)
    found = kernel.inverse_scales(3)
    stationary = any(
        isinstance(part, (Stationary, Overlap, LevelCovariance)) for part in tree.nodes(kernel, object).values()
    )
    assert (found is not None) == stationary
    assert found is None or found.shape == kernel.metric_inputs(np.ones((4, 3))).shape[1:]
