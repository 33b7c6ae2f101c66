"""Limits for the moments of predictions, which would otherwise come from values far above the training targets."""

import dataclasses
import math

import numpy as np

from agp.backend import Array, asarray_like, backend_of, like, to_numpy
from agp.estimators._observations import Observations
from agp.likelihoods import LatentNoiseGaussian, LogNormal, TransformedGaussian
from agp.predictors import Predictor, Saturation
from agp.tree import replace

LOG_TARGET_FACTOR = math.log(10.0)
"""The logarithm of the factor between the largest target and the limit of a logarithmic link, for moments."""


def largest_targets(
    data: Observations, known: list[float] | None, *, centre: float | None, ranges: bool
) -> list[float]:
    """Return the largest targets, or rates, of each column, and of earlier rows (`known`).

    With a centre, the numbers are distances from it. If `ranges` is true, the numbers are ranges of the targets.
    """
    B, y = backend_of(data.y), data.rates()
    y = y if centre is None else B.xp.abs(y - centre)
    y = B.xp.where(B.xp.isnan(y), B.xp.zeros_like(y), y)
    high, low = (to_numpy(B.gather(f(y, axis=0))).astype(float) for f in (B.xp.max, B.xp.min))
    largest = np.where(high > low, high - low, np.abs(high)) if ranges else high
    return [float(x) for x in np.maximum(known or np.zeros(len(largest)), np.where(largest > 0.0, largest, 1.0))]


def saturate(predictor: Predictor, largest: list[float] | None, reference: Array) -> Predictor:
    """Return a predictor with limits from the `largest` targets of each column, above which links saturate for moments.

    The limit of a mean with a logarithmic link, and of a log-normal target, is ten times the largest target, and that
    of a target with a power transform is ten times the largest distance from the centre of the transform. The
    limit of the standard deviation of a latent noise is half of the range of the targets. If no targets are given, the
    predictor has no limits. `reference` is an array of the model.
    """
    if not largest:
        return predictor
    likelihood, logs = predictor.likelihood, np.log(largest)
    if isinstance(likelihood, LogNormal):
        limit = asarray_like(logs + LOG_TARGET_FACTOR, reference)
        return replace(predictor, {"likelihood": dataclasses.replace(likelihood, limit=limit)})
    if isinstance(likelihood, TransformedGaussian):
        limit = asarray_like(np.exp(logs + LOG_TARGET_FACTOR), reference)
        return replace(predictor, {"likelihood": dataclasses.replace(likelihood, limit=limit)})
    if isinstance(likelihood, LatentNoiseGaussian):
        u = np.ones(len(logs)) if likelihood.unit is None else np.broadcast_to(to_numpy(likelihood.unit), logs.shape)
        limits = np.concatenate([np.full(len(logs), np.inf), logs - np.log(2.0 * u)])
        scales = np.concatenate([np.ones(len(logs)), u])
    elif likelihood.log_link:
        zero = backend_of(reference).xp.zeros((1, len(logs)), **like(reference))
        at_zero = to_numpy(likelihood.predict(zero, zero).mean)[0]
        limits, scales = logs + LOG_TARGET_FACTOR - np.log(at_zero), np.ones(len(logs))
    else:
        return predictor
    saturation = Saturation(asarray_like(limits, reference), asarray_like(scales, reference))
    return dataclasses.replace(predictor, saturation=saturation)
