"""The collapsed bound: closed form, automatic differentiation, slopes, blocks, backends, precisions, memory."""

import numpy as np
import pytest
from helpers import (
    EXACT,
    KERNELS,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    autograd,
    bound_stage,
    inducing_inputs,
    named,
    peak,
    problem,
    process,
    sgpr,
)

from agp import SGPR, tree, value_and_gradient
from agp.bounds import Batch, collapsed_bound, collapsed_posterior, evidence_upper_bound


def collapsed(kernel="rbf-ard", *, outputs=1, rows=12):
    """A random model on the host, far from any optimum, with its data."""
    start, X, y = problem(kernel, "whitened", outputs=outputs, rows=rows)
    return sgpr(process(start).kernel, start.likelihood, inducing_inputs(start), X, y, jitter=1e-3), X, y


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_closed_form_is_autodiff(kernel, outputs, block, torch_place):
    model, X, y = collapsed(kernel, outputs=outputs)
    here, X, y = torch_place.move(model), torch_place.array(X), torch_place.array(y)
    closed_value, closed = value_and_gradient(here, X, y)
    auto_value, auto = value_and_gradient(here, X, y, gradient="autodiff")
    assert closed.keys() == auto.keys() == tree.leaves(model, "parameter").keys()
    np.testing.assert_allclose(torch_place.numpy(closed_value), torch_place.numpy(auto_value), rtol=1e-13)
    for name in closed:
        assert_close(torch_place.numpy(closed[name]), torch_place.numpy(auto[name]), EXACT, name)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kernel", ["rbf", "matern32-ard", "sum-ard"])
def test_inputs_too(kernel, outputs, block, torch_place):
    model, X, y = collapsed(kernel, outputs=outputs)
    assert_closed_form_is_autograd(bound_stage(model, y), named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kernel", ["rbf", "sum-ard"])
def test_closed_form_is_slope(kernel, outputs, block):
    model, X, y = collapsed(kernel, outputs=outputs)
    assert_closed_form_is_slope(bound_stage(model, y), named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("kernel", KERNELS)
def test_coincident_points(kernel, torch_place):
    model, X, y = collapsed(kernel)
    X[:5] = inducing_inputs(model)[:5]
    leaves = named(model, "parameter") | {"X": X}
    here = {k: torch_place.array(v) for k, v in leaves.items()}
    found = autograd(bound_stage(model, y), here, (torch_place.array(1.0),))
    assert all(np.isfinite(torch_place.numpy(g)).all() for g in found.values())
    assert_closed_form_is_autograd(bound_stage(model, y), leaves)


def test_data_have_no_gradient(backend):
    model, X, y = collapsed()
    bar, X_bar = backend.move(model).bound(backend.array(X), backend.array(y))[1](1.0)
    assert isinstance(bar, SGPR)
    assert named(bar).keys() == named(model, "parameter").keys()
    assert X_bar.shape == X.shape


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 5, 12, 100])
def test_blocks_change_rounding_only(rows, backend):
    model, X, y = collapsed("sum-ard", outputs=3)
    model, X, y = backend.move(model), backend.array(X), backend.array(y)
    whole, pull_whole = collapsed_bound(model, Batch(X, y))
    blocked, pull_blocked = collapsed_bound(model, Batch(X, y), block_rows=rows)
    np.testing.assert_allclose(backend.numpy(blocked), backend.numpy(whole), rtol=1e-13)
    ours, theirs = pull_blocked(0.7), pull_whole(0.7)
    assert ours[1] is None
    for name, value in named(theirs[0]).items():
        assert_close(backend.numpy(named(ours[0])[name]), backend.numpy(value), 1e-11, name)


def test_blocks_change_neither_posterior_nor_upper_bound(backend):
    model, X, y = collapsed(outputs=3)
    model, X, y = backend.move(model), backend.array(X), backend.array(y)
    ours, theirs = collapsed_posterior(model, Batch(X, y), block_rows=5), collapsed_posterior(model, Batch(X, y))
    for name in ("Lu", "LB", "c"):
        assert_close(backend.numpy(getattr(ours, name)), backend.numpy(getattr(theirs, name)), 1e-12, name)
    for factors in zip(ours.LG, theirs.LG, strict=True):
        assert_close(*map(backend.numpy, factors), 1e-12)
    upper = [backend.numpy(evidence_upper_bound(model, Batch(X, y), block_rows=rows)) for rows in (5, None)]
    np.testing.assert_allclose(*upper, rtol=1e-13)


def test_blocks_by_automatic_differentiation(torch_place):
    import torch

    model, X, y = collapsed(outputs=3)
    model, X, y = torch_place.move(model), torch_place.array(X), torch_place.array(y)
    raw = {k: v.requires_grad_() for k, v in tree.unconstrain(model).items()}
    value = collapsed_bound(tree.constrain(model, raw), Batch(X, y), block_rows=5)[0]
    found = torch.autograd.grad(value, list(raw.values()))
    expected = value_and_gradient(model, X, y)[1]
    for name, gradient in zip(raw, found, strict=True):
        assert_close(torch_place.numpy(gradient), torch_place.numpy(expected[name]), EXACT, name)


@pytest.mark.parametrize("rows", [5, 12])
def test_compiled_blocks_by_jax(rows):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    model, X, y = collapsed(outputs=3)
    model, X, y = (tree.to_backend(x, "jax") for x in (model, X, y))

    def closed(model, X, y):
        value, pullback = collapsed_bound(model, Batch(X, y), block_rows=rows)
        return value, tree.pull_raw(model, pullback(1.0)[0])

    def auto(model, X, y):
        bound = lambda raw: collapsed_bound(tree.constrain(model, raw), Batch(X, y), block_rows=rows)[0]  # noqa: E731
        return jax.value_and_grad(bound)(tree.unconstrain(model))

    expected_value, expected = value_and_gradient(model, X, y)
    for f in (closed, auto):
        value, gradient = jax.jit(f)(model, X, y)
        np.testing.assert_allclose(value, expected_value, rtol=1e-12)
        for name in expected:
            assert_close(np.asarray(gradient[name]), np.asarray(expected[name]), EXACT, name)


# -- the same numbers everywhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kernel", ["rbf", "sum-ard"])
def test_same_numbers_on_every_backend(kernel, outputs, backend):
    model, X, y = collapsed(kernel, outputs=outputs)
    expected_value, expected = value_and_gradient(model, X, y)
    here, X_here, y_here = backend.move(model), backend.array(X), backend.array(y)
    value, gradient = value_and_gradient(here, X_here, y_here)
    np.testing.assert_allclose(backend.numpy(value), expected_value, rtol=1e-9)
    for name in expected:
        assert_close(backend.numpy(gradient[name]), expected[name], 1e-9, name)
    upper = backend.numpy(here.upper_bound(X_here, y_here))
    np.testing.assert_allclose(upper, model.upper_bound(X, y), rtol=1e-9)


def test_float32_follows_float64(backend):
    model, X, y = collapsed("sum-ard", outputs=3)
    X, y = X.astype(np.float32), y.astype(np.float32)
    single = backend.move(model, "float32")
    double = tree.to_backend(single, "numpy", dtype="float64")
    expected_value, expected = value_and_gradient(double, X.astype(np.float64), y.astype(np.float64))
    X, y = backend.array(X, "float32"), backend.array(y, "float32")
    value, gradient = value_and_gradient(single, X, y)
    assert_close(backend.numpy(value, "float32"), expected_value, 1e-4)
    for name in expected:
        assert_close(backend.numpy(gradient[name], "float32"), expected[name], 1e-4, name)
    backend.check(single.upper_bound(X, y), "float32")


def test_float32_autodiff_stays_float32(torch_place):
    model, X, y = collapsed("sum-ard", outputs=3)
    single = torch_place.move(model, "float32")
    X, y = torch_place.array(X, "float32"), torch_place.array(y, "float32")
    closed, auto = (value_and_gradient(single, X, y, gradient=mode)[1] for mode in ("closed-form", "autodiff"))
    for name in closed:
        assert_close(torch_place.numpy(closed[name], "float32"), torch_place.numpy(auto[name], "float32"), 1e-4, name)


# -- memory -----------------------------------------------------------------------------------------------------------

ROWS, INDUCING = 20_000, 32
WHOLE = ROWS * INDUCING * 8 / 2**20
"""One array of the size of Kuf, in MiB."""


def large():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 2))
    y = np.sin(X[:, :1])
    return SGPR.from_data(X, y, Z=X[:INDUCING]), X, y


@pytest.mark.slow
def test_the_closed_form_holds_one_block():
    model, X, y = large()

    def work(rows):
        value, pullback = collapsed_bound(model, Batch(X, y), block_rows=rows)
        return value, pullback(1.0)[0]

    assert peak(lambda: work(500)) < 0.5 * WHOLE
    assert peak(lambda: work(None)) > 4 * WHOLE  # so the limit above means something


@pytest.mark.slow
def test_posterior_and_upper_bound_hold_one_block():
    model, X, y = large()
    assert peak(lambda: collapsed_posterior(model, Batch(X, y), block_rows=500)) < 0.5 * WHOLE
    assert peak(lambda: evidence_upper_bound(model, Batch(X, y), block_rows=500)) < 0.5 * WHOLE


@pytest.mark.slow
def test_the_memory_of_the_model_is_a_budget():
    model, X, y = large()
    assert peak(lambda: model.bound(X, y, memory=1.0)[1](1.0)) < 2.0
    assert model.bound(X, y, memory=1.0)[1](1.0)[1] is None


@pytest.mark.slow
def test_autodiff_keeps_no_block():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model, X, y = (tree.to_backend(x, "torch") for x in large())
    raw = {name: x.clone().requires_grad_() for name, x in tree.unconstrain(model).items()}
    kept = []

    def pack(x):
        kept.append(x.numel() * x.element_size() / 2**20)
        return x

    def kept_by(rows):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            collapsed_bound(tree.constrain(model, raw), Batch(X, y), block_rows=rows)
        return sum(kept)

    assert kept_by(500) < 2 * WHOLE
    assert kept_by(None) > 4 * WHOLE


@pytest.mark.parametrize("mode", ["closed-form", "autodiff"])
def test_compiled_memory_is_that_of_one_block(mode):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    model, X, y = (tree.to_backend(x, "jax") for x in large())

    def f(rows):
        def of_raw(raw, X, y):
            return collapsed_bound(tree.constrain(model, raw), Batch(X, y), block_rows=rows)[0]

        def closed(raw, X, y):
            here = tree.constrain(model, raw)
            value, pullback = collapsed_bound(here, Batch(X, y), block_rows=rows)
            return value, tree.pull_raw(here, pullback(1.0)[0])

        return closed if mode == "closed-form" else jax.value_and_grad(of_raw)

    def temporary(rows):
        compiled = jax.jit(f(rows)).lower(tree.unconstrain(model), X, y).compile()
        return compiled.memory_analysis().temp_size_in_bytes / 2**20

    assert temporary(500) < WHOLE
    assert temporary(None) > 2 * WHOLE
