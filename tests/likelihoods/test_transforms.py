"""Transforms of targets: inverses, slopes, moments, limits and messages."""

import numpy as np
import pytest
from helpers import assert_close
from scipy import integrate, stats

from agp.likelihoods import (
    TRANSFORMS,
    Gaussian,
    Log,
    Logit,
    LogNormal,
    Transform,
    Transformed,
    TransformedGaussian,
    YeoJohnson,
    with_transform,
)

CASES = {
    "log": Log(),
    "power": YeoJohnson(0.3, 1.0, 2.0),
    "power-0": YeoJohnson(0.0, -1.0, 0.5),
    "power-2": YeoJohnson(2.0, 3.0),
    "linear": YeoJohnson(1.0, 2.0, 3.0),
    "proportion": Logit(),
    "percentage": Logit(-0.5, 100.5),
}


def targets_of(transform):
    low, high = transform.support
    if np.isfinite(high):
        return low + (high - low) * np.asarray([1e-6, 0.1, 0.5, 0.75, 0.999])
    return np.asarray([1e-3, 0.4, 1.0, 3.0, 500.0]) if low == 0.0 else np.asarray([-40.0, -1.5, 1.0, 2.5, 700.0])


@pytest.mark.parametrize("name", CASES)
def test_the_inverse_of_a_transform_returns_the_targets(name, backend):
    transform, y = CASES[name], targets_of(CASES[name])
    z = transform.forward(backend.array(y))
    assert_close(backend.numpy(transform.inverse(z)), y, 1e-9)
    assert np.all(np.diff(backend.numpy(z)) > 0.0)
    assert np.isnan(backend.numpy(transform.forward(backend.array(np.asarray([np.nan])))))


@pytest.mark.parametrize("name", CASES)
def test_the_slope_is_the_derivative(name):
    transform, y = CASES[name], targets_of(CASES[name])
    nearest = [np.abs(y - end) for end in transform.support if np.isfinite(end)]
    h = 1e-5 * np.minimum.reduce([np.ones_like(y), *nearest])
    slope = (transform.forward(y + h) - transform.forward(y - h)) / (2.0 * h)
    np.testing.assert_allclose(transform.log_slope(y), np.log(slope), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_inverses_of_large_numbers_are_finite_and_inside_the_support(name, dtype, backend):
    z = backend.array(np.asarray([-1e4, -300.0, -50.0, 50.0, 300.0, 1e4]), dtype)
    y = backend.numpy(CASES[name].inverse(z), dtype)
    low, high = CASES[name].support
    assert np.isfinite(y).all()
    assert np.all((y > np.asarray(low, dtype)) & (y < np.asarray(high, dtype)))


@pytest.mark.parametrize("name", [name for name in CASES if name != "log"])
def test_moments_are_integrals_over_the_noise(name):
    likelihood = TransformedGaussian(Gaussian(np.asarray(0.3)), CASES[name])
    mean, variance = (float(x[0, 0]) for x in likelihood.predict(np.asarray([[0.4]]), np.asarray([[0.2]])))

    def moment(k):
        def at(z):
            return float(CASES[name].inverse(np.asarray([z]))[0]) ** k * stats.norm.pdf(z, 0.4, 0.5**0.5)

        return integrate.quad(at, -8.0, 9.0, points=[0.0], limit=200)[0]

    assert_close(mean, moment(1), 1e-4)
    assert_close(variance, moment(2) - moment(1) ** 2, 1e-3)


def test_the_distance_from_the_centre_is_limited_in_moments():
    likelihood = TransformedGaussian(Gaussian(np.asarray(1.0)), YeoJohnson(0.0, 5.0, 1.0), np.asarray([100.0]))
    far = likelihood.predict(np.asarray([[12.0]]), np.asarray([[1.0]]))
    assert_close(far.mean[0, 0], 5.0 + 2.0 * 100.0, 1e-2)
    near, free = (
        one.predict(np.asarray([[0.5]]), np.asarray([[0.01]]))
        for one in (likelihood, TransformedGaussian(Gaussian(np.asarray(1.0)), YeoJohnson(0.0, 5.0, 1.0)))
    )
    assert abs(near.mean - free.mean) < 1e-3 * free.mean


def test_a_power_of_one_is_gaussian():
    plain = Gaussian(np.asarray(0.36))
    other = TransformedGaussian(Gaussian(np.asarray(0.09)), YeoJohnson(1.0, 1.0, 2.0))
    mu, var, y = np.asarray([[0.2]]), np.asarray([[0.1]]), np.asarray([[1.7]])
    ours, theirs = other.predict(mu, var), plain.predict(1.0 + 2.0 * mu, 4.0 * var)
    assert_close(ours.mean, theirs.mean, 1e-10)
    assert_close(ours.variance, theirs.variance, 1e-10)
    density = plain.predictive_log_density(1.0 + 2.0 * mu, 4.0 * var, y)
    assert_close(other.predictive_log_density(mu, var, y), density, 1e-10)
    y = np.asarray([[1.7], [0.2], [-3.0]])
    assert_close(other.log_density_alone(y), plain.log_density_alone(y), 1e-10)


def test_transforms_have_names_and_likelihoods():
    assert [*TRANSFORMS] == ["log", "yeo-johnson", "logit"]
    gaussian = Gaussian(0.1)
    assert with_transform(gaussian, None) is gaussian
    for kind in TRANSFORMS.values():
        likelihood = with_transform(gaussian, kind())
        assert isinstance(likelihood, Transformed)
        assert isinstance(likelihood.transform, Transform)
        assert isinstance(likelihood, LogNormal) == (kind is Log)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: YeoJohnson(2.5), ValueError, "power is 2.5, but must be from 0 to 2"),
        (lambda: YeoJohnson(0.5, 0.0, 0.0), ValueError, "scale is 0, but must be a finite number above zero"),
        (lambda: Logit(1.0, 1.0), ValueError, "the interval from 1.0 to 1.0 must be finite and not empty"),
        (lambda: TransformedGaussian(Gaussian(), Log()), TypeError, "for logarithms, use LogNormal"),
        (lambda: TransformedGaussian(Log()), TypeError, r"transformed is Log\(\), but must be Gaussian"),  # type: ignore[arg-type]
        (
            lambda: Logit().check_targets(np.asarray([0.5, 1.0])),
            ValueError,
            "needs targets between 0 and 1, but y has 1",
        ),
        (lambda: Log().check_targets(np.asarray([-2.0, 1.0])), ValueError, "needs positive targets, but y has -2"),
    ],
)
def test_what_does_not_fit_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
