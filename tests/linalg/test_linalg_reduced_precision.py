"""Inversion whose products are in a lower precision: the same factor, checked in the own precision, or a way back."""

import math

import numpy as np
import pytest
from helpers import JAX, TORCH, assert_close

from agp.backend import get_backend
from agp.errors import BackendError
from agp.linalg import inverse_factor
from agp.linalg._inverse_step import starting_factor
from agp.linalg import _reduced_steps as reduced


def covariance(size, noise, lengthscale=1.0, seed=0):
    """An RBF kernel's matrix of random inputs, with noise."""
    Z = np.random.default_rng([seed, size]).normal(size=(size, 3))
    squares = np.sum((Z[:, None] - Z) ** 2, axis=-1)
    return np.exp(-0.5 * squares / lengthscale**2) + noise * np.eye(size)


def residual(A, L):
    return np.linalg.norm(L.T @ A @ L - np.eye(len(A))) / math.sqrt(len(A))


def trust_products(monkeypatch):
    """Let the rounding of products be estimated far too small."""
    for name in ("ROUNDINGS", "SUMS"):
        monkeypatch.setattr(reduced, name, 1e-6 * vars(reduced)[name])


@pytest.fixture
def products(monkeypatch):
    """The dtypes of all products of triangular matrices, as they are asked for."""
    seen = []
    for name in ("lower_product", "lower_transposed_product", "lower_times_lower"):
        own = getattr(reduced, name)
        monkeypatch.setattr(reduced, name, lambda *x, own=own: seen.append(str(x[0].dtype)) or own(*x))
    return seen


@pytest.mark.parametrize("tolerance", [5e-3, 1e-9])
@pytest.mark.parametrize("noise", [1e-1, 1e-3])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_the_residual_is_that_of_the_own_precision(warm, noise, tolerance, backend, products, block):
    A = covariance(24, noise)
    start = backend.array(np.linalg.cholesky(np.linalg.inv(covariance(24, noise, 1.03)))) if warm else None
    found = inverse_factor(backend.array(A), start, tolerance=tolerance, least_steps=1, precision="float32")
    L = backend.numpy(found.factor)
    assert len(products) >= 2
    assert all("float32" in dtype for dtype in products)
    assert residual(A, L) < tolerance
    np.testing.assert_allclose(backend.numpy(found.residual), residual(A, L), rtol=1e-6, atol=1e-12)
    assert float(found.fallbacks) == float(found.restarts) == 0.0
    np.testing.assert_array_equal(L, np.tril(L))
    backend.check(found.factor)
    backend.check(found.vector)


def test_the_factor_is_that_of_full_precision_to_the_stated_error(backend):
    # one step from the same start: what differs is the rounding of products
    A, start = covariance(40, 1e-2), np.linalg.cholesky(np.linalg.inv(covariance(40, 1e-2, 1.02)))
    settings = {"tolerance": 1e-1, "least_steps": 1, "max_steps": 1}
    full = inverse_factor(backend.array(A), backend.array(start), **settings)
    mixed = inverse_factor(backend.array(A), backend.array(start), precision="float32", **settings)
    assert float(full.steps) == float(mixed.steps) == 1.0
    roots = np.linalg.inv(backend.numpy(full.factor))
    difference = np.linalg.norm(roots @ (backend.numpy(mixed.factor) - backend.numpy(full.factor))) / math.sqrt(40)
    rounding = float(mixed.rounding)
    assert 0.0 < rounding < 2.0**-24 * np.linalg.cond(A) * math.sqrt(40) / 5
    assert 1e-9 < difference < 3.0 * rounding


@pytest.mark.parametrize("noise", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("size", [60, 250])
def test_the_rounding_of_products_is_estimated_within_a_factor(size, noise):
    A = covariance(size, noise, 1.5)
    L = np.linalg.cholesky(np.linalg.inv(A))
    low = reduced._Products(A, "float32")
    error = np.tril(low.gram(low.low(L))) - np.tril(L.T @ A @ L)
    true = math.sqrt((2.0 * np.sum(error**2) - np.sum(np.diag(error) ** 2)) / size)
    assert 0.3 < true / low.rounding(L) < 3.0


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_matrix_that_is_badly_conditioned_is_inverted_in_the_own_precision(warm, backend):
    A = covariance(24, 1e-9, 10.0)
    assert np.linalg.cond(A) > 1e8
    start = backend.array(np.linalg.cholesky(np.linalg.inv(A)) * 1.01) if warm else None
    settings = {"tolerance": 5e-3, "least_steps": 1}
    found = inverse_factor(backend.array(A), start, precision="float32", **settings)
    assert float(found.fallbacks) == 1.0
    assert residual(A, backend.numpy(found.factor)) < 5e-3
    if warm:  # nothing was done in the lower precision
        full = inverse_factor(backend.array(A), start, **settings)
        np.testing.assert_array_equal(backend.numpy(found.factor), backend.numpy(full.factor))


def test_products_that_promise_too_much_are_found_out(backend, monkeypatch):
    # an estimate of the rounding that is far too small: the check in the own precision sends the steps on
    trust_products(monkeypatch)
    A = covariance(24, 1e-9, 10.0)
    found = inverse_factor(backend.array(A), tolerance=5e-3, precision="float32")
    assert float(found.fallbacks) == 1.0
    assert residual(A, backend.numpy(found.factor)) < 5e-3


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_residual_that_the_own_precision_does_not_confirm_counts_as_a_fallback(warm, monkeypatch):
    trust_products(monkeypatch)
    A = covariance(24, 1e-5, 2.0)
    start = np.linalg.cholesky(np.linalg.inv(A)) * 1.01 if warm else None
    found = inverse_factor(A, start, tolerance=1e-5, precision="float32")
    assert float(found.fallbacks) == 1.0
    assert residual(A, found.factor) < 1e-5


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e30])
def test_the_units_of_the_matrix_do_not_matter(scale, backend):
    A = covariance(12, 1e-2)
    found = inverse_factor(backend.array(scale * A), tolerance=1e-3, precision="float32")
    expected = inverse_factor(backend.array(A), tolerance=1e-3, precision="float32")
    assert float(found.fallbacks) == 0.0
    assert float(found.steps) == float(expected.steps)
    assert_close(backend.numpy(found.factor) * math.sqrt(scale), backend.numpy(expected.factor), 1e-4)


def test_a_hopeless_start_is_thrown_away_once(backend):
    A = covariance(12, 1e-2)
    found = inverse_factor(backend.array(A), backend.array(1e3 * np.eye(12)), precision="float32")
    assert float(found.restarts) == 1.0
    assert float(found.fallbacks) == 0.0
    assert residual(A, backend.numpy(found.factor)) < 5e-3


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_gives_a_nan_residual(bad, backend):
    A = covariance(6, 1e-2)
    A[2, 3] = A[3, 2] = bad
    found = inverse_factor(backend.array(A), precision="float32")
    assert np.isnan(backend.numpy(found.residual))
    assert float(found.fallbacks) == 0.0


def test_least_and_most_steps_are_obeyed(backend):
    A = backend.array(covariance(12, 1e-3))
    assert float(inverse_factor(A, tolerance=1e-12, max_steps=3, precision="float32").steps) == 3.0
    exact = inverse_factor(A, tolerance=1e-6).factor
    for least in (0, 1, 3):
        found = inverse_factor(A, exact, tolerance=5e-3, least_steps=least, precision="float32")
        assert float(found.steps) == least


def test_a_precision_that_is_no_lower_changes_nothing(backend):
    A = backend.array(covariance(12, 1e-2), "float32")
    found, expected = inverse_factor(A, precision="float32"), inverse_factor(A)
    np.testing.assert_array_equal(backend.numpy(found.factor, "float32"), backend.numpy(expected.factor, "float32"))
    assert float(found.rounding) == 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_bfloat16_serves_what_is_well_conditioned(library, dtype, available):
    place = available({"torch": TORCH, "jax": JAX}[library])
    A = covariance(30, 1.0, 0.3)
    start = 0.95 * np.linalg.cholesky(np.linalg.inv(A))
    settings = {"tolerance": 2e-2, "least_steps": 1}
    found = inverse_factor(place.array(A, dtype), place.array(start, dtype), precision="bfloat16", **settings)
    L = place.numpy(found.factor, dtype)
    place.check(found.factor, dtype)
    assert float(found.fallbacks) == 0.0
    assert float(found.steps) == 1.0
    full = place.numpy(inverse_factor(place.array(A, dtype), place.array(start, dtype), **settings).factor, dtype)
    assert residual(A, L) < 2e-2
    assert 1e-5 < np.max(np.abs(L - full)) < 1e-2  # it was another product


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("library", ["numpy", "array_api_strict"])
def test_libraries_say_which_precisions_they_do_not_have(library, precision):
    A = get_backend(library).from_numpy(covariance(4, 1e-2))
    with pytest.raises(BackendError, match=f"{library} does not support products in {precision}; use precision="):
        inverse_factor(A, precision=precision)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_tf32_needs_a_cuda_device(library, available):
    A = available({"torch": TORCH, "jax": JAX}[library]).array(covariance(4, 1e-2))
    with pytest.raises(BackendError, match="tf32 products only on CUDA devices, not on cpu"):
        inverse_factor(A, precision="tf32")


def test_the_rounding_of_a_cold_factor_is_small():
    # so that the guard must look again as the factor grows
    A = covariance(60, 1e-7, 3.0)
    low = reduced._Products(A, "float32")
    assert low.rounding(starting_factor(A)) < 1e-6 < 1e-2 < low.rounding(np.linalg.cholesky(np.linalg.inv(A)))


@pytest.mark.parametrize("noise", [1e-2, 1e-9])
def test_compiled_steps_are_those_of_a_loop_on_the_host(noise, available):
    A, place = covariance(24, noise, 2.0 if noise > 1e-9 else 10.0), available(JAX)
    start = 1.02 * np.linalg.cholesky(np.linalg.inv(A))

    def inverted(A, start):
        return inverse_factor(A, start, least_steps=1, precision="float32")

    arrays = place.array(A), place.array(start)
    eager, compiled = inverted(*arrays), get_backend("jax").compile(inverted)(*arrays)
    assert float(compiled.fallbacks) == float(eager.fallbacks) == (noise == 1e-9)
    assert float(compiled.steps) == float(eager.steps)
    rounding = max(float(eager.rounding), 1e-9) if noise > 1e-9 else 1e-6
    assert_close(place.numpy(compiled.factor), place.numpy(eager.factor), 10.0 * rounding)


def test_jax_asks_cuda_devices_for_tf32_in_the_low_products_alone(available, monkeypatch):
    place, jax = available(JAX), pytest.importorskip("jax")
    from agp_backends import _jax

    monkeypatch.setattr(_jax, "platform_of", lambda _device: "cuda")
    monkeypatch.setattr(_jax.JaxBackend, "device_block", lambda _self, _x: 0.0)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    A = place.array(covariance(6, 1.0, 0.3))

    def asked(precision):
        traced = str(jax.make_jaxpr(lambda A: inverse_factor(A, precision=precision).factor)(A))
        return [traced.count(f"(Precision.{kind}, Precision.{kind})") for kind in ("HIGH", "HIGHEST")]

    low, _ = asked("tf32")  # JAX's word for it is HIGH
    assert low == 3  # of L^T A L two, of L Phi one
    assert asked("float32")[0] == 0
