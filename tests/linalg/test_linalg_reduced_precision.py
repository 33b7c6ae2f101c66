"""Inversion whose products are in a lower precision: the same factor, checked in the own precision, or a way back."""

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import JAX, JAX_CUDA, NUMPY, TORCH, TORCH_CUDA, assert_close

from agp.backend import get_backend
from agp.errors import BackendError
from agp.linalg import _reduced_steps as reduced
from agp.linalg import inverse_factor
from agp.linalg._inverse_step import starting_factor


def covariance(size, noise, lengthscale=1.0, seed=0):
    """An RBF kernel's matrix of random inputs, with noise."""
    Z = np.random.default_rng([seed, size]).normal(size=(size, 3))
    squares = np.sum((Z[:, None] - Z) ** 2, axis=-1)
    return np.exp(-0.5 * squares / lengthscale**2) + noise * np.eye(size)


def residual(A, L):
    return np.linalg.norm(L.T @ A @ L - np.eye(len(A))) / math.sqrt(len(A))


def trust_products(monkeypatch):
    """Let the rounding of products be estimated far too small."""
    usual = reduced.rounding_error
    monkeypatch.setattr(reduced, "rounding_error", lambda *parts: 1e-6 * usual(*parts))


DEVICES = {"torch": TORCH, "jax": JAX, "torch-cuda": TORCH_CUDA, "jax-cuda": JAX_CUDA}
PLACES = [*((name, "bfloat16") for name in DEVICES), ("torch-cuda", "tf32"), ("jax-cuda", "tf32"), ("numpy", "tf32")]
"""Places and formats in which they multiply; `numpy` imitates tf32."""


@pytest.fixture
def chosen(request, available, monkeypatch):
    """A library that has the products of a format on this machine."""
    library, lowest = request.param
    if library != "numpy":
        return available(DEVICES[library])
    numpy, inside = type(get_backend("numpy")), []

    @contextlib.contextmanager
    def context():
        inside.append(None)
        yield
        inside.pop()

    def rounding(own):
        def product(self, X, Y, **shapes):
            if inside and X.dtype == np.float32:
                X, Y = (self.round_float32(x, 11) for x in (X, Y))
            return own(self, X, Y, **shapes)

        return product

    monkeypatch.setattr(numpy, "reduced_precision", lambda _self, precision, _x: (np.float32, context))
    for name in ("product", "triangular_product"):
        monkeypatch.setattr(numpy, name, rounding(getattr(numpy, name)))
    return available(NUMPY)


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


@pytest.mark.parametrize("split", ["", "x3"], ids=["plain", "split"])
@pytest.mark.parametrize(("chosen", "lowest"), [(place, place[1]) for place in PLACES], indirect=["chosen"])
def test_the_rounding_of_lower_products_is_estimated_within_a_factor(chosen, lowest, split):
    for size, noise in ((60, 1e-1), (60, 1e-3), (250, 1e-2)):
        A = covariance(size, noise, 1.5)
        L = np.linalg.cholesky(np.linalg.inv(A))
        low = reduced._Products(chosen.array(A), lowest + split)
        B = low.gram(low.low(chosen.array(L)))
        chosen.check(B, "float32")
        error = np.tril(chosen.numpy(B, "float32").astype(float)) - np.tril(L.T @ A @ L)
        true = math.sqrt((2.0 * np.sum(error**2) - np.sum(np.diag(error) ** 2)) / size)
        assert 0.4 < true / float(low.rounding(chosen.array(L))) < 1.5


@pytest.mark.parametrize(("chosen", "lowest"), [(place, place[1]) for place in PLACES], indirect=["chosen"])
def test_split_products_have_the_stated_error(chosen, lowest):
    low = reduced._Products(chosen.array(np.eye(2)), lowest + "x3")
    unit = reduced.PRECISIONS[lowest + "x3"]
    assert unit == reduced.PRECISIONS[lowest] ** 2
    rng = np.random.default_rng(3)
    kernel = covariance(70, 1e-3)
    root = np.linalg.cholesky(np.linalg.inv(kernel))
    cases = {
        "single products": (rng.normal(size=(400, 1)), rng.normal(size=(1, 400))),
        "random": (rng.normal(size=(90, 40)), rng.normal(size=(40, 70))),
        "positive": (rng.uniform(size=(90, 40)), rng.uniform(size=(40, 70))),
        "kernel": (kernel, root),
        "scaled": (1e-9 * root.T, 1e9 * kernel),
    }
    for name, factors in cases.items():
        X, Y = (x.astype(np.float32) for x in factors)
        own = [low._parts(chosen.array(x, "float32")) for x in (X, Y)]
        product = low._of(low.backend.product, *own)
        chosen.check(product, "float32")
        X, Y = X.astype(float), Y.astype(float)
        error = np.abs(chosen.numpy(product, "float32").astype(float) - X @ Y) / (np.abs(X) @ np.abs(Y))
        sums = (X.shape[1] + 2) * 2.0**-23  # sums on GPUs may be cut off instead of rounded
        assert np.max(error) < 2.0 * unit + sums, name
        if name == "single products":  # nearly the worst error, so the bound has no room for a mistake
            assert np.max(error) > unit


def test_rounding_keeps_the_stated_number_of_bits(backend):
    x = np.random.default_rng(4).normal(size=2000).astype(np.float32) * 10.0 ** np.linspace(-30, 30, 2000)
    x = np.append(x, [0.0, -0.0, 1.0, -2.0]).astype(np.float32)
    for bits in (8, 11):
        rounded = backend.numpy(get_backend(backend.name).round_float32(backend.array(x, "float32"), bits), "float32")
        mantissa, _ = np.frexp(rounded)
        np.testing.assert_array_equal(mantissa * 2.0**bits, np.round(mantissa * 2.0**bits))
        assert np.all(np.abs(rounded - x) <= 2.0**-bits * np.abs(x))
        np.testing.assert_array_equal(rounded[-4:], x[-4:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize(
    ("chosen", "lowest", "noise"),
    [(place, place[1], 1e-1 if place[1] == "bfloat16" else 1e-2) for place in PLACES],
    indirect=["chosen"],
)
def test_split_products_serve_where_plain_ones_do_not(chosen, lowest, noise, warm, dtype):
    A = covariance(48, noise, 1.5)
    start = chosen.array(np.linalg.cholesky(np.linalg.inv(covariance(48, noise, 1.51))), dtype) if warm else None
    settings = {"tolerance": 5e-3, "least_steps": 1}
    plain, split, full = (
        inverse_factor(chosen.array(A, dtype), start, precision=precision, **settings)
        for precision in (lowest, lowest + "x3", None)
    )
    chosen.check(split.factor, dtype)
    assert float(plain.fallbacks) == 1.0
    assert float(split.fallbacks) == 0.0
    assert float(split.steps) == float(full.steps)
    assert residual(A, chosen.numpy(split.factor, dtype)) < 5e-3
    L, own = (chosen.numpy(found.factor, dtype).astype(float) for found in (split, full))
    difference = np.linalg.norm(np.linalg.solve(own, L - own)) / math.sqrt(48)
    assert difference < 3.0 * float(split.rounding) + (1e-4 if dtype == "float32" else 0.0)
    assert difference > (0.0 if lowest == "tf32" else 1e-6)  # it was another product


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


@pytest.mark.parametrize("precision", ["tf32", "bfloat16", "tf32x3", "bfloat16x3"])
@pytest.mark.parametrize("library", ["numpy", "array_api_strict"])
def test_libraries_say_which_precisions_they_do_not_have(library, precision):
    A = get_backend(library).from_numpy(covariance(4, 1e-2))
    with pytest.raises(BackendError, match=f"{library} does not support products in {precision}; use precision="):
        inverse_factor(A, precision=precision)


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_tf32_needs_a_cuda_device(library, precision, available):
    A = available({"torch": TORCH, "jax": JAX}[library]).array(covariance(4, 1e-2))
    with pytest.raises(BackendError, match=f"{precision} products only on CUDA devices, not on cpu"):
        inverse_factor(A, precision=precision)


def test_torch_asks_cuda_devices_for_bfloat16_products_in_float32(available, monkeypatch):
    available(TORCH)
    torch, B = pytest.importorskip("torch"), get_backend("torch")
    from agp_backends import _torch

    asked = []
    monkeypatch.setattr(torch, "mm", lambda X, Y, out_dtype: asked.append((X, Y, out_dtype)))
    X = SimpleNamespace(dtype=torch.bfloat16, ndim=2, device=SimpleNamespace(type="cuda"))
    for precision in ("bfloat16", "bfloat16x3"):
        assert B.reduced_precision(precision, X)[0] == torch.bfloat16
    B.product(X, X)
    assert asked == [(X, X, torch.float32)]
    monkeypatch.setattr(_torch, "WIDE", False)  # torch 2.7
    B.reduced_precision("bfloat16", X)
    with pytest.raises(BackendError, match="bfloat16x3 products on GPUs require torch 2.8"):
        B.reduced_precision("bfloat16x3", X)


@pytest.mark.parametrize("precision", ["bfloat16x3", "tf32x3"])
def test_cuda_devices_of_torch_take_split_products(precision, torch_device):
    A = covariance(30, 0.1)
    found = inverse_factor(torch_device.array(A), tolerance=5e-3, precision=precision)
    torch_device.check(found.factor)
    assert float(found.fallbacks) == 0.0
    assert residual(A, torch_device.numpy(found.factor)) < 5e-3


@pytest.mark.parametrize("precision", ["bfloat16", "bfloat16x3"])
def test_compiled_products_lose_no_part(precision, available):
    # XLA may remove conversions to bfloat16 and back, and then the second part would be zero
    A, place, unit = covariance(24, 0.1), available(JAX), reduced.PRECISIONS[precision]

    def gram(A, L):
        products = reduced._Products(A, precision)
        return products.gram(products.low(L))

    L = np.tril(A)
    arrays = place.array(A), place.array(L)
    eager, compiled = gram(*arrays), get_backend("jax").compile(gram)(*arrays)
    exact = np.tril(L.T @ A @ L)
    errors = [np.linalg.norm(place.numpy(x, "float32") - exact) / np.linalg.norm(exact) for x in (eager, compiled)]
    assert max(errors) < 2.0 * unit
    assert min(errors) > 0.02 * unit


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
    assert asked("tf32x3")[0] == 9
    assert asked("float32")[0] == 0
