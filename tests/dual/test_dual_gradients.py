"""The M-step objective of every storage: closed form, automatic differentiation, slopes, blocks, backends."""

import numpy as np
import pytest
from dual_cases import LIKELIHOODS, STORAGES, bound_stage, case, known
from helpers import EXACT, JAX, assert_close, assert_closed_form_is_autograd, assert_closed_form_is_slope, named

from agp.gradient import value_and_gradient

AUXILIARY = ("posterior.", "site_")


def _leaves(model, X):
    return named(model, "parameter") | {"inputs": X}


@pytest.mark.cover(2, quick=1)
@pytest.mark.filterwarnings("ignore:.*would not have been positive definite:agp.errors.RepairWarning")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("storage", STORAGES)
def test_closed_form_is_autograd(storage, likelihood, torch_place):
    model, X, y = case(storage, likelihood)
    stage = bound_stage(model, y, 1.0 if storage == "full" else 2.5, **known(likelihood, y))
    assert_closed_form_is_autograd(stage, _leaves(model, X))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["rbf", "matern32-ard", "sum-ard"])
@pytest.mark.parametrize("storage", STORAGES)
def test_closed_form_is_autograd_for_every_kernel(storage, kernel, torch_place):
    model, X, y = case(storage, "logit", kernel=kernel, outputs=3)
    assert_closed_form_is_autograd(bound_stage(model, y), _leaves(model, X))


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson"])
@pytest.mark.parametrize("storage", STORAGES)
def test_closed_form_is_slope(storage, likelihood):
    model, X, y = case(storage, likelihood)
    assert_closed_form_is_slope(bound_stage(model, y), _leaves(model, X))


@pytest.mark.parametrize("storage", STORAGES)
def test_closed_form_is_the_gradient_of_jax(storage):
    pytest.importorskip("jax", reason="jax is not installed: not executed")
    model, X, y = case(storage, "logit")
    here, X, y = JAX.move(model), JAX.array(X), JAX.array(y)
    closed, auto = (value_and_gradient(here, X, y, gradient=mode) for mode in ("closed-form", "autodiff"))
    assert_close(JAX.numpy(closed[0]), JAX.numpy(auto[0]), 1e-13)
    for name in closed[1]:
        assert_close(JAX.numpy(closed[1][name]), JAX.numpy(auto[1][name]), EXACT, name)


@pytest.mark.parametrize("storage", STORAGES)
def test_sites_have_no_gradient(storage):
    model, X, y = case(storage)
    bar, _ = model.bound(X, y)[1](1.0)
    assert isinstance(bar, type(model))
    assert named(bar).keys() == named(model, "parameter").keys()
    assert not [name for name in named(bar) if name.startswith(AUXILIARY)]


@pytest.mark.parametrize("storage", STORAGES)
def test_same_numbers_on_every_backend(storage, backend):
    model, X, y = case(storage, "logit")
    expected_value, expected = value_and_gradient(model, X, y)
    value, gradient = value_and_gradient(backend.move(model), backend.array(X), backend.array(y))
    assert_close(backend.numpy(value), expected_value, 1e-10)
    for name in expected:
        assert_close(backend.numpy(gradient[name]), expected[name], 1e-9, name)


@pytest.mark.parametrize("storage", ["inverse-free", "datum"])
def test_a_bound_in_blocks_is_the_bound(storage, backend, monkeypatch):
    model, X, y = case(storage, "logit", rows=15)
    here, X, y = backend.move(model), backend.array(X), backend.array(y)
    value, pull = here.bound(X, y)
    blocked, pull_blocked = here.bound(X, y, memory=4 * 8 * 200 / 2**20)
    assert_close(backend.numpy(blocked), backend.numpy(value), 1e-12)
    bar, X_bar = pull_blocked(0.7)
    assert X_bar is None  # so there were blocks
    for name, x in named(pull(0.7)[0]).items():
        assert_close(backend.numpy(named(bar)[name]), backend.numpy(x), 1e-10, name)


@pytest.mark.parametrize("storage", ["natural", "datum"])
def test_minibatches_are_unbiased(storage):
    model, X, y = case(storage, "logit", rows=12)
    whole = float(model.bound(X, y)[0])
    parts = [float(model.bound(X[i : i + 3], y[i : i + 3], scale=4.0)[0]) for i in range(0, 12, 3)]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-12)
