"""Matrices larger than the blocks of the blocked algorithms, of sizes that no block divides."""

import numpy as np
import pytest
import scipy.linalg
from helpers import assert_close

from agp.backend import get_backend
from agp.linalg import cholesky_pullback, relative_cholesky_pullback, solve_each_lower

M, N = 301, 7


def factor(seed=0):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((M, M))
    return np.linalg.cholesky(A @ A.T / M + 0.1 * np.eye(M)), rng


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_numpy_solves_by_blocks(dtype, transpose, order):
    L, rng = factor()
    B = np.asarray(rng.standard_normal((M, N)), dtype=dtype, order=order)
    given = B.copy()
    found = get_backend("numpy").solve_triangular(L.astype(dtype), B, transpose=transpose)
    expected = scipy.linalg.solve_triangular(L, B.astype("float64"), lower=True, trans=int(transpose))
    assert found.dtype == dtype
    assert np.array_equal(B, given)
    assert_close(found, expected, 1e-12 if dtype == "float64" else 1e-4)


def test_numpy_reads_only_the_lower_triangle():
    L, rng = factor()
    B = rng.standard_normal((M, N))
    solve = get_backend("numpy").solve_triangular
    spoilt = L + np.triu(rng.standard_normal((M, M)), k=1)
    assert np.array_equal(solve(L, B), solve(spoilt, B))
    assert np.array_equal(solve(L, B, transpose=True), solve(spoilt, B, transpose=True))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("transpose", [False, True])
def test_lower_triangles_of_solutions(transpose, outputs, backend):
    L, rng = factor()
    C = np.tril(rng.standard_normal((outputs, M, M)))
    found = backend.numpy(solve_each_lower(backend.array(L), backend.array(C), transpose=transpose))
    expected = np.tril(np.linalg.inv(L.T if transpose else L) @ C)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-11 if found.dtype == np.float64 else 1e-3)


def test_the_adjoint_by_blocks(backend):
    # sym(L^-T Phi(S) L^-1), Phi the lower triangle with its diagonal halved
    L, rng = factor()
    S = rng.standard_normal((M, M))
    found = backend.numpy(relative_cholesky_pullback(backend.array(L), backend.array(S)))
    inverse = np.linalg.inv(L)
    one_sided = inverse.T @ (np.tril(S, k=-1) + np.diag(np.diag(S)) / 2) @ inverse
    assert_close(found, (one_sided + one_sided.T) / 2, 1e-9 if found.dtype == np.float64 else 1e-2)
    assert np.array_equal(found, found.T)
    L_bar = np.tril(inverse.T @ np.tril(S))  # S is the lower triangle of L^T L_bar
    S = np.tril(L.T @ L_bar)
    upper = np.triu(rng.standard_normal((M, M)), k=1)
    direct = backend.numpy(cholesky_pullback(backend.array(L), backend.array(L_bar + upper)))
    one_sided = inverse.T @ (np.tril(S, k=-1) + np.diag(np.diag(S)) / 2) @ inverse
    assert_close(direct, (one_sided + one_sided.T) / 2, 1e-9 if direct.dtype == np.float64 else 1e-2)
    assert np.array_equal(direct, direct.T)
