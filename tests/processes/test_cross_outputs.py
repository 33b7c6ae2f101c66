"""How outputs depend on each other: covariances of all with all, and samples that have them."""

import numpy as np
import pytest
from helpers import assert_close
from process_cases import case, process_case

from agp.likelihoods import Gaussian
from agp.models import GPR, SVGP
from agp.processes import LinearMixing, Stack

MIXTURES = ("lmc", "intrinsic", "conv+rbf")


def _dense(process, X):
    """Cov[f_np, f_mq] by the definition: one unit of one latent function at a time."""
    factor = process.factorise()[0]
    latent, A = process.project_covariance(factor, X), process.mixing
    N, P = len(X), process.outputs
    found = np.zeros((N, P, N, P))
    for n in range(N):
        for m in range(N):
            found[n, :, m, :] = A @ np.diag(latent[:, n, m]) @ A.T
    return found


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_have_the_covariances_of_their_functions(name, backend):
    model, X, _ = case(name)
    moved, inputs = backend.move(model), backend.array(X)
    cross = backend.numpy(moved.predict_covariance(inputs, cross_outputs=True))
    assert_close(cross, _dense(model.process, X), 1e-10)
    own = backend.numpy(moved.predict_covariance(inputs))
    assert np.array_equal(np.einsum("npmp->pnm", cross), own)
    variance = backend.numpy(moved.predict(inputs).variance)
    assert_close(np.einsum("npnp->np", cross), variance, 1e-12)
    joint = cross.reshape(2 * [cross.shape[0] * cross.shape[1]])
    assert np.min(np.linalg.eigvalsh(0.5 * (joint + joint.T))) >= -1e-12 * np.max(joint)


def test_independent_outputs_have_none():
    model, X, _ = case("separate")
    cross = model.predict_covariance(X, cross_outputs=True)
    assert np.array_equal(np.einsum("npmp->pnm", cross), model.predict_covariance(X))
    cross[:, np.arange(2), :, np.arange(2)] = 0.0
    assert not np.any(cross)
    y = np.stack([X[:, 0], X[:, 1]], axis=1)
    exact = GPR.from_data(X, y)
    assert exact.predict_covariance(X, cross_outputs=True).shape == (len(X), 2, len(X), 2)


def test_mixtures_beside_functions_and_inside_mixtures():
    # side by side, A is block-diagonal; a mixture of one output is a function like any other
    X = case("lmc")[1]
    lmc, plain, single = process_case("lmc"), process_case("points"), process_case("conv+rbf")
    side = Stack((lmc, plain))
    expected = np.zeros((5, 4))
    expected[:3, :2], expected[3:, 2:] = lmc.weights, np.eye(2)
    assert np.array_equal(side.mixing, expected)
    nested = LinearMixing(Stack((single, plain)), np.asarray([[1.0, 0.5, 0.0], [0.2, -1.0, 2.0]]))
    for process in (side, nested):
        model = SVGP(process=process, likelihood=Gaussian(np.asarray(0.1)))
        cross = model.predict_covariance(X, cross_outputs=True)
        assert_close(cross, _dense(process, X), 1e-10)
        assert_close(np.einsum("npnp->np", cross), model.predict(X).variance, 1e-10)


@pytest.mark.parametrize("name", MIXTURES)
def test_samples_have_these_covariances(name):
    model, X, _ = case(name)
    X, S = X[:3], 40_000
    samples = model.sample(X, S, seed=3)
    mean, cross = model.predict(X).mean, model.predict_covariance(X, cross_outputs=True)
    flat, joint = (samples - mean).reshape(S, -1), cross.reshape(mean.size, mean.size)
    # Var[x_i x_j] = C_ii C_jj + C_ij^2
    error = np.sqrt((np.outer(np.diag(joint), np.diag(joint)) + joint**2) / S)
    assert np.max(np.abs(flat.T @ flat / S - joint) / error) <= 5.0
    assert np.max(np.abs(flat.mean(axis=0)) / np.sqrt(np.diag(joint) / S)) <= 5.0
