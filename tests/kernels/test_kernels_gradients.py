"""Kernel stage: closed form, automatic differentiation and differences; symmetry; coincident points."""

import numpy as np
import pytest
from helpers import (
    KERNELS,
    NUMPY,
    as_arrays,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    autograd,
    cotangents_for,
)

from agp import tree
from agp.kernels import RBF, Matern32, Sum

CALLS = ["cross", "symmetric", "diag"]


def _wide(name):
    """More columns than differences serve: the expansion is at work."""
    if not name.endswith("ard"):
        return as_arrays(KERNELS[name]())
    kernel = KERNELS[name]()
    wider = {k: np.resize(v, 6) for k, v in tree.leaves(kernel).items() if k.endswith("lengthscale")}
    return as_arrays(tree.with_leaves(kernel, wider))


def kernel_stage(kernel, call):
    """Covariances as a function of the kernel's leaves, X and Z."""

    def stage(leaves):
        k = tree.with_leaves(kernel, {name: leaves[name] for name in tree.leaves(kernel)})
        inputs = [name for name in ("X", "Z") if name in leaves]
        call_ = k.diag if call == "diag" else k
        K, pull = call_(*(leaves[name] for name in inputs))

        def pullback(bar):
            kernel_bar, *input_bars = pull(bar)
            return tree.leaves(kernel_bar) | dict(zip(inputs, input_bars, strict=True))

        return (K,), pullback

    return stage


def _inputs(kernel, call, columns, seed=0):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(9, columns)), rng.normal(size=(5, columns))
    return tree.leaves(kernel) | ({"X": X, "Z": Z} if call == "cross" else {"X": X})


@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", KERNELS)
def test_closed_form_is_autograd(name, call, columns, torch_place):
    kernel = as_arrays(KERNELS[name]()) if columns == 3 else _wide(name)
    assert_closed_form_is_autograd(kernel_stage(kernel, call), _inputs(kernel, call, columns))


@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["rbf-ard", "matern32", "sum-ard"])
def test_closed_form_is_slope(name, call, columns):
    # A Matern kernel is only C^2 where rows of X coincide, on its diagonal: truncation is O(h^2) of a small term.
    kernel = as_arrays(KERNELS[name]()) if columns == 3 else _wide(name)
    stage, leaves = kernel_stage(kernel, call), _inputs(kernel, call, columns)
    assert_closed_form_is_slope(stage, leaves)


@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("call", ["cross", "symmetric"])
@pytest.mark.parametrize("name", KERNELS)
def test_coincident_points(name, call, columns, torch_place):
    kernel = as_arrays(KERNELS[name]()) if columns == 3 else _wide(name)
    leaves = _inputs(kernel, call, columns)
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
@pytest.mark.parametrize("name", KERNELS)
def test_one_argument_is_exactly_symmetric(name, columns, backend):
    kernel = backend.move(as_arrays(KERNELS[name]()) if columns == 3 else _wide(name))
    host = np.random.default_rng(1).normal(size=(8, columns))
    X = backend.array(host)
    K, Kxx, diag = (backend.numpy(x) for x in (kernel(X)[0], kernel(X, X)[0], kernel.diag(X)[0]))
    np.testing.assert_array_equal(np.diag(K), diag)
    np.testing.assert_allclose(K, K.T, rtol=0, atol=1e-15)
    np.testing.assert_allclose(K, Kxx, rtol=0, atol=1e-7)  # sqrt of the expansion's rounding on the diagonal


@pytest.mark.parametrize("name", KERNELS)
def test_symmetric_pullback_is_that_of_both_arguments(name, backend):
    kernel = backend.move(as_arrays(KERNELS[name]()))
    rng = np.random.default_rng(2)
    X, bar = backend.array(rng.normal(size=(6, 3))), backend.array(rng.normal(size=(6, 6)))
    one, X_bar = kernel(X)[1](bar)
    two, first, second = kernel(X, X)[1](bar)
    np.testing.assert_allclose(backend.numpy(X_bar), backend.numpy(first + second), rtol=0, atol=1e-13)
    for leaf, value in tree.leaves(one).items():
        np.testing.assert_allclose(backend.numpy(value), backend.numpy(tree.leaves(two)[leaf]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kernel", [RBF(2.0, 0.5), Matern32(2.0, 0.5)], ids=["rbf", "matern32"])
def test_values_by_hand(kernel, backend):
    kernel = backend.move(as_arrays(kernel))
    K = backend.numpy(kernel(backend.array([[0.0, 0.0]]), backend.array([[0.3, 0.4]]))[0])
    r = 1.0  # |(0.3, 0.4)| / 0.5
    expected = 2.0 * np.exp(-0.5) if isinstance(kernel, RBF) else 2.0 * (1.0 + 3**0.5 * r) * np.exp(-(3**0.5) * r)
    np.testing.assert_allclose(K, [[expected]], rtol=1e-14)


def test_sums_are_flat():
    kernel = RBF(1.0, 1.0) + (Matern32(1.0, 2.0) + RBF(0.5, 3.0))
    assert isinstance(kernel, Sum)
    assert [type(part) for part in kernel.parts] == [RBF, Matern32, RBF]
    assert "parts.2.lengthscale" in tree.leaves(kernel)


def test_adding_a_number_is_an_error():
    with pytest.raises(TypeError):
        _ = RBF(1.0, 1.0) + 1.0


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
