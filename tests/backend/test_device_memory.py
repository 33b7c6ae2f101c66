"""Budgets without a number: a share of the memory of a device, and launches that then do not follow the data."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import JAX, NUMPY, TORCH, Place, assert_close

import agp
from agp import tree
from agp.backend import get_backend
from agp.chunking import MEMORY_MIB, block_rows, budget, cached_rows, on_device
from agp.inducing import Patches
from agp.kernels import RBF, Matern12, Matern32
from agp.training._batches import Batches
from agp.training._run import Run
from agp.updates import Adam

torch = pytest.importorskip("torch")
from standins.counts import counted  # noqa: E402

CARD = 80.0 * 2**10
"""MiB of a card, and of the stand-in."""


# -- how much ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole", "usual"),
    [(None, MEMORY_MIB), (1000.0, MEMORY_MIB), (16384.0, 2048.0), (15000.0, 1024.0), (81559.0, 8192.0)],
)
def test_the_usual_budget_is_a_share_of_the_device_by_powers_of_two(whole, usual, monkeypatch):
    x = np.ones(2)
    monkeypatch.setattr(type(get_backend("numpy")), "device_memory", lambda _self, _x: whole)
    assert budget(None, x) == usual
    assert budget(3.5, x) == 3.5
    assert on_device(x) == (whole is not None)


def test_blocks_follow_the_usual_budget(monkeypatch):
    X = np.ones((6000, 2))
    floats = 10 * 2**20 // 8 // 4  # 2.5 MiB a row
    assert block_rows(None, floats, X) == 32 // 2.5 // 1  # the tile of a CPU
    assert cached_rows(floats, X) == 8 // 2.5
    monkeypatch.setattr(type(get_backend("numpy")), "device_memory", lambda _self, _x: CARD)
    assert cached_rows(floats, X) == 8192 // 2.5
    assert block_rows(None, floats, X[:3000, :]) is None
    assert block_rows(100.0, floats, X) == 12


@pytest.mark.parametrize("wrong", [0.0, -1.0, "many"])
def test_a_budget_that_is_none_is_refused(wrong):
    with pytest.raises((TypeError, ValueError), match="memory is"):
        budget(wrong, np.ones(2))


def test_torch_tells_all_memory_and_asks_for_nothing_that_moves(monkeypatch):
    def refused(*_):
        pytest.fail("the free memory was asked for")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refused)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=24 * 2**30))
    B = get_backend("torch")
    assert B.device_memory(SimpleNamespace(device=torch.device("cuda:0"))) == 24.0 * 2**10
    assert B.device_memory(torch.ones(1)) is None


class Device:
    """A device of JAX; `asked` counts how often it was asked for its statistics."""

    id, platform = 0, "gpu"
    asked = 0

    def memory_stats(self):
        self.asked += 1
        return {"bytes_limit": 60 * 2**30, "bytes_in_use": 2**30}


def test_jax_tells_what_its_allocator_may_take(available, monkeypatch):
    jax = pytest.importorskip("jax")
    place, device, B = available(JAX), Device(), get_backend("jax")
    x = SimpleNamespace(devices=lambda: {device})
    assert [B.device_memory(x) for _ in range(3)] == [60.0 * 2**10] * 3
    assert device.asked == 1
    one = place.array([1.0])
    assert B.device_memory(one) is None
    # while a program is traced: that of the usual device
    found = []
    jax.jit(lambda y: (found.append(budget(None, y)), y)[1])(one)
    monkeypatch.setattr(jax, "devices", lambda *_: [device])
    jax.jit(lambda y: (found.append(budget(None, y)), 2.0 * y)[1])(one)
    assert found == [MEMORY_MIB, 4096.0]


@pytest.mark.parametrize("place", [NUMPY, TORCH], ids=lambda place: place.name)
def test_a_host_has_no_device_memory(place, available):
    assert get_backend(place.name).device_memory(available(place).array([[1.0]])) is None


# -- launches ---------------------------------------------------------------------------------------------------------


def _images(device: Place, count, side, kernel=None, located=True, M=20):
    """A training step by all of so many images; returns the counted third one and the bound."""
    rng = np.random.default_rng(0)
    X, y = device.array(rng.normal(size=(count, side**2))), device.array(rng.normal(size=(count, 1)))
    place = Patches((side, side), (3, 3), weights=1.0, located=located)
    parts = {} if kernel is None else {"kernel": kernel}
    model = agp.SVGP.from_data(X, y, inducing=place, num_inducing=M, posterior="whitened", **parts)
    run = Run(model, [Adam(1e-2, memory=None)], Batches(X, y, count, 0, model._draws), None, {})
    run._advance()
    run._advance()
    with counted() as counts:
        run._advance()
    return counts, run


KERNELS = {
    "place": (None, True),
    "product": (RBF() * Matern32(1.0), False),
    "sum": (RBF() + 2.0 * Matern12(1.0), False),
    "columns": (RBF().on((0, 4, 8)), False),
}


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", KERNELS)
def test_launches_do_not_follow_the_number_of_images(name, torch_device, monkeypatch):
    # three strips of 36 patches, as of 28 x 28 pixels
    monkeypatch.setattr("agp.kernels._quadratic_forms.ROWS_PER_STRIP", 12)
    few, many = (_images(torch_device, count, 8, *KERNELS[name])[0].totals for count in (2, 7))
    assert few == many
    assert few[1:] == (1, 0)


@pytest.mark.slow
def test_a_convolutional_step_is_a_few_launches(torch_device):
    """Weights and located patches, 5 x 5 of 28 x 28 pixels: 1,352 for any number of images that fit into the budget."""
    rng = np.random.default_rng(0)
    X, y = torch_device.array(rng.normal(size=(2, 28 * 28))), torch_device.array(rng.normal(size=(2, 1)))
    place = Patches((28, 28), (5, 5), weights=1.0, located=True)
    model = agp.SVGP.from_data(X, y, inducing=place, num_inducing=64, posterior="whitened")
    run = Run(model, [Adam(1e-2, memory=None)], Batches(X, y, 2, 0, model._draws), None, {})
    run._advance()
    with counted() as counts:
        run._advance()
    assert counts.launches.total() <= 1400
    assert block_rows(None, model.process.floats_per_row, torch_device.array(np.zeros((256, 28 * 28)))) is None


@pytest.mark.slow
def test_blocks_of_images_on_a_device_give_the_numbers_of_the_host(torch_device):
    (_, host), (_, device) = (_images(place, 4, 6) for place in (TORCH, torch_device))
    for name, x in tree.leaves(host.model).items():
        assert_close(torch_device.numpy(tree.leaves(device.model)[name]), TORCH.numpy(x), 1e-10, name)
