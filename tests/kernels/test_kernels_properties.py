"""Facts that hold for every kernel, on random parameters and inputs."""

import numpy as np
import pytest
from helpers import as_arrays, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import CASES, inputs, kernel_case, sees_white_noise

from agp import tree
from agp.kernels import (
    KERNELS,
    RBF,
    ActiveDims,
    Centred,
    LevelCovariance,
    Linear,
    Periodic,
    Projected,
    RationalQuadratic,
    Stationary,
    Warped,
)

EXAMPLES = settings(max_examples=15, deadline=None)
SEEDS = st.integers(0, 2**16)
WIDTHS = st.integers(3, 7)


def _perturbed(name, width, seed):
    """A case whose leaves are multiplied by factors of 1/3 to 3."""
    rng = np.random.default_rng(seed)
    kernel = kernel_case(name, width)
    return tree.with_leaves(
        kernel, {k: v * np.exp(rng.uniform(-1.1, 1.1, np.shape(v))) for k, v in tree.leaves(kernel).items()}
    )


@pytest.mark.parametrize("name", CASES)
@EXAMPLES
@given(seed=SEEDS, width=WIDTHS)
def test_covariances_are_positive_semidefinite(name, seed, width):
    kernel = _perturbed(name, width, seed)
    X, Z = inputs(width, rows=7, others=4, seed=seed)
    X = np.concatenate([X, X[:3]])  # with equal rows
    K, diag = kernel(X)[0], kernel.diag(X)[0]
    largest = np.max(np.abs(K))
    assert np.min(np.linalg.eigvalsh(K)) >= -1e-7 * largest  # roots of what an expansion leaves between equal rows
    assert_close(np.diag(K), diag, 1e-13)
    rounding = 1e-14 * largest**2 if tree.nodes(kernel, Centred) else 1e-24  # variances are differences
    bound = (1.0 + 1e-12) * np.outer(diag, diag) + rounding
    assert np.all(bound >= K**2)
    both = kernel(np.concatenate([X, Z]))[0]
    if not sees_white_noise(name):
        np.testing.assert_allclose(both[:10, 10:], kernel(X, Z)[0], rtol=0, atol=1e-12 * np.max(np.abs(both)))
    np.testing.assert_allclose(kernel(X, Z)[0], kernel(Z, X)[0].T, rtol=0, atol=1e-12 * np.max(np.abs(both)))


def test_every_kernel_has_a_case_with_a_formula():
    of_others = {ActiveDims, Centred, Projected, Warped}  # kernels of kernels, which have no names in text
    of_one = {LevelCovariance}  # takes one column, so that its cases select it
    assert {type(case.build(3)) for case in CASES.values() if case.textbook} | of_one == of_others | set(
        KERNELS.values()
    )
    assert any(tree.nodes(case.build(3), LevelCovariance) for case in CASES.values() if case.textbook)


def test_kernels_are_linearised_unless_their_cases_say_otherwise():
    for name, case in CASES.items():
        kernel = kernel_case(name, 3)
        assert (kernel.linearise(np.zeros((1, 3))) is None) == ("linearise" in case.without)
        assert (kernel.linearise_groups(np.zeros((1, 1, 3))) is None) == ("linearise_groups" in case.without)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.textbook])
@EXAMPLES
@given(seed=SEEDS, width=WIDTHS)
def test_covariances_are_those_of_the_formula(name, seed, width):
    kernel = _perturbed(name, width, seed)
    X, Z = inputs(width, seed=seed)
    K = kernel(X, Z)[0]
    expected = CASES[name].textbook(kernel, X[:, None, :], Z)
    np.testing.assert_allclose(K, expected, rtol=0, atol=1e-13 * np.max(np.abs(K)) + 1e-16)


STATIONARY_CASES = [name for name in CASES if isinstance(kernel_case(name, 3), Stationary) or name == "scaled"]


@pytest.mark.parametrize("name", STATIONARY_CASES)
@EXAMPLES
@given(seed=SEEDS, width=WIDTHS)
def test_euler_identity(name, seed, width):
    # k depends on x / ell and z / ell only: scaling them all changes nothing
    kernel = _perturbed(name, width, seed)
    X, Z = inputs(width, seed=seed)
    bar = np.random.default_rng(seed).normal(size=(9, 5))
    kernel_bar, X_bar, Z_bar = kernel(X, Z)[1](bar)
    leaf = next(leaf for leaf in tree.leaves(kernel) if leaf.endswith("lengthscale"))
    by_scale = np.sum(tree.leaves(kernel)[leaf] * tree.leaves(kernel_bar)[leaf])
    by_inputs = -np.sum(X * X_bar) - np.sum(Z * Z_bar)
    size = np.sum(np.abs(X * X_bar)) + np.sum(np.abs(Z * Z_bar))
    assert abs(by_scale - by_inputs) <= 1e-11 * size


@pytest.mark.parametrize("name", [*STATIONARY_CASES, "periodic", "periodic-ard", "periodic-mixed", "periodic-centred"])
@EXAMPLES
@given(seed=SEEDS, width=WIDTHS)
def test_a_shift_changes_nothing(name, seed, width):
    kernel = _perturbed(name, width, seed)
    X, Z = inputs(width, seed=seed)
    K, pullback = kernel(X, Z)
    np.testing.assert_allclose(kernel(X + 2.0, Z + 2.0)[0], K, rtol=0, atol=1e-12 * np.max(np.abs(K)))
    _, X_bar, Z_bar = pullback(K)
    size = np.sum(np.abs(X_bar)) + np.sum(np.abs(Z_bar))
    np.testing.assert_allclose(np.sum(X_bar, axis=0), -np.sum(Z_bar, axis=0), rtol=0, atol=1e-12 * size)


@EXAMPLES
@given(seed=SEEDS, width=WIDTHS, turns=st.integers(-5, 5))
def test_a_period_changes_nothing(seed, width, turns):
    kernel = _perturbed("periodic-ard", width, seed)
    X, Z = inputs(width, seed=seed)
    K = kernel(X, Z)[0]
    np.testing.assert_allclose(kernel(X + turns * kernel.period, Z)[0], K, rtol=0, atol=1e-12 * kernel.variance)


@EXAMPLES
@given(seed=SEEDS, factor=st.floats(0.2, 5.0))
def test_linear_is_homogeneous(seed, factor):
    kernel = _perturbed("linear-ard", 3, seed)
    X, Z = inputs(3, seed=seed)
    K = kernel(X, Z)[0]
    np.testing.assert_allclose(kernel(factor * X, Z)[0], factor * K, rtol=0, atol=1e-12 * factor * np.max(np.abs(K)))
    scaled = Linear(factor * kernel.variance)
    np.testing.assert_allclose(scaled(X, Z)[0], factor * K, rtol=0, atol=1e-12 * factor * np.max(np.abs(K)))


def test_rational_quadratic_tends_to_rbf():
    X, Z = inputs(3)
    rbf = as_arrays(RBF(1.3, 0.9))(X, Z)[0]
    error = [np.max(np.abs(as_arrays(RationalQuadratic(1.3, 0.9, a))(X, Z)[0] - rbf)) for a in (1e3, 1e5, 1e7)]
    assert error[0] < 1e-2
    assert error[1] < 1e-4
    assert error[2] < 1e-6


def test_periodic_tends_to_rbf():
    # of a period that is long, sin(pi d / p) / ell ~ d / (ell p / pi)
    X, Z = inputs(3)
    K = as_arrays(Periodic(1.3, np.pi / 1e4, 1e4))(X, Z)[0]
    np.testing.assert_allclose(K, as_arrays(RBF(1.3, 1.0))(X, Z)[0], rtol=0, atol=1e-6)
