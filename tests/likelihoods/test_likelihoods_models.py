"""Likelihoods inside models: latent functions and columns, draws, blocks, training, and targets that are refused."""

import numpy as np
import pytest
from helpers import NUMPY, TORCH, assert_close, named, process, with_leaves

from agp import tree
from agp.backend import backend_of, to_numpy
from agp.bounds import Batch
from agp.chunking import rows_within
from agp.gradient import gradient_of_batch
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from agp.models import SVGP
from agp.posteriors import Relaxed, Whitened
from agp.random import NO_DRAWS
from agp.training import fit, train
from agp.updates import Adam

STARTS = {
    "known-noise": lambda: Gaussian(0.0),
    "known-and-common-noise": lambda: Gaussian(),
    "bernoulli-logit": lambda: Bernoulli(link="logit"),
    "student-t": lambda: StudentT(),
    "poisson": lambda: Poisson(),
    "gamma": lambda: Gamma(),
    "exponential": lambda: Exponential(),
    "negative-binomial": lambda: NegativeBinomial(),
    "beta": lambda: Beta(),
    "ordinal": lambda: Ordinal(3),
    "latent-noise": lambda: LatentNoiseGaussian(),
    "robustmax": lambda: RobustMax(3),
    "softmax": lambda: Softmax(3, samples=8, fixed_samples=40),
}
"""Likelihoods as a user writes them, to be started from data."""


def known_of(name, rows=45, place=NUMPY, dtype="float64"):
    """What is known of the rows."""
    noise = 0.01 + 0.1 * np.random.default_rng(5).uniform(size=(rows, 1))
    return {"noise": place.array(noise, dtype)} if name.startswith("known") else {}


def toy(name, rows=45):
    """Inputs [N, 2] and targets that depend on them."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-2.0, 2.0, size=(rows, 2))
    f = np.sin(1.5 * X[:, :1]) + 0.5 * X[:, 1:]
    if name.startswith("known"):
        return X, f + np.sqrt(known_of(name, rows)["noise"]) * rng.normal(size=f.shape)
    if name == "student-t":
        return X, f + 0.1 * rng.standard_t(3.0, size=f.shape)
    if name in ("poisson", "negative-binomial"):
        return X, 1.0 * rng.poisson(np.exp(f))
    if name in ("gamma", "exponential"):
        return X, np.exp(f) * rng.gamma(2.0, size=f.shape)
    if name == "beta":
        p = 1.0 / (1.0 + np.exp(-f))
        return X, rng.beta(8.0 * p, 8.0 - 8.0 * p)
    if name == "latent-noise":
        return X, f + np.exp(X[:, :1] - 2.0) * rng.normal(size=f.shape)
    if name == "bernoulli-logit":
        return X, 1.0 * (f > 0.0)
    return X, np.digitize(f, [-0.6, 0.6]) * 1.0


def start(name, place=NUMPY, posterior=Relaxed, dtype="float64"):
    X, y = (place.array(x, dtype) for x in toy(name))
    options = {"likelihood": STARTS[name](), "posterior": posterior, "num_inducing": 9}
    return SVGP.from_data(X, y, **options, **known_of(name, place=place, dtype=dtype)), X, y


def away(model, X, y):
    """The model with another q(u) than the prior, where gradients of the kernel may vanish."""
    mean = process(model).posterior.mean
    B = backend_of(mean)
    rng = np.random.default_rng(8)
    moved = mean + B.from_numpy(rng.normal(size=tuple(mean.shape)), device=B.device_name(mean))
    return with_leaves(model, {"posterior.mean": moved}), X, y


def trained(name, place, posterior=Relaxed, steps=12, batch_size=15, dtype="float64"):
    model, X, y = start(name, place, posterior, dtype)
    known = known_of(name, place=place, dtype=dtype)
    return train(model, X, y, steps=steps, batch_size=batch_size, seed=2, **known), X, y


# -- latent functions and columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STARTS)
def test_models_have_the_latent_functions_that_the_likelihood_says(name):
    model, X, y = start(name)
    P = 3 if name in ("robustmax", "softmax") else 2 if name == "latent-noise" else 1
    assert model.outputs == P == model.likelihood.latents(y.shape[1])
    assert model.predict(X).mean.shape == (45, P)
    assert model.predict(X, observed=True).mean.shape == (45, 1 if name == "latent-noise" else P)
    assert model.log_density(X, y, **known_of(name)).shape == (45,)
    assert model.bound(X, y, **known_of(name))[0].shape == ()


def test_two_outputs_share_known_noise_or_have_their_own():
    X, y = toy("known-noise")
    both, noise = np.concatenate([y, -y], axis=1), known_of("known-noise")["noise"]
    model = SVGP.from_data(X, both, likelihood=Gaussian(0.0), num_inducing=5, noise=noise)
    assert model.outputs == 2
    shared, own = (model.bound(X, both, noise=x)[0] for x in (noise, np.tile(noise, 2)))
    assert shared == own
    density = model.log_density(X, both, noise=noise)
    for columns in (noise[:, 0], np.tile(noise, 2)):
        np.testing.assert_array_equal(model.log_density(X, both, noise=columns), density)


def test_known_noise_stays_with_its_row():
    # a datum with huge noise counts for nothing, wherever a minibatch puts it
    (X, y), noise = toy("known-noise"), known_of("known-noise")["noise"]
    y[7], noise[7] = 1e3, 1e12
    model = SVGP.from_data(X, y, likelihood=Gaussian(0.0), Z=X[:9], posterior=Whitened, noise=noise)
    order, without = np.random.default_rng(0).permutation(len(X)), np.delete(np.arange(len(X)), 7)
    bounds = [model.bound(X[i], y[i], noise=noise[i]) for i in (np.arange(len(X)), order, without)]
    np.testing.assert_allclose(bounds[1][0], bounds[0][0], rtol=1e-12)
    slopes = [np.asarray(process(pull()[0]).posterior.mean) for _, pull in bounds[1:]]
    assert_close(slopes[0], slopes[1], 1e-6)


# -- draws and blocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_draws", [True, False])
@pytest.mark.parametrize("name", ["known-and-common-noise", "latent-noise", "robustmax", "softmax"])
def test_blocks_are_the_whole(name, with_draws, backend):
    model, X, y = away(*start(name, backend))
    draws = backend.draws(model._draws(np.random.default_rng(3), 45)) if with_draws else NO_DRAWS
    batch = Batch(X, y, 1.0, None, draws, **known_of(name, place=backend))
    whole, pull_whole = model._objective(batch)
    memory = 7.5 * model._floats_per_row * 8 / 2**20
    assert rows_within(memory, model._floats_per_row, X) == 7
    blocks, pull_blocks = model._objective(batch, memory=memory)
    assert_close(backend.numpy(blocks), backend.numpy(whole), 1e-12)
    expected = named(pull_whole(1.0)[0])
    for key, found in named(pull_blocks(1.0)[0]).items():
        assert_close(backend.numpy(found), backend.numpy(expected[key]), 1e-9, key)


def test_draws_change_the_bound_and_their_absence_does_not():
    result, X, y = trained("softmax", NUMPY)
    model = result.model
    bounds = [float(model.bound(X, y)[0]) for _ in range(2)]
    assert bounds[0] == bounds[1]
    noisy = [
        float(model._objective(Batch(X, y, 1.0, None, model._draws(np.random.default_rng(i), 45)))[0]) for i in (1, 2)
    ]
    assert noisy[0] != noisy[1]
    # both estimate the same number
    np.testing.assert_allclose(noisy, bounds, rtol=0.1)


@pytest.mark.slow
def test_chunks_of_a_prediction_are_the_whole():
    for name in ("softmax", "robustmax"):
        result, X, y = trained(name, NUMPY)
        model = result.model
        memory = 7.5 * model._floats_per_row * 8 / 2**20
        pairs = zip(model.predict(X, observed=True), model.predict(X, observed=True, memory=memory), strict=True)
        for whole, chunked in [*pairs, (model.log_density(X, y), model.log_density(X, y, memory=memory))]:
            np.testing.assert_allclose(chunked, whole, rtol=1e-10)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "posterior"), [*((name, Relaxed) for name in STARTS), ("robustmax", Whitened), ("softmax", Whitened)]
)
def test_training_leaves_the_same_trace_everywhere(name, posterior, backend):
    result, _, _ = trained(name, backend, posterior)
    expected, _, _ = trained(name, NUMPY, posterior)
    np.testing.assert_allclose(result.trace["bound"], expected.trace["bound"], rtol=1e-9)
    for key, value in named(expected.model).items():
        assert_close(to_numpy(named(result.model)[key]), value, 1e-7, key)


@pytest.mark.long
@pytest.mark.parametrize("name", ["robustmax", "softmax"])
def test_three_classes_are_learnt(name):
    result, X, y = trained(name, NUMPY, Whitened, steps=250, batch_size=45)
    model = result.model
    assert result.trace["bound"][-1] > result.trace["bound"][0] + 10.0
    p = model.predict(X, observed=True).mean
    assert np.mean(p.argmax(axis=1) == y[:, 0]) > 0.9
    assert np.mean(model.log_density(X, y)) > np.log(1.0 / 3.0) + 0.3


@pytest.mark.parametrize("name", STARTS)
def test_both_gradient_modes_agree(name, torch_place):
    model, X, y = away(*start(name, TORCH))
    draws = TORCH.draws(model._draws(np.random.default_rng(3), 45))
    batch = Batch(X, y, 2.0, None, draws, **known_of(name, place=TORCH))
    (value, closed), (again, autodiff) = (gradient_of_batch(model, batch, mode) for mode in ("closed-form", "autodiff"))
    assert_close(TORCH.numpy(value), TORCH.numpy(again), 1e-13)
    for key, expected in autodiff.items():
        assert_close(TORCH.numpy(closed[key]), TORCH.numpy(expected), 1e-8, key)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name in STARTS if name not in ("known-noise", "bernoulli-logit", "robustmax")]
)
def test_single_precision_trains(name, backend):
    result, X, _ = trained(name, backend, dtype="float32")
    for leaf in tree.describe(result.model):
        backend.check(leaf.value, "float32")
    for x in result.model.predict(X, observed=True):
        assert np.isfinite(backend.numpy(x, "float32")).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTS)
def test_no_shape_depends_on_data(name):
    import array_api_strict
    from helpers import STRICT

    with array_api_strict.ArrayAPIStrictFlags(boolean_indexing=False, data_dependent_shapes=False):
        result, _, _ = trained(name, STRICT, steps=3)
    assert np.isfinite(result.trace["bound"]).all()


def test_parameters_start_at_the_scales_of_the_data():
    X, y = toy("student-t")
    model = SVGP.from_data(X, y, likelihood=StudentT(), num_inducing=5)
    np.testing.assert_allclose(model.likelihood.scale, np.sqrt(0.1 * y.var()))
    model = SVGP.from_data(X, y, likelihood=StudentT(0.3), num_inducing=5)
    assert model.likelihood.scale == 0.3
    common, alone = (start(name)[0].likelihood.noise_variance for name in ("known-and-common-noise", "known-noise"))
    np.testing.assert_allclose(common, 0.1 * toy("known-noise")[1].var())
    assert alone == 0.0


# -- what is refused --------------------------------------------------------------------------------------------------

REFUSED = {
    "a class too many": (RobustMax(3), [[0.0], [3.0]], "labels must be from 0 to 2 for RobustMax.*found 3"),
    "classes from one": (Softmax(2), [[1.0], [2.0]], "labels must be from 0 to 1 for Softmax.*found 2"),
    "a negative label": (Softmax(3), [[0.0], [-1.0]], "labels must be from 0 to 2.*found -1"),
    "half a label": (RobustMax(3), [[0.0], [0.5]], "labels must be whole numbers.*found 0.5"),
    "one-hot labels": (Softmax(2), [[0.0, 1.0], [1.0, 0.0]], "y has 2 columns, but Softmax takes one column"),
    "one class": (RobustMax(1), [[0.0], [0.0]], "classes is 1"),
    "no number of classes": (Softmax("abc"), [[0.0], [1.0]], "classes is 'abc'"),
    "a negative count": (Poisson(), [[0.0], [-2.0]], "counts must be whole numbers of at least 0.*found -2"),
    "half a count": (Poisson(), [[0.0], [1.5]], "counts must be whole numbers of at least 0.*found 1.5"),
    "half a count of more variance": (NegativeBinomial(), [[0.0], [1.5]], "counts must be .* NegativeBinomial.*1.5"),
    "nothing": (Gamma(), [[0.0], [1.5]], "targets must be positive for the Gamma likelihood; found 0"),
    "a negative time": (Exponential(), [[1.0], [-1.5]], "must be positive for the Exponential .* found -1.5"),
    "a time of zero": (Exponential(), [[1.0], [0.0]], "must be positive for the Exponential .* found 0"),
    "all": (Beta(), [[0.2], [1.0]], "between 0 and 1, both excluded, for the Beta likelihood; found 1"),
    "no share": (Beta(), [[0.0], [0.2]], "between 0 and 1, both excluded, for the Beta likelihood; found 0"),
    "a category too many": (Ordinal(3), [[0.0], [3.0]], "labels must be from 0 to 2 for Ordinal .*found 3"),
    "half a category": (Ordinal(3), [[0.0], [0.5]], "labels must be whole numbers.*found 0.5"),
    "another label": (Bernoulli(link="logit"), [[0.0], [2.0]], "labels must be 0 or 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_targets_outside_the_support_are_refused(what, backend):
    likelihood, y, message = REFUSED[what]
    X, y = backend.array([[0.0], [1.0]]), backend.array(y)
    with pytest.raises(ValueError, match=message):
        SVGP.from_data(X, y, likelihood=likelihood, num_inducing=2)


@pytest.mark.parametrize("name", ["robustmax", "softmax", "poisson"])
def test_later_targets_outside_the_support_are_refused(name):
    model, X, y = start(name)
    for bad in (y - 5.0, y + 0.25):
        with pytest.raises(ValueError, match="must be"):
            train(model, X, bad, steps=1)
        with pytest.raises(ValueError, match="must be"):
            model.log_density(X, bad)


SETTINGS = {
    "link": (lambda: Bernoulli(link="cauchit"), "link is 'cauchit', but must be 'probit' or 'logit'"),
    "points": (lambda: Bernoulli(link="logit", points=0), "points is 0"),
    "exposure": (lambda: Poisson(exposure=0.0), "exposure is 0.0"),
    "exposure of more variance": (lambda: NegativeBinomial(exposure=-1.0), "exposure is -1.0"),
    "dispersion": (lambda: NegativeBinomial((1.0, 2.0)), "dispersion has shape"),
    "no dispersion": (lambda: NegativeBinomial(0.0), "dispersion is 0.0, but must be positive"),
    "shape": (lambda: Gamma((1.0, 2.0)), "shape has shape"),
    "precision": (lambda: Beta((1.0, 2.0)), "precision has shape"),
    "link of shares": (lambda: Beta(link="cauchit"), "link is 'cauchit', but must be 'probit' or 'logit'"),
    "one category": (lambda: Ordinal(1), "classes is 1"),
    "edges": (lambda: Ordinal(4, (0.0, 1.0)), "edges has shape .2,., but must have shape .3,. for classes=4"),
    "descending edges": (lambda: Ordinal(3, (1.0, 0.0)), "edges is .*, but must be in ascending order and finite"),
    "degrees of freedom": (lambda: StudentT(degrees_of_freedom=0.0), "degrees_of_freedom is 0.0"),
    "scale": (lambda: StudentT((1.0, 2.0)), "scale has 2 entries, but there is 1 output"),
    "negative scale": (lambda: StudentT(-1.0), "scale is -1.0, but must be positive"),
    "epsilon": (lambda: RobustMax(2, epsilon=0.0), "epsilon is 0.0"),
    "squash": (lambda: RobustMax(2, squash=0.5), "squash is 0.5"),
    "samples": (lambda: Softmax(2, samples=0), "samples is 0"),
    "fixed samples": (lambda: Softmax(2, fixed_samples=1.5), "fixed_samples is 1.5"),
    "noise variance": (lambda: Gaussian((1.0, 2.0, 3.0)), "noise_variance has 3 entries, but there is 1 output"),
    "negative noise variance": (lambda: Gaussian(-1.0), "noise_variance is -1.0, but must be zero or positive"),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_settings_out_of_range_are_refused(what):
    build, message = SETTINGS[what]
    X, y = np.array([[0.0], [1.0]]), np.array([[0.0], [1.0]])
    y = 0.5 + 0.1 * y if what in ("precision", "link of shares", "shape") else y
    with pytest.raises(ValueError, match=message):
        SVGP.from_data(X, y, likelihood=build(), num_inducing=2)


@pytest.mark.filterwarnings("error")
def test_far_from_its_category_a_latent_function_has_the_gradient_of_a_square():
    """log Phi(-x) is -x^2 / 2 - log x up to a constant, at both ends."""
    f = np.array([[-4000.0], [4000.0]])
    likelihood = Ordinal(3).from_data(1.0)
    value, pullback = likelihood._log_density(f, np.array([[2.0], [0.0]]))
    bars, slope = pullback(np.ones_like(f))
    distance = 4000.0 + np.asarray(likelihood.edges)[::-1, None] * [[1.0], [-1.0]]
    np.testing.assert_allclose(value, -0.5 * distance**2 - np.log(distance * np.sqrt(2.0 * np.pi)), rtol=1e-9)
    np.testing.assert_allclose(slope, [[1.0], [-1.0]] * (distance + 1.0 / distance), rtol=1e-8)
    assert np.isfinite(tree.leaves(bars)["edges"]).all()


@pytest.mark.long
def test_edges_stay_in_order_in_training():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, size=(200, 1))
    edges = (-1.2, -1.0, 1.0)
    y = np.digitize(2.0 * np.sin(2.0 * X) + 0.5 * rng.normal(size=X.shape), edges) * 1.0
    start = SVGP.from_data(X, y, likelihood=Ordinal(4), num_inducing=12, posterior=Whitened)
    np.testing.assert_allclose(start.likelihood.edges, [-0.954, 0.0, 0.954], atol=1e-3)
    result = train(start, X, y, steps=200, updates=[Adam(0.3)])
    trained = result.model.likelihood.edges
    assert (np.diff(trained) > 0.0).all()
    assert np.diff(trained)[0] < 0.4 * np.diff(trained)[1]
    assert result.trace["bound"][-1] > result.trace["bound"][0] + 50.0
    # each step is the closed form of the raw leaf, a free number
    assert "likelihood.edges" in tree.unconstrain(result.model)


def test_latent_noise_starts_at_a_tenth_of_the_variance_of_the_targets():
    X, y = toy("latent-noise")
    y = np.concatenate([3.0 * y, 50.0 - 0.1 * y], axis=1)
    model = SVGP.from_data(X, y, likelihood=LatentNoiseGaussian(), outputs="separate", num_inducing=9)
    mean = model.predict_mean(X)
    variance = model.likelihood.predict(mean, np.zeros_like(mean)).variance
    np.testing.assert_allclose(variance, np.broadcast_to(0.1 * y.var(axis=0), variance.shape), rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e5])
def test_noise_that_depends_on_inputs_is_learnt_in_any_unit(unit):
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, size=(300, 1))
    noise = 0.05 + 0.4 * (X > 0.0)
    y = unit * (np.sin(2.0 * X) + noise * rng.normal(size=X.shape))
    model = SVGP.from_data(X, y, likelihood=LatentNoiseGaussian(), num_inducing=12, posterior=Whitened)
    model = fit(model, X, y).model
    left, right = np.array([[-1.0]]), np.array([[1.0]])
    deviations = [np.sqrt(model.predict(x, observed=True).variance[0, 0]) / unit for x in (left, right)]
    np.testing.assert_allclose(deviations, [0.05, 0.45], rtol=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Gamma, Exponential])
@pytest.mark.parametrize("unit", [1e-4, 1e5])
def test_positive_targets_in_other_units_are_predicted_in_those(unit, likelihood):
    X, y = toy("gamma")
    means = []
    for factor in (1.0, unit):
        model = SVGP.from_data(X, factor * y, likelihood=likelihood(), num_inducing=9, posterior=Whitened)
        model = train(model, X, factor * y, steps=30, updates=[Adam(0.1)]).model
        means.append(model.predict(X, observed=True).mean / factor)
    np.testing.assert_allclose(means[1], means[0], rtol=1e-6)


@pytest.mark.parametrize("nu", [0.5, 2.0])
def test_student_noise_without_a_variance_is_infinite(nu):
    likelihood = StudentT(np.asarray(0.5), degrees_of_freedom=nu)
    mean, variance = likelihood.predict(np.array([[1.0]]), np.array([[0.5]]))
    assert mean == 1.0
    assert variance == np.inf


def test_noise_alone_has_the_density_of_the_best_constant():
    rng = np.random.default_rng(2)
    y, weights = rng.normal(3.0, 0.7, (9, 2)), np.asarray([1, 3, 1, 2, 1, 1, 4, 1, 2])
    y[[1, 4], 0] = np.nan
    expected = 0.0
    for column in np.repeat(y, weights, axis=0).T:
        known = column[~np.isnan(column)]
        expected -= 0.5 * len(known) * (np.log(2.0 * np.pi * known.var()) + 1.0)
    found = Gaussian(np.asarray(0.1), missing=True).log_density_alone(y, 1.0 * weights)
    assert found == pytest.approx(expected / 9, rel=1e-12)
