"""The whole bound: closed form, automatic differentiation, slopes, blocks, backends, precisions."""

import numpy as np
import pytest
from helpers import (
    EXACT,
    KERNELS,
    LIKELIHOODS,
    POSTERIORS,
    WITH_SLOPES,
    as_arrays,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    autograd,
    bound_stage,
    gpr,
    inducing_inputs,
    lower_leaves,
    named,
    problem,
    process,
    short_names,
    value_and_gradient,
)

from agp import tree
from agp.bounds import Batch, elbo
from agp.likelihoods import Gaussian


def _host_gradient(model, X, y, scale=1.0):
    value, gradient = value_and_gradient(model, X, y, scale=scale)
    return float(value), gradient


@pytest.mark.cover(2)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_closed_form_is_autodiff(kernel, posterior, likelihood, outputs, block, torch_place):
    model, X, y = problem(kernel, posterior, likelihood, outputs=outputs)
    here, X, y = torch_place.move(model), torch_place.array(X), torch_place.array(y)
    closed_value, closed = value_and_gradient(here, X, y, scale=2.5)
    auto_value, auto = value_and_gradient(here, X, y, scale=2.5, gradient="autodiff")
    assert closed.keys() == auto.keys() == named(model, "parameter").keys()
    np.testing.assert_allclose(torch_place.numpy(closed_value), torch_place.numpy(auto_value), rtol=1e-13)
    for name in closed:
        assert_close(torch_place.numpy(closed[name]), torch_place.numpy(auto[name]), EXACT, name)


@pytest.mark.cover(2)
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kernel", ["rbf", "matern32-ard", "sum-ard"])
def test_inputs_too(kernel, posterior, likelihood, block, torch_place):
    model, X, y = problem(kernel, posterior, likelihood, outputs=3)
    here = bound_stage(model, y, 2.5)
    assert_closed_form_is_autograd(lambda leaves: here(lower_leaves(leaves)), named(model, "parameter") | {"X": X})


@pytest.mark.cover(2)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("posterior", WITH_SLOPES)
def test_closed_form_is_slope(posterior, likelihood, outputs, block):
    model, X, y = problem("sum-ard", posterior, likelihood, outputs=outputs)
    assert_closed_form_is_slope(bound_stage(model, y, 2.5), named(model, "parameter") | {"X": X})


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_coincident_points(kernel, posterior, torch_place):
    model, X, y = problem(kernel, posterior)
    X[:5] = inducing_inputs(model)[:5]
    leaves = {k: torch_place.array(v) for k, v in (named(model, "parameter") | {"X": X}).items()}
    found = autograd(bound_stage(model, y), leaves, (torch_place.array(1.0),))
    assert all(np.isfinite(torch_place.numpy(g)).all() for g in found.values())
    stage = bound_stage(model, y)
    host = {k: torch_place.numpy(v) for k, v in leaves.items()}
    assert_closed_form_is_autograd(lambda leaves: stage(lower_leaves(leaves)), host)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_an_auxiliary_leaf_has_no_gradient(posterior, backend):
    model, X, y = problem("rbf", posterior)
    bar, _ = backend.move(model).bound(backend.array(X), backend.array(y))[1](1.0)
    assert isinstance(bar, type(model))
    assert "posterior.inverse_factor" not in named(bar)
    assert named(bar).keys() == named(model, "parameter").keys()


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.sample(23)
@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("rows", [1, 5, 12, 100])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_blocked_bound_is_the_bound(posterior, rows, backend, block):
    model, X, y = problem("sum-ard", posterior, "bernoulli", outputs=2)
    model, X, y = backend.move(model), backend.array(X), backend.array(y)
    whole, pull_whole = elbo(model, Batch(X, y))
    blocked, pull_blocked = elbo(model, Batch(X, y), block_rows=rows)
    np.testing.assert_allclose(backend.numpy(blocked), backend.numpy(whole), rtol=1e-13)
    ours, theirs = pull_blocked(0.7), pull_whole(0.7)
    assert ours[1] is None
    for name, value in named(theirs[0]).items():
        assert_close(backend.numpy(named(ours[0])[name]), backend.numpy(value), 1e-11, name)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_blocked_bound_by_automatic_differentiation(posterior, torch_place):
    import torch

    model, X, y = problem("rbf-ard", posterior)
    model, X, y = torch_place.move(model), torch_place.array(X), torch_place.array(y)
    raw = {k: v.requires_grad_() for k, v in tree.unconstrain(model).items()}
    value = elbo(tree.constrain(model, raw), Batch(X, y), block_rows=5)[0]
    found = torch.autograd.grad(value, list(raw.values()))
    expected = value_and_gradient(model, X, y)[1]
    for name, gradient in short_names(dict(zip(raw, found, strict=True))).items():
        assert_close(torch_place.numpy(gradient), torch_place.numpy(expected[name]), EXACT, name)


def test_a_minibatch_bound_is_unbiased(backend):
    model, X, y = problem("rbf", "relaxed", rows=12)
    model, X, y = backend.move(model), backend.array(X), backend.array(y)
    whole = backend.numpy(model.bound(X, y)[0])
    parts = [backend.numpy(model.bound(X[i : i + 3, :], y[i : i + 3, :], scale=4.0)[0]) for i in range(0, 12, 3)]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-12)


# -- the same numbers everywhere --------------------------------------------------------------------------------------


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_same_numbers_on_every_backend(posterior, likelihood, backend, block):
    model, X, y = problem("sum-ard", posterior, likelihood, outputs=3)
    expected_value, expected = _host_gradient(model, X, y, 3.0)
    value, gradient = value_and_gradient(backend.move(model), backend.array(X), backend.array(y), scale=3.0)
    np.testing.assert_allclose(backend.numpy(value), expected_value, rtol=1e-9)
    for name in expected:
        assert_close(backend.numpy(gradient[name]), expected[name], 1e-9, name)


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_float32_follows_float64(posterior, likelihood, backend):
    # Kuu has condition 1e2 to 1e3 here, so that 1e-4 leaves a margin over cond * eps = 6e-5
    model, X, y = problem("sum-ard", posterior, likelihood, outputs=3)
    X, y = X.astype(np.float32), y.astype(np.float32)
    single = backend.move(model, "float32")
    double = tree.to_backend(single, "numpy", dtype="float64")
    expected_value, expected = _host_gradient(double, X.astype(np.float64), y.astype(np.float64))
    value, gradient = value_and_gradient(single, backend.array(X, "float32"), backend.array(y, "float32"))
    assert_close(backend.numpy(value, "float32"), expected_value, 1e-4)
    for name in expected:
        assert_close(backend.numpy(gradient[name], "float32"), expected[name], 1e-4, name)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_float32_autodiff_stays_float32(posterior, torch_place):
    model, X, y = problem("sum-ard", posterior, outputs=3)
    single = torch_place.move(model, "float32")
    X, y = torch_place.array(X, "float32"), torch_place.array(y, "float32")
    closed, auto = (value_and_gradient(single, X, y, gradient=mode)[1] for mode in ("closed-form", "autodiff"))
    for name in closed:
        assert_close(torch_place.numpy(closed[name], "float32"), torch_place.numpy(auto[name], "float32"), 1e-4, name)


# -- exact GP ---------------------------------------------------------------------------------------------------------


def _gpr(kernel, outputs):
    _, X, y = problem(kernel, outputs=outputs)
    return gpr(as_arrays(KERNELS[kernel]()), as_arrays(Gaussian(0.3)), X, y), X, y


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_evidence_closed_form_is_autograd(kernel, outputs, torch_place):
    model, X, y = _gpr(kernel, outputs)
    assert_closed_form_is_autograd(bound_stage(model, y), named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("kernel", ["rbf-ard", "sum"])
def test_evidence_closed_form_is_slope(kernel):
    model, X, y = _gpr(kernel, 3)
    assert_closed_form_is_slope(bound_stage(model, y), named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
def test_no_bound_exceeds_the_evidence(kernel, posterior, backend):
    model, X, y = problem(kernel, posterior, outputs=2)
    exact = gpr(process(model).kernel, model.likelihood, X, y).bound(X, y)[0]
    bound = backend.move(model).bound(backend.array(X), backend.array(y))[0]
    assert backend.numpy(bound) < float(exact)
