"""W- and M-SVGP against stored values of GPflow, GPyTorch and GPJax: bounds, KL, marginals, gradients, predictions."""

import numpy as np
import pytest
import scipy.special
from helpers import (
    MEAN_GRADIENTS,
    Case,
    assert_close,
    autograd,
    bound_stage,
    inducing_covariance,
    kernel_of,
    likelihood_of,
    link_by_nodes,
    marginals,
    mean_of,
    named,
    replaced,
    svgp,
)

from agp.bounds import Batch, elbo
from agp.kernels import White
from agp.posteriors import DiagonalMarginal, DiagonalWhitened, Marginal, Whitened

GPFLOW = [
    "gpflow_svgp_white_gaussian",
    "gpflow_svgp_white_bernoulli",
    "gpflow_svgp_white_bernoulli_pure",
    "gpflow_svgp_multi_shared_white",
    "gpflow_svgp_white_bernoulli_logit",
    "gpflow_svgp_white_poisson",
    "gpflow_svgp_white_studentt",
    "gpflow_svgp_white_robustmax",
]
GPYTORCH = ["gpytorch_svgp_white_gaussian", "gpytorch_svgp_white_bernoulli", "gpytorch_svgp_white_studentt"]
UNWHITENED = [
    "gpflow_svgp_unwhite_gaussian",
    "gpflow_svgp_unwhite_bernoulli",
    "gpflow_svgp_unwhite_bernoulli_pure",
    "gpflow_svgp_multi_shared_unwhite",
    "gpflow_svgp_unwhite_bernoulli_logit",
    "gpflow_svgp_unwhite_poisson",
    "gpflow_svgp_unwhite_studentt",
    "gpflow_svgp_unwhite_robustmax",
    "gpytorch_svgp_unwhite_gaussian",
    "gpytorch_svgp_unwhite_bernoulli",
]
GRADIENTS = {
    "grad_variance": "kernel.variance",
    "grad_lengthscales": "kernel.lengthscale",
    "grad_Z": "Z",
    "grad_q_mu": "posterior.mean",
    "grad_q_sqrt": "posterior.scale",
    "grad_noise_variance": "likelihood.noise_variance",
    "grad_scale": "likelihood.scale",
} | MEAN_GRADIENTS


def _model(case, *, points=20, whiten=True):
    kernel, jitter = kernel_of(case), case.meta["jitter"]
    if case.meta["peer"] != "GPflow" and case.meta.get("whiten", True):
        # GPyTorch's whitened strategy and GPJax add the jitter to predictive variances too: a part of their kernel
        kernel, jitter = kernel + White(case.place.array(jitter)), 0.0
    posterior = (Whitened if whiten else Marginal)(case.array("q_mu"), case.array("q_sqrt"))
    return svgp(kernel, likelihood_of(case, points), posterior, case.array("Z"), jitter)


def _diagonal(case, q_sqrt):
    """A factor whose diagonals are the standard deviations [M, P] of a diagonal q(u)."""
    return case.place.array(np.stack([np.diag(column) for column in q_sqrt.T]))


def _scale(case):
    return float(case.host("num_data")) / case.host("X").shape[0]


def _compare_values(case, model):
    X, Y, Xs = case.array("X"), case.array("Y"), case.array("Xs")
    (mu, var, kl), _ = marginals(model, X)
    ell = model.likelihood.expected_log_density(mu, var, Y)[0]
    prediction = model.predict(Xs)
    found = {
        "elbo": model.bound(X, Y, scale=_scale(case))[0],
        "kl": kl,
        "var_exp": ell,
        "sum_var_exp": case.place.array(case.place.numpy(ell).sum()),
        "f_mean_X": mu,
        "f_var_X": var,
        "f_mean": prediction.mean,
        "f_var": prediction.variance,
        "f_cov": model.predict_covariance(Xs),
    }
    for name, actual in found.items():
        if case.has(name):
            case.value(name, actual)


def _compare_observed(case, model):
    observed = model.predict(case.array("Xs"), observed=True)
    if case.has("y_mean") and case.meta["likelihood"] in ("bernoulli_pure", "bernoulli_logit"):
        # the peer integrates the pure link by 20 nodes, which are not converged; ours is closed, or by panels
        mean, var = case.out("f_mean"), case.out("f_var")
        probit = case.meta["likelihood"] == "bernoulli_pure"
        link = scipy.special.ndtr if probit else scipy.special.expit
        theirs = link_by_nodes(mean, var, link=link)
        exact = link(mean / np.sqrt(1.0 + var)) if probit else link_by_nodes(mean, var, 100, link)
        assert_close(theirs, case.out("y_mean"), case.value_tolerance, "y_mean of the peer")
        assert_close(theirs * (1.0 - theirs), case.out("y_var"), case.value_tolerance, "y_var of the peer")
        assert_close(case.place.numpy(observed.mean), exact, case.value_tolerance, "y_mean")
        assert_close(case.place.numpy(observed.variance), exact * (1.0 - exact), case.value_tolerance, "y_var")
    elif case.has("y_mean"):
        case.value("y_mean", observed.mean)
        case.value("y_var", observed.variance)
    if case.has("class_prob"):
        case.value("class_prob", observed.mean)


def _compare_converged(case):
    if case.has("elbo_gh100"):
        model = _model(case, points=100, whiten=case.meta["whiten"])
        X, Y = case.array("X"), case.array("Y")
        (mu, var, _), _ = marginals(model, X)
        case.value("elbo_gh100", model.bound(X, Y, scale=_scale(case))[0])
        case.value("var_exp_gh100", model.likelihood.expected_log_density(mu, var, Y)[0])


def _compare_gradients(case, gradients):
    # where jitter is a part of the kernel, the file's kernel is the first one of a sum
    gradients = {name.replace("kernel.parts.0.", "kernel."): x for name, x in gradients.items()}
    gradients = {name.replace("posterior.deviation", "posterior.scale"): x for name, x in gradients.items()}
    for name, leaf in GRADIENTS.items():
        if case.has(name):
            case.gradient(name, gradients[leaf])


@pytest.mark.parametrize("file", GPFLOW + GPYTORCH)
def test_whitened(file, backend):
    case = Case(file, backend)
    model = _model(case)
    _compare_values(case, model)
    _compare_observed(case, model)
    _compare_converged(case)
    bar, _ = model.bound(case.array("X"), case.array("Y"), scale=_scale(case))[1](1.0)
    _compare_gradients(case, named(bar))
    redundant = {"f_output_cov": "f_var on a diagonal", "f_full_cov": "f_cov on a diagonal"}
    case.finished(**(redundant if "multi" in file else {}))


@pytest.mark.parametrize("file", [*GPFLOW, "gpytorch_svgp_white_gaussian"])
def test_whitened_by_automatic_differentiation(file, torch_place):
    case = Case(file, torch_place)
    model = _model(case)
    leaves = named(model, "parameter") | {"X": case.array("X")}
    gradients = autograd(bound_stage(model, case.host("Y"), _scale(case)), leaves, (torch_place.array(1.0),))
    gradients["posterior.scale"] = gradients["posterior.scale"].tril()
    _compare_gradients(case, gradients)


@pytest.mark.parametrize("file", UNWHITENED)
def test_marginal(file, backend):
    case = Case(file, backend)
    model = _model(case, whiten=False)
    _compare_values(case, model)
    _compare_observed(case, model)
    _compare_converged(case)
    bar, _ = model.bound(case.array("X"), case.array("Y"), scale=_scale(case))[1](1.0)
    _compare_gradients(case, named(bar))
    redundant = {"f_output_cov": "f_var on a diagonal", "f_full_cov": "f_cov on a diagonal"}
    if case.has("kl_cold"):  # before any forward call the peer's jitter is another one
        case.value("kl_cold", marginals(replaced(model, jitter=1e-3), case.array("X"))[0][2])
    case.finished(**(redundant if "multi" in file else {}))


QDIAG = ["gpflow_svgp_white_qdiag_linear_mean", "gpflow_svgp_unwhite_qdiag_linear_mean"]


def _diagonal_model(case):
    kind = DiagonalWhitened if "whiten=True" in case.meta["call"] else DiagonalMarginal
    posterior = kind(case.array("q_mu"), case.array("q_sqrt"))
    return svgp(kernel_of(case), likelihood_of(case), posterior, case.array("Z"), case.meta["jitter"], mean_of(case))


@pytest.mark.parametrize("file", QDIAG)
def test_diagonal_posteriors(file, backend):
    case = Case(file, backend)
    model = _diagonal_model(case)
    _compare_values(case, model)
    bar, _ = model.bound(case.array("X"), case.array("Y"), scale=_scale(case))[1](1.0)
    _compare_gradients(case, named(bar))
    case.finished()


@pytest.mark.parametrize("file", QDIAG)
def test_diagonal_posteriors_by_automatic_differentiation(file, torch_place):
    case = Case(file, torch_place)
    model = _diagonal_model(case)
    leaves = named(model, "parameter") | {"X": case.array("X")}
    stage = bound_stage(model, case.host("Y"), _scale(case))
    _compare_gradients(case, autograd(stage, leaves, (torch_place.array(1.0),)))


@pytest.mark.parametrize("file", QDIAG)
def test_full_posteriors_that_happen_to_be_diagonal(file, backend):
    case = Case(file, backend)
    model = _diagonal_model(case)
    kind = Whitened if "whiten=True" in case.meta["call"] else Marginal
    model = replaced(model, posterior=kind(case.array("q_mu"), _diagonal(case, case.host("q_sqrt"))))
    _compare_values(case, model)
    bar, _ = model.bound(case.array("X"), case.array("Y"), scale=_scale(case))[1](1.0)
    gradients = named(bar)
    root_bar = backend.numpy(gradients.pop("posterior.scale"))
    gradients["posterior.deviation"] = backend.array(np.diagonal(root_bar, axis1=-2, axis2=-1).T)
    _compare_gradients(case, gradients)
    case.finished()


@pytest.mark.parametrize("file", UNWHITENED)
def test_whitening_changes_no_value(file, backend):
    # q(u) in whitened coordinates is the same q(u)
    case = Case(file, backend)
    model = _model(case, whiten=False)
    Kuu = backend.numpy(inducing_covariance(model))
    Lu = np.linalg.cholesky(Kuu)
    mean, scale = np.linalg.solve(Lu, case.host("q_mu")), np.tril(np.linalg.solve(Lu, case.host("q_sqrt")))
    white = replaced(model, posterior=Whitened(backend.array(mean), backend.array(scale)))
    _compare_values(case, white)


@pytest.mark.parametrize("file", ["gpjax_gaussian"])
def test_svgp_of_gpjax(file, backend):
    case = Case(file, backend)
    model = _model(case)
    (_, _, kl), _ = marginals(model, case.array("X"))
    prediction = model.predict(case.array("Xs"))
    case.value("svgp_white_elbo", model.bound(case.array("X"), case.array("Y"), scale=_scale(case))[0])
    case.value("svgp_white_kl", kl)
    case.value("svgp_white_f_mean", prediction.mean)
    case.value("svgp_white_f_var", prediction.variance)
    unwhite = _model(case, whiten=False)
    prediction = unwhite.predict(case.array("Xs"))
    case.value("svgp_unwhite_elbo", unwhite.bound(case.array("X"), case.array("Y"), scale=_scale(case))[0])
    case.value("svgp_unwhite_kl", marginals(unwhite, case.array("X"))[0][2])
    case.value("svgp_unwhite_f_mean", prediction.mean)
    case.value("svgp_unwhite_f_var", prediction.variance)


@pytest.mark.parametrize("file", ["gpflow_svgp_white_gaussian"])
def test_blocked_bound_of_all_data(file, backend):
    case = Case(file, backend)
    model = _model(case)
    X, Y = case.array("X"), case.array("Y")
    found = backend.numpy(elbo(model, Batch(X, Y), block_rows=7)[0])
    assert abs(found - (case.out("sum_var_exp") - case.out("kl"))) <= 1e-9 * abs(case.out("elbo"))
