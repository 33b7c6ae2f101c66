"""Every stored file is consumed by a test."""

import importlib

import pytest
from helpers import REFERENCE

CONSUMED = {
    "test_reference_kernels.test_covariances": ["gpflow_kernels", "gpytorch_kernels", "sklearn_kernels"],
    "test_reference_kernels.test_gradients": ["gpflow_kernels"],
    "test_reference_likelihoods.test_expected_log_density": [
        "gpflow_lik_gaussian",
        "gpflow_lik_bernoulli",
        "gpflow_lik_bernoulli_pure",
        "gpflow_lik_bernoulli_logit",
        "gpflow_lik_poisson",
        "gpflow_lik_studentt",
        "gpflow_lik_robustmax",
        "gpflow_lik_gamma",
        "gpflow_lik_exponential",
    ],
    "test_reference_likelihoods.test_softmax": ["gpflow_lik_softmax"],
    "test_reference_likelihoods.test_softmax_by_samples": ["gpflow_lik_softmax"],
    "test_reference_sgpr.test_collapsed": [
        "gpflow_sgpr_rbf",
        "gpflow_sgpr_matern32_ard_p2",
        "gpflow_sgpr_rbf_constant_mean",
    ],
    "test_reference_sgpr.test_collapsed_of_gpjax": ["gpjax_gaussian"],
    "test_reference_kernels.test_the_periodic_kernel_of_scikit_learn": ["sklearn_kernels"],
    "test_reference_likelihoods.test_kl": ["gpflow_gauss_kl"],
    "test_reference_gpr.test_exact_gp": [
        "gpflow_gpr_rbf",
        "gpflow_gpr_matern52_ard",
        "gpflow_gpr_matern12_multi_output",
        "gpflow_gpr_sum_linear_constant_mean",
        "gpytorch_exact_rbf_ard",
        "gpytorch_exact_matern52_constant_mean",
        "sklearn_gpr_rbf_white",
        "sklearn_gpr_matern32_white",
    ],
    "test_reference_gpr.test_exact_gp_of_gpjax": ["gpjax_gaussian"],
    "test_reference_svgp.test_whitened": [
        "gpflow_svgp_white_gaussian",
        "gpflow_svgp_white_bernoulli",
        "gpflow_svgp_white_bernoulli_pure",
        "gpflow_svgp_multi_shared_white",
        "gpflow_svgp_white_bernoulli_logit",
        "gpflow_svgp_white_poisson",
        "gpflow_svgp_white_studentt",
        "gpflow_svgp_white_robustmax",
        "gpytorch_svgp_white_gaussian",
        "gpytorch_svgp_white_bernoulli",
        "gpytorch_svgp_white_studentt",
    ],
    "test_reference_svgp.test_diagonal_posteriors": [
        "gpflow_svgp_white_qdiag_linear_mean",
        "gpflow_svgp_unwhite_qdiag_linear_mean",
    ],
    "test_reference_svgp.test_marginal": [
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
    ],
    "test_reference_svgp.test_svgp_of_gpjax": ["gpjax_gaussian"],
    "test_reference_relaxed.test_relaxed": [
        "relaxedgp_rsvgp_T",
        "relaxedgp_rsvgp_T_rough_jitter1e-6",
        "relaxedgp_rsvgp_bernoulli_T",
        "relaxedgp_rsvgp_identity",
        "relaxedgp_rsvgp_identity_optimalT",
        "relaxedgp_rsvgp_initT",
        "relaxedgp_rsvgp_p3_shared_T",
        "relaxedgp_rsvgp_p3_shared_identity",
        "relaxedgp_rsvgp_Tsqrt",
        "relaxedgp_rsvgp_full_site_T",
    ],
    "test_reference_natural.test_iterates": [
        "gpflow_natgrad_gaussian_white_xinat",
        "gpflow_natgrad_gaussian_unwhite_xinat",
        "gpflow_natgrad_bernoulli_white_xinat",
        "gpflow_natgrad_bernoulli_unwhite_xinat",
        "gpflow_natgrad_bernoulli_white_xisqrtmeanvar",
        "gpflow_natgrad_poisson_unwhite_xinat",
        "gpflow_natgrad_robustmax_white_xinat",
        "gpflow_natgrad_studentt_white_xinat",
    ],
    "test_reference_dual.test_sparse": [
        "tsvgp_bernoulli_lr0.5",
        "tsvgp_bernoulli_lr1",
        "tsvgp_bernoulli_p3_lr0.5",
        "tsvgp_gaussian_lr0.4",
        "tsvgp_gaussian_lr1",
        "tsvgp_gaussian_minibatch_lr0.5",
        "tsvgp_poisson_lr0.3",
        "tsvgp_studentt_lr0.3",
    ],
    "test_reference_dual.test_variants": ["tsvgp_variants_bernoulli", "tsvgp_variants_gaussian"],
    "test_reference_dual.test_dual_of_gpjax": ["gpjax_gaussian"],
    "test_reference_relaxed.test_likelihood_form": [
        "relaxedgp_lsvgp_identity",
        "relaxedgp_lsvgp_bernoulli_identity",
        "relaxedgp_lsvgp_inv",
        "relaxedgp_lsvgp_inv_jitter1e-6",
        "relaxedgp_lsvgp_p3_shared_identity",
        "relaxedgp_lsvgp_p3_shared_inv",
        "relaxedgp_lsvgp_full_site_inv",
    ],
    "test_reference_processes.test_several_kernels": [
        "gpflow_svgp_multi_separate_white",
        "gpflow_svgp_multi_separate_unwhite",
        "gpflow_svgp_multi_lmc_white",
        "gpflow_svgp_multi_lmc_unwhite",
    ],
    "test_reference_processes.test_two_layers": ["relaxedgp_deep_two_layer"],
    "test_reference_relaxed.test_kl_of_separate_kernels": ["relaxedgp_p3_separate_kl"],
    "test_reference_relaxed.test_iterates": [
        "relaxedgp_ng_constant_gamma0.3",
        "relaxedgp_ng_constant_gamma1",
        "relaxedgp_ng_loglinear",
    ],
    "test_reference_relaxed.test_stopping_by_residual": ["relaxedgp_ng_stopping"],
    "test_reference_relaxed.test_stopping_by_predictive_variance": ["relaxedgp_ng_stopping"],
    "test_reference_relaxed.test_stopping_on_a_plateau": ["relaxedgp_ng_stopping"],
    "test_reference_relaxed.test_schedules": ["relaxedgp_schedules"],
    "test_reference_solve.test_solve": [
        "solvegp_unwhite_gaussian",
        "solvegp_unwhite_gaussian_p3",
        "solvegp_white_bernoulli",
        "solvegp_white_gaussian",
    ],
    "test_reference_cagp.test_dense_actions": [
        "cagp_dense_cg_residuals",
        "cagp_dense_full_rank",
        "cagp_dense_random_dense",
        "cagp_dense_unit_vectors",
    ],
    "test_reference_cagp.test_unit_vectors_are_the_exact_gp_of_a_subset": ["cagp_dense_unit_vectors"],
    "test_reference_cagp.test_blocks": [
        "cagp_gpytorch_matern32",
        "cagp_gpytorch_matern52_ard_constant_mean",
        "cagp_gpytorch_rbf_ard",
    ],
}


def test_every_stored_file_is_consumed():
    stored = {path.stem for path in REFERENCE.glob("*.npz")}
    assert stored == {name for names in CONSUMED.values() for name in names}


@pytest.mark.parametrize("test", CONSUMED)
def test_the_table_is_true(test):
    module, function = test.split(".")
    marks = getattr(importlib.import_module(module), function).pytestmark
    (files,) = [mark.args[1] for mark in marks if mark.name == "parametrize" and mark.args[0] == "file"]
    assert set(files) == set(CONSUMED[test])
