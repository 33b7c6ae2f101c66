"""Torch on stand-ins of Apple's and Intel's cards: no float64 there, and R-SVGP without factorisations."""

import numpy as np
import pytest
from helpers import TORCH, Place, assert_close

import agp
from agp import tree
from agp.backend import as_widest_float, backend_of, to_numpy
from agp.likelihoods import Poisson, StudentT
from agp.methods import METHODS, build, updates_of
from agp.training._batches import Batches
from agp.training._run import Run

torch = pytest.importorskip("torch")
from standins.torch_cards import MPS, XPU, without_kernel  # noqa: E402
from standins.torch_device import standing_in  # noqa: E402

CARDS = {"mps": MPS, "xpu": XPU}
ROWS = 24
INVERSE_FREE = ("rsvgp", "asvgp", "solve-relaxed", "deep-rsvgp", "deep-asvgp")
"""Methods without factorisations of matrices."""
NOT_ON_MPS = {"cggp": "_linalg_eigh"}
"""Methods for which torch lacks an operator on Apple's cards, and that operator."""


@pytest.fixture(params=CARDS)
def card(request):
    with standing_in(CARDS[request.param]):
        yield Place("torch", f"{request.param}:0")


@pytest.fixture
def mps():
    with standing_in(MPS):
        yield Place("torch", "mps:0")


def data(place):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3))
    return place.array(X, "float32"), place.array(np.sin(X[:, :1]) + 0.1 * rng.normal(size=(ROWS, 1)), "float32")


def trained(method, place):
    X, y = data(place)
    parts = {"likelihood": agp.Gaussian(), "kernel": "matern32+linear", "seed": 0}
    model = build(method, X, y, num_inducing=6, num_actions=4, **parts)
    run = Run(model, updates_of(method, model, 20), Batches(X, y, ROWS, 0, model._draws), None, {})
    run.advance_to(2, [], None, 1000)
    return run.model, [run.looks[0]["bound"], *map(to_numpy, run.model.predict(X))]


def test_the_stand_in_knows_what_torch_lacks():
    lacking = without_kernel()
    assert {"_linalg_svd.U", "linalg_eig"} <= lacking
    assert not {"mm", "add.Tensor", "exp.out", "_foreach_copy_"} & lacking
    with standing_in(MPS):
        A = torch.eye(3, device="mps:0")
        with pytest.raises(
            NotImplementedError, match=r"'aten::_linalg_svd.*' is not currently implemented for the MPS"
        ):
            torch.linalg.svd(A)
        for make in (A.double, lambda: torch.zeros(2, dtype=torch.float64, device="mps:0")):
            with pytest.raises(TypeError, match="doesn't support float64"):
                make()
        assert A.cpu().double().dtype is torch.float64
    with (
        standing_in(XPU),
        pytest.raises(NotImplementedError, match="linalg_cholesky_ex' on the XPU backend is falling"),
    ):
        torch.linalg.cholesky(torch.eye(3, device="xpu:0"))


# -- training and predictions -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", INVERSE_FREE)
def test_inverse_free_methods_run_on_both_cards_in_float32(method, card):
    model, found = trained(method, card)
    for x in tree.leaves(model).values():
        card.check(x, "float32")
    for here, there in zip(found, trained(method, TORCH)[1], strict=True):
        assert_close(here, there, 1e-3)


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_apples_cards_or_names_what_torch_lacks(method, mps):
    if method in NOT_ON_MPS:
        with pytest.raises(
            NotImplementedError, match=f"'aten::{NOT_ON_MPS[method]}.*not currently implemented for the MPS"
        ):
            trained(method, mps)
        return
    _, found = trained(method, mps)
    assert all(np.isfinite(x).all() for x in found)


@pytest.mark.slow
def test_r_svgp_is_trained_saved_and_loaded(card, tmp_path):
    X, y = data(card)
    start = agp.SVGP.from_data(X, y, num_inducing=6, jitter=1e-4)
    model = agp.train(start, X, y, steps=30, batch_size=12, draws="device").model
    agp.save(model, tmp_path / "model.safetensors")
    again = agp.load(tmp_path / "model.safetensors", backend="torch", device=card.device)
    for x in (*tree.leaves(again).values(), *again.predict(X, observed=True)):
        card.check(x, "float32")
    assert_close(to_numpy(again.predict(X).mean), to_numpy(model.predict(X).mean), 1e-6)
    assert np.isfinite(to_numpy(model.log_density(X, y))).all()
    host = agp.load(tmp_path / "model.safetensors", backend="torch", device="cpu", dtype="float64")
    assert_close(to_numpy(host.predict(X.cpu().double()).mean), to_numpy(model.predict(X).mean), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [agp.Bernoulli, StudentT, Poisson])
def test_r_svgp_takes_other_likelihoods(likelihood, card):
    X, y = data(card)
    y = (y > 0.0).to(y.dtype)
    model = agp.SVGP.from_data(X, y, num_inducing=6, likelihood=likelihood())
    model = agp.train(model, X, y, steps=3, batch_size=12).model
    for x in model.predict(X, observed=True):
        card.check(x, "float32")


@pytest.mark.slow
def test_deep_models_draw_there(card):
    X, y = data(card)
    model = agp.DeepGP.from_data(X, y, num_inducing=4, posterior="relaxed")
    for where in ("host", "device"):
        moved = agp.train(model, X, y, steps=2, batch_size=12, draws=where).model
        card.check(moved.predict(X).mean, "float32")
    card.check(model.sample_functions(2)(X), "float32")


# -- what the plug-in assumes -----------------------------------------------------------------------------------------


def test_float64_is_refused_with_a_remedy(card):
    X, y = np.ones((3, 2)), np.ones(3)
    words = rf"torch's device '{card.device}' has no float64; pass dtype='float32', or use the device 'cpu'"
    for move in (
        lambda: agp.to_backend(X, "torch", device=card.device),
        lambda: agp.to_backend(X.astype("float32"), "torch", device=card.device, dtype="float64"),
        lambda: agp.to_backend(agp.GPR.from_data(X, y), "torch", device=card.device),
    ):
        with pytest.raises(ValueError, match=words):
            move()
    assert agp.to_backend(X, "torch", device=card.device, dtype="float32").dtype is torch.float32
    assert agp.to_backend(np.arange(3), "torch", device=card.device).dtype is torch.int64


def test_the_plug_in_knows_the_card(card):
    X, _ = data(card)
    B = backend_of(X)
    assert B.devices() == ["cpu", card.device]
    assert B.device_name(X) == card.device
    assert as_widest_float(X).dtype is torch.float32
    assert B.widest_float(X.cpu()) is torch.float64
    assert B.device_memory(X) == 80 * 2**10
    assert B.peak_memory(X) > 0.0
    assert B.generator(X, 1, 2).standard_normal((3,)).dtype is torch.float32
    assert not B.captures(X)
    B.synchronise(X)
    assert B.row_major(X) is X
    assert_close(to_numpy(B.inner(X, X)), np.sum(to_numpy(X) ** 2), 1e-6)


def test_log_ndtr_on_apples_cards(mps):
    x = np.concatenate([-np.logspace(-3, 2, 40), [0.0], np.logspace(-3, 1, 30)])
    B = agp.get_backend("torch")
    expected = torch.special.log_ndtr(torch.from_numpy(x)).numpy()
    found = to_numpy(B.special("log_ndtr", mps.array(x, "float32")))
    assert np.max(np.abs(found / expected - 1.0)) < 1e-4
