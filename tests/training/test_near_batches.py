"""Minibatches of rows with their neighbours: unbiased, the same steps on every library, and runs that resume."""

import numpy as np
import pytest
from helpers import toy_data

from agp import NNGP, TNNGP, Gaussian, Poisson, to_numpy, train, tree
from agp.bounds import Batch
from agp.random import NO_DRAWS
from agp.training._batches import Batches
from agp.updates import Adam, NeighboursUpdate, SiteStep

X, Y = toy_data(60)
COUNTS = np.floor(np.exp(1.0 + Y))
AMONG = ("earlier", "others", "sites")
"""The rows among which neighbours are found, or a model with sites, whose neighbours are other rows."""
BATCHES = 1000
RNG = np.random.default_rng(0)
WEIGHTS, NOISE = RNG.integers(1, 4, len(X)).astype(float), RNG.uniform(0.01, 0.1, len(X))


def build(among, place=None, *, known=False):
    """A model, its targets, and what is known of its rows."""
    sites = among == "sites"
    rows = [X, COUNTS if sites and not known else Y, *((WEIGHTS, NOISE) if known else ())]
    x, y, *extra = rows if place is None else map(place.array, rows)
    given = dict(zip(("weights", "noise"), extra, strict=False))
    if not sites:
        return NNGP.from_data(x, y, neighbours=8, among=among, **given), y, given
    return TNNGP.from_data(x, y, neighbours=8, likelihood=Gaussian() if known else Poisson(), **given), y, given


def flat(value, pull):
    """The bound and its gradient as a vector."""
    bars = tree.leaves(pull(1.0)[0], "parameter")
    return np.concatenate([np.ravel(x) for x in (value, *(bars[name] for name in sorted(bars)))])


@pytest.mark.parametrize("known", [False, True], ids=["nothing", "weights and noise"])
@pytest.mark.parametrize("among", AMONG)
def test_the_bound_and_its_gradient_are_unbiased(among, known):
    model, y, given = build(among, known=known)
    if among == "sites":
        step = SiteStep(0.7)
        model = step(model, model._batch(X, y, **given), step.init(model))[0]
    held = model._batch(X, y, **given).known
    expected = flat(*model._objective(Batch(X, y, 1.0, None, NO_DRAWS, *held)))
    batches = Batches(X, y, 8, 0, known=held)
    found = np.array([flat(*model._objective(batches[step])) for step in range(BATCHES)])
    error = found.std(axis=0) / BATCHES**0.5
    assert np.all(error > 0.0)
    assert np.all(np.abs(found.mean(axis=0) - expected) < 3.0 * error)


def steps(built, count=12, **settings):
    model, y, known = built
    updates = [NeighboursUpdate(every=4), *([SiteStep(0.8)] if isinstance(model, TNNGP) else []), Adam(0.1)]
    return train(model, model.X, y, steps=count, batch_size=20, seed=3, updates=updates, **known, **settings)


@pytest.mark.parametrize("among", AMONG)
def test_every_library_takes_the_same_steps(among, backend):
    here, there = steps(build(among)), steps(build(among, backend))
    np.testing.assert_allclose(there.trace["bound"], here.trace["bound"], rtol=1e-8)
    assert np.array_equal(to_numpy(there.model.sets), here.model.sets)
    found = tree.leaves(there.model)
    for name, x in tree.leaves(here.model).items():
        np.testing.assert_allclose(to_numpy(found[name]), x, rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("among", AMONG)
def test_a_run_resumes_to_the_same_bits_on_every_library(among, backend, tmp_path):
    built, path = build(among, backend), tmp_path / "run"
    whole = steps(built)
    steps(built, checkpoint=path, checkpoint_every=3, callbacks=[lambda seen: seen.step >= 7])
    resumed = steps(built, checkpoint=path)
    assert resumed.trace == whole.trace
    for name, x in tree.leaves(whole.model).items():
        np.testing.assert_array_equal(to_numpy(tree.leaves(resumed.model)[name]), to_numpy(x), err_msg=name)
