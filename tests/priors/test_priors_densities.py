"""Densities of priors: against SciPy's, and their gradients against autograd, JAX and differences."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from helpers import (
    EXACT,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    closed_form,
    cotangents_for,
)
from hypothesis import given
from hypothesis import strategies as st

from agp.backend import get_backend
from agp.priors import Between, Fixed, Gamma, HalfCauchy, HalfNormal, InverseGamma, LogNormal, Normal, Relative

CASES = {
    "normal": (Normal(0.3, 1.7), scipy.stats.norm(0.3, 1.7)),
    "log-normal": (LogNormal(0.2, 0.6), scipy.stats.lognorm(0.6, scale=np.exp(0.2))),
    "log-normal-wide": (LogNormal(-3.0, 4.0), scipy.stats.lognorm(4.0, scale=np.exp(-3.0))),
    "gamma": (Gamma(2.5, 1.3), scipy.stats.gamma(2.5, scale=1.0 / 1.3)),
    "gamma-unbounded": (Gamma(0.4, 0.2), scipy.stats.gamma(0.4, scale=5.0)),
    "gamma-large": (Gamma(300.0, 100.0), scipy.stats.gamma(300.0, scale=0.01)),
    "inverse-gamma": (InverseGamma(3.1, 0.8), scipy.stats.invgamma(3.1, scale=0.8)),
    "half-normal": (HalfNormal(1.4), scipy.stats.halfnorm(scale=1.4)),
    "half-cauchy": (HalfCauchy(0.7), scipy.stats.halfcauchy(scale=0.7)),
}
PRIORS = {name: prior for name, (prior, _) in CASES.items()}
SHAPES = [(), (4,), (2, 3)]


def values(shape, seed=0):
    return np.asarray(np.random.default_rng(seed).uniform(0.05, 4.0, size=shape))


def stage_of(prior):
    def stage(leaves):
        value, pullback = prior.log_density(leaves["x"])
        return (value,), lambda bar: {"x": pullback(bar)}

    return stage


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("case", CASES)
def test_densities_are_those_of_scipy(case, dtype, tolerance, backend):
    prior, expected = CASES[case]
    for shape in SHAPES:
        x = values(shape)
        value, pullback = prior.log_density(backend.array(x, dtype))
        assert value.shape == ()
        size = np.sum(np.abs(expected.logpdf(x))) + 1.0  # entries may cancel
        assert abs(float(backend.numpy(value, dtype)) - np.sum(expected.logpdf(x))) <= tolerance * size
        assert backend.numpy(pullback(1.0), dtype).shape == shape


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_closed_form_is_the_slope(case, shape):
    assert_closed_form_is_slope(stage_of(PRIORS[case]), {"x": values(shape) + 0.2})


@pytest.mark.parametrize("case", CASES)
def test_closed_form_is_autograd(case, torch_place):
    for shape in SHAPES:
        assert_closed_form_is_autograd(stage_of(PRIORS[case]), {"x": values(shape)})


@pytest.mark.parametrize("case", CASES)
def test_closed_form_is_that_of_jax(case):
    pytest.importorskip("jax")
    B, prior = get_backend("jax"), PRIORS[case]
    x = B.from_numpy(values((4,)))
    value, gradient = B.value_and_grad(lambda leaves: prior.log_density(leaves["x"])[0], {"x": x})
    assert float(value) == float(prior.log_density(x)[0])
    assert_close(B.to_numpy(prior.log_density(x)[1](1.0)), B.to_numpy(gradient["x"]), EXACT)


@pytest.mark.parametrize("case", CASES)
def test_every_backend_has_the_gradient_of_numpy(case, backend):
    stage, x = stage_of(PRIORS[case]), values((2, 3))
    bars = cotangents_for(stage, {"x": x})
    here = {"x": backend.array(x)}
    found = closed_form(stage, here, cotangents_for(stage, here))["x"]
    assert_close(backend.numpy(found), closed_form(stage, {"x": x}, bars)["x"], 1e-13)


@pytest.mark.slow
@given(mean=st.floats(-3.0, 3.0), deviation=st.floats(0.1, 3.0), a=st.floats(1.1, 20.0), b=st.floats(0.1, 9.0))
def test_the_slope_vanishes_at_the_mode(mean, deviation, a, b):
    modes = [
        (Normal(mean, deviation), mean),
        (LogNormal(mean, deviation), np.exp(mean - deviation**2)),
        (Gamma(a, b), (a - 1.0) / b),
        (InverseGamma(a, b), b / (a + 1.0)),
    ]
    for prior, mode in modes:
        x = np.asarray(mode)
        steps = [1e-3 * max(abs(mode), 1e-3) * sign for sign in (-1.0, 1.0)]
        before, after = (float(prior.log_density(x + step)[1](1.0)) for step in steps)
        assert after < 0.0 < before


# -- in the unit of the parameter -------------------------------------------------------------------------------------


UNITS = {"one": ((), np.asarray(2.5)), "by-column": ((3,), np.asarray([2.5, 1e-3, 400.0]))}


@pytest.mark.parametrize("shape", UNITS)
@pytest.mark.parametrize("case", CASES)
def test_a_relative_density_is_that_of_the_number_without_dimension(case, shape, backend):
    prior, expected = CASES[case]
    shape, unit = UNITS[shape]
    x = unit * values(shape)
    value, pullback = Relative(prior).log_density(backend.array(x), backend.array(unit))
    size = np.sum(np.abs(expected.logpdf(x / unit))) + 1.0
    assert abs(float(backend.numpy(value)) - np.sum(expected.logpdf(x / unit))) <= 1e-12 * size
    slope = prior.log_density(x / unit)[1](1.7) / unit
    assert_close(backend.numpy(pullback(1.7)), slope, 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_slope_of_a_relative_density(case, torch_place):
    unit = np.asarray([2.5, 1.3, 0.4])
    prior = Relative(PRIORS[case])

    def stage(leaves):
        there = get_backend("torch").from_numpy(unit) if not isinstance(leaves["x"], np.ndarray) else unit
        value, pullback = prior.log_density(leaves["x"], there)
        return (value,), lambda bar: {"x": pullback(bar)}

    x = {"x": unit * (values((3,)) + 0.2)}
    assert_closed_form_is_slope(stage, x)
    assert_closed_form_is_autograd(stage, x)


@pytest.mark.parametrize("case", CASES)
def test_without_a_unit_a_relative_density_is_the_density(case):
    prior, x = PRIORS[case], values((2, 3))
    assert Relative(prior).log_density(x)[0] == prior.log_density(x)[0]
    np.testing.assert_array_equal(Relative(prior).log_density(x)[1](1.0), prior.log_density(x)[1](1.0))
    assert prior.log_density(x, np.asarray(7.0))[0] == prior.log_density(x)[0]
    assert Relative(prior).positive is prior.positive


def test_relative_priors_are_values():
    prior = Relative(LogNormal(0.2, 0.6))
    assert eval(repr(prior)) == prior
    assert hash(prior) == hash(Relative(LogNormal(0.2, 0.6)))
    assert prior != Relative(LogNormal(0.2, 0.7))
    for bad in (2.0, LogNormal, None, Between(1.0), Fixed()):
        with pytest.raises(TypeError, match=r"prior is .*, but must be a density of agp\.priors"):
            Relative(bad)


# -- what they are ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_priors_are_values(case):
    prior = PRIORS[case]
    again = eval(repr(prior))
    assert again == prior
    assert hash(again) == hash(prior)
    assert all(type(x) is float for x in dataclasses.astuple(prior))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(prior, dataclasses.fields(prior)[0].name, 2.0)
    assert len(set(PRIORS.values())) == len(PRIORS)


def test_numbers_of_every_kind_become_floats():
    prior = Gamma(np.float32(2.0), 3)
    assert repr(prior) == "Gamma(concentration=2.0, rate=3.0)"
    assert prior == Gamma(2.0, 3.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "1", None, True, np.ones(2)], ids=repr)
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda x: Normal(0.0, x), "deviation of Normal"),
        (lambda x: LogNormal(0.0, x), "deviation of LogNormal"),
        (lambda x: Gamma(x, 1.0), "concentration of Gamma"),
        (lambda x: Gamma(1.0, x), "rate of Gamma"),
        (lambda x: InverseGamma(x, 1.0), "concentration of InverseGamma"),
        (lambda x: InverseGamma(1.0, x), "scale of InverseGamma"),
        (lambda x: HalfNormal(x), "scale of HalfNormal"),
        (lambda x: HalfCauchy(x), "scale of HalfCauchy"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_bad_arguments_are_refused(build, name, bad):
    with pytest.raises(ValueError, match=f"{name} is .*, but must be positive and finite"):
        build(bad)


@pytest.mark.parametrize("bad", [float("nan"), -float("inf"), "0"])
@pytest.mark.parametrize("prior", [Normal, LogNormal])
def test_means_must_be_finite_only(prior, bad):
    assert prior(-2.0, 1.0).mean == -2.0
    with pytest.raises(ValueError, match=f"mean of {prior.__name__} is {bad!r}, but must be finite"):
        prior(bad, 1.0)
