"""Variances of the terms of a sum over rows, and joint samples of the terms, against dense formulas."""

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp.kernels import RBF, Constant, Linear, Seasonal, additive, terms_of

RNG = np.random.default_rng(2)
X = RNG.uniform(0.0, 4.0, (40, 2))
Y = 3.0 + np.sin(2.0 * X[:, :1]) + 0.5 * X[:, 1:] + 0.2 * RNG.standard_normal((40, 1))
NEW = X[::3]


def dense(kernel, noise, residual, extra=()):
    """The joint mean [K n] and covariance [K n, K n] of the terms at NEW."""
    terms = (*terms_of(kernel), *extra)
    cross = np.concatenate([term(NEW, X)[0] for term in terms])
    C = sum(term(X)[0] for term in terms) + noise * np.eye(len(X))
    prior = np.zeros((len(cross),) * 2)
    for i, term in enumerate(terms):
        rows = slice(i * len(NEW), (i + 1) * len(NEW))
        prior[rows, rows] = term(NEW)[0]
    return cross @ np.linalg.solve(C, residual)[:, 0], prior - cross @ np.linalg.solve(C, cross.T)


def moments(mean, covariance, k):
    """The mean and the variance of the variance over NEW of the term k."""
    n = len(NEW)
    C = np.eye(n) - 1.0 / n
    at = slice(k * n, (k + 1) * n)
    S, m = C @ covariance[at, at] @ C, C @ mean[at]
    return (np.trace(S) + m @ m) / n, (2.0 * np.trace(S @ S) + 4.0 * m @ S @ m) / n**2


def test_shares_of_an_exact_model():
    model = agp.fit(agp.GPR.from_data(X, Y, kernel=additive(RBF(), (0, 1))), X, Y).model
    found = agp.inspection.variance_shares(model, NEW)
    mean, covariance = dense(model.kernel, model.likelihood.noise_variance, Y - model.mean_function(X)[0])
    for k in (1, 2):  # the variance of the constant is zero
        expected, variance = moments(mean, covariance, k)
        assert_close(found.variance[0, k], expected, 1e-10)
        assert_close(found.deviation[0, k], np.sqrt(variance), 1e-8)
    assert found.names == agp.inspection.components(model, NEW).names
    sums = np.concatenate([np.eye(len(NEW))] * 3, axis=1)
    total = (np.trace((S := sums @ covariance @ sums.T) - np.mean(S, axis=0)) / len(NEW)) + np.var(sums @ mean)
    assert_close(found.total[0], total, 1e-10)
    assert_close(found.share, found.variance / total, 1e-12)
    assert abs(np.sum(found.share) - 1.0) < 0.3


def test_shares_of_a_mixture():
    kernel = Linear(1.0, at_mean=True) + RBF().on(0)
    model = agp.integrate(agp.GPR.from_data(X, Y, kernel=kernel), settings=8).model
    found = agp.inspection.variance_shares(model, NEW)
    parts = []
    for s in range(len(model.shares)):
        one = model.setting(s)
        residual = Y - model.mean_function(X)[0]
        joint = dense(one.kernel, one.likelihood.noise_variance, residual, (Constant(model.level),))
        parts.append([moments(*joint, k) for k in range(2)])
    each = np.asarray(parts)
    expected = model.shares @ each[:, :, 0]
    variance = model.shares @ (each[:, :, 1] + (each[:, :, 0] - expected) ** 2)
    assert_close(found.variance[0, :2], expected, 1e-10)
    assert_close(found.deviation[0, :2], np.sqrt(variance), 1e-8)


def test_many_settings_are_represented_by_fewer(monkeypatch):
    model = agp.integrate(agp.GPR.from_data(X, Y, kernel=Linear(1.0, at_mean=True) + RBF().on(0)), settings=96).model
    found = agp.inspection.variance_shares(model, NEW)
    monkeypatch.setattr("agp.inspection._shares.MAX_SETTINGS", 1000)
    whole = agp.inspection.variance_shares(model, NEW)
    assert_close(found.variance, whole.variance, 0.05)
    assert_close(found.deviation, whole.deviation, 0.2)


@pytest.mark.parametrize("build", [agp.GPR.from_data, agp.SGPR.from_data, agp.CaGP.from_data, "mixture"])
def test_samples_of_components_have_their_moments(build):
    kernel = Linear(1.0, at_mean=True) + Seasonal(period=2.0, centred=True).on(0)
    if build == "mixture":
        model = agp.integrate(agp.GPR.from_data(X, Y, kernel=kernel), settings=8).model
    else:
        model = build(X, Y, kernel=kernel)
    predictor = model.predictor()
    samples, found = predictor.sample_components(NEW, 4000, seed=1), predictor.components(NEW)
    assert samples.shape == (4000, len(NEW), 1, len(found.names))
    deviation = np.sqrt(np.max(found.variance)) + 1e-9
    assert_close(np.mean(samples, axis=0) / deviation, found.mean / deviation, 0.1)
    spread = np.einsum("snpi,snpj->npij", samples - samples.mean(axis=0), samples - samples.mean(axis=0)) / 4000
    assert np.max(np.abs(spread - found.covariance)) < 0.12 * deviation**2
    whole = predictor.predict_covariance(NEW)[0]
    assert np.max(np.abs(np.cov(samples.sum(axis=-1)[:, :, 0].T) - whole)) < 0.12 * np.max(whole) + 1e-9


def test_models_without_joint_components_say_so():
    model = agp.NNGP.from_data(X, Y, kernel=additive(RBF(), (0, 1)), neighbours=40)
    with pytest.raises(TypeError, match="joint components of NearestNeighbours are not known; use"):
        agp.inspection.variance_shares(model, NEW)
    with pytest.raises(TypeError, match="joint components of NearestNeighbours are not known; use"):
        model.predictor().sample_components(NEW)


GROUPS = {"trend": ["linear", "mean function"], "rest": 1}


def built(kind):
    kernel = Linear(1.0, at_mean=True) + RBF(1.0, 1.5).on(0) + RBF(0.5, 2.0).on(1)
    if kind == "mixture":
        return agp.integrate(agp.GPR.from_data(X, Y, kernel=kernel), settings=8).model
    return agp.GPR.from_data(X, Y, kernel=kernel, likelihood=agp.Gaussian(0.04), mean_function=agp.means.ConstantMean())


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["terms", "sums"])
@pytest.mark.parametrize("kind", ["exact", "mixture"])
def test_shares_and_their_deviations_are_those_of_samples(kind, groups):
    model = built(kind)
    found = agp.inspection.variance_shares(model, NEW, groups=groups)
    draws = agp.inspection.sample_components(model, NEW, 8000, seed=1, groups=groups)
    assert found.names == draws.names
    each, total = draws.samples.var(axis=1), draws.samples.sum(axis=-1).var(axis=1)
    kept = found.share[0] > 1e-6  # a constant has the variance 0
    assert_close(found.variance[0, kept], each.mean(axis=0)[0, kept], 0.1)
    assert_close(found.deviation[0, kept], each.std(axis=0)[0, kept], 0.1)
    assert_close(found.total, total.mean(axis=0), 0.05)
    spread = (each / total[..., None]).std(axis=0)[0]
    assert_close(found.share_deviation[0, kept], spread[kept], 0.2)


def test_the_share_of_a_dominating_component_is_more_certain_than_its_variance():
    y = 3.0 * np.sin(2.0 * X[:, :1]) + 0.2 * X[:, 1:] + 0.5 * RNG.standard_normal((40, 1))
    kernel = Linear(1.0, at_mean=True).on(1) + RBF(4.0, 1.0).on(0)
    model = agp.GPR.from_data(X, y, kernel=kernel, likelihood=agp.Gaussian(0.25))
    found = agp.inspection.variance_shares(model, NEW)
    assert found.share_deviation[0, 1] < 0.3 * found.deviation[0, 1] / found.total[0]
    alone = agp.inspection.variance_shares(model, NEW, groups={"all": [0, 1, 2]})
    assert_close(alone.share, np.ones((1, 1)), 1e-12)
    assert np.max(alone.share_deviation) < 1e-6
    assert alone.deviation[0, 0] > 0.1


def test_groups_are_those_of_components():
    model = built("exact")
    found = agp.inspection.variance_shares(model, NEW, groups=GROUPS)
    assert found.names == agp.inspection.components(model, NEW, groups=GROUPS).names
    mean, covariance = dense(model.kernel, model.likelihood.noise_variance, Y - model.mean_function(X)[0])
    n = len(NEW)
    both = np.concatenate([np.eye(n), 0.0 * np.eye(n), 0.0 * np.eye(n)], axis=1)
    expected, variance = moments(both @ mean, both @ covariance @ both.T, 0)
    assert_close(found.variance[0, 0], expected, 1e-9)
    assert_close(found.deviation[0, 0], np.sqrt(variance), 1e-7)
    three = {"all": [0, 1, 2]}
    both = np.concatenate([np.eye(n)] * 3, axis=1)
    expected, variance = moments(both @ mean, both @ covariance @ both.T, 0)
    whole = agp.inspection.variance_shares(model, NEW, groups=three)
    assert_close([whole.variance[0, 0], whole.deviation[0, 0]], [expected, np.sqrt(variance)], 1e-7)
    with pytest.raises(ValueError, match="component 'lin' does not exist; did you mean"):
        agp.inspection.variance_shares(model, NEW, groups={"a": "lin"})
