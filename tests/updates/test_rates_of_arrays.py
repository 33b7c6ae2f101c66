"""Rates, tolerances and schedules may be scalars of any array library."""

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp import tree
from agp.backend import get_backend
from agp.updates import (
    Adam,
    Group,
    InverseUpdate,
    NaturalGradient,
    OptimalPosterior,
    Plateau,
    SiteStep,
    delayed,
    exponential,
    linear,
    stepped,
)
from agp.updates._schedules import rate_at

X, Y = toy_data(20)

SCALARS = {
    "numpy scalar": np.float64,
    "float32": np.float32,
    "numpy 0-d": np.asarray,
    "torch": lambda x: pytest.importorskip("torch").tensor(x, dtype=pytest.importorskip("torch").float64),
    "jax": lambda x: pytest.importorskip("jax").numpy.asarray(x),
}

MAKES = [
    lambda one: Adam(one(0.25), natural=one(0.5), epsilon=one(0.125), plateau=Plateau(one(0.5), 3, one(0.125))),
    lambda one: Adam(groups={"kernel.*": Group(one(0.25), beta1=one(0.5), beta2=one(0.75))}),
    lambda one: NaturalGradient(one(0.5)),
    lambda one: SiteStep(one(0.5)),
    lambda one: OptimalPosterior(one(0.25)),
    lambda one: InverseUpdate(one(0.25)),
    lambda one: linear(one(0.5), one(0.25), 10),
    lambda one: exponential(one(0.5), one(0.25), 3, one(0.125)),
    lambda one: stepped(one(0.5), one(0.25), 3),
    lambda one: delayed(one(0.5), 3),
]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("scalar", SCALARS)
def test_settings_are_numbers(scalar, make):
    assert make(SCALARS[scalar]) == make(float)
    assert repr(make(SCALARS[scalar])) == repr(make(float))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Adam(np.asarray([0.1])),
        lambda: Adam(np.asarray(-0.1)),
        lambda: Adam(np.asarray(np.nan)),
        lambda: NaturalGradient(np.asarray(2.0)),
        lambda: SiteStep(np.float64(0.0)),
        lambda: InverseUpdate(np.asarray(-1.0)),
        lambda: linear(np.asarray([0.1, 0.2]), 0.0, 3),
        lambda: exponential(np.asarray(0.1), 0.5, floor=np.asarray(0.2)),
    ],
)
def test_wrong_arrays_are_refused_as_wrong_numbers_are(wrong):
    with pytest.raises(ValueError, match="must be"):
        wrong()


RETURNS = {
    "python": lambda count: 0.05 / (1.0 + float(count)),
    "numpy scalar": lambda count: np.float64(0.05) / (1.0 + float(count)),
    "numpy 0-d": lambda count: np.asarray(0.05 / (1.0 + float(count))),
    "own library": lambda count: 0.05 / (1.0 + count),
    "float64": lambda count: get_backend("torch").xp.astype(count, get_backend("torch").xp.float64) * 0.0 + 0.05,
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("returns", ["python", "numpy scalar", "numpy 0-d", "own library"])
def test_schedules_return_scalars_of_any_library(returns, backend, dtype):
    pytest.importorskip(backend)
    model, *data = [
        agp.to_backend(x, backend, dtype=dtype)
        for x in (agp.SVGP.from_data(X, Y, num_inducing=4, posterior="whitened"), X, Y)
    ]
    updates = [Adam(RETURNS[returns], natural=lambda count: RETURNS[returns](count))]
    found = agp.train(model, *data, steps=3, updates=updates)
    expected = agp.train(model, *data, steps=3, updates=[Adam(RETURNS["python"], natural=RETURNS["python"])])
    np.testing.assert_allclose(found.trace["bound"], expected.trace["bound"], rtol=1e-5)
    assert {str(x.dtype).rpartition(".")[2] for x in tree.leaves(found.model).values()} == {dtype}


def test_a_wider_schedule_does_not_widen_the_model():
    torch = pytest.importorskip("torch")
    count = torch.tensor(3.0, dtype=torch.float32)
    assert rate_at(RETURNS["float64"], count).dtype == torch.float32
    assert rate_at(lambda count: np.float64(0.5), np.asarray(3.0, dtype="float32")) == 0.5
    assert type(rate_at(lambda count: np.float64(0.5), torch.tensor(1.0))) is float


@pytest.mark.parametrize("wrong", [[0.1], "0.1", None, np.asarray([0.1]), (0.1, 0.2)], ids=repr)
def test_schedules_return_nothing_else(wrong):
    def rate(count):
        return wrong

    with pytest.raises(TypeError, match=r"the schedule .* returned .*, but must return a"):
        rate_at(rate, np.asarray(3.0))


@pytest.mark.slow
def test_schedules_of_jax_are_compiled():
    jax = pytest.importorskip("jax")
    model, *data = [
        agp.to_backend(x, "jax") for x in (agp.SVGP.from_data(X, Y, num_inducing=4, posterior="whitened"), X, Y)
    ]
    for rate in (jax.numpy.asarray(0.05), lambda count: np.asarray(0.05), lambda count: 0.05 / (1.0 + count)):
        result = agp.train(model, *data, steps=2, updates=[Adam(rate)])
        assert np.isfinite(result.trace["bound"]).all()
