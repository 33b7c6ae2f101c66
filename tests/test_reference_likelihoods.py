"""Likelihoods and the KL divergence against stored values of GPflow."""

import numpy as np
import pytest
from helpers import Case, likelihood_of

from agp.likelihoods import Softmax
from agp.posteriors import Whitened

FILES = [
    "gpflow_lik_gaussian",
    "gpflow_lik_bernoulli",
    "gpflow_lik_bernoulli_pure",
    "gpflow_lik_bernoulli_logit",
    "gpflow_lik_poisson",
    "gpflow_lik_studentt",
    "gpflow_lik_robustmax",
]
SUFFIXES = pytest.mark.parametrize("suffix", ["", "_gh100"], ids=["20 nodes", "100 nodes"])


@SUFFIXES
@pytest.mark.parametrize("file", FILES)
def test_expected_log_density(file, suffix, backend):
    case = Case(file, backend)
    likelihood = likelihood_of(case, points=100 if suffix else 20)
    mu, var, y = case.array("Fmu"), case.array("Fvar"), case.array("Y")
    value, pullback = likelihood.expected_log_density(mu, var, y)
    _, mu_bar, var_bar = pullback(backend.array(np.ones(mu.shape[0])))
    case.value(f"var_exp{suffix}", value)
    case.gradient(f"dve_dmu{suffix}", mu_bar)
    case.gradient(f"dve_dvar{suffix}", var_bar)


@SUFFIXES
@pytest.mark.parametrize("file", FILES)
def test_predictions(file, suffix, backend):
    # The pure probit of the peer is integrated by quadrature, ours in closed form: 100 nodes are converged to 1e-9, 20
    # are not. The moments of the peer's Poisson are quadrature, too.
    case = Case(file, backend)
    likelihood = likelihood_of(case, points=100 if suffix else 20)
    mu, var, y = case.array("Fmu"), case.array("Fvar"), case.array("Y")
    mean, variance = likelihood.predict(mu, var)
    tolerance = (1e-8 if suffix else 1e-4) if file.endswith("pure") else None
    case.value(f"y_mean{suffix}", mean, tolerance)
    case.value(f"y_var{suffix}", variance, tolerance)
    case.value(f"log_density{suffix}", likelihood.predictive_log_density(mu, var, y), tolerance)


@pytest.mark.parametrize("file", FILES)
def test_log_density_of_a_known_latent_value(file, backend):
    case = Case(file, backend)
    mu, y = case.array("Fmu"), case.array("Y")
    value, _ = likelihood_of(case).expected_log_density(mu, 0.0 * mu, y)
    # the step of robust-max is squashed by 1e-6
    tolerance = {"gaussian": 1e-9, "robustmax": 1e-5}.get(file.rsplit("_", 1)[1], 1e-7)
    case.value("log_prob", value, tolerance)


SAMPLES = 40_000


@pytest.mark.parametrize("file", ["gpflow_lik_softmax"])
def test_softmax(file, backend):
    # within four standard errors, of a standard deviation of at most one
    case = Case(file, backend)
    tolerance = 4.0 * SAMPLES**-0.5
    mu, var, y = case.array("Fmu"), case.array("Fvar"), case.array("Y")
    likelihood = Softmax(mu.shape[1], samples=SAMPLES, fixed_samples=SAMPLES)
    eps = likelihood.draws(np.random.default_rng(1), *mu.shape)["eps"]
    value, _ = likelihood.expected_log_density(mu, var, y, draws={"eps": backend.array(eps)})
    found = {
        "var_exp": value,
        "log_density": likelihood.predictive_log_density(mu, var, y),
        "class_probs": likelihood.predict(mu, var).mean,
    }
    for name, actual in found.items():
        np.testing.assert_allclose(backend.numpy(actual), case.out(name), atol=tolerance, rtol=0.0)
    fixed, _ = likelihood.expected_log_density(mu, var, y)
    np.testing.assert_allclose(backend.numpy(fixed), case.out("var_exp"), atol=tolerance, rtol=0.0)
    case.finished(var_exp_mc="the peer's own estimate of var_exp")


@pytest.mark.parametrize("file", ["gpflow_gauss_kl"])
def test_white_kl(file, backend):
    case = Case(file, backend)
    full = Whitened(case.array("q_mu"), case.array("q_sqrt"))
    M, P = case.host("q_mu").shape
    diagonal = np.zeros((P, M, M))
    diagonal[:, np.arange(M), np.arange(M)] = case.host("q_sd").T
    case.value("kl_white_full", full.white_kl()[0])
    case.value("kl_white_diag", Whitened(case.array("q_mu"), backend.array(diagonal)).white_kl()[0])
    reason = "KL against a given prior covariance: M-SVGP"
    left = ["kl_full", "kl_full_batched", "kl_diag", "kl_diag_batched"]
    case.finished(**dict.fromkeys(left, reason))
