"""Bounds check the targets by the rule of `from_data`; in traced programs, invalid targets make the bound NaN."""

import numpy as np
import pytest

import agp
from agp.likelihoods import Logit, TransformedGaussian

N = 12
SAFE = {"posterior": "whitened", "num_inducing": 4}


def inputs(rows=N):
    return np.random.default_rng(0).normal(size=(rows, 2))


CASES = {
    "softmax": (agp.Softmax(3), [0.0, 1.0, 2.0], [3.0, -1.0, 0.5]),
    "robust-max": (agp.RobustMax(3), [0.0, 1.0, 2.0], [3.0, -1.0, 0.5]),
    "ordinal": (agp.Ordinal(3), [0.0, 1.0, 2.0], [3.0, -1.0, 0.5]),
    "probit": (agp.Bernoulli(), [0.0, 1.0], [-1.0, 1.5, 3.0]),
    "logit": (agp.Bernoulli(link="logit"), [0.0, 1.0], [-1.0, 1.5, 3.0]),
    "flipped": (agp.Bernoulli(squash=0.01), [0.0, 1.0], [-1.0, 1.5, 3.0]),
    "poisson": (agp.Poisson(), [0.0, 1.0, 4.0], [-1.0, 0.5]),
    "negative-binomial": (agp.NegativeBinomial(), [0.0, 1.0, 4.0], [-2.0, 0.5]),
    "gamma": (agp.Gamma(), [0.5, 1.0, 3.0], [0.0, -1.0]),
    "beta": (agp.Beta(), [0.2, 0.5, 0.9], [0.0, 1.0, 1.5, -0.5]),
    "log-normal": (agp.LogNormal(), [0.5, 1.0, 3.0], [0.0, -1.0]),
    "transformed": (TransformedGaussian(agp.Gaussian(), Logit()), [0.2, 0.5, 0.9], [0.0, -1.0, 1.0]),
    "student-t": (agp.StudentT(), [0.5, -1.0, 3.0], []),
    "gaussian": (agp.Gaussian(), [0.5, -1.0, 3.0], []),
}
"""Likelihoods, valid targets and invalid ones; NaN and infinity are always invalid."""
PAIRS = [(name, bad) for name, (*_, invalid) in CASES.items() for bad in [*invalid, np.nan, np.inf]]


def problem(name):
    likelihood, valid, _ = CASES[name]
    X = inputs()
    y = np.resize(np.asarray(valid), (N, 1))
    return agp.SVGP.from_data(X, y, likelihood=likelihood, **SAFE), X, y


def with_one(y, bad):
    y = y.copy()
    y[3] = bad
    return y


def message(call):
    with pytest.raises(ValueError, match=r"\w; |found ") as found:
        call()
    return str(found.value)


@pytest.mark.parametrize(("name", "bad"), PAIRS)
def test_bounds_refuse_what_from_data_refuses(name, bad):
    model, X, y = problem(name)
    y = with_one(y, bad)
    wanted = message(lambda: agp.SVGP.from_data(X, y, likelihood=CASES[name][0], **SAFE))
    assert message(lambda: model.bound(X, y)) == wanted
    assert message(lambda: agp.value_and_gradient(model, X, y)) == wanted
    assert message(lambda: model.bound(X[:5], y[:5], scale=N / 5)) == wanted


@pytest.mark.parametrize("name", CASES)
def test_valid_targets_are_in_the_support_and_others_are_not(name):
    likelihood, valid, invalid = CASES[name]
    likelihood = likelihood.from_data(1.0)
    y = np.asarray([*valid, *invalid, np.nan, np.inf])[:, None]
    assert likelihood.in_support(y)[:, 0].tolist() == [True] * len(valid) + [False] * (len(invalid) + 2)


def test_missing_targets_are_in_the_support_of_likelihoods_that_allow_them():
    y = np.asarray([[0.5], [np.nan], [np.inf]])
    for likelihood in (agp.Gaussian(1.0, missing=True), TransformedGaussian(agp.Gaussian(1.0, missing=True), Logit())):
        assert likelihood.in_support(y)[:, 0].tolist() == [True, True, False]
        X, y_all = inputs(), np.linspace(0.2, 0.8, N)[:, None]
        model = agp.SVGP.from_data(X, y_all, likelihood=likelihood, **SAFE)
        assert np.isfinite(model.bound(X, with_one(y_all, np.nan))[0])


@pytest.mark.parametrize("build", [agp.GPR.from_data, agp.SGPR.from_data, agp.NNGP.from_data])
def test_models_that_hold_data_check_targets_too(build):
    X = inputs()
    y = np.sin(X[:, :1])
    with pytest.raises(ValueError, match="y has 1 NaN or infinite entries, the first in row 3"):
        build(X, y).bound(X, with_one(y, np.nan))


def broken(name, y):
    """Copies of the targets with one that is not valid."""
    return [with_one(y, bad) for bad in [*CASES[name][2], np.nan, np.inf]]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", CASES)
def test_mapped_bounds_of_torch_are_nan_for_invalid_targets(name):
    torch = pytest.importorskip("torch")
    model, X, y = problem(name)
    each = torch.from_numpy(np.stack([y, *broken(name, y)]))
    model, X, y = (agp.to_backend(x, "torch") for x in (model, X, y))
    values = torch.func.vmap(lambda y: model.bound(X, y)[0])(each)
    assert torch.allclose(values[0], model.bound(X, y)[0])
    assert torch.isnan(values[1:]).all()
    _, slopes = torch.func.vmap(lambda y: agp.value_and_gradient(model, X, y))(each)
    assert all(torch.isfinite(x[0]).all() and torch.isnan(x[1:]).any() for x in slopes.values())


@pytest.mark.parametrize("name", CASES)
def test_compiled_bounds_of_jax_are_nan_for_invalid_targets(name):
    jax = pytest.importorskip("jax")
    model, X, y = problem(name)
    model, X, first = (agp.to_backend(x, "jax", dtype="float32") for x in (model, X, y))
    compiled = jax.jit(jax.value_and_grad(lambda X, y: model.bound(X, y)[0]))
    value, slope = compiled(X, first)
    assert np.isfinite(float(value))
    assert bool(jax.numpy.isfinite(slope).all())
    for targets in broken(name, y):
        value, slope = compiled(X, jax.numpy.asarray(targets, dtype=X.dtype))
        assert np.isnan(float(value))
        assert bool(jax.numpy.isnan(slope).any())
