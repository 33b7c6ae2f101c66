"""k-means: good places for inducing inputs, the same on every library."""

import itertools

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from agp import to_backend, to_numpy
from agp.inducing import kmeans


def clusters(scale=(1.0, 1.0), dtype="float64"):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    return (np.repeat(centres, 25, axis=0) + 0.1 * rng.normal(size=(100, 2))).astype(dtype) * np.asarray(scale, dtype)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [(1.0, 1.0), (1e-3, 1e4)], ids=["alike", "unlike"])
def test_every_cluster_gets_a_centre(seed, scale):
    X = clusters(scale)
    Z = kmeans(X, 4, seed=seed)
    assert Z.shape == (4, 2)
    assert cdist(X / scale, Z / scale).min(axis=1).max() < 0.6


def test_more_centres_lie_closer():
    X = np.random.default_rng(0).uniform(size=(300, 2))
    mean_distance = [np.mean(cdist(X, kmeans(X, M)).min(axis=1)) for M in (2, 8, 32, 128)]
    assert all(closer < 0.7 * farther for farther, closer in itertools.pairwise(mean_distance))


def test_all_rows_as_centres_are_the_rows():
    X = clusters()
    assert cdist(X, kmeans(X, 100)).min(axis=1).max() < 1e-9


def test_the_seed_decides():
    X = np.random.default_rng(0).uniform(size=(300, 2))
    np.testing.assert_array_equal(kmeans(X, 8, seed=1), kmeans(X, 8, seed=1))
    assert not np.array_equal(kmeans(X, 8, seed=1), kmeans(X, 8, seed=2))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_every_library_gets_the_same_centres(library, dtype):
    pytest.importorskip(library)
    X = to_backend(clusters(dtype=dtype), library)
    Z = kmeans(X, 6)
    assert type(Z) is type(X)
    assert Z.dtype == X.dtype
    np.testing.assert_array_equal(to_numpy(Z), kmeans(clusters(dtype=dtype), 6))


def test_centres_are_on_the_device_of_the_rows():
    pytest.importorskip("array_api_strict")
    X = to_backend(clusters(), "array_api_strict", device="device1")
    assert kmeans(X, 3).device == X.device


@pytest.mark.parametrize(
    "X",
    [np.zeros((9, 2)), np.repeat(np.eye(2), 5, axis=0), np.full((9, 1), 0.1), np.ones((1, 3))],
    ids=["zeros", "two distinct", "rounded constant", "one row"],
)
def test_repeated_rows_give_finite_centres_among_them(X):
    M = min(4, len(X))
    Z = kmeans(X, M)
    assert Z.shape == (M, X.shape[1])
    assert cdist(Z, X).min(axis=1).max() < 1e-9


def test_centres_stay_inside_the_data():
    X = clusters()
    Z = kmeans(X, 9)
    assert np.all(X.min(axis=0) <= Z)
    assert np.all(X.max(axis=0) >= Z)


@pytest.mark.parametrize("M", [0, -1, 101])
def test_numbers_out_of_range_are_refused(M):
    with pytest.raises(ValueError, match=f"num_inducing is {M}, but must be between 1 and the number of rows, 100"):
        kmeans(clusters(), M)


def test_many_rows_are_thinned(monkeypatch):
    monkeypatch.setattr("agp.inducing.ROWS", 50)
    Z = kmeans(clusters(), 4)
    assert cdist(clusters(), Z).min(axis=1).max() < 0.7


def test_more_centres_than_thinned_rows_are_still_possible(monkeypatch):
    monkeypatch.setattr("agp.inducing.ROWS", 50)
    Z = kmeans(clusters(), 60)
    assert Z.shape == (60, 2)
    assert np.all(np.isfinite(Z))


def test_the_data_are_not_changed():
    X = clusters()
    before = X.copy()
    kmeans(X, 4)
    np.testing.assert_array_equal(X, before)
