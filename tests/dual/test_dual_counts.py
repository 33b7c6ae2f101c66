"""Steps of sites and natural gradients with counts, whose curvature knows no limit."""

import numpy as np
import pytest
from helpers import JAX, NUMPY, TORCH, Place

import agp
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


WIDE = {
    "dual": lambda X, y, **parts: agp.SVGP.from_data(X, y, posterior="dual", num_inducing=12, **parts),
    "tsvgp": lambda X, y, **parts: agp.TSVGP.from_data(X, y, num_inducing=12, **parts),
    "tvgp": agp.TVGP.from_data,
}


def after_steps(model, X, y, steps):
    update = SiteStep(0.8)
    state = update.init(model)
    for _ in range(steps):
        model, state, _ = update(model, model._batch(X, y), state)
    return model


def with_variance(model, variance):
    name = next(name for name in agp.tree.leaves(model) if name.endswith("kernel.variance"))
    return agp.tree.with_leaves(model, {name: np.asarray(variance)})


@pytest.mark.parametrize("variance", [200.0, 1000.0])
@pytest.mark.parametrize("kind", WIDE)
def test_steps_from_a_wide_prior_are_limited(kind, variance):
    """At the start, E[exp(-f)] is about exp(variance / 2); rounding errors would then enter unlimited sites."""
    X, _, rate = counts(1.0)
    y = rate * np.random.default_rng(1).exponential(size=rate.shape)
    kernel = agp.kernels.RBF(variance, lengthscale=1.0)
    start = WIDE[kind](X, y, kernel=kernel, likelihood=agp.likelihoods.Exponential())
    near = after_steps(with_variance(start, 1.0), X, y, 60)  # the same optimum from a better start
    expected = after_steps(with_variance(near, variance), X, y, 60).bound(X, y)[0]
    np.testing.assert_allclose(after_steps(start, X, y, 100).bound(X, y)[0], expected, rtol=1e-9)
