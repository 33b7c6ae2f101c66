"""Averages of models that were fitted to the same data: predictions, bound, training, files and errors."""

import numpy as np
import pytest
from helpers import EXACT, assert_close, bound_stage, named, toy_data

import agp
from agp import GPR, SGPR, SVGP, TNNGP, TVGP, Bernoulli, Ensemble, Gaussian, Matern12, Matern52, Softmax, tree
from agp.bounds import Batch
from agp.kernels import RBF
from agp.priors import Gamma
from agp.processes import Averaged
from agp.random import generator
from agp.updates import SiteStep

X, Y = toy_data(24)
LABELS = 1.0 * (Y > 0.0)
NEW = toy_data(7, seed=8)[0]
WEIGHTS, SPREAD = np.asarray([0.6, 0.4]), 1.3


def with_site_steps(model, y, steps=3):
    step = SiteStep()
    state = step.init(model)
    for _ in range(steps):
        model, state, _ = step(model, Batch(X, y), state)
    return model


def site_models(y=LABELS, kind=TVGP):
    return tuple(
        with_site_steps(kind.from_data(X, y, kernel=kernel, likelihood=Bernoulli()), y)
        for kernel in (RBF(), Matern12())
    )


def near_models():
    return site_models(kind=TNNGP)


def sparse_models():
    return tuple(
        SVGP.from_data(X, Y, kernel=kernel, num_inducing=5, posterior=posterior)
        for kernel, posterior in ((RBF(), "whitened"), (Matern52(), "relaxed"))
    )


MODELS = {"tvgp": (site_models, LABELS), "tnngp": (near_models, LABELS), "svgp": (sparse_models, Y)}


def built(name="tvgp", spread=SPREAD, **options):
    return Ensemble(MODELS[name][0](), WEIGHTS, spread, **options)


# -- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_weighted_averages(name):
    ensemble = built(name)
    found = ensemble.predict(NEW)
    each = [model.predict(NEW) for model in ensemble.models]
    assert_close(found.mean, sum(w * one.mean for w, one in zip(WEIGHTS, each, strict=True)), 1e-13)
    variance = SPREAD * sum(w * one.variance for w, one in zip(WEIGHTS, each, strict=True))
    assert_close(found.variance, variance, 1e-13)
    assert_close(ensemble.predict_mean(NEW), found.mean, 1e-12)
    assert_close(np.diagonal(ensemble.predict_covariance(NEW), axis1=1, axis2=2).T, found.variance, 1e-12)
    observed = ensemble.predict(NEW, observed=True)
    assert_close(observed.mean, ensemble.models[0].likelihood.predict(*found).mean, 1e-13)
    assert isinstance(ensemble.predictor().processes[0], Averaged)


@pytest.mark.parametrize("name", MODELS)
def test_an_ensemble_of_one_model_is_the_model(name):
    model, y = MODELS[name][0]()[0], MODELS[name][1]
    ensemble = Ensemble((model,), np.ones(1))
    for observed in (False, True):
        pairs = zip(*(one.predict(NEW, observed=observed) for one in (ensemble, model)), strict=True)
        for found, expected in pairs:
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(ensemble.log_density(X, y), model.log_density(X, y))
    np.testing.assert_array_equal(ensemble.sample_functions(2)(NEW), model.sample_functions(2)(NEW))
    (bound, bars), (expected, gradient) = (agp.value_and_gradient(one, X, y) for one in (ensemble, model))
    assert bound == expected
    assert bars.keys() == {f"models.0.{leaf}" for leaf in gradient}
    for leaf, x in gradient.items():
        np.testing.assert_array_equal(bars[f"models.0.{leaf}"], x)


@pytest.mark.parametrize("name", MODELS)
def test_derivatives_of_predictions_are_slopes(name):
    predictor, h = built(name).predictor(), 1e-5
    found = predictor.gradient(NEW)
    for d in range(NEW.shape[1]):
        move = h * np.eye(NEW.shape[1])[d]
        ahead, behind = (predictor.predict(x) for x in (NEW + move, NEW - move))
        for slope, after, before in zip(found, ahead, behind, strict=True):
            np.testing.assert_allclose(slope[..., d], (after - before) / (2.0 * h), rtol=1e-5, atol=1e-7)


def test_predictions_are_differentiable_in_torch(torch_place):
    ensemble = built()
    expected = ensemble.gradient(NEW)
    inputs = torch_place.array(NEW).requires_grad_()
    prediction = torch_place.move(ensemble).predict(inputs)
    for moment, slopes in zip(prediction, expected, strict=True):
        inputs.grad = None
        moment.sum().backward(retain_graph=True)
        assert_close(torch_place.numpy(inputs.grad), slopes.sum(axis=1), EXACT)


def test_every_backend_agrees(backend):
    ensemble = built()
    expected = ensemble.predict(NEW, observed=True)
    moved = backend.move(ensemble)
    for found, x in zip(moved.predict(backend.array(NEW), observed=True), expected, strict=True):
        assert_close(backend.numpy(found), x, 1e-9)
    bound = moved.bound(backend.array(X), backend.array(LABELS))[0]
    assert_close(backend.numpy(bound), ensemble.bound(X, LABELS)[0], 1e-9)


# -- bound ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_bound_is_the_weighted_average_of_bounds(name):
    ensemble, y = built(name), MODELS[name][1]
    bounds = [float(model.bound(X, y)[0]) for model in ensemble.models]
    assert float(ensemble.bound(X, y)[0]) == pytest.approx(WEIGHTS @ bounds, rel=1e-13)


def test_the_bound_is_below_the_average_evidence():
    models = tuple(GPR.from_data(X, Y, kernel=kernel) for kernel in (RBF(), Matern12()))
    evidences = np.asarray([float(model.bound(X, Y)[0]) for model in models])
    average = np.log(WEIGHTS @ np.exp(evidences - evidences.max())) + evidences.max()
    assert float(Ensemble(models, WEIGHTS).bound(X, Y)[0]) < average


@pytest.mark.parametrize("name", MODELS)
def test_closed_form_is_autograd(name, torch_place):
    ensemble, y, rng = built(name), MODELS[name][1], np.random.default_rng(0)
    elsewhere = {leaf: x * rng.uniform(0.8, 1.2, x.shape) for leaf, x in tree.leaves(ensemble, "parameter").items()}
    ensemble = tree.with_leaves(ensemble, elsewhere)
    model, inputs, targets = torch_place.move(ensemble), torch_place.array(X), torch_place.array(y)
    value, closed = agp.value_and_gradient(model, inputs, targets)
    by_torch, auto = agp.value_and_gradient(model, inputs, targets, gradient="autodiff")
    assert float(value) == pytest.approx(float(by_torch), rel=1e-13)
    assert closed.keys() == auto.keys() == tree.leaves(ensemble, "parameter").keys()
    for leaf, x in auto.items():
        assert_close(closed[leaf].numpy(), x.numpy(), EXACT, leaf)


def test_inputs_have_a_gradient_too():
    ensemble, h = built(), 1e-5
    stage = bound_stage(ensemble, LABELS)
    value, pull = stage(named(ensemble, "parameter") | {"X": X})
    X_bar = pull(np.ones(()))["X"]
    way = np.random.default_rng(0).normal(size=X.shape)
    ahead, behind = (stage({"X": X + step * way})[0][0] for step in (h, -h))
    assert np.sum(X_bar * way) == pytest.approx(float(ahead - behind) / (2.0 * h), rel=1e-6)
    assert value[0] == ensemble.bound(X, LABELS)[0]


def test_what_models_hold_of_rows_is_used():
    known = {"weights": np.linspace(0.5, 2.0, len(X)), "noise": np.full(len(X), 0.1)}
    models = tuple(GPR.from_data(X, Y, kernel=kernel, **known) for kernel in (RBF(), Matern12()))
    ensemble = Ensemble(models, WEIGHTS)
    expected = WEIGHTS @ [float(model.bound(X, Y)[0]) for model in models]
    assert float(ensemble.bound(X, Y)[0]) == pytest.approx(expected, rel=1e-13)


def test_draws_are_those_of_each_model():
    y = np.floor(np.random.default_rng(0).uniform(0.0, 3.0, size=(len(X), 1)))
    likelihood = Softmax(3, samples=4)
    models = tuple(TVGP.from_data(X, y, kernel=kernel, likelihood=likelihood) for kernel in (RBF(), Matern12()))
    ensemble = Ensemble(models, WEIGHTS)
    draws = ensemble._draws(generator(0), len(X))
    prefixes = {name.rpartition(".")[0] for name in draws.by_row}
    assert prefixes == {"models.0.likelihood", "models.1.likelihood"}
    batch = Batch(X, y, draws=draws)
    bounds = [model._objective(own)[0] for _, model, own in ensemble._with_batches(batch)]
    assert bounds[0] != models[0]._objective(Batch(X, y))[0]  # with fixed draws
    assert ensemble._objective(batch)[0] == pytest.approx(WEIGHTS @ bounds, rel=1e-13)


# -- training ---------------------------------------------------------------------------------------------------------


def test_site_steps_are_those_of_the_models():
    ensemble = built()
    expected = [with_site_steps(model, LABELS, 2) for model in ensemble.models]
    found = with_site_steps(ensemble, LABELS, 2)
    for model, own in zip(found.models, expected, strict=True):
        np.testing.assert_array_equal(model.site_shift, own.site_shift)
        np.testing.assert_array_equal(model.site_precision, own.site_precision)
    np.testing.assert_array_equal(found.weights, WEIGHTS)


@pytest.mark.parametrize("name", MODELS)
def test_training_raises_the_bound(name):
    ensemble, y = built(name), MODELS[name][1]
    trained = agp.train(ensemble, X, y, steps=20).model
    assert float(trained.bound(X, y)[0]) > float(ensemble.bound(X, y)[0])
    assert trained.spread == SPREAD


def test_training_to_convergence():
    models = tuple(SVGP.from_data(X, Y, kernel=k, num_inducing=5, posterior="whitened") for k in (RBF(), Matern12()))
    for ensemble, y in ((built(), LABELS), (Ensemble(models, WEIGHTS), Y)):
        trained = agp.fit(ensemble, X, y, tolerance=0.1, max_steps=500).model
        assert float(trained.bound(X, y)[0]) > float(ensemble.bound(X, y)[0])


def test_priors_of_an_ensemble_are_used_and_those_of_models_are_refused():
    priors = (("kernel.variance", Gamma(2.0, 1.0)),)
    ensemble = built(priors=priors)
    value, gradient = agp.value_and_gradient(ensemble, X, LABELS)
    assert float(value - ensemble.bound(X, LABELS)[0]) == pytest.approx(float(agp.priors.log_prior(ensemble)[0]))
    assert gradient.keys() == tree.leaves(ensemble, "parameter").keys()
    models = tuple(TVGP.from_data(X, LABELS, kernel=RBF(), likelihood=Bernoulli(), priors=dict(priors)) for _ in "ab")
    with pytest.raises(ValueError, match=r"models\[0\] has priors, which an Ensemble does not use in training"):
        agp.train(Ensemble(models, WEIGHTS), X, LABELS, steps=1)


# -- data and files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_files_are_exact(name, tmp_path):
    ensemble = built(name)
    agp.save(ensemble, tmp_path / "ensemble.safetensors")
    found = agp.load(tmp_path / "ensemble.safetensors")
    assert type(found) is Ensemble
    assert found.spread == SPREAD
    assert tree.leaves(found).keys() == tree.leaves(ensemble).keys()
    for leaf, x in tree.leaves(ensemble).items():
        np.testing.assert_array_equal(tree.leaves(found)[leaf], x, strict=True)
    for x, y in zip(found.predict(NEW), ensemble.predict(NEW), strict=True):
        assert x.tobytes() == y.tobytes()
    predictor = ensemble.predictor()
    agp.save(predictor, tmp_path / "predictor.safetensors")
    for x, y in zip(agp.load(tmp_path / "predictor.safetensors").predict(NEW), ensemble.predict(NEW), strict=True):
        assert x.tobytes() == y.tobytes()


def test_models_keep_their_data_unless_it_is_dropped():
    ensemble = built()
    assert ensemble._holds_data
    assert ensemble._drop_data() is ensemble
    assert not built("svgp")._holds_data
    small = ensemble._on_first_datum()
    assert [model.X.shape[0] for model in small.models] == [1, 1]
    collapsed = Ensemble(tuple(SGPR.from_data(X, Y, kernel=k, num_inducing=5) for k in (RBF(), Matern12())), WEIGHTS)
    dropped = collapsed._drop_data()
    assert [type(model) for model in dropped.models] == [SVGP, SVGP]
    assert_close(dropped.predict(NEW).mean, collapsed.predict(NEW).mean, 1e-8)


def test_other_data_are_refused():
    ensemble = built()
    with pytest.raises(ValueError, match="X differs from the inputs with which TVGP was built"):
        agp.train(ensemble, X + 1.0, LABELS, steps=1)


# -- errors -----------------------------------------------------------------------------------------------------------


def test_models_of_different_kinds_are_refused():
    first = site_models()[0]
    regression = GPR.from_data(X, Y)
    with pytest.raises(
        ValueError,
        match=r"the models of an Ensemble have different likelihoods \(Bernoulli, Gaussian\)",
    ):
        Ensemble((first, regression), WEIGHTS)
    two = TVGP.from_data(X, np.concatenate([LABELS, LABELS], axis=1), likelihood=Bernoulli())
    with pytest.raises(ValueError, match=r"different numbers of outputs \(1, 2\); average models of the same kind"):
        Ensemble((first, two), WEIGHTS).predict(NEW)
    narrow = TVGP.from_data(X[:, :1], LABELS, likelihood=Bernoulli())
    with pytest.raises(ValueError, match=r"different numbers of input columns \(2, 1\)"):
        Ensemble((first, narrow), WEIGHTS).bound(X, LABELS)
    with pytest.raises(TypeError, match=r"the models of an Ensemble are a list, but must be a tuple of models"):
        Ensemble([first], np.ones(1))
    with pytest.raises(TypeError, match=r"entry 0 in the models of an Ensemble is .*, but must be a model"):
        Ensemble((first.kernel,), np.ones(1))
    with pytest.raises(ValueError, match="there are no models in the Ensemble"):
        Ensemble((), np.ones(0))


def test_models_whose_outputs_are_mixtures_are_refused():
    two = np.concatenate([Y, Y * Y], axis=1)
    mixed = SVGP.from_data(X, two, num_inducing=5, outputs="coregionalised")
    with pytest.raises(ValueError, match="the outputs of LinearMixing are mixtures of functions"):
        Ensemble((mixed, mixed), WEIGHTS).predict(NEW)


def test_wrong_weights_and_spreads_are_refused():
    models = site_models()
    for message, weights, spread in (
        (
            r"weights has shape \(3,\), but must have shape \(2,\); pass one weight for each model",
            np.ones(3) / 3.0,
            1.0,
        ),
        ("weights must be positive with the sum 1, but the smallest is 1 and the sum is 2", np.ones(2), 1.0),
        ("spread is -1, but must be a finite number above zero", WEIGHTS, -1.0),
    ):
        with pytest.raises(ValueError, match=message):
            Ensemble(models, weights, spread).predict(NEW)
        with pytest.raises(ValueError, match=message):
            Ensemble(models, weights, spread).bound(X, LABELS)
    with pytest.raises(ValueError, match="needs all data at once, but scale is 2"):
        built("svgp").bound(X, Y, scale=2.0)


def test_further_data_are_refused():
    with pytest.raises(TypeError, match="a posterior of Averaged cannot be conditioned on further data"):
        built().predictor().condition_on(NEW[:2], LABELS[:2])


def test_parts_are_those_of_the_models():
    ensemble = built()
    assert ensemble.inducing is None
    assert ensemble.posterior is None
    for name in ("kernel", "mean_function"):
        with pytest.raises(
            AttributeError, match=rf"2 models, each with its own {name}; use model\.models\[0\]\.{name}"
        ):
            getattr(ensemble, name)
    with pytest.raises(AttributeError, match="'Ensemble' object has no attribute 'other'"):
        ensemble.other  # noqa: B018
    with pytest.raises(TypeError, match=r"Ensemble\(models, weights\) builds one"):
        Ensemble()


def test_texts_show_all_models():
    text = agp.summary(built())
    assert text.startswith("Ensemble")
    assert "models.1.kernel.variance" in text
    assert "Ensemble" in built()._repr_html_()
    assert isinstance(built("svgp").likelihood, Gaussian)
