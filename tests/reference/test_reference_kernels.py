"""Kernels against stored values of GPflow, GPyTorch and scikit-learn."""

import numpy as np
import pytest
from helpers import Case

from agp.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    White,
)

FILES = ["gpflow_kernels", "gpytorch_kernels", "sklearn_kernels"]


def _cubed(kernel):
    return Product((kernel, kernel, kernel))


BUILDERS = {
    "rbf_ard": lambda a: RBF(a("variance"), a("lengthscales")),
    "rbf_iso": lambda a: RBF(a("variance"), a("lengthscale_iso")),
    "matern12_ard": lambda a: Matern12(a("variance"), a("lengthscales")),
    "matern32_ard": lambda a: Matern32(a("variance"), a("lengthscales")),
    "matern52_ard": lambda a: Matern52(a("variance"), a("lengthscales")),
    # GPflow's exponential has exp(-r / 2): the lengthscale is half of ours
    "exponential_ard": lambda a: Matern12(a("variance"), 2.0 * a("lengthscales")),
    "rq_ard": lambda a: RationalQuadratic(a("variance"), a("lengthscales"), a("alpha")),
    "rq_iso": lambda a: RationalQuadratic(a("variance"), a("lengthscale_iso"), a("alpha")),
    "periodic_rbf_ard": lambda a: Periodic(a("variance"), a("lengthscales"), a("period")),
    # GPyTorch's periodic kernel has exp(-2 sin^2 / l), ours exp(-sin^2 / (2 l^2))
    "periodic_ard": lambda a: Periodic(a("variance"), 0.5 * a("lengthscales") ** 0.5, a("period")),
    "linear_ard": lambda a: Linear(a("linear_variance")),
    "linear_iso": lambda a: Linear(a("variance")),
    "dotproduct": lambda a: Linear(a("variance") / a("variance")) + Constant(a("offset")),
    "polynomial3": lambda a: _cubed(Linear(a("linear_variance")) + Constant(a("offset"))),
    "constant": lambda a: Constant(a("variance")),
    "white": lambda a: White(a("variance")),
    "sum_rbf_linear": lambda a: RBF(a("variance"), a("lengthscales")) + Linear(a("linear_variance")),
    "product_matern52_periodic": lambda a: (
        Matern52(a("variance2"), a("lengthscale_iso")) * Periodic(a("variance"), a("lengthscales"), a("period"))
    ),
    "product_matern52_iso_rbf_ard": lambda a: (
        Matern52(a("variance2"), a("lengthscale_iso")) * RBF(a("variance"), a("lengthscales"))
    ),
    "sum_of_products": lambda a: (
        Matern32(a("variance"), a("lengthscales")) * Linear(a("linear_variance"))
        + RationalQuadratic(a("variance2"), a("lengthscale_iso"), a("alpha"))
    ),
    "rbf_active_dims_02": lambda a: RBF(a("variance"), a("lengthscales")[::2]).on((0, 2)),
}


ABSENT = {
    "periodic_matern32_ard": "ours is the RBF kernel of the features; a Matern one of |sin| is another kernel",
    "cosine_ard": "no such kernel",
    "arccosine0": "no such kernel",
    "expsinesquared_iso": "one period for the Euclidean distance: a sum over columns only in one column, see below",
}
"""The entries that no test of covariances can meet, and why."""

GRADIENTS = {
    "exponential_ard": {"variance": lambda b: b.variance, "lengthscales": lambda b: 2.0 * b.lengthscale},
    "rq_ard": {"alpha": lambda b: b.alpha},
    "periodic_rbf_ard": {
        "base_kernel_variance": lambda b: b.variance,
        "base_kernel_lengthscales": lambda b: b.lengthscale,
        "period": lambda b: b.period,
    },
    "polynomial3": {
        "variance": lambda b: b.parts[0].parts[0].variance * 3.0,
        "offset": lambda b: b.parts[0].parts[1].variance * 3.0,
    },
    "sum_rbf_linear": {
        "kernels0_variance": lambda b: b.parts[0].variance,
        "kernels0_lengthscales": lambda b: b.parts[0].lengthscale,
        "kernels1_variance": lambda b: b.parts[1].variance,
    },
    "product_matern52_periodic": {
        "kernels0_variance": lambda b: b.parts[0].variance,
        "kernels0_lengthscales": lambda b: b.parts[0].lengthscale,
        "kernels1_base_kernel_variance": lambda b: b.parts[1].variance,
        "kernels1_base_kernel_lengthscales": lambda b: b.parts[1].lengthscale,
        "kernels1_period": lambda b: b.parts[1].period,
    },
    "sum_of_products": {
        "kernels0_kernels0_variance": lambda b: b.parts[0].parts[0].variance,
        "kernels0_kernels0_lengthscales": lambda b: b.parts[0].parts[0].lengthscale,
        "kernels0_kernels1_variance": lambda b: b.parts[0].parts[1].variance,
        "kernels1_variance": lambda b: b.parts[1].variance,
        "kernels1_lengthscales": lambda b: b.parts[1].lengthscale,
        "kernels1_alpha": lambda b: b.parts[1].alpha,
    },
    "rbf_active_dims_02": {
        "variance": lambda b: b.kernel.variance,
        "lengthscales": lambda b: b.kernel.lengthscale,
    },
}
"""Where the cotangents of the peer's parameters stand in ours; those of the same name stand where one expects."""

USUAL = {"variance": lambda b: b.variance, "lengthscales": lambda b: b.lengthscale}


def _names(case):
    """The kernels of a file, by the covariances that it stores."""
    return [name.removeprefix("K_") for name in sorted(case.outputs) if name.startswith("K_")]


@pytest.mark.parametrize("file", FILES)
def test_covariances(file, backend):
    case = Case(file, backend)
    X, X2 = case.array("X"), case.array("X2")
    for name in _names(case):
        if name in ABSENT:
            continue
        kernel = BUILDERS[name](case.array)
        case.value(f"K_{name}", kernel(X, X2)[0])
        case.value(f"Kxx_{name}", kernel(X)[0])
        case.value(f"Kdiag_{name}", kernel.diag(X)[0])
    left = {n: why for n in case.outputs for entry, why in ABSENT.items() if n.endswith(f"_{entry}")}
    gradients = {n: "test_gradients" for n in case.outputs if n.startswith("grad_")}
    case.finished(**(left | gradients))


@pytest.mark.parametrize("file", ["gpflow_kernels"])
def test_gradients(file, backend):
    case = Case(file, backend)
    X, X2, W = case.array("X"), case.array("X2"), case.array("W")
    for name in _names(case):
        if name in ABSENT:
            continue
        kernel_bar, X_bar, _ = BUILDERS[name](case.array)(X, X2)[1](W)
        if case.has(f"grad_X__{name}"):
            case.gradient(f"grad_X__{name}", X_bar)
        for parameter, of in (USUAL | GRADIENTS.get(name, {})).items():
            if case.has(f"grad_{parameter}__{name}"):
                case.gradient(f"grad_{parameter}__{name}", of(kernel_bar))
    values = {n: "test_covariances" for n in case.outputs if not n.startswith("grad_")}
    left = {n: ABSENT[n.split("__")[1]] for n in case.outputs - set(values) if n.split("__")[1] in ABSENT}
    case.finished(**(values | left))


@pytest.mark.parametrize("file", ["sklearn_kernels"])
def test_the_periodic_kernel_of_scikit_learn(file, backend):
    # v exp(-2 sin^2(pi |x - z| / p) / l^2) with the Euclidean distance: ours in one column, with half the lengthscale
    case = Case(file, backend)
    kernel = Periodic(case.array("variance"), 0.5 * case.array("lengthscale_iso"), case.array("period")[0])
    origin = backend.array([[0.0]])
    for name, other in (("K", "X2"), ("Kxx", "X")):
        distance = np.sqrt(np.sum((case.host("X")[:, None, :] - case.host(other)) ** 2, axis=-1))
        K = backend.numpy(kernel(origin, backend.array(np.reshape(distance, (-1, 1))))[0])
        np.testing.assert_allclose(np.reshape(K, distance.shape), case.out(f"{name}_expsinesquared_iso"), rtol=1e-9)


@pytest.mark.parametrize("file", FILES)
def test_what_is_left_out_is_there(file, backend):
    case = Case(file, backend)
    assert set(_names(case)) <= set(BUILDERS) | set(ABSENT)
    assert not set(BUILDERS) & set(ABSENT)
