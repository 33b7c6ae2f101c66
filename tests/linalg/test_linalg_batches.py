"""Matrices of several outputs beside their vectors, and variances that rounding has made negative."""

import numpy as np
import pytest
from helpers import TORCH, as_arrays

from agp.kernels import RBF
from agp.linalg import each_cholesky, each_inverse, each_outer, each_times, nonnegative, solve_each
from agp.posteriors import Dual, Whitened

RNG = np.random.default_rng(4)
MATRICES = RNG.normal(size=(3, 5, 5))
VECTORS, OTHERS = RNG.normal(size=(2, 5, 3))
LOWER = np.tril(MATRICES) + 3.0 * np.eye(5)


def assert_each(backend, found, expected):
    """Matrices or columns, one for each output."""
    found = np.moveaxis(backend.numpy(found), -1, 0) if found.ndim == 2 else backend.numpy(found)
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-12, atol=1e-12)


def test_products_and_solves_are_those_of_each_output(backend):
    A, x, y, L = map(backend.array, (MATRICES, VECTORS, OTHERS, LOWER))
    outer = [np.outer(a, b) for a, b in zip(VECTORS.T, OTHERS.T, strict=True)]
    assert_each(backend, each_times(A, x), [a @ b for a, b in zip(MATRICES, VECTORS.T, strict=True)])
    assert_each(backend, each_outer(x, y), [0.5 * (a + a.T) for a in outer])
    assert_each(backend, each_inverse(L), np.linalg.inv(LOWER))
    assert_each(backend, each_cholesky(L @ L.mT), LOWER)
    for transpose, root in ((False, LOWER[0]), (True, LOWER[0].T)):
        assert_each(backend, solve_each(L[0, ...], A, transpose=transpose), np.linalg.solve(root, MATRICES))


def test_variances_below_zero_are_zero_and_nan_stays(backend):
    x = backend.array(np.asarray([-1.0, -0.0, 0.0, 2.0, np.nan, np.inf]))
    value, pullback = nonnegative(x)
    np.testing.assert_array_equal(backend.numpy(value), [0.0, 0.0, 0.0, 2.0, np.nan, np.inf])
    bars = backend.numpy(pullback(backend.array(np.asarray(3.0))))
    np.testing.assert_array_equal(bars, [0.0, 0.0, 0.0, 3.0, 3.0, 3.0])


def test_the_cotangent_of_a_raised_variance_is_that_of_automatic_differentiation(torch_place):
    x = torch_place.array(np.asarray([-1.0, 0.0, 2.0])).requires_grad_()
    value, pullback = nonnegative(x)
    bar = TORCH.array(np.asarray([5.0, 6.0, 7.0]))
    value.backward(bar)
    np.testing.assert_array_equal(x.grad.numpy(), pullback(bar).detach().numpy())


@pytest.mark.parametrize("posterior", [Whitened, Dual])
def test_a_variance_that_is_no_number_is_not_hidden(posterior):
    kernel, Z = as_arrays(RBF(1.0, 0.7)), RNG.normal(size=(4, 2))
    Kuu, kff = kernel(Z)[0] + 1e-3 * np.eye(4), np.asarray([1.0, np.nan])
    q = posterior.from_prior(Kuu, 1)
    var = q.project(q.factorise(Kuu)[0], kernel(Z, Z[:2])[0], kff)[0][1]
    np.testing.assert_array_equal(np.isnan(var[:, 0]), [False, True])
