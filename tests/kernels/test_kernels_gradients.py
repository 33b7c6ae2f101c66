"""Kernel stage: closed form, automatic differentiation and differences; symmetry; coincident points."""

import numpy as np
import pytest
from helpers import (
    JAX,
    NUMPY,
    TORCH,
    as_arrays,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    autograd,
    closed_form,
    cotangents_for,
)
from kernel_cases import CASES, inputs, kernel_case, sees_white_noise, with_arrays

from agp import get_backend, tree
from agp.kernels import RBF, Matern12

CALLS = ["cross", "symmetric", "diag"]


def kernel_stage(kernel, call):
    """Covariances as a function of the kernel's leaves, X and Z."""

    def stage(leaves):
        k = with_arrays(kernel, leaves)
        inputs = [name for name in ("X", "Z") if name in leaves]
        call_ = k.diag if call == "diag" else k
        K, pull = call_(*(leaves[name] for name in inputs))

        def pullback(bar):
            kernel_bar, *input_bars = pull(bar)
            return tree.leaves(kernel_bar) | dict(zip(inputs, input_bars, strict=True))

        return (K,), pullback

    return stage


def _leaves(kernel, call, columns, seed=0):
    X, Z = inputs(columns, seed=seed)
    return tree.leaves(kernel, "parameter") | ({"X": X, "Z": Z} if call == "cross" else {"X": X})


@pytest.mark.cover(2)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CASES)
def test_closed_form_is_autograd(name, call, columns, torch_place):
    kernel = kernel_case(name, columns)
    assert_closed_form_is_autograd(kernel_stage(kernel, call), _leaves(kernel, call, columns))


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CASES)
def test_closed_form_is_slope(name, call, columns):
    # A Matern kernel is only C^2 where rows of X coincide, on its diagonal: truncation is O(h^2) of a small term.
    kernel = kernel_case(name, columns)
    assert_closed_form_is_slope(kernel_stage(kernel, call), _leaves(kernel, call, columns))


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("call", ["cross", "symmetric"])
@pytest.mark.parametrize("name", CASES)
def test_coincident_points(name, call, columns, torch_place):
    kernel = kernel_case(name, columns)
    leaves = _leaves(kernel, call, columns)
    if call == "cross":
        leaves["X"][:5] = leaves["Z"]
    else:
        leaves["X"][5:] = leaves["X"][:4]
    stage = kernel_stage(kernel, call)
    here = {k: torch_place.array(x) for k, x in leaves.items()}
    assert all(
        np.isfinite(torch_place.numpy(g)).all() for g in autograd(stage, here, cotangents_for(stage, here)).values()
    )
    # in six columns the expansion leaves r2 ~ 1e-15 between equal rows, and r = 4e-8 with it
    assert_closed_form_is_autograd(stage, leaves, 1e-8 if columns == 3 else 1e-6)


@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", ["matern12", "matern12-ard", "periodic-ard", "linear-ard"])
def test_coincident_points_are_exact(name, columns, torch_place):
    # no expansion, or no square root: nothing is left between equal rows
    kernel = kernel_case(name, columns)
    leaves = _leaves(kernel, "cross", columns)
    leaves["X"][:5] = leaves["Z"]
    assert_closed_form_is_autograd(kernel_stage(kernel, "cross"), leaves, 1e-12)
    if name.startswith("matern12"):
        K = kernel(leaves["X"], leaves["Z"])[0]
        np.testing.assert_array_equal(np.diag(K[:5]), kernel.variance)


@pytest.mark.parametrize("call", ["cross", "symmetric"])
def test_close_points_of_matern12(call, torch_place):
    # pairs at a distance of 1e-9: a slope of 1e9, which matrix products would cancel to 1e-7
    kernel = kernel_case("matern12-ard", 6)
    leaves = _leaves(kernel, call, 6)
    near = leaves["Z"] if call == "cross" else leaves["X"][4:]
    leaves["X"][: near.shape[0]] = near + 1e-9
    stage = kernel_stage(kernel, call)
    here = {k: torch_place.array(x) for k, x in leaves.items()}
    bars = cotangents_for(stage, here)
    ours, theirs = closed_form(stage, here, bars), autograd(stage, here, bars)
    for leaf in leaves:
        assert_close(torch_place.numpy(ours[leaf]), torch_place.numpy(theirs[leaf]), 1e-12, leaf)


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_every_backend_gives_the_values_and_gradients_of_numpy(name, columns, backend):
    host = kernel_case(name, columns)
    kernel = backend.move(host)
    for call in CALLS:
        leaves = _leaves(host, call, columns)
        stage = kernel_stage(host, call)
        bars = cotangents_for(stage, leaves)
        here = {k: backend.array(x) for k, x in leaves.items()}
        (K,), pullback = kernel_stage(kernel, call)(here)
        found = pullback(*(backend.array(bar) for bar in bars))
        assert_close(backend.numpy(K), stage(leaves)[0][0], 1e-13, call)
        for leaf, expected in closed_form(stage, leaves, bars).items():
            if found.get(leaf) is None:
                np.testing.assert_array_equal(expected, 0.0)
            else:
                assert_close(backend.numpy(found[leaf]), expected, 1e-12, f"{call}: {leaf}")


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_one_argument_is_exactly_symmetric(name, columns, backend):
    kernel = backend.move(kernel_case(name, columns))
    X = backend.array(inputs(columns, rows=8, seed=1)[0])
    K, Kxx, diag = (backend.numpy(x) for x in (kernel(X)[0], kernel(X, X)[0], kernel.diag(X)[0]))
    np.testing.assert_allclose(np.diag(K), diag, rtol=1e-14)
    np.testing.assert_array_equal(K, K.T)
    if not sees_white_noise(name):
        np.testing.assert_allclose(K, Kxx, rtol=0, atol=1e-7)  # sqrt of the expansion's rounding on the diagonal


@pytest.mark.parametrize("name", [name for name in CASES if not sees_white_noise(name)])
def test_symmetric_pullback_is_that_of_both_arguments(name, backend):
    kernel = backend.move(kernel_case(name, 3))
    rng = np.random.default_rng(2)
    X, bar = backend.array(rng.normal(size=(6, 3))), backend.array(rng.normal(size=(6, 6)))
    one, X_bar = kernel(X)[1](bar)
    two, first, second = kernel(X, X)[1](bar)
    np.testing.assert_allclose(backend.numpy(X_bar), backend.numpy(first + second), rtol=0, atol=1e-12)
    for leaf, value in tree.leaves(one).items():
        np.testing.assert_allclose(backend.numpy(value), backend.numpy(tree.leaves(two)[leaf]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("columns", [2, 6])
def test_distances_in_float32_do_not_cancel(columns, backend):
    # a spread of many lengthscales, far from the origin, with close pairs: an expansion in float32 is off by 1e-2
    rng = np.random.default_rng(4)
    rows = 1e4 + 640.0 * rng.uniform(size=(10, columns))
    host = np.concatenate([rows, rows + rng.uniform(size=(10, columns))]).astype(np.float32)
    kernel = backend.move(as_arrays(RBF(1.0, 2.0)), "float32")
    K = backend.numpy(kernel(backend.array(host, "float32"))[0], "float32")
    exact = NUMPY.numpy(as_arrays(RBF(1.0, 2.0))(host.astype(np.float64))[0])
    np.testing.assert_allclose(K, exact, rtol=0, atol=1e-5)


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_float32_has_the_numbers_of_float64(name, columns):
    host = kernel_case(name, columns)
    single = NUMPY.move(host, "float32")
    X, Z = (x.astype(np.float32) for x in inputs(columns))
    bar = (
        np.random.default_rng(3).uniform(size=(9, 5)).astype(np.float32)
    )  # of one sign: a sum that cancels would not do
    K, pullback = single(X, Z)
    expected, expected_pullback = NUMPY.move(single, "float64")(X.astype(np.float64), Z.astype(np.float64))
    assert_close(NUMPY.numpy(K, "float32"), expected, 2e-6)
    (kernel_bar, *input_bars), (kernel_expected, *inputs_expected) = pullback(bar), expected_pullback(bar)
    for leaf, value in tree.leaves(kernel_bar).items():
        assert_close(NUMPY.numpy(value, "float32"), tree.leaves(kernel_expected)[leaf], 1e-5, leaf)
    for x, desired in zip(input_bars, inputs_expected, strict=True):
        assert_close(NUMPY.numpy(x, "float32"), desired, 1e-5)


def test_periods_in_float32_far_from_the_origin(backend):
    # time stamps, of which the angle 2 pi x / period uncentred has a rounding error of a tenth of a turn
    host = (1e6 + np.linspace(0.0, 50.0, 12)[:, None]).astype(np.float32)
    kernel = kernel_case("periodic", 1)
    K = backend.numpy(backend.move(kernel, "float32")(backend.array(host, "float32"))[0], "float32")
    np.testing.assert_allclose(K, kernel(host.astype(np.float64))[0], rtol=0, atol=2e-4)


@pytest.mark.parametrize("place", [TORCH, JAX], ids=["torch", "jax"])
@pytest.mark.parametrize("columns", [3, 6])
def test_autodiff_of_everything_at_coincident_points_is_finite(columns, place):
    pytest.importorskip(place.name)
    total = kernel_case("constant", columns)
    for name in CASES:
        total = total + kernel_case(name, columns)
    kernel = place.move(total)
    B = get_backend(place.name)
    X = place.array(np.repeat(inputs(columns)[0][:3], 2, axis=0))

    def f(leaves):
        K = tree.with_leaves(kernel, {k: v for k, v in leaves.items() if k != "X"})(leaves["X"])[0]
        return B.xp.sum(K * K)

    value, gradient = B.value_and_grad(f, tree.leaves(kernel) | {"X": X})
    K, pullback = kernel(X)
    kernel_bar, X_bar = pullback(2.0 * K)
    assert np.isfinite(float(value))
    for leaf, expected in (tree.leaves(kernel_bar) | {"X": X_bar}).items():
        # equal rows of X are repelled by nothing: what the expansion leaves between them is of order 1e-8
        assert_close(place.numpy(gradient[leaf]), place.numpy(expected), 1e-6, leaf)


def test_a_traced_kernel_gives_the_same_numbers():
    pytest.importorskip("jax")
    kernel = JAX.move(
        kernel_case("mixed", 6)
        + kernel_case("on-linear", 6)
        + kernel_case("scaled", 6)
        + kernel_case("matern12-ard", 6)
        + kernel_case("centred-product", 6)
    )
    X, Z = (JAX.array(x) for x in inputs(6))
    stage = kernel_stage(kernel, "cross")
    leaves = tree.leaves(kernel, "parameter") | {"X": X, "Z": Z}

    def value_and_bars(leaves):
        (K,), pullback = stage(leaves)
        return K, pullback(K)

    B = get_backend("jax")
    (K, bars), (K_traced, bars_traced) = value_and_bars(leaves), B.compile(value_and_bars)(leaves)
    assert_close(JAX.numpy(K_traced), JAX.numpy(K), 1e-14)
    for leaf, expected in bars.items():
        assert_close(JAX.numpy(bars_traced[leaf]), JAX.numpy(expected), 1e-12, leaf)


def test_matern12_forms_differences_for_any_width():
    X = np.random.default_rng(0).normal(size=(40, 9))
    kernel = as_arrays(Matern12(1.0, 1.0))
    np.testing.assert_array_equal(np.diag(kernel(X, X)[0]), 1.0)
