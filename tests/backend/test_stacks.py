"""Stacks of triangular matrices, the smallest entries of rows, sums at row numbers, and stacks of lower triangles."""

import numpy as np
import pytest
from helpers import assert_close

from agp.backend import get_backend

SHAPES = [(1, 1), (3, 5), (6, 7), (5, 16), (5, 33), (8, 32), (2, 40)]
"""The number of matrices and their size, on both sides of the limits of NumPy's plug-in."""


def factors(groups, M, seed=0):
    rng = np.random.default_rng([seed, groups, M])
    return np.tril(rng.normal(size=(groups, M, M))) / M**0.5 + 2.0 * np.eye(M)


def numbers_of(place, found):
    host = np.asarray(get_backend(place.name).to_numpy(found))
    assert host.dtype.kind == "i"
    return host


@pytest.mark.cover(2)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_stacks_are_solved_one_by_one(shape, columns, transpose, backend):
    L, rhs = factors(*shape), np.random.default_rng(1).normal(size=(*shape, columns))
    B, there, given = get_backend(backend.name), backend.array(L), backend.array(rhs)
    found = backend.numpy(B.solve_triangular(there, given, transpose=transpose))
    assert_close(found, np.linalg.solve(np.swapaxes(L, 1, 2) if transpose else L, rhs), 1e-12)
    np.testing.assert_array_equal(backend.numpy(given), rhs)


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_of_larger_stacks_are_solved(shape):
    # slices of factors, and right-hand sides that are not contiguous
    L = factors(shape[0], shape[1] + 1)[:, :-1, :-1]
    rhs = np.random.default_rng(1).normal(size=(*shape, 3))[:, :, ::2]
    B = get_backend("numpy")
    for transpose in (False, True):
        expected = np.linalg.solve(np.swapaxes(L, 1, 2) if transpose else L, rhs)
        assert_close(B.solve_triangular(L, rhs, transpose=transpose), expected, 1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_stacks_are_factorised_one_by_one(shape, backend):
    L = factors(*shape)
    A = L @ np.swapaxes(L, 1, 2)
    given = backend.array(A)
    assert_close(backend.numpy(get_backend(backend.name).cholesky(given)), np.linalg.cholesky(A), 1e-12)
    np.testing.assert_array_equal(backend.numpy(given), A)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_a_matrix_that_is_not_positive_definite_is_nan_alone(shape, backend):
    L = factors(*shape)
    A = L @ np.swapaxes(L, 1, 2)
    A[1, -1, -1] = -1.0
    found = backend.numpy(get_backend(backend.name).cholesky(backend.array(A)))
    others = np.arange(shape[0]) != 1
    assert_close(found[others], np.linalg.cholesky(A[others]), 1e-12)
    assert not np.isfinite(np.diagonal(found[1])).all()


@pytest.mark.parametrize("M", [5, 40])
def test_numpy_reads_lower_triangles_only(M):
    L = factors(6, M)
    A = L @ np.swapaxes(L, 1, 2)
    hidden = np.where(np.triu(np.ones((M, M)), 1) > 0.0, 1e6, A)
    assert_close(get_backend("numpy").cholesky(hidden), np.linalg.cholesky(A), 1e-12)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_the_smallest_entries_of_each_row(count, backend):
    A = np.random.default_rng(0).normal(size=(6, 9))
    found = numbers_of(backend, get_backend(backend.name).smallest(backend.array(A), count))
    np.testing.assert_array_equal(np.sort(found, axis=1), np.sort(np.argsort(A, axis=1)[:, :count], axis=1))


def test_infinite_entries_are_the_last(backend):
    A = np.array([[np.inf, 1.0, np.inf, 0.5], [3.0, 2.0, 1.0, np.inf]])
    found = numbers_of(backend, get_backend(backend.name).smallest(backend.array(A), 2))
    np.testing.assert_array_equal(np.sort(found, axis=1), [[1, 3], [1, 2]])


@pytest.mark.parametrize("columns", [1, 3])
def test_rows_are_summed_at_their_numbers(columns, backend):
    rng = np.random.default_rng(0)
    x, index = rng.normal(size=(40, columns)), rng.choice([0, 2, 3, 6], size=40)
    expected = np.zeros((8, columns))
    np.add.at(expected, index, x)
    found = get_backend(backend.name).sum_at(backend.array(x), backend.array(index, "int64"), 8)
    np.testing.assert_allclose(backend.numpy(found), expected, rtol=1e-12, atol=1e-13)


def test_no_rows_are_summed_to_zero():
    found = get_backend("numpy").sum_at(np.zeros((0, 2)), np.zeros(0, dtype=np.int64), 3)
    np.testing.assert_array_equal(found, np.zeros((3, 2)))


@pytest.mark.parametrize("M", [5, 150, 300])
@pytest.mark.parametrize("groups", [None, 3])
def test_lower_triangles_of_stacks(groups, M, backend):
    A = np.random.default_rng(0).normal(size=(*(() if groups is None else (groups,)), M, M))
    there, calls = backend.array(A), []

    def rows(start, stop):
        calls.append((start, stop))
        return there[..., start:stop, :stop], 2.0 * there[..., start:stop, :stop]

    found = get_backend(backend.name).lower_tiles(rows, M, groups=groups)
    for x, expected in zip(found, (A, 2.0 * A), strict=True):
        np.testing.assert_array_equal(np.tril(backend.numpy(x)), np.tril(expected))
    assert calls[0][0] == 0
    assert calls[-1][1] == M
    assert len(calls) == 1 or backend.name == "numpy"
