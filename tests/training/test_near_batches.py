"""Minibatches of rows with their neighbours: unbiased, the same steps on every library, and runs that resume."""

import numpy as np
import pytest
from helpers import toy_data

from agp import NNGP, to_numpy, train, tree
from agp.bounds import Batch
from agp.training._batches import Batches
from agp.updates import Adam, NeighboursUpdate

X, Y = toy_data(60)
AMONG = ("earlier", "others")
BATCHES = 1000
RNG = np.random.default_rng(0)
WEIGHTS, NOISE = RNG.integers(1, 4, len(X)).astype(float), RNG.uniform(0.01, 0.1, len(X))


def build(among, place=None, *, known=False):
    rows = [X, Y, *((WEIGHTS, NOISE) if known else ())]
    x, y, *extra = rows if place is None else map(place.array, rows)
    return NNGP.from_data(x, y, neighbours=8, among=among, **dict(zip(("weights", "noise"), extra, strict=False)))


def flat(value, pull):
    """The bound and its gradient as a vector."""
    bars = tree.leaves(pull(1.0)[0], "parameter")
    return np.concatenate([np.ravel(x) for x in (value, *(bars[name] for name in sorted(bars)))])


@pytest.mark.parametrize("known", [False, True], ids=["nothing", "weights and noise"])
@pytest.mark.parametrize("among", AMONG)
def test_the_bound_and_its_gradient_are_unbiased(among, known):
    model = build(among, known=known)
    expected = flat(*model._objective(Batch(model.X, model.y)))
    batches = Batches(model.X, model.y, 8, 0, known=(model.weights, None, model.noise))
    found = np.array([flat(*model._objective(batches[step])) for step in range(BATCHES)])
    error = found.std(axis=0) / BATCHES**0.5
    assert np.all(error > 0.0)
    assert np.all(np.abs(found.mean(axis=0) - expected) < 3.0 * error)


def steps(model, count=12, **settings):
    updates = [NeighboursUpdate(every=4), Adam(0.1)]
    return train(model, model.X, model.y, steps=count, batch_size=20, seed=3, updates=updates, **settings)


@pytest.mark.parametrize("among", AMONG)
def test_every_library_takes_the_same_steps(among, backend):
    here, there = steps(build(among)), steps(build(among, backend))
    np.testing.assert_allclose(there.trace["bound"], here.trace["bound"], rtol=1e-8)
    assert np.array_equal(to_numpy(there.model.sets), here.model.sets)
    found = tree.leaves(there.model, "parameter")
    for name, x in tree.leaves(here.model, "parameter").items():
        np.testing.assert_allclose(to_numpy(found[name]), x, rtol=1e-7, err_msg=name)


@pytest.mark.parametrize("among", AMONG)
def test_a_run_resumes_to_the_same_bits_on_every_library(among, backend, tmp_path):
    model, path = build(among, backend), tmp_path / "run"
    whole = steps(model)
    steps(model, checkpoint=path, checkpoint_every=3, callbacks=[lambda seen: seen.step >= 7])
    resumed = steps(model, checkpoint=path)
    assert resumed.trace == whole.trace
    for name, x in tree.leaves(whole.model).items():
        np.testing.assert_array_equal(to_numpy(tree.leaves(resumed.model)[name]), to_numpy(x), err_msg=name)
