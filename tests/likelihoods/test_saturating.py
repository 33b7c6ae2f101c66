"""Moments under a link that is exponential up to a limit, and saturates above."""

import numpy as np
import pytest
from helpers import assert_close
from scipy.integrate import quad
from scipy.stats import norm

from agp.likelihoods import Gaussian, LogNormal, saturating_moments

CASES = [
    (0.0, 1.0, 3.0),
    (0.0, 18.0, 5.0),
    (2.0, 0.5, 1.0),
    (5.0, 1e-6, 1.0),
    (-7.0, 18.0, 0.0),
    (0.0, 1e-4, 0.01),
    (0.0, 1.0, 60.0),
]


def expected(m, v, a, power):
    """E[r(f)^power] by adaptive quadrature."""
    s = np.sqrt(v)
    low, high = m - 12.0 * s, max(m, m + 2.0 * v) + 12.0 * s

    def density(f):
        r = np.exp(f) if f <= a else np.exp(a) * (2.0 - np.exp(a - f))
        return r**power * norm.pdf(f, m, s)

    points = sorted({x for x in (a, m, m + v, m + 2.0 * v) if low < x < high})
    return quad(density, low, high, points=points, limit=400, epsabs=0.0, epsrel=1e-12)[0]


@pytest.mark.parametrize("case", CASES)
def test_the_normal_has_the_moments_of_the_link(case, backend):
    m, v, a = case
    found = saturating_moments(*(backend.array(np.full((1, 1), x)) for x in case))
    mean, variance = (float(backend.numpy(x)[0, 0]) for x in found)
    assert_close(np.exp(mean + 0.5 * variance), expected(m, v, a, 1), 1e-9)
    assert_close(np.exp(2.0 * (mean + variance)), expected(m, v, a, 2), 1e-9)


def test_without_a_limit_near_the_function_nothing_changes():
    m, v = np.asarray([[0.0, 1.0, -3.0]]), np.asarray([[1.0, 0.0, 4.0]])
    for limits in (np.full((1, 3), np.inf), np.full((1, 3), 50.0)):
        for found, given in zip(saturating_moments(m, v, limits), (m, v), strict=True):
            np.testing.assert_array_equal(found, given)


def test_functions_above_the_limit_without_a_variance():
    mean, variance = saturating_moments(np.asarray([[3.0]]), np.asarray([[0.0]]), np.asarray([[1.0]]))
    np.testing.assert_allclose(np.exp(mean), np.exp(1.0) * (2.0 - np.exp(-2.0)), rtol=1e-12)
    assert variance < 1e-14


def test_log_normal_moments_with_a_limit(backend):
    likelihood = LogNormal(Gaussian(backend.array(np.asarray(17.0))), backend.array(np.asarray([4.0])))
    mu, var = (backend.array(np.asarray([[x]])) for x in (1.0, 1.0))
    mean, variance = (float(backend.numpy(x)[0, 0]) for x in likelihood.predict(mu, var))
    assert_close(mean, expected(1.0, 18.0, 4.0, 1), 1e-9)
    assert_close(variance, expected(1.0, 18.0, 4.0, 2) - mean**2, 1e-9)
