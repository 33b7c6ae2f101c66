"""Distances of many columns under a compiler: one loop over the columns, and the same numbers."""

import numpy as np
import pytest
from helpers import JAX, assert_close

from agp.backend import get_backend
from agp.kernels._distance import FEW_COLUMNS, SMALL_ROUNDOFF, squared_distances

jax = pytest.importorskip("jax")

WIDTH = 40


def inputs(size=9, stack=()):
    """Rows too far apart for the expansion of the square, so that differences serve."""
    rng = np.random.default_rng(0)
    X, Z = 3e5 * rng.normal(size=(*stack, size, WIDTH)), 3e5 * rng.normal(size=(*stack, 5, WIDTH))
    assert np.max(np.sum(X * X, axis=-1)) * 1.1e-16 > SMALL_ROUNDOFF
    return X, Z


@pytest.mark.parametrize("stack", [(), (3,)], ids=["rows", "stacks"])
@pytest.mark.parametrize("own", [False, True], ids=["two sets", "one set"])
def test_compiled_differences_are_those_of_a_loop_on_the_host(own, stack, available):
    place = available(JAX)
    X, Z = inputs(stack=stack)
    lengthscale = np.linspace(0.5, 2.0, WIDTH)
    here = [place.array(x) for x in (X, Z, lengthscale)]

    def distances(X, Z, lengthscale):
        return squared_distances(X, None if own else Z, lengthscale)[0]

    expected = squared_distances(X, None if own else Z, lengthscale)[0]
    assert_close(place.numpy(get_backend("jax").compile(distances)(*here)), expected, 1e-14)


def test_their_automatic_derivative_is_that_of_the_sum(available):
    place = available(JAX)
    X, Z = inputs()
    ones = place.array(np.ones(WIDTH))

    def total(X):
        return jax.numpy.sum(squared_distances(X, place.array(Z), ones)[0])

    found = jax.jit(jax.grad(total))(place.array(X))
    assert_close(place.numpy(found), 2.0 * (len(Z) * X - np.sum(Z, axis=0)), 1e-12)


def test_a_program_does_not_grow_with_the_columns(available):
    place = available(JAX)
    lines = []
    for width in (FEW_COLUMNS + 1, 10 * FEW_COLUMNS):
        X = place.array(np.ones((4, width)))
        traced = jax.make_jaxpr(lambda X: squared_distances(X, None, jax.numpy.ones(X.shape[1]))[0])(X)
        lines.append(str(traced).count("\n"))
    assert lines[0] == lines[1]
