"""Exact Gaussian processes against stored values of GPflow, GPyTorch, scikit-learn and GPJax."""

import pytest
from helpers import Case, gpr, kernel_of, likelihood_of, mean_of

from agp import tree

FILES = [
    "gpflow_gpr_rbf",
    "gpflow_gpr_matern52_ard",
    "gpflow_gpr_matern12_multi_output",
    "gpflow_gpr_sum_linear_constant_mean",
    "gpytorch_exact_rbf_ard",
    "gpytorch_exact_matern52_constant_mean",
    "sklearn_gpr_rbf_white",
    "sklearn_gpr_matern32_white",
]


def _model(case):
    return gpr(kernel_of(case), likelihood_of(case), case.array("X"), case.array("Y"), mean_of(case))


def _present(case, name, actual):
    if case.has(name):
        case.value(name, actual)


@pytest.mark.parametrize("file", FILES)
def test_exact_gp(file, backend):
    case = Case(file, backend)
    model = _model(case)
    lml, pullback = model.bound(model.X, model.y)
    bar = tree.leaves(pullback(1.0)[0])
    case.value("lml", lml)
    stationary = "kernel.parts.0" if case.given("linear_variance") else "kernel"
    case.gradient("grad_variance", bar[f"{stationary}.variance"])
    case.gradient("grad_lengthscales", bar[f"{stationary}.lengthscale"])
    case.gradient("grad_noise_variance", bar["likelihood.noise_variance"])
    if case.has("grad_linear_variance"):
        case.gradient("grad_linear_variance", bar["kernel.parts.1.variance"])
    if case.has("grad_mean_constant"):
        case.gradient("grad_mean_constant", bar["mean_function.value"])

    Xs = case.array("Xs")
    latent, observed = model.predict(Xs), model.predict(Xs, observed=True)
    covariance = model.predict_covariance(Xs)
    _present(case, "f_mean", latent.mean)
    _present(case, "f_var", latent.variance)
    _present(case, "f_cov", covariance)
    _present(case, "y_mean", observed.mean)
    _present(case, "y_var", observed.variance)
    if case.has("y_cov"):
        eye = backend.array([[float(i == j) for j in range(Xs.shape[0])] for i in range(Xs.shape[0])])
        case.value("y_cov", covariance + model.likelihood.noise_variance * eye)
    if case.has("log_density"):
        case.value("log_density", model.log_density(Xs, case.array("Ys")))
    case.finished()


@pytest.mark.parametrize("file", ["gpjax_gaussian"])
def test_exact_gp_of_gpjax(file, backend):
    # GPJax adds its jitter to the noise and to every predictive variance.
    case = Case(file, backend)
    model = _model(case)
    jitter = case.meta["jitter"]
    noisy = gpr(model.kernel, type(model.likelihood)(model.likelihood.noise_variance + jitter), model.X, model.y)
    prediction = noisy.predict(case.array("Xs"))
    case.value("lml", noisy.bound(model.X, model.y)[0])
    case.value("gpr_f_mean", prediction.mean)
    case.value("gpr_f_var", prediction.variance + jitter)
