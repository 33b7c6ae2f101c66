"""New inducing variables leave q(f) and the bound as they are."""

from functools import partial

import numpy as np
import pytest

import agp
from agp import models
from agp.inducing import greedy_variance
from agp.posteriors import (
    DiagonalMarginal,
    DiagonalWhitened,
    Dual,
    DualInverseFree,
    FullSiteLikelihoodForm,
    FullSiteRelaxed,
    InverseFree,
    LikelihoodForm,
    Marginal,
    Relaxed,
    Whitened,
)

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (60, 2))
Y = np.stack([np.sin(2.0 * X[:, 0]), X[:, 1] ** 2], axis=1) + 0.1 * RNG.standard_normal((60, 2))
TIED = tuple(partial(Dual.from_prior, tied=tied) for tied in ("natural", "kernel", "white"))
EXACT = (Whitened, Marginal, DiagonalWhitened, *TIED)
SITES = (LikelihoodForm, FullSiteLikelihoodForm, partial(LikelihoodForm.from_prior, preconditioned=False))
INVERSES = (Relaxed, FullSiteRelaxed, partial(Relaxed.from_prior, preconditioned=False), InverseFree, DualInverseFree)
TOLERANCE = {**dict.fromkeys(EXACT, 1e-12), **dict.fromkeys(SITES, 1e-8), **dict.fromkeys(INVERSES, 1e-5)}


def trained(place, posterior, steps=60):
    """A model that has learned something, with inverse factors that fit."""
    kernel = agp.RBF(variance=1.0, lengthscale=[1.0, 1.5])
    model = agp.SVGP.from_data(X, Y, posterior=posterior, num_inducing=7, kernel=kernel)
    model = agp.train(model, X, Y, steps=steps).model
    q, Kuu = model.process.posterior, model.process.inducing_covariance()[0]
    if q.inverse_factors:
        q = agp.tree.with_leaves(q, {name: q.invert(Kuu, name, tolerance=1e-9).factor for name in q.inverse_factors})
        model = agp.tree.replace(model, {"process.posterior": q})
    return place.move(model)


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("posterior", list(TOLERANCE), ids=lambda q: getattr(q, "__name__", str(q.__class__)))
def test_the_bound_and_the_predictions_stay(backend, posterior):
    model = trained(backend, posterior)
    Xb, Yb = backend.array(X), backend.array(Y)
    Z = greedy_variance(Xb, model.process.kernel, 9, given=model.process.inducing.Z)
    wider = models.add_inducing(model, Z)
    assert wider.process.inducing.count == wider.process.posterior.count == 16
    old, new = (float(m.bound(Xb, Yb)[0]) for m in (model, wider))
    assert new == pytest.approx(old, rel=TOLERANCE[posterior], abs=100.0 * TOLERANCE[posterior])
    for before, after in zip(model.predict(Xb), wider.predict(Xb), strict=True):
        np.testing.assert_allclose(backend.numpy(after), backend.numpy(before), atol=10.0 * TOLERANCE[posterior])


@pytest.mark.slow
@pytest.mark.parametrize("posterior", [LikelihoodForm, Relaxed, FullSiteRelaxed])
def test_pseudo_observations_that_training_can_move_keep_the_mean(posterior):
    model = agp.train(agp.SVGP.from_data(X, Y, posterior=posterior, num_inducing=7), X, Y, steps=60).model
    model = agp.tree.replace(model, {"process": model.process.recompute_factors()})
    part = model.process.process
    Z = greedy_variance(X, part.kernel, 9, given=part.inducing.Z)
    begun = models.add_inducing(model, Z, begun=True)
    spread = np.std(Y, axis=0)
    np.testing.assert_allclose(begun.predict(X).mean / spread, model.predict(X).mean / spread, atol=2e-2)
    variances = begun.process.process.posterior.site_noise.variances
    assert np.max(variances[7:]) < np.mean(np.diagonal(part.inducing_covariance()[0]))


def test_of_a_mixture_the_functions_grow():
    model = agp.SVGP.from_data(X, Y, num_inducing=6, posterior="whitened")
    wider = models.add_inducing(model, X[:4])
    assert float(wider.bound(X, Y)[0]) == pytest.approx(float(model.bound(X, Y)[0]), rel=1e-10)


def test_collapsed_bounds_do_not_fall():
    model = agp.SGPR.from_data(X, Y[:, 0], num_inducing=6)
    assert float(models.add_inducing(model, X[:4]).bound(X, Y[:, 0])[0]) > float(model.bound(X, Y[:, 0])[0])


def test_a_posterior_that_cannot_says_so():
    kernel = agp.RBF(variance=1.0, lengthscale=[1.0, 1.5])
    model = agp.SVGP.from_data(X, Y, posterior=DiagonalMarginal, num_inducing=6, kernel=kernel)
    with pytest.raises(TypeError, match="DiagonalMarginal does not support adding inducing inputs"):
        models.add_inducing(model, X[:2])
    with pytest.raises(TypeError, match="DiagonalMarginal cannot add inducing variables"):
        model.process._add_inducing(X[:2])


@pytest.mark.parametrize("bad", [X[:2, :1], X[0], np.full((2, 2), np.nan), [[0.0, 1.0]]])
def test_inputs_must_fit(bad):
    model = agp.SVGP.from_data(X, Y, num_inducing=6, posterior="whitened")
    with pytest.raises((TypeError, ValueError), match="Z"):
        models.add_inducing(model, bad)
