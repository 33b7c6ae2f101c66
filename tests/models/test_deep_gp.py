"""Deep GPs from data: what inner layers pass on, how they start, samples, units, and what is refused."""

import dataclasses

import numpy as np
import pytest
from helpers import NUMPY, assert_close

import agp
from agp import tree
from agp.likelihoods import Bernoulli
from agp.models import DeepGP
from agp.processes import Deep, FixedMap, LinearMixing, Sparse, Stack

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (60, 3)) * [1.0, 1e3, 1e-3] + [0.0, 50.0, 1.0]
Y = 100.0 + 7.0 * np.sin(X[:, :1]) + RNG.normal(size=(60, 1))
POSTERIORS = ("whitened", "marginal", "likelihood-form", "relaxed", "inverse-free")
GROUPS = {
    "solve": {"posterior": "whitened", "num_orthogonal": 8},
    "solve-marginal": {"posterior": "marginal", "num_orthogonal": 8},
    "solve-relaxed": {"posterior": "relaxed-orthogonal", "num_orthogonal": 8},
    "odvgp": {"posterior": "whitened", "second": "prior-spread", "num_orthogonal": 8},
}
"""Layers with two groups of inducing variables."""
KINDS = {name: {"posterior": name} for name in POSTERIORS} | GROUPS


def built(**settings):
    return DeepGP.from_data(X, Y, **{"num_inducing": 8} | settings)


def standardised(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def inner_means(model, X):
    """The inputs of each layer after the first, as means alone pass them on."""
    found, H = [], X
    for layer in model.process.layers[:-1]:
        H = layer.project_mean(layer.factorise()[0], H)
        found.append(H)
    return found


def test_layers_of_the_same_width_pass_on_standardised_inputs():
    for H in inner_means(built(layers=3), X):
        assert_close(H, standardised(X), 1e-12)


def test_narrow_layers_pass_on_principal_directions():
    H = inner_means(built(layers=3, width=2), X)
    _, _, directions = np.linalg.svd(standardised(X), full_matrices=False)
    assert_close(np.abs(H[0]), np.abs(standardised(X) @ directions[:2].T), 1e-10)
    assert_close(H[1], H[0], 1e-12)


def test_wide_layers_pass_on_zeros_beside_the_inputs():
    H = inner_means(built(layers=3, width=5), X)
    for one in H:
        assert_close(one, np.concatenate([standardised(X), np.zeros((60, 2))], axis=1), 1e-12)


def test_inputs_are_handed_on_to_every_layer():
    model = built(layers=3, width=1, skip=True)
    for layer in model.process.layers[:-1]:
        assert isinstance(layer, Stack)
        assert isinstance(layer.parts[1], FixedMap)
    for H in inner_means(model, X):
        assert H.shape == (60, 4)
        assert_close(H[:, 1:], standardised(X), 1e-12)
    paths = model.sample_functions(3, seed=1)(X[:5])
    assert paths.shape == (3, 5, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_model_has_the_moments_of_a_shallow_one(kind):
    mean, variance = built(**KINDS[kind]).predict(X)
    assert_close(mean, np.full((60, 1), Y.mean()), 1e-3)
    assert_close(variance, np.full((60, 1), Y.var()), 0.05)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [(1e-6, 1.0, 0.0), (1e6, 1e-6, 0.0), (1.0, 1e6, 1e6)])
def test_any_units_serve(kind, change):
    a, c, d = change
    scale = c * Y.std()
    scores = []
    for inputs, targets, unit in ((X, Y, Y.std()), (a * X, c * Y + d * scale, scale)):
        model = DeepGP.from_data(inputs, targets, num_inducing=8, skip=True, **KINDS[kind])
        trained = agp.train(model, inputs, targets, steps=20, updates=agp.recipe(model, 20), batch_size=30).model
        scores.append([np.mean(m.log_density(inputs, targets)) + np.log(unit) for m in (model, trained)])
    np.testing.assert_allclose(scores[0][0], scores[1][0], rtol=0.0, atol=1e-6)
    np.testing.assert_allclose(scores[0][1], scores[1][1], rtol=0.0, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_training_beats_the_start(kind):
    model = built(**KINDS[kind])
    found = agp.train(model, X, Y, steps=60, updates=agp.recipe(model, 60))
    assert np.mean(found.trace["bound"][-10:]) > found.trace["bound"][0] + 20.0


def test_both_log_densities_are_those_of_the_samples():
    model = built(layers=2, posterior="whitened", prediction_samples=7)
    process = dataclasses.replace(model.process, samples=7)
    drawn = process.with_draws(process.common_draws(0, len(X)))
    mu, var = drawn.project(drawn.factorise()[0], X)[0]
    var = var + float(model.likelihood.noise_variance)
    each = -0.5 * (np.log(2.0 * np.pi * var) + (np.tile(Y, (7, 1)) - mu) ** 2 / var).reshape(7, 60)
    assert_close(model.log_density(X, Y), np.log(np.mean(np.exp(each), axis=0)), 1e-10)
    assert_close(model.mean_log_density(X, Y), np.mean(each, axis=0), 1e-10)
    assert np.all(model.mean_log_density(X, Y) <= model.log_density(X, Y) + 1e-12)
    single = agp.SVGP.from_data(X, Y, num_inducing=8)
    assert np.array_equal(single.log_density(X, Y), single.mean_log_density(X, Y))


def test_predictions_take_their_own_number_of_samples():
    few, many = (built(prediction_samples=count, posterior="whitened") for count in (1, 400))
    name = "process.layers.0.posterior.scale"
    few, many = (tree.with_leaves(m, {name: 50.0 * tree.leaves(m)[name]}) for m in (few, many))
    assert np.array_equal(few.bound(X, Y)[0], many.bound(X, Y)[0])
    assert not np.array_equal(few.predict(X).mean, many.predict(X).mean)
    shuffled = np.random.default_rng(0).permutation(len(X))[:20]
    for alone, among in zip(many.predict(X[shuffled]), many.predict(X), strict=True):
        assert_close(alone, among[shuffled], 1e-12)


def test_each_layer_can_have_its_own_choices():
    model = DeepGP.from_data(
        X,
        Y,
        layers=2,
        posterior=("whitened", "relaxed"),
        kernel=(agp.Matern32(), agp.Matern52(variance=3.0)),
        num_inducing=(4, 8),
        samples=2,
    )
    first, last = model.process.layers
    assert (first.inducing.count, last.inducing.count) == (4, 8)
    assert type(first.posterior) is agp.posteriors.Whitened
    assert type(last.posterior) is agp.posteriors.Relaxed
    assert float(first.kernel.variance) == pytest.approx(1e-4)
    assert float(last.kernel.variance) == 3.0
    assert model.process.samples == 2


def test_two_groups_in_the_layers_that_have_them():
    model = built(layers=3, posterior="whitened", num_orthogonal=(None, 4, 0), second=(None, "prior-spread", None))
    first, second, last = (layer.posterior for layer in model.process.layers)
    assert type(first) is agp.posteriors.Whitened
    assert [type(part) for part in second.parts] == [agp.posteriors.Whitened, agp.posteriors.PriorSpread]
    assert (second.sizes, last.sizes) == ((8, 4), (8,))
    assert [layer.inducing.count for layer in model.process.layers] == [8, 12, 8]
    assert_close(second.parts[0].scale, 0.01 * np.broadcast_to(np.eye(8), (3, 8, 8)), 1e-12)  # a calm start


def test_a_single_group_is_that_of_one(backend):
    # SOLVE-GP without its second group is W-SVGP, layer by layer
    x, y = backend.array(X), backend.array(Y)
    for kind in ("whitened", "marginal"):
        plain, group = (
            DeepGP.from_data(x, y, num_inducing=8, posterior=kind, num_orthogonal=M2).bound(x, y)[0] for M2 in (None, 0)
        )
        assert_close(backend.numpy(group), backend.numpy(plain), 1e-11)


def test_labels_train_too(backend):
    y = 1.0 * (Y > 100.0)
    model = DeepGP.from_data(backend.array(X), backend.array(y), likelihood=Bernoulli(), num_inducing=8)
    p = backend.numpy(model.predict(backend.array(X), observed=True).mean)
    assert_close(p, np.full((60, 1), 0.5), 1e-6)
    host = NUMPY.move(model)
    assert_close(backend.numpy(model.bound(backend.array(X), backend.array(y))[0]), host.bound(X, y)[0], 1e-9)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"layers": 0}, ValueError, "layers is 0, but must be a whole number of at least 1"),
        ({"layers": "two"}, ValueError, "layers is 'two', but must be a whole number of at least 1"),
        ({"kernel": [agp.RBF()]}, ValueError, "kernel has 1 entry, but there are 2 layers; pass one value, or"),
        ({"num_inducing": (8, 0)}, ValueError, "num_inducing is 0, but must be a whole number of at least 1"),
        ({"num_inducing": (8,) * 3}, ValueError, "num_inducing has 3 entries, but there are 2 layers"),
        ({"inducing": ("kmeans",)}, ValueError, "inducing has 1 entry, but there are 2 layers"),
        ({"width": 1.5}, ValueError, "width is 1.5, but must be a whole number of at least 1"),
        ({"samples": 2.5}, ValueError, "samples is 2.5, but must be a whole number of at least 1"),
        ({"width": 0}, ValueError, "width is 0, but must be a whole number of at least 1"),
        ({"samples": 0}, ValueError, "samples is 0, but must be a whole number of at least 1"),
        ({"prediction_samples": 0}, ValueError, "prediction_samples is 0, but must be a whole number of at least 1"),
        ({"posterior": ("relaxed",)}, ValueError, "posterior has 1 entry, but there are 2 layers; pass one value"),
        ({"posterior": "nope"}, ValueError, "nope"),
        ({"kernel": "rbf"}, TypeError, "kernel is 'rbf', but must be an instance of agp's Kernel"),
        ({"kernel": (agp.RBF(), agp.RBF)}, TypeError, r"must be an instance of agp's Kernel; write RBF\(\)"),
        ({"num_orthogonal": (4,)}, ValueError, "num_orthogonal has 1 entry, but there are 2 layers"),
        ({"num_orthogonal": -1}, ValueError, "num_orthogonal is -1, but must be a whole number of at least 0"),
        ({"num_orthogonal": 53}, ValueError, "num_inducing . num_orthogonal is 61, but there are only 60 rows"),
        ({"num_orthogonal": 4}, TypeError, "posterior is Relaxed, but must be a posterior class for a single group"),
        ({"posterior": "relaxed-orthogonal", "num_orthogonal": 0}, ValueError, "needs 2 groups"),
        (
            {"second": "whitened"},
            ValueError,
            "second is given, but layer 0 has one group .*; also pass num_orthogonal=",
        ),
        (
            {"posterior": "dual"},
            ValueError,
            "layer 0 has sites, but only the last layer can have sites; choose another",
        ),
    ],
)
def test_bad_choices_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        built(**settings).bound(X, Y)


def layer(width, outputs, weights=None):
    own = {"posterior": "whitened", "num_inducing": 4, "outputs": outputs}
    one = Sparse.from_data(X[:, :width], **own)
    return one if weights is None else LinearMixing(Stack((one, one)), weights)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((layer(3, 2), layer(3, 1)), "layer 0 has 2 outputs, but layer 1 takes 3 input columns; make"),
        ((layer(3, 1, np.ones((3, 3))), layer(3, 1)), r"in layer 0, weights has shape \(3, 3\), but must have shape"),
        ((layer(3, 1, np.ones(3)), layer(3, 1)), r"in layer 0, weights has shape \(3,\), but must have shape"),
        ((layer(3, 1, np.ones((2, 2))), layer(3, 1)), "layer 0 has 2 outputs, but layer 1 takes 3 input columns"),
        ((layer(3, 2), layer(2, 1, np.ones((1, 3)))), r"in layer 1, weights has shape \(1, 3\), but must have shape"),
        ((layer(3, 2), layer(2, 1, np.ones((3, 2)))), "y has 1 output, but the model has 3; build a new model"),
        ((layer(2, 2), layer(2, 1)), "X has 3 columns, but the model was built for 2"),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers, message):
    model = DeepGP(Deep(layers), agp.Gaussian(np.asarray(0.1)))
    for use in (lambda: model.bound(X, Y), lambda: agp.train(model, X, Y, steps=1, updates=agp.recipe(model, 1))):
        with pytest.raises(ValueError, match=message) as raised:
            use()
        assert str(raised.value).count(".") == 1


def test_the_process_must_have_layers():
    with pytest.raises(TypeError, match="must be a Deep process"):
        DeepGP(agp.SVGP.from_data(X, Y, num_inducing=8).process, agp.Gaussian(np.asarray(0.1)))
    assert isinstance(built().process, Deep)


@pytest.mark.parametrize(
    "posterior", POSTERIORS[:-1]
)  # the gradient of A-SVGP follows the exact inverse, not its factor
@pytest.mark.parametrize("samples", [1, 3])
def test_closed_forms_are_those_of_automatic_differentiation(posterior, samples, torch_place):
    model = torch_place.move(built(layers=3, width=2, skip=True, posterior=posterior, samples=samples))
    inputs, targets = torch_place.array(X), torch_place.array(Y)
    rng = np.random.default_rng(1)
    moved = {}
    for name, x in tree.leaves(model, "parameter").items():
        noise = torch_place.array(0.1 * np.tril(rng.normal(size=tuple(x.shape))) if x.ndim > 1 else np.zeros(x.shape))
        moved[name] = x * (1.0 + 0.1 * noise) if "mean" not in name or "inducing" in name else x + noise
    model = tree.with_leaves(model, moved)
    found = [agp.value_and_gradient(model, inputs, targets, gradient=mode) for mode in ("closed-form", "autodiff")]
    assert_close(torch_place.numpy(found[0][0]), torch_place.numpy(found[1][0]), 1e-10)
    for name, x in found[0][1].items():
        assert_close(torch_place.numpy(x), torch_place.numpy(found[1][1][name]), 1e-8, name)
