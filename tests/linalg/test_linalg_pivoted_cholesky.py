"""The partial Cholesky factorisation against LAPACK's pivoted one, and preconditioners against dense matrices."""

import numpy as np
import pytest
import scipy.linalg.lapack
from helpers import JAX, NUMPY, assert_close

from agp.backend import backend_of, get_backend
from agp.linalg import pivoted_cholesky, preconditioner

N, RANK, NOISE = 14, 5, 0.3


def covariance(seed=0, rank=None):
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(N, rank or N)) * np.geomspace(2.0, 0.1, rank or N)
    return C @ C.T


def factor(K, rank, diagonal=None):
    xp = backend_of(K).xp
    diagonal = xp.linalg.diagonal(K) if diagonal is None else diagonal
    return pivoted_cholesky(lambda i: xp.take(K, i, axis=1), diagonal, rank)


def test_it_is_the_start_of_the_pivoted_factorisation(backend):
    K = covariance()
    found = factor(backend.array(K), RANK)
    L, pivots, _, _ = scipy.linalg.lapack.dpstrf(K, lower=1)
    expected = np.empty((N, RANK))
    expected[pivots - 1] = np.tril(L)[:, :RANK]
    assert_close(backend.numpy(found.U), expected, 1e-12)
    assert backend.numpy(found.pivots, "int64").tolist() == (pivots[:RANK] - 1).tolist()
    assert_close(backend.numpy(found.rest), np.diag(K - expected @ expected.T), 1e-12)


def test_all_rows_give_the_matrix_back():
    K = covariance()
    found = factor(K, N)
    assert_close(found.U @ found.U.T, K, 1e-12)
    assert sorted(found.pivots.tolist()) == list(range(N))


def test_of_equal_rows_the_first_is_taken_whatever_the_last_digits(backend):
    K = np.eye(N)
    K[7, 7] += 1e-12
    assert backend.numpy(factor(backend.array(K), 3).pivots, "int64").tolist() == [0, 1, 2]


def test_an_exhausted_rank_leaves_zeros(backend):
    K = covariance(rank=3)
    U = backend.numpy(factor(backend.array(K), 6).U)
    assert_close(U @ U.T, K, 1e-12)
    assert np.all(U[:, 3:] == 0.0)


def test_columns_that_are_rounded_say_so():
    # a float32 column under a float64 factor: what rounding leaves of a rank of 3 is no pivot
    K = covariance(rank=3)
    rounded = K.astype("float32").astype("float64")
    U = pivoted_cholesky(lambda i: rounded[:, i], np.diag(K), 6, precision=float(np.finfo("float32").eps)).U
    assert np.all(U[:, 3:] == 0.0)
    assert np.any(pivoted_cholesky(lambda i: rounded[:, i], np.diag(K), 6).U[:, 3:] != 0.0)


@pytest.mark.parametrize("rank", [RANK, None])
def test_the_preconditioner_is_the_dense_matrix(backend, rank):
    rng = np.random.default_rng(1)
    U = None if rank is None else rng.normal(size=(N, rank))
    P = NOISE * np.eye(N) + (0.0 if U is None else U @ U.T)
    found = preconditioner(None if U is None else backend.array(U), backend.array(NOISE), N)
    x = rng.normal(size=(N, 3))
    assert_close(backend.numpy(found.solve(backend.array(x))), np.linalg.solve(P, x), 1e-12)
    assert float(backend.numpy(found.log_det)) == pytest.approx(np.linalg.slogdet(P)[1], rel=1e-12)
    # one probe for each source of noise: the sum of the squares is the covariance
    noise = np.eye(N + (rank or 0))
    low = None if rank is None else backend.array(noise[:rank])
    z = backend.numpy(found.sample(low, backend.array(noise[rank or 0 :])))
    assert_close(z @ z.T, P, 1e-12)


def test_the_preconditioner_keeps_its_digits_where_the_noise_is_small():
    U, noise = 1e3 * covariance()[:, :RANK], 1e-6
    found = preconditioner(U, np.asarray(noise), N)
    eigenvalues = np.linalg.eigvalsh(U.T @ U)
    expected = (N - RANK) * np.log(noise) + np.sum(np.log(eigenvalues + noise))
    assert float(found.log_det) == pytest.approx(expected, rel=1e-10)
    inside = U @ np.ones((RANK, 1))
    assert np.max(np.abs(found.solve(inside))) < 1e-3 * np.max(np.abs(inside)) / noise


def test_float32_stays_float32(backend):
    K = covariance()
    found = factor(backend.array(K, "float32"), RANK)
    assert_close(backend.numpy(found.U, "float32"), factor(K, RANK).U, 1e-5)


def test_it_compiles():
    pytest.importorskip("jax", reason="jax is not installed: not executed")
    K = JAX.array(covariance())
    compiled = get_backend("jax").compile(lambda K: factor(K, RANK).U)(K)
    assert_close(JAX.numpy(compiled), factor(NUMPY.array(covariance()), RANK).U, 1e-12)
