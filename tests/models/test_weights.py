"""Weights of rows: those of whole numbers are repeated rows, in exact and in collapsed regression.

`test_rows.py` tests the weights, the offsets and the known noise of every method.
"""

import numpy as np
import pytest
from helpers import NUMPY, TORCH, assert_close

import agp
from agp import CGGP, GPR, SGPR, SOLVEGPR, CaGP, tree
from agp.errors import NoSignalWarning
from agp.training import laplace

ROWS = 12
RNG = np.random.default_rng(4)
X, Y = RNG.normal(size=(ROWS, 2)), RNG.normal(size=(ROWS, 2))
W = 1.0 * RNG.integers(1, 4, size=ROWS)
AGAIN = np.repeat(np.arange(ROWS), W.astype(int))
NEW = RNG.normal(size=(5, 2))

BUILD = {
    "gpr": lambda X, y, **given: GPR.from_data(X, y, **given),
    "sgpr": lambda X, y, **given: SGPR.from_data(X, y, Z=X[:4, :], **given),
    "solve-collapsed": lambda X, y, **given: SOLVEGPR.from_data(X, y, Z=X[:3, :], O=X[5:7, :], **given),
}
STARTS = BUILD | {"cggp": CGGP.from_data, "cagp": CaGP.from_data}


def both(kind, backend):
    """A model with weights and one on repeated rows, at the same hyperparameters, and their data."""
    x, y, w = (backend.array(a) for a in (X, Y, W))
    more = backend.array(X[AGAIN]), backend.array(Y[AGAIN])
    weighted, repeated = BUILD[kind](x, y, weights=w), BUILD[kind](*more)
    at = tree.with_leaves(weighted, {"likelihood.noise_variance": backend.array(0.3)})
    return (at, x, y), (tree.with_leaves(repeated, tree.leaves(at, "parameter")), *more)


@pytest.mark.parametrize("kind", STARTS)
def test_starting_values_are_those_of_repeated_rows(kind):
    weighted, repeated = STARTS[kind](X, Y, weights=W), STARTS[kind](X[AGAIN], Y[AGAIN])
    expected = tree.leaves(repeated, "parameter")
    for name, leaf in tree.leaves(weighted, "parameter").items():
        if not name.startswith(("inducing", "actions")):
            np.testing.assert_array_equal(leaf, expected[name])


@pytest.mark.parametrize("kind", BUILD)
def test_whole_weights_are_repeated_rows(kind, backend):
    (model, x, y), (other, *more) = both(kind, backend)
    (value, slopes), (expected, gradient) = (agp.value_and_gradient(m, *d) for m, d in ((model, (x, y)), (other, more)))
    assert_close(backend.numpy(value), backend.numpy(expected), 1e-10)
    for name, slope in gradient.items():
        np.testing.assert_allclose(backend.numpy(slopes[name]), backend.numpy(slope), rtol=1e-9, atol=1e-10)
    new = backend.array(NEW)
    before = [m.predictor() for m in (model, other)]
    after = [p.condition_on(new[:2, :], y[:2, :]) for p in before]
    for one, two in (before, after):
        for found, known in zip(one.predict(new), two.predict(new), strict=True):
            np.testing.assert_allclose(backend.numpy(found), backend.numpy(known), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", BUILD)
def test_the_closed_form_is_that_of_autodiff(kind, available):
    place = available(TORCH)
    weights = place.array(0.2 + W * W / 7.0)
    x, y = place.array(X), place.array(Y)
    model = BUILD[kind](x, y, weights=weights)
    value, slopes = agp.value_and_gradient(model, x, y)
    again, expected = agp.value_and_gradient(model, x, y, gradient="autodiff")
    assert_close(place.numpy(value), place.numpy(again), 1e-12)
    for name, slope in expected.items():
        np.testing.assert_allclose(place.numpy(slopes[name]), place.numpy(slope), rtol=1e-8, atol=1e-10)


def test_blocks_of_rows_carry_their_weights():
    (model, *_), (other, *more) = both("sgpr", NUMPY)
    whole, pull = model.bound(X, Y)
    value, pull_blocks = model.bound(X, Y, memory=1e-3)
    assert_close(value, whole, 1e-12)
    expected = tree.leaves(pull(1.0)[0])
    for name, slope in tree.leaves(pull_blocks(1.0)[0]).items():
        np.testing.assert_allclose(slope, expected[name], rtol=1e-9, atol=1e-10)
    assert_close(model.upper_bound(X, Y), other.upper_bound(*more), 1e-10)


def test_one_of_repeated_observations_is_left_out():
    (model, *_), (other, *_) = both("gpr", NUMPY)
    np.testing.assert_allclose(model.leave_one_out()[AGAIN], other.leave_one_out(), rtol=1e-10)


def test_a_row_of_little_weight_is_left_out_as_a_whole():
    weights = np.where(np.arange(ROWS) == 3, 1e-8, 1.0)
    model = GPR.from_data(X, Y, kernel=agp.RBF(lengthscale=1.0), likelihood=agp.Gaussian(0.3), weights=weights)
    rest = np.arange(ROWS) != 3
    others = tree.with_leaves(
        GPR.from_data(X[rest], Y[rest], kernel=model.kernel, likelihood=model.likelihood),
        {"mean_function.value": model.mean_function.value},
    )
    np.testing.assert_allclose(model.leave_one_out()[3], others.log_density(X[3:4], Y[3:4])[0], rtol=1e-6)
    np.testing.assert_allclose(model.predict(NEW).mean, others.predict(NEW).mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1e-200, 1e-20, 1e20])
def test_weights_of_any_size_predict_numbers(size):
    weights = np.where(np.arange(ROWS) < 3, size, 1.0)
    model = GPR.from_data(X, Y, weights=weights)
    for x in (*model.predict(NEW), model.leave_one_out(), model.bound(X, Y)[0]):
        assert np.isfinite(x).all()
    assert (model.predict(NEW).variance >= 0.0).all()


def test_weights_of_one_change_nothing():
    plain, weighted = GPR.from_data(X, Y), GPR.from_data(X, Y, weights=np.ones(ROWS))
    assert_close(weighted.bound(X, Y)[0], plain.bound(X, Y)[0], 1e-12)
    np.testing.assert_allclose(weighted.predict(NEW).variance, plain.predict(NEW).variance, rtol=1e-10)


@pytest.mark.long
def test_functions_are_sampled_from_the_posterior_of_the_rows():
    known = {"weights": W * W, "noise": np.linspace(0.0, 0.5, ROWS), "offset": Y[:, 1]}
    model = GPR.from_data(X, Y[:, :1], kernel=agp.RBF(lengthscale=1.0), likelihood=agp.Gaussian(0.1), **known)
    samples = model.predictor().sample_functions(3000, seed=1, features=4000)(NEW)
    mean, variance = model.predict(NEW)
    np.testing.assert_allclose(samples.mean(axis=0), mean, atol=0.08)
    np.testing.assert_allclose(samples.var(axis=0), variance, rtol=0.2, atol=0.01)


@pytest.mark.parametrize("kind", BUILD)
def test_hyperparameters_are_as_uncertain_as_with_repeated_rows(kind):
    found, expected = (laplace(*some) for some in both(kind, NUMPY))
    assert_close(found.covariance, expected.covariance, 1e-4)


@pytest.mark.slow
def test_growth_takes_weights_along():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, size=(60, 1))
    y, weights = np.sin(3.0 * x) + 0.1 * rng.normal(size=x.shape), rng.uniform(0.5, 1.5, size=60)
    model = SGPR.from_data(x, y, num_inducing=3, weights=weights)
    found = agp.fit_growing(model, x, y, most=12, sample_rows=20).model
    np.testing.assert_array_equal(found.weights, weights)
    assert found.inducing.count > 3


def test_what_is_learned_is_judged_with_weights():
    # all weight on rows that tell nothing: the targets of the others are as good as absent
    x = np.linspace(-1.0, 1.0, 40)[:, None]
    y = np.where(np.arange(40)[:, None] < 20, np.sin(5.0 * x), np.random.default_rng(5).normal(size=x.shape))
    model = GPR.from_data(x, y, weights=np.where(np.arange(40) < 20, 1e-6, 1.0))
    with pytest.warns(NoSignalWarning):
        assert not agp.fit(model, x, y).learned


WRONG = {
    "zero": (np.where(np.arange(ROWS) == 2, 0.0, W), "must be positive .* the smallest is 0; remove rows of weight 0"),
    "negative": (-W, "weights must not be negative, but the smallest is -3"),
    "nan": (np.where(np.arange(ROWS) == 2, np.nan, W), "weights has 1 NaN or infinite entries, the first in row 2"),
    "few": (W[:-1], r"weights has shape \(11,\), but must have shape \(12,\); pass one number for each row of X"),
    "columns": (np.stack([W, W], axis=1), r"weights has shape \(12, 2\), but must have shape \(12,\)"),
    "too large": (np.full(ROWS, 1e308), "finite sum"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", BUILD)
def test_weights_that_cannot_be_are_refused(kind, name):
    weights, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        BUILD[kind](X, Y, weights=weights)


def test_other_rows_than_the_weights_are_refused():
    model = GPR.from_data(X, Y, weights=W)
    with pytest.raises(ValueError, match=r"weights has shape \(12,\), but must have shape \(5,\)"):
        model.bound(X[:5], Y[:5])
