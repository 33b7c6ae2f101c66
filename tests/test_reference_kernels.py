"""Kernels against stored values of GPflow, GPyTorch and scikit-learn."""

import numpy as np
import pytest
from helpers import Case

from agp.kernels import RBF, Matern32

FILES = ["gpflow_kernels", "gpytorch_kernels", "sklearn_kernels"]
KERNELS = {
    "rbf_ard": (RBF, "lengthscales"),
    "rbf_iso": (RBF, "lengthscale_iso"),
    "matern32_ard": (Matern32, "lengthscales"),
}
MISSING = "matern12 matern52 rq exponential periodic expsine linear dotproduct polynomial constant cosine white sum_ "
MISSING += "product active_dims arccosine"


def _kernel(case, name):
    cls, lengthscale = KERNELS[name]
    return cls(case.array("variance"), case.array(lengthscale))


@pytest.mark.parametrize("file", FILES)
def test_covariances(file, backend):
    case = Case(file, backend)
    X, X2 = case.array("X"), case.array("X2")
    names = [name for name in KERNELS if case.has(f"K_{name}")]
    assert {"rbf_ard", "matern32_ard"} <= set(names)
    for name in names:
        kernel = _kernel(case, name)
        case.value(f"K_{name}", kernel(X, X2)[0])
        case.value(f"Kxx_{name}", kernel(X)[0])
        case.value(f"Kdiag_{name}", kernel.diag(X)[0])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("file", ["gpflow_kernels"])
def test_gradients(file, name, backend):
    case = Case(file, backend)
    pullback = _kernel(case, name)(case.array("X"), case.array("X2"))[1]
    kernel_bar, X_bar, _ = pullback(case.array("W"))
    case.gradient(f"grad_variance__{name}", kernel_bar.variance)
    case.gradient(f"grad_lengthscales__{name}", kernel_bar.lengthscale)
    case.gradient(f"grad_X__{name}", X_bar)


@pytest.mark.parametrize("file", ["gpflow_kernels"])
def test_sum_is_the_sum_of_stored_parts(file, backend):
    # No stored sum consists of kernels that exist here, so the parts are added.
    case = Case(file, backend)
    kernel = _kernel(case, "rbf_ard") + _kernel(case, "matern32_ard")
    K, pullback = kernel(case.array("X"), case.array("X2"))
    kernel_bar, X_bar, _ = pullback(case.array("W"))
    expected = case.out("K_rbf_ard") + case.out("K_matern32_ard")
    X_expected = case.out("grad_X__rbf_ard") + case.out("grad_X__matern32_ard")
    np.testing.assert_allclose(backend.numpy(K), expected, rtol=1e-9)
    np.testing.assert_allclose(backend.numpy(X_bar), X_expected, rtol=0, atol=1e-7 * np.abs(X_expected).max())
    case.gradient("grad_lengthscales__matern32_ard", kernel_bar.parts[1].lengthscale)


@pytest.mark.parametrize("file", FILES)
def test_what_is_not_compared_belongs_to_kernels_that_do_not_exist(file, backend):
    case = Case(file, backend)
    compared = {
        n for n in case.outputs if any(n.endswith(f"_{k}") for k in KERNELS) and "sum_" not in n and "product" not in n
    }
    assert compared
    assert all(any(word in n for word in MISSING.split()) for n in case.outputs - compared)
