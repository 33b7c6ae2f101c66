"""Observations that equal single numbers with positive probability: quantiles, distribution functions and CRPS."""

import math

import numpy as np
import pytest
import scipy.special

from agp.distributions import ObservationModel, normal_tail
from agp.distributions._quantiles import marginal_mixture
from agp.likelihoods import Likelihood, Prediction
from agp.repairs import collect_reports

NOISE, LEVELS = 0.2, (1e-3, 0.05, 0.3, 0.5, 0.8, 0.95, 0.999)
MU, VAR = np.array([[-1.0], [0.1], [0.2], [1.2], [2.0]]), np.array([[0.1], [0.05], [0.2], [0.01], [0.1]])
WIDE, INF = (-1e3, 1e3), math.inf


def dead_zone(v):
    return np.sign(v) * np.maximum(np.abs(v) - 0.4, 0.0)


MODELS = {  # the function y of a normal variable v, and the ends of v
    "limit below": (lambda v: np.maximum(v, 0.0), WIDE),
    "limit above": (lambda v: np.minimum(v, 1.0), WIDE),
    "two limits": (lambda v: np.clip(v, 0.0, 1.0), WIDE),
    "unlimited ends": (lambda v: np.clip(v, 0.0, 1.0), (-1e300, 1e300)),
    "dead zone": (dead_zone, WIDE),
    "end below": (lambda v: v, (0.0, 1e3)),
    "end above": (lambda v: v, (-1e3, 1.0)),
    "two ends": (lambda v: v, (0.0, 1.0)),
    "other unit": (lambda v: 10.0 + 3.0 * v, (0.0, 1.0)),
}


class Censored(Likelihood):
    """y is a function of a normal variable with the mean f."""

    def __init__(self, name):
        self.value, self.ends = MODELS[name]

    def expected_log_density(self, mu, var, y, /, draws=None):
        raise NotImplementedError

    def predict(self, mu, var, /):
        return Prediction(mu, var)

    def predictive_log_density(self, mu, var, y, /):
        raise NotImplementedError

    def _host_copy(self, _):
        return self

    def mixture(self, mu, var, /, shares=None):
        def tail(v, f, upper):
            return normal_tail((v - f) / NOISE, upper)

        model = ObservationModel(tail, self.value, lambda v: ((v, NOISE),), NOISE, self.ends)
        return marginal_mixture(model, mu, var, shares)

    def of(self, v):
        return self.value(np.clip(v, *self.ends))

    def exact_cdf(self, y, mu, var):
        """P(Y <= y) = P(V <= v) for the largest v with value(v) <= y, found by halving."""
        low, high = np.full_like(y, -50.0), np.full_like(y, 50.0)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.of(middle) <= y
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        F = scipy.special.ndtr((low - mu) / np.sqrt(var + NOISE**2))
        return np.where(self.of(np.array(50.0)) <= y, 1.0, np.where(self.of(np.array(-50.0)) > y, 0.0, F))


@pytest.mark.parametrize("name", MODELS)
def test_quantiles_are_values_of_normal_quantiles_without_a_warning(name):
    likelihood = Censored(name)
    with collect_reports() as reports:
        found = likelihood.predictive_quantiles(MU, VAR, LEVELS)
    scores = scipy.special.ndtri(np.array(LEVELS))[:, None, None]
    np.testing.assert_allclose(found, likelihood.of(MU + np.sqrt(VAR + NOISE**2) * scores), rtol=1e-9, atol=1e-9)
    assert not reports


@pytest.mark.parametrize("name", MODELS)
def test_the_distribution_function_includes_the_number_itself(name):
    likelihood = Censored(name)
    atoms = [float(likelihood.of(np.array(v))) for v in (-50.0, 0.0, 50.0)]
    for y in (*atoms, -1.0, 0.3, 0.9, 1.7, 11.0, -INF, INF):
        at = np.full_like(MU, y)
        expected = likelihood.exact_cdf(at, MU, VAR)
        np.testing.assert_allclose(likelihood.predictive_cdf(MU, VAR, at), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_integrals(name):
    likelihood = Censored(name)
    low, high = likelihood.of(np.array([-5.0, 6.0]))
    for v in (-50.0, 0.0, 0.35, 50.0):
        y = float(np.clip(likelihood.of(np.array(v)), -2.0, 12.0))
        x = np.linspace(min(low, y), max(high, y), 20001)
        middle = 0.5 * (x[1:] + x[:-1])
        F = likelihood.exact_cdf(0.0 * MU + middle, MU, VAR)
        expected = np.sum((F - (middle >= y)) ** 2, axis=1, keepdims=True) * (x[1] - x[0])
        found = likelihood.predictive_crps(MU, VAR, np.full_like(MU, y))
        np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-4)


def test_samples_are_a_mixture():
    likelihood = Censored("limit below")
    mu, var = np.concatenate([MU, MU + 0.5]), np.concatenate([VAR, VAR])
    y = np.zeros_like(MU)
    found = likelihood.predictive_cdf(mu, var, y, samples=2)
    each = [likelihood.predictive_cdf(part, VAR, y) for part in (MU, MU + 0.5)]
    np.testing.assert_allclose(found, 0.5 * (each[0] + each[1]), rtol=1e-10)
