"""Likelihoods and the KL divergence against stored values of GPflow."""

import numpy as np
import pytest
from helpers import Case, likelihood_of

from agp.posteriors import Whitened

CLOSED = ["gpflow_lik_gaussian", "gpflow_lik_bernoulli", "gpflow_lik_bernoulli_pure"]


@pytest.mark.parametrize("suffix", ["", "_gh100"], ids=["20 nodes", "100 nodes"])
@pytest.mark.parametrize("file", CLOSED)
def test_expected_log_density(file, suffix, backend):
    case = Case(file, backend)
    likelihood = likelihood_of(case, points=100 if suffix else 20)
    mu, var, y = case.array("Fmu"), case.array("Fvar"), case.array("Y")
    value, pullback = likelihood.expected_log_density(mu, var, y)
    _, mu_bar, var_bar = pullback(backend.array(np.ones(mu.shape[0])))
    case.value(f"var_exp{suffix}", value)
    case.gradient(f"dve_dmu{suffix}", mu_bar)
    case.gradient(f"dve_dvar{suffix}", var_bar)


@pytest.mark.parametrize("file", CLOSED)
def test_predictions(file, backend):
    # The pure probit of the peer is integrated by quadrature, ours in closed form: 100 nodes are converged to 1e-9.
    case = Case(file, backend)
    likelihood = likelihood_of(case)
    mu, var, y = case.array("Fmu"), case.array("Fvar"), case.array("Y")
    mean, variance = likelihood.predict(mu, var)
    tolerance = 1e-8 if file.endswith("pure") else None
    case.value("y_mean_gh100", mean, tolerance)
    case.value("y_var_gh100", variance, tolerance)
    case.value("log_density_gh100", likelihood.predictive_log_density(mu, var, y), tolerance)


@pytest.mark.parametrize("file", CLOSED)
def test_log_density_of_a_known_latent_value(file, backend):
    case = Case(file, backend)
    mu, y = case.array("Fmu"), case.array("Y")
    value, _ = likelihood_of(case).expected_log_density(mu, 0.0 * mu, y)
    case.value("log_prob", value, 1e-9 if "gaussian" in file else 1e-7)


@pytest.mark.parametrize("file", ["gpflow_gauss_kl"])
def test_white_kl(file, backend):
    case = Case(file, backend)
    full = Whitened(case.array("q_mu"), case.array("q_sqrt"))
    M, P = case.host("q_mu").shape
    diagonal = np.zeros((P, M, M))
    diagonal[:, np.arange(M), np.arange(M)] = case.host("q_sd").T
    case.value("kl_white_full", full.kl_divergence(None)[0])
    case.value("kl_white_diag", Whitened(case.array("q_mu"), backend.array(diagonal)).kl_divergence(None)[0])
    reason = "KL against a given prior covariance: M-SVGP"
    left = ["kl_full", "kl_full_batched", "kl_diag", "kl_diag_batched"]
    case.finished(**dict.fromkeys(left, reason))
