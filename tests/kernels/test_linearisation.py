"""Covariance matrices to first order in the parameters: values, pullbacks and products, of the lower triangle alone."""

import numpy as np
import pytest
from helpers import NUMPY, as_arrays, assert_close, autograd
from kernel_cases import cases_with, inputs, kernel_case, with_arrays

from agp import tree
from agp.kernels import RBF, Linear, Matern12, Matern52, RationalQuadratic, Seasonal, Stationary
from agp.tree import POSITIVE

LINEARISED = cases_with("linearise")
ROWS = [20, 150]  # NumPy computes the triangle of 150 rows in several tiles
EXPECTED = {}
"""What differences of NumPy's covariances give, by case."""


def case(name, columns, rows):
    """A kernel, inputs, a symmetric matrix, vectors and weights on the host."""
    rng = np.random.default_rng(7)
    A, W = (rng.normal(size=(rows, rows)) for _ in range(2))
    return kernel_case(name, columns), inputs(columns, rows)[0], A + A.T, rng.normal(size=(rows, 2)), W + W.T


def slope_of(kernel, X, name, index):
    """The derivative of k(X) by one number, by differences of order four."""
    leaf = np.asarray(tree.leaves(kernel)[name])

    def at(step):
        moved = np.array(leaf)
        moved[index] += step
        return tree.with_leaves(kernel, {name: moved})(X)[0]

    h = 5e-4 * float(leaf[index])
    return (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h)


def products_by_differences(name, columns, rows):
    """`times` of a host kernel without and with weights, computed from differences once."""
    key = name, columns, rows
    if key not in EXPECTED:
        kernel, X, _, a, W = case(*key)
        EXPECTED[key] = found = ({}, {})
        for leaf, value in tree.leaves(kernel, "parameter").items():
            each = [slope_of(kernel, X, leaf, index) for index in np.ndindex(value.shape)]
            for products, weights in zip(found, (1.0, W), strict=True):
                stacked = np.stack([(weights * dK) @ a for dK in each], axis=-1)
                products[leaf] = stacked.reshape(*a.shape, *value.shape)
    return EXPECTED[key]


def assert_tree_is(found, expected, tolerance, place=NUMPY):
    found = {name: x for name, x in tree.leaves(found).items() if x is not None}
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(place.numpy(found[name]), x, tolerance, name)


@pytest.mark.cover(2)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", LINEARISED)
def test_values_and_pullback_are_those_of_the_kernel(name, columns, rows, backend):
    host, X, A, _, _ = case(name, columns, rows)
    K, pull = host(X)
    linear = backend.move(host).linearise(backend.array(X))
    assert_close(np.tril(backend.numpy(linear.K)), np.tril(K), 1e-12)
    expected = {leaf: x for leaf, x in tree.leaves(pull(A)[0], "parameter").items() if x is not None}
    assert_tree_is(linear.pull(backend.array(np.tril(A))), expected, 1e-9, backend)


@pytest.mark.cover(2)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", LINEARISED)
def test_products_are_differences(name, columns, rows, backend):
    host, X, _, a, W = case(name, columns, rows)
    linear = backend.move(host).linearise(backend.array(X))
    plain, weighted = products_by_differences(name, columns, rows)
    assert_tree_is(linear.times(backend.array(a), None), plain, 1e-8, backend)
    assert_tree_is(linear.times(backend.array(a), backend.array(np.tril(W))), weighted, 1e-8, backend)


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", LINEARISED)
def test_products_are_autograd(name, columns, weighted, torch_place):
    # sum c * times(a, W) is linear in the derivatives of K: its gradient is that of K's entries c a^T * W
    host, X, _, a, W = case(name, columns, 20)
    found = host.linearise(X).times(a, np.tril(W) if weighted else None)
    here = {leaf: torch_place.array(x) for leaf, x in tree.leaves(host, "parameter").items()}
    rng = np.random.default_rng(8)
    for _ in range(3):
        c = rng.normal(size=a.shape)
        bar = torch_place.array((c @ a.T) * (W if weighted else 1.0))
        by_torch = autograd(lambda leaves: (with_arrays(host, leaves)(torch_place.array(X))[:1], None), here, (bar,))
        for leaf, x in tree.leaves(found).items():
            if x is not None:
                total = np.sum(c.reshape(*c.shape, *[1] * (x.ndim - 2)) * x, axis=(0, 1))
                scale = np.max(np.abs(np.sum(np.abs(c.reshape(*c.shape, *[1] * (x.ndim - 2)) * x), axis=(0, 1))))
                np.testing.assert_allclose(total, torch_place.numpy(by_torch[leaf]), rtol=0, atol=1e-8 * scale)


@pytest.mark.cover(2)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", LINEARISED)
def test_only_the_lower_triangle_is_read(name, columns, rows):
    kernel, X, A, a, W = case(name, columns, rows)
    linear = kernel.linearise(X)
    above = ~np.tri(rows, dtype=bool)
    hidden_A, hidden_W = (np.where(above, np.nan, x) for x in (A, W))
    assert_tree_is(linear.pull(hidden_A), dict(kept(linear.pull(A))), 1e-13)
    assert_tree_is(linear.times(a, hidden_W), dict(kept(linear.times(a, W))), 1e-13)


def kept(found):
    """The leaves that are not None."""
    return ((name, x) for name, x in tree.leaves(found).items() if x is not None)


@pytest.mark.parametrize("rows", ROWS)
def test_arguments_are_not_changed(rows):
    kernel, X, A, a, W = case("mixed", 6, rows)
    before = [x.copy() for x in (X, A, a, W)]
    linear = kernel.linearise(X)
    K = linear.K.copy()
    linear.pull(A)
    linear.times(a, W)
    linear.times(a, None)
    for x, old in zip((X, A, a, W, np.tril(linear.K)), (*before, np.tril(K)), strict=True):
        np.testing.assert_array_equal(x, old)


@pytest.mark.parametrize("rows", ROWS)
def test_a_constant_period_has_no_products(rows):
    kernel, X, A, a, _ = case("seasonal", 3, rows)
    assert isinstance(kernel, Seasonal)
    linear = kernel.linearise(X)
    for found in (linear.pull(A), linear.times(a, None)):
        assert {name for name, _ in kept(found)} == {"variance", "lengthscale"}


@pytest.mark.parametrize("rows", ROWS)
def test_close_rows_of_matern12(rows):
    # pairs at a distance of 1e-9: a slope of 1e9, which matrix products would cancel to 1e-7
    kernel, X, A, a, _ = case("matern12-ard", 6, rows)
    X[rows // 2 :] = X[: rows // 2] + 1e-9
    linear = kernel.linearise(X)
    K, pull = kernel(X)
    np.testing.assert_allclose(np.tril(linear.K), np.tril(K), rtol=1e-13)
    assert_tree_is(linear.pull(A), tree.leaves(pull(A)[0], "parameter"), 1e-12)
    assert all(np.isfinite(x).all() for x in tree.leaves(linear.times(a, None)).values() if x is not None)


@pytest.mark.parametrize("name", ["rbf-ard", "matern12", "matern52-ard", "rq", "periodic-ard"])
@pytest.mark.parametrize("rows", ROWS)
def test_repeated_rows_and_the_diagonal_are_exact(name, rows):
    kernel, X, *_ = case(name, 6, rows)
    linear = kernel.linearise(X)
    np.testing.assert_array_equal(np.diag(linear.K), kernel.variance)


@pytest.mark.parametrize("rows", ROWS)
def test_distances_in_float32_do_not_cancel(rows, backend):
    # many lengthscales from the mean: the expansion would be off by 1e-2
    rng = np.random.default_rng(4)
    X = (1e4 + 640.0 * rng.uniform(size=(rows, 6))).astype(np.float32)
    X[rows // 2 :] = X[: rows // 2] + rng.uniform(size=(rows // 2, 6)).astype(np.float32)
    host = as_arrays(RBF(1.0, 2.0))
    linear = backend.move(host, "float32").linearise(backend.array(X, "float32"))
    exact = host(X.astype(np.float64))[0]
    np.testing.assert_allclose(np.tril(backend.numpy(linear.K, "float32")), np.tril(exact), rtol=0, atol=1e-5)


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", LINEARISED)
def test_float32_has_the_numbers_of_float64(name, columns, backend):
    host, X, _, a, W = case(name, columns, 20)
    a, W = np.abs(a), np.abs(W)  # of one sign: a sum that cancels would not do
    single = backend.move(host, "float32").linearise(backend.array(X, "float32"))
    double = NUMPY.move(NUMPY.move(host, "float32"), "float64").linearise(X.astype(np.float32).astype(np.float64))
    assert_close(np.tril(backend.numpy(single.K, "float32")), np.tril(double.K), 5e-6)
    pairs = (
        (single.pull(backend.array(W, "float32")), double.pull(W)),
        (single.times(backend.array(a, "float32"), backend.array(W, "float32")), double.times(a, W)),
    )
    for ours, theirs in pairs:
        expected = dict(kept(theirs))
        for leaf, x in kept(ours):
            assert_close(backend.numpy(x, "float32"), expected[leaf], 1e-4, leaf)


# -- kernels of users -------------------------------------------------------------------------------------------------


@tree.model
class Cauchy(Stationary):
    """1 / (1 + r2 / power), whose parameter has a slope."""

    power: object = tree.param(POSITIVE, default=1.0)

    def profile(self, r2):
        g = 1.0 / (1.0 + r2 / self.power)
        return g, lambda: -g * g / self.power

    def shape_slopes(self, r2):
        g = 1.0 / (1.0 + r2 / self.power)
        return {"power": g * g * r2 / (self.power * self.power)}


@tree.model
class WithPull(Cauchy):
    """The same with the pullback alone, as before there were slopes."""

    def pull_shape(self, r2):
        slope = Cauchy.shape_slopes(self, r2)["power"]
        return lambda K_bar: {"power": self.variance * np.sum(K_bar * slope)}


@tree.model
class Plain(RBF):
    """A kernel without a linearisation."""

    def linearise(self, X, /):
        return None


@pytest.mark.parametrize("rows", ROWS)
def test_a_profile_with_a_parameter_of_its_own(rows):
    _, X, A, a, _ = case("rbf", 6, rows)
    kernel = as_arrays(Cauchy(0.9, np.linspace(0.8, 1.6, 6), 1.7))
    linear, (K, pull) = kernel.linearise(X), kernel(X)
    assert_close(np.tril(linear.K), np.tril(K), 1e-13)
    assert_tree_is(linear.pull(A), tree.leaves(pull(A)[0], "parameter"), 1e-10)
    assert_close(linear.times(a, None).power, slope_of(kernel, X, "power", ()) @ a, 1e-8)
    old = as_arrays(WithPull(0.9, np.linspace(0.8, 1.6, 6), 1.7))(X)[1](A)[0]
    assert_tree_is(old, tree.leaves(pull(A)[0], "parameter"), 1e-13)


PLAIN = {
    "pull_shape": lambda: WithPull(0.9, 1.1, 1.7),
    "alone": lambda: Plain(0.9, 1.1),
    "sum": lambda: Linear(0.3) + Plain(0.9, 1.1),
    "product": lambda: Matern52(0.9, 1.1) * Plain(0.9, 1.1),
    "scaled": lambda: 2.0 * (RationalQuadratic(0.9, 1.1, 1.3) + Plain(0.9, 1.1)),
    "on": lambda: Matern12(0.9, 1.1) + Plain(0.9, 1.1).on([1]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_part_without_linearisation_leaves_none(name):
    assert as_arrays(PLAIN[name]()).linearise(inputs(3)[0]) is None
