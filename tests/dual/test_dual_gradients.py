"""The M-step objective of every storage: closed form, automatic differentiation, slopes, blocks, backends."""

import dataclasses
import inspect

import numpy as np
import pytest
from dual_cases import LIKELIHOODS, STORAGES, bound_stage, case
from helpers import (
    EXACT,
    JAX,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    problem,
)

import agp
from agp import tree
from agp.gradient import value_and_gradient
from agp.posteriors import Dual, Posterior, WhiteSites, inducing_covariance

AUXILIARY = ("posterior.", "site_")


def _leaves(model, X):
    return tree.leaves(model, "parameter") | {"inputs": X}


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("storage", STORAGES)
def test_closed_form_is_autograd(storage, likelihood, torch_place):
    model, X, y = case(storage, likelihood)
    assert_closed_form_is_autograd(bound_stage(model, y, 1.0 if storage == "full" else 2.5), _leaves(model, X))


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
    closed, auto = (value_and_gradient(here, X, y, mode=mode) for mode in ("closed-form", "autodiff"))
    assert_close(JAX.numpy(closed[0]), JAX.numpy(auto[0]), 1e-13)
    for name in closed[1]:
        assert_close(JAX.numpy(closed[1][name]), JAX.numpy(auto[1][name]), EXACT, name)


@pytest.mark.parametrize("storage", STORAGES)
def test_sites_have_no_gradient(storage):
    model, X, y = case(storage)
    bar, _ = model.bound(X, y)[1](1.0)
    assert isinstance(bar, type(model))
    assert tree.leaves(bar).keys() == tree.leaves(model, "parameter").keys()
    assert not [name for name in tree.leaves(bar) if name.startswith(AUXILIARY)]


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
    for name, x in tree.leaves(pull(0.7)[0]).items():
        assert_close(backend.numpy(tree.leaves(bar)[name]), backend.numpy(x), 1e-10, name)


@pytest.mark.parametrize("storage", ["natural", "datum"])
def test_minibatches_are_unbiased(storage):
    model, X, y = case(storage, "logit", rows=12)
    whole = float(model.bound(X, y)[0])
    parts = [float(model.bound(X[i : i + 3], y[i : i + 3], scale=4.0)[0]) for i in range(0, 12, 3)]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-12)


# -- sites that a gradient passes through -----------------------------------------------------------------------------


def assert_gradients_agree(place, model, X, y, names):
    here, X, y = place.move(model), place.array(X), place.array(y)
    closed, auto = (value_and_gradient(here, X, y, mode=mode)[1] for mode in ("closed-form", "autodiff"))
    assert names <= closed.keys()
    for name, x in auto.items():
        assert_close(place.numpy(closed[name]), place.numpy(x), EXACT, name)


PUBLIC = [getattr(agp.posteriors, name) for name in agp.posteriors.__all__]
PUBLIC = [x for x in PUBLIC if isinstance(x, type) and issubclass(x, Posterior) and not inspect.isabstract(x)]
TRAINED = [x for x in PUBLIC if tree.leaves(x.from_prior(np.eye(4), 1), "parameter")]


@pytest.mark.parametrize("posterior", TRAINED)
def test_every_public_posterior_has_the_gradient_of_its_leaves(posterior, torch_place):
    # NaturalState was public, and in the place of its root held the cotangent of W
    model, X, y = problem(outputs=2)
    q = posterior.from_prior(inducing_covariance(model)[0], 2)
    rng = np.random.default_rng(9)
    leaves = tree.leaves(q, "parameter")
    moved = {name: x * (1.0 + 0.1 * rng.normal(size=x.shape)) + 0.1 * (x.ndim == 2) for name, x in leaves.items()}
    model = dataclasses.replace(model, posterior=tree.with_leaves(q, moved))
    assert_gradients_agree(torch_place, model, X, y, {f"posterior.{name}" for name in leaves})


def _white_sites(outputs=2):
    """A sparse GP with such sites, of which some are negative, and its data."""
    model, X, y = problem(outputs=outputs)
    rng = np.random.default_rng(8)
    roots = rng.normal(size=(outputs, 7, 7))
    precision = 0.2 * roots @ np.swapaxes(roots, 1, 2) - 0.3 * np.eye(7)
    return dataclasses.replace(model, posterior=WhiteSites(rng.normal(size=(7, outputs)), precision)), X, y


def test_white_sites_have_the_gradient_of_automatic_differentiation(torch_place):
    model, X, y = _white_sites()
    assert_gradients_agree(torch_place, model, X, y, {"posterior.shift", "posterior.precision"})


def test_white_sites_are_those_of_a_dual_posterior():
    model, X, y = _white_sites()
    stored = dataclasses.replace(model, posterior=Dual(*tree.leaves(model.posterior).values(), tied="white"))
    assert float(model.bound(X, y)[0]) == float(stored.bound(X, y)[0])
    prior = WhiteSites.from_prior(np.eye(7), 2)
    assert float(prior.kl_divergence(prior.factorise(np.eye(7))[0])[0]) == pytest.approx(0.0, abs=1e-14)
