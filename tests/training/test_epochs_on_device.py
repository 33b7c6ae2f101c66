"""Whole epochs as one loop of a compiled program: the numbers of single steps, between looks."""

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp import to_numpy, tree
from agp.errors import Interrupted, NonFiniteError, RepairWarning
from agp.training import _graphs as epochs
from agp.updates import Adam

pytest.importorskip("jax")

X, Y = toy_data(23)
DATA = [agp.to_backend(x, "jax") for x in (X, Y)]


@pytest.fixture(autouse=True)
def short_calls(monkeypatch):
    """Epochs of a few steps are epochs."""
    monkeypatch.setattr(epochs, "MIN_STEPS_PER_CALL", 3)


def sparse(posterior="whitened", **settings):
    return agp.to_backend(agp.SVGP.from_data(X, Y, num_inducing=5, posterior=posterior, **settings), "jax")


def trained(model, steps=9, batch_size=5, **settings):
    return agp.train(model, *DATA, steps=steps, batch_size=batch_size, **settings)


def assert_same(found, desired, tolerance=1e-12):
    assert found.steps == desired.steps
    assert found.trace.keys() == desired.trace.keys()
    for name, numbers in desired.trace.items():
        np.testing.assert_allclose(found.trace[name], numbers, rtol=tolerance, atol=tolerance, err_msg=name)
    leaves = tree.leaves(desired.model)
    for name, x in tree.leaves(found.model).items():
        scale = np.max(np.abs(to_numpy(leaves[name])))
        np.testing.assert_allclose(to_numpy(x), to_numpy(leaves[name]), rtol=0, atol=tolerance * scale, err_msg=name)


def two_layers():
    model = agp.DeepGP.from_data(X, Y, num_inducing=4, layers=2, posterior="whitened")
    return agp.to_backend(model, "jax")


def sites_of_data():
    return agp.to_backend(agp.TSVGP.from_data(X, Y, num_inducing=5), "jax")


@pytest.mark.parametrize(
    ("make", "batch_size"),
    [(lambda: sparse("relaxed"), 5), (two_layers, 5), (sites_of_data, 5), (sparse, None)],
    ids=["inverse factors", "draws", "sites", "all data"],
)
def test_numbers_are_those_of_single_steps(make, batch_size):
    # nine steps: two epochs of four, and one more
    model = make()
    assert_same(trained(model, batch_size=batch_size, on_device=True), trained(model, batch_size=batch_size))


def test_what_is_known_of_rows_is_taken_along():
    inputs = DATA[0]
    known = {"weights": 0.5 + inputs[:, 0] ** 2, "offset": 0.3 * inputs[:, :1], "noise": 0.1 + inputs[:, 0] ** 2}
    assert_same(trained(sparse(), on_device=True, **known), trained(sparse(), **known))


def test_the_host_looks_between_epochs_alone(monkeypatch):
    calls = []
    own = epochs.Epochs.__call__

    def counted(self, model, states, first, last):
        calls.append((first, last))
        return own(self, model, states, first, last)

    monkeypatch.setattr(epochs.Epochs, "__call__", counted)
    trained(sparse(), steps=10, on_device=True, updates=[Adam(1e-2)])
    assert calls == [(0, 4), (4, 8), (8, 10)]


def test_a_checkpoint_comes_when_it_should_and_resumes_to_the_bit(tmp_path):
    updates, path = [Adam(1e-2)], tmp_path / "run.safetensors"
    settings = {"updates": updates, "on_device": True}
    whole = trained(sparse(), steps=9, **settings)
    first = trained(sparse(), steps=6, checkpoint=path, checkpoint_every=3, **settings)
    assert first.steps == 6
    resumed = trained(sparse(), steps=9, checkpoint=path, checkpoint_every=3, **settings)
    assert_same(resumed, whole, 0.0)


def test_an_interrupt_keeps_the_epochs_before(monkeypatch):
    own = epochs.Epochs.__call__

    def interrupted(self, model, states, first, last):
        if first == 4:
            raise KeyboardInterrupt
        return own(self, model, states, first, last)

    monkeypatch.setattr(epochs.Epochs, "__call__", interrupted)
    with pytest.raises(Interrupted) as caught:
        trained(sparse(), on_device=True, updates=[Adam(1e-2)])
    assert caught.value.result.steps == 4
    assert len(caught.value.result.trace["bound"]) == 4


def test_numbers_that_are_not_finite_are_refused_by_their_step():
    with pytest.raises(NonFiniteError, match="a factorisation failed in step 2;") as caught:
        trained(sparse(), on_device=True, updates=[Adam(1e6)])
    assert caught.value.result.steps == 0


def test_repairs_are_counted():
    model = sparse(jitter=0.0)
    Z = agp.to_backend(np.repeat(X[:1], 5, axis=0), "jax")
    model = tree.with_leaves(model, {"process.inducing.Z": Z})
    updates = [Adam(1e-3, frozen="inducing.*")]
    with pytest.warns(RepairWarning):
        found = trained(model, updates=updates, on_device=True)
    with pytest.warns(RepairWarning):
        desired = trained(model, updates=updates)
    assert found.repairs == desired.repairs
    assert sum(found.repairs.values()) == 9


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_other_libraries_are_told(library):
    pytest.importorskip(library)
    model = agp.to_backend(agp.SVGP.from_data(X, Y, num_inducing=5), library)
    data = [agp.to_backend(x, library) for x in (X, Y)]
    with pytest.raises(ValueError, match=f"compiles loops, such as JAX, but X is an array of {library}"):
        agp.train(model, *data, steps=3, on_device=True)


def test_callbacks_need_single_steps():
    with pytest.raises(ValueError, match="callbacks run after each step"):
        trained(sparse(), on_device=True, callbacks=[lambda _: None])
