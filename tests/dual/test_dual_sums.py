"""Steps on minibatches of t-SVGP with a site for each datum: sums go on, and are those of all data."""

import numpy as np
import pytest
from dual_cases import blank, data, inducing
from helpers import JAX, NUMPY, assert_close, named, with_leaves

import agp
from agp.bounds import Batch
from agp.models._sparse_sites import white_site_sums
from agp.training import train
from agp.updates import Adam, Repeat, SiteStep

N = 24


@pytest.fixture
def passes(monkeypatch):
    """How many rows each pass over sites has had."""
    seen = []

    def counted(prior, Lu, X, *rest, **options):
        seen.append(X.shape[0])
        return white_site_sums(prior, Lu, X, *rest, **options)

    monkeypatch.setattr("agp.models._tsvgp.white_site_sums", counted)
    return seen


def start(likelihood="bernoulli", place=NUMPY):
    X, y = data(likelihood, rows=N, outputs=1 if likelihood == "softmax" else 2)
    return place.move(blank("datum", X, y, likelihood)), X, y


def batches(X, y, place, count, size=5, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rows = rng.permutation(len(X))[:size]
        yield Batch(place.array(X[rows]), place.array(y[rows]), len(X) / size, place.array(rows, "int64"))


def assert_sums_are_of_all_data(model, state, place, tolerance=1e-10):
    sums = model._white_sites()[0]
    for name, desired in sums._asdict().items():
        assert_close(place.numpy(state["sums"][name]), place.numpy(desired), tolerance, name)


def assert_goes_on(likelihood, place, steps):
    model, X, y = start(likelihood, place)
    again, update = model, SiteStep(0.4)
    state = update.init(model)
    for batch in batches(X, y, place, steps):
        model, state, info = update(model, batch, state)
        again, _, expected = update(again, batch, update.init(again))  # from nothing each time
        assert info.keys() == expected.keys()
    assert_sums_are_of_all_data(model, state, place)
    for name, x in named(again).items():
        assert_close(place.numpy(named(model)[name]), place.numpy(x), 1e-10, name)


@pytest.mark.parametrize("likelihood", ["bernoulli", "student-t", "poisson", "softmax"])
@pytest.mark.filterwarnings("ignore:.*would not have been positive definite:agp.errors.RepairWarning")
def test_sums_that_go_on_are_those_of_all_data(likelihood):
    assert_goes_on(likelihood, NUMPY, 12)


def test_sums_go_on_everywhere(backend):
    assert_goes_on("gaussian", backend, 4)


def test_all_data_are_passed_over_once(passes):
    model, X, y = start()
    update = SiteStep(0.4)
    state = update.init(model)
    assert passes == []
    for batch in batches(X, y, NUMPY, 6):
        model, state, _ = update(model, batch, state)
    assert passes.count(N) == 1
    assert passes.count(5) == 6


@pytest.mark.parametrize("leaf", ["kernel.variance", "kernel.lengthscale", "Z", "site_shift", "site_precision"])
def test_sums_are_made_anew_when_what_they_depend_on_moves(leaf, passes, backend):
    model, X, y = start(place=backend)
    update = SiteStep(0.4)
    state = update.init(model)
    steps = list(batches(X, y, backend, 3))
    for batch in steps[:2]:
        model, state, _ = update(model, batch, state)
    shifted = with_leaves(model, {leaf: 1.01 * named(model)[leaf]})
    passes.clear()
    found, state, _ = update(shifted, steps[2], state)
    assert backend is JAX or N in passes
    expected = update(shifted, steps[2], update.init(shifted))[0]
    for name, x in named(expected).items():
        np.testing.assert_array_equal(backend.numpy(named(found)[name]), backend.numpy(x), name)
    assert_sums_are_of_all_data(found, state, backend)


@pytest.mark.parametrize("leaf", ["likelihood.noise_variance", "mean_function.value"])
def test_what_does_not_enter_the_sums_may_move(leaf, passes):
    model, X, y = start("gaussian")
    update = SiteStep(0.4)
    state = update.init(model)
    for batch in batches(X, y, NUMPY, 5):
        model, state, _ = update(model, batch, state)
        model = with_leaves(model, {leaf: named(model)[leaf] * 1.1 + 0.1})
    assert passes.count(N) == 1
    assert_sums_are_of_all_data(model, state, NUMPY)


@pytest.mark.long
def test_roundings_do_not_add_up(passes):
    model, X, y = start()
    update = SiteStep(0.9)
    state = update.init(model)
    for batch in batches(X, y, NUMPY, 6_000, size=2):
        model, state, _ = update(model, batch, state)
    assert_sums_are_of_all_data(model, state, NUMPY, 1e-12)
    assert 2 <= passes.count(N) <= 6  # once in some thousand steps


def test_sites_that_become_small_have_exact_sums(passes):
    # the noise grows from 1e-9 to 1: what is left of the first sums' rounding is 1e-7 of the last ones
    model, X, y = start("gaussian")
    update = SiteStep(1.0)
    state = update.init(model)
    for noise in (1e-9, 1.0):
        model = with_leaves(model, {"likelihood.noise_variance": np.full(2, noise)})
        for first in range(0, N, 4):
            rows = np.arange(first, first + 4)
            model, state, _ = update(model, Batch(X[rows], y[rows], N / 4, rows), state)
    last = Batch(X[:4], y[:4], N / 4, np.arange(4))
    model, state, _ = update(model, last, state)
    assert passes.count(N) == 2
    assert_sums_are_of_all_data(model, state, NUMPY, 1e-12)


def test_a_row_that_a_batch_has_twice_counts_once(backend):
    model, X, y = start(place=backend)
    update, rows = SiteStep(0.4), np.asarray([3, 7, 3, 1])
    batch = Batch(backend.array(X[rows]), backend.array(y[rows]), N / 4, backend.array(rows, "int64"))
    state = update.init(model)
    for _ in range(2):
        model, state, _ = update(model, batch, state)
    assert_sums_are_of_all_data(model, state, backend)


def test_single_precision_keeps_to_its_own_rounding(backend):
    X, y = data("bernoulli", rows=N)
    model = backend.move(blank("datum", X, y), "float32")
    update = SiteStep(0.4)
    state = update.init(model)
    for host in batches(X, y, NUMPY, 8):
        rows = backend.array(host.rows, "int64")
        batch = Batch(backend.array(host.X, "float32"), backend.array(host.y, "float32"), host.scale, rows)
        model, state, _ = update(model, batch, state)
    for name, desired in model._white_sites()[0]._asdict().items():
        assert_close(backend.numpy(state["sums"][name], "float32"), backend.numpy(desired, "float32"), 1e-4, name)


def test_expectation_steps_between_maximisation_steps_make_one_pass(passes):
    model, X, y = start()
    updates = [Repeat(SiteStep(0.4), 5), Adam(1e-2)]
    train(model, X, y, steps=4, batch_size=6, updates=updates)
    # of the five steps the first; of Adam's bound one for the value, and its gradient is of the same fold
    assert passes.count(6) == 4 * 5
    assert passes.count(N) == 4 * 2


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_a_resumed_run_gives_the_same_bits(library, tmp_path):
    pytest.importorskip(library)
    X, y = data("bernoulli", rows=N)
    model = agp.to_backend(blank("datum", X, y), library)
    X, y = agp.to_backend(X, library), agp.to_backend(y, library)
    updates = [Repeat(SiteStep(0.4), 2), Adam(1e-2, frozen=("kernel.*", "inducing.*"))]
    settings = {"updates": updates, "batch_size": 5}
    whole = train(model, X, y, steps=11, **settings).model
    path = tmp_path / "run.safetensors"
    train(model, X, y, steps=6, checkpoint=path, **settings)
    resumed = train(model, X, y, steps=11, checkpoint=path, **settings).model
    for name, x in named(whole).items():
        np.testing.assert_array_equal(agp.to_numpy(named(resumed)[name]), agp.to_numpy(x), name)


def test_the_sums_do_not_outlive_the_step():
    model, X, y = start()
    update = SiteStep(0.4)
    moved, _, _ = update(model, next(batches(X, y, NUMPY, 1)), update.init(model))
    assert type(moved) is agp.TSVGP
    assert inducing(moved).shape == (6, 6)
