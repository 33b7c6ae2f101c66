"""Entries of matrices that are too small to matter are cleared, because subnormal numbers are slow."""

import numpy as np
import pytest

from agp.backend import backend_of
from agp_backends._lapack import clear_tiny, inverse_upper

KINDS = (np.float32, np.float64)


def is_subnormal(x):
    return (x != 0.0) & (np.abs(x) < np.finfo(x.dtype).smallest_normal)


def distant(kind, rows=400):
    """Covariances of rows on a line, many of which are subnormal, without the diagonal's noise."""
    rng = np.random.default_rng(0)
    x = rng.permutation(np.linspace(0.0, 1.0, rows)) * (-1.2 * np.log(np.finfo(kind).smallest_normal))
    with np.errstate(under="ignore"):
        return np.exp(-np.abs(x[:, None] - x[None, :])).astype(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_only_entries_that_do_not_matter_are_cleared(kind):
    K = distant(kind)
    assert np.mean(is_subnormal(K)) > 0.01
    found = clear_tiny(K.copy())
    least = np.finfo(kind).eps ** 1.5
    np.testing.assert_array_equal(found, np.where(least > K, 0.0, K))


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_without_tiny_entries_are_kept_to_the_bit(kind):
    K = distant(kind)
    K += kind(np.finfo(kind).smallest_normal ** 0.5)
    np.testing.assert_array_equal(clear_tiny(K.copy()), K)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", [np.nan, 1e30, 1e-40])
def test_entries_above_the_diagonal_of_a_lower_triangle_are_ignored(kind, other):
    K = distant(kind)
    above = np.triu(np.ones(K.shape, dtype=bool), 1)
    found = clear_tiny(np.where(above, kind(other), K), lower=True)
    np.testing.assert_array_equal(np.tril(found), np.tril(clear_tiny(K.copy())))
    near = np.tril(np.full((50, 50), kind(0.5))) + np.triu(np.full((50, 50), kind(other)), 1)
    np.testing.assert_array_equal(np.tril(clear_tiny(near.copy(), lower=True)), np.tril(near))


@pytest.mark.parametrize("kind", KINDS)
def test_factors_and_inverses_have_few_subnormal_entries(kind):
    K, B = distant(kind), backend_of(np.ones(1))
    before = K.copy()
    L = np.tril(B.lower_cholesky(K, np.full(len(K), 0.1, dtype=kind)))
    np.testing.assert_array_equal(K, before)
    noisy, tolerance = K.astype(float) + 0.1 * np.eye(len(K)), 20.0 * np.finfo(kind).eps
    np.testing.assert_allclose(L.astype(float) @ L.T.astype(float), noisy, atol=tolerance)
    inverse = np.tril(B.lower_inverse_from_cholesky(L))
    np.testing.assert_allclose(inverse, np.tril(np.linalg.inv(noisy)), atol=100.0 * tolerance)
    assert not is_subnormal(L).any()
    assert not is_subnormal(inverse_upper(L.T)[:128, 256:]).any()
