"""Finite features: their inner products are the kernel, exactly or on average, and their pullbacks are slopes."""

import numpy as np
import pytest
from helpers import as_arrays, relative_error
from kernel_cases import CASES, cases_with, inputs, kernel_case

from agp import tree
from agp.backend import Array, backend_of, to_numpy
from agp.kernels import RBF, Constant, Kernel, Linear, Matern32, Overlap, RandomEffects, Stationary, White, _features
from agp.kernels._features import select_columns
from agp.tree import to_backend

WITH_FEATURES = cases_with("random_features")
EXACT = {
    "linear": lambda: Linear((0.7, 1.1, 0.9)),
    "linear-centred": lambda: Linear((0.7, 1.1, 0.9), (0.4, -1.1, 2.0)),
    "centred-square": lambda: (Linear(0.3, (0.4, -1.1, 2.0)) + Constant(0.5)) * Linear(0.2, (1.0, 0.0, -3.0)),
    "constant": lambda: Constant(0.9),
    "square": lambda: (Linear(0.3) + Constant(0.5)) * (Linear((0.7, 1.1, 0.9)) + Constant(0.2)),
    "on": lambda: 2.0 * Linear(0.6).on((2, 0)) * Linear(0.5) + Constant(0.1),
}


def features_of(kernel, count=4, seed=0, width=3):
    return kernel.random_features(np.random.default_rng(seed), count, width)


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_inner_products_are_the_kernel_on_average(name):
    kernel, (X, Z) = kernel_case(name, 3), inputs(3)
    phi = features_of(kernel, count=40_000)
    found, K = phi(X)[0] @ phi(Z)[0].T, kernel(X, Z)[0]
    scale = np.sqrt(np.outer(kernel.diag(X)[0], kernel.diag(Z)[0]))
    assert np.max(np.abs(found - K) / scale) < 6 / np.sqrt(40_000)


@pytest.mark.parametrize("name", EXACT)
def test_kernels_of_finite_rank_have_exact_features(name):
    kernel, (X, Z) = as_arrays(EXACT[name]()), inputs(3)
    phi = features_of(kernel)
    np.testing.assert_allclose(phi(X)[0] @ phi(Z)[0].T, kernel(X, Z)[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["rbf-ard", "matern32", "rq-ard", "periodic-ard", "seasonal-centred"])
def test_waves_have_exact_variances(name):
    kernel, (X, _) = kernel_case(name, 3), inputs(3)
    phi = features_of(kernel, count=3)(X)[0]
    np.testing.assert_allclose(np.sum(phi * phi, axis=1), kernel.diag(X)[0], rtol=1e-13)


@pytest.mark.parametrize("name", [*WITH_FEATURES, *EXACT])
def test_combinations_are_those_of_the_features(name):
    kernel, (X, _) = as_arrays(EXACT[name]()) if name in EXACT else kernel_case(name, 3), inputs(3)
    phi, rng = features_of(kernel), np.random.default_rng(1)
    value, pull = phi(X)
    weights = rng.normal(size=(value.shape[1], 2))
    found, pull_found, used = phi.combine(X, weights)
    bar = rng.normal(size=found.shape)
    assert used == value.shape[1]
    np.testing.assert_allclose(found, value @ weights, rtol=1e-10, atol=1e-10)
    X_bar, expected = pull_found(bar), pull(bar @ weights.T)
    assert (X_bar is None) == (expected is None)
    if X_bar is not None:
        np.testing.assert_allclose(X_bar, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("other", [Overlap, RandomEffects])
def test_products_with_categories_are_combined_without_their_features(other, monkeypatch):
    kernel = as_arrays((RBF(1.0, 0.7).on((0, 1)) * other(1.0, levels=3).on(2)) + Constant(0.5))
    X = np.concatenate([inputs(3)[0][:, :2], np.arange(len(inputs(3)[0]))[:, None] % 3.0], axis=1)
    phi = features_of(kernel, count=50)
    value, sizes, outer = phi(X)[0], [0], _features._outer
    monkeypatch.setattr(_features, "_outer", lambda a, b: sizes.append(outer(a, b).size) or outer(a, b))
    weights = np.random.default_rng(1).normal(size=(value.shape[1], 4))
    np.testing.assert_allclose(phi.combine(X, weights)[0], value @ weights, rtol=1e-12, atol=1e-12)
    assert max(sizes) < value.size / 10


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_pullbacks_are_slopes(name):
    phi, (X, _) = features_of(kernel_case(name, 3)), inputs(3)
    rng = np.random.default_rng(1)
    value, pull = phi(X)
    bar, way = rng.normal(size=value.shape), rng.normal(size=X.shape)
    X_bar = pull(bar)
    slope = np.sum(bar * (phi(X + 1e-6 * way)[0] - phi(X - 1e-6 * way)[0])) / 2e-6
    assert abs((0.0 if X_bar is None else np.sum(X_bar * way)) - slope) < 1e-7 * max(1.0, abs(slope))


@pytest.mark.parametrize("name", ["mixed", "product-of-three", "on-linear", "centred-product", "on-centred"])
def test_features_are_the_same_on_every_backend(name, backend):
    kernel, (X, _) = kernel_case(name, 3), inputs(3)
    expected = features_of(kernel)(X)[0]
    moved = to_backend(kernel, backend.name, device=backend.device)
    found = features_of(moved)(backend.array(X))[0]
    assert relative_error(to_numpy(found), expected) < 1e-12


def test_other_kernels_have_none():
    for name in CASES.keys() - set(WITH_FEATURES):
        with pytest.raises(TypeError, match="implement|instead"):
            features_of(kernel_case(name, 3))


def test_features_are_a_tree_of_named_leaves():
    leaves = tree.leaves(features_of(as_arrays(RBF(1.0, 0.5) + Linear(2.0))))
    assert set(leaves) == {"terms.0.factors.0.frequencies", "terms.0.factors.1.level", "terms.1.factors.0.scale"}


@tree.model
class Own(Kernel):
    """A kernel without features."""

    def __call__(self, X: Array, Z: Array | None = None, /):
        raise NotImplementedError

    diag = from_data = check = None


@tree.model
class Cauchy(Stationary):
    """A stationary kernel without a spectral sampler."""

    def profile(self, r2, /):
        g = 1.0 / (1.0 + r2)
        return g, lambda: -g * g


@tree.model
class SampledCauchy(Stationary):
    """The same with one: an RBF kernel of exponentially distributed precision."""

    def profile(self, r2, /):
        g = 1.0 / (1.0 + r2)
        return g, lambda: -g * g

    def frequencies(self, rng, count, width, /):
        return rng.standard_normal((count, width)) * np.sqrt(2.0 * rng.standard_exponential((count, 1)))


def test_a_stationary_kernel_needs_its_spectral_sampler_alone():
    kernel, (X, Z) = as_arrays(SampledCauchy(1.3, (0.7, 1.1, 0.9))), inputs(3)
    phi = features_of(kernel, count=40_000)
    assert backend_of(X) is backend_of(phi(X)[0])
    np.testing.assert_allclose(phi(X)[0] @ phi(Z)[0].T, kernel(X, Z)[0], atol=1.3 * 5 / np.sqrt(40_000))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF(1.0, 1.0) + White(0.1), "White is independent noise.* use the likelihood's noise"),
        (2.0 * (Matern32(1.0, 1.0) * Own()), "Own has no random features, .* implement .random_features"),
        (Cauchy(1.0, 1.0).on((1,)), "Cauchy has no spectral sampler, .* implement .frequencies"),
    ],
)
def test_kernels_without_features_are_named(kernel, message):
    with pytest.raises(TypeError, match=message):
        features_of(as_arrays(kernel))


def test_neighbouring_columns_are_no_copy():
    X = inputs(3)[0]
    assert np.shares_memory(select_columns(X, (1, 2)), X)
    np.testing.assert_array_equal(select_columns(X, (1, 2)), X[:, 1:])
    np.testing.assert_array_equal(select_columns(X, (2, 0)), X[:, [2, 0]])
