"""Weights, offsets and known noise of rows: weights are repeated rows, exposures are offsets of latent functions."""

import dataclasses

import numpy as np
import pytest
from helpers import as_arrays, assert_close, assert_closed_form_is_autograd, assert_closed_form_is_slope, toy_data
from likelihood_cases import KINDS, likelihood_stage, problem_of, rows_of

import agp
from agp import SOLVEGP, SVGP, TSVGP, TVGP, tree
from agp.bounds import Batch, expected_row_density, row_site_gradients, with_row_noise
from agp.likelihoods import Bernoulli, Exponential, Gamma, Gaussian, NegativeBinomial, Poisson
from agp.training import baseline

X, F = toy_data(14)
COUNTS = np.round(np.exp(F))
W = 1.0 * np.random.default_rng(2).integers(0, 4, size=len(X))
AGAIN = np.repeat(np.arange(len(X)), W.astype(int))
EXPOSURE = 0.2 + np.abs(F)

EXPOSABLE = {
    "poisson": (lambda: Poisson(exposure=1.3), COUNTS),
    "negative-binomial": (lambda: NegativeBinomial(0.6), COUNTS),
    "gamma": (lambda: Gamma(1.7), np.exp(F)),
    "exponential": (Exponential, np.exp(F)),
}

# -- one likelihood and its rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_weights_multiply_what_a_datum_adds(name):
    likelihood, mu, var, y, draws = problem_of(name, columns=2)
    weights = np.linspace(0.0, 3.0, len(y))
    batch = Batch(y, y, weights=weights)
    value, pull = likelihood.expected_log_density(mu, var, y, draws)
    found, pull_weighted = expected_row_density(likelihood, mu, var, batch, draws)
    np.testing.assert_allclose(found, weights * value, rtol=1e-14)
    bar = np.linspace(-1.0, 1.0, len(y))
    (own, *bars), (inside, *weighted) = pull(weights * bar), pull_weighted(bar)
    for one, two in zip(weighted, bars, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-14)
    for leaf, x in tree.leaves(own).items():
        np.testing.assert_allclose(tree.leaves(inside)[leaf], x, rtol=1e-14)
    sites = row_site_gradients(likelihood, mu, var, batch, draws), likelihood.site_gradients(mu, var, y, draws)
    for one, two in zip(*sites, strict=True):
        np.testing.assert_allclose(one, weights[:, None] * two, rtol=1e-14)


@pytest.mark.parametrize("name", KINDS)
def test_offsets_shift_f(name):
    likelihood, mu, var, y, draws = problem_of(name, columns=2)
    offset = np.linspace(-1.0, 1.0, mu.size).reshape(mu.shape)
    for shift in (offset, offset[:, :1]):
        batch = Batch(y, y, offset=shift)
        found = expected_row_density(likelihood, mu, var, batch, draws)[0]
        np.testing.assert_array_equal(found, likelihood.expected_log_density(mu + shift, var, y, draws)[0])
        found = row_site_gradients(likelihood, mu, var, batch, draws)
        for one, two in zip(found, likelihood.site_gradients(mu + shift, var, y, draws), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("columns", [1, 2])
def test_each_row_has_its_own_noise(columns):
    likelihood, mu, var, y, _ = problem_of("gaussian", columns=2)
    noise = np.linspace(0.1, 2.0, len(y) * columns).reshape(-1, columns)
    batch = Batch(y, y, noise=noise)
    value, sites = expected_row_density(likelihood, mu, var, batch)[0], row_site_gradients(likelihood, mu, var, batch)
    at_rows = with_row_noise(likelihood, noise)
    for n in range(len(y)):
        alone = Gaussian(likelihood.noise_variance + noise[n])
        row = (x[[n]] for x in (mu, var, y))
        mu_n, var_n, y_n = row
        np.testing.assert_allclose(value[n], alone.expected_log_density(mu_n, var_n, y_n)[0][0], rtol=1e-13)
        for one, two in zip(sites, alone.site_gradients(mu_n, var_n, y_n), strict=True):
            np.testing.assert_allclose(one[n], two[0], rtol=1e-13)
        for score in ("predictive_log_density", "predictive_cdf", "predictive_crps"):
            found, expected = getattr(at_rows, score)(mu, var, y)[n], getattr(alone, score)(mu_n, var_n, y_n)[0]
            np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_pullbacks_are_those_of_autograd_and_of_differences(name, columns, torch_place):
    problem = problem_of(name, columns=columns)
    stage, leaves = likelihood_stage(problem, rows=rows_of(problem))
    assert_closed_form_is_autograd(stage, leaves)
    assert_closed_form_is_slope(stage, leaves)


def _everything(problem, batch):
    likelihood, mu, var, _, draws = problem
    value, pull = expected_row_density(likelihood, mu, var, batch, draws)
    likelihood_bar, mu_bar, var_bar = pull(0.0 * value + 1.0)
    alpha, beta = row_site_gradients(likelihood, mu, var, batch, draws)
    found = {"value": value, "mu_bar": mu_bar, "var_bar": var_bar, "alpha": alpha, "beta": beta}
    return found | tree.leaves(likelihood_bar)


@pytest.mark.sample(14)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-4)])
@pytest.mark.parametrize("name", KINDS)
def test_backends_agree(name, dtype, tolerance, backend):
    here, there = problem_of(name, backend, columns=2, dtype=dtype), problem_of(name, columns=2)
    found, expected = _everything(here, rows_of(here, backend, dtype)), _everything(there, rows_of(there))
    for key, x in expected.items():
        assert_close(backend.numpy(found[key], dtype), x, tolerance, key)


@pytest.mark.parametrize("name", ["poisson", "negative-binomial"])
def test_a_common_exposure_is_an_offset(name):
    likelihood = as_arrays(EXPOSABLE[name][0]())
    more = dataclasses.replace(likelihood, exposure=2.5 * likelihood.exposure)
    mu, var = 0.3 * F, 0.1 + F * F
    batch = Batch(X, COUNTS, offset=np.full_like(F, np.log(2.5)))
    found, expected = expected_row_density(likelihood, mu, var, batch)[0], more.expected_log_density(mu, var, COUNTS)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("name", EXPOSABLE)
def test_the_mean_is_that_of_the_rate_times_the_exposure(name):
    # at a known f, E[y] = e E[y | e = 1]: the score of the log density in f vanishes on the average over y
    build, _ = EXPOSABLE[name]
    likelihood, f, zero, e = as_arrays(build()), np.array([[0.4]]), np.array([[0.0]]), 2.5
    assert likelihood.log_link
    mean = likelihood.predict(f, zero).mean
    alpha, _ = row_site_gradients(likelihood, f, zero, Batch(f, e * mean, offset=np.log([[e]])))
    np.testing.assert_allclose(alpha, 0.0, atol=1e-9)
    np.testing.assert_allclose(likelihood.predict(f + np.log(e), zero).mean, e * mean, rtol=1e-12)


def test_missing_targets_stay_missing():
    y = np.where(np.arange(len(F))[:, None] % 3 == 0, np.nan, F)
    known = {"weights": 1.0 + W, "offset": 0.1 * F, "noise": 0.1 + F * F}
    model = SVGP.from_data(X, y, likelihood=Gaussian(missing=True), num_inducing=4, **known)
    value, pull = model.bound(X, y, **known)
    seen = np.isfinite(y[:, 0])
    rest, pull_rest = model.bound(X[seen], y[seen], **{name: x[seen] for name, x in known.items()})
    np.testing.assert_allclose(value, rest, rtol=1e-12)
    slopes = tree.leaves(pull()[0])
    for name, slope in tree.leaves(pull_rest()[0]).items():
        np.testing.assert_allclose(slopes[name], slope, rtol=1e-9, atol=1e-12)


# -- models -----------------------------------------------------------------------------------------------------------

MODELS = {
    "whitened": (SVGP, {"posterior": "whitened"}),
    "relaxed": (SVGP, {"posterior": "relaxed"}),
    "dual": (SVGP, {"posterior": "dual"}),
    "solve": (SOLVEGP, {"num_inducing": 3, "num_orthogonal": 2}),
    "tsvgp": (TSVGP, {}),
}
LIKELIHOODS = {
    "gaussian": (Gaussian, F, {"noise": 0.1 + F * F}),
    "bernoulli": (Bernoulli, 1.0 * (F > 0.0), {}),
    "poisson": (Poisson, COUNTS, {}),
    "exposed": (Poisson, COUNTS, {"offset": np.log(EXPOSURE)}),
}


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", MODELS)
def test_whole_weights_are_repeated_rows(kind, likelihood):
    model_class, options = MODELS[kind]
    build, y, known = LIKELIHOODS[likelihood]
    options = {"num_inducing": 5} | options
    again, known = {name: x[AGAIN] for name, x in known.items()}, known | {"weights": W}
    weighted = model_class.from_data(X, y, likelihood=build(), **options, **known)
    repeated = model_class.from_data(X[AGAIN], y[AGAIN], likelihood=build(), **options, **again)
    expected = tree.leaves(repeated)  # starting values too are those of repeated rows
    for name, leaf in tree.leaves(weighted, "parameter").items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-9, atol=1e-9)
    weighted = agp.train(weighted, X, y, steps=5, **known).model
    repeated = agp.train(repeated, X[AGAIN], y[AGAIN], steps=5, **again).model
    value, other = weighted.bound(X, y, **known)[0], repeated.bound(X[AGAIN], y[AGAIN], **again)[0]
    np.testing.assert_allclose(value, other, rtol=1e-8)
    for one, two in zip(weighted.predict(X), repeated.predict(X), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(weighted.log_density(X, y), repeated.log_density(X, y), rtol=1e-6)


@pytest.mark.parametrize("name", [*EXPOSABLE, "gaussian"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_constant_is_the_offset_or_the_mean(kind, name):
    build, y = (Gaussian, F) if name == "gaussian" else EXPOSABLE[name]
    model_class, options = MODELS[kind]
    offset, found = np.log(EXPOSURE), []
    for shift in (0.0, 1.5):
        known = {"offset": offset + shift, "weights": 1.0 + W}
        model = model_class.from_data(X, y, likelihood=build(), **({"num_inducing": 5} | options), **known)
        model = agp.train(model, X, y, steps=3, **known).model
        found.append((model.bound(X, y, **known)[0], model.predict(X).mean + shift, model.predict(X).variance))
        np.testing.assert_allclose(
            model.log_density(X, y, offset=offset + shift), model.log_density(X, y, offset=(offset + shift)[:, 0])
        )
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)  # Adam moves by the signs of tiny slopes


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", MODELS)
def test_minibatches_carry_their_weights(kind, likelihood):
    model_class, options = MODELS[kind]
    build, y, known = LIKELIHOODS[likelihood]
    known = known | {"weights": W}
    model = model_class.from_data(X, y, likelihood=build(), **({"num_inducing": 5} | options), **known)
    whole = float(model.bound(X, y, **known)[0])
    parts = ((rows, {name: x[rows] for name, x in known.items()}) for rows in (slice(0, 7), slice(7, 14)))
    halves = [float(model.bound(X[rows], y[rows], scale=2.0, **some)[0]) for rows, some in parts]
    np.testing.assert_allclose(np.mean(halves), whole, rtol=1e-10)


@pytest.mark.slow
def test_sites_of_all_data_take_weights():
    known = {"weights": 1.0 + W, "offset": np.log(EXPOSURE)}
    result = agp.fit(TVGP.from_data(X, COUNTS, likelihood=Poisson(), **known), X, COUNTS, **known)
    rows = np.repeat(np.arange(len(X)), 1 + W.astype(int))
    x, y, offset = X[rows], COUNTS[rows], np.log(EXPOSURE)[rows]
    other = agp.fit(TVGP.from_data(x, y, likelihood=Poisson(), offset=offset), x, y, offset=offset)
    for one, two in zip(result.model.predict(X), other.model.predict(X), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_further_data_count_with_their_weights(likelihood):
    build, y, known = LIKELIHOODS[likelihood]
    model = SVGP.from_data(X, y, likelihood=build(), num_inducing=5, posterior="whitened", weights=W, **known)
    new, y, known = X[:3] + 0.1, y[:3], {name: x[:3] for name, x in known.items()}
    twice = model.predictor().condition_on(new, y, weights=np.full(3, 2.0), **known).predict(X)
    more = {name: np.tile(x, (2, 1)) for name, x in known.items()}
    again = model.predictor().condition_on(np.tile(new, (2, 1)), np.tile(y, (2, 1)), **more).predict(X)
    for one, two in zip(twice, again, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("unit", [1.0, 1e4, 1e-3])
def test_rates_do_not_depend_on_the_unit_of_exposures(unit):
    found, known = (
        agp.fit(SVGP.from_data(X, COUNTS, likelihood=Poisson(), num_inducing=6, offset=o), X, COUNTS, offset=o)
        for o in (np.log(unit * EXPOSURE), np.log(EXPOSURE))
    )
    assert found.learned
    mean = found.model.predict(X).mean + np.log(unit)
    np.testing.assert_allclose(mean, known.model.predict(X).mean, atol=0.02)


# -- the density without inputs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_density_without_inputs_is_that_of_repeated_rows(name):
    build, y, known = LIKELIHOODS[name]
    again = {key: x[AGAIN] for key, x in known.items()}
    likelihood = as_arrays(build(0.1) if build is Gaussian else build())
    found = len(X) * baseline(likelihood, y, W, **known)
    np.testing.assert_allclose(found, len(AGAIN) * baseline(likelihood, y[AGAIN], **again), rtol=1e-6)


def test_the_density_without_inputs_is_that_of_targets_without_offset():
    likelihood, offset = as_arrays(Gaussian(0.1)), np.log(EXPOSURE)
    found = baseline(likelihood, F, W, offset)
    np.testing.assert_allclose(found, baseline(likelihood, F - offset, W), rtol=1e-6)
    np.testing.assert_allclose(baseline(likelihood, F, W, noise=np.full_like(F, 0.01)), baseline(likelihood, F, W))
    rates = baseline(Poisson(), COUNTS, None, offset), baseline(Poisson(), COUNTS, None, offset + 3.0)
    np.testing.assert_allclose(*rates, rtol=1e-6)


# -- refusals ---------------------------------------------------------------------------------------------------------

WRONG = {
    "negative": ({"weights": -W}, "weights must not be negative, but the smallest is -3"),
    "two columns": ({"offset": np.tile(F, 2)}, r"offset has shape \(14, 2\), but must have shape \(14,\)"),
    "zero exposure": ({"offset": np.where(F > 1.0, -np.inf, F)}, "offset has .* NaN or infinite entries"),
    "targets": ({"weights": W, "offset": F}, "counts must be whole numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_do_not_fit_are_refused(name):
    known, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        SVGP.from_data(X, F if name == "targets" else COUNTS, likelihood=Poisson(), num_inducing=3, **known)


@pytest.mark.parametrize("kind", KINDS)
def test_only_gaussian_noise_may_be_known(kind):
    likelihood, noise = problem_of(kind).likelihood, np.ones((8, 1))
    if likelihood.takes_noise:
        assert isinstance(likelihood, Gaussian)
        return
    with pytest.raises(TypeError, match=f"noise is given, but the likelihood is {type(likelihood).__name__}; omit"):
        likelihood.with_noise(noise)


def test_one_offset_is_refused_where_latent_functions_define_the_noise():
    X, y = toy_data(20)[:2]
    rows = {"likelihood": agp.likelihoods.LatentNoiseGaussian(), "num_inducing": 5}
    model = SVGP.from_data(X, y, **rows)
    offset, both = np.ones(len(X)), np.ones((len(X), 1)) * [1.0, 0.0]
    for call in (
        lambda: SVGP.from_data(X, y, offset=offset, **rows),
        lambda: model.bound(X, y, offset=offset),
        lambda: model.predict(X, offset=offset),
    ):
        with pytest.raises(ValueError, match=r"offset has one column, .* pass offset \[N, 2 K\], with zeros"):
            call()
    assert_close(model.predict(X, offset=both).mean, model.predict(X).mean + both, 1e-12)
