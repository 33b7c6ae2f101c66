"""Operations on symmetric matrices given by their lower triangles, against dense formulas, on every library."""

import numpy as np
import pytest
from helpers import NUMPY, assert_close

from agp import get_backend

SIZES = [1, 7, 130, 300]  # of NumPy's, the last two are computed in several tiles or panels
TOLERANCES = {"float64": 1e-12, "float32": 2e-5}
OPERATIONS = {
    "lower_cholesky": lambda B, A, C, X, d: B.lower_cholesky(A, d),
    "lower_cholesky-number": lambda B, A, C, X, d: B.lower_cholesky(A, d[0, ...]),
    "lower_inverse_from_cholesky": lambda B, A, C, X, d: B.lower_inverse_from_cholesky(C),
    "symmetric_product": lambda B, A, C, X, d: B.symmetric_product(A, X),
    "symmetric_product-one": lambda B, A, C, X, d: B.symmetric_product(A, X[:, :1]),
    "symmetric_inner": lambda B, A, C, X, d: B.symmetric_inner(A, C),
}
DENSE = {
    "lower_cholesky": lambda A, L, X, d: np.linalg.cholesky(A + np.diag(d)),
    "lower_cholesky-number": lambda A, L, X, d: np.linalg.cholesky(A + d[0] * np.eye(len(A))),
    "lower_inverse_from_cholesky": lambda A, L, X, d: np.linalg.inv(L @ L.T),
    "symmetric_product": lambda A, L, X, d: A @ X,
    "symmetric_product-one": lambda A, L, X, d: A @ X[:, :1],
    "symmetric_inner": lambda A, L, X, d: np.sum(A * (L + np.tril(L, -1).T)),
}


def matrices(size):
    """A positive definite matrix, a well conditioned factor, vectors and positive numbers."""
    rng = np.random.default_rng(size)
    root = rng.normal(size=(size, size)) / size**0.5
    factor = np.tril(rng.normal(size=(size, size)) / size, -1) + np.diag(1.0 + rng.uniform(size=size))
    return root @ root.T + np.eye(size), factor, rng.normal(size=(size, 3)), 0.5 + rng.uniform(size=size)


def hidden(A, value=np.nan):
    """The matrix with other entries above the diagonal."""
    return np.where(np.tri(len(A), dtype=bool), A, value)


def low(x):
    """What is specified of a result: the lower triangle of a square matrix."""
    return np.tril(x) if x.ndim == 2 and x.shape[0] == x.shape[1] > 1 else x


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_dense_formulas(name, size, dtype, backend):
    arrays = [x.astype(dtype).astype(np.float64) for x in matrices(size)]
    here = [backend.array(x, dtype) for x in arrays]
    found = OPERATIONS[name](get_backend(backend.name), *here)
    assert_close(low(backend.numpy(found, dtype)), low(np.asarray(DENSE[name](*arrays))), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_numpy_does_not_read_above_the_diagonal(name, size, dtype):
    A, L, X, d = (x.astype(dtype) for x in matrices(size))
    B = get_backend("numpy")
    expected = OPERATIONS[name](B, A, L, X, d)
    before = [x.copy() for x in (A, L, X, d)]
    found = OPERATIONS[name](B, hidden(A), hidden(L), X, d)
    assert_close(low(NUMPY.numpy(found, dtype)), low(expected), 1e-14 if dtype == "float64" else 1e-6)
    for x, old in zip((A, L, X, d), before, strict=True):
        np.testing.assert_array_equal(x, old)


@pytest.mark.parametrize("size", [7, 130])
def test_what_is_above_the_diagonal_is_not_used_by_any_library(size, backend):
    # other libraries may read these entries, and multiply them by zero
    arrays = A, L, X, d = matrices(size)
    here = [backend.array(x) for x in (hidden(A, 3.0), hidden(L, -2.0), X, d)]
    for name in ("lower_inverse_from_cholesky", "symmetric_product", "symmetric_inner"):
        found = OPERATIONS[name](get_backend(backend.name), *here)
        assert_close(low(backend.numpy(found)), low(np.asarray(DENSE[name](*arrays))), 1e-12, name)


@pytest.mark.parametrize("bad", [-1e3, np.nan])
@pytest.mark.parametrize("size", [7, 130])
def test_a_failed_factor_has_nan_on_its_diagonal(size, bad, backend):
    A, _, _, d = matrices(size)
    A[size // 2, size // 2] = bad
    found = get_backend(backend.name).lower_cholesky(backend.array(A), backend.array(d))
    assert np.isnan(np.diag(backend.numpy(found))).any()


@pytest.mark.parametrize("size", SIZES)
def test_tiles_make_lower_triangles(size, backend):
    A, C, *_ = matrices(size)
    here, calls = [backend.array(x) for x in (A, C)], []

    def rows(start, stop):
        calls.append((start, stop))
        return tuple(x[start:stop, :stop] for x in here)

    found = get_backend(backend.name).lower_tiles(rows, size)
    for x, expected in zip(found, (A, C), strict=True):
        np.testing.assert_array_equal(np.tril(backend.numpy(x)), np.tril(expected))
    starts, stops = zip(*calls, strict=True)
    assert starts == (0, *stops[:-1])
    assert stops[-1] == size
    assert len(calls) == 1 or backend.name in ("numpy",)


def test_numpy_skips_most_of_what_lies_above_the_diagonal():
    entries = []

    def rows(start, stop):
        entries.append((stop - start) * stop)
        return (np.zeros((stop - start, stop), dtype="float32"),)

    (found,) = get_backend("numpy").lower_tiles(rows, 1000)
    assert found.dtype == np.float32
    assert sum(entries) < 0.55 * 1000**2
    assert max(entries) <= 2**15


@pytest.mark.parametrize("start", [0, 3, 60])
def test_a_hollow_tile_has_zeros_on_the_diagonal(start, backend):
    tile = np.random.default_rng(start).normal(size=(5, start + 5))
    found = backend.numpy(get_backend(backend.name).hollow_tile(backend.array(tile.copy()), start))
    rows = np.arange(5)
    tile[rows, start + rows] = 0.0
    np.testing.assert_array_equal(found, tile)
