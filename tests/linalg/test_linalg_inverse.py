"""Inversion by matrix products: convergence, warm starts, restarts, and ends that always come."""

import math

import numpy as np
import pytest
from helpers import assert_close

from agp.linalg import (
    constant_step,
    gram,
    inverse_factor,
    natural_step,
    safe_step,
    starting_vector,
)
from agp.linalg._inverse_step import COLD_START, largest_eigenvalue, starting_factor


def spd(size, condition, seed=0):
    """Symmetric, eigenvalues spread evenly in the logarithm between 1 / condition and 1."""
    Q = np.linalg.qr(np.random.default_rng([seed, size]).normal(size=(size, size)))[0]
    A = Q @ np.diag(np.geomspace(1.0 / condition, 1.0, size)) @ Q.T
    return 0.5 * (A + A.T)


def residual(A, L):
    return np.linalg.norm(L.T @ A @ L - np.eye(len(A))) / math.sqrt(len(A))


@pytest.mark.parametrize("tolerance", [5e-3, 1e-9])
@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("size", [5, 24])
def test_reaches_the_tolerance_from_cold(size, condition, tolerance, backend, block):
    A = spd(size, condition)
    found = inverse_factor(backend.array(A), tolerance=tolerance)
    L = backend.numpy(found.factor)
    rounding = 1e-15 * condition  # of L^T A L, in which the condition cancels
    assert float(found.residual) < tolerance
    np.testing.assert_allclose(backend.numpy(found.residual), residual(A, L), rtol=1e-6, atol=rounding)
    # about log(condition) / log(2.25) + 4 steps, and as many again for the safety of its step size
    assert float(found.steps) <= 2.0 * (math.log(condition) / math.log(2.25) + 4.0)
    assert float(found.restarts) == 0.0
    np.testing.assert_array_equal(L, np.tril(L))
    assert np.diag(L).min() > 0.0


def test_finds_the_cholesky_factor_of_the_inverse(backend, block):
    A = spd(9, 1e3)
    L = backend.numpy(inverse_factor(backend.array(A), tolerance=1e-12).factor)
    assert_close(L, np.linalg.cholesky(np.linalg.inv(A)), 1e-9)


def test_a_good_start_costs_no_step(backend):
    A = backend.array(spd(9, 1e3))
    first = inverse_factor(A, tolerance=1e-6)
    second = inverse_factor(A, first.factor, tolerance=1e-6, vector=first.vector)
    assert float(second.steps) == 0.0
    np.testing.assert_array_equal(backend.numpy(second.factor), backend.numpy(first.factor))


def test_a_warm_start_takes_fewer_steps(backend):
    A = spd(9, 1e4)
    first = inverse_factor(backend.array(A), tolerance=1e-6)
    moved = backend.array(A + 1e-5 * np.eye(9))
    warm, cold = inverse_factor(moved, first.factor, tolerance=1e-6), inverse_factor(moved, tolerance=1e-6)
    assert 0 < float(warm.steps) < 0.5 * float(cold.steps)
    assert float(warm.restarts) == 0.0


@pytest.mark.parametrize("start", [30.0, 1e6, np.nan], ids=["too large", "far too large", "nan"])
def test_a_hopeless_start_is_thrown_away(start, backend):
    A, hopeless = spd(6, 1e2), np.diag(np.full(6, start))
    assert COLD_START < 30.0**2
    found = inverse_factor(backend.array(A), backend.array(hopeless), tolerance=1e-6)
    assert float(found.restarts) == 1.0
    assert residual(A, backend.numpy(found.factor)) < 1e-6


def test_a_start_that_is_only_bad_is_kept(backend):
    A = spd(6, 1e2)
    found = inverse_factor(backend.array(A), backend.array(4.0 * np.eye(6)), tolerance=1e-6)
    assert float(found.restarts) == 0.0
    assert residual(A, backend.numpy(found.factor)) < 1e-6


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_input_that_is_not_finite_gives_a_nan_residual(bad, warm, backend):
    A = spd(6, 1e2)
    start = backend.array(np.linalg.cholesky(np.linalg.inv(A))) if warm else None
    A[2, 3] = A[3, 2] = bad
    with np.errstate(all="ignore"):  # NumPy says so when it meets infinities
        found = inverse_factor(backend.array(A), start)
    assert np.isnan(backend.numpy(found.residual))
    assert float(found.steps) <= 5.0


def test_an_indefinite_matrix_ends_and_tells(backend):
    found = inverse_factor(backend.array(np.diag([1.0, 1.0, -1.0])), max_steps=30)
    assert not float(found.residual) < 0.1
    assert float(found.steps) <= 30.0


def test_float32_stops_at_its_floor(backend):
    # the floor is about 1.5e-8 times the condition, so 1e-9 is never reached
    A = spd(16, 1e4)
    found = inverse_factor(backend.array(A, "float32"), tolerance=1e-9, max_steps=100)
    steps = float(found.steps)
    L = backend.numpy(found.factor, "float32")
    assert steps < 60.0
    assert residual(A, L.astype(np.float64)) < 1e-2
    backend.check(found.residual, "float32")
    backend.check(found.vector, "float32")


def kernel_matrix(size, columns, jitter):
    X = np.random.default_rng(size).normal(size=(size, columns))
    return np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, axis=-1)) + jitter * np.eye(size)


@pytest.mark.parametrize(("dtype", "jitter"), [("float32", 1e-3), ("float64", 1e-10)])
@pytest.mark.parametrize("size", [100, 300])
def test_a_residual_that_is_all_rounding_needs_no_further_steps(size, dtype, jitter, backend):
    """Otherwise each call of a training run would take as many steps as its patience, to no effect."""
    A = backend.array(kernel_matrix(size, 3, jitter), dtype)
    best = inverse_factor(A, tolerance=0.0, max_steps=200)
    tolerance = 0.01 * float(best.residual)
    found = inverse_factor(A, tolerance=tolerance, max_steps=200)
    assert tolerance < float(found.residual) < 2.5 * float(best.residual)
    assert float(found.steps) < float(best.steps)
    assert float(inverse_factor(A, found.factor, tolerance=tolerance, least_steps=1).steps) == 1.0
    assert float(inverse_factor(A * 1.01, found.factor, tolerance=tolerance).steps) <= 4.0


@pytest.mark.parametrize(("size", "columns"), [(256, 2), (300, 4)])
def test_an_inversion_in_float32_ends_when_it_has_converged(size, columns):
    """Before, the error of the log determinant is one-sided: all eigenvalues of L^T A L are below 1."""
    A = kernel_matrix(size, columns, 1e-4)
    desired = np.linalg.slogdet(A)[1]

    def error(tolerance):
        L = np.asarray(inverse_factor(A.astype(np.float32), tolerance=tolerance).factor, dtype=np.float64)
        return abs(-2.0 * np.sum(np.log(np.diagonal(L))) - desired)

    assert error(1e-4) < max(0.5, 4.0 * error(0.0))


@pytest.mark.parametrize(("dtype", "scales"), [("float32", [1e-30, 1e-15, 1e20, 1e30]), ("float64", [1e-170, 1e160])])
@pytest.mark.parametrize("tolerance", [5e-3, 1e-9])
def test_the_units_of_a_matrix_do_not_matter(tolerance, dtype, scales, backend):
    A = kernel_matrix(40, 2, 0.05)
    plain = inverse_factor(backend.array(A, dtype), tolerance=tolerance)
    for scale in scales:
        found = inverse_factor(backend.array(A * scale, dtype), tolerance=tolerance)
        assert abs(float(found.steps) - float(plain.steps)) <= 1.0
        assert float(found.residual) < max(tolerance, 4.0 * float(plain.residual))


@pytest.mark.slow
def test_max_steps_and_patience_are_obeyed(backend):
    A = backend.array(spd(8, 1e6))
    assert float(inverse_factor(A, tolerance=0.0, max_steps=3).steps) == 3.0
    assert float(inverse_factor(A, tolerance=0.0, max_steps=200, patience=2).steps) < 60.0


@pytest.mark.parametrize("patience", [1, 3, 5])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_nothing_to_improve_lasts_as_long_as_the_patience(rate, patience, backend):
    # at the inverse, without rounding; a shorter step counts by its length
    eye = backend.array(np.eye(4))
    found = inverse_factor(eye, eye, tolerance=0.0, step=constant_step(rate), patience=patience)
    assert float(found.steps) == patience / rate
    np.testing.assert_array_equal(backend.numpy(found.factor), np.eye(4))


def _adversarial(size, largest, seed):
    """A start B0 with the given largest eigenvalue, pushed where truncation to the triangle lets it grow."""
    rng = np.random.default_rng([seed, size])
    L = np.eye(size)
    A = spd(size, 10.0, seed)
    for _ in range(20):  # unit steps from just below the brink, rescaled back to it, search for the worst growth
        B = L.T @ A @ L
        L = L * math.sqrt(largest / np.linalg.eigvalsh(B)[-1])
        trial = L + 0.1 * np.tril(rng.normal(size=(size, size)))
        trial = trial * math.sqrt(largest / np.linalg.eigvalsh(trial.T @ A @ trial)[-1])
        grown = [np.linalg.eigvalsh(_unit(A, x).T @ A @ _unit(A, x))[-1] for x in (L, trial)]
        L = trial if grown[1] > grown[0] and np.diag(trial).min() > 0 else L
    return A, L


def _unit(A, L):
    return natural_step(L, gram(A, L), 1.0)


@pytest.mark.parametrize("largest", [1.0, 1.99, 5.5, 90.0])
@pytest.mark.parametrize("size", [2, 8, 32])
def test_adversarial_starts_converge(size, largest, backend):
    A, L = _adversarial(size, largest, seed=3)
    found = inverse_factor(backend.array(A), backend.array(L), tolerance=1e-8, max_steps=100)
    assert residual(A, backend.numpy(found.factor)) < 1e-8
    assert np.diag(backend.numpy(found.factor)).min() > 0.0


def test_unit_steps_diverge_where_safe_steps_do_not():
    # eigenvalues of B above 5: L (3 - B) / 2 grows. Nothing is caught unless the loop looks.
    A = spd(6, 10.0)
    L = math.sqrt(8.0) * np.eye(6)
    for _ in range(4):
        L = _unit(A, L)
    assert residual(A, L) > 1e3
    assert residual(A, inverse_factor(A, math.sqrt(8.0) * np.eye(6), tolerance=1e-8).factor) < 1e-8


def test_unit_steps_are_taken_back_where_they_grow(backend):
    A = spd(6, 10.0)
    start = backend.array(math.sqrt(8.0) * np.eye(6))
    found = inverse_factor(backend.array(A), start, tolerance=1e-8, step=constant_step(1.0))
    assert residual(A, backend.numpy(found.factor)) < 1e-8


def _merit(A, L):
    return 0.5 * np.trace(L.T @ A @ L) - np.sum(np.log(np.diag(L)))


@pytest.mark.slow
def test_no_accepted_step_increases_the_merit(backend):
    # large off the diagonal of B: a unit step leaves diag L positive and still goes uphill
    A = 2.5 * np.ones((20, 20)) + 0.1 * np.eye(20)
    assert _merit(A, _unit(A, np.eye(20))) > _merit(A, np.eye(20)) + 1.0
    merits = []
    for steps in range(12):
        start, step = backend.array(np.eye(20)), constant_step(1.0)
        found = inverse_factor(backend.array(A), start, tolerance=0.0, max_steps=steps, step=step, patience=20)
        assert float(found.restarts) == 0.0
        merits.append(_merit(A, backend.numpy(found.factor)))
    assert np.diff(merits).max() <= 1e-12
    assert merits[-1] < merits[0] - 1.0


def test_natural_step_is_dense(backend, block):
    A, L = spd(7, 10.0), np.tril(np.random.default_rng(0).normal(size=(7, 7)))
    B = L.T @ A @ L
    Y = np.tril(B) - 0.5 * (np.diag(np.diag(B)) + np.eye(7))
    found = natural_step(backend.array(L), gram(backend.array(A), backend.array(L)), 0.3)
    assert_close(backend.numpy(found), L - 0.3 * L @ Y, 1e-13)


def test_starting_factor_bounds_the_largest_eigenvalue(backend):
    A = spd(12, 1e5)
    L = backend.numpy(starting_factor(backend.array(A)))
    assert np.linalg.eigvalsh(L.T @ A @ L)[-1] <= 1.0 + 1e-12
    np.testing.assert_array_equal(L, np.diag(np.diag(L)))


@pytest.mark.parametrize(("eigenvalue", "gamma"), [(0.5, 1.0), (1.5, 1.0), (3.0, 0.5), (150.0, 0.01)])
def test_safe_step(eigenvalue, gamma, backend):
    found = safe_step(backend.array(0.0), backend.array(eigenvalue))
    np.testing.assert_allclose(backend.numpy(found), gamma, rtol=1e-15)


def test_largest_eigenvalue_is_estimated_from_the_lower_triangle(backend):
    A = spd(12, 1e2)
    lower = backend.array(np.tril(A))
    estimate, vector = largest_eigenvalue(lower, starting_vector(lower), iterations=60)
    np.testing.assert_allclose(backend.numpy(estimate), 1.1, rtol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(backend.numpy(vector)), 1.0, rtol=1e-12)
