"""Computation-aware GPs against stored values: dense formulas in high precision, and a branch of GPyTorch."""

import numpy as np
import pytest
from helpers import Case, assert_close, gpr, kernel_of, likelihood_of, with_leaves

from agp import tree
from agp.actions import BlockActions, ConjugateGradients, DenseActions, FixedActions, UnitVectors
from agp.backend import row_numbers
from agp.gradient import value_and_gradient
from agp.means import ConstantMean
from agp.models import CaGP

DENSE = ["cagp_dense_cg_residuals", "cagp_dense_full_rank", "cagp_dense_random_dense", "cagp_dense_unit_vectors"]
BLOCKS = ["cagp_gpytorch_matern32", "cagp_gpytorch_matern52_ard_constant_mean", "cagp_gpytorch_rbf_ard"]
GRADIENTS = {
    "grad_variance": "kernel.variance",
    "grad_lengthscales": "kernel.lengthscale",
    "grad_noise_variance": "likelihood.noise_variance",
}


def _model(case, actions):
    kernel = kernel_of(case)
    X, y = case.array("X"), case.array("Y")
    if not case.given("mean_constant"):
        return CaGP(kernel, likelihood_of(case), actions=actions, X=X, y=y)
    mean = ConstantMean(case.place.array(np.atleast_1d(case.host("mean_constant"))))
    return CaGP(kernel, likelihood_of(case), actions=actions, X=X, y=y, mean_function=mean)


def _values_and_gradients(case, model):
    value, pullback = model.bound(model.X, model.y)
    case.value("elbo", value)
    leaves = tree.leaves(pullback(1.0)[0])
    for name, leaf in GRADIENTS.items():
        case.gradient(name, leaves[leaf])
    prediction = model.predict(case.array("Xs"))
    case.value("f_mean", prediction.mean)
    case.value("f_var", prediction.variance)
    case.value("f_cov", model.predict_covariance(case.array("Xs")))
    return leaves["actions.values"]


def _inverse_by_projection(case, model, S):
    """C = S G^-1 S^T [N, N], from the model's G."""
    return case.place.array(S @ np.linalg.solve(case.place.numpy(model._matrix_to_invert()), S.T))


def _parts_of(case, model):
    """KL[q || p] and the expected log density, by the marginals of q at the data; they make up the bound."""
    place = case.place
    mu, var = (place.numpy(x) for x in model.predict(model.X))
    y, noise = place.numpy(model.y), float(place.numpy(model.likelihood.noise_variance))
    expected = -0.5 * np.sum(((y - mu) ** 2 + var) / noise + np.log(2.0 * np.pi * noise))
    return expected - float(place.numpy(model.bound(model.X, model.y)[0])), expected


@pytest.mark.parametrize("file", DENSE)
def test_dense_actions(file, backend):
    case = Case(file, backend)
    model = _model(case, DenseActions(case.array("actions")))
    case.gradient("grad_actions", _near_zero_is_zero(case, _values_and_gradients(case, model)))
    S = case.host("actions")
    C = _inverse_by_projection(case, model, S)
    case.value("C", C)
    residual = backend.numpy(model.y)
    case.value("weights", backend.array(backend.numpy(C) @ residual))
    kl, expected = _parts_of(case, model)
    case.value("kl", backend.array(kl))
    case.value("sum_var_exp", backend.array(expected))
    exact = gpr(model.kernel, model.likelihood, model.X, model.y)
    case.value("exact_lml", exact.bound(model.X, model.y)[0])
    if case.has("cg_iterates"):
        policy = ConjugateGradients(S.shape[1], tolerance=0.0)(model)
        for count in range(1, S.shape[1] + 1):
            first = backend.numpy(policy.values)[:, :count]
            nested = _model(case, FixedActions(backend.array(first)))
            iterate = backend.numpy(_inverse_by_projection(case, nested, first)) @ residual
            assert_close(iterate[:, 0], case.out("cg_iterates")[count - 1], case.value_tolerance, f"iterate {count}")
    case.finished()


def _near_zero_is_zero(case, bar):
    """The gradient of actions that span everything is zero, as far as float64 goes."""
    desired = case.out("grad_actions")
    case.seen.discard("grad_actions")
    if np.max(np.abs(desired)) > 1e-9:
        return bar
    np.testing.assert_allclose(case.place.numpy(bar), desired, rtol=0.0, atol=1e-10)
    return case.place.array(desired)


@pytest.mark.parametrize("file", ["cagp_dense_unit_vectors"])
def test_unit_vectors_are_the_exact_gp_of_a_subset(file, backend):
    case = Case(file, backend)
    S = case.host("actions")
    rows = np.argmax(S, axis=0)
    model = _model(case, DenseActions(case.array("actions")))
    chosen = UnitVectors(rows=tuple(int(row) for row in rows))(model)
    np.testing.assert_array_equal(backend.numpy(chosen.values), S)
    subset = gpr(model.kernel, model.likelihood, case.place.array(case.host("X")[rows]), model.y[: len(rows), :])
    subset = with_leaves(subset, {"y": case.place.array(case.host("Y")[rows])})
    prediction = subset.predict(case.array("Xs"))
    case.value("f_mean", prediction.mean)
    case.value("f_var", prediction.variance)


@pytest.mark.parametrize("file", BLOCKS)
def test_blocks(file, backend):
    case = Case(file, backend)
    values = case.host("actions_blocks")
    assert float(case.host("num_dropped")) == 0
    model = _model(case, BlockActions(case.place.array(values.reshape(-1)), values.shape[0]))
    case.gradient(
        "grad_actions", backend.array(backend.numpy(_values_and_gradients(case, model)).reshape(values.shape))
    )
    S = backend.numpy(model.actions.rows(row_numbers(model.X.shape[0], model.X))[0])
    np.testing.assert_array_equal(S, case.host("actions_dense"))
    case.value("C", _inverse_by_projection(case, model, S))
    kl, expected = _parts_of(case, model)
    case.value("kl_dense", backend.array(kl))
    case.value("sum_var_exp_dense", backend.array(expected))
    dense = _model(case, DenseActions(case.array("actions_dense")))
    case.value("elbo_dense", dense.bound(model.X, model.y)[0])
    case.value("f_mean_dense", dense.predict(case.array("Xs")).mean)
    case.value("f_cov_dense", dense.predict_covariance(case.array("Xs")))
    case.finished()


@pytest.mark.parametrize("file", [*DENSE, *BLOCKS])
def test_gradients_by_automatic_differentiation(file, torch_place):
    case = Case(file, torch_place)
    blocks = case.given("actions_blocks")
    values = case.host("actions_blocks" if blocks else "actions")
    leaf = torch_place.array(values.reshape(-1) if blocks else values)
    model = _model(case, BlockActions(leaf, values.shape[0]) if blocks else DenseActions(leaf))
    raw = value_and_gradient(model, model.X, model.y, gradient="autodiff")[1]
    closed = value_and_gradient(model, model.X, model.y)[1]
    for name, leaf in GRADIENTS.items():
        assert_close(torch_place.numpy(raw[leaf]), torch_place.numpy(closed[leaf]), 1e-8, name)
    found = raw["actions.values"]
    found = torch_place.array(torch_place.numpy(found).reshape(values.shape))
    case.gradient("grad_actions", found if blocks else _near_zero_is_zero(case, found))
