"""Noise that the device draws: reproducible, of the right distribution, and never sent."""

import dataclasses

import numpy as np
import pytest
from helpers import JAX, NUMPY, TORCH

import agp
from agp import to_numpy, train, tree
from agp.backend import get_backend
from agp.random import Noise
from agp.training import Batches
from agp.training import _graphs as epochs
from agp.training._batches import NOISE_STEPS
from agp.updates import Adam

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 2))
Y = np.sin(X[:, :1])
ROWS = 6


def deep():
    """Samples of an inner layer."""
    return agp.DeepGP.from_data(X, Y, num_inducing=4, layers=2, posterior="whitened")


def softmax():
    """Samples of a likelihood."""
    return agp.SVGP.from_data(X, np.floor(1.5 * (Y + 1.0)), likelihood=agp.likelihoods.Softmax(3), num_inducing=4)


def probed(probes=2):
    """Probes of traces, beside an inverse factor that is not exact."""
    model = agp.SVGP.from_data(X, Y, posterior=agp.posteriors.Relaxed, num_inducing=6)
    q = model.process.posterior
    q = dataclasses.replace(q, probes=probes, inverse_factor=0.9 * q.inverse_factor)
    return tree.replace(model, {"process.posterior": q})


def conjugate_gradients():
    """Probes of a log determinant."""
    return agp.CGGP.from_data(X, Y)


MODELS = {"deep": deep, "softmax": softmax, "probes": probed, "conjugate gradients": conjugate_gradients}


@pytest.fixture(params=["numpy", "torch", "jax"])
def place(request, available):
    return available({"numpy": NUMPY, "torch": TORCH, "jax": JAX}[request.param])


def batches(place, model, seed=0, where="device", dtype="float64"):
    """The batches of a model that is on the host, at a place."""
    rows = ROWS if model.stochastic else X.shape[0]
    moved = place.move(model, dtype)
    return Batches(place.array(X, dtype), place.array(Y, dtype), rows, seed, moved._draws, where)


def drawn(several, step):
    """All draws of a step, by name."""
    by_row, whole = several[step].draws
    return {**by_row, **whole}


def trained(place, model, steps=6, **settings):
    data = [place.array(x) for x in (X, Y)]
    return train(place.move(model), *data, steps=steps, batch_size=ROWS, updates=[Adam(1e-2)], **settings)


# -- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS)
def test_seed_and_step_decide_the_numbers(model, dtype, backend):
    model = MODELS[model]()
    first, again, other = (batches(backend, model, seed, dtype=dtype) for seed in (3, 3, 4))
    host = drawn(batches(backend, model, 3, "host", dtype), 2)
    assert host
    for name, x in drawn(first, 2).items():
        backend.check(x, dtype)
        assert x.shape == host[name].shape
        np.testing.assert_array_equal(to_numpy(x), to_numpy(drawn(again, 2)[name]))
        for different in (drawn(first, 1), drawn(other, 2)):
            assert np.any(to_numpy(x) != to_numpy(different[name]))


@pytest.mark.parametrize("model", MODELS)
def test_libraries_without_a_generator_take_the_numbers_of_the_host(model, backend):
    model = MODELS[model]()
    found, host = (drawn(batches(backend, model, where=where), 1) for where in ("device", "host"))
    same = all(np.array_equal(to_numpy(x), to_numpy(host[name])) for name, x in found.items())
    assert same == (backend.name in ("numpy", "array_api_strict"))


def test_normal_numbers_have_mean_zero_and_unit_variance(place):
    several = batches(place, softmax())
    x = np.concatenate([to_numpy(drawn(several, step)["likelihood.eps"]).ravel() for step in range(40)])
    n = x.size
    assert n == 40 * 20 * ROWS * 3
    assert abs(x.mean()) < 4.0 / np.sqrt(n)
    assert abs(x.var() - 1.0) < 4.0 * np.sqrt(2.0 / n)
    assert abs(np.mean(x**3)) < 4.0 * np.sqrt(15.0 / n)
    assert np.unique(x).size == n


def test_probes_are_signs_of_mean_zero(place):
    several = batches(place, probed())
    x = np.concatenate([to_numpy(drawn(several, step)["process.posterior.probes"]).ravel() for step in range(40)])
    assert set(x.tolist()) == {-1.0, 1.0}
    assert abs(x.mean()) < 4.0 / np.sqrt(x.size)


def test_several_draws_of_a_step_are_independent(place):
    found = drawn(batches(place, conjugate_gradients()), 0)
    low, full = (to_numpy(found[name]) for name in ("low", "full"))
    assert not set(low.ravel().tolist()) & set(full.ravel().tolist())


@pytest.mark.slow
def test_the_bound_has_no_bias(place):
    model, data = probed(), [place.array(x) for x in (X, Y)]
    moved = place.move(model)
    several = Batches(*data, X.shape[0], 0, moved._draws, "device")
    exact = float(moved.bound(*data)[0])
    found = np.asarray([float(moved._objective(several[step])[0]) for step in range(200)])
    error = found.std() / np.sqrt(found.size)
    assert 0.0 < error < 0.1 * abs(exact)
    assert abs(found.mean() - exact) < 4.0 * error


def test_other_numbers_than_the_usual_are_refused():
    class Plain(Noise):
        def standard_normal(self, size=()):
            return np.zeros(size)

        def integers(self, low, high, size=()):
            return np.zeros(size, dtype=np.int64)

    with pytest.raises(AttributeError, match="supports only standard_normal and integers, not gamma; leave out"):
        Plain().gamma(2.0)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_repeats_itself(place):
    first, again, host = (trained(place, deep(), draws=draws) for draws in ("device", "device", "host"))
    assert first.trace == again.trace
    assert (first.trace == host.trace) == (place is NUMPY)


@pytest.mark.slow
def test_a_resumed_run_gives_the_numbers_of_one_that_was_never_stopped(place, tmp_path):
    path = tmp_path / "run.safetensors"
    whole = trained(place, deep(), draws="device")
    trained(place, deep(), 3, draws="device", checkpoint=path)
    resumed = trained(place, deep(), draws="device", checkpoint=path)
    assert resumed.trace == whole.trace
    for name, x in tree.leaves(whole.model).items():
        np.testing.assert_array_equal(to_numpy(tree.leaves(resumed.model)[name]), to_numpy(x), err_msg=name)


def test_a_checkpoint_of_other_draws_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    trained(NUMPY, deep(), 3, checkpoint=path)
    message = r"with draws=host, but this one has draws=device \(numpy, cpu\)"
    with pytest.raises(ValueError, match=message):
        trained(NUMPY, deep(), draws="device", checkpoint=path)


@pytest.mark.parametrize("wrong", ["gpu", None, True])
def test_unknown_places_are_refused(wrong):
    message = f"draws is {wrong!r}, but must be 'host' or 'device'"
    with pytest.raises(ValueError, match=message):
        trained(NUMPY, deep(), draws=wrong)
    with pytest.raises(ValueError, match=message):
        agp.fit(agp.GPR.from_data(X, Y), X, Y, draws=wrong)


@pytest.fixture
def sent(monkeypatch):
    """The shapes of what goes from the host to torch or JAX."""
    shapes = []
    for name in ("torch", "jax"):
        kind = type(get_backend(name))

        def from_numpy(self, x, /, own=kind.from_numpy, **keywords):
            shapes.append(np.shape(x))
            return own(self, x, **keywords)

        monkeypatch.setattr(kind, "from_numpy", from_numpy)
    return shapes


@pytest.mark.parametrize("library", [TORCH, JAX], ids=["torch", "jax"])
@pytest.mark.parametrize("training", ["train", "fit"])
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_no_noise_is_sent(training, library, available, request):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    available(library)
    sent = request.getfixturevalue("sent")
    model, data = library.move(deep()), [library.array(x) for x in (X, Y)]
    noise, counts = (1, ROWS, 2), []
    for draws in ("host", "device"):
        sent.clear()
        if training == "train":
            train(model, *data, steps=3, batch_size=ROWS, updates=[Adam(1e-2)], draws=draws)
        else:
            agp.fit(model, *data, max_steps=3, batch_size=ROWS, draws=draws)
        counts.append(sent.count(noise))
    assert counts == [3, 0]


def test_epochs_on_the_device_draw_there(available, monkeypatch, request):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    available(JAX)
    monkeypatch.setattr(epochs, "MIN_STEPS_PER_CALL", 3)
    single = trained(JAX, deep(), 7, draws="device")
    sent = request.getfixturevalue("sent")
    model, data = JAX.move(deep()), [JAX.array(x) for x in (X, Y)]
    counts = []
    for draws in ("host", "device"):
        sent.clear()
        settings = {"batch_size": ROWS, "updates": [Adam(1e-2)], "on_device": True, "draws": draws}
        found = train(model, *data, steps=7, **settings)
        counts.append(sum(shape[1:] == (1, ROWS, 2) for shape in sent))
    assert counts == [2, 0]
    np.testing.assert_allclose(found.trace["bound"], single.trace["bound"], rtol=1e-12)


def test_noise_that_is_sent_together_is_that_of_each_step():
    several = Batches(X, Y, 5, 0, probed()._draws)
    together = several._together(1)
    for i in range(NOISE_STEPS):
        for found, expected in zip(together, several.host_draws(NOISE_STEPS + i), strict=True):
            assert found.keys() == expected.keys()
            for name, x in expected.items():
                np.testing.assert_array_equal(found[name][i], x)
