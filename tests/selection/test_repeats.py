"""Rows with equal inputs: the row that replaces them, and rows that only have the same hash."""

import numpy as np
import pytest

from agp.selection._repeats import merge_repeats


def data(N=80, P=2, seed=0, sites=30):
    """Rows of which many have equal inputs, with weights and noise of few values."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sites, 3))[rng.integers(0, sites, size=N)]
    return X, rng.normal(size=(N, P)), rng.uniform(0.5, 3.0, size=N), rng.choice([0.1, 0.2], size=N)


def by_loop(X, y, weights, noise):
    """The merged rows, one group after the other."""
    groups = {}
    for i in range(len(X)):
        groups.setdefault((*X[i], 0.0 if noise is None else noise[i]), []).append(i)
    w = np.ones(len(X)) if weights is None else weights
    found = []
    for rows in groups.values():
        mean = np.average(y[rows], axis=0, weights=w[rows])
        found.append((X[rows[0]], mean, w[rows].sum(), np.sum(w[rows, None] * (y[rows] - mean) ** 2), rows[0]))
    X, y, w, squares, first = map(np.array, zip(*found, strict=True))
    return X, y, w, None if noise is None else noise[first], squares


def assert_merged(found, expected):
    for x, desired in zip(found, expected, strict=True):
        if desired is None:
            assert x is None
        else:
            np.testing.assert_allclose(x, desired, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("with_noise", [False, True])
@pytest.mark.parametrize("with_weights", [False, True])
def test_groups_are_those_of_a_loop(with_weights, with_noise):
    X, y, weights, noise = data()
    given = X, y, weights if with_weights else None, noise if with_noise else None
    found = merge_repeats(*given)
    assert len(found.X) < len(X)
    assert_merged(found, by_loop(*given))


@pytest.mark.parametrize("primes", [(0, 0), (2**62, 1)])
def test_rows_that_only_have_the_same_hash_stay_apart(primes, monkeypatch):
    given = data()
    expected = merge_repeats(*given)
    monkeypatch.setattr("agp.selection._repeats.PRIMES", primes)
    assert_merged(merge_repeats(*given), expected)


@pytest.mark.parametrize("primes", [None, (0, 0)])
def test_different_rows_are_returned_as_they_are(primes, monkeypatch):
    if primes is not None:
        monkeypatch.setattr("agp.selection._repeats.PRIMES", primes)
    X, y, weights, noise = data(sites=80)
    X = X + np.arange(80.0)[:, None]
    found = merge_repeats(X, y, weights, noise)
    assert all(x is given for x, given in zip(found, (X, y, weights, noise, None), strict=True))
    assert merge_repeats(X, y) == (X, y, None, None, None)


def test_single_rows_keep_their_targets_to_the_bit():
    rng = np.random.default_rng(1)
    X, y, w = rng.normal(size=(20, 2)), rng.normal(size=(20, 1)), rng.uniform(0.1, 3.0, size=20)
    X[19] = X[4]
    found = merge_repeats(X, y, w)
    single = np.delete(np.arange(19), 4)
    np.testing.assert_array_equal(found.y[single], y[single])
    np.testing.assert_array_equal(found.squares[single], 0.0)
    assert found.squares[4] > 0.0
    assert found.weights[4] == pytest.approx(w[4] + w[19], rel=1e-15)


def test_zeros_of_either_sign_are_equal():
    X, y = np.array([[0.0, 1.0], [-0.0, 1.0], [2.0, 1.0]]), np.array([[1.0], [3.0], [5.0]])
    found = merge_repeats(X, y)
    np.testing.assert_array_equal(found.y, [[2.0], [5.0]])
    np.testing.assert_array_equal(found.weights, [2.0, 1.0])
    np.testing.assert_array_equal(found.squares, [2.0, 0.0])


def test_rows_of_other_noise_stay_apart():
    X, y = np.zeros((4, 1)), np.arange(4.0)[:, None]
    found = merge_repeats(X, y, None, np.array([0.1, 0.2, 0.1, 0.2]))
    np.testing.assert_array_equal(found.y, [[1.0], [2.0]])
    np.testing.assert_array_equal(found.noise, [0.1, 0.2])
