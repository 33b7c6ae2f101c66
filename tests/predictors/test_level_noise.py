"""Predictors whose noise depends on the level of a column."""

import dataclasses

import numpy as np
import pytest
from helpers import NUMPY, assert_close
from predictor_cases import model_of

from agp.predictors import LevelNoise

LEVELS, VARIANCES, UNSEEN = np.asarray([-1.0, 0.0, 0.1]), np.asarray([0.0, 0.5, 2.0]), 0.9
NEW = np.asarray([[0.3, -1.0], [0.3, 0.0], [-0.7, 0.1], [0.1, 0.5], [0.2, 0.0]])
EXPECTED = np.asarray([0.0, 0.5, 2.0, UNSEEN, 0.5])[:, None]


def with_levels(predictor, backend=NUMPY):
    noise = LevelNoise(*(backend.array(x) for x in (LEVELS, VARIANCES, np.asarray([UNSEEN]))), 1)
    return dataclasses.replace(predictor, level_noise=noise)


def pair(name="gpr", backend=NUMPY):
    plain = backend.move(model_of(name)).predictor()
    return plain, with_levels(plain, backend)


def test_variances_are_those_of_the_levels(backend):
    _, found = pair("gpr", backend)
    stacked, gaps = np.stack([NEW, NEW[::-1]]), np.where(NEW == 0.1, np.nan, NEW)
    unknown = np.where((NEW == 0.1)[:, 1:], UNSEEN, EXPECTED)
    for X, expected in ((NEW, EXPECTED), (stacked, np.stack([EXPECTED, EXPECTED[::-1]])), (gaps, unknown)):
        assert_close(backend.numpy(found.noise_at(backend.array(X))), expected, 1e-12)
    variance = found.predict(backend.array(NEW), observed=True).variance
    assert_close(backend.numpy(variance), pair()[1].predict(NEW, observed=True).variance, 1e-9)


def test_levels_in_float32_are_those_in_float64():
    narrow = LevelNoise(*(x.astype(np.float32) for x in (LEVELS, VARIANCES, np.asarray([UNSEEN]))), 1)
    wide = LevelNoise(LEVELS.astype(np.float32).astype(float), VARIANCES, np.asarray([UNSEEN]), 1)
    assert_close(narrow.at(NEW.astype(np.float32)), EXPECTED, 1e-6)
    assert_close(wide.at(NEW), EXPECTED, 1e-12)


@pytest.mark.parametrize("further", [None, 0.25])
@pytest.mark.parametrize("name", ["gpr", "wsvgp", "nngp"])
def test_predictions_of_observations_are_those_with_known_noise(name, further):
    plain, levels = pair(name)
    given = None if further is None else np.full(len(NEW), further)
    noise = EXPECTED + (0.0 if further is None else further)
    y = np.linspace(-1.0, 1.0, len(NEW))[:, None]
    for call in (
        lambda p, **known: p.predict(NEW, observed=True, **known).variance,
        lambda p, **known: p.quantile(NEW, [0.1, 0.6], **known),
        lambda p, **known: p.log_density(NEW, y, **known),
        lambda p, **known: p.cdf(NEW, y, **known),
        lambda p, **known: p.pit(NEW, y, **known),
        lambda p, **known: p.crps(NEW, y, **known),
    ):
        assert_close(call(levels, noise=given), call(plain, noise=noise), 1e-12)
    assert not np.allclose(call(levels), call(plain))


def test_latent_functions_have_no_noise():
    plain, levels = pair()
    assert_close(levels.predict(NEW).variance, plain.predict(NEW).variance, 1e-12)
    assert_close(levels.predict_mean(NEW, observed=True), plain.predict_mean(NEW), 1e-12)


def test_further_rows_have_the_noise_of_their_levels():
    plain, levels = pair()
    y = np.sin(NEW[:, :1])
    found, expected = levels.condition_on(NEW, y), plain.condition_on(NEW, y, noise=EXPECTED)
    assert_close(found.predict_mean(NEW), expected.predict_mean(NEW), 1e-12)
