"""The Laplace approximation of the evidence of labels: values of others, its gradient, weights, libraries."""

import numpy as np
import pytest
from helpers import assert_close, autograd

from agp import get_backend
from agp.backend import backend_of
from agp.bounds import Batch, laplace_evidence
from agp.bounds._laplace import LaplaceEvidence
from agp.likelihoods import Bernoulli, Softmax

LOGIT = Bernoulli(link="logit")
EXACT = 1e-13  # the tolerance of Newton's method, in nats


def problem(classes, rows=24, seed=0):
    """A covariance, labels of which each class has some, and weights."""
    rng = np.random.default_rng([seed, classes])
    X = rng.normal(size=(rows, 2))
    K = 3.0 * np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, axis=-1)) + 1.0
    y = rng.permutation(np.arange(rows) % classes).astype(float)[:, None]
    return X, K, y, rng.uniform(0.5, 2.0, rows)


def likelihood_of(classes):
    return LOGIT if classes == 2 else Softmax(classes)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("known", ["plain", "weights", "offset"])
def test_the_gradient_is_that_of_differences(classes, known):
    X, K, y, weights = problem(classes)
    outputs = 1 if classes == 2 else classes
    given = {"weights": weights} if known == "weights" else {}
    given |= {"offset": np.sin(np.arange(len(y) * outputs)).reshape(-1, outputs)} if known == "offset" else {}
    batch = Batch(X, y, **given)

    def value(K):
        return float(laplace_evidence(likelihood_of(classes), K, batch, tolerance=EXACT)[0].value)

    G = laplace_evidence(likelihood_of(classes), K, batch, tolerance=EXACT)[1](1.0)
    assert_close(G, G.T, 1e-12)
    rng = np.random.default_rng(1)
    for _ in range(3):
        root = rng.normal(size=K.shape)
        change, h = root @ root.T / len(K), 1e-4
        # of fourth order
        first, second = (value(K + t * change) - value(K - t * change) for t in (h, 2.0 * h))
        assert abs((8.0 * first - second) / (12.0 * h) - np.sum(G * change)) <= 1e-7 * np.abs(G * change).sum()


@pytest.mark.parametrize("classes", [2, 4])
def test_the_gradient_is_autodiff(classes, torch_place):
    """One step of Newton's method from the mode has the mode's derivative by K, the implicit one."""
    X, K, y, _ = problem(classes)
    batch = Batch(torch_place.array(X), torch_place.array(y))
    mode, pull = laplace_evidence(likelihood_of(classes), torch_place.array(K), batch, tolerance=EXACT)
    B = get_backend("torch")

    def evidence(leaves):
        return (dense_evidence(classes, leaves["K"], mode.weights, torch_place.array(y), B.xp),), None

    gradient = autograd(evidence, {"K": torch_place.array(K)}, (1.0,))["K"]
    found = torch_place.numpy(gradient)
    assert_close(torch_place.numpy(pull(1.0)), 0.5 * (found + found.T), 1e-8)


def dense_evidence(classes, K, A, y, xp):
    """The evidence after one Newton step from K A, with the dense W [C N, C N] of all functions."""
    N, C = y.shape[0], 1 if classes == 2 else classes
    big = xp.zeros((C * N, C * N), dtype=K.dtype)
    for c in range(C):
        big[c * N : (c + 1) * N, c * N : (c + 1) * N] = K

    def at(f):
        if C == 1:
            p = 1.0 / (1.0 + xp.exp(-f))
            return y - p, xp.diag((p * (1.0 - p))[:, 0]), xp.sum(y * f - xp.logaddexp(f, xp.zeros_like(f)))
        p = xp.softmax(f, dim=1)
        label = xp.asarray(y == xp.arange(C, dtype=y.dtype), dtype=K.dtype)
        W = xp.concat(
            [xp.concat([xp.diag((c == d) * p[:, c] - p[:, c] * p[:, d]) for d in range(C)], axis=1) for c in range(C)]
        )
        return label - p, W, xp.sum(label * xp.log_softmax(f, dim=1))

    def stacked(x):
        return xp.reshape(x.mT, (-1, 1))

    f = big @ stacked(A.detach())
    slope, W, _ = at(xp.reshape(f, (C, N)).mT)
    # f = K (I + W K)^-1 (W f + slope); the derivative of W and of the slope by f cancels
    f0 = f.detach()
    slope, W = (x.detach() for x in at(xp.reshape(f0, (C, N)).mT)[:2])
    eye = xp.eye(C * N, dtype=K.dtype)
    weights = xp.linalg.solve(eye + W @ big, W @ f0 + stacked(slope))
    f = big @ weights
    _, W, density = at(xp.reshape(f, (C, N)).mT)
    return density - 0.5 * xp.sum(weights * f) - 0.5 * xp.linalg.slogdet(eye + W @ big)[1]


def test_two_classes_are_those_of_scikit_learn():
    X, _, y, _ = problem(2, rows=40)
    others = pytest.importorskip("sklearn.gaussian_process")
    kernel = others.kernels.ConstantKernel(2.5) * others.kernels.RBF(0.8)
    theirs = others.GaussianProcessClassifier(kernel, optimizer=None, max_iter_predict=1000).fit(X, y[:, 0])
    K = kernel(X)
    found = laplace_evidence(LOGIT, K, Batch(X, y), tolerance=EXACT)[0]
    assert_close(found.value, theirs.log_marginal_likelihood_value_, 1e-7)


def test_softmax_of_two_classes_is_the_logit():
    """f_1 - f_0 has the covariance 2 K, and the density does not depend on the sum of the functions."""
    X, K, y, weights = problem(2)
    batch = Batch(X, y, weights=weights)
    two = laplace_evidence(Softmax(2), K, batch, tolerance=EXACT)
    one = laplace_evidence(LOGIT, 2.0 * K, batch, tolerance=EXACT)
    assert_close(two[0].value, one[0].value, 1e-9)
    assert_close(two[1](1.0), 2.0 * one[1](1.0), 1e-7)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_weight_is_a_number_of_rows(classes):
    X, K, y, _ = problem(classes)
    counts = 1 + np.arange(len(X)) % 3
    rows = np.repeat(np.arange(len(X)), counts)
    # equal rows need some variance of their own for K to be positive definite
    repeated = K[np.ix_(rows, rows)] + 1e-9 * np.eye(len(rows))
    args = {"tolerance": EXACT}
    once = laplace_evidence(likelihood_of(classes), K, Batch(X, y, weights=counts.astype(float)), **args)[0].value
    many = laplace_evidence(likelihood_of(classes), repeated, Batch(X[rows], y[rows]), **args)[0].value
    assert_close(once, many, 1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_libraries_agree(classes, backend):
    X, K, y, weights = problem(classes)
    expected, pull = laplace_evidence(likelihood_of(classes), K, Batch(X, y, weights=weights))
    batch = Batch(backend.array(X), backend.array(y), weights=backend.array(weights))
    found, pull_here = laplace_evidence(likelihood_of(classes), backend.array(K), batch)
    assert isinstance(found, LaplaceEvidence)
    assert_close(backend.numpy(found.value), expected.value, 1e-9)
    assert_close(backend.numpy(pull_here(2.0)), 2.0 * pull(1.0), 1e-9)
    assert backend_of(found.weights) is get_backend(backend.name)


def test_the_search_for_the_mode_starts_where_it_is_told():
    X, K, y, _ = problem(3)
    mode = laplace_evidence(Softmax(3), K, Batch(X, y), tolerance=EXACT)[0]
    again = laplace_evidence(Softmax(3), 1.01 * K, Batch(X, y), mode.weights, tolerance=EXACT)[0]
    fresh = laplace_evidence(Softmax(3), 1.01 * K, Batch(X, y), tolerance=EXACT)[0]
    assert_close(again.value, fresh.value, 1e-9)
    worse = laplace_evidence(Softmax(3), K, Batch(X, y), 1e6 * mode.weights, tolerance=EXACT)[0]
    assert_close(worse.value, mode.value, 1e-9)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Bernoulli(0.01, link="logit")])
def test_other_links_are_refused(likelihood):
    X, K, y, _ = problem(2)
    with pytest.raises(TypeError, match="must be Softmax, or Bernoulli with link='logit'"):
        laplace_evidence(likelihood, K, Batch(X, y))
