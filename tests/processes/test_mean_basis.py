"""Mean functions that are linear in their parameters: the derivatives with respect to them."""

import numpy as np
import pytest
from helpers import assert_close
from test_means import MEANS

from agp import tree
from agp.means import ConstantMean, LinearMean, Mean, Projection, ZeroMean

BASES = MEANS | {"projection": lambda D, P: Projection(np.ones((D, P)), np.arange(float(D)))}


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", BASES)
def test_functions_are_their_basis_times_their_parameters(name, outputs, backend):
    X = np.random.default_rng(2).normal(size=(8, 4))
    mean = BASES[name](4, outputs)
    basis = tree.leaves(backend.move(mean).basis(backend.array(X), outputs))
    moving = tree.leaves(mean, "parameter")
    assert {leaf for leaf, x in basis.items() if x is not None} == moving.keys()
    total = np.zeros((8, outputs))
    for leaf, value in moving.items():
        slopes = backend.numpy(basis[leaf])
        assert slopes.shape == (8, outputs, *value.shape)
        total += np.sum(slopes * value, axis=tuple(range(2, slopes.ndim)))
    if name != "projection":
        assert_close(total, np.broadcast_to(mean(X)[0], (8, outputs)), 1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", BASES)
def test_the_basis_is_the_pullback(name, outputs):
    rng = np.random.default_rng(3)
    X, bar = rng.normal(size=(8, 4)), rng.normal(size=(8, outputs))
    mean = BASES[name](4, outputs)
    expected = tree.leaves(mean(X)[1](bar)[0])
    for leaf, slopes in tree.leaves(mean.basis(X, outputs)).items():
        if slopes is not None:
            assert_close(np.tensordot(bar, slopes, axes=([0, 1], [0, 1])), expected[leaf], 1e-12, leaf)


@pytest.mark.parametrize("mean", [ZeroMean(), ConstantMean(np.zeros(2)), LinearMean(np.zeros((4, 2)), np.zeros(2))])
def test_float32_stays_float32(mean, backend):
    here = backend.move(mean, "float32")
    X = backend.array(np.ones((3, 4)), "float32")
    for slopes in tree.leaves(here.basis(X, 2)).values():
        if slopes is not None:
            backend.check(slopes, "float32")


def test_other_functions_have_no_basis():
    class Wave(Mean):
        def __call__(self, X, /):
            return np.sin(X[:, :1]), lambda h_bar: (None, None)

        def from_data(self, X, level, spread, /):
            return self

        def check(self, width, outputs, /):
            pass

    assert Wave().basis(np.zeros((3, 2)), 1) is None
