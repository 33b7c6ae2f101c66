"""Predictors that average over possible values of unknown cells."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from helpers import NUMPY, assert_close
from predictor_cases import model_of, with_draws_for

from agp.predictors import Imputations

S = 5
VALUES = np.random.default_rng(1).uniform(-1.5, 1.5, (S, 2))
FACTORS = np.asarray([1.0, 1.5])
KNOWN = np.random.default_rng(2).uniform(-1.5, 1.5, (6, 2))
GAPS = KNOWN.copy()
GAPS[1, 0] = GAPS[3, 1] = GAPS[5, 0] = GAPS[5, 1] = np.nan


def completed(row):
    """The rows [S, 2] that replace one row."""
    return np.where(np.isnan(row), VALUES, row)


def expected(predictor, row):
    """The moments [P] of the latent functions, by the law of total variance."""
    mean, variance = predictor.predict(completed(row))
    factor = np.max(np.where(np.isnan(row), FACTORS, 1.0))
    return mean.mean(axis=0), variance.mean(axis=0) + factor * mean.var(axis=0)


def imputing(predictor, backend=NUMPY):
    imputations = Imputations(backend.array(VALUES), backend.array(FACTORS))
    return dataclasses.replace(predictor, imputations=imputations)


CASES = (
    "gpr",
    "wsvgp",
    "rsvgp",
    "solve",
    "cggp",
    "poisson-wsvgp",
    "bernoulli-tvgp",
    "outputs-separate",
    "coregionalised",
)


@pytest.mark.parametrize("name", CASES)
def test_moments_follow_the_law_of_total_variance(name, backend):
    plain = model_of(name).predictor()
    predictor = imputing(backend.move(model_of(name)).predictor(), backend)
    found = [backend.numpy(x) for x in predictor.predict(backend.array(GAPS))]
    for i, row in enumerate(GAPS):
        for part, number in zip(found, expected(plain, row), strict=True):
            assert_close(part[i], number, 1e-9)
    assert_close(backend.numpy(predictor.predict_mean(backend.array(GAPS))), found[0], 1e-12)


@pytest.mark.parametrize("name", ["gpr", "rsvgp", "deep-wsvgp", "poisson-wsvgp"])
def test_complete_rows_are_predicted_as_before_to_the_bit(name):
    plain = model_of(name).predictor()
    for found, number in zip(imputing(plain).predict(KNOWN), plain.predict(KNOWN), strict=True):
        np.testing.assert_array_equal(found, number)


def test_complete_rows_need_no_memory_for_imputations(monkeypatch):
    plain = model_of("gpr").predictor()
    predictor, chunks = imputing(plain), []
    rows = type(plain)._chunk_rows
    monkeypatch.setattr(
        type(plain), "_chunk_rows", lambda self, *given: chunks.append(rows(self, *given)) or chunks[-1]
    )
    X = np.tile(KNOWN, (10_000, 1))
    for one in (plain, predictor):
        one.predict_mean(X)
    assert chunks[0] == chunks[1] < len(X)


def test_samples_of_deep_processes_are_averaged_one_by_one():
    plain, y = model_of("deep-wsvgp").predictor(), np.linspace(-1.0, 1.0, 6)
    R = model_of("deep-wsvgp").prediction_samples
    found = imputing(plain).log_density(GAPS, y)
    for i, row in enumerate(GAPS):
        process = with_draws_for(plain.processes[0], completed(row))
        moments, _ = process.project(plain.factors[0], completed(row))
        mean, variance = (x.reshape(R, S) for x in moments)
        factor = np.max(np.where(np.isnan(row), FACTORS, 1.0))
        total = variance.mean(axis=1) + factor * mean.var(axis=1) + plain.likelihood.noise_variance
        densities = scipy.stats.norm.pdf(y[i], mean.mean(axis=1), np.sqrt(total))
        assert_close(found[i], np.log(densities.mean()), 1e-9)


def test_chunks_do_not_matter_and_scores_use_the_moments():
    predictor = imputing(model_of("gpr").predictor())
    mean, variance = predictor.predict(GAPS, observed=True)
    for found, number in zip(predictor.predict(GAPS, observed=True, memory=1e-4), (mean, variance), strict=True):
        assert_close(found, number, 1e-12)
    density = predictor.log_density(GAPS, mean)
    assert_close(density, -0.5 * np.log(2.0 * np.pi * variance[:, 0]), 1e-9)
    low, high = predictor.interval(GAPS, 0.95)
    assert_close((high - low)[:, 0], 2.0 * 1.959963984540054 * np.sqrt(variance[:, 0]), 1e-9)


def test_joint_predictions():
    predictor = imputing(model_of("gpr").predictor())
    covariance = predictor.predict_covariance(GAPS)[0]
    assert_close(np.diag(covariance), predictor.predict(GAPS).variance[:, 0], 1e-12)
    assert np.linalg.eigvalsh(covariance).min() > 0.0
    every = np.mean([model_of("gpr").predict_covariance(np.where(np.isnan(GAPS), x, GAPS))[0] for x in VALUES], axis=0)
    off = ~np.eye(6, dtype=bool)
    assert_close(covariance[off], every[off], 1e-9)
    draws = predictor.sample(GAPS, 4000, seed=0)[:, :, 0]
    assert_close(draws.std(axis=0), np.sqrt(np.diag(covariance)), 0.06)


def test_further_data_and_offsets():
    predictor = imputing(model_of("gpr").predictor())
    more = predictor.condition_on(KNOWN, np.ones((6, 1)))
    plain = model_of("gpr").predictor().condition_on(KNOWN, np.ones((6, 1)))
    assert_close(more.predict(GAPS).mean[5], expected(plain, GAPS[5])[0], 1e-9)
    predictor, offset = imputing(model_of("poisson-wsvgp").predictor()), np.linspace(-1.0, 1.0, 6)
    moved, plain = predictor.predict(GAPS, offset=offset), predictor.predict(GAPS)
    assert_close(moved.mean, plain.mean + offset[:, None], 1e-12)
    assert_close(moved.variance, plain.variance, 1e-12)
    assert_close(predictor.predict_mean(GAPS, offset=offset), moved.mean, 1e-12)


@pytest.mark.parametrize("name", ["poisson-wsvgp", "bernoulli-tvgp", "deep-wsvgp"])
def test_moments_of_observations_follow_the_law_of_total_variance(name):
    plain = model_of(name).predictor()
    found = imputing(plain).predict(GAPS, observed=True)
    for i, row in enumerate(GAPS):
        mean, variance = plain.predict(completed(row), observed=True)
        factor = np.max(np.where(np.isnan(row), FACTORS, 1.0))
        assert_close(found.mean[i], mean.mean(axis=0), 1e-9)
        assert_close(found.variance[i], variance.mean(axis=0) + factor * mean.var(axis=0), 1e-9)


def test_what_is_refused():
    plain = model_of("gpr").predictor()
    with pytest.raises(ValueError, match="X has 4 NaN or infinite entries, the first in row 1"):
        plain.predict(GAPS)
    with pytest.raises(ValueError, match="X has 1 NaN or infinite entries, the first in row 2"):
        imputing(plain).predict(np.where(KNOWN[2, 0] == KNOWN, np.inf, GAPS))
    with pytest.raises(TypeError, match="predictions at unknown cells have no derivatives"):
        imputing(plain).gradient(GAPS)
    with pytest.raises(TypeError, match="joint predictions of mixed outputs need complete rows"):
        imputing(model_of("coregionalised").predictor()).predict_covariance(GAPS)
    with pytest.raises(ValueError, match="NaN or infinite"):
        imputing(plain).sample_functions(2)(GAPS)
