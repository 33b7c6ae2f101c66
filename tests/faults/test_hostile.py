"""Hostile numbers, on every backend and in both precisions: a sound answer or the documented error, never NaN."""

from typing import NamedTuple

import numpy as np
import pytest
import scipy.linalg
from helpers import Place, as_arrays, assert_close, inducing_inputs, named, process, with_leaves

from agp import (
    GPR,
    RBF,
    SGPR,
    SVGP,
    Gaussian,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    ZeroMean,
    train,
    tree,
)
from agp.backend import backend_of, get_backend, to_numpy
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.gradient import value_and_gradient
from agp.linalg import cholesky
from agp.posteriors import InverseFree, LikelihoodForm, Marginal, Relaxed, Whitened
from agp.repairs import Tally, collect_reports
from agp.training import recipe

SVGPS = {"W": Whitened, "M": Marginal, "L": LikelihoodForm, "R": Relaxed, "A": InverseFree}
METHODS = ("gpr", "sgpr", *SVGPS)
DTYPES = ("float64", "float32")

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")


class Hostile(NamedTuple):
    """What is unusual about a problem; the rest is a smooth function of inputs in [-1, 1]^2 with a little noise."""

    duplicated: bool = False
    inputs: float = 1.0
    targets: float = 1.0
    lengthscale: float | None = None
    noise: float | None = None


SCENARIOS = {
    "usual": Hostile(),
    "duplicated rows": Hostile(duplicated=True),
    "short lengthscale": Hostile(lengthscale=1e-3, noise=1e-6),
    "long lengthscale": Hostile(lengthscale=1e3),
    "long lengthscale, little noise, duplicated rows": Hostile(duplicated=True, lengthscale=1e3, noise=1e-6),
    "tiny inputs": Hostile(inputs=1e-12),
    "huge inputs": Hostile(inputs=1e12),
    "tiny targets": Hostile(targets=1e-12),
    "huge targets": Hostile(targets=1e12),
    "tiny inputs, huge targets, duplicated rows": Hostile(duplicated=True, inputs=1e-12, targets=1e12),
}


def data(case, dtype="float64"):
    """X [24, 2] and y [24, 1] on the host; duplicated rows are four, six times each."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(24, 2))
    X = np.repeat(X[:4], 6, axis=0) if case.duplicated else X
    y = np.sin(3.0 * X[:, :1]) + 0.1 * rng.normal(size=(24, 1))
    return (case.inputs * X).astype(dtype), (case.targets * y).astype(dtype)


def build(method, X, y, lengthscale=None, noise=None):
    """A model with inducing inputs at half of the data, duplicates included."""
    options = {"kernel": RBF(None, lengthscale), "likelihood": Gaussian(noise)}
    if method == "gpr":
        return GPR.from_data(X, y, **options)
    if method == "sgpr":
        return SGPR.from_data(X, y, Z=X[:12, :], **options)
    return SVGP.from_data(X, y, posterior=SVGPS[method], Z=X[:12, :], **options)


def assert_sound(model, X, y):
    """Bound, gradient and predictions are finite, variances are variances, and means are of the size of the targets."""
    bound, gradient = value_and_gradient(model, X, y)
    for name, x in {"bound": bound, **gradient}.items():
        assert np.isfinite(to_numpy(x)).all(), name
    assert_sound_predictions(model, X, y)


def assert_sound_predictions(model, X, y):
    mean, variance = map(to_numpy, model.predict(X))
    observed = to_numpy(model.predict(X, observed=True).variance)
    density = to_numpy(model.log_density(X, y))
    for x in (mean, variance, observed, density):
        assert np.isfinite(x).all()
    assert (variance >= 0.0).all()
    assert (observed > 0.0).all()
    if not hasattr(model, "posterior"):  # a q(u) of its own may be wider than the prior
        assert (variance <= 1.01 * float(process(model).kernel.variance)).all()
    assert np.abs(mean).max() <= 3.0 * np.abs(to_numpy(y)).max()


@pytest.mark.sample(19)
@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_bounds_gradients_and_predictions_are_sound(scenario, method, dtype, backend):
    case = SCENARIOS[scenario]
    X, y = (backend.array(x, dtype) for x in data(case))
    noise = None if case.noise is None else case.noise * case.targets**2
    assert_sound(build(method, X, y, case.lengthscale, noise), X, y)


@pytest.mark.cover(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_training_is_sound(scenario, method, dtype, name):
    pytest.importorskip(name, reason=f"{name} is not installed: not executed")
    case = SCENARIOS[scenario]
    X, y = (Place(name).array(x, dtype) for x in data(case))
    noise = None if case.noise is None else case.noise * case.targets**2
    model = build(method, X, y, case.lengthscale, noise)
    result = train(model, X, y, steps=3)
    assert np.isfinite(result.trace["bound"]).all()
    assert_sound_predictions(result.model, X, y)


# -- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("inputs", "targets"), [(40, 0), (-40, 0), (0, 40), (0, -40), (40, -40)])
def test_units_change_nothing_but_units(inputs, targets, method, name):
    # powers of two are exact: what remains is the rounding of logarithms
    pytest.importorskip(name, reason=f"{name} is not installed: not executed")
    place = Place(name)
    X, y = data(Hostile())
    usual = build(method, place.array(X), place.array(y))
    scaled_X, scaled_y = place.array(2.0**inputs * X), place.array(2.0**targets * y)
    scaled = build(method, scaled_X, scaled_y)
    bound = float(usual.bound(place.array(X), place.array(y))[0])
    expected = bound - 24 * targets * np.log(2.0)
    assert float(scaled.bound(scaled_X, scaled_y)[0]) == pytest.approx(expected, rel=1e-9)
    mean, variance = map(to_numpy, usual.predict(place.array(X)))
    scaled_mean, scaled_variance = map(to_numpy, scaled.predict(scaled_X))
    np.testing.assert_allclose(scaled_mean, 2.0**targets * mean, rtol=1e-9, atol=1e-9 * 2.0**targets)
    np.testing.assert_allclose(scaled_variance, 4.0**targets * variance, rtol=1e-9)


# -- single precision against double ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SVGPS)
@pytest.mark.parametrize("scenario", ["usual", "duplicated rows", "long lengthscale"])
def test_single_precision_follows_double_precision(scenario, method, backend):
    # The same leaves and the same jitter, 1e-4 of the variance: the condition number is at most 12 / 1e-4, and times
    # the unit roundoff of float32 that is 7e-3 of the size of what is predicted.
    case = SCENARIOS[scenario]
    X, y = data(case)
    jitter = 1e-4 * float(np.var(y))
    start = SVGP.from_data(X, y, posterior=SVGPS[method], Z=X[:12], kernel=RBF(None, case.lengthscale), jitter=jitter)
    model = train(start, X, y, steps=10).model
    mean, variance = model.predict(X)
    single = backend.move(model, "float32").predict(backend.array(X, "float32"))
    size = float(np.sqrt(process(model).kernel.variance))
    np.testing.assert_allclose(backend.numpy(single.mean, "float32"), mean, rtol=0.0, atol=2e-2 * size)
    np.testing.assert_allclose(backend.numpy(single.variance, "float32"), variance, rtol=0.0, atol=2e-2 * size**2)


# -- distance zero ----------------------------------------------------------------------------------------------------

STATIONARY = {
    "rbf": lambda: RBF(0.8, (0.7, 1.1)),
    "matern12": lambda: Matern12(0.8, (0.7, 1.1)),
    "matern32": lambda: Matern32(0.8, (0.7, 1.1)),
    "matern52": lambda: Matern52(0.8, (0.7, 1.1)),
    "rational-quadratic": lambda: RationalQuadratic(0.8, (0.7, 1.1), 1.3),
}


@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.parametrize("inducing", ["all inputs", "duplicated"])
@pytest.mark.parametrize("kernel", STATIONARY)
def test_autodiff_is_finite_at_distance_zero(kernel, inducing, name):
    pytest.importorskip(name, reason=f"{name} is not installed: not executed")
    place = Place(name, "cpu")
    X, y = data(Hostile(duplicated=inducing == "duplicated"))
    X, y = X[::2], y[::2]
    host = as_arrays(STATIONARY[kernel]())
    parts = {"kernel": host, "mean_function": ZeroMean()}  # the slope along a level is rounding where it starts
    model = place.move(SVGP.from_data(X, y, posterior=Whitened, Z=X, jitter=1e-2, **parts))
    X, y = place.array(X), place.array(y)
    value, gradient = value_and_gradient(model, X, y, gradient="autodiff")
    expected, closed = value_and_gradient(model, X, y)
    np.testing.assert_allclose(place.numpy(value), place.numpy(expected), rtol=1e-12)
    for leaf, x in closed.items():
        assert_close(place.numpy(gradient[leaf]), place.numpy(x), 1e-8, leaf)


# -- a factorisation that fails with finite rubbish -------------------------------------------------------------------


def partial_factor(A):
    """What potrf leaves where a pivot is not positive: a finite, useless triangle, and no exception."""
    return scipy.linalg.get_lapack_funcs(("potrf",), (A,))[0](A.T, lower=False, clean=True)[0].T


def _indefinite(seed, size, smallest, dtype):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(size, size)))[0]
    values = np.concatenate([[-smallest], np.exp(rng.uniform(-6.0, 0.0, size=size - 1))])
    A = (Q * values) @ Q.T
    return (0.5 * (A + A.T)).astype(dtype)


def test_the_factor_of_a_failure_is_finite_rubbish():
    A = _indefinite(0, 6, 0.1, "float64")
    L = partial_factor(A)
    assert np.isfinite(L).all()
    assert np.abs(L @ L.T - A).max() > 1e-3


@pytest.mark.cover(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_finite_rubbish_is_recognised(seed, dtype, cupy_stand_in):
    size = 3 + 7 * (seed % 4)
    A = _indefinite(seed, size, 0.1, dtype)
    with pytest.raises(
        NotPositiveDefiniteError, match="is not positive definite(, even with jitter|. The kernel returned)"
    ):
        cholesky(cupy_stand_in.array(A, dtype))
    good = A + (0.1 + 0.1) * np.eye(size, dtype=dtype)
    with collect_reports() as repairs:
        L = cupy_stand_in.numpy(cholesky(cupy_stand_in.array(good, dtype)), dtype)
    assert not repairs
    np.testing.assert_allclose(L @ L.T, good, atol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_rubbish_is_repaired_like_a_failure_that_is_reported(dtype, cupy_stand_in):
    case = SCENARIOS["long lengthscale, little noise, duplicated rows"]
    X, y = data(case, dtype)
    K = as_arrays(RBF(1.0, 1e3))(X.astype("float64"))[0].astype(dtype) - dtype_eps(dtype) * np.eye(24, dtype=dtype)
    with collect_reports() as expected:
        L = cholesky(K)
    with collect_reports() as found:
        other = cupy_stand_in.numpy(cholesky(cupy_stand_in.array(K, dtype)), dtype)
    assert Tally(found).messages == Tally(expected).messages
    assert Tally(found).total == 1
    np.testing.assert_allclose(other, L, atol=1e-4 if dtype == "float32" else 1e-12)
    for method in METHODS:
        assert_sound(build(method, X, y, case.lengthscale, case.noise), X, y)


def dtype_eps(dtype):
    return np.asarray(100.0 * np.finfo(dtype).eps, dtype=dtype)


# -- errors that name the cause ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gpr", "sgpr", "W", "M", "L"])
def test_a_covariance_that_is_not_finite_is_an_error_with_a_cause(method, backend):
    X, y = (backend.array(x) for x in data(Hostile()))
    model = build(method, X, y)
    broken = with_leaves(model, {"kernel.variance": backend.array(np.nan)})
    with pytest.raises(NotPositiveDefiniteError, match="NaN or infinite entries; check the inputs and the kernel"):
        broken.bound(X, y)
    with pytest.raises(NotPositiveDefiniteError, match="NaN or infinite entries"):
        broken.predict(X)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["W", "R", "A"])
def test_training_that_diverges_is_an_error_with_the_last_finite_model(method, backend):
    X, y = (backend.array(x) for x in data(Hostile()))
    model = build(method, X, y)
    with pytest.raises(NonFiniteError, match=r"became|failed") as caught:
        train(model, X, y, steps=60, updates=recipe(model, 60, rate=1e30))
    last = caught.value.result.model
    assert not any(bool(leaf.constraint.is_violated(leaf.value)) for leaf in tree.describe(last))
    assert all(np.isfinite(to_numpy(x)).all() for x in named(last).values())
    assert backend_of(inducing_inputs(last)) is get_backend(backend.name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_variance_that_underflows_to_zero_is_an_error(name):
    # a step far too long: softplus gives exactly 0, the bound stays finite, and no gradient leads back
    pytest.importorskip(name, reason=f"{name} is not installed: not executed")
    X, y = (Place(name).array(x) for x in data(Hostile()))
    model = build("R", X, y)
    with pytest.raises(NonFiniteError, match=r"kernel\.variance became 0, but must be positive in step 10") as caught:
        train(model, X, y, steps=20, updates=recipe(model, 20, rate=1e4))
    assert float(process(caught.value.result.model).kernel.variance) > 0.0
