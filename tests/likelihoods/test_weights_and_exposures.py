"""Likelihoods whose targets end in a column: weights are repeated rows, exposures shift the latent functions."""

import numpy as np
import pytest
from helpers import as_arrays, toy_data
from likelihood_cases import KINDS, problem_of

import agp
from agp import SOLVEGP, SVGP, TSVGP, TVGP, tree
from agp.likelihoods import (
    Bernoulli,
    Exponential,
    Exposed,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
    Weighted,
)
from agp.testing import check_pullback
from agp.training import baseline

X, F = toy_data(14)
COUNTS = np.round(np.exp(F))
W = 1.0 * np.random.default_rng(2).integers(0, 4, size=(len(X), 1))
AGAIN = np.repeat(np.arange(len(X)), W[:, 0].astype(int))
EXPOSURE = 0.2 + np.abs(F)

EXPOSABLE = {
    "poisson": (lambda: Poisson(exposure=1.3), COUNTS),
    "negative-binomial": (lambda: NegativeBinomial(0.6), COUNTS),
    "gamma": (lambda: Gamma(1.7), np.exp(F)),
    "exponential": (Exponential, np.exp(F)),
}


def beside(y, *columns):
    return np.concatenate([y, *columns], axis=1)


# -- one likelihood and its targets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith(("weighted", "exposed"))])
def test_weights_multiply_what_a_datum_adds(name):
    likelihood, mu, var, y, draws = problem_of(name, columns=2)
    weights = np.linspace(0.0, 3.0, len(y))
    weighted, targets = Weighted(likelihood), beside(y, weights[:, None])
    value, pull = likelihood.expected_log_density(mu, var, y, draws)
    found, pull_weighted = weighted.expected_log_density(mu, var, targets, draws)
    np.testing.assert_allclose(found, weights * value, rtol=1e-14)
    bar = np.linspace(-1.0, 1.0, len(y))
    own, mu_bar, var_bar = pull(weights * bar)
    inside, *bars = pull_weighted(bar)
    for one, two in zip(bars, (mu_bar, var_bar), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-14)
    expected = tree.leaves(own)
    for leaf, x in tree.leaves(inside).items():
        np.testing.assert_allclose(x, expected[leaf.removeprefix("likelihood.")], rtol=1e-14)
    for one, two in zip(weighted.site_gradients(mu, var, targets), likelihood.site_gradients(mu, var, y), strict=True):
        np.testing.assert_allclose(one, weights[:, None] * two, rtol=1e-14)
    density = likelihood.predictive_log_density(mu, var, y)
    for given in (targets, y):
        np.testing.assert_array_equal(weighted.predictive_log_density(mu, var, given), density)
    for one, two in zip(weighted.predict(mu, var), likelihood.predict(mu, var), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", EXPOSABLE)
def test_exposures_shift_f(name):
    build, y = EXPOSABLE[name]
    likelihood, targets = as_arrays(build()), beside(y, EXPOSURE)
    exposed, shift = Exposed(likelihood), np.log(EXPOSURE)
    mu, var = 0.3 * F, 0.1 + F * F
    for method in ("expected_log_density", "site_gradients", "predictive_log_density"):
        found, expected = getattr(exposed, method)(mu, var, targets), getattr(likelihood, method)(mu + shift, var, y)
        if method == "expected_log_density":
            found, expected = found[0], expected[0]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(
        exposed.predictive_log_density(mu, var, y), likelihood.predictive_log_density(mu, var, y)
    )
    levels = (0.1, 0.9)
    np.testing.assert_array_equal(
        exposed.predictive_quantiles(mu, var, levels), likelihood.predictive_quantiles(mu, var, levels)
    )


@pytest.mark.parametrize("name", EXPOSABLE)
def test_the_mean_is_that_of_the_rate_times_the_exposure(name):
    # at a known f, E[y] = e E[y | e = 1]: the score of the log density in f vanishes on the average over y
    build, _ = EXPOSABLE[name]
    exposed, f, e = Exposed(as_arrays(build())), 0.4, 2.5
    mean = float(exposed.likelihood.predict(np.array([[f]]), np.array([[0.0]])).mean[0, 0])
    targets = np.array([[e * mean, e]])
    alpha, _ = exposed.site_gradients(np.array([[f]]), np.array([[0.0]]), targets)
    np.testing.assert_allclose(alpha, 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Weighted(Gaussian()), beside(F, 1.0 + W)),
        (Weighted(StudentT()), beside(F, 1.0 + W)),
        (Weighted(Exposed(NegativeBinomial())), beside(COUNTS, EXPOSURE, 1.0 + W)),
        (Exposed(Gamma()), beside(np.exp(F), EXPOSURE)),
    ],
    ids=["gaussian", "student-t", "both", "gamma"],
)
def test_pullbacks_are_those_of_differences_and_of_autograd(likelihood, y):
    check_pullback(likelihood, X=X[:8], y=y[:8], backends=["torch"])


def test_flags_and_support_are_those_of_the_likelihood():
    names = ("couples_outputs", "bounded_curvature", "log_concave", "quadratic", "slopes_vanish", "support", "missing")
    inside = [Gaussian(missing=True), Gamma(), StudentT(), Softmax(3), RobustMax(3), LatentNoiseGaussian(), Ordinal(4)]
    for likelihood in [*inside, StudentT(degrees_of_freedom=1.5)]:
        for name in (*names, "infinite_variance"):
            assert getattr(Weighted(likelihood), name) == getattr(likelihood, name)


def test_missing_targets_stay_missing():
    y = np.where(np.arange(len(F))[:, None] % 3 == 0, np.nan, F)
    model = SVGP.from_data(X, beside(y, 1.0 + W), likelihood=Weighted(Gaussian(missing=True)), num_inducing=4)
    assert np.isfinite(model.bound(X, beside(y, 1.0 + W))[0])


# -- models -----------------------------------------------------------------------------------------------------------

MODELS = {
    "whitened": (SVGP, {"posterior": "whitened"}),
    "relaxed": (SVGP, {"posterior": "relaxed"}),
    "dual": (SVGP, {"posterior": "dual"}),
    "solve": (SOLVEGP, {"num_inducing": 3, "num_orthogonal": 2}),
    "tsvgp": (TSVGP, {}),
}
LIKELIHOODS = {
    "gaussian": (Gaussian, F),
    "bernoulli": (Bernoulli, 1.0 * (F > 0.0)),
    "poisson": (Poisson, COUNTS),
    "exposed": (lambda: Exposed(Poisson()), beside(COUNTS, EXPOSURE)),
}


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", MODELS)
def test_whole_weights_are_repeated_rows(kind, likelihood):
    model_class, options = MODELS[kind]
    build, y = LIKELIHOODS[likelihood]
    options = {"num_inducing": 5} | options
    weighted = model_class.from_data(X, beside(y, W), likelihood=Weighted(build()), **options)
    repeated = model_class.from_data(X[AGAIN], y[AGAIN], likelihood=build(), **options)
    expected = tree.leaves(repeated)  # starting values too are those of repeated rows
    for name, leaf in tree.leaves(weighted, "parameter").items():
        known = expected[name.replace("likelihood.likelihood", "likelihood", 1)]
        np.testing.assert_allclose(leaf, known, rtol=1e-9, atol=1e-9)
    weighted = agp.train(weighted, X, beside(y, W), steps=5).model
    repeated = agp.train(repeated, X[AGAIN], y[AGAIN], steps=5).model
    value, known = weighted.bound(X, beside(y, W))[0], repeated.bound(X[AGAIN], y[AGAIN])[0]
    np.testing.assert_allclose(value, known, rtol=1e-8)
    for one, two in zip(weighted.predict(X), repeated.predict(X), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(weighted.log_density(X, y), repeated.log_density(X, y), rtol=1e-6)
    np.testing.assert_array_equal(weighted.log_density(X, beside(y, W)), weighted.log_density(X, y))


def test_minibatches_carry_their_weights():
    y = beside(F, W)
    model = SVGP.from_data(X, y, likelihood=Weighted(Gaussian()), num_inducing=5, posterior="whitened")
    whole = float(model.bound(X, y)[0])
    halves = [float(model.bound(X[rows], y[rows], scale=2.0)[0]) for rows in (slice(0, 7), slice(7, 14))]
    np.testing.assert_allclose(np.mean(halves), whole, rtol=1e-10)


@pytest.mark.slow
def test_sites_of_all_data_take_weights():
    y = beside(COUNTS, 1.0 + W)
    result = agp.fit(TVGP.from_data(X, y, likelihood=Weighted(Poisson())), X, y)
    assert np.isfinite(result.model.predict(X).variance).all()


def test_further_data_count_with_their_weights():
    model = SVGP.from_data(X, beside(F, W), likelihood=Weighted(Gaussian(0.2)), num_inducing=5, posterior="whitened")
    new, y = X[:3] + 0.1, F[:3]
    twice = model.predictor().condition_on(new, beside(y, np.full((3, 1), 2.0))).predict(X)
    again = model.predictor().condition_on(np.tile(new, (2, 1)), np.tile(y, (2, 1))).predict(X)
    for one, two in zip(twice, again, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("unit", [1.0, 1e4, 1e-3])
def test_rates_do_not_depend_on_the_unit_of_exposures(unit):
    y = beside(COUNTS, unit * EXPOSURE)
    found = agp.fit(SVGP.from_data(X, y, likelihood=Exposed(Poisson()), num_inducing=6), X, y)
    assert found.learned
    base = beside(COUNTS, EXPOSURE)
    known = agp.fit(SVGP.from_data(X, base, likelihood=Exposed(Poisson()), num_inducing=6), X, base)
    mean = found.model.predict(X).mean + np.log(unit)
    np.testing.assert_allclose(mean, known.model.predict(X).mean, atol=0.02)


@pytest.mark.parametrize("name", ["gaussian", "poisson"])
def test_the_density_without_inputs_is_that_of_repeated_rows(name):
    build, y = LIKELIHOODS[name]
    found = len(X) * baseline(Weighted(build()), beside(y, W))
    np.testing.assert_allclose(found, len(AGAIN) * baseline(build(), y[AGAIN]), rtol=1e-6)


# -- refusals ---------------------------------------------------------------------------------------------------------

WRONG = {
    "no column": (Weighted(Gaussian()), F, "y has 1 columns, but Weighted needs two or more; append weights"),
    "negative": (Weighted(Gaussian()), beside(F, -W), "must not be negative; found -3"),
    "no exposure": (Exposed(Poisson()), COUNTS, "append exposures as the last column"),
    "zero": (Exposed(Poisson()), beside(COUNTS, 0.0 * F), "exposures, the last column of y, must be positive; found 0"),
    "targets": (Weighted(Exposed(Poisson())), beside(F, EXPOSURE, W), "counts must be whole numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_targets_that_do_not_fit_are_refused(name):
    likelihood, y, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        SVGP.from_data(X, y, likelihood=likelihood, num_inducing=3)


@pytest.mark.parametrize("likelihood", [Gaussian(), Weighted(Poisson()), Exposed(Poisson()), Bernoulli()])
def test_exposures_are_for_logarithmic_links(likelihood):
    with pytest.raises(TypeError, match="likelihood is .*, but must be a likelihood with a mean proportional"):
        Exposed(likelihood)


@pytest.mark.parametrize("kind", [Weighted, Exposed])
def test_a_class_is_no_likelihood(kind):
    with pytest.raises(TypeError, match=r"must be an instance of agp's Likelihood; write Poisson\(\)"):
        kind(Poisson)


def test_exact_models_take_weights_beside_the_targets():
    with pytest.raises(TypeError, match="needs the Gaussian likelihood, not Weighted"):
        agp.GPR.from_data(X, beside(F, W), likelihood=Weighted(Gaussian()))
