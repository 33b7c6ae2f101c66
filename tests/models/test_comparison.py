"""What models tell those who compare methods: what they invert, what they know of the log evidence, tight solves."""

import numpy as np
import pytest
from helpers import gpr, inducing_covariance, process, replaced, toy_data

import agp
from agp import CGGP, GPR, SGPR, SOLVEGP, SOLVEGPR, SVGP, TSVGP, TVGP, CaGP
from agp.posteriors import DualInverseFree, Relaxed, RelaxedOrthogonal
from agp.processes import Sparse, Stack

X, Y = toy_data(24)
SPARSE = {
    "whitened": lambda: SVGP.from_data(X, Y, posterior="whitened", num_inducing=5),
    "sgpr": lambda: SGPR.from_data(X, Y, num_inducing=5),
    "solve": lambda: SOLVEGP.from_data(X, Y, num_inducing=3, num_orthogonal=2),
    "solve-collapsed": lambda: SOLVEGPR.from_data(X, Y, num_inducing=3, num_orthogonal=2),
    "datum": lambda: TSVGP.from_data(X, Y, num_inducing=5),
    "inverse-free": lambda: SVGP.from_data(X, Y, posterior=DualInverseFree, num_inducing=5),
}
FULL = {
    "gpr": lambda: GPR.from_data(X, Y),
    "tvgp": lambda: TVGP.from_data(X, Y),
    "cagp": lambda: CaGP.from_data(X, Y, num_actions=4),
    "cggp": lambda: CGGP.from_data(X, Y),
}


def condition(model):
    return max(np.max(np.linalg.cond(matrix)) for matrix in model._matrices_to_invert())


@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_models_invert_the_covariance_of_their_inducing_variables(kind):
    model = SPARSE[kind]()
    (matrix,) = model._matrices_to_invert()
    np.testing.assert_array_equal(matrix, inducing_covariance(model))


def test_relaxed_models_invert_what_their_factors_follow():
    model = SVGP.from_data(X, Y, posterior=Relaxed, num_inducing=5)
    (matrix,) = model._matrices_to_invert()
    expected = inducing_covariance(model) + np.diag(process(model).posterior.site)
    np.testing.assert_allclose(matrix, expected, rtol=1e-15)
    (first,) = SOLVEGP.from_data(X, Y, posterior=RelaxedOrthogonal, num_inducing=3)._matrices_to_invert()
    assert first.shape == (3, 3)


def test_each_of_several_processes_inverts_its_own():
    parts = tuple(Sparse.from_data(X, posterior="whitened", num_inducing=M) for M in (4, 6))
    model = SVGP(Stack(parts), agp.Gaussian(np.asarray(0.1)))
    assert [matrix.shape for matrix in model._matrices_to_invert()] == [(4, 4), (6, 6)]


def test_models_of_all_data_invert_a_matrix_of_these():
    model = FULL["gpr"]()
    K, noise = model.kernel(X)[0], float(model.likelihood.noise_variance)
    np.testing.assert_allclose(model._matrices_to_invert()[0], K + noise * np.eye(24), rtol=1e-15)
    assert condition(FULL["cggp"]()) >= condition(model)  # which is not computed, but limited
    sites = TVGP.from_data(X, Y).with_gaussian_sites(Y)
    assert condition(sites) == pytest.approx(condition(model), rel=1e-10)
    aware = FULL["cagp"]()
    np.testing.assert_array_equal(aware._matrices_to_invert()[0], aware._matrix_to_invert())


@pytest.mark.parametrize("kind", [*SPARSE, *FULL])
def test_the_log_evidence_lies_in_its_interval(kind):
    model = (SPARSE | FULL)[kind]()
    interval = model._evidence_interval(X, Y)
    if kind not in ("gpr", "sgpr", "solve-collapsed"):
        assert interval is None
        return
    evidence = float(gpr(model.kernel, model.likelihood, X, Y, model.mean_function).bound(X, Y)[0])
    lower, upper = map(float, interval)
    assert lower == float(model.bound(X, Y)[0])
    if kind == "gpr":
        assert lower == upper == evidence
    else:
        assert lower < evidence < upper


@pytest.mark.parametrize("kind", [*SPARSE, *FULL])
def test_only_iterative_solves_are_tightened(kind):
    model = (SPARSE | FULL)[kind]()
    tight = model._with_tight_tolerance()
    if kind != "cggp":
        assert tight is model
        return
    assert tight.tolerance < 1e-12 < model.tolerance
    assert tight.max_iterations > model.max_iterations
    exact = replaced(tight, rank=24)
    assert float(exact.bound(X, Y)[0]) == pytest.approx(float(FULL["gpr"]().bound(X, Y)[0]), rel=1e-10)
