"""Steps of sites and natural gradients with counts, whose curvature knows no limit."""

import numpy as np
import pytest
from helpers import JAX, NUMPY, TORCH, Place

import agp
from agp.posteriors import moments_of_sites
from agp.updates import Adam, NaturalGradient, SiteStep

FAR = {"likelihood": agp.Poisson(), "mean_function": agp.ZeroMean()}
"""With this mean function, large counts are far from the prior."""
MAKERS = {
    "dual": lambda X, y: agp.SVGP.from_data(X, y, posterior="dual", num_inducing=12, **FAR),
    "tsvgp": lambda X, y: agp.TSVGP.from_data(X, y, num_inducing=12, **FAR),
    "tvgp": lambda X, y: agp.TVGP.from_data(X, y, **FAR),
}


def counts(level):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-3.0, 3.0, (60, 1)), axis=0)
    rate = level * np.exp(np.sin(2.0 * X))
    return X, rng.poisson(rate).astype(float), rate


@pytest.mark.slow
@pytest.mark.parametrize("level", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("kind", MAKERS)
def test_large_counts_are_learnt_without_a_repair(kind, level):
    X, y, rate = counts(level)
    result = agp.train(MAKERS[kind](X, y), X, y, steps=40)
    assert not result.repairs
    assert result.trace["bound"][-1] > result.trace["bound"][0]
    predicted = result.model.predict(X, observed=True).mean
    assert np.median(np.abs(np.log(predicted / rate))) < 0.2
    assert max(result.trace["shortened"]) > 0.0  # the plain step overshoots


@pytest.mark.slow
def test_natural_gradients_are_guarded_too():
    X, y, rate = counts(1e4)
    model = agp.SVGP.from_data(X, y, likelihood=agp.Poisson(), posterior="whitened", num_inducing=12)
    updates = [NaturalGradient(0.5), Adam(0.01, frozen=("posterior.*",))]
    result = agp.train(model, X, y, steps=40, updates=updates)
    assert np.median(np.abs(np.log(result.model.predict(X, observed=True).mean / rate))) < 0.2


def test_no_step_lowers_the_bound_of_its_batch():
    X, y, _ = counts(1e3)
    model = MAKERS["dual"](X, y)
    update = SiteStep(1.0)
    state, before = update.init(model), float(model.bound(X, y)[0])
    for _ in range(5):
        model, state, _ = update(model, model._batch(X, y), state)
        after = float(model.bound(X, y)[0])
        assert after >= before - 1e-9 * abs(before)
        before = after


@pytest.mark.slow
@pytest.mark.parametrize("place", [TORCH, JAX], ids=lambda place: place.name)
def test_other_libraries_take_the_same_steps(place: Place):
    pytest.importorskip(place.name)
    X, y, _ = counts(1e4)
    traces = {}
    for here in (NUMPY, place):
        Xh, yh = here.array(X), here.array(y)
        result = agp.train(MAKERS["dual"](Xh, yh), Xh, yh, steps=8, updates=[SiteStep(0.3)])
        traces[here.name] = result
    assert traces["numpy"].trace["shortened"] == traces[place.name].trace["shortened"]
    found, desired = (
        traces[name].model.predict(h.array(X)).mean for name, h in ((place.name, place), ("numpy", NUMPY))
    )
    np.testing.assert_allclose(agp.to_numpy(found), desired, rtol=1e-6)


def after_steps(model, X, y, steps, rate=0.8):
    update = SiteStep(rate)
    state = update.init(model)
    for _ in range(steps):
        model, state, _ = update(model, model._batch(X, y), state)
    return model


def waits(rate):
    return rate * np.random.default_rng(1).exponential(size=rate.shape)


@pytest.mark.parametrize("variance", [200.0, 1000.0])
def test_steps_from_a_wide_prior_are_limited(variance):
    """At the start, E[exp(-f)] is about exp(variance / 2); rounding errors would then enter unlimited sites."""
    X, _, rate = counts(1.0)
    y = waits(rate)
    kernel = agp.kernels.RBF(variance, lengthscale=1.0)
    start = agp.TVGP.from_data(X, y, kernel=kernel, likelihood=agp.likelihoods.Exponential())
    calm = agp.tree.with_leaves(start, {"kernel.variance": np.asarray(1.0)})
    near = agp.tree.with_leaves(after_steps(calm, X, y, 60), {"kernel.variance": np.asarray(variance)})
    expected = after_steps(near, X, y, 60).bound(X, y)[0]  # the same optimum from a better start
    np.testing.assert_allclose(after_steps(start, X, y, 100).bound(X, y)[0], expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
def test_rounding_errors_never_look_like_a_negative_divergence():
    """Precisions of very different sizes at equal inputs; a negative divergence would be an excellent bound."""
    X = np.repeat(np.arange(3.0), [34, 22, 5])[:, None]
    K = agp.kernels.RBF(275.0, lengthscale=0.1)(X)[0]
    divergences = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        precision, centre = 10.0 ** rng.uniform(11.0, 12.0, size=X.shape), np.full(X.shape, -100.0)
        precision[0], centre[0] = 10.0 ** rng.uniform(17.0, 20.0), -60.0
        divergences.append(float(moments_of_sites(K, precision * centre, precision)[0][2]))
    useless = np.isnan(divergences)
    assert 0 < useless.sum() < 50
    assert np.asarray(divergences)[~useless].min() > 0.0


@pytest.mark.parametrize("variance", [50.0, 1000.0])
def test_further_rows_where_the_posterior_is_wide(variance):
    X, _, rate = counts(1.0)
    kernel = agp.kernels.RBF(variance, lengthscale=1.0)
    model = agp.TVGP.from_data(X, waits(rate), kernel=kernel, likelihood=agp.likelihoods.Exponential())
    predictor = after_steps(model, X, waits(rate), 100).predictor()
    new = predictor.condition_on(np.asarray([[40.0], [60.0]]), np.asarray([[2.0], [0.5]]))
    mean, var = (x[:, 0] for x in new.predict(np.asarray([[40.0], [60.0]]))[:2])
    # stationary points of -f - y exp(-f) under N(m, v), with the prior mean h and variance: beta = y exp(-m + v / 2)
    beta = np.asarray([2.0, 0.5]) * np.exp(-mean + 0.5 * var)
    h = float(model.mean_function.value[0])
    np.testing.assert_allclose(1.0 / var, 1.0 / variance + beta, rtol=1e-6)
    np.testing.assert_allclose(mean - h, variance * (beta - 1.0), rtol=1e-5)


@pytest.mark.parametrize(("dtype", "level", "tolerance"), [("float64", 1e10, 1e-9), ("float32", 1e5, 1e-4)])
def test_sites_with_few_inducing_inputs_converge_to_their_definition(dtype, level, tolerance):
    """The variance given u is no part of the sites, and makes beta times the variance far larger than 1."""
    X, y, _ = counts(level)
    X, y = X.astype(dtype), y.astype(dtype)
    kernel = agp.kernels.RBF(4.0, lengthscale=0.8)
    start = agp.TSVGP.from_data(X, y, num_inducing=4, likelihood=agp.Poisson(), kernel=kernel)
    model = after_steps(start, X, y, 300, rate=0.5)
    mu, var, _ = model._site_moments(model._batch(X, y), None)
    beta = model.likelihood.site_gradients(mu + model.mean_function(X)[0], var, y)[1]
    assert (beta * var).max() > np.finfo(dtype).eps ** -0.5
    np.testing.assert_allclose(model.site_precision, beta, rtol=tolerance)
    tied = agp.SVGP.from_data(X, y, posterior="dual", num_inducing=4, likelihood=agp.Poisson(), kernel=kernel)
    np.testing.assert_allclose(after_steps(tied, X, y, 300, rate=0.5).bound(X, y)[0], model.bound(X, y)[0], rtol=1e-5)
