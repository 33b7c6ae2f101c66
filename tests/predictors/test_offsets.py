"""Predictors whose latent functions are moved by a further column of the inputs."""

import numpy as np
import pytest
from helpers import NUMPY, assert_close

from agp.likelihoods import Poisson
from agp.models import SVGP, DeepGP
from agp.predictors import with_offsets

RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, (12, 2))
Y = 1.0 * RNG.poisson(3.0, (12, 1))
OFFSETS = np.log(RNG.uniform(0.5, 20.0, (12, 1)))
MODELS = {
    "sparse": lambda: SVGP.from_data(X, Y, likelihood=Poisson(), num_inducing=4),
    "two outputs": lambda: SVGP.from_data(X, np.hstack([Y, Y]), likelihood=Poisson(), num_inducing=4),
    "deep": lambda: DeepGP.from_data(X, Y, likelihood=Poisson(), num_inducing=4, layers=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_means_are_moved_and_variances_are_not(name, backend):
    predictor = backend.move(MODELS[name]()).predictor()
    moved = with_offsets(predictor)
    A, both = backend.array(X), backend.array(np.hstack([X, OFFSETS]))
    (mean, variance), (moved_mean, moved_variance) = predictor.predict(A), moved.predict(both)
    assert moved.width == 3
    assert_close(backend.numpy(moved_mean), backend.numpy(mean) + OFFSETS, 1e-12)
    assert_close(backend.numpy(moved_variance), backend.numpy(variance), 1e-9)
    assert_close(backend.numpy(moved.predict_mean(both)), backend.numpy(moved_mean), 1e-12)
    slopes, moved_slopes = (backend.numpy(p.gradient(x).mean) for p, x in ((predictor, A), (moved, both)))
    assert_close(moved_slopes[..., :2], slopes, 1e-9)
    assert_close(moved_slopes[..., 2], np.ones(tuple(mean.shape)), 1e-12)


def test_observations_are_those_of_the_likelihood_with_that_exposure():
    predictor = MODELS["sparse"]().predictor()
    moved, five = with_offsets(predictor), np.full((12, 1), np.log(5.0))
    exposed = MODELS["sparse"]()
    exposed = type(exposed)(exposed.process, Poisson(exposure=5.0), exposed.priors).predictor()
    both = np.hstack([X, five])
    assert_close(moved.predict(both, observed=True).variance, exposed.predict(X, observed=True).variance, 1e-12)
    np.testing.assert_array_equal(moved.quantile(both, [0.1, 0.9]), exposed.quantile(X, [0.1, 0.9]))
    assert_close(moved.log_density(both, Y), exposed.log_density(X, Y), 1e-10)
    assert_close(moved.sample(both, 3, seed=1), predictor.sample(X, 3, seed=1) + five, 1e-10)


def test_other_widths_are_refused():
    with pytest.raises(ValueError, match="X has 2 columns, but the model was built for 3"):
        with_offsets(MODELS["sparse"]().predictor()).predict(NUMPY.array(X))
