"""k-means averages no column with two values: there, inducing inputs have values of rows."""

import numpy as np
import pytest

import agp
from agp.backend import get_backend, to_numpy
from agp.inducing import kmeans


def table(kind, rows=300, seed=0):
    """Rows [N, D], and which columns have two values."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((rows, 2))
    if kind == "0 and 1":
        return (rng.uniform(size=(rows, 6)) < 0.4) * 1.0, range(6)
    if kind == "other codes":
        return np.where(rng.uniform(size=(rows, 5)) < 0.5, -3.5, 1e6), range(5)
    if kind == "mixed":
        return np.concatenate([(rng.uniform(size=(rows, 3)) < 0.3) * 1.0, numbers], axis=1), range(3)
    if kind == "one-hot":
        return np.concatenate([np.eye(5)[rng.integers(0, 5, rows)], numbers], axis=1), range(5)
    return np.concatenate([numbers, np.full((rows, 1), 7.0)], axis=1), ()


@pytest.mark.parametrize("kind", ["0 and 1", "other codes", "mixed", "one-hot", "numbers"])
def test_binary_columns_hold_values_of_rows(kind):
    X, binary = table(kind)
    Z = kmeans(X, 20)
    assert Z.shape == (20, X.shape[1])
    for d in range(X.shape[1]):
        assert np.isin(Z[:, d], X[:, d]).all() == (d in binary or np.ptp(X[:, d]) == 0.0)
    if binary:  # combinations of values are those of rows, so that a row of indicators has a single one
        columns = list(binary)
        assert {tuple(row) for row in Z[:, columns]} <= {tuple(row) for row in X[:, columns]}


def test_rows_of_binary_columns_differ_where_possible():
    X, _ = table("0 and 1")
    assert len(np.unique(kmeans(X, 30), axis=0)) == 30
    few = np.asarray([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])[np.arange(60) % 3]
    assert len(np.unique(kmeans(few, 6), axis=0)) == 3


def test_units_of_columns_do_not_matter():
    X, _ = table("mixed")
    scales = np.asarray([1.0, 100.0, 1e-3, 5.0, 1e4])
    np.testing.assert_allclose(kmeans(X * scales, 15), kmeans(X, 15) * scales, rtol=1e-9)


@pytest.mark.parametrize("kind", ["0 and 1", "mixed"])
def test_models_of_every_library_begin_there(kind, torch_place):
    X, binary = table(kind)
    there = get_backend("torch").from_numpy(X)
    np.testing.assert_array_equal(to_numpy(kmeans(there, 10)), kmeans(X, 10))
    y = X @ np.arange(1.0, 1.0 + X.shape[1])
    for model in (agp.SVGP, agp.SGPR):
        Z = model.from_data(X, y, num_inducing=10).inducing.Z
        assert np.isin(Z[:, list(binary)], [0.0, 1.0]).all()


@pytest.mark.slow
def test_rows_bind_more_than_averages_of_codes():
    gains = []
    for seed in range(3):
        X, _ = table("0 and 1", 400, seed)
        rng = np.random.default_rng(seed)
        y = X @ rng.standard_normal(6) + np.sin(3.0 * X[:, 0] * X[:, 1]) + 0.1 * rng.standard_normal(400)
        Z = kmeans(X, 20)
        inside = 0.8 * Z + 0.2 * X.mean(axis=0)  # where averages of codes would be
        start = agp.SGPR.from_data(X, y, Z=Z)
        bounds = [
            agp.fit_lbfgs(agp.SGPR.from_data(X, y, Z=at), X, y, max_iterations=40, frozen=("Z",)).model.bound(X, y)[0]
            for at in (Z, inside)
        ]
        gains.append(float(bounds[0] - bounds[1]))
        assert np.isfinite(start.bound(X, y)[0])
    assert np.mean(gains) > 0.0
