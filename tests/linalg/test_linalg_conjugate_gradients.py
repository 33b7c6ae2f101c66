"""Conjugate gradients against dense solves, and Lanczos quadrature against the matrix logarithm."""

import numpy as np
import pytest
from helpers import JAX, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from agp.backend import get_backend
from agp.linalg import Solution, conjugate_gradients, log_quadrature
from agp.linalg._conjugate_gradients import _tridiagonal

N, COLUMNS = 12, 3


def problem(seed=0, size=N, condition=50.0):
    """A symmetric A with that condition number, a preconditioner P, and right-hand sides, on the host."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(size, size)))[0]
    A = Q @ np.diag(np.geomspace(1.0, condition, size)) @ Q.T
    C = 0.3 * rng.normal(size=(size, size))
    return 0.5 * (A + A.T), C @ C.T + np.eye(size), rng.normal(size=(size, COLUMNS))


def solved(place, A, P, b, **options):
    inverse = np.eye(len(A)) if P is None else np.linalg.inv(P)

    def run(A, inverse, b):
        solve = None if P is None else lambda r: inverse @ r
        return tuple(conjugate_gradients(lambda v: A @ v, b, solve=solve, **options))

    found = get_backend(place.name).compile(run)(place.array(A), place.array(inverse), place.array(b))
    return Solution(*found)


def lanczos(A, start, steps):
    """The Lanczos matrix with all vectors orthogonalised twice."""
    Q = [start / np.linalg.norm(start)]
    for _ in range(steps - 1):
        q = A @ Q[-1]
        for _ in range(2):
            q = q - np.stack(Q, axis=1) @ (np.stack(Q) @ q)
        Q.append(q / np.linalg.norm(q))
    basis = np.stack(Q, axis=1)
    return basis.T @ A @ basis


@pytest.mark.parametrize("preconditioned", [False, True])
def test_the_solution_is_that_of_a_dense_solve(backend, preconditioned):
    A, P, b = problem()
    b[:, 1] = 0.0
    found = solved(backend, A, P if preconditioned else None, b, tolerance=1e-12, max_iterations=100)
    assert_close(backend.numpy(found.x), np.linalg.solve(A, b), 1e-10)
    residual = backend.numpy(found.residual)
    assert residual[1] == 0.0
    assert np.all(residual <= 1e-12)
    assert 2 <= float(backend.numpy(found.iterations)) <= N + 3


def test_the_coefficients_are_those_of_lanczos(backend):
    A, P, b = problem()
    found = solved(backend, A, P, b, tolerance=1e-14, max_iterations=100, coefficients=6)
    T = backend.numpy(_tridiagonal(found.steps.mT, found.ratios.mT))
    root = np.linalg.cholesky(P)
    inside = np.linalg.solve(root, np.linalg.solve(root, A).T)
    for k in range(COLUMNS):
        assert_close(np.abs(T[k]), np.abs(lanczos(inside, np.linalg.solve(root, b[:, k]), 6)), 1e-9)


def test_the_quadrature_with_every_step_is_the_matrix_logarithm(backend):
    A, P, b = problem()
    found = solved(backend, A, P, b, tolerance=1e-14, max_iterations=100, coefficients=40)
    root = np.linalg.cholesky(P)
    w, V = np.linalg.eigh(np.linalg.solve(root, np.linalg.solve(root, A).T))
    start = np.linalg.solve(root, b)
    start = V.T @ (start / np.linalg.norm(start, axis=0))
    assert_close(backend.numpy(log_quadrature(found.steps, found.ratios)), np.log(w) @ start**2, 1e-9)


def test_columns_stop_one_by_one(backend):
    # an eigenvector needs one step; the other column goes on, and what has stopped stays as it is
    A, b = np.diag(np.arange(1.0, 6.0)), np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    found = solved(backend, A, None, b, tolerance=1e-10, coefficients=8)
    steps = backend.numpy(found.steps)
    assert steps[0, 0] == pytest.approx(0.5)
    assert np.all(steps[1:, 0] == 0.0)
    assert np.count_nonzero(steps[:, 1]) == 5
    logs = backend.numpy(log_quadrature(found.steps, found.ratios))
    assert_close(logs, np.array([np.log(2.0), np.mean(np.log(np.arange(1.0, 6.0)))]), 1e-9)


def test_the_cap_is_kept_and_the_residual_is_told(backend):
    A, _, b = problem(condition=1e4)
    found = solved(backend, A, None, b, tolerance=1e-12, max_iterations=4)
    assert float(backend.numpy(found.iterations)) == 4.0
    x = backend.numpy(found.x)
    expected = np.linalg.norm(b - A @ x, axis=0) / np.linalg.norm(b, axis=0)
    assert_close(backend.numpy(found.residual), expected, 1e-8)
    assert np.all(expected > 1e-3)


def test_an_indefinite_matrix_stops_it(backend):
    _, _, b = problem()
    found = solved(backend, -np.eye(N), None, b, max_iterations=50)
    assert float(backend.numpy(found.iterations)) == 1.0
    assert np.all(backend.numpy(found.x) == 0.0)
    assert np.all(backend.numpy(found.residual) == 1.0)


def test_coefficients_that_are_not_finite_give_nan(backend):
    steps = backend.array(np.full((3, 2), np.nan))
    assert np.all(np.isnan(backend.numpy(log_quadrature(steps, steps))))
    good = backend.array(np.ones((3, 2)))
    assert np.all(np.isnan(backend.numpy(log_quadrature(good, steps))))


def test_what_is_not_finite_shows(backend):
    _, _, b = problem()
    found = solved(backend, np.full((N, N), np.nan), None, b, max_iterations=50, coefficients=3)
    assert float(backend.numpy(found.iterations)) == 1.0
    assert np.all(np.isnan(backend.numpy(found.x)))
    assert np.all(np.isnan(backend.numpy(log_quadrature(found.steps, found.ratios))))


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(1.5, 1e3))
@settings(max_examples=25, deadline=None)
def test_the_quadratic_form_grows_to_its_limit(seed, condition):
    # b^T x_k = |x_k|_A^2 never falls and never exceeds b^T A^-1 b: variances from early iterates are too large
    A, P, b = problem(seed, condition=condition)
    inverse = np.linalg.inv(P)
    limit = np.sum(b * np.linalg.solve(A, b), axis=0)
    before = np.zeros(COLUMNS)
    for count in range(1, 7):
        x = conjugate_gradients(
            lambda v: A @ v, b, solve=lambda r: inverse @ r, tolerance=1e-14, max_iterations=count
        ).x
        now = np.sum(b * x, axis=0)
        assert np.all(now >= before - 1e-9 * limit)
        assert np.all(now <= limit * (1.0 + 1e-9))
        before = now


def test_the_loop_runs_on_the_device_under_a_compiler():
    pytest.importorskip("jax", reason="jax is not installed: not executed")
    A, P, b = problem()
    inverse = JAX.array(np.linalg.inv(P))

    def run(A, b):
        return conjugate_gradients(
            lambda v: A @ v, b, solve=lambda r: inverse @ r, tolerance=1e-12, max_iterations=100, coefficients=5
        )

    compiled = get_backend("jax").compile(run)(JAX.array(A), JAX.array(b))
    for found, expected in zip(compiled, run(JAX.array(A), JAX.array(b)), strict=True):
        np.testing.assert_allclose(JAX.numpy(found), JAX.numpy(expected), rtol=0.0, atol=1e-9)
    assert_close(JAX.numpy(compiled.x), np.linalg.solve(A, b), 1e-10)
