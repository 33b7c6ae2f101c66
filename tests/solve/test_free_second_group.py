"""The bound with a free q(v) sees the covariance of q(v), however that is parameterised."""

import dataclasses

import numpy as np
import pytest
from helpers import TORCH, assert_close, toy_data

import agp
from agp import SOLVEGPR
from agp.posteriors import Dual, Whitened


def free_models():
    """The same q(v) as `Whitened` and as `Dual`."""
    X, y = toy_data(60)
    model = SOLVEGPR.from_data(X, y, second="whitened", num_inducing=6, num_orthogonal=5)
    rng = np.random.default_rng(0)
    scale = np.tril(0.2 * rng.standard_normal((1, 5, 5))) + 0.7 * np.eye(5)
    q = Whitened(rng.standard_normal((5, 1)), scale)
    L = np.linalg.cholesky(model._inducing_covariance()[0])[6:, 6:]
    sites = Dual.from_posterior(q, L @ L.T)
    return dataclasses.replace(model, second=q), dataclasses.replace(model, second=sites), X, y


def test_sites_give_the_bound_of_the_same_covariance():
    whitened, dual, X, y = free_models()
    assert_close(dual.bound(X, y)[0], whitened.bound(X, y)[0], 1e-12)
    for found, desired in zip(dual.predict(X), whitened.predict(X), strict=True):
        assert_close(found, desired, 1e-10)


@pytest.mark.parametrize("kind", ["whitened", "dual"])
def test_closed_form_is_autograd(kind):
    pytest.importorskip("torch")
    whitened, dual, X, y = free_models()
    model, X, y = TORCH.move(whitened if kind == "whitened" else dual), TORCH.array(X), TORCH.array(y)
    closed = agp.value_and_gradient(model, X, y)[1]
    auto = agp.value_and_gradient(model, X, y, gradient="autodiff")[1]
    assert closed.keys() == auto.keys()
    for name, expected in auto.items():
        assert_close(TORCH.numpy(closed[name]), TORCH.numpy(expected), 1e-8, name)
