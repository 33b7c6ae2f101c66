"""Mean functions: pullbacks, bounds and gradients through them, predictions and joint samples."""

import numpy as np
import pytest
from helpers import (
    POSTERIORS,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    bound_stage,
    gpr,
    inducing_inputs,
    lower_leaves,
    named,
    problem,
    process,
    sgpr,
    svgp,
    toy_data,
    with_leaves,
)

from agp.kernels import RBF
from agp.likelihoods import Bernoulli
from agp.means import ConstantMean, LinearMean, ZeroMean
from agp.models import GPR, SVGP
from agp.updates import Adam, NaturalGradient

MEANS = {
    "zero": lambda D, P: ZeroMean(),
    "constant": lambda D, P: ConstantMean(0.3 + np.arange(float(P))),
    "shared-constant": lambda D, P: ConstantMean(np.asarray(0.7)),
    "linear": lambda D, P: LinearMean(np.cos(np.arange(float(D * P))).reshape(D, P), np.sin(np.arange(float(P)))),
    "linear-shared-offset": lambda D, P: LinearMean(np.ones((D, P)), np.asarray(-0.4)),
}


def _models(mean, outputs=2):
    model, X, y = problem("rbf-ard", "whitened", outputs=outputs)
    sparse = svgp(process(model).kernel, model.likelihood, process(model).posterior, inducing_inputs(model), 1e-3, mean)
    collapsed = sgpr(process(model).kernel, model.likelihood, inducing_inputs(model), X, y, 1e-3, mean)
    return {"svgp": sparse, "sgpr": collapsed, "gpr": gpr(process(model).kernel, model.likelihood, X, y, mean)}, X, y


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("kind", ["svgp", "sgpr", "gpr"])
def test_closed_form_is_autograd_and_slope(kind, name, torch_place):
    models, X, y = _models(MEANS[name](3, 2))
    leaves = named(models[kind], "parameter") | {"X": X}
    stage = bound_stage(models[kind], y)
    assert_closed_form_is_slope(stage, leaves)
    assert_closed_form_is_autograd(lambda leaves: stage(lower_leaves(leaves)), leaves)


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("kind", ["svgp", "sgpr", "gpr"])
def test_a_mean_function_is_an_offset_of_the_targets(kind, name, backend):
    # bound(y; h) = bound(y - h; 0), and predictions move by h
    mean = MEANS[name](3, 2)
    models, X, y = _models(mean)
    h = np.broadcast_to(mean(X)[0], y.shape)
    plain = _models(ZeroMean())[0][kind]
    if kind != "svgp":
        plain = with_leaves(plain, {"y": y - h})
    with_mean, without = backend.move(models[kind]), backend.move(plain)
    here, targets = backend.array(X), backend.array(y)
    value, shifted = with_mean.bound(here, targets)[0], without.bound(here, backend.array(y - h))[0]
    assert_close(backend.numpy(value), backend.numpy(shifted), 1e-12)
    X_new = X + 0.1
    h_new = np.broadcast_to(mean(X_new)[0], y.shape)
    found, expected = with_mean.predict(backend.array(X_new)), without.predict(backend.array(X_new))
    assert_close(backend.numpy(found.mean), backend.numpy(expected.mean) + h_new, 1e-12)
    assert_close(backend.numpy(found.variance), backend.numpy(expected.variance), 1e-12)
    assert_close(backend.numpy(with_mean.predict_mean(backend.array(X_new))), backend.numpy(found.mean), 1e-9)


@pytest.mark.sample(22)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_every_posterior_takes_a_mean_function(posterior, backend):
    model, X, y = problem("rbf-ard", posterior, outputs=2)
    mean = MEANS["linear"](3, 2)
    moved = svgp(process(model).kernel, model.likelihood, process(model).posterior, inducing_inputs(model), 1e-3, mean)
    here = backend.move(moved).bound(backend.array(X), backend.array(y), memory=1e-4)
    whole = model.bound(X, y - mean(X)[0])
    assert_close(backend.numpy(here[0]), whole[0], 1e-11)
    bar = named(here[1](1.0)[0])
    assert_close(backend.numpy(bar["mean_function.offset"]), _slope_of_offset(model, X, y, mean), 1e-6)


def _slope_of_offset(model, X, y, mean, h=1e-4):
    slopes = []
    for p in range(y.shape[1]):
        step = h * (np.arange(y.shape[1]) == p)
        up, down = (float(model.bound(X, y - mean(X)[0] - s)[0]) for s in (step, -step))
        slopes.append((up - down) / (2.0 * h))
    return np.asarray(slopes)


@pytest.mark.parametrize("coordinates", ["natural", "root"])
def test_natural_gradients_know_the_mean_function(coordinates, backend):
    mean = MEANS["linear"](3, 2)
    models, X, y = _models(mean)
    shifted = _models(ZeroMean())[0]["svgp"]
    rate = 1.0 if coordinates == "natural" else 0.3
    stepped = []
    for model, targets in ((models["svgp"], y), (shifted, y - mean(X)[0])):
        here = backend.move(model)
        update = NaturalGradient(rate, coordinates)
        batch = here._batch(backend.array(X), backend.array(targets))
        stepped.append(update(here, batch, update.init(here))[0])
    for leaf in ("mean", "scale"):
        found, expected = (backend.numpy(getattr(process(model).posterior, leaf)) for model in stepped)
        assert_close(found, expected, 1e-9, leaf)


def test_starting_values_come_from_the_observations(backend):
    X, y = toy_data(40, outputs=2)
    X, y = backend.array(X), backend.array(100.0 + y)
    constant = SVGP.from_data(X, y, mean_function=ConstantMean(), num_inducing=5)
    assert_close(backend.numpy(constant.process.mean_function.value), np.mean(backend.numpy(y), axis=0), 1e-12)
    linear = GPR.from_data(X, y, mean_function=LinearMean())
    assert backend.numpy(linear.mean_function.weights).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert_close(backend.numpy(linear.mean_function.offset), np.mean(backend.numpy(y), axis=0), 1e-12)


def test_classification_starts_at_zero():
    X, y = toy_data(30)
    model = SVGP.from_data(X, 1.0 * (y > 0.5), likelihood=Bernoulli(), mean_function=ConstantMean(), num_inducing=5)
    assert process(model).mean_function.value.tolist() == [0.0]
    assert process(model).kernel.variance == 1.0


def test_known_noise_does_not_change_the_starts_of_the_prior():
    X, y = toy_data(30)
    model = SVGP.from_data(X, y, noise=np.full(30, 1e6), mean_function=ConstantMean(), num_inducing=5)
    np.testing.assert_allclose(process(model).kernel.variance, y.var(), rtol=1e-12)
    np.testing.assert_allclose(process(model).mean_function.value, y.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        (ConstantMean([1.0, 2.0, 3.0]), r"mean_function.value has shape \(3,\), but must have shape \(\) or \(2,\)"),
        (LinearMean([[1.0]], 0.0), r"mean_function.weights has shape \(1, 1\), but must have shape \(2, 2\)"),
        (LinearMean([[1.0, 1.0]] * 2, [1.0]), "mean_function.offset has shape"),
        (ConstantMean(float("nan")), "value is nan, but must be"),
    ],
)
def test_leaves_that_do_not_fit(mean, message):
    X, y = toy_data(10, outputs=2)
    with pytest.raises(ValueError, match=message):
        SVGP.from_data(X, y, mean_function=mean, num_inducing=4)


def test_a_function_is_no_mean_function():
    X, y = toy_data(10)
    with pytest.raises(TypeError, match="mean_function is .* must be an instance of agp's Mean; write ConstantMean"):
        GPR.from_data(X, y, mean_function=ConstantMean)


def test_trained_with_frozen_mean():
    X, y = toy_data(30)
    model = SVGP.from_data(X, y, num_inducing=5, mean_function=ConstantMean(5.0))
    assert "mean_function.value" not in Adam(frozen=("mean_function.*",)).init(model)["first"]


# -- joint samples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["svgp", "sgpr", "gpr"])
def test_samples_have_the_moments_of_the_posterior(kind, backend):
    models, X, _ = _models(MEANS["linear"](3, 2))
    model, X = backend.move(models[kind]), backend.array(X[:4])
    samples = backend.numpy(model.sample(X, 4000, seed=1))
    assert samples.shape == (4000, 4, 2)
    mean, covariance = backend.numpy(model.predict_mean(X)), backend.numpy(model.predict_covariance(X))
    spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2).T)
    assert np.all(np.abs(samples.mean(axis=0) - mean) <= 5.0 * spread / np.sqrt(4000.0))  # five standard errors
    for p in range(2):
        found, scale = np.cov(samples[:, :, p].T), np.outer(spread[:, p], spread[:, p])
        assert np.all(np.abs(found - covariance[p]) <= 5.0 * np.sqrt(2.0 / 4000.0) * scale)


def test_samples_depend_on_the_seed_alone(backend):
    models, X, _ = _models(ZeroMean())
    reference = models["svgp"].sample(X[:4], 3, seed=5)
    here, X_here = backend.move(models["svgp"]), backend.array(X[:4])
    assert_close(backend.numpy(here.sample(X_here, 3, seed=5)), reference, 1e-8)
    assert np.max(np.abs(backend.numpy(here.sample(X_here, 3, seed=6)) - reference)) > 0.1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_samples_at_repeated_inputs_are_equal(dtype, backend):
    # a singular covariance: no jitter may blur it
    X, y = toy_data(20)
    model = backend.move(GPR.from_data(X, y, kernel=RBF()), dtype=dtype)
    twice = backend.array(np.concat([X[:3], X[:3]]), dtype=dtype)
    samples = backend.numpy(model.sample(twice, 5), dtype=dtype)
    tolerance = 1e-6 if dtype == "float64" else 1e-2  # the root of the rounding of the covariance
    np.testing.assert_allclose(samples[:, :3], samples[:, 3:], atol=tolerance)


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_bad_counts(count):
    models, X, _ = _models(ZeroMean())
    with pytest.raises(ValueError, match="count is .* whole number of at least 1"):
        models["gpr"].sample(X, count)
