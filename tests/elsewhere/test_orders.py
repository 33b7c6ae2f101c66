"""Orders of minibatches that take no memory, or few chunks of rows at a time."""

from functools import partial

import numpy as np
import pytest

import agp
from agp.training._batches import Order, Pools, permute_index
from agp.updates import Adam


@pytest.mark.parametrize("N", [1, 2, 3, 10, 1000, 4096, 70_001])
def test_a_scrambled_order_is_a_permutation(N):
    keys = np.random.default_rng(N).integers(2**63, size=(4, 2))
    found = permute_index(np.arange(N), N, keys)
    np.testing.assert_array_equal(np.sort(found), np.arange(N))
    np.testing.assert_array_equal(permute_index(np.arange(N)[::-1][:5], N, keys), found[::-1][:5])


def test_a_scrambled_order_looks_random():
    N, keys = 2**16, np.random.default_rng(5).integers(2**63, size=(4, 2))
    found = permute_index(np.arange(N), N, keys)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    counts = np.histogram2d(np.arange(N), found, bins=16)[0]  # 256 expected in each
    assert 180 < np.sum((counts - 256.0) ** 2 / 256.0) < 330  # chi^2 with 225 degrees of freedom
    other = permute_index(np.arange(N), N, keys + 1)
    assert np.mean(other == found) < 1e-3


def test_orders_of_many_rows_are_not_listed():
    order = Order(1000, 3, most_listed=10)
    assert not order.listed
    epochs = [np.concatenate([order.rows(epoch, i, i + 50) for i in range(0, 1000, 50)]) for epoch in range(2)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(1000))
    assert np.mean(epochs[0] == epochs[1]) < 0.02


@pytest.mark.slow
def test_a_training_without_a_list_is_reproducible_and_resumes(monkeypatch, tmp_path):
    monkeypatch.setattr("agp.training._batches.Order", partial(Order, most_listed=10))
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 2)), rng.standard_normal(200)
    model = agp.SVGP.from_data(X, y, num_inducing=5, posterior="whitened")
    how = {"batch_size": 30, "updates": [Adam(0.01)]}
    whole = agp.train(model, X, y, steps=20, **how)
    path = tmp_path / "run.safetensors"
    agp.train(model, X, y, steps=7, checkpoint=path, **how)
    assert agp.train(model, X, y, steps=20, checkpoint=path, **how).trace["bound"] == whole.trace["bound"]


def test_pools_see_every_row_once_in_an_epoch():
    pools = Pools((3, 5, 2, 7, 4, 9), 1, 8)
    orders = []
    for epoch in range(3):
        groups, ends = pools.pools(epoch)
        numbers = [pools.numbers(epoch, i) for i in range(len(groups))]
        assert [len(x) for x in numbers] == np.diff(ends, prepend=0).tolist()
        assert all(len(x) >= 8 for x in numbers[:-1])
        orders.append(np.concatenate(numbers))
        np.testing.assert_array_equal(np.sort(orders[-1]), np.arange(30))
        joined = [
            numbers[pool][start:stop]
            for i in range(0, 30, 7)
            for pool, start, stop in pools.parts(epoch, i, min(i + 7, 30))
        ]
        np.testing.assert_array_equal(np.concatenate(joined), orders[-1])
    assert not np.array_equal(orders[0], orders[1])
