"""Means without variances: of latent functions and of observations, in small chunks, with weights computed once."""

import numpy as np
import pytest
from helpers import assert_close
from predictor_cases import CASES, DEEP, NEW, X, Y, model_of, predictor_of

import agp
from agp.backend import backend_of
from agp.chunking import CACHE, mebibytes
from agp.likelihoods import LIKELIHOODS
from agp.posteriors import Posterior
from agp.predictors import _by_rows
from agp.processes import Process


def subclasses(kind):
    return {kind, *(one for child in kind.__subclasses__() for one in subclasses(child))}


def refuse(*_, **__):
    msg = "not needed for means"
    raise AssertionError(msg)


def forbid(monkeypatch, name, *kinds):
    """Let a method of the base classes `kinds` and of all their subclasses raise an error."""
    for one in {one for kind in kinds for one in subclasses(kind)}:
        if name in vars(one):
            monkeypatch.setattr(one, name, refuse)


@pytest.mark.parametrize("name", [name for name in CASES if name not in DEEP])
def test_means_need_no_variances(name, monkeypatch):
    predictor, offset = predictor_of(name), 0.3 * np.arange(len(NEW), dtype=float)
    expected = predictor.predict(NEW, offset=offset).mean
    observed = None
    if predictor.likelihood.mean_is_latent:
        observed = predictor.predict(NEW, observed=True).mean
    forbid(monkeypatch, "project", Process, Posterior)
    assert_close(predictor.predict_mean(NEW, offset=offset), expected, 1e-9)
    if observed is not None:
        assert_close(predictor.predict_mean(NEW, observed=True), observed, 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_means_of_observations_are_those_of_all_moments(name):
    predictor = predictor_of(name)
    expected = predictor.predict(NEW, observed=True).mean
    assert_close(predictor.predict_mean(NEW, observed=True), expected, 1e-9)
    assert_close(model_of(name).predict_mean(NEW, observed=True), expected, 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_computed_once(name, monkeypatch):
    predictor = predictor_of(name)
    process = predictor.processes[0]
    process = process.with_draws(process.common_draws(_by_rows.SEED, len(NEW)))
    plain = process.project_mean(process.factorise()[0], NEW)
    expected = plain.reshape(-1, len(NEW), plain.shape[1]).mean(axis=0)
    forbid(monkeypatch, "weights_of_mean", Posterior)
    assert_close(predictor.predict_mean(NEW), expected, 1e-9)
    assert_close(predictor.predict_mean(NEW, memory=1e-4), expected, 1e-9)


def test_weights_are_computed_once_after_further_data(monkeypatch):
    more = predictor_of("wsvgp").condition_on(NEW[:2], np.asarray([0.5, -0.5]))
    expected = more.predict(NEW).mean
    forbid(monkeypatch, "weights_of_mean", Posterior)
    assert_close(more.predict_mean(NEW), expected, 1e-9)


def test_means_of_an_inverse_free_posterior_take_no_factorisation(monkeypatch):
    model = model_of("rsvgp")
    expected = model.predict(NEW).mean
    monkeypatch.setattr(type(backend_of(NEW)), "solve_triangular", refuse)
    monkeypatch.setattr(np.linalg, "cholesky", refuse)
    monkeypatch.setattr(np.linalg, "solve", refuse)
    assert_close(model.predict_mean(NEW), expected, 1e-9)


def test_chunks_for_means_fit_the_cache(monkeypatch):
    rng, seen = np.random.default_rng(0), []
    predictor = agp.SGPR.from_data(X, Y[:, :1], num_inducing=20).predictor()
    many = rng.uniform(-1.0, 1.0, (200_000, X.shape[1]))
    ranges = _by_rows.row_ranges
    monkeypatch.setattr(_by_rows, "row_ranges", lambda N, rows: seen.append(rows) or ranges(N, rows))
    mean = predictor.predict_mean(many)
    predictor.predict_mean(many, memory=1.0)
    assert 1000 < seen[0] <= len(many) // 4
    assert mebibytes(seen[0] * predictor.processes[0].floats_per_mean, many) <= CACHE
    assert mebibytes(seen[1] * predictor.processes[0].floats_per_mean, many) <= 1.0
    assert_close(mean[-5:], predictor.predict(many[-5:]).mean, 1e-9)


def test_noise_belongs_to_observations():
    predictor, noise = predictor_of("gpr"), np.full(len(NEW), 0.5)
    expected = predictor.predict(NEW, observed=True, noise=noise).mean
    assert_close(predictor.predict_mean(NEW, observed=True, noise=noise), expected, 1e-12)
    with pytest.raises(ValueError, match="noise is given, but latent functions have no noise"):
        predictor.predict_mean(NEW, noise=noise)
    with pytest.raises(TypeError, match="noise is given, but the likelihood is Poisson"):
        predictor_of("poisson-wsvgp").predict_mean(NEW, observed=True, noise=noise)


@pytest.mark.parametrize("name", [*LIKELIHOODS, "bernoulli", "log-normal"])
def test_the_flags_of_likelihoods_agree_with_their_predictions(name):
    others = {"bernoulli": agp.Bernoulli, "log-normal": agp.LogNormal}
    likelihood = (LIKELIHOODS | others)[name]()
    likelihood = likelihood.from_data(0.7) if name != "log-normal" else agp.LogNormal(agp.Gaussian(0.1))
    likelihood = agp.tree.place_leaves(likelihood, NEW)
    rng, P = np.random.default_rng(0), likelihood.latents(1)
    mu, low, high = rng.normal(size=(9, P)), np.full((9, P), 0.1), np.full((9, P), 2.0)
    means = [likelihood.predict(mu, var).mean for var in (low, high)]
    if likelihood.mean_is_latent:
        for mean in means:
            np.testing.assert_array_equal(mean, mu[:, :1])
    else:
        assert np.abs(means[0] - means[1]).max() > 1e-3
    if likelihood.decided_by_sign:
        for mean in means:
            np.testing.assert_array_equal(mean > 0.5, mu > 0.0)
