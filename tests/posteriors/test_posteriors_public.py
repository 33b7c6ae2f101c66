"""Every posterior of the package has the gradient of its leaves; sites that a gradient passes through."""

import dataclasses
import inspect

import numpy as np
import pytest
from helpers import EXACT, assert_close, lower_leaves, problem

import agp
from agp import tree
from agp.gradient import value_and_gradient
from agp.posteriors import Dual, Posterior, WhiteSites

EVERY = [x for x in vars(agp.posteriors).values() if isinstance(x, type) and issubclass(x, Posterior)]
EVERY = [x for x in EVERY if not inspect.isabstract(x) and not x.holds_data]  # data have no prior
TRAINED = [x for x in EVERY if tree.leaves(x.from_prior(np.eye(4), 1), "parameter")]


def with_posterior(model, q):
    return dataclasses.replace(model, process=dataclasses.replace(model.process, posterior=q))


def assert_gradients_agree(place, model, X, y, names):
    here, X, y = place.move(model), place.array(X), place.array(y)
    closed, auto = (value_and_gradient(here, X, y, gradient=mode)[1] for mode in ("closed-form", "autodiff"))
    assert all(any(found.endswith(f"posterior.{name}") for found in closed) for name in names)
    for name, x in auto.items():
        assert_close(place.numpy(closed[name]), place.numpy(x), EXACT, name)


@pytest.mark.parametrize("posterior", TRAINED)
def test_every_posterior_has_the_gradient_of_its_leaves(posterior, torch_place):
    # NaturalState was public, and in the place of its root held the cotangent of W
    model, X, y = problem(outputs=2)
    q = posterior.from_prior(model.process.inducing_covariance()[0], 2)
    rng = np.random.default_rng(9)
    leaves = tree.leaves(q, "parameter")
    moved = {name: x * (1.0 + 0.1 * rng.normal(size=x.shape)) + 0.1 * (x.ndim == 2) for name, x in leaves.items()}
    q = tree.with_leaves(q, lower_leaves(moved))
    assert_gradients_agree(torch_place, with_posterior(model, q), X, y, leaves)


def white_sites(outputs=2):
    """A sparse GP with such sites, of which some are negative, and its data."""
    model, X, y = problem(outputs=outputs)
    rng = np.random.default_rng(8)
    roots = rng.normal(size=(outputs, 7, 7))
    precision = 0.2 * roots @ np.swapaxes(roots, 1, 2) - 0.3 * np.eye(7)
    return with_posterior(model, WhiteSites(rng.normal(size=(7, outputs)), precision)), X, y


def test_white_sites_have_the_gradient_of_automatic_differentiation(torch_place):
    assert_gradients_agree(torch_place, *white_sites(), ("shift", "precision"))


def test_white_sites_are_those_of_a_dual_posterior():
    model, X, y = white_sites()
    stored = with_posterior(model, Dual(*tree.leaves(model.process.posterior).values(), tied="white"))
    assert float(model.bound(X, y)[0]) == float(stored.bound(X, y)[0])
    prior = WhiteSites.from_prior(np.eye(7), 2)
    assert float(prior.kl_divergence(prior.factorise(np.eye(7))[0])[0]) == pytest.approx(0.0, abs=1e-14)
