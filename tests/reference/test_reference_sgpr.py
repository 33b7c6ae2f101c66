"""Sparse GP regression against stored values of GPflow and GPJax."""

import numpy as np
import pytest
from helpers import (
    NUMPY,
    Case,
    autograd,
    bound_stage,
    inducing_covariance,
    kernel_of,
    likelihood_of,
    mean_of,
    named,
    process,
    sgpr,
)

GPFLOW = ["gpflow_sgpr_rbf", "gpflow_sgpr_matern32_ard_p2", "gpflow_sgpr_rbf_constant_mean"]
GRADIENTS = {
    "grad_variance": "kernel.variance",
    "grad_lengthscales": "kernel.lengthscale",
    "grad_noise_variance": "likelihood.noise_variance",
    "grad_Z": "Z",
}
LATER = "the fully independent training conditional is another approximation"


def _model(case):
    data = case.array("Z"), case.array("X"), case.array("Y")
    return sgpr(kernel_of(case), likelihood_of(case), *data, case.meta["jitter"], mean_of(case))


@pytest.mark.parametrize("file", GPFLOW)
def test_collapsed(file, backend):
    case = Case(file, backend)
    model = _model(case)
    value, pullback = model.bound(model.X, model.y)
    case.value("elbo", value)
    leaves = named(pullback(1.0)[0])
    for name, leaf in GRADIENTS.items():
        case.gradient(name, leaves[leaf])
    case.value("upper_bound_by_definition", model.upper_bound(model.X, model.y))

    Xs = case.array("Xs")
    prediction = model.predict(Xs)
    case.value("f_mean", prediction.mean)
    case.value("f_var", prediction.variance)
    case.value("f_cov", model.predict_covariance(Xs))

    sparse = model.to_svgp()
    Lu = np.linalg.cholesky(backend.numpy(inducing_covariance(model)))
    scale = Lu @ backend.numpy(process(sparse).posterior.scale)[0]
    case.value("qu_mean", backend.array(Lu @ backend.numpy(process(sparse).posterior.mean)))
    case.value("qu_cov", backend.array(scale @ scale.T))

    left = {name: LATER for name in case.outputs if name.startswith("fitc")}
    if model.outputs > 1:
        left["upper_bound"] = "the peer counts the log-determinant of one output only"
    else:
        case.value("upper_bound", model.upper_bound(model.X, model.y))
    case.finished(**left)


@pytest.mark.parametrize("file", GPFLOW)
def test_collapsed_by_automatic_differentiation(file, torch_place):
    case = Case(file, torch_place)
    model = _model(Case(file, NUMPY))
    leaves = {k: torch_place.array(v) for k, v in named(model, "parameter").items()} | {"X": case.array("X")}
    found = autograd(bound_stage(model, model.y), leaves, (torch_place.array(1.0),))
    for name, leaf in GRADIENTS.items():
        case.gradient(name, found[leaf])


@pytest.mark.parametrize("file", ["gpjax_gaussian"])
def test_collapsed_of_gpjax(file, backend):
    # GPJax adds its jitter to every predictive variance.
    case = Case(file, backend)
    model = _model(case)
    prediction = model.predict(case.array("Xs"))
    case.value("sgpr_elbo", model.bound(model.X, model.y)[0])
    case.value("sgpr_f_mean", prediction.mean)
    case.value("sgpr_f_var", prediction.variance + case.meta["jitter"])
