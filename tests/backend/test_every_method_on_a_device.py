"""Every method, and what is around them, on the stand-in of torch's device: the numbers are those of the host."""

import numpy as np
import pytest
from helpers import TORCH, assert_close

import agp
from agp import tree
from agp.backend import to_numpy
from agp.likelihoods import Beta, Exponential, Gamma, NegativeBinomial, Ordinal, Poisson, StudentT
from agp.methods import METHODS, build, updates_of
from agp.training._batches import Batches
from agp.training._run import Run

pytest.importorskip("torch")

ROWS = 24
LIKELIHOODS = {
    "poisson": (Poisson, lambda f: np.round(np.exp(f))),
    "negative binomial": (NegativeBinomial, lambda f: np.round(np.exp(f))),
    "gamma": (Gamma, np.exp),
    "exponential": (Exponential, np.exp),
    "beta": (Beta, lambda f: 1.0 / (1.0 + np.exp(-f))),
    "student": (StudentT, lambda f: f),
    "bernoulli": (agp.Bernoulli, lambda f: (f > 0.0) * 1.0),
    "ordinal": (lambda: Ordinal(3), lambda f: np.digitize(f, [-0.5, 0.5]) * 1.0),
}


def data(place, columns=5):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, columns))
    return place.array(X), place.array(np.sin(X[:, :1]) + 0.1 * rng.normal(size=(ROWS, 1)))


def trained(method, place):
    X, y = data(place)
    likelihood = agp.Gaussian()
    model = build(method, X, y, likelihood=likelihood, kernel="matern32+linear", num_inducing=6, num_actions=4, seed=0)
    run = Run(model, updates_of(method, model, 20), Batches(X, y, ROWS, 0, model._draws), None, {})
    run.advance_to(2, [], None, 1000)
    found = run.model.predict(X)
    return [run.looks[0]["bound"], *map(to_numpy, found)]


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_and_predicts_as_on_the_host(method, torch_device):
    for here, there in zip(trained(method, torch_device), trained(method, TORCH), strict=True):
        assert_close(here, there, 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_likelihood_has_the_numbers_of_the_host(name, torch_device):
    likelihood, targets = LIKELIHOODS[name]

    def numbers(place):
        X, y = data(place)
        y = place.array(targets(to_numpy(y)))
        model = agp.SVGP.from_data(X, y, likelihood=likelihood(), num_inducing=6, posterior="whitened")
        value, gradient = agp.value_and_gradient(model, X, y)
        return [value, model.log_density(X, y), *model.predict(X, observed=True), *gradient.values()]

    for here, there in zip(numbers(torch_device), numbers(TORCH), strict=True):
        error = np.max(np.abs(to_numpy(here) - to_numpy(there)))
        assert error <= 1e-9 * max(1.0, np.max(np.abs(to_numpy(there))))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_models_are_fitted_grown_written_and_read(torch_device, tmp_path):
    X, y = data(torch_device, 2)
    fitted = agp.fit(agp.SGPR.from_data(X, y, num_inducing=4), X, y, max_steps=3).model
    grown = agp.fit_growing(fitted, X, y, most=8, max_steps=3).model
    for model in (fitted, grown):
        agp.save(model, tmp_path / "model.safetensors")
        again = agp.load(tmp_path / "model.safetensors", backend="torch", device=torch_device.device)
        assert_close(to_numpy(again.predict(X).mean), to_numpy(model.predict(X).mean), 1e-12)
        for x in tree.leaves(again).values():
            torch_device.check(x)
    estimators = pytest.importorskip("agp.estimators", exc_type=ImportError)
    predicted = estimators.GPRegressor(method="sgpr", num_inducing=4, kernel="rbf").fit(X, y[:, 0]).predict(X)
    assert predicted.device == X.device
